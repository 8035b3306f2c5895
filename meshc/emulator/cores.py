"""The engine "cores": every core runs its own instruction stream.

A core is a generator that runs ahead on its own clock until it needs to know when a message
arrives or leaves; what it does to others (sends, posted receives) reaches the network as events
at its own time, so running ahead changes nothing that anyone could see.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

import numpy as np

from meshc.emulator.carry import Routed, execute, prepare
from meshc.emulator.core import CoreTimer
from meshc.emulator.deadlock import stuck_error, unmatched_error
from meshc.emulator.flight import Core, Flight, Meetings
from meshc.emulator.network import Network, cycle_limit_error
from meshc.emulator.sizes import array_bytes, view_bytes
from meshc.emulator.sram import Memory
from meshc.emulator.tally import Tally
from meshc.errors import InvariantError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.graph import Op
from meshc.ir.stream import Combine, Copy, Kernel, Pass, Recv, Send, SetUp, Step, View
from meshc.ir.trace import Trace

Progress = Callable[[float, int, int], None]  # cycle, cores that are done, cores
T = TypeVar("T")
Life = Generator[None, None, T]  # yields while it waits for an event


@dataclass(frozen=True)
class Faults:
    """Damage done on purpose, to prove that verification sees it.

    corrupt_message: invert all bytes of the message with this number (in order of sending).
    """

    corrupt_message: int | None = None


class Cores:
    """One run of the engine over given instruction streams."""

    def __init__(
        self,
        streams: Mapping[Coord, Iterable[Step]],
        chip: ChipSpec,
        ops: Mapping[str, Op],
        *,
        contention: bool = True,
        memories: Mapping[Coord, Memory] | None = None,
        cycle_limit: float | None = None,
        faults: Faults | None = None,
        progress: Progress | None = None,
        core_spans: bool = False,
        region_of: Callable[[int], str] | None = None,
    ) -> None:
        self.chip = chip
        self.ops = ops
        self.timer = CoreTimer(chip, ops)
        self.network: Network[Flight] = Network(chip, contention)
        self.meetings = Meetings(chip, self.network)
        self.limit = inf if cycle_limit is None else cycle_limit
        self.faults = faults or Faults()
        self.progress = progress
        self.tally = Tally(chip, core_spans, region_of)
        self.carries = memories is not None
        self.routed: Routed = {}
        self.done = 0
        self.cores: list[Core] = []
        dead = chip.dead()
        for coord in sorted(streams):
            index = self.network.paths.index(coord)
            name = self.network.paths.text(index)
            if coord in dead:
                raise InvariantError(f"Core {name} has instructions but is dead.")
            memory = memories[coord] if memories is not None else None
            core = Core(index, name, memory)
            core.process = self._process(core, streams[coord])
            self.cores.append(core)

    def run(self) -> Trace:
        """Run all streams to their ends."""
        with np.errstate(all="ignore"):
            for core in self.cores:
                next(core.process, None)
            self.network.run(self._injected, self._arrived, self.limit, self._progress())
        if self.done < len(self.cores):
            raise stuck_error(self.cores, self.meetings)
        if self.meetings.open:
            raise unmatched_error(self.meetings)
        trace = self.tally.trace(self.cores, self.network, self.meetings.messages)
        return replace(trace, routed=self.routed)

    def _progress(self) -> Callable[[float], None] | None:
        report = self.progress
        if report is None:
            return None
        return lambda cycle: report(cycle, self.done, len(self.cores))

    def _injected(self, flight: Flight) -> None:
        if flight.waiting:
            flight.waiting = False
            assert flight.sender is not None
            next(flight.sender.process, None)

    def _arrived(self, flight: Flight, ordinal: int, time: float, first: float) -> None:
        # Letting go of a unicast's only delivery frees both without the garbage collector.
        if flight.path.children is None:
            delivery = flight.deliveries.pop()
        else:
            delivery = flight.deliveries[ordinal]
        delivery.first, delivery.arrived = first, time
        if delivery.waiting:
            delivery.waiting = False
            next(delivery.core.process, None)

    def _process(self, core: Core, stream: Iterable[Step]) -> Life[None]:
        """The life of one core. Yields when it needs an event that has not happened yet."""
        chip, meetings, memory = self.chip, self.meetings, core.memory
        message_cycles, overlap = chip.noc.message_cycles, chip.core.overlap
        time: float = 0
        for step in stream:
            core.step = step
            tally = self.tally.enter(step, time)
            start = time
            compute: float = 0
            wait: float = 0
            posts: list[Recv] = [
                a.recv if isinstance(a, Pass) else a
                for a in step.actions
                if isinstance(a, Recv | Pass)
            ]
            for recv in posts:
                first = recv.view.address
                size = self._check(core, recv.view)
                if core.outstanding and self._reader(core, first, first + size, time) is not None:
                    time, waited = yield from self._until_read(core, first, first + size, time)
                    wait += waited
                meetings.post(core, recv, time)
            if memory is not None and posts:
                prepare(memory, posts)
            for action in step.actions:
                kind = type(action)
                if kind is Recv:
                    assert isinstance(action, Recv)
                    delivery = core.inbox.pop(action.key)
                    if delivery.arrived == inf:
                        core.blocked, delivery.waiting = delivery, True
                        yield
                        core.blocked = None
                    flight = delivery.flight
                    if delivery.arrived > time:
                        if flight.depart > time:
                            wait += flight.depart - time
                        time = delivery.arrived
                    time += message_cycles
                    core.sram_bytes += flight.bytes
                    if memory is not None:
                        assert flight.data is not None
                        memory.write_bytes(action.view, flight.data)
                elif kind is Send:
                    assert isinstance(action, Send)
                    view = action.view
                    size = self._check(core, view)
                    volume = view_bytes(view)
                    time += message_cycles
                    flight = meetings.send(core, action, volume, time)
                    core.sram_bytes += volume
                    tally.messages += 1
                    tally.message_bytes += volume
                    if memory is not None:
                        flight.data = self._data(flight, memory.read_bytes(view))
                    if overlap:
                        core.outstanding.append((view.address, view.address + size, flight))
                    else:
                        time, waited = yield from self._until_injected(core, flight, time)
                        wait += waited
                elif kind is Pass:
                    assert isinstance(action, Pass)
                    delivery = core.inbox.pop(action.recv.key)
                    if delivery.arrived == inf:
                        core.blocked, delivery.waiting = delivery, True
                        yield
                        core.blocked = None
                    if delivery.flight.depart > time:
                        wait += delivery.flight.depart - time
                    view = action.send.view
                    size = self._check(core, view)
                    volume = view_bytes(view)
                    whole = self.timer.combine_cycles(action.combine, view.dtype, volume)
                    one = self.timer.first_cycles(action.combine, view.dtype, volume)
                    time = max(delivery.first, time) + message_cycles
                    if core.outstanding:
                        first, end = view.address, view.address + size
                        if self._reader(core, first, end, time) is not None:
                            time, waited = yield from self._until_read(core, first, end, time)
                            wait += waited
                    depart = time + one + message_cycles
                    last = max(max(delivery.arrived, time) + one, time + whole) + message_cycles
                    flight = meetings.send(core, action.send, volume, depart, last)
                    time = last
                    compute += whole
                    core.sram_bytes += 3 * volume
                    tally.messages += 1
                    tally.message_bytes += volume
                    if memory is not None:
                        assert delivery.flight.data is not None
                        memory.write_bytes(action.recv.view, delivery.flight.data)
                        joined = Combine(action.combine, action.recv.view, view)
                        execute(memory, self.ops, joined, self.routed)
                        flight.data = self._data(flight, memory.read_bytes(view))
                    if overlap:
                        core.outstanding.append((view.address, view.address + size, flight))
                    else:
                        time, waited = yield from self._until_injected(core, flight, time)
                        wait += waited
                elif kind is SetUp:
                    time += chip.noc.collective_cycles
                else:
                    assert not isinstance(action, Send | Recv | Pass | SetUp)
                    cycles, first, end = self._local(core, action)
                    if core.outstanding and self._reader(core, first, end, time) is not None:
                        time, waited = yield from self._until_read(core, first, end, time)
                        wait += waited
                    time += cycles
                    compute += cycles
                    if memory is not None:
                        execute(memory, self.ops, action, self.routed)
            core.compute += compute
            core.wait += wait
            communication = time - start - compute - wait
            core.communication += communication
            self.tally.instructions += len(step.actions)
            self.tally.leave(core, tally, start, time, (compute, communication, wait))
            if time > self.limit:
                raise cycle_limit_error(self.limit)
        core.step = None
        core.finish = time
        core.done = True
        self.done += 1

    def _until_injected(self, core: Core, flight: Flight, time: float) -> Life[tuple[float, float]]:
        """Wait from `time` until a send has left; returns when that is, and how much of the
        waiting was for receivers."""
        if flight.injected == inf:
            core.blocked, flight.waiting = flight, True
            yield
            core.blocked = None
        waited = max(0, flight.depart - time)
        return max(time, flight.injected), waited

    def _until_read(
        self, core: Core, first: int, end: int, time: float
    ) -> Life[tuple[float, float]]:
        """Wait from `time` until no send reads bytes [first, end) any more; returns the same."""
        total: float = 0
        while (flight := self._reader(core, first, end, time)) is not None:
            time, waited = yield from self._until_injected(core, flight, time)
            total += waited
        return time, total

    def _reader(self, core: Core, first: int, end: int, time: float) -> Flight | None:
        """A send that at `time` may still read some of the bytes [first, end)."""
        core.outstanding = [item for item in core.outstanding if item[2].injected > time]
        for start, stop, flight in core.outstanding:
            if start < end and first < stop:
                return flight
        return None

    def _local(self, core: Core, action: Kernel | Copy | Combine) -> tuple[int, int, int]:
        """Count a local action; returns its cycles and the interval of bytes that it writes."""
        if isinstance(action, Kernel):
            cost = self.timer.kernel(action)
            limit = self.chip.core.sram_bytes
            target = action.output
            size = cost.array_bytes[-1]
            for view, bytes_ in zip((*action.inputs, target), cost.array_bytes, strict=True):
                if view.address < 0 or view.address + bytes_ > limit:
                    self._check(core, view)
            core.sram_bytes += cost.sram_bytes
            if cost.macs:
                core.mac_cycles += cost.mac_cycles
                core.macs += cost.macs
                self.tally.count_macs(cost.mac_dtype, cost.macs)
            return cost.cycles, target.address, target.address + size
        target = action.destination
        size = self._check(core, target)
        self._check(core, action.source)
        volume = view_bytes(target)
        if isinstance(action, Combine):
            core.sram_bytes += 3 * volume
            cycles = self.timer.combine_cycles(action.combine, target.dtype, volume)
        else:
            core.sram_bytes += 2 * volume
            cycles = self.timer.copy_cycles(volume)
        return cycles, target.address, target.address + size

    def _check(self, core: Core, view: View) -> int:
        """Bytes of the view's array; raises InvariantError if it leaves the SRAM."""
        size = array_bytes(view)
        if view.address < 0 or view.address + size > self.chip.core.sram_bytes:
            step = core.step.name if core.step is not None else ""
            raise InvariantError(
                f"Core {core.name} uses bytes [{view.address}, {view.address + size}) of its SRAM "
                f"in step '{step}', but it has {self.chip.core.sram_bytes}."
            )
        return size

    def _data(self, flight: Flight, data: np.ndarray) -> np.ndarray:
        if flight.id == self.faults.corrupt_message:
            data = data ^ np.uint8(0xFF)
        return data


def run_streams(
    streams: Mapping[Coord, Iterable[Step]],
    chip: ChipSpec,
    ops: Mapping[str, Op] | None = None,
    *,
    contention: bool = True,
    memories: Mapping[Coord, Memory] | None = None,
    cycle_limit: float | None = None,
    faults: Faults | None = None,
    progress: Progress | None = None,
    core_spans: bool = False,
    region_of: Callable[[int], str] | None = None,
) -> Trace:
    """Emulate one instruction stream per core.

    memories: the cores' SRAM when tensors are carried.   region_of: region of a step's position.
    Raises InvariantError where sends and receives do not match, cores wait in a circle, or a view
    leaves the SRAM; InputError past the cycle limit.
    """
    return Cores(
        streams,
        chip,
        ops or {},
        contention=contention,
        memories=memories,
        cycle_limit=cycle_limit,
        faults=faults,
        progress=progress,
        core_spans=core_spans,
        region_of=region_of,
    ).run()
