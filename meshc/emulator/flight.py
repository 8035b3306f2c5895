"""Messages between cores: a Send and its Recvs meet here, and leave when all are ready."""

from __future__ import annotations

from collections.abc import Generator
from math import inf

import numpy as np

from meshc.emulator.network import Message, Network
from meshc.emulator.sizes import view_bytes
from meshc.emulator.sram import Memory
from meshc.errors import InvariantError
from meshc.ir.chip import ChipSpec
from meshc.ir.stream import Key, Recv, Send, Step


class Core:
    """What the engine knows of one core. Times in cycles.

    outstanding: sends that may still read SRAM, with the bytes that they read.
    blocked: the message or the delivery that the core waits for.
    """

    __slots__ = (
        "blocked",
        "communication",
        "compute",
        "done",
        "finish",
        "inbox",
        "index",
        "mac_cycles",
        "macs",
        "memory",
        "name",
        "outstanding",
        "process",
        "sram_bytes",
        "step",
        "wait",
    )

    def __init__(self, index: int, name: str, memory: Memory | None) -> None:
        self.index = index
        self.name = name
        self.memory = memory
        self.process: Generator[None, None, None]
        self.step: Step | None = None
        self.outstanding: list[tuple[int, int, Flight]] = []
        self.inbox: dict[Key, Delivery] = {}
        self.blocked: Flight | Delivery | None = None
        self.done = False
        self.compute: float = 0
        self.communication: float = 0
        self.wait: float = 0
        self.finish: float = 0
        self.mac_cycles: float = 0
        self.macs = 0
        self.sram_bytes = 0


class Delivery:
    """One destination of a message: the posted Recv and when head and tail arrive."""

    __slots__ = ("arrived", "core", "first", "flight", "recv", "waiting")

    def __init__(self, flight: Flight, core: Core, recv: Recv) -> None:
        self.flight = flight
        self.core = core
        self.recv = recv
        self.first = self.arrived = inf
        self.waiting = False


class Flight(Message):
    """A message between cores. It departs when it was sent and all its Recvs are posted.

    ready: the latest time at which a side that has come was ready.
    """

    __slots__ = ("data", "deliveries", "key", "ready", "send", "sender", "waiting")

    def __init__(self, key: Key) -> None:
        Message.__init__(self)
        self.key = key
        self.ready: float = 0
        self.send: Send | None = None
        self.sender: Core | None = None
        self.deliveries: list[Delivery] = []
        self.data: np.ndarray | None = None
        self.waiting = False


class Meetings:
    """Sends and Recvs that have not found each other yet, by key."""

    def __init__(self, chip: ChipSpec, network: Network[Flight]) -> None:
        self.network = network
        self.paths = network.paths
        self.cols = chip.cols
        self.multicast = chip.noc.multicast
        self.sync_cycles = chip.noc.sync_cycles
        self.open: dict[Key, Flight] = {}
        self.messages = 0

    def post(self, core: Core, recv: Recv, time: float) -> None:
        """A core is ready to receive."""
        key = recv.key
        flight = self.open.get(key)
        if flight is None:
            flight = self.open[key] = Flight(key)
        for other in flight.deliveries:
            if other.core is core:
                raise InvariantError(f"Core {core.name} posts two receives of message {key}.")
        delivery = Delivery(flight, core, recv)
        flight.deliveries.append(delivery)
        core.inbox[key] = delivery
        if time > flight.ready:
            flight.ready = time
        if flight.send is not None:
            self._match(flight, delivery)
            if len(flight.deliveries) == len(flight.send.to):
                self._leave(flight)

    def send(self, core: Core, send: Send, size: int, time: float, last: float = -inf) -> Flight:
        """A core hands over a message of `size` bytes.   last: when the last of it is there."""
        key = send.key
        flight = self.open.get(key)
        if flight is None:
            flight = self.open[key] = Flight(key)
        elif flight.send is not None:
            raise InvariantError(f"Core {core.name} sends a second message with key {key}.")
        flight.send, flight.sender, flight.last = send, core, last
        flight.id = self.messages
        self.messages += 1
        if time > flight.ready:
            flight.ready = time
        to = send.to
        if len(to) == 1:
            target = to[0].row * self.cols + to[0].col
            path = self.paths.unicast(core.index, target, send.route)
        elif self.multicast and to:
            targets = tuple(c.row * self.cols + c.col for c in to)
            path = self.paths.multicast(core.index, targets, send.route)
        else:
            raise InvariantError(
                f"Core {core.name} sends message {key} to {len(to)} cores, but the chip's network "
                "has no multicast."
            )
        if core.index in path.destinations:
            raise InvariantError(f"Core {core.name} sends message {key} to itself.")
        self.network.prepare(flight, size, path)
        for delivery in flight.deliveries:
            self._match(flight, delivery)
        if len(flight.deliveries) == len(to):
            self._leave(flight)
        return flight

    def _match(self, flight: Flight, delivery: Delivery) -> None:
        recv, core = delivery.recv, delivery.core
        sender = flight.sender
        assert sender is not None
        if recv.source.row * self.cols + recv.source.col != sender.index:
            raise InvariantError(
                f"Core {core.name} expects message {flight.key} from core "
                f"({recv.source.row},{recv.source.col}), but core {sender.name} sends it."
            )
        if core.index not in flight.path.destinations:
            raise InvariantError(
                f"Core {core.name} expects message {flight.key} from core {sender.name}, which "
                "does not send it there."
            )
        expected = view_bytes(recv.view)
        if expected != flight.bytes:
            raise InvariantError(
                f"Core {core.name} expects {expected} bytes of message {flight.key}, but "
                f"core {sender.name} sends {flight.bytes}."
            )

    def _leave(self, flight: Flight) -> None:
        del self.open[flight.key]
        if len(flight.deliveries) > 1:
            order = {core: i for i, core in enumerate(flight.path.destinations)}
            flight.deliveries.sort(key=lambda d: order[d.core.index])
        self.network.depart(flight, flight.ready + self.sync_cycles)
