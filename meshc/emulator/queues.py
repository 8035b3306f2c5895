"""Messages on a network whose buffers are unlimited, compiled: the rules of
`meshc.emulator.network` for a batch whose messages have one destination each.

Links and ports are servers that take one message at a time, in the order in which heads arrive
(ties by message), so that nothing idles while a message waits for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.batch import Batch, Times
from meshc.emulator.compiled import compiled, inlined, whole
from meshc.emulator.flits import neighbours
from meshc.emulator.network import cycle_limit_error
from meshc.emulator.paths import Paths
from meshc.emulator.sinks import Sink, run_batch
from meshc.emulator.spool import RECORD, Feed, Records, Spool
from meshc.emulator.waits import Waits, no_waits
from meshc.ir.chip import ChipSpec

Floats = NDArray[np.float64]
SOURCE = 0x80000000  # in an event instead of a flight: a router's core hands over its next message
NEWS_ROOM = 1 << 14
# A message that is in the network.   ready: from when it may leave.   at: the router that its head
# has reached; of a free flight, the next one.
FLIGHT = np.dtype(
    [(name, np.float64) for name in ("ready", "inject", "tail")]
    + [("bytes", np.int64)]
    + [(name, np.uint32) for name in ("number", "source", "target", "at")]
)
# A message that has arrived.
NEWS = np.dtype(
    [(name, np.float64) for name in ("ready", "inject", "arrive")]
    + [(name, np.uint32) for name in ("number", "source", "target", "flits")]
)


class Queues(NamedTuple):
    """All that changes and all tables. Times are in cycles, rates in bytes per cycle; servers are
    links (router · 4 + direction) and ports (by router)."""

    # events in the heap, news, first free flight, free flights, routers that lack messages
    counts: NDArray[np.int64]
    ramps: Floats  # into the network and out of it
    # sources: messages[place : place_end] of each router wait, and `rest` are not there yet
    messages: Records
    place: NDArray[np.uint32]
    place_end: NDArray[np.uint32]
    rest: NDArray[np.uint32]
    offered: NDArray[np.uint8]  # whether the first one is among the events
    last: Floats  # when the one before it left
    waits: Waits
    flights: Records
    news: Records
    # servers: until when they are taken, how fast they are, how long they were busy
    link_free: Floats
    link_rate: Floats
    link_busy: Floats
    hop: Floats  # cycles over a link; below 0: the link takes no time and no turn
    next: NDArray[np.uint32]  # router behind a link
    inject_free: Floats
    inject_rate: Floats
    inject_busy: Floats
    eject_free: Floats
    eject_rate: Floats
    eject_busy: Floats
    # routing, by router: position, and how its network routes as in `router.output_to`
    row: NDArray[np.int64]
    col: NDArray[np.int64]
    row_first: NDArray[np.int64]
    sense: NDArray[np.int64]
    shape: NDArray[np.int64]  # rows, cols, whether they wrap
    # heap
    time: Floats
    message: NDArray[np.uint32]
    flight: NDArray[np.uint32]


@compiled
def add(q: Queues, size: int, time: float, message: int, flight: int) -> None:
    """Put an event onto a heap of so many, ordered by (time, message)."""
    times, messages, flights = q.time, q.message, q.flight
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if times[up] < time or (times[up] == time and messages[up] < message):
            break
        times[at], messages[at], flights[at] = times[up], messages[up], flights[up]
        at = up
    times[at], messages[at], flights[at] = time, message, flight


@compiled
def remove(q: Queues, size: int) -> None:
    """Drop the first event of a heap of so many."""
    times, messages, flights = q.time, q.message, q.flight
    size -= 1
    time, message, flight = times[size], messages[size], flights[size]
    at = 0
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and (
            times[down + 1] < times[down]
            or (times[down + 1] == times[down] and messages[down + 1] < messages[down])
        ):
            down += 1
        if time < times[down] or (time == times[down] and message < messages[down]):
            break
        times[at], messages[at], flights[at] = times[down], messages[down], flights[down]
        at = down
    times[at], messages[at], flights[at] = time, message, flight


@inlined
def direction_to(q: Queues, router: int, target: int) -> int:
    """The link towards another router, or -1 at the target."""
    across = q.col[target] - q.col[router]
    down = q.row[target] - q.row[router]
    if across == 0 and down == 0:
        return -1
    first, step, size = 0, across, q.shape[1]
    if down != 0 and (across == 0 or q.row_first[router] == 0):
        first, step, size = 2, down, q.shape[0]
    if q.shape[2] == 0:
        return first if step > 0 else first + 1
    if q.sense[router] != 0:
        return first if q.sense[router] > 0 else first + 1
    return first if 2 * (step % size) <= size else first + 1


@inlined
def cycles(size: int, rate: float) -> float:
    """Time of so many bytes on a server."""
    return float(max(1.0, np.ceil(size / rate)))


@inlined
def push(q: Queues, time: float, message: int, flight: int) -> None:
    add(q, q.counts[0], time, message, flight)
    q.counts[0] += 1


@inlined
def offer(q: Queues, source: int) -> None:
    """Hand over a source's next message if nothing holds it back."""
    if q.offered[source] == 0 and q.place[source] < q.place_end[source]:
        m = q.messages[q.place[source]]
        ready = float(m.ready)
        if len(q.waits.counts):
            if q.waits.counts[m.number] != 0:
                return
            ready = max(ready, q.waits.release[m.number])
        q.offered[source] = 1
        push(q, max(ready, q.last[source]), whole(m.number), SOURCE | source)


@compiled
def offer_to(q: Queues, sources: NDArray[np.int64]) -> None:
    """Hand over the first message of each of some sources."""
    for k in range(len(sources)):
        offer(q, sources[k])


@inlined
def leave_source(q: Queues, router: int, time: float) -> None:
    """A core's port takes the message that it offers."""
    m = q.messages[q.place[router]]
    q.place[router] += 1
    q.offered[router] = 0
    flight = q.counts[2]
    f = q.flights[flight]
    q.counts[2] = f.at
    q.counts[3] -= 1
    taken = cycles(m.bytes, q.inject_rate[router])
    begin = max(q.inject_free[router], time)
    q.inject_free[router] = begin + taken
    q.inject_busy[router] += taken
    q.last[router] = begin
    f.number, f.source, f.target, f.at = m.number, router, m.target, router
    f.bytes = m.bytes
    f.ready = float(m.ready)
    f.inject = begin
    f.tail = begin + taken + q.ramps[0]
    push(q, begin + q.ramps[0], whole(m.number), flight)
    if q.place[router] == q.place_end[router] and q.rest[router]:
        q.counts[4] += 1
    else:
        offer(q, router)


@inlined
def leave_network(q: Queues, flight: int, time: float) -> None:
    """A head has reached its target's router."""
    f = q.flights[flight]
    target = whole(f.target)
    taken = cycles(f.bytes, q.eject_rate[target])
    end = max(q.eject_free[target], time) + taken
    q.eject_free[target] = end
    q.eject_busy[target] += taken
    arrived = max(end, f.tail) + q.ramps[1] - 1
    n = q.news[q.counts[1]]
    q.counts[1] += 1
    number = whole(f.number)
    n.number, n.source, n.target = f.number, f.source, f.target
    n.ready, n.inject, n.arrive = f.ready, f.inject, arrived
    f.at = q.counts[2]
    q.counts[2] = flight
    q.counts[3] += 1
    w = q.waits
    if len(w.counts):
        for k in range(w.start[number], w.start[number + 1]):
            other = whole(w.wake[k])
            w.counts[other] -= 1
            w.release[other] = max(w.release[other], arrived)
            source = whole(w.wake_source[k])
            place = q.place[source]
            if place < q.place_end[source] and q.messages[place].number == other:
                offer(q, source)


@compiled
def serve(q: Queues, limit: float) -> int:
    """Serve events until something is to be done outside; returns 0 when there are no more, 2 past
    the limit, and else 1."""
    while q.counts[1] < len(q.news) and q.counts[3] > 0 and q.counts[4] == 0:
        if q.counts[0] == 0:
            return 0
        time = q.time[0]
        flight = whole(q.flight[0])
        remove(q, q.counts[0])
        q.counts[0] -= 1
        if flight & SOURCE:
            if time > limit:
                return 2
            leave_source(q, flight - SOURCE, time)
            continue
        f = q.flights[flight]
        router = whole(f.at)
        target = whole(f.target)
        link = -1
        while True:
            direction = direction_to(q, router, target)
            if direction < 0:
                break
            link = router << 2 | direction
            router = whole(q.next[link])
            if q.hop[link] >= 0:
                break
            link = -1
        if link < 0:
            leave_network(q, flight, time)
            continue
        taken = cycles(f.bytes, q.link_rate[link])
        begin = max(q.link_free[link], time)
        q.link_free[link] = begin + taken
        q.link_busy[link] += taken
        f.tail = max(begin + taken, f.tail) + q.hop[link]
        f.at = router
        push(q, begin + q.hop[link], whole(f.number), flight)
    return 1


@compiled
def alone(q: Queues, messages: Records, cycles_of: Floats) -> None:
    """How long each message takes in an empty network."""
    for k in range(len(messages)):
        m = messages[k]
        size = m.bytes
        router = whole(m.source)
        target = whole(m.target)
        taken = max(cycles(size, q.inject_rate[router]), cycles(size, q.eject_rate[target]))
        head = q.ramps[0] + q.ramps[1]
        while True:
            direction = direction_to(q, router, target)
            if direction < 0:
                break
            link = router << 2 | direction
            router = whole(q.next[link])
            if q.hop[link] >= 0:
                head += q.hop[link]
                taken = max(taken, cycles(size, q.link_rate[link]))
        cycles_of[k] = head + taken - 1


class Unlimited:
    """A chip's network with unlimited buffers."""

    def __init__(self, chip: ChipSpec) -> None:
        self.chip = chip
        self._q = make_queues(chip)

    def alone(self, records: Records) -> Floats:
        """Cycles of each message in an empty network."""
        result = np.zeros(len(records))
        alone(self._q, records, result)
        return result

    def run(self, spool: Spool, waits: Waits, sink: Sink, cycle_limit: float | None) -> int:
        """Send all messages and tell the sink of those that arrive; returns 0, as none is stuck."""
        limit = np.inf if cycle_limit is None else cycle_limit
        q = self._q
        feed = Feed(spool, q.place, q.place_end, q.rest)
        q = q._replace(messages=feed.slots, waits=waits)
        offer_to(q, spool.sources.astype(np.int64))
        state = 1
        while state == 1:
            state = serve(q, limit)
            if q.counts[1]:
                sink.add(q.news[: q.counts[1]])
                q.counts[1] = 0
            if q.counts[4]:
                q.counts[4] = 0
                offer_to(q, np.array(feed.refill(), np.int64))
            if q.counts[3] == 0:
                q = _more_flights(q)
        if state == 2:
            raise cycle_limit_error(limit)
        self._q = q
        self.unsent = feed.left()
        return 0

    def busy(self) -> tuple[Floats, Floats, Floats]:
        """Busy cycles of links, injection ports and ejection ports."""
        q, shape = self._q, (self.chip.noc.networks, self.chip.rows, self.chip.cols)
        return (
            q.link_busy.reshape(*shape, 4),
            q.inject_busy.reshape(shape),
            q.eject_busy.reshape(shape),
        )


def _more_flights(q: Queues) -> Queues:
    """The same with twice as much room for messages in the network."""
    have = len(q.flights)
    flights = np.concatenate([q.flights, np.zeros(have, FLIGHT)])
    flights["at"][have:] = np.arange(have + 1, 2 * have + 1)
    q.counts[2:4] = have, have
    room = 2 * have + len(q.place) + 1
    return q._replace(
        flights=flights,
        time=np.resize(q.time, room).astype(np.float64),
        message=np.resize(q.message, room).astype(np.uint32),
        flight=np.resize(q.flight, room).astype(np.uint32),
    )


def make_queues(chip: ChipSpec) -> Queues:
    """A chip's network before anything was sent."""
    noc, seams = chip.noc, chip.seams
    plane = chip.rows * chip.cols
    routers = noc.networks * plane
    number = np.arange(routers)
    flights = np.zeros(4096, FLIGHT)
    flights["at"] = np.arange(1, 4097)
    room = len(flights) + routers + 1

    paths = Paths(chip)
    exchange = noc.topology == "exchange"
    crosses = np.zeros(plane * 4, bool)
    if seams is not None:
        crosses = np.array([paths.crosses_seam(k) for k in range(plane * 4)])
    crosses = np.tile(crosses, noc.networks)
    rate = np.full(routers * 4, float(noc.link_bytes_per_cycle))
    hop = np.full(routers * 4, -1.0 if exchange else float(noc.hop_cycles))
    if seams is not None:
        rate[crosses], hop[crosses] = seams.link_bytes_per_cycle, seams.hop_cycles
    following = np.maximum(neighbours(chip), 0) + np.zeros((noc.networks, 1, 1), np.int64)
    following += (np.arange(noc.networks) * plane)[:, None, None]
    odd = number // plane % 2
    one_way = noc.one_way and noc.topology == "torus"
    inject, eject = (np.tile(rates, noc.networks) for rates in chip.port_rates())

    return Queues(
        counts=np.array([0, 0, 0, len(flights), 0]),
        ramps=np.array(
            [noc.ramp_cycles[0] + (noc.hop_cycles if exchange else 0), noc.ramp_cycles[1]], float
        ),
        messages=np.zeros(1, RECORD),
        place=np.zeros(routers, np.uint32),
        place_end=np.zeros(routers, np.uint32),
        rest=np.zeros(routers, np.uint32),
        offered=np.zeros(routers, np.uint8),
        last=np.zeros(routers),
        waits=no_waits(),
        flights=flights,
        news=np.zeros(NEWS_ROOM, NEWS),
        link_free=np.zeros(routers * 4),
        link_rate=rate,
        link_busy=np.zeros(routers * 4),
        hop=hop,
        next=following.reshape(-1).astype(np.uint32),
        inject_free=np.zeros(routers),
        inject_rate=inject,
        inject_busy=np.zeros(routers),
        eject_free=np.zeros(routers),
        eject_rate=eject,
        eject_busy=np.zeros(routers),
        row=number % plane // chip.cols,
        col=number % plane % chip.cols,
        row_first=1 - odd if noc.one_way else np.ones(routers, np.int64),
        sense=1 - 2 * odd if one_way else np.zeros(routers, np.int64),
        shape=np.array([chip.rows, chip.cols, noc.topology == "torus"], np.int64),
        time=np.zeros(room),
        message=np.zeros(room, np.uint32),
        flight=np.zeros(room, np.uint32),
    )


def run_queues(chip: ChipSpec, batch: Batch, cycle_limit: float | None = None) -> Times:
    """Send a batch through a chip's network with unlimited buffers."""
    return run_batch(Unlimited(chip), batch, cycle_limit)
