"""Which way messages go through routers, compiled, and what follows from that alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import compiled, inlined, whole
from meshc.emulator.router_state import PACE, Records, State


@inlined
def output_to(s: State, router: int, target: int) -> int:
    """The output towards another router."""
    here, there = s.routers[router], s.routers[target]
    across = whole(there.col) - whole(here.col)
    down = whole(there.row) - whole(here.row)
    if across == 0 and down == 0:
        return 4
    first, step, size = 0, across, whole(here.cols)
    if down != 0 and (across == 0 or here.row_first == 0):
        first, step, size = 2, down, whole(here.rows)
    if here.wraps == 0:
        return first if step > 0 else first + 1
    if here.sense != 0:
        return first if here.sense > 0 else first + 1
    return first if 2 * (step % size) <= size else first + 1


@inlined
def is_late(s: State, router: int, output: int, source: int) -> bool:
    """Whether a message's next link is the one that closes a ring, or lies behind it: the
    dateline, without which messages on a ring could wait for each other in a circle."""
    here, there = s.routers[router], s.routers[source]
    if output == 0:
        return bool(here.col + 1 == here.cols or here.col < there.col)
    if output == 1:
        return bool(here.col == 0 or here.col > there.col)
    if output == 2:
        return bool(here.row + 1 == here.rows or here.row < there.row)
    return bool(output == 3 and (here.row == 0 or here.row > there.row))


@compiled
def count_flits(s: State, messages: Records, flits: NDArray[np.int64]) -> None:
    """Add up, by link, the flits of some messages."""
    clock = s.clock[0]
    shift = whole(clock.shift)
    cores = whole(clock.routers) << 3
    for number in range(len(messages)):
        m = messages[number]
        router = whole(m.source)
        flits[cores + router] += m.flits
        output = 0
        while output != 4:
            output = output_to(s, router, m.target)
            link = router << 3 | output
            flits[link] += m.flits
            router = whole(s.links[link].first_buffer) >> shift >> 3


@compiled
def alone(s: State, messages: Records, head_cycles: int, cycles: NDArray[np.int64]) -> None:
    """How long each message takes, from the injection of its head to the arrival of its tail, in
    a network that is empty and has not run yet. A head waits `head_cycles` in each router before
    it asks for the switch."""
    clock = s.clock[0]
    shift = whole(clock.shift)
    for number in range(len(messages)):
        m = messages[number]
        router = whole(m.source)
        link = (whole(clock.routers) << 3) + router
        behind = whole(m.flits) - 1  # flits behind the head
        head = 0  # when the head goes onto the link
        tail = 0  # when the tail does
        output = -1
        while True:
            k = s.links[link]
            # A flit leaves every `pace`, and a buffer of `depth` flits is full until the credit
            # of its first one is back. Those behind the head may catch up with it.
            depth = whole(clock.depth) - whole(s.slots[link << shift].spent)
            trip = whole(k.reach) + whole(k.back)
            paced = behind * s.lanes[link].pace // PACE
            body = max(paced, behind + behind // depth * max(0, trip - depth))
            tail = max(tail, head + body) + whole(k.reach)
            head += whole(k.reach)
            if output == 4:
                break
            output = output_to(s, router, m.target)
            link = router << 3 | output
            router = whole(s.links[link].first_buffer) >> shift >> 3
            head += head_cycles
        cycles[number] = tail
