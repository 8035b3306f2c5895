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
from meshc.ir.chip import ChipSpec

Floats = NDArray[np.float64]
AT_SOURCE = 0xFFFFFFFF  # instead of a router


class Queues(NamedTuple):
    """All that changes and all tables. Times are in cycles, rates in bytes per cycle; servers are
    links (router · 4 + direction) and ports (by router)."""

    counts: NDArray[np.int64]  # events in the heap, messages that have arrived
    ramps: Floats  # into the network and out of it
    # messages
    ready: Floats
    inject: Floats
    arrive: Floats
    tail: Floats
    source: NDArray[np.uint32]
    target: NDArray[np.uint32]
    at: NDArray[np.uint32]  # the router that the head has reached
    bytes: NDArray[np.int64]
    waits: NDArray[np.int32]
    wake_start: NDArray[np.int64]
    wake: NDArray[np.int32]
    # sources: each one's messages are queue[first : place_end], and those from `place` on wait
    queue: NDArray[np.int32]
    first: NDArray[np.int64]
    place: NDArray[np.int64]
    place_end: NDArray[np.int64]
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


@compiled
def add(times: Floats, messages: NDArray[np.uint32], size: int, time: float, message: int) -> None:
    """Put a message onto a heap of so many, ordered by (time, message)."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if times[up] < time or (times[up] == time and messages[up] < message):
            break
        times[at], messages[at] = times[up], messages[up]
        at = up
    times[at], messages[at] = time, message


@compiled
def remove(times: Floats, messages: NDArray[np.uint32], size: int) -> None:
    """Drop the first message of a heap of so many."""
    size -= 1
    time, message = times[size], messages[size]
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
        times[at], messages[at] = times[down], messages[down]
        at = down
    times[at], messages[at] = time, message


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
def push(q: Queues, time: float, message: int) -> None:
    add(q.time, q.message, q.counts[0], time, message)
    q.counts[0] += 1


@inlined
def offer(q: Queues, source: int, time: float) -> None:
    """Hand over a source's next message if nothing holds it back."""
    place = q.place[source]
    if place < q.place_end[source]:
        message = whole(q.queue[place])
        if q.waits[message] == 0:
            q.place[source] = place + 1
            q.at[message] = AT_SOURCE
            push(q, max(q.ready[message], time), message)


@compiled
def start(q: Queues) -> None:
    """Hand over every source's first message."""
    for source in range(len(q.place)):
        offer(q, source, 0.0)


@inlined
def leave_network(q: Queues, message: int, time: float) -> None:
    """A head has reached its target's router."""
    target = q.target[message]
    taken = cycles(q.bytes[message], q.eject_rate[target])
    end = max(q.eject_free[target], time) + taken
    q.eject_free[target] = end
    q.eject_busy[target] += taken
    arrived = max(end, q.tail[message]) + q.ramps[1] - 1
    q.arrive[message] = arrived
    q.counts[1] += 1
    if len(q.wake):
        for k in range(q.wake_start[message], q.wake_start[message + 1]):
            other = whole(q.wake[k])
            q.waits[other] -= 1
            q.ready[other] = max(q.ready[other], arrived)
            source = whole(q.source[other])
            place = q.place[source]
            if place < q.place_end[source] and q.queue[place] == other:
                before = q.inject[q.queue[place - 1]] if place > q.first[source] else 0.0
                if before >= 0:
                    offer(q, source, before)


@compiled
def serve(q: Queues, limit: float, budget: int) -> int:
    """Serve so many events; returns 0 when there are no more, 1 when there are, 2 past the
    limit."""
    ramp = q.ramps[0]
    for _ in range(budget):
        if q.counts[0] == 0:
            return 0
        time = q.time[0]
        message = whole(q.message[0])
        remove(q.time, q.message, q.counts[0])
        q.counts[0] -= 1
        size = q.bytes[message]
        router = whole(q.at[message])
        if router == AT_SOURCE:
            if time > limit:
                return 2
            router = whole(q.source[message])
            taken = cycles(size, q.inject_rate[router])
            begin = max(q.inject_free[router], time)
            q.inject_free[router] = begin + taken
            q.inject_busy[router] += taken
            q.inject[message] = begin
            q.tail[message] = begin + taken + ramp
            q.at[message] = router
            push(q, begin + ramp, message)
            offer(q, router, begin)
            continue
        target = whole(q.target[message])
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
            leave_network(q, message, time)
            continue
        taken = cycles(size, q.link_rate[link])
        begin = max(q.link_free[link], time)
        q.link_free[link] = begin + taken
        q.link_busy[link] += taken
        q.tail[message] = max(begin + taken, q.tail[message]) + q.hop[link]
        q.at[message] = router
        push(q, begin + q.hop[link], message)
    return 1


@compiled
def alone(q: Queues, cycles_of: Floats) -> None:
    """How long each message takes in an empty network."""
    for message in range(len(q.bytes)):
        size = q.bytes[message]
        router = whole(q.source[message])
        target = whole(q.target[message])
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
        cycles_of[message] = head + taken - 1


def make_queues(chip: ChipSpec, batch: Batch) -> Queues:
    """A chip's network before anything was sent."""
    noc, seams = chip.noc, chip.seams
    plane = chip.rows * chip.cols
    routers = noc.networks * plane
    count = len(batch)
    number = np.arange(routers)
    queue, starts = batch.queues(plane)
    places = np.full(routers + 1, count)
    places[: len(starts)] = starts

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

    wake, wake_start, waits = batch.wakes()
    return Queues(
        counts=np.zeros(2, np.int64),
        ramps=np.array(
            [noc.ramp_cycles[0] + (noc.hop_cycles if exchange else 0), noc.ramp_cycles[1]], float
        ),
        ready=batch.ready.astype(float),
        inject=np.full(count, -1.0),
        arrive=np.full(count, -1.0),
        tail=np.zeros(count),
        source=(batch.network * plane + batch.source).astype(np.uint32),
        target=(batch.network * plane + batch.target).astype(np.uint32),
        at=np.zeros(count, np.uint32),
        bytes=batch.bytes,
        waits=waits,
        wake_start=wake_start,
        wake=wake,
        queue=queue,
        first=places[:-1].copy(),
        place=places[:-1].copy(),
        place_end=places[1:].copy(),
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
        time=np.empty(count + 1),
        message=np.empty(count + 1, np.uint32),
    )


def run_queues(chip: ChipSpec, batch: Batch, cycle_limit: float | None = None) -> Times:
    """Send a batch through a chip's network with unlimited buffers."""
    q = make_queues(chip, batch)
    unloaded = np.zeros(len(batch))
    alone(q, unloaded)
    start(q)
    limit = np.inf if cycle_limit is None else cycle_limit
    while (state := serve(q, limit, 1 << 20)) == 1:
        pass
    if state == 2:
        raise cycle_limit_error(limit)
    shape = (chip.noc.networks, chip.rows, chip.cols)
    return Times(
        q.inject,
        q.arrive,
        q.link_busy.reshape(*shape, 4),
        q.inject_busy.reshape(shape),
        q.eject_busy.reshape(shape),
        unloaded,
    )
