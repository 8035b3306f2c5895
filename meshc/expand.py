"""From the SPMD program to one core's own instruction stream.

What a lane does for an instruction does not depend on the layer but for the addresses of buffers
with one instance per layer, so it is worked out once per lane and instruction and then stamped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from meshc.collectives import tree
from meshc.ir.chip import Coord
from meshc.ir.layout import Layout
from meshc.ir.placement import Region
from meshc.ir.program import (
    Broadcast,
    Buffer,
    Compute,
    Instruction,
    Move,
    Program,
    Reduce,
    Transfer,
)
from meshc.ir.routing import Route
from meshc.ir.shards import local, pieces
from meshc.ir.stream import Action, Combine, Copy, Kernel, Pass, Recv, Send, SetUp, Step, View

POSITIONS = 1 << 16  # position = schedule index × POSITIONS + instruction index
Lane = tuple[int, int]
Ranges = tuple[range, ...]
_Prefix = tuple[int, int]  # of a message key: run, and layer × POSITIONS + instruction


@dataclass(frozen=True)
class _Part:
    """A view whose address is known once the layer is."""

    buffer: Buffer
    extent: tuple[int, ...]
    ranges: tuple[range, ...]

    def at(self, layer: int) -> View:
        return View(self.buffer.address(layer), self.extent, self.ranges, self.buffer.dtype)

    @property
    def empty(self) -> bool:
        return any(len(r) == 0 for r in self.ranges)


@dataclass(frozen=True)
class LaneKernel:
    """A lane's kernel, in any layer."""

    op: str
    inputs: tuple[_Part, ...]
    output: _Part
    ranges: tuple[tuple[range, ...], ...]

    def at(self, layer: int, key: _Prefix) -> Action:
        del key
        return self.run(layer, -1)

    def run(self, instance: int, layer: int) -> Kernel:
        """The kernel on an instance's buffers in a layer of the model."""
        inputs = tuple(p.at(instance) for p in self.inputs)
        return Kernel(self.op, inputs, self.output.at(instance), self.ranges, layer)


@dataclass(frozen=True)
class _Send:
    message: int
    to: tuple[Coord, ...]
    part: _Part
    route: Route

    def at(self, layer: int, key: _Prefix) -> Action:
        return Send((*key, self.message), self.to, self.part.at(layer), self.route)


@dataclass(frozen=True)
class _Recv:
    message: int
    source: Coord
    part: _Part

    def at(self, layer: int, key: _Prefix) -> Action:
        return Recv((*key, self.message), self.source, self.part.at(layer))


@dataclass(frozen=True)
class _Combine:
    how: str
    source: _Part
    destination: _Part

    def at(self, layer: int, key: _Prefix) -> Action:
        del key
        return Combine(self.how, self.source.at(layer), self.destination.at(layer))


@dataclass(frozen=True)
class _Copy:
    source: _Part
    destination: _Part

    def at(self, layer: int, key: _Prefix) -> Action:
        del key
        return Copy(self.source.at(layer), self.destination.at(layer))


@dataclass(frozen=True)
class _Pass:
    recv: _Recv
    how: str
    send: _Send

    def at(self, layer: int, key: _Prefix) -> Action:
        recv, send = self.recv.at(layer, key), self.send.at(layer, key)
        assert isinstance(recv, Recv) and isinstance(send, Send)
        return Pass(recv, self.how, send)


@dataclass(frozen=True)
class _SetUp:
    def at(self, layer: int, key: _Prefix) -> Action:
        del layer, key
        return SetUp()


_Template = LaneKernel | _Send | _Recv | _Combine | _Copy | _Pass | _SetUp


@dataclass
class _Exchange:
    """What one lane does for a Transfer."""

    sends: list[_Template] = field(default_factory=list)
    copies: list[_Template] = field(default_factory=list)
    receives: list[_Template] = field(default_factory=list)


@dataclass
class _Exchanges:
    """A Transfer worked out: per lane of the source region, and of the target region."""

    source: dict[Lane, _Exchange] = field(default_factory=dict)
    target: dict[Lane, _Exchange] = field(default_factory=dict)


@dataclass
class Expander:
    """Expands one program; keeps what the lanes share.

    Not a value: it only caches. `stream(core)` can be called for any core in any order.
    """

    program: Program
    _exchanges: dict[tuple[int, int], _Exchanges] = field(default_factory=dict)

    def cores(self) -> list[Coord]:
        """Every core that has instructions, row by row."""
        return sorted(
            {
                region.core(r, c)
                for region in self.program.regions.values()
                for r in range(region.rows)
                for c in range(region.cols)
            }
        )

    def stream(self, core: Coord) -> Iterator[Step]:
        """The core's instructions in order."""
        p = self.program
        templates: dict[tuple[int, int], list[list[_Template]]] = {}
        for index, entry in enumerate(p.schedule):
            region = p.regions[entry.region]
            if isinstance(entry, Move):
                yield from self._move(index, entry, core)
                continue
            if not region.contains(core):
                continue
            lane = (core.row - region.row, core.col - region.col)
            body = p.bodies[entry.body]
            repeated = entry.segment == "body"
            for turn in range(entry.last - entry.first):
                layer = entry.first + turn if repeated else -1
                for number, instruction in enumerate(body):
                    key = (index, number)
                    if key not in templates:
                        templates[key] = self._template(instruction, region, lane, key)
                    for actions in templates[key]:
                        yield _stamp(
                            index * POSITIONS + number,
                            instruction,
                            layer,
                            actions,
                            entry.base + turn,
                            (index, turn * POSITIONS + number),
                        )

    def _part(
        self, name: str, region: Region, lane: Lane, layout: Layout, shape: tuple[int, ...]
    ) -> _Part:
        """The part of a buffer that `layout` of a tensor of `shape` gives the lane."""
        b = self.program.buffers[name]
        rows, cols = region.rows, region.cols
        held = b.layout.shard(b.capacity, *lane, rows, cols)
        wanted = layout.shard(shape, *lane, rows, cols)
        ranges = tuple(local(w, h) for w, h in zip(wanted, held, strict=True))
        return _Part(b, b.layout.largest(b.capacity, rows, cols), ranges)

    def _template(
        self, i: Instruction, region: Region, lane: Lane, key: tuple[int, int]
    ) -> list[list[_Template]]:
        """Lists of action templates, one per Step."""
        if isinstance(i, Compute):
            return [[self.lane_kernel(i, region, lane)]]
        if isinstance(i, Reduce):
            return self._reduce(i, region, lane)
        if isinstance(i, Broadcast):
            return self._broadcast(i, region, lane)
        found = self._transfer(i, region, region, key)
        give, take = found.source[lane], found.target[lane]
        actions = [*give.sends, *take.copies, *take.receives]
        return [actions] if actions else []

    def lane_kernel(self, i: Compute, region: Region, lane: Lane) -> LaneKernel:
        """What a lane runs for a Compute."""
        p = self.program
        op = p.ops[i.op]
        rows, cols = region.rows, region.cols
        parts, ranges = [], []
        for name, tensor, layout in zip(i.inputs, op.inputs, i.layouts, strict=True):
            shape = p.tensor_shapes[tensor]
            parts.append(self._part(name, region, lane, layout, shape))
            ranges.append(layout.shard(shape, *lane, rows, cols))
        out = p.buffers[i.output]
        shape = p.tensor_shapes[op.output]
        part = self._part(i.output, region, lane, out.layout, shape)
        ranges.append(out.layout.shard(shape, *lane, rows, cols))
        return LaneKernel(i.op, tuple(parts), part, tuple(ranges))

    def _line(
        self, i: Reduce | Broadcast, region: Region, lane: Lane
    ) -> tuple[int, int, Callable[[int], Coord], _Part]:
        """Length of the line, own place on it, the core at a place, own part of the buffer."""
        b = self.program.buffers[i.buffer]
        part = self._part(i.buffer, region, lane, b.layout, b.shape)
        if i.axis == "row":
            return region.rows, lane[0], lambda k: region.core(k, lane[1]), part
        return region.cols, lane[1], lambda k: region.core(lane[0], k), part

    def _reduce(self, i: Reduce, region: Region, lane: Lane) -> list[list[_Template]]:
        n, me, core, part = self._line(i, region, lane)
        if part.empty or n == 1:
            return []
        other = lane[1] if i.axis == "row" else lane[0]
        t = tree(n, i.groups)
        steps: list[list[_Template]] = [[_SetUp()]] if i.set_up else []
        for level, (parent, children) in enumerate(zip(t.parent, t.children, strict=True)):
            actions: list[_Template] = []
            received: list[tuple[_Recv, _Combine]] = []
            for number, child in enumerate(children[me]):
                b = self.program.buffers[i.scratch[number]]
                spot = _Part(b, part.extent, part.ranges)
                message = (level * n + child) * POSITIONS + other
                received.append(
                    (_Recv(message, core(child), spot), _Combine(i.combine, spot, part))
                )
            send: _Send | None = None
            if parent[me] >= 0:
                message = (level * n + me) * POSITIONS + other
                send = _Send(message, (core(parent[me]),), part, i.route)
            if i.streams and send is not None and len(received) == 1:
                actions.append(_Pass(received[0][0], i.combine, send))
            else:
                actions += [a for pair in received for a in pair]
                actions += [send] if send is not None else []
            if actions:
                steps.append(actions)
        return steps

    def _broadcast(self, i: Broadcast, region: Region, lane: Lane) -> list[list[_Template]]:
        n, me, core, part = self._line(i, region, lane)
        if part.empty or n == 1:
            return []
        other = lane[1] if i.axis == "row" else lane[0]
        t = tree(n, i.groups)
        if i.multicast:
            if me == t.root:
                rest = tuple(core(k) for k in range(n) if k != me)
                return [[_Send(other, rest, part, i.route)]]
            return [[_Recv(other, core(t.root), part)]]
        actions: list[_Template] = []
        for level in reversed(range(len(t.parent))):
            if t.parent[level][me] >= 0:
                message = (level * n + me) * POSITIONS + other
                actions.append(_Recv(message, core(t.parent[level][me]), part))
            for child in t.children[level][me]:
                message = (level * n + child) * POSITIONS + other
                actions.append(_Send(message, (core(child),), part, i.route))
        return [actions]

    def _transfer(
        self, i: Transfer, region: Region, target: Region, key: tuple[int, int]
    ) -> _Exchanges:
        """Who sends which elements to whom, for all lanes of both regions at once."""
        if key in self._exchanges:
            return self._exchanges[key]
        p = self.program
        src, dst = p.buffers[i.source], p.buffers[i.destination]
        rows, cols = region.rows, region.cols
        extent_src = src.layout.largest(src.capacity, rows, cols)
        extent_dst = dst.layout.largest(dst.capacity, target.rows, target.cols)
        found = _Exchanges(
            {(r, c): _Exchange() for r in range(rows) for c in range(cols)},
            {(r, c): _Exchange() for r in range(target.rows) for c in range(target.cols)},
        )
        # (giver, elements) -> takers with the place of the elements in their shard
        wishes: dict[tuple[Lane, Ranges], list[tuple[Lane, Ranges]]] = {}
        for taker in found.target:
            wanted = dst.layout.shard(dst.shape, *taker, target.rows, target.cols)
            held = dst.layout.shard(dst.capacity, *taker, target.rows, target.cols)
            for giver, part in pieces(src.layout, wanted, dst.shape, rows, cols, taker):
                spot = tuple(local(g, h) for g, h in zip(part, held, strict=True))
                wishes.setdefault((giver, part), []).append((taker, spot))
        batches: dict[Lane, list[tuple[list[tuple[Lane, Ranges]], _Part]]] = {}
        for (giver, part), takers in wishes.items():
            owned = src.layout.shard(src.capacity, *giver, rows, cols)
            spot = tuple(local(g, h) for g, h in zip(part, owned, strict=True))
            view = _Part(src, extent_src, spot)
            away = []
            for taker, place in takers:
                if region.core(*giver) == target.core(*taker):
                    copy = _Copy(view, _Part(dst, extent_dst, place))
                    found.target[taker].copies.append(copy)
                else:
                    away.append((taker, place))
            for batch in [away] if i.multicast and away else [[a] for a in away]:
                batches.setdefault(giver, []).append((batch, view))
        for giver in sorted(batches):
            first = giver[0] * cols + giver[1]
            ordered = sorted(batches[giver], key=lambda b: _turn(b[0][0][0], giver, target))
            for number, (batch, view) in enumerate(ordered):
                message = first * POSITIONS + number
                to = tuple(target.core(*taker) for taker, _ in batch)
                found.source[giver].sends.append(_Send(message, to, view, i.route))
                for taker, place in batch:
                    spot_there = _Part(dst, extent_dst, place)
                    found.target[taker].receives.append(
                        _Recv(message, region.core(*giver), spot_there)
                    )
        self._exchanges[key] = found
        return found

    def _move(self, index: int, entry: Move, core: Coord) -> Iterator[Step]:
        source, target = self.program.regions[entry.region], self.program.regions[entry.to_region]
        found = self._transfer(entry.transfer, source, target, (index, 0))
        actions: list[_Template] = []
        if source.contains(core):
            actions += found.source[core.row - source.row, core.col - source.col].sends
        if target.contains(core):
            take = found.target[core.row - target.row, core.col - target.col]
            actions += [*take.copies, *take.receives]
        if actions:
            yield _stamp(index * POSITIONS, entry.transfer, -1, actions, 0, (index, 0))


def _turn(taker: Lane, giver: Lane, region: Region) -> tuple[int, Lane]:
    """Order of a giver's messages: starting behind itself and round, so that lanes that send to
    the same others do not all begin with the same one."""
    mine, theirs = giver[0] * region.cols + giver[1], taker[0] * region.cols + taker[1]
    return (theirs - mine) % (region.rows * region.cols), taker


def _stamp(
    position: int,
    instruction: Instruction,
    layer: int,
    templates: list[_Template],
    instance: int,
    key: _Prefix,
) -> Step:
    actions = tuple(
        t.run(instance, layer) if isinstance(t, LaneKernel) else t.at(instance, key)
        for t in templates
    )
    kind = type(instruction).__name__.lower()
    return Step(position, instruction.name, instruction.op, kind, layer, actions)


def expand(program: Program, core: Coord) -> Iterator[Step]:
    """One core's own instruction stream.

    For many cores of one program make an `Expander` once and call its `stream`.
    """
    return Expander(program).stream(core)
