"""From the SPMD program to one core's own instruction stream.

What a lane does for an instruction does not depend on the layer but for the addresses of buffers
with one instance per layer, so it is worked out once per lane and instruction and then stamped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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
    Run,
    Transfer,
)
from meshc.ir.shards import local, pieces
from meshc.ir.stream import Action, Combine, Copy, Kernel, Recv, Send, Step, View

POSITIONS = 1 << 16  # position = schedule index × POSITIONS + instruction index
Lane = tuple[int, int]


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


@dataclass
class Expander:
    """Expands one program; keeps what the lanes share.

    Not a value: it only caches. `stream(core)` can be called for any core in any order.
    """

    program: Program
    _moves: dict[Any, dict[Lane, tuple[list[Any], list[Any], list[Any]]]] = field(
        default_factory=dict
    )

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
        templates: dict[tuple[int, int], list[Any]] = {}
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
    ) -> list[Any]:
        """Lists of action templates, one per Step."""
        if isinstance(i, Compute):
            return [[self._compute(i, region, lane)]]
        if isinstance(i, Reduce):
            return self._reduce(i, region, lane)
        if isinstance(i, Broadcast):
            return self._broadcast(i, region, lane)
        copies, sends, receives = self._transfer(i, region, region, key)[lane]
        return [[*sends, *copies, *receives]] if copies or sends or receives else []

    def _compute(self, i: Compute, region: Region, lane: Lane) -> Any:
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
        return ("kernel", i.op, tuple(parts), part, tuple(ranges))

    def _line(
        self, i: Reduce | Broadcast, region: Region, lane: Lane
    ) -> tuple[int, int, Any, _Part]:
        """Length of the line, own place on it, the core at a place, own part of the buffer."""
        b = self.program.buffers[i.buffer]
        part = self._part(i.buffer, region, lane, b.layout, b.shape)
        if i.axis == "row":
            return region.rows, lane[0], lambda k: region.core(k, lane[1]), part
        return region.cols, lane[1], lambda k: region.core(lane[0], k), part

    def _reduce(self, i: Reduce, region: Region, lane: Lane) -> list[Any]:
        n, me, core, part = self._line(i, region, lane)
        if part.empty or n == 1:
            return []
        other = lane[1] if i.axis == "row" else lane[0]
        t = tree(n, i.groups)
        steps = []
        for level, (parent, children) in enumerate(zip(t.parent, t.children, strict=True)):
            actions: list[Any] = []
            for number, child in enumerate(children[me]):
                b = self.program.buffers[i.scratch[number]]
                spot = _Part(b, part.extent, part.ranges)
                message = (level * n + child) * POSITIONS + other
                actions.append(("recv", message, core(child), spot))
                actions.append(("combine", i.combine, spot, part))
            if parent[me] >= 0:
                message = (level * n + me) * POSITIONS + other
                actions.append(("send", message, (core(parent[me]),), part, i.route))
            if actions:
                steps.append(actions)
        return steps

    def _broadcast(self, i: Broadcast, region: Region, lane: Lane) -> list[Any]:
        n, me, core, part = self._line(i, region, lane)
        if part.empty or n == 1:
            return []
        other = lane[1] if i.axis == "row" else lane[0]
        t = tree(n, i.groups)
        if i.multicast:
            if me == t.root:
                rest = tuple(core(k) for k in range(n) if k != me)
                return [[("send", other, rest, part, i.route)]]
            return [[("recv", other, core(t.root), part)]]
        actions: list[Any] = []
        for level in reversed(range(len(t.parent))):
            if t.parent[level][me] >= 0:
                message = (level * n + me) * POSITIONS + other
                actions.append(("recv", message, core(t.parent[level][me]), part))
            for child in t.children[level][me]:
                message = (level * n + child) * POSITIONS + other
                actions.append(("send", message, (core(child),), part, i.route))
        return [actions]

    def _transfer(
        self, i: Transfer, region: Region, target: Region, key: Any
    ) -> dict[Lane, tuple[list[Any], list[Any], list[Any]]]:
        """Per lane (source lanes and target lanes): copies, sends, receives.

        With two regions, lanes of the source region are keyed ("from", row, col).
        """
        if key in self._moves:
            return self._moves[key]
        p = self.program
        src, dst = p.buffers[i.source], p.buffers[i.destination]
        same = region == target
        shape = dst.shape
        rows, cols = region.rows, region.cols
        extent_src = src.layout.largest(src.capacity, rows, cols)
        extent_dst = dst.layout.largest(dst.capacity, target.rows, target.cols)
        lanes: dict[Any, tuple[list[Any], list[Any], list[Any]]] = {}
        for r in range(rows):
            for c in range(cols):
                lanes[(r, c) if same else ("from", r, c)] = ([], [], [])
        messages: dict[Any, list[Any]] = {}
        for r in range(target.rows):
            for c in range(target.cols):
                lanes.setdefault((r, c), ([], [], []))
                wanted = dst.layout.shard(shape, r, c, target.rows, target.cols)
                held = dst.layout.shard(dst.capacity, r, c, target.rows, target.cols)
                for giver, part in pieces(src.layout, wanted, shape, rows, cols, (r, c)):
                    spot = tuple(local(g, h) for g, h in zip(part, held, strict=True))
                    messages.setdefault((giver, part), []).append(((r, c), spot))
        total = target.rows * target.cols
        sends: dict[Lane, list[Any]] = {}
        for (giver, part), takers in messages.items():
            owned = src.layout.shard(src.capacity, *giver, rows, cols)
            spot = tuple(local(g, h) for g, h in zip(part, owned, strict=True))
            view = _Part(src, extent_src, spot)
            away = []
            for taker, place in takers:
                if region.core(*giver) == target.core(*taker):
                    lanes[taker][0].append(("copy", view, _Part(dst, extent_dst, place)))
                else:
                    away.append((taker, place))
            for batch in [away] if i.multicast and away else [[a] for a in away]:
                sends.setdefault(giver, []).append((batch, view))
        for giver in sorted(sends):
            me = giver[0] * target.cols + giver[1]

            def distance(item: Any, me: int = me) -> tuple[int, Any]:
                taker = item[0][0][0]
                return (taker[0] * target.cols + taker[1] - me) % total, taker

            for number, (batch, view) in enumerate(sorted(sends[giver], key=distance)):
                message = (giver[0] * cols + giver[1]) * POSITIONS + number
                to = tuple(target.core(*taker) for taker, _ in batch)
                lanes[giver if same else ("from", *giver)][1].append(
                    ("send", message, to, view, i.route)
                )
                for taker, place in batch:
                    lanes[taker][2].append(
                        ("recv", message, region.core(*giver), _Part(dst, extent_dst, place))
                    )
        self._moves[key] = lanes
        return lanes

    def _move(self, index: int, entry: Move, core: Coord) -> Iterator[Step]:
        source, target = self.program.regions[entry.region], self.program.regions[entry.to_region]
        lanes = self._transfer(entry.transfer, source, target, (index, 0))
        actions: list[Any] = []
        if source.contains(core):
            at = (core.row - source.row, core.col - source.col)
            key: Any = at if source == target else ("from", *at)
            actions += lanes[key][1]
        if target.contains(core):
            at = (core.row - target.row, core.col - target.col)
            actions += lanes[at][0]
            actions += lanes[at][2]
        if actions:
            yield _stamp(index * POSITIONS, entry.transfer, -1, actions, 0, (index, 0))


def _stamp(
    position: int,
    instruction: Instruction,
    layer: int,
    templates: list[Any],
    instance: int,
    key: tuple[int, int],
) -> Step:
    actions: list[Action] = []
    for t in templates:
        if t[0] == "kernel":
            views = tuple(part.at(instance) for part in t[2])
            actions.append(Kernel(t[1], views, t[3].at(instance), t[4]))
        elif t[0] == "send":
            actions.append(Send((*key, t[1]), t[2], t[3].at(instance), t[4]))
        elif t[0] == "recv":
            actions.append(Recv((*key, t[1]), t[2], t[3].at(instance)))
        elif t[0] == "combine":
            actions.append(Combine(t[1], t[2].at(instance), t[3].at(instance)))
        else:
            actions.append(Copy(t[1].at(instance), t[2].at(instance)))
    kind = type(instruction).__name__.lower()
    return Step(position, instruction.name, instruction.op, kind, layer, tuple(actions))


def expand(program: Program, core: Coord) -> Iterator[Step]:
    """One core's own instruction stream.

    For many cores of one program make an `Expander` once and call its `stream`.
    """
    return Expander(program).stream(core)


def entry_name(entry: Run | Move) -> str:
    """Readable name of a schedule entry."""
    if isinstance(entry, Move):
        return f"move {entry.transfer.name} {entry.region} -> {entry.to_region}"
    return f"run {entry.body} on {entry.region} layers [{entry.first}, {entry.last})"
