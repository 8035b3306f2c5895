"""The rules of `meshc.emulator.router` once more, plainly and slowly: objects, every cycle, every
router, nothing skipped and no masks. Tests compare the two."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

from meshc.emulator.batch import Batch, flit_bytes, flits_of
from meshc.emulator.flits import Timing
from meshc.emulator.router_state import PACE
from meshc.ir.chip import ChipSpec

Flit = tuple[int, int]  # message, number of the flit


@dataclass
class Buffer:
    """One channel of one input. waits_from: when the head in front may ask for a channel; None if
    there is none or it has one.   output, channel, since: where its message goes, since when."""

    flits: deque[Flit] = field(default_factory=deque)
    waits_from: int | None = None
    output: int = 0
    channel: int | None = None
    since: int = 0
    turn: int = 0


@dataclass
class Link:
    """Its channels' credits, users and turns; free_at: when it may take the next flit, which it is
    busy with for `pace`, both in 1/PACE cycles."""

    credits: list[int]
    used: list[bool]
    turns: list[int]
    pace: int
    free_at: int = 0
    turn: int = 0


def after(choices: list[int], start: int) -> int:
    """The first of the choices from `start` on, or else the first of all."""
    return min(choices, key=lambda c: (c < start, c))


class Plain:
    """A network and its messages. `run` returns when each message was injected and arrived."""

    def __init__(self, chip: ChipSpec, batch: Batch) -> None:
        self.chip, self.batch = chip, batch
        self.time = Timing.on(chip)
        self.plane = chip.rows * chip.cols
        self.count = chip.noc.virtual_channels
        self.flits = flits_of(chip, batch.bytes).tolist()
        size, rates, noc = flit_bytes(chip), chip.port_rates(), chip.noc
        nodes = range(noc.networks * self.plane)
        pace = {o: [noc.link_bytes_per_cycle] * self.plane for o in range(4)} | {4: rates[1]}
        self.links = {
            (n, o): self._link(size / pace[o][n % self.plane]) for n in nodes for o in range(5)
        }
        self.cores = {n: self._link(size / rates[0][n % self.plane]) for n in nodes}
        self.buffers = {
            (n, i): [Buffer() for _ in range(self.count)] for n in nodes for i in range(5)
        }
        self.input_turn = dict.fromkeys(self.buffers, 0)
        self.channel_turn = dict.fromkeys(self.buffers, 0)
        order = sorted(range(len(batch)), key=lambda m: (int(batch.ready[m]), m))
        self.queues: dict[int, deque[int]] = {n: deque() for n in nodes}
        for m in order:
            self.queues[self._node(m, batch.source)].append(m)
        self.sending: dict[int, tuple[int, int, int]] = {}  # node: message, next flit, channel
        self.last = dict.fromkeys(nodes, self.count - 1)
        self.events: dict[int, list[Any]] = defaultdict(list)
        self.inject = [-1] * len(batch)
        self.arrive = [-1] * len(batch)
        self.before: dict[int, list[int]] = defaultdict(list)
        for later, earlier in zip(batch.later.tolist(), batch.earlier.tolist(), strict=True):
            self.before[later].append(earlier)

    def _link(self, pace: float) -> Link:
        noc = self.chip.noc
        v = self.count
        return Link([noc.buffer_flits] * v, [False] * v, [0] * v, max(PACE, round(pace * PACE)))

    def _node(self, message: int, cores: Any) -> int:
        return int(self.batch.network[message]) * self.plane + int(cores[message])

    def _position(self, node: int) -> tuple[int, int]:
        return divmod(node % self.plane, self.chip.cols)

    def output(self, node: int, message: int) -> tuple[int, bool]:
        """The output that a message takes, and whether it is behind the dateline there."""
        chip, noc = self.chip, self.chip.noc
        odd = node // self.plane % 2
        here = self._position(node)
        there = self._position(self._node(message, self.batch.target))
        source = self._position(self._node(message, self.batch.source))
        axes = (0, 1) if noc.one_way and odd else (1, 0)
        for axis in axes:
            at, to, size = here[axis], there[axis], (chip.rows, chip.cols)[axis]
            if at == to:
                continue
            up = to > at
            if noc.topology == "torus":
                up = not odd if noc.one_way else 2 * ((to - at) % size) <= size
            late = (at == size - 1 or at < source[axis]) if up else (at == 0 or at > source[axis])
            return (2 - 2 * axis) + (not up), late
        return 4, False

    def neighbour(self, node: int, output: int) -> int:
        row, col = self._position(node)
        down, across = ((0, 1), (0, -1), (1, 0), (-1, 0))[output]
        row, col = (row + down) % self.chip.rows, (col + across) % self.chip.cols
        return node // self.plane * self.plane + row * self.chip.cols + col

    def run(self, limit: int = 100_000) -> tuple[list[int], list[int]]:
        now = 0
        while min(self.arrive) < 0 and now < limit:
            for event in self.events.pop(now, []):
                event()
            self._step(now)
            now += 1
        return self.inject, self.arrive

    def _step(self, now: int) -> None:
        sends = []
        for node in sorted(self.queues):
            waiting, guessing = self._waiting(node, now)
            self._channels(node, waiting, now)
            sends += self._switch(node, guessing, now)
        for node, into, channel in sends:
            self._send(node, into, channel, now)
        for node in sorted(self.queues):
            self._inject(node, now)

    def _waiting(self, node: int, now: int) -> tuple[dict[int, list[Any]], set[tuple[int, int]]]:
        """Heads that ask for a channel, by output; and those that ask for the switch as well."""
        waiting: dict[int, list[Any]] = defaultdict(list)
        for into in range(5):
            for channel, buffer in enumerate(self.buffers[node, into]):
                if buffer.waits_from is not None and buffer.waits_from <= now:
                    output, late = self.output(node, buffer.flits[0][0])
                    buffer.output = output
                    waiting[output].append((into, channel, late))
        guessing = set()
        for output, heads in waiting.items():
            link = self.links[node, output]
            if any(not u and c for u, c in zip(link.used, link.credits, strict=True)):
                guessing |= {(into, channel) for into, channel, _ in heads}
        return waiting, guessing if self.time.speculate else set()

    def _channels(self, node: int, waiting: dict[int, list[Any]], now: int) -> None:
        v = self.count
        dateline = self.chip.noc.topology == "torus" and v > 1
        for output, heads in waiting.items():
            link = self.links[node, output]
            offers: dict[tuple[int, int], list[int]] = defaultdict(list)
            for offer in range(v):
                upper = offer >= (v + 1) // 2
                fitting = [
                    into * v + channel
                    for into, channel, late in heads
                    if not dateline or output == 4 or late == upper
                ]
                if not link.used[offer] and fitting:
                    offers[divmod(after(fitting, link.turns[offer]), v)].append(output * v + offer)
            for (into, channel), found in offers.items():
                buffer = self.buffers[node, into][channel]
                taken = after(found, buffer.turn)
                buffer.turn = (taken + 1) % (5 * v)
                buffer.channel, buffer.since, buffer.waits_from = taken % v, now, None
                link.used[taken % v] = True
                link.turns[taken % v] = (into * v + channel + 1) % (5 * v)

    def _switch(
        self, node: int, guessing: set[tuple[int, int]], now: int
    ) -> list[tuple[int, int, int]]:
        asks: dict[tuple[int, int], int] = {}  # (input, output): channel
        for into in range(5):
            sure, unsure = defaultdict(list), defaultdict(list)
            for channel, buffer in enumerate(self.buffers[node, into]):
                if (into, channel) in guessing:
                    unsure[buffer.output].append(channel)
                elif (
                    buffer.channel is not None
                    and buffer.since < now
                    and buffer.flits
                    and self.links[node, buffer.output].credits[buffer.channel]
                ):
                    sure[buffer.output].append(channel)
            for output in sure.keys() | unsure.keys():
                if self.links[node, output].free_at < (now + 1) * PACE:
                    choices = sure[output] or unsure[output]
                    asks[into, output] = after(choices, self.channel_turn[node, into])
        grants = defaultdict(list)
        for output in range(5):
            asking = [i for i, o in asks if o == output]
            if asking:
                grants[after(asking, self.links[node, output].turn)].append(output)
        sends = []
        for into, offers in grants.items():
            output = after(offers, self.input_turn[node, into])
            channel = asks[into, output]
            self.links[node, output].turn = (into + 1) % 5
            self.input_turn[node, into] = (output + 1) % 5
            self.channel_turn[node, into] = (channel + 1) % self.count
            buffer = self.buffers[node, into][channel]
            got = buffer.channel
            if got is not None and self.links[node, output].credits[got]:
                sends.append((node, into, channel))
        return sends

    def _use(self, link: Link, now: int) -> None:
        link.free_at = max(link.free_at, now * PACE) + link.pace

    def _send(self, node: int, into: int, channel: int, now: int) -> None:
        buffer = self.buffers[node, into][channel]
        link = self.links[node, buffer.output]
        onto, time = buffer.channel, self.time
        assert onto is not None
        message, number = buffer.flits.popleft()
        link.credits[onto] -= 1
        self._use(link, now)
        if buffer.output == 4:
            arrival = now + time.eject
            self._credit(link, onto, arrival + time.back)
            if number + 1 == self.flits[message]:
                done = arrival + time.linger
                self.events[done].append(lambda: self.arrive.__setitem__(message, done))
        else:
            to = self.neighbour(node, buffer.output), buffer.output ^ 1
            self._flit(self.buffers[to][onto], (message, number), now + time.reach)
        if into == 4:
            self._credit(self.cores[node], channel, now + time.inject)
        else:
            upstream = self.links[self.neighbour(node, into ^ 0), into ^ 1]
            self._credit(upstream, channel, now + time.back)
        if number + 1 == self.flits[message]:
            link.used[onto] = False
            buffer.channel = None
            if buffer.flits:
                buffer.waits_from = now + 1 + time.route

    def _credit(self, link: Link, channel: int, when: int) -> None:
        def back() -> None:
            link.credits[channel] += 1

        self.events[when].append(back)

    def _flit(self, buffer: Buffer, flit: Flit, when: int) -> None:
        def come() -> None:
            buffer.flits.append(flit)
            if flit[1] == 0 and len(buffer.flits) == 1:
                buffer.waits_from = when + self.time.route

        self.events[when].append(come)

    def _inject(self, node: int, now: int) -> None:
        link, time = self.cores[node], self.time
        if link.free_at >= (now + 1) * PACE:
            return
        if node not in self.sending:
            if not self.queues[node]:
                return
            message = self.queues[node][0]
            earlier = [self.arrive[m] for m in self.before[message]]
            if min(earlier, default=0) < 0:
                return
            if max([int(self.batch.ready[message]), *earlier]) + time.lag > now:
                return
            ring = [(self.last[node] + k) % self.count for k in range(1, self.count + 1)]
            free = [c for c in ring if not link.used[c] and link.credits[c]]
            if not free:
                return
            self.queues[node].popleft()
            self.sending[node] = message, 0, free[0]
            self.last[node] = free[0]
            self.inject[message] = now - time.lag
            link.used[free[0]] = True
        message, number, channel = self.sending[node]
        if not link.credits[channel]:
            return
        link.credits[channel] -= 1
        self._use(link, now)
        self._flit(self.buffers[node, 4][channel], (message, number), now + time.inject)
        self.sending[node] = message, number + 1, channel
        if number + 1 == self.flits[message]:
            del self.sending[node]
            link.used[channel] = False
