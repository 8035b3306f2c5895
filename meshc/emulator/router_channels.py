"""Allocation of channels to heads that wait for them, compiled; see `router.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import inlined, lowest, whole
from meshc.emulator.router_paths import is_late, output_to
from meshc.emulator.router_state import FRESH, State


@inlined
def lowest_from(mask: int, start: int) -> int:
    """Position of the first set bit at or after `start`, or else of the first one."""
    above = mask >> start
    if above:
        return start + lowest(above)
    return lowest(mask)


@inlined
def list_link(s: State, link: int) -> None:
    """Allocate a link's channels in the next round."""
    clock = s.clock[0]
    if s.links[link].listed == 0:
        s.links[link].listed = 1
        s.link_list[clock.link_count] = link
        clock.link_count += 1


@inlined
def ask_channel(s: State, buffer: int, flight: int) -> None:
    """The head in front of a buffer waits for a channel."""
    clock, f = s.clock[0], s.flights[flight]
    shift = whole(clock.shift)
    port = buffer >> shift
    router = port >> 3
    into = port & 7
    output = output_to(s, router, f.target)
    link = router << 3 | output
    bit = 1 << (buffer - (port << shift))
    k = s.links[link]
    if clock.lower and is_late(s, router, output, f.source):
        s.late_asking[link << 3 | into] |= bit
        k.late_askers |= 1 << into
    else:
        s.asking[link << 3 | into] |= bit
        k.askers |= 1 << into
    if k.open:
        list_link(s, link)


@inlined
def list_router(s: State, router: int, flag: int) -> None:
    """Allocate a router's switch in the next round, if the flag is 1 and not 0."""
    clock, r = s.clock[0], s.routers[router]
    s.router_list[clock.router_count] = router  # to be overwritten if it does not count
    clock.router_count += flag & (1 - whole(r.listed))
    r.listed |= flag


@inlined
def take_channel(s: State, link: int, into: int, channel: int, offers: int) -> None:
    """The head in an input's channel takes one of the channels that a link offers to it."""
    clock = s.clock[0]
    channels, shift = whole(clock.channels), whole(clock.shift)
    output = link & 7
    buffer = (link & ~7 | into) << shift | channel
    b = s.buffers[buffer]
    start = whole(b.turn) - (output << shift)
    offer = lowest_from(offers, start) if 0 < start < channels else lowest(offers)
    slot = link << shift | offer
    c = s.slots[slot]
    if channel + 1 < channels:
        c.turn = into << shift | (channel + 1)
    else:
        c.turn = 0 if into == 4 else (into + 1) << shift
    if offer + 1 < channels:
        b.turn = output << shift | (offer + 1)
    else:
        b.turn = 0 if output == 4 else (output + 1) << shift
    c.owner = buffer + 1
    b.slot = slot
    b.state = FRESH
    s.links[link].open &= ~(1 << offer)
    s.fresh[clock.fresh_count] = buffer
    clock.fresh_count += 1


@inlined
def share_link(s: State, link: int, asking: NDArray[np.uint32], askers: int, offered: int) -> int:
    """Several heads want the channels of a link: each channel chooses a head, then each head one
    of the channels that chose it. Returns the inputs that still have heads waiting."""
    shift = whole(s.clock[0].shift)
    rest = offered
    while rest:
        offer = lowest(rest)
        rest &= rest - 1
        start = whole(s.slots[link << shift | offer].turn)
        into = start >> shift
        mask = whole(asking[link << 3 | into]) >> (start - (into << shift))
        if mask:
            s.chosen[offer] = start + lowest(mask)
        else:
            into = whole(s.turns[(0 if into == 4 else into + 1) << 5 | askers])
            s.chosen[offer] = into << shift | lowest(asking[link << 3 | into])
    while offered:
        head = whole(s.chosen[lowest(offered)])
        offers = 0
        rest = offered
        while rest:
            offer = lowest(rest)
            rest &= rest - 1
            if s.chosen[offer] == head:
                offers |= 1 << offer
        offered &= ~offers
        into = head >> shift
        channel = head & ((1 << shift) - 1)
        take_channel(s, link, into, channel, offers)
        left = whole(asking[link << 3 | into]) & ~(1 << channel)
        asking[link << 3 | into] = left
        askers &= ~(whole(left == 0) << into)
    return askers


@inlined
def guess_link(s: State, link: int) -> None:
    """Heads that wait for a channel ask for the switch too, if a free channel has a credit."""
    clock, k = s.clock[0], s.links[link]
    depth = whole(clock.depth)
    rest = whole(k.open)
    while rest:
        if s.slots[link << whole(clock.shift) | lowest(rest)].spent < depth:
            break
        rest &= rest - 1
    if rest:
        router = link >> 3
        askers = whole(k.askers | k.late_askers)
        s.routers[router].guesses |= askers << ((link & 7) * 5)
        while askers:
            cross = link << 3 | lowest(askers)
            s.guessing[cross] = s.asking[cross] | s.late_asking[cross]
            askers &= askers - 1
        s.guess[clock.guess_count] = link
        clock.guess_count += 1
        list_router(s, router, 1)


@inlined
def allocate_channels(s: State) -> None:
    """Give free channels to heads that wait for them."""
    clock = s.clock[0]
    lower = whole(clock.lower)
    kept = 0
    for n in range(clock.link_count):
        link = whole(s.link_list[n])
        k = s.links[link]
        if clock.speculate and k.open and (k.askers | k.late_askers):
            guess_link(s, link)
        askers = whole(k.askers)
        offered = whole(k.open)
        if lower and link & 7 != 4:
            late = whole(k.late_askers)
            if late and offered & ~lower:
                k.late_askers = share_link(s, link, s.late_asking, late, offered & ~lower)
            offered &= lower
        if askers and offered:
            into = lowest(askers)
            asking = whole(s.asking[link << 3 | into])
            if askers & (askers - 1) == 0 and asking & (asking - 1) == 0:
                take_channel(s, link, into, lowest(asking), offered)
                s.asking[link << 3 | into] = 0
                k.askers = 0
            else:
                k.askers = share_link(s, link, s.asking, askers, offered)
        if (k.askers | k.late_askers) and k.open:
            s.link_list[kept] = link
            kept += 1
        else:
            k.listed = 0
    clock.link_count = kept
