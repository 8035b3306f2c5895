"""Routers with finite buffers, flit by flit: the rules, compiled.

A router has five inputs and five outputs. Outputs 0 to 3 are the links east, west, south and north
and end at input `output ^ 1` of the neighbour; input 4 comes from the core and output 4 leads to
it. Each input has `channels` virtual channels with a buffer of so many flits. In every cycle, in
this order:

1. Flits and credits that were on their way arrive.
2. Allocation of channels: each free channel of an output offers itself to one of the heads that
   wait for that output, in turn; a head takes one of its offers, in turn.
3. Allocation of the switch: for each input and output one channel asks, in turn, of those that
   have a flit and a credit; each output grants one input and each input takes one grant, in turn.
   The flit leaves: it arrives `reach` cycles later, and its credit goes back.
4. A tail frees its channel for others from the next cycle on; the head behind it waits for a
   channel from the next cycle on.
5. Cores inject one flit each, of one message at a time, into the next channel that is free.

A head that got a channel asks for the switch one cycle later, or, where routers speculate, in the
same cycle, and then wastes its turn if it gets the switch without the channel. Turns (round robin)
pass on when they were used. This is separable allocation with one iteration (McKeown, The iSLIP
scheduling algorithm for input-queued switches, 1999) in the router of Dally and Towles, Principles
and Practices of Interconnection Networks, chapters 16 and 17.
"""

from __future__ import annotations

from meshc.emulator.compiled import compiled, inlined, lowest, ones, whole
from meshc.emulator.router_channels import (
    allocate_channels,
    ask_channel,
    list_link,
    list_router,
    lowest_from,
)
from meshc.emulator.router_sources import (
    inject_all,
    offer_next,
    pace_link,
    put_credit,
    put_flit,
    put_tail,
    wake_source,
)
from meshc.emulator.router_state import BODY, FRESH, IDLE, NONE, PACE, WAITING, State


@inlined
def new_head(s: State, buffer: int, flight: int, now: int) -> None:
    """A head has come to the front of a buffer."""
    clock, b = s.clock[0], s.buffers[buffer]
    b.state = WAITING
    b.flight = flight
    b.left = s.flights[flight].flits
    if clock.route_cycles:
        at = (now + clock.route_cycles) & (clock.wheel - 1)
        k = whole(s.route_end[at])
        s.route_buffer[k] = buffer
        s.route_end[at] = k + 1
    else:
        ask_channel(s, buffer, flight)


@inlined
def set_able(s: State, buffer: int, flag: int) -> None:
    """A buffer asks for the switch from now on, if the flag is 1 and not 0.

    Flags are not branches, because most of these are as often 1 as 0, and a branch that is
    guessed wrongly takes longer than all of this.
    """
    shift = whole(s.clock[0].shift)
    port = buffer >> shift
    link = s.buffers[buffer].slot >> shift
    into = port & 7
    router = port >> 3
    s.able[link << 3 | into] |= flag << (buffer - (port << shift))
    s.routers[router].requests |= flag << ((link & 7) * 5 + into)
    list_router(s, router, flag)


@inlined
def receive_credit(s: State, slot: int) -> None:
    """A credit comes back."""
    clock, c = s.clock[0], s.slots[slot]
    c.spent -= 1
    source = (slot >> whole(clock.shift)) - (whole(clock.routers) << 3)
    if source >= 0:
        wake_source(s, source)
    elif c.spent + 1 == clock.depth and c.owner != 0:
        owner = whole(c.owner) - 1
        set_able(s, owner, whole(s.buffers[owner].count != 0))


@inlined
def receive_flit(s: State, buffer: int, flight: int, now: int) -> None:
    """A flit comes into a buffer; `flight` is NONE except for heads."""
    b = s.buffers[buffer]
    depth = whole(s.clock[0].depth)
    b.count += 1
    if flight == NONE:
        set_able(s, buffer, whole((b.count == 1) & (s.slots[b.slot].spent != depth)))
    elif b.state == IDLE:
        new_head(s, buffer, flight, now)
    else:
        if b.first == 0:
            b.first = flight + 1
        else:
            s.flights[b.last].behind = flight
        b.last = flight


@inlined
def wake_waiting(s: State, number: int, now: int) -> None:
    """A message has arrived; those that waited for it may go."""
    w = s.waits
    for k in range(w.start[number], w.start[number + 1]):
        other = whole(w.wake[k])
        w.counts[other] -= 1
        w.release[other] = max(w.release[other], float(now + s.clock[0].lag))
        if w.counts[other] == 0:
            router = whole(w.wake_source[k])
            r = s.routers[router]
            if r.place < r.place_end and s.messages[r.place].number == other:
                offer_next(s, router, now)


@inlined
def receive_tail(s: State, flight: int, now: int) -> None:
    """A message has arrived."""
    clock, f = s.clock[0], s.flights[flight]
    f.behind = clock.free_flight
    clock.free_flight = flight
    clock.free_flights += 1
    n = s.news[clock.news_count]
    n.number, n.source, n.target, n.flits = f.number, f.source, f.target, f.flits
    n.ready, n.inject, n.arrive = f.ready, f.inject, now
    clock.news_count += 1
    clock.delivered += 1
    if len(s.waits.counts):
        wake_waiting(s, whole(f.number), now)


@inlined
def receive(s: State, now: int) -> None:
    """What was on its way arrives."""
    clock = s.clock[0]
    at = now & (clock.wheel - 1)
    routers = whole(clock.routers)
    base = at * (routers << 3)
    end = whole(s.credit_end[at])
    s.credit_end[at] = base
    for k in range(base, end):
        receive_credit(s, whole(s.credit_slot[k]))
    if clock.route_cycles:
        base = at * (routers << 4)
        end = whole(s.route_end[at])
        s.route_end[at] = base
        for k in range(base, end):
            buffer = whole(s.route_buffer[k])
            ask_channel(s, buffer, s.buffers[buffer].flight)
    base = at * (routers << 3)
    end = whole(s.flit_end[at])
    s.flit_end[at] = base
    for k in range(base, end):
        receive_flit(s, whole(s.flit_buffer[k]), whole(s.flit_flight[k]), now)
    base = at * routers
    end = whole(s.tail_end[at])
    s.tail_end[at] = base
    for k in range(base, end):
        receive_tail(s, whole(s.tail_flight[k]), now)


@inlined
def send(s: State, link: int, into: int, channel: int, now: int) -> None:
    """A flit leaves an input's channel through the switch."""
    clock = s.clock[0]
    shift = whole(clock.shift)
    port = link & ~7 | into
    buffer = port << shift | channel
    b, k = s.buffers[buffer], s.links[link]
    slot = whole(b.slot)
    c = s.slots[slot]
    c.spent += 1
    b.count -= 1
    b.left -= 1
    if clock.paced:
        pace_link(s, link, now)
    arrival = now + k.reach
    flight = whole(b.flight)
    if link & 7 != 4:
        target = k.first_buffer + (slot - (link << shift))
        put_flit(s, target, flight if b.state == FRESH else NONE, arrival)
    else:
        put_credit(s, slot, arrival + k.back)
        if b.left == 0:
            put_tail(s, flight, arrival + clock.linger)
    p = s.ports[port]
    put_credit(s, whole(p.link) << shift | channel, now + p.back)
    b.state = BODY
    # Without branches, because these are as often true as not.
    stays = whole((b.left != 0) & (b.count != 0) & (c.spent != whole(clock.depth)))
    cross = link << 3 | into
    able = s.able[cross] & ~((1 - stays) << channel)
    s.able[cross] = able
    s.routers[link >> 3].requests &= ~(whole(able == 0) << ((link & 7) * 5 + into))
    if b.left == 0:
        c.owner = 0
        k.open |= 1 << (slot - (link << shift))
        if k.askers | k.late_askers:
            list_link(s, link)
        if b.count > 0:
            following = whole(b.first) - 1
            b.first = 0 if following == b.last else whole(s.flights[following].behind) + 1
            new_head(s, buffer, following, now + 1)
        else:
            b.state = IDLE


@inlined
def use_grant(s: State, link: int, into: int, now: int) -> None:
    """An input takes the grant of an output."""
    clock = s.clock[0]
    channels, shift = whole(clock.channels), whole(clock.shift)
    output = link & 7
    port = link & ~7 | into
    p = s.ports[port]
    s.links[link].turn = 0 if into == 4 else into + 1
    p.turn = 0 if output == 4 else output + 1
    able = whole(s.able[link << 3 | into])
    asks = able if able else whole(s.guessing[link << 3 | into])
    channel = lowest(asks)
    if asks & (asks - 1):
        channel = lowest_from(asks, whole(p.channel_turn))
    p.channel_turn = 0 if channel + 1 == channels else channel + 1
    b = s.buffers[port << shift | channel]
    if able or (b.state == FRESH and s.slots[b.slot].spent < whole(clock.depth)):
        send(s, link, into, channel, now)


@inlined
def match(s: State, router: int, requests: int) -> int:
    """Which of a router's requests are granted and taken; bits output · 5 + input."""
    grants = 0  # bits input · 5 + output
    while requests:
        output = fifth(lowest(requests))
        asking = requests >> (5 * output) & 31
        requests &= ~(31 << (5 * output))
        turn = whole(s.links[router << 3 | output].turn)
        into = whole(s.turns[turn << 5 | asking])
        grants |= 1 << (into * 5 + output)
    matches = 0
    while grants:
        into = fifth(lowest(grants))
        offers = grants >> (5 * into) & 31
        grants &= ~(31 << (5 * into))
        turn = whole(s.ports[router << 3 | into].turn)
        output = whole(s.turns[turn << 5 | offers])
        matches |= 1 << (output * 5 + into)
    return matches


@inlined
def fifth(bit: int) -> int:
    """bit // 5 for bits up to 24."""
    return (bit * 13) >> 6


@inlined
def compete(requests: int) -> bool:
    """Whether two requests are for one output or from one input."""
    rows = requests | requests >> 5 | requests >> 10 | requests >> 15 | requests >> 20
    columns = requests | requests >> 1 | requests >> 2 | requests >> 3 | requests >> 4
    count = ones(requests)
    return ones(rows & 31) != count or ones(columns & 0x108421) != count


@inlined
def without_busy(s: State, router: int, requests: int, now: int) -> int:
    """Requests for outputs whose links can take another flit."""
    for output in range(5):
        if s.lanes[router << 3 | output].free_at >= (now + 1) * PACE:
            requests &= ~(31 << (5 * output))
    return requests


@inlined
def allocate_switches(s: State, now: int) -> None:
    """Let at most one flit leave each input of each router, and go to each output."""
    clock = s.clock[0]
    kept = 0
    for k in range(clock.router_count):
        router = whole(s.router_list[k])
        r = s.routers[router]
        requests = whole(r.requests | r.guesses)
        if clock.paced:
            requests = without_busy(s, router, requests, now)
        if compete(requests):
            requests = match(s, router, requests)
        while requests:
            bit = lowest(requests)
            requests &= requests - 1
            output = fifth(bit)
            use_grant(s, router << 3 | output, bit - 5 * output, now)
        s.router_list[kept] = router
        again = whole(r.requests != 0)
        kept += again
        r.listed = again
    clock.router_count = kept


@inlined
def end_round(s: State) -> None:
    """Forget what was guessed; heads that got a channel ask for the switch from now on."""
    clock = s.clock[0]
    for k in range(clock.guess_count):
        link = whole(s.guess[k])
        s.routers[link >> 3].guesses = 0
        for into in range(5):
            s.guessing[link << 3 | into] = 0
    clock.guess_count = 0
    for k in range(clock.fresh_count):
        buffer = whole(s.fresh[k])
        b = s.buffers[buffer]
        if b.state >= FRESH:
            set_able(
                s, buffer, whole((b.count != 0) & (s.slots[b.slot].spent != whole(clock.depth)))
            )
    clock.fresh_count = 0


@inlined
def next_cycle(s: State, now: int) -> int:
    """The next cycle in which something can happen, or -1: nothing will."""
    clock = s.clock[0]
    if clock.router_count or clock.link_count or clock.source_count:
        return now
    first = s.sleep_time[0] if clock.sleepers else -1
    for time in range(now, now + clock.wheel):
        at = time & (clock.wheel - 1)
        base = at * whole(clock.routers)
        if (
            s.flit_end[at] != base << 3
            or s.credit_end[at] != base << 3
            or s.tail_end[at] != base
            or s.route_end[at] != base << 4
        ):
            return time if first < 0 else min(time, first)
    return first


@compiled
def advance(s: State, until: int, room: int) -> bool:
    """Simulate from clock.now on to cycle `until` (exclusive), or until `room` messages are in
    `news`, or there may be too few flights for the next cycle, or a core has no message left while
    others follow. Returns whether something may still move."""
    clock = s.clock[0]
    now = clock.now
    while now < until and clock.news_count < room and clock.free_flights >= clock.routers:
        if clock.hungry:
            break
        following = next_cycle(s, now)
        if following < 0:
            clock.now = now
            return False
        if following > now:
            now = min(following, until)
            continue
        receive(s, now)
        if clock.link_count:
            allocate_channels(s)
        if clock.router_count:
            allocate_switches(s, now)
        if clock.fresh_count or clock.guess_count:
            end_round(s)
        inject_all(s, now)
        now += 1
    clock.now = now
    return True
