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

Indices: link = router · 8 + output; port = router · 8 + input; the links of cores into their
routers follow behind, `routers · 8 + router`; cross = link · 8 + input; buffer = port · 2^shift +
channel; slot = link · 2^shift + channel, which is the buffer downstream as its sender sees it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import compiled, inlined, lowest

Records = Any  # a structured array; numba's records have fields as attributes

IDLE, WAITING, FRESH, BODY = 0, 1, 2, 3  # states of a buffer; FRESH: the head has a channel
FLIT, CREDIT, TAIL, ROUTE = 0, 1, 2, 3  # what travels on the wheel
PACE = 1 << 20  # one cycle, where links keep count of fractions

# What is in `numbers`.
(
    ROUTERS,
    CHANNELS,
    SHIFT,
    SPECULATE,
    ROUTE_CYCLES,
    PACED,
    WHEEL,
    NOW,
    ROUTER_COUNT,
    LINK_COUNT,
    SOURCE_COUNT,
    FRESH_COUNT,
    GUESS_COUNT,
    NEWS_COUNT,
    SLEEPERS,
    INJECTED,
    DELIVERED,
    NUMBERS,
) = range(18)

# ready, inject, arrive: cycles.   router, target: where it starts and ends.   behind: the next head
# in the same buffer.   waits: messages that must arrive first; those that wait for this one are
# wake[wake_start : wake_end].
MESSAGE = np.dtype(
    [
        ("ready", np.int64),
        ("inject", np.int64),
        ("arrive", np.int64),
        ("router", np.int32),
        ("target", np.int32),
        ("flits", np.int32),
        ("behind", np.int32),
        ("waits", np.int32),
        ("wake_start", np.int32),
        ("wake_end", np.int32),
        ("spare", np.int32),
    ]
)
# reach: cycles from allocation of the switch to arrival.   back: from allocation of the switch
# behind the link to the use of its credit.   pace: time of a flit, in 1/PACE cycles.   open: mask of
# channels that may be taken.   first_buffer: of the port behind it.   askers: mask of inputs.
LINK = np.dtype(
    [
        ("open", np.int64),
        ("free_at", np.int64),
        ("pace", np.int64),
        ("carried", np.int64),
        ("reach", np.int32),
        ("back", np.int32),
        ("first_buffer", np.int32),
        ("askers", np.int32),
        ("listed", np.int32),
        ("turn", np.int32),
    ]
)
# requests, guesses: bit output · 5 + input.   place … place_end: its core's messages in `queue`.
# row_first, wraps, sense: how messages are routed; sense 0 takes the shorter way.
ROUTER = np.dtype(
    [
        ("requests", np.int32),
        ("guesses", np.int32),
        ("listed", np.int32),
        ("row", np.int32),
        ("col", np.int32),
        ("row_first", np.int32),
        ("wraps", np.int32),
        ("sense", np.int32),
        ("rows", np.int32),
        ("cols", np.int32),
        ("message", np.int32),
        ("left", np.int32),
        ("channel", np.int32),
        ("awake", np.int32),
        ("place", np.int32),
        ("place_end", np.int32),
    ]
)
PORT = np.dtype([("link", np.int32), ("turn", np.int32), ("channel_turn", np.int32)])
# Masks of channels: able to send, whose heads ask for a channel, whose heads ask speculatively.
CROSS = np.dtype([("able", np.int64), ("asking", np.int64), ("guessing", np.int64)])
SLOT = np.dtype([("credits", np.int32), ("owner", np.int32), ("turn", np.int32)])
# left: flits of the message in front that have not left.   first, last: heads behind it.
BUFFER = np.dtype(
    [
        ("count", np.int32),
        ("left", np.int32),
        ("message", np.int32),
        ("state", np.int32),
        ("slot", np.int32),
        ("turn", np.int32),
        ("first", np.int32),
        ("last", np.int32),
    ]
)


class State(NamedTuple):
    """All that changes and all tables; `meshc.emulator.flits` makes it."""

    numbers: NDArray[np.int64]
    turns: NDArray[np.int8]  # (5, 32): the first set bit at or after a position
    messages: Records
    queue: NDArray[np.int32]
    wake: NDArray[np.int32]
    links: Records
    routers: Records
    ports: Records
    crosses: Records
    slots: Records
    buffers: Records
    router_list: NDArray[np.int32]  # routers where something asks for the switch
    link_list: NDArray[np.int32]  # links with free channels and heads that wait for them
    source_list: NDArray[np.int32]  # cores that inject
    fresh: NDArray[np.int32]  # buffers that got a channel in this cycle
    guess: NDArray[np.int32]  # links whose heads speculate in this cycle
    news: NDArray[np.int32]  # messages that have arrived
    sleep_time: NDArray[np.int64]  # heap of cores that wait for a time
    sleeper: NDArray[np.int32]
    counts: NDArray[np.int32]  # (4, cycles): how much is on the wheel
    flits: NDArray[np.int32]  # (cycles, room, 2): buffer, and message of a head or -1
    credits: NDArray[np.int32]  # (cycles, room): slot
    tails: NDArray[np.int32]  # (cycles, room): message
    routes: NDArray[np.int32]  # (cycles, room): buffer


@inlined
def lowest_from(mask: int, start: int) -> int:
    """Position of the first set bit at or after `start`, or else of the first one."""
    above = mask >> start
    if above:
        return start + lowest(above)
    return lowest(mask)


@inlined
def output_to(s: State, router: int, target: int) -> int:
    """The output towards another router."""
    here, there = s.routers[router], s.routers[target]
    across = there.col - here.col
    down = there.row - here.row
    if across == 0 and down == 0:
        return 4
    first, step, size = 0, across, here.cols
    if down != 0 and (across == 0 or here.row_first == 0):
        first, step, size = 2, down, here.rows
    if here.wraps == 0:
        return first if step > 0 else first + 1
    if here.sense:
        return first if here.sense > 0 else first + 1
    return first if 2 * (step % size) <= size else first + 1


@inlined
def list_link(s: State, link: int) -> None:
    """Allocate a link's channels in the next round."""
    if s.links[link].listed == 0:
        s.links[link].listed = 1
        s.link_list[s.numbers[LINK_COUNT]] = link
        s.numbers[LINK_COUNT] += 1


@inlined
def ask_channel(s: State, buffer: int, message: int) -> None:
    """The head in front of a buffer waits for a channel."""
    shift = s.numbers[SHIFT]
    port = buffer >> shift
    router = port >> 3
    into = port & 7
    link = router << 3 | output_to(s, router, s.messages[message].target)
    s.crosses[link << 3 | into].asking |= 1 << (buffer - (port << shift))
    s.links[link].askers |= 1 << into
    if s.links[link].open:
        list_link(s, link)


@inlined
def new_head(s: State, buffer: int, message: int, now: int) -> None:
    """A head has come to the front of a buffer."""
    b = s.buffers[buffer]
    b.state = WAITING
    b.message = message
    b.left = s.messages[message].flits
    if s.numbers[ROUTE_CYCLES]:
        at = (now + s.numbers[ROUTE_CYCLES]) & (s.numbers[WHEEL] - 1)
        s.routes[at, s.counts[ROUTE, at]] = buffer
        s.counts[ROUTE, at] += 1
    else:
        ask_channel(s, buffer, message)


@inlined
def list_router(s: State, router: int) -> None:
    """Allocate a router's switch in the next round."""
    if s.routers[router].listed == 0:
        s.routers[router].listed = 1
        s.router_list[s.numbers[ROUTER_COUNT]] = router
        s.numbers[ROUTER_COUNT] += 1


@inlined
def set_able(s: State, buffer: int) -> None:
    """A buffer asks for the switch from now on."""
    shift = s.numbers[SHIFT]
    port = buffer >> shift
    link = s.buffers[buffer].slot >> shift
    into = port & 7
    router = port >> 3
    s.crosses[link << 3 | into].able |= 1 << (buffer - (port << shift))
    s.routers[router].requests |= 1 << ((link & 7) * 5 + into)
    list_router(s, router)


@inlined
def wake_source(s: State, router: int) -> None:
    """A router's core may be able to inject."""
    if s.routers[router].awake == 0:
        s.routers[router].awake = 1
        s.source_list[s.numbers[SOURCE_COUNT]] = router
        s.numbers[SOURCE_COUNT] += 1


@compiled
def sleep(s: State, router: int, until: int) -> None:
    """Put a core to sleep; the heap is ordered by (time, router)."""
    at = s.numbers[SLEEPERS]
    s.numbers[SLEEPERS] += 1
    while at > 0:
        up = (at - 1) >> 1
        time = s.sleep_time[up]
        if time < until or (time == until and s.sleeper[up] < router):
            break
        s.sleep_time[at], s.sleeper[at] = time, s.sleeper[up]
        at = up
    s.sleep_time[at], s.sleeper[at] = until, router


@compiled
def pop_sleeper(s: State) -> int:
    """Take the first core off the heap."""
    router = s.sleeper[0]
    s.numbers[SLEEPERS] -= 1
    size = s.numbers[SLEEPERS]
    until, last = s.sleep_time[size], s.sleeper[size]
    at = 0
    while 2 * at + 1 < size:
        down = 2 * at + 1
        time = s.sleep_time[down]
        if down + 1 < size:
            other = s.sleep_time[down + 1]
            if other < time or (other == time and s.sleeper[down + 1] < s.sleeper[down]):
                down, time = down + 1, other
        if until < time or (until == time and last < s.sleeper[down]):
            break
        s.sleep_time[at], s.sleeper[at] = time, s.sleeper[down]
        at = down
    s.sleep_time[at], s.sleeper[at] = until, last
    return router


@compiled
def offer_next(s: State, router: int, now: int) -> None:
    """Wake a core for its next message, or let it sleep until the message is ready."""
    r = s.routers[router]
    if r.message < 0 and r.place < r.place_end:
        m = s.messages[s.queue[r.place]]
        if m.waits == 0:
            if m.ready <= now:
                wake_source(s, router)
            else:
                sleep(s, router, m.ready)


@inlined
def receive_credit(s: State, slot: int) -> None:
    """A credit comes back."""
    c = s.slots[slot]
    c.credits += 1
    source = (slot >> s.numbers[SHIFT]) - (s.numbers[ROUTERS] << 3)
    if source >= 0:
        wake_source(s, source)
    elif c.credits == 1 and c.owner and s.buffers[c.owner - 1].count > 0:
        set_able(s, c.owner - 1)


@inlined
def receive_flit(s: State, buffer: int, message: int, now: int) -> None:
    """A flit comes into a buffer; `message` is -1 except for heads."""
    b = s.buffers[buffer]
    count = b.count
    b.count = count + 1
    if message < 0:
        if count == 0 and s.slots[b.slot].credits > 0:
            set_able(s, buffer)
    elif b.state == IDLE:
        new_head(s, buffer, message, now)
    else:
        if b.first < 0:
            b.first = message
        else:
            s.messages[b.last].behind = message
        b.last = message


@inlined
def receive_tail(s: State, message: int, now: int) -> None:
    """A message has arrived; those that waited for it may go."""
    numbers = s.numbers
    m = s.messages[message]
    s.news[numbers[NEWS_COUNT]] = message
    numbers[NEWS_COUNT] += 1
    numbers[DELIVERED] += 1
    for k in range(m.wake_start, m.wake_end):
        number = s.wake[k]
        other = s.messages[number]
        other.waits -= 1
        other.ready = max(other.ready, now)
        r = s.routers[other.router]
        if other.waits == 0 and r.message < 0 and s.queue[r.place] == number:
            offer_next(s, other.router, now)


@inlined
def receive(s: State, now: int) -> None:
    """What was on its way arrives."""
    at = now & (s.numbers[WHEEL] - 1)
    for k in range(s.counts[CREDIT, at]):
        receive_credit(s, s.credits[at, k])
    s.counts[CREDIT, at] = 0
    for k in range(s.counts[ROUTE, at]):
        buffer = s.routes[at, k]
        ask_channel(s, buffer, s.buffers[buffer].message)
    s.counts[ROUTE, at] = 0
    for k in range(s.counts[FLIT, at]):
        receive_flit(s, s.flits[at, k, 0], s.flits[at, k, 1], now)
    s.counts[FLIT, at] = 0
    for k in range(s.counts[TAIL, at]):
        receive_tail(s, s.tails[at, k], now)
    s.counts[TAIL, at] = 0


@inlined
def take_channel(s: State, link: int, into: int, channel: int, offers: int) -> None:
    """The head in an input's channel takes one of the channels that a link offers to it."""
    numbers = s.numbers
    channels, shift = numbers[CHANNELS], numbers[SHIFT]
    output = link & 7
    buffer = (link & ~7 | into) << shift | channel
    b = s.buffers[buffer]
    start = b.turn - (output << shift)
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
    x = s.crosses[link << 3 | into]
    x.asking &= ~(1 << channel)
    if x.asking == 0:
        s.links[link].askers &= ~(1 << into)
    s.fresh[numbers[FRESH_COUNT]] = buffer
    numbers[FRESH_COUNT] += 1


@compiled
def share_link(s: State, link: int) -> None:
    """Several heads want the channels of a link: each channel chooses a head, then each head one
    of the channels that chose it."""
    shift = s.numbers[SHIFT]
    chosen = np.empty(64, np.int64)
    offered = s.links[link].open
    askers = s.links[link].askers
    rest = offered
    while rest:
        offer = lowest(rest)
        rest &= rest - 1
        start = s.slots[link << shift | offer].turn
        into = start >> shift
        mask = s.crosses[link << 3 | into].asking >> (start - (into << shift))
        if mask:
            chosen[offer] = start + lowest(mask)
        else:
            into = s.turns[0 if into == 4 else into + 1, askers]
            chosen[offer] = into << shift | lowest(s.crosses[link << 3 | into].asking)
    while offered:
        head = chosen[lowest(offered)]
        offers = 0
        rest = offered
        while rest:
            offer = lowest(rest)
            rest &= rest - 1
            if chosen[offer] == head:
                offers |= 1 << offer
        offered &= ~offers
        take_channel(s, link, head >> shift, head & ((1 << shift) - 1), offers)


@inlined
def guess_link(s: State, link: int) -> None:
    """Heads that wait for a channel ask for the switch too, if a free channel has a credit."""
    numbers = s.numbers
    k = s.links[link]
    rest = k.open
    while rest:
        if s.slots[link << numbers[SHIFT] | lowest(rest)].credits > 0:
            break
        rest &= rest - 1
    if rest:
        router = link >> 3
        askers = k.askers
        s.routers[router].guesses |= askers << ((link & 7) * 5)
        while askers:
            x = s.crosses[link << 3 | lowest(askers)]
            x.guessing = x.asking
            askers &= askers - 1
        s.guess[numbers[GUESS_COUNT]] = link
        numbers[GUESS_COUNT] += 1
        list_router(s, router)


@inlined
def allocate_channels(s: State) -> None:
    """Give free channels to heads that wait for them."""
    numbers = s.numbers
    kept = 0
    for k in range(numbers[LINK_COUNT]):
        link = s.link_list[k]
        askers = s.links[link].askers
        if askers and s.links[link].open:
            if numbers[SPECULATE]:
                guess_link(s, link)
            into = lowest(askers)
            asking = s.crosses[link << 3 | into].asking
            if askers & (askers - 1) == 0 and asking & (asking - 1) == 0:
                take_channel(s, link, into, lowest(asking), s.links[link].open)
            else:
                share_link(s, link)
        if s.links[link].askers and s.links[link].open:
            s.link_list[kept] = link
            kept += 1
        else:
            s.links[link].listed = 0
    numbers[LINK_COUNT] = kept


@inlined
def put_credit(s: State, slot: int, time: int) -> None:
    at = time & (s.numbers[WHEEL] - 1)
    k = s.counts[CREDIT, at]
    s.credits[at, k] = slot
    s.counts[CREDIT, at] = k + 1


@inlined
def put_flit(s: State, buffer: int, message: int, time: int) -> None:
    at = time & (s.numbers[WHEEL] - 1)
    k = s.counts[FLIT, at]
    s.flits[at, k, 0] = buffer
    s.flits[at, k, 1] = message
    s.counts[FLIT, at] = k + 1


@inlined
def send(s: State, link: int, into: int, channel: int, now: int) -> None:
    """A flit leaves an input's channel through the switch."""
    numbers = s.numbers
    shift = numbers[SHIFT]
    port = link & ~7 | into
    buffer = port << shift | channel
    b, k = s.buffers[buffer], s.links[link]
    slot = b.slot
    c = s.slots[slot]
    c.credits -= 1
    b.count -= 1
    b.left -= 1
    k.carried += 1
    if numbers[PACED]:
        k.free_at = max(k.free_at, now * PACE) + k.pace
    arrival = now + k.reach
    if link & 7 != 4:
        message = b.message if b.state == FRESH else -1
        put_flit(s, k.first_buffer + (slot - (link << shift)), message, arrival)
    else:
        put_credit(s, slot, arrival + k.back)
        if b.left == 0:
            s.messages[b.message].arrive = arrival
            at = arrival & (numbers[WHEEL] - 1)
            s.tails[at, s.counts[TAIL, at]] = b.message
            s.counts[TAIL, at] += 1
    upstream = s.ports[port].link
    put_credit(s, upstream << shift | channel, now + s.links[upstream].back)
    if b.left > 0:
        b.state = BODY
        if b.count > 0 and c.credits > 0:
            return
    else:
        c.owner = 0
        k.open |= 1 << (slot - (link << shift))
        if k.askers:
            list_link(s, link)
        if b.count > 0:
            following = b.first
            b.first = -1 if following == b.last else s.messages[following].behind
            new_head(s, buffer, following, now + 1)
        else:
            b.state = IDLE
    x = s.crosses[link << 3 | into]
    x.able &= ~(1 << channel)
    if x.able == 0:
        s.routers[link >> 3].requests &= ~(1 << ((link & 7) * 5 + into))


@compiled
def use_grant(s: State, link: int, into: int, now: int) -> None:
    """An input takes the grant of an output."""
    channels, shift = s.numbers[CHANNELS], s.numbers[SHIFT]
    output = link & 7
    port = link & ~7 | into
    p = s.ports[port]
    s.links[link].turn = 0 if into == 4 else into + 1
    p.turn = 0 if output == 4 else output + 1
    x = s.crosses[link << 3 | into]
    if x.able:
        channel = lowest_from(x.able, p.channel_turn)
        p.channel_turn = 0 if channel + 1 == channels else channel + 1
        send(s, link, into, channel, now)
    else:
        channel = lowest_from(x.guessing, p.channel_turn)
        p.channel_turn = 0 if channel + 1 == channels else channel + 1
        b = s.buffers[port << shift | channel]
        if b.state == FRESH and s.slots[b.slot].credits > 0:
            send(s, link, into, channel, now)


@inlined
def allocate_switches(s: State, now: int) -> None:
    """Let at most one flit leave each input of each router, and go to each output."""
    numbers = s.numbers
    kept = 0
    for k in range(numbers[ROUTER_COUNT]):
        router = s.router_list[k]
        r = s.routers[router]
        requests = r.requests | r.guesses
        if numbers[PACED]:
            for output in range(5):
                if s.links[router << 3 | output].free_at >= (now + 1) * PACE:
                    requests &= ~(31 << (5 * output))
        if requests & (requests - 1) == 0:
            if requests:
                bit = lowest(requests)
                output = (bit * 13) >> 6  # bit // 5
                use_grant(s, router << 3 | output, bit - 5 * output, now)
        else:
            grants = 0
            rest = requests
            output = 0
            while rest:
                if rest & 31:
                    into = s.turns[s.links[router << 3 | output].turn, rest & 31]
                    grants |= 1 << (into * 5 + output)
                rest >>= 5
                output += 1
            into = 0
            while grants:
                if grants & 31:
                    output = s.turns[s.ports[router << 3 | into].turn, grants & 31]
                    use_grant(s, router << 3 | output, into, now)
                grants >>= 5
                into += 1
        if r.requests:
            s.router_list[kept] = router
            kept += 1
        else:
            r.listed = 0
    numbers[ROUTER_COUNT] = kept


@inlined
def end_round(s: State) -> None:
    """Forget what was guessed; heads that got a channel ask for the switch from now on."""
    numbers = s.numbers
    for k in range(numbers[GUESS_COUNT]):
        link = s.guess[k]
        s.routers[link >> 3].guesses = 0
        for into in range(5):
            s.crosses[link << 3 | into].guessing = 0
    numbers[GUESS_COUNT] = 0
    for k in range(numbers[FRESH_COUNT]):
        b = s.buffers[s.fresh[k]]
        if b.state >= FRESH and b.count > 0 and s.slots[b.slot].credits > 0:
            set_able(s, s.fresh[k])
    numbers[FRESH_COUNT] = 0


@inlined
def free_channel(s: State, router: int, link: int) -> int:
    """The channel into which a core may send a head, or -1."""
    channels, shift = s.numbers[CHANNELS], s.numbers[SHIFT]
    channel = s.routers[router].channel
    for _ in range(channels):
        channel = 0 if channel + 1 == channels else channel + 1
        if s.links[link].open >> channel & 1 and s.slots[link << shift | channel].credits > 0:
            return channel
    return -1


@inlined
def inject(s: State, router: int, now: int) -> bool:
    """A core sends a flit if it can; returns whether it wants to be asked again next cycle."""
    numbers = s.numbers
    shift = numbers[SHIFT]
    r = s.routers[router]
    link = (numbers[ROUTERS] << 3) + router
    k = s.links[link]
    if numbers[PACED] and k.free_at >= (now + 1) * PACE:
        return True
    head = r.message < 0
    if head:
        if r.place >= r.place_end:
            return False
        number = s.queue[r.place]
        m = s.messages[number]
        if m.waits or m.ready > now:
            return False  # a credit came while the core sleeps
        channel = free_channel(s, router, link)
        if channel < 0:
            return False  # until a credit comes
        r.place += 1
        r.message = number
        r.left = m.flits
        r.channel = channel
        m.inject = now
        k.open &= ~(1 << channel)
        numbers[INJECTED] += 1
    slot = link << shift | r.channel
    if s.slots[slot].credits == 0:
        return False
    s.slots[slot].credits -= 1
    k.carried += 1
    if numbers[PACED]:
        k.free_at = max(k.free_at, now * PACE) + k.pace
    buffer = k.first_buffer + r.channel
    put_flit(s, buffer, r.message if head else -1, now + k.reach)
    r.left -= 1
    if r.left == 0:
        k.open |= 1 << r.channel
        r.message = -1
        if r.place >= r.place_end:
            return False
        m = s.messages[s.queue[r.place]]
        if m.waits:
            return False
        if m.ready > now + 1:
            sleep(s, router, m.ready)
            return False
    return True


@inlined
def inject_all(s: State, now: int) -> None:
    """Cores send."""
    numbers = s.numbers
    while numbers[SLEEPERS] and s.sleep_time[0] <= now:
        wake_source(s, pop_sleeper(s))
    kept = 0
    for k in range(numbers[SOURCE_COUNT]):
        router = s.source_list[k]
        if inject(s, router, now):
            s.source_list[kept] = router
            kept += 1
        else:
            s.routers[router].awake = 0
    numbers[SOURCE_COUNT] = kept


@inlined
def next_cycle(s: State, now: int) -> int:
    """The next cycle in which something can happen, or -1: nothing will."""
    numbers = s.numbers
    if numbers[ROUTER_COUNT] or numbers[LINK_COUNT] or numbers[SOURCE_COUNT]:
        return now
    first = s.sleep_time[0] if numbers[SLEEPERS] else -1
    for time in range(now, now + numbers[WHEEL]):
        at = time & (numbers[WHEEL] - 1)
        if (
            s.counts[FLIT, at] or s.counts[CREDIT, at] or s.counts[TAIL, at] or s.counts[ROUTE, at]
        ):
            return time if first < 0 else min(time, first)
    return first


@compiled
def advance(s: State, until: int, room: int) -> bool:
    """Simulate from cycle numbers[NOW] on to `until` (exclusive), or until `room` messages are in
    `news`. Returns whether something may still move."""
    numbers = s.numbers
    now = numbers[NOW]
    while now < until and numbers[NEWS_COUNT] < room:
        following = next_cycle(s, now)
        if following < 0:
            numbers[NOW] = now
            return False
        if following > now:
            now = min(following, until)
            continue
        receive(s, now)
        if numbers[LINK_COUNT]:
            allocate_channels(s)
        if numbers[ROUTER_COUNT]:
            allocate_switches(s, now)
        if numbers[FRESH_COUNT] or numbers[GUESS_COUNT]:
            end_round(s)
        inject_all(s, now)
        now += 1
    numbers[NOW] = now
    return True
