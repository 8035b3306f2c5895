"""The network: messages as wormholes over links and ports that carry one message at a time.

A message's head asks for each link of its path when it reaches the router in front of it; the
link serves heads first come, first served (ties by message id), is taken for the message's
serialization time, and lets the head go on after `hop_cycles` (cut-through). The tail follows
at the pace of the slowest link so far. Buffers are unlimited, so a head that waits holds no
link. Injection and ejection ports are links that belong to one core; each network has its own
(on the transfers measured on Wormhole silicon the mean error is 3 %, with shared ports 13 %).

In an empty network the tail of a message of b bytes over h links arrives

    ramp_in + h · hop_cycles + ramp_out + ceil(b / rate) - 1

cycles after the message leaves, with the rate of the slowest link or port on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush, heappushpop
from math import inf
from typing import Generic, TypeVar

from meshc.emulator.paths import Path, Paths
from meshc.emulator.sizes import serial_cycles
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec

DEPART = -1


class Message:
    """One message. Times are in cycles, `inf` while unknown.

    depart: when it is handed to its injection port.   inject: when the port takes it.
    injected: when the port has sent all of it.   last: when the last of it is there to be sent.
    """

    __slots__ = (
        "bytes",
        "depart",
        "eject_cycles",
        "id",
        "inject",
        "inject_cycles",
        "injected",
        "last",
        "link_cycles",
        "path",
        "seam_cycles",
    )
    path: Path
    inject_cycles: int
    link_cycles: int
    seam_cycles: int
    eject_cycles: int

    def __init__(self) -> None:
        self.id = -1
        self.bytes = 0
        self.depart = inf
        self.inject = inf
        self.injected = inf
        self.last = -inf


M = TypeVar("M", bound=Message)
Event = tuple[float, int, int, M, float]  # time, id, stage, message, tail (exclusive)


def cycle_limit_error(limit: float) -> InputError:
    """What a run says that takes longer than its user allows."""
    return InputError(
        f"The emulation is not finished after {limit:g} cycles, which is its cycle limit; raise "
        "the limit or emulate a smaller step."
    )


class Network(Generic[M]):
    """Links, ports and the event queue of one chip."""

    def __init__(self, chip: ChipSpec, contention: bool = True) -> None:
        noc = chip.noc
        self.paths = Paths(chip)
        self.contention = contention
        count = self.paths.link_count
        self.link_busy: list[float] = [0] * count
        self.link_bytes: list[int] = [0] * count
        self.byte_hops = 0
        self._free: list[float] = [0] * count
        ports = noc.networks * chip.rows * chip.cols
        self._inject_free: list[float] = [0] * ports
        self._eject_free: list[float] = [0] * ports
        self._ramp_in, self._ramp_out = noc.ramp_cycles
        self._exchange_hop = noc.hop_cycles if self.paths.exchange else 0
        self._rate = noc.link_bytes_per_cycle
        self._seam_rate = chip.seams.link_bytes_per_cycle if chip.seams else self._rate
        self._inject_rate = noc.inject_bytes_per_cycle or self._rate
        self._eject_rate = noc.eject_bytes_per_cycle or self._rate
        self._cores = chip.rows * chip.cols
        # Rates of single ports, where they differ.
        self._own_rates = chip.port_rates() if chip.ports else None
        self._hop: list[float] = [noc.hop_cycles] * count
        self._slow = [False] * count
        if chip.seams is not None:
            self._slow = [self.paths.crosses_seam(k) for k in range(count)]
            self._hop = [self.paths.hop_cycles(k) for k in range(count)]
        self._cycles: dict[int, tuple[int, int, int, int]] = {}
        self.events: list[Event[M]] = []

    def prepare(self, message: M, size_bytes: int, path: Path) -> None:
        """Give a message its size and path."""
        message.bytes = size_bytes
        message.path = path
        cycles = self._cycles.get(size_bytes)
        if cycles is None:
            rates = (self._rate, self._seam_rate, self._inject_rate, self._eject_rate)
            link, seam, inject, eject = (serial_cycles(size_bytes, rate) for rate in rates)
            cycles = self._cycles[size_bytes] = (link, seam, inject, eject)
        (
            message.link_cycles,
            message.seam_cycles,
            message.inject_cycles,
            message.eject_cycles,
        ) = cycles
        if self._own_rates is not None:
            message.inject_cycles = self._port_cycles(0, size_bytes, path.port)

    def _port_cycles(self, side: int, size_bytes: int, port: int) -> int:
        """Cycles of so many bytes in a port into (side 0) or out of (1) the network."""
        assert self._own_rates is not None
        return serial_cycles(size_bytes, self._own_rates[side][port % self._cores])

    def _eject_cycles(self, message: M, ordinal: int) -> int:
        """Cycles that a message takes in its ejection port."""
        if self._own_rates is None:
            return message.eject_cycles
        return self._port_cycles(1, message.bytes, message.path.exits[ordinal])

    def depart(self, message: M, time: float) -> None:
        """Hand a prepared message with an id to its injection port at `time`."""
        message.depart = time
        self.byte_hops += message.bytes * message.path.hops
        heappush(self.events, (time, message.id, DEPART, message, 0))

    def run(
        self,
        injected: Callable[[M], None],
        arrived: Callable[[M, int, float, float], None],
        cycle_limit: float = inf,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """Serve events until none is left.

        injected(message) is called when its `injected` time becomes known, arrived(message,
        ordinal of the destination, times of its tail and its head) when the arrival becomes known;
        both may be called before that time and may let other messages depart at or after it.
        """
        events = self.events
        free, busy, carried = self._free, self.link_busy, self.link_bytes
        inject_free, eject_free = self._inject_free, self._eject_free
        hop, slow = self._hop, self._slow
        ramp_in = self._ramp_in + self._exchange_hop
        ramp_out = self._ramp_out
        served = 0
        while events:
            event = heappop(events)
            while True:
                time, ident, stage, message, tail = event
                if progress is not None:
                    served += 1
                    if served & 0xFFFF == 0:
                        progress(time)
                path = message.path
                if stage == DEPART:
                    if time > cycle_limit:
                        raise cycle_limit_error(cycle_limit)
                    cycles = message.inject_cycles
                    if not self.contention:
                        message.inject = time
                        message.injected = max(time + cycles, message.last + 1)
                        self._unloaded(message, time, arrived)
                        injected(message)
                        break
                    source = path.port
                    start = inject_free[source]
                    if start < time:
                        start = time
                    message.inject = start
                    tail = inject_free[source] = start + cycles
                    if message.last >= tail:
                        tail = message.last + 1
                    message.injected = tail
                    head = start + ramp_in
                    tail += ramp_in
                    injected(message)
                    if path.children is None:
                        event = heappushpop(events, (head, ident, 0, message, tail))
                        continue
                    for node in path.roots:
                        heappush(events, (head, ident, node, message, tail))
                    for ordinal in path.local:
                        heappush(events, (head, ident, len(path.links) + ordinal, message, tail))
                    break
                links = path.links
                if stage < len(links):
                    link = links[stage]
                    cycles = message.seam_cycles if slow[link] else message.link_cycles
                    start = free[link]
                    if start < time:
                        start = time
                    end = free[link] = start + cycles
                    busy[link] += cycles
                    carried[link] += message.bytes
                    head = start + hop[link]
                    tail = (end if end > tail else tail) + hop[link]
                    if path.children is None:
                        event = heappushpop(events, (head, ident, stage + 1, message, tail))
                        continue
                    for node in path.children[stage]:
                        heappush(events, (head, ident, node, message, tail))
                    for ordinal in path.sinks[stage]:
                        heappush(events, (head, ident, len(links) + ordinal, message, tail))
                    break
                ordinal = stage - len(links)
                core = path.exits[ordinal]
                start = eject_free[core]
                if start < time:
                    start = time
                end = eject_free[core] = start + self._eject_cycles(message, ordinal)
                tail = (end if end > tail else tail) + ramp_out - 1
                arrived(message, ordinal, tail, start + ramp_out)
                break

    def _unloaded(
        self, message: M, time: float, arrived: Callable[[M, int, float, float], None]
    ) -> None:
        """Deliver as if the message were alone."""
        path = message.path
        for link in path.links:
            self.link_busy[link] += message.seam_cycles if self._slow[link] else message.link_cycles
            self.link_bytes[link] += message.bytes
        for ordinal in range(len(path.destinations)):
            head = path.head_cycles[ordinal]
            tail = max(time + self.unloaded_cycles(message, ordinal), message.last + head)
            arrived(message, ordinal, tail, time + head)

    def unloaded_cycles(self, message: M, ordinal: int = 0) -> float:
        """Cycles from departure to the tail's arrival in an empty network."""
        path = message.path
        cycles = max(message.inject_cycles, self._eject_cycles(message, ordinal))
        plain, seam = path.uses[ordinal]
        if plain:
            cycles = max(cycles, message.link_cycles)
        if seam:
            cycles = max(cycles, message.seam_cycles)
        return path.head_cycles[ordinal] + cycles - 1
