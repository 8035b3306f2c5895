"""The engine "lanes": one compiled step per SPMD instruction, over all lanes of its region.

Instructions are worked out in the order of the program. What a core does depends on its own
clock and on when others are ready for its messages, which earlier instructions and this one
determine; so the result is that of the engine "cores" wherever messages do not wait for each
other, and where they do, only the order in which messages of different instructions share a link
may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf, prod
from typing import Any

import numpy as np

from meshc.emulator.core import CoreTimer
from meshc.emulator.lanes import fleet as fl
from meshc.emulator.lanes import lines, transfers, trees
from meshc.emulator.lanes.deliveries import deliveries
from meshc.emulator.lanes.repeats import Repeats
from meshc.emulator.lanes.shapes import KernelKinds, held, kernel_kinds
from meshc.emulator.lanes.wires import HOPS, Way, check_ways, make_wires, way_of
from meshc.emulator.network import cycle_limit_error
from meshc.errors import InvariantError
from meshc.expand import POSITIONS, Expander
from meshc.ir.chip import ChipSpec
from meshc.ir.dtypes import size_bytes
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
    buffers_of,
)
from meshc.ir.trace import Span, Trace

Progress = Callable[[float, int, int], None]
LEAST_LANES = 32  # of a region whose transfers are worked out line by line
MOST_HOPS = 3_000_000  # links of a transfer whose heads are served in order of time


@dataclass
class Tallies:
    """Sums over instructions."""

    spans: list[Span] = field(default_factory=list)
    core_spans: list[tuple[int, int, float, float]] = field(default_factory=list)
    messages: int = 0
    message_bytes: int = 0
    instructions: int = 0
    mac_by_dtype: dict[str, int] = field(default_factory=dict)


class Lanes:
    """One run of a program."""

    def __init__(
        self,
        program: Program,
        chip: ChipSpec,
        *,
        contention: bool = True,
        cycle_limit: float | None = None,
        progress: Progress | None = None,
        core_spans: bool = False,
        shorten: bool = True,
        most_hops: int = MOST_HOPS,
    ) -> None:
        self.program, self.chip = program, chip
        self.expander = Expander(program)
        self.timer = CoreTimer(chip, program.ops)
        self.wires = make_wires(chip, contention)
        self.fleet = fl.make_fleet(chip)
        self.limit = inf if cycle_limit is None else cycle_limit
        self.progress = progress
        self.core_spans = core_spans
        self.shorten = shorten and not core_spans
        self.most_hops = most_hops
        self.tallies = Tallies()
        self.serial = 0
        self.fleet.begin[:] = -1
        self.used = np.zeros(chip.rows * chip.cols, bool)
        self._kept: dict[tuple[object, ...], Any] = {}
        dead = chip.dead()
        for region in program.regions.values():
            for core in sorted(dead):
                if region.contains(core):
                    raise InvariantError(
                        f"Core ({core.row},{core.col}) has instructions but is dead."
                    )
            self.used.reshape(chip.rows, chip.cols)[
                region.row : region.row + region.rows, region.col : region.col + region.cols
            ] = True

    # -- schedule ----------------------------------------------------------------------------

    def run(self) -> Trace:
        """Work the schedule out."""
        for index, entry in enumerate(self.program.schedule):
            if isinstance(entry, Move):
                a, b = (self.program.regions[n] for n in (entry.region, entry.to_region))
                self._begin()
                self._transfer(entry.transfer, a, b, 0, ("move", index))
                self._end(index * POSITIONS, entry.transfer, -1, entry.region)
            else:
                self._run(index, entry)
            check_ways(self.chip, self.wires)
            self._report(index)
        return self._trace()

    def _report(self, index: int) -> None:
        cycle = float(self.fleet.clock.max(initial=0))
        if cycle > self.limit:
            raise cycle_limit_error(self.limit)
        if self.progress is not None:
            total = int(self.used.sum())
            self.progress(cycle, total * (index + 1) // len(self.program.schedule), total)

    def _run(self, index: int, entry: Run) -> None:
        region = self.program.regions[entry.region]
        repeats = Repeats(self.fleet, self.wires, region, self.tallies, self._moving(entry, region))
        turn, count = 0, entry.last - entry.first
        while turn < count:
            self._layer(index, entry, region, turn)
            turn += 1
            self._report(index)
            if not self.shorten or count - turn < 2:
                continue
            alike = self._alike(entry, region, turn - 1, count)
            turn += repeats.skip(alike, entry.first + turn - 1)

    def _moving(self, entry: Run, region: Region) -> list[tuple[int, int]]:
        """Bytes of buffers that each layer of a run has for itself."""
        found = []
        names = {n for i in self.program.bodies[entry.body] for n in buffers_of(i)}
        for b in (self.program.buffers[n] for n in sorted(names)):
            if b.stride:
                ends = [
                    self._span(b, region, entry.base + k) for k in (0, entry.last - entry.first - 1)
                ]
                found.append((min(x[0] for x in ends), max(x[1] for x in ends)))
        return found

    def _alike(self, entry: Run, region: Region, turn: int, count: int) -> int:
        """How many layers behind `turn` cost the same as it."""
        uneven = [
            i
            for i in self.program.bodies[entry.body]
            if isinstance(i, Compute) and i.op in self.timer.uneven
        ]
        for other in range(turn, count):
            layer = entry.first + other if entry.segment == "body" else -1
            cost = [self._costs(i, region, entry.base + other, layer) for i in uneven]
            if other == turn:
                first = cost
            elif cost != first:
                return other - turn - 1
        return count - turn - 1

    def _layer(self, index: int, entry: Run, region: Region, turn: int) -> None:
        layer = entry.first + turn if entry.segment == "body" else -1
        instance = entry.base + turn
        for number, i in enumerate(self.program.bodies[entry.body]):
            self._begin()
            if isinstance(i, Compute):
                self._compute(i, region, instance, layer)
            elif isinstance(i, Reduce):
                self._reduce(i, region, instance)
            elif isinstance(i, Broadcast):
                self._broadcast(i, region, instance)
            else:
                self._transfer(i, region, region, instance, (entry.body, number, entry.region))
            self._end(index * POSITIONS + number, i, layer, entry.region)

    def _begin(self) -> None:
        self.serial += 1
        tally = self.fleet.tally
        tally[:] = 0
        tally[fl.START] = inf
        tally[fl.SERIAL] = self.serial

    def _end(self, position: int, i: Instruction, layer: int, region: str) -> None:
        t = [float(x) for x in self.fleet.tally]
        cores = int(t[fl.CORES])
        if not cores:
            return
        sums = self.tallies
        sums.spans.append(
            Span(
                position=position,
                name=i.name,
                op=i.op,
                kind=type(i).__name__.lower(),
                layer=layer,
                region=region,
                start_cycle=t[fl.START],
                end_cycle=t[fl.END],
                compute_cycles=t[fl.COMPUTE] / cores,
                communication_cycles=t[fl.COMMUNICATION] / cores,
                wait_cycles=t[fl.WAIT] / cores,
                messages=int(t[fl.MESSAGES]),
                message_bytes=int(t[fl.BYTES]),
            )
        )
        sums.messages += int(t[fl.MESSAGES])
        sums.message_bytes += int(t[fl.BYTES])
        sums.instructions += int(t[fl.ACTIONS])

    def _note(self) -> None:
        """Keep each core's own time in the step just worked out, where that is wanted."""
        if not self.core_spans:
            return
        f, number = self.fleet, len(self.tallies.spans)
        self.tallies.core_spans += [
            (core, number, float(f.begin[core]), float(f.clock[core]))
            for core in np.flatnonzero(f.begin >= 0).tolist()
        ]
        f.begin[:] = -1

    # -- instructions ------------------------------------------------------------------------

    def _keep(self, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """What does not depend on the layer is made once."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _span(self, b: Buffer, region: Region, instance: int, like: Buffer | None = None) -> Any:
        """Bytes [first, end) of a buffer's array on every lane; checked against the SRAM.

        like: the buffer that gives the array its shape.
        """
        shape = (like or b).layout.largest((like or b).capacity, region.rows, region.cols)
        first = b.address(instance)
        end = first + prod(shape) * size_bytes(b.dtype)
        if first < 0 or end > self.chip.core.sram_bytes:
            raise InvariantError(
                f"Core ({region.row},{region.col}) uses bytes [{first}, {end}) of its SRAM for "
                f"buffer '{b.name}', but it has {self.chip.core.sram_bytes}."
            )
        return first, end

    def _kinds(self, i: Compute, region: Region) -> KernelKinds:
        found: KernelKinds = self._keep(
            ("kinds", i, region.name),
            lambda: kernel_kinds(self.expander, i, region, i.op in self.timer.uneven),
        )
        return found

    def _costs(self, i: Compute, region: Region, instance: int, layer: int) -> list[Any]:
        kernels = self._kinds(i, region).kernels
        return [self.timer.kernel(k.run(instance, layer)) for k in kernels]

    def _compute(self, i: Compute, region: Region, instance: int, layer: int) -> None:
        kinds = self._kinds(i, region)
        uneven = i.op in self.timer.uneven

        def arrays() -> Any:
            costs = self._costs(i, region, instance, layer)
            macs: dict[str, int] = {}
            for c, n in zip(costs, kinds.lanes.tolist(), strict=True):
                if c.macs:
                    macs[c.mac_dtype] = macs.get(c.mac_dtype, 0) + c.macs * n
            numbers = (
                np.array([c.cycles for c in costs], float),
                np.array([c.mac_cycles if c.macs else 0 for c in costs], float),
                np.array([c.macs for c in costs], np.int64),
                np.array([c.sram_bytes for c in costs], np.int64),
            )
            return numbers, macs

        numbers: tuple[Any, Any, Any, Any]
        numbers, macs = arrays() if uneven else self._keep(("costs", i, region.name), arrays)
        for name in (*i.inputs, i.output):
            first, end = self._span(self.program.buffers[name], region, instance)
        for dtype, count in macs.items():
            held_ = self.tallies.mac_by_dtype
            held_[dtype] = held_.get(dtype, 0) + count
        fl.run_kernels(
            self.fleet,
            self.chip.cols,
            region.row,
            region.col,
            region.rows,
            region.cols,
            kinds.kind,
            *numbers,
            first,
            end,
        )
        self._note()

    def _line_sizes(self, i: Reduce | Broadcast, region: Region) -> tuple[Any, Any]:
        """Bytes of each line's messages, and the lines."""
        b = self.program.buffers[i.buffer]
        on = trees.lines_of(region, i.axis, self.chip.cols)
        sizes = np.full(on.lines, size_bytes(b.dtype), np.int64)
        for s, n in zip(b.layout.splits, b.shape, strict=True):
            if i.axis in s.axes:
                raise InvariantError(
                    f"'{i.name}' joins buffer '{b.name}' over {i.axis}, which divides it."
                )
            lane = np.arange(on.lines)
            sizes *= held(s, n, region.rows, region.cols, lane) if s.axes else n
        return on, sizes

    def _reduce(self, i: Reduce, region: Region, instance: int) -> None:
        buffers = self.program.buffers
        b = buffers[i.buffer]

        def make() -> Any:
            on, sizes = self._line_sizes(i, region)
            cycles = {
                int(n): self.timer.combine_cycles(i.combine, b.dtype, int(n))
                for n in np.unique(sizes)
            }
            levels, _ = trees.levels_of(on.places, i.groups)
            combine = np.array([cycles[int(n)] for n in sizes], float)
            first = np.array(
                [self.timer.first_cycles(i.combine, b.dtype, int(n)) for n in sizes], float
            )
            return on, sizes, combine, first, levels

        on, sizes, combine, one, levels = self._keep(("reduce", i, region.name), make)
        if on.places == 1 or not sizes.any():
            return
        spots = [buffers[n] for n in i.scratch]
        spans = np.zeros((3, 2), np.int64)
        for k, spot in enumerate(spots[:2]):
            spans[k] = self._span(spot, region, instance, b)
        spans[2] = self._span(b, region, instance)
        way = way_of(self.chip, i)
        if i.set_up:
            trees.set_up(self.fleet, on, sizes, float(self.chip.noc.collective_cycles))
            self._note()
        for level in levels:
            trees.reduce_level(
                self.fleet, self.wires, way, on, level, sizes, combine, one, i.streams, spans
            )
            self._note()

    def _broadcast(self, i: Broadcast, region: Region, instance: int) -> None:
        def make() -> Any:
            on, sizes = self._line_sizes(i, region)
            return on, sizes, *trees.levels_of(on.places, i.groups)

        on, sizes, levels, root = self._keep(("broadcast", i, region.name), make)
        if on.places == 1 or not sizes.any():
            return
        first, end = self._span(self.program.buffers[i.buffer], region, instance)
        way = way_of(self.chip, i)
        f, w = self.fleet, self.wires
        if i.multicast:
            if on.places > 2:
                self._needs_multicast(i)
            targets, arrived = np.zeros(on.places, np.int32), np.zeros(on.places)
            trees.spread(f, w, way, on, root, sizes, first, end, targets, arrived)
            self._note()
            return
        trees.begin_descent(f, on, root, sizes, first, end)
        for level in reversed(levels):
            trees.descend(f, w, way, on, level, sizes, first, end)
        trees.end_descent(f, on, sizes)
        self._note()

    def _needs_multicast(self, i: Instruction) -> None:
        if not self.chip.noc.multicast:
            raise InvariantError(
                f"'{i.name}' sends one message to several cores, but the chip's network has no "
                "multicast."
            )

    def _mail(self, i: Transfer, region: Region, to: Region, lanes: Any = None) -> transfers.Mail:
        """The messages of a transfer to all lanes, or to these."""
        buffers = self.program.buffers
        d = deliveries(
            buffers[i.source],
            buffers[i.destination],
            region,
            to,
            i.multicast,
            (self.chip.rows, self.chip.cols),
            lanes,
        )
        if len(d.taker) > len(d.giver):
            self._needs_multicast(i)
        each, inverse = np.unique(d.copied, return_inverse=True)
        cycles = np.array([self.timer.copy_cycles(int(n)) for n in each], float)
        messages, takers = len(d.giver), len(d.taker)
        return transfers.Mail(
            cores=d.cores,
            giver=d.giver,
            size=d.size,
            first=d.first,
            taker=d.taker,
            copier=d.copier,
            copy_bytes=d.copied,
            copy_cycles=cycles[inverse.reshape(-1)],
            inbox=d.inbox,
            inbox_core=d.inbox_core,
            inbox_first=d.inbox_first,
            message_of=np.repeat(np.arange(messages, dtype=np.int32), np.diff(d.first)),
            depart=np.empty(messages),
            inject=np.empty(messages),
            injected=np.empty(messages),
            arrived=np.empty(takers),
        )

    def _transfer(
        self, i: Transfer, region: Region, to: Region, instance: int, key: tuple[object, ...]
    ) -> None:
        buffers = self.program.buffers
        span = self._span(buffers[i.source], region, instance)
        target = self._span(buffers[i.destination], to, instance)
        way: Way = way_of(self.chip, i)
        parts: list[tuple[lines.Pattern | None, transfers.Mail]] = self._keep(
            (*key, way.policy), lambda: self._parts(i, region, to, way)
        )
        for pattern, mail in parts:
            if not len(mail.cores):
                continue
            if pattern is None:
                self._send(mail, way, span, target)
                continue
            pitch = 1 if pattern.axis == "row" else self.chip.cols
            states = lines.LineStates(self.fleet, self.wires, region, pattern.axis, way.network)
            for members, bases in states.classes(pattern.lines):
                moved = mail.moved((int(members[0]) - int(pattern.lines[0])) * pitch)
                states.copy(members, bases, partial(self._send, moved, way, span, target))
        self._note()

    def _parts(
        self, i: Transfer, region: Region, to: Region, way: Way
    ) -> list[tuple[lines.Pattern | None, transfers.Mail]]:
        """A transfer as lines that send the same messages, or else as a whole."""
        source, target = self.program.buffers[i.source], self.program.buffers[i.destination]
        axis = lines.line_axis(source, target)
        many = region.rows * region.cols >= LEAST_LANES
        if axis is not None and region == to and many and way.policy != 2 and not self.core_spans:
            found = lines.patterns(source, target, region, axis)
            if 2 * len(found) <= (region.cols if axis == "row" else region.rows):
                return [(p, self._mail(i, region, to, p.takers)) for p in found]
        return [(None, self._mail(i, region, to))]

    def _send(
        self,
        mail: transfers.Mail,
        way: Way,
        span: tuple[int, int],
        target: tuple[int, int],
    ) -> None:
        f, w = self.fleet, self.wires
        transfers.open_step(f, mail, *target)
        transfers.hand_over(f, w, way, mail, *span)
        transfers.send_all(f, w, way, mail, self.most_hops)
        transfers.close_step(f, mail, *span, *target)

    # -- result ------------------------------------------------------------------------------

    def _trace(self) -> Trace:
        f, w, chip, sums = self.fleet, self.wires, self.chip, self.tallies
        order = sorted(
            range(len(sums.spans)),
            key=lambda k: (
                sums.spans[k].position // POSITIONS,
                sums.spans[k].layer,
                sums.spans[k].position,
            ),
        )
        place = {old: new for new, old in enumerate(order)}
        grid = (chip.rows, chip.cols)
        links = (chip.noc.networks, *grid, 4)
        return Trace(
            cycles=float(f.clock[self.used].max(initial=0)),
            spans=tuple(sums.spans[k] for k in order),
            compute_cycles=f.compute.reshape(grid),
            communication_cycles=f.communication.reshape(grid),
            wait_cycles=f.wait.reshape(grid),
            finish_cycles=f.clock.reshape(grid),
            mac_cycles=f.mac_cycles.reshape(grid),
            macs=f.macs.reshape(grid),
            sram_bytes=f.sram_bytes.reshape(grid),
            link_busy_cycles=w.link_busy.reshape(links),
            link_bytes=w.link_bytes.reshape(links),
            messages=sums.messages,
            message_bytes=sums.message_bytes,
            instructions=sums.instructions,
            byte_hops=int(w.counts[HOPS]),
            mac_by_dtype=dict(sorted(sums.mac_by_dtype.items())),
            core_spans=tuple(
                (*divmod(core, chip.cols), place[span], start, end)
                for core, span, start, end in sums.core_spans
            ),
        )
