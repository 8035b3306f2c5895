"""How cores inject into routers with finite buffers, compiled; see `router.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import compiled, inlined, whole
from meshc.emulator.router_state import NONE, PACE, State


@inlined
def put_credit(s: State, slot: int, time: int) -> None:
    """A credit is on its way."""
    at = time & (s.clock[0].wheel - 1)
    k = whole(s.credit_end[at])
    s.credit_slot[k] = slot
    s.credit_end[at] = k + 1


@inlined
def put_flit(s: State, buffer: int, flight: int, time: int) -> None:
    """A flit is on its way."""
    at = time & (s.clock[0].wheel - 1)
    k = whole(s.flit_end[at])
    s.flit_buffer[k] = buffer
    s.flit_flight[k] = flight
    s.flit_end[at] = k + 1


@inlined
def put_tail(s: State, flight: int, time: int) -> None:
    """A message is about to be complete."""
    at = time & (s.clock[0].wheel - 1)
    k = whole(s.tail_end[at])
    s.tail_flight[k] = flight
    s.tail_end[at] = k + 1


@inlined
def pace_link(s: State, link: int, now: int) -> None:
    """A flit has gone onto a link."""
    lane = s.lanes[link]
    lane.free_at = max(lane.free_at, now * PACE) + lane.pace


@inlined
def wake_source(s: State, router: int) -> None:
    """A router's core may be able to inject."""
    clock, r = s.clock[0], s.routers[router]
    if r.awake == 0:
        r.awake = 1
        s.source_list[clock.source_count] = router
        clock.source_count += 1


@compiled
def push(
    times: NDArray[np.int64], routers: NDArray[np.uint32], size: int, until: int, router: int
) -> None:
    """Put a router onto a heap of so many, ordered by (time, router)."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        time = times[up]
        if time < until or (time == until and routers[up] < router):
            break
        times[at], routers[at] = time, routers[up]
        at = up
    times[at], routers[at] = until, router


@compiled
def pop(times: NDArray[np.int64], routers: NDArray[np.uint32], size: int) -> int:
    """Take the first router off a heap of so many."""
    router = routers[0]
    size -= 1
    until, last = times[size], routers[size]
    at = 0
    while 2 * at + 1 < size:
        down = 2 * at + 1
        time = times[down]
        if down + 1 < size:
            other = times[down + 1]
            if other < time or (other == time and routers[down + 1] < routers[down]):
                down, time = down + 1, other
        if until < time or (until == time and last < routers[down]):
            break
        times[at], routers[at] = time, routers[down]
        at = down
    times[at], routers[at] = until, last
    return whole(router)


@inlined
def sleep(s: State, router: int, until: int) -> None:
    """Put a core to sleep."""
    clock = s.clock[0]
    push(s.sleep_time, s.sleeper, whole(clock.sleepers), until, router)
    clock.sleepers += 1


@inlined
def ready_time(s: State, place: int) -> int:
    """From when on a message can leave, or -1: it waits for others."""
    m = s.messages[place]
    ready = m.ready + whole(s.clock[0].lag)
    if len(s.waits.counts):
        if s.waits.counts[m.number] != 0:
            return -1
        ready = max(ready, whole(s.waits.release[m.number]))
    return whole(ready)


@compiled
def offer_next(s: State, router: int, now: int) -> None:
    """Wake a core for its next message, or let it sleep until the message is ready."""
    r = s.routers[router]
    if r.left == 0 and r.place < r.place_end:
        ready = ready_time(s, whole(r.place))
        if ready >= 0:
            if ready <= now:
                wake_source(s, router)
            else:
                sleep(s, router, ready)


@compiled
def offer_to(s: State, routers: NDArray[np.int64], now: int) -> None:
    """Offer the next messages of some cores, which have sent all that they had."""
    for k in range(len(routers)):
        offer_next(s, routers[k], now)


@inlined
def free_channel(s: State, router: int, link: int) -> int:
    """The channel into which a core may send a head, or -1."""
    clock = s.clock[0]
    channels, shift = whole(clock.channels), whole(clock.shift)
    depth = whole(clock.depth)
    channel = whole(s.routers[router].channel)
    for _ in range(channels):
        channel = 0 if channel + 1 == channels else channel + 1
        if s.links[link].open >> channel & 1 and s.slots[link << shift | channel].spent < depth:
            return channel
    return -1


@inlined
def start_message(s: State, router: int, link: int, now: int) -> bool:
    """A core begins with its next message, if it can."""
    clock, r = s.clock[0], s.routers[router]
    if r.place >= r.place_end:
        return False
    ready = ready_time(s, whole(r.place))
    if ready < 0 or ready > now:
        return False  # a credit came while the core sleeps
    channel = free_channel(s, router, link)
    if channel < 0:
        return False  # until a credit comes
    flight = whole(clock.free_flight)
    f = s.flights[flight]
    clock.free_flight = f.behind
    clock.free_flights -= 1
    clock.injected += 1
    m = s.messages[r.place]
    f.number, f.source, f.target, f.flits = m.number, router, m.target, m.flits
    f.ready, f.inject = m.ready, now
    r.flight, r.left, r.channel = flight, m.flits, channel
    r.place += 1
    if r.place == r.place_end and s.rest[router]:
        clock.hungry += 1
    s.links[link].open &= ~(1 << channel)
    return True


@inlined
def inject(s: State, router: int, now: int) -> bool:
    """A core sends a flit if it can; returns whether it wants to be asked again next cycle."""
    clock, r = s.clock[0], s.routers[router]
    link = (whole(clock.routers) << 3) + router
    k = s.links[link]
    if clock.paced and s.lanes[link].free_at >= (now + 1) * PACE:
        return True
    head = r.left == 0
    if head and not start_message(s, router, link, now):
        return False
    channel = whole(r.channel)
    c = s.slots[link << whole(clock.shift) | channel]
    if c.spent == clock.depth:
        return False
    c.spent += 1
    if clock.paced:
        pace_link(s, link, now)
    flight = whole(r.flight)
    put_flit(s, k.first_buffer + channel, flight if head else NONE, now + k.reach)
    r.left -= 1
    if r.left == 0:
        k.open |= 1 << channel
        if r.place >= r.place_end:
            return False
        ready = ready_time(s, whole(r.place))
        if ready < 0:
            return False
        if ready > now + 1:
            sleep(s, router, ready)
            return False
    return True


@inlined
def inject_all(s: State, now: int) -> None:
    """Cores send."""
    clock = s.clock[0]
    while clock.sleepers and s.sleep_time[0] <= now:
        wake_source(s, whole(pop(s.sleep_time, s.sleeper, whole(clock.sleepers))))
        clock.sleepers -= 1
    kept = 0
    for k in range(clock.source_count):
        router = whole(s.source_list[k])
        if inject(s, router, now):
            s.source_list[kept] = router
            kept += 1
        else:
            s.routers[router].awake = 0
    clock.source_count = kept
