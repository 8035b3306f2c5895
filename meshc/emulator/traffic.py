"""The network alone, plainly: open-loop messages with given ready times, buffers unlimited whatever
the chip says. `meshc.emulator.queues` is the compiled engine of the same meaning.

A source hands its messages to its injection port (one per network) in order of ready time, then of
position in the list; the next one is handed over when the port takes the one before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import inf

from meshc.emulator.network import Message, Network
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.program import DEFAULT_ROUTE
from meshc.ir.routing import Route


@dataclass(frozen=True)
class Traffic:
    """One message of `bytes` that may leave `source` at `ready_cycle` and after the messages whose
    ids are in `after` have arrived."""

    id: Hashable
    ready_cycle: float
    source: Coord
    destination: Coord
    bytes: int
    after: tuple[Hashable, ...] = ()
    route: Route = DEFAULT_ROUTE


@dataclass(frozen=True)
class Arrival:
    """When the injection port took a message, when its tail arrived, and the links between."""

    id: Hashable
    inject_cycle: float
    arrive_cycle: float
    hops: int


@dataclass(frozen=True)
class TrafficResult:
    """Arrivals in the order of the messages.

    link_busy_cycles: of each link that carried something, indexed as in `meshc.emulator.paths`.
    """

    arrivals: tuple[Arrival, ...]
    makespan_cycles: float
    link_busy_cycles: dict[int, float]


class _Packet(Message):
    """A message on its way.

    waits: messages that must arrive first.   released_by: time at which the last of them did.
    """

    __slots__ = ("arrived", "release", "waits", "wakes")

    def __init__(self, number: int, ready: float) -> None:
        Message.__init__(self)
        self.id = number
        self.release = ready
        self.arrived = inf
        self.waits = 0
        self.wakes: list[_Packet] = []


def simulate_messages(
    messages: Sequence[Traffic],
    chip: ChipSpec,
    *,
    contention: bool = True,
    cycle_limit: float | None = None,
) -> TrafficResult:
    """Send messages through a chip's network.

    Raises InputError where `after` names no message, or messages wait for each other.
    """
    network: Network[_Packet] = Network(chip, contention)
    packets, queues = _packets(messages, network)
    place = dict.fromkeys(queues, 0)

    def offer(port: int, time: float) -> None:
        """Hand over the port's next message if nothing holds it back."""
        at = place[port]
        if at < len(queues[port]) and queues[port][at].waits == 0:
            packet = queues[port][at]
            place[port] = at + 1
            network.depart(packet, max(packet.release, time))

    def injected(packet: _Packet) -> None:
        offer(packet.path.port, packet.inject)

    def arrived(packet: _Packet, ordinal: int, time: float, first: float) -> None:
        del ordinal, first
        packet.arrived = time
        for other in packet.wakes:
            other.waits -= 1
            other.release = max(other.release, time)
            queue, at = queues[other.path.port], place[other.path.port]
            if at < len(queue) and queue[at] is other:
                before = queue[at - 1].inject if at else 0
                if before < inf:
                    offer(other.path.port, before)

    for port in sorted(queues):
        offer(port, 0)
    network.run(injected, arrived, inf if cycle_limit is None else cycle_limit)
    late = [m for m, p in zip(messages, packets, strict=True) if p.arrived == inf]
    if late:
        raise InputError(
            f"Message '{late[0].id}' and {len(late) - 1} others never leave, because the messages "
            "in their `after` wait for them in turn; remove the circle."
        )
    return TrafficResult(
        tuple(
            Arrival(m.id, p.inject, p.arrived, p.path.hops)
            for m, p in zip(messages, packets, strict=True)
        ),
        max((p.arrived for p in packets), default=0),
        {link: cycles for link, cycles in enumerate(network.link_busy) if cycles},
    )


def _packets(
    messages: Sequence[Traffic], network: Network[_Packet]
) -> tuple[list[_Packet], dict[int, list[_Packet]]]:
    """A packet per message, and each injection port's packets in order."""
    paths = network.paths
    packets: list[_Packet] = []
    numbers: dict[Hashable, int] = {}
    queues: dict[int, list[_Packet]] = {}
    for number, m in enumerate(messages):
        if m.id in numbers:
            raise InputError(f"Two messages have the id '{m.id}'; give each its own.")
        numbers[m.id] = number
        source, destination = paths.index(m.source), paths.index(m.destination)
        packet = _Packet(number, m.ready_cycle)
        network.prepare(packet, m.bytes, paths.unicast(source, destination, m.route))
        packets.append(packet)
        queues.setdefault(packet.path.port, []).append(packet)
    for packet, m in zip(packets, messages, strict=True):
        for name in m.after:
            if name not in numbers:
                raise InputError(
                    f"Message '{m.id}' comes after '{name}', but there is no such message; name "
                    "one of the messages in the file."
                )
            packets[numbers[name]].wakes.append(packet)
            packet.waits += 1
    for queue in queues.values():
        queue.sort(key=lambda p: p.release)
    return packets, queues
