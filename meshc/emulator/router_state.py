"""What routers with finite buffers are made of: records whose rules are in `router.py`.

Indices: link = router · 8 + output; port = router · 8 + input; the links of cores into their
routers follow behind, `routers · 8 + router`; cross = link · 8 + input; buffer = port · 2^shift +
channel; slot = link · 2^shift + channel, which is the buffer downstream as its sender sees it.

Records have sizes that are powers of two and indices have no sign, because that makes the
compiled code faster by half.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.waits import Waits

Records = Any  # a structured array; compiled code has its fields as attributes

IDLE, WAITING, FRESH, BODY = 0, 1, 2, 3  # states of a buffer; FRESH: the head has a channel
PACE = 1 << 20  # one cycle, where links keep count of fractions
NONE = 0xFFFFFFFF  # no index


def _record(longs: str, shorts: str, signed: str = "") -> np.dtype[np.void]:
    """A record of 64-bit signed, 32-bit unsigned and 32-bit signed fields, padded."""
    kinds = ((longs, np.int64), (shorts, np.uint32), (signed, np.int32))
    fields = [(name, kind) for names, kind in kinds for name in names.split()]
    size = np.dtype(fields).itemsize
    pad = (1 << (size - 1).bit_length()) - size
    return np.dtype(fields + [(f"pad{k}", np.uint32) for k in range(pad // 4)])


# speculate: heads ask for channel and switch at once.   route_cycles: cycles of a head before it
# asks for a channel.   lag, linger: cycles of a ramp before the first and behind the last buffer.
# lower: mask of the channels before the dateline of a torus, 0 where there is
# none.   paced: some link takes more than a cycle per flit.   wheel: its cycles.
# The counts say how much of each list is used; free_flight is the first unused one.   hungry:
# routers whose next message is not there yet.
CLOCK = _record(
    "now",
    "routers channels shift depth speculate route_cycles lag linger lower paced wheel router_count "
    "link_count source_count fresh_count guess_count news_count sleepers free_flight free_flights "
    "hungry",
    "injected delivered",
)
# A message that is in the network.   ready: from when it may leave.   behind: the next head in the
# same buffer.
FLIGHT = _record("ready inject", "number source target flits behind")
# A message that has arrived.
NEWS = _record("ready inject arrive", "number source target flits")
# reach: cycles from allocation of the switch to arrival.   back: from allocation of the switch
# behind the link to the use of its credit.   open: mask of channels that may be taken.
# first_buffer: of the port behind it.   askers: mask of inputs whose heads may take the lower
# channels (or all), late_askers: of those that have crossed the dateline and take the upper ones.
LINK = _record("", "open askers late_askers reach back first_buffer listed turn")
# Links that may take more than a cycle per flit.   pace: time of a flit, in 1/PACE cycles.
LANE = _record("free_at pace", "")
# requests, guesses: bit output · 5 + input.   row_first, wraps, sense: how messages are routed;
# sense 0 takes the shorter way.   place … place_end: its core's messages that have not left.
# flight, left, channel: what its core sends; left is 0 between messages.
ROUTER = _record(
    "",
    "requests guesses listed row col row_first wraps rows cols flight left channel awake place "
    "place_end",
    "sense",
)
# back: as of the link in front of it.
PORT = _record("", "link back turn channel_turn")
# owner: the buffer that sends into it, plus 1; 0: none.   spent: of its credits, of which there are
# clock.depth; below 0 where there are more. All records but links and routers begin as zeros, so
# that a large chip takes memory only where something happens.
SLOT = _record("", "owner turn", "spent")
# left: flits of the flight in front that have not left.   first, last: heads behind it; first is
# plus 1, 0: none.
BUFFER = _record("", "count left flight state slot turn first last")


class State(NamedTuple):
    """All that changes and all tables; `meshc.emulator.flits` makes it."""

    clock: Records  # one record
    turns: NDArray[np.uint8]  # start · 32 + mask: the first set bit at or after a position
    messages: Records
    rest: NDArray[np.uint32]  # by router: messages that follow and are not there yet
    waits: Waits
    flights: Records
    links: Records
    routers: Records
    ports: Records
    lanes: Records
    slots: Records
    buffers: Records
    # Masks of channels by cross: those that are able to send, those whose heads ask for a channel
    # (before and behind the dateline), those whose heads ask for the switch without a channel.
    able: NDArray[np.uint32]
    asking: NDArray[np.uint32]
    late_asking: NDArray[np.uint32]
    guessing: NDArray[np.uint32]
    router_list: NDArray[np.uint32]  # routers where something asks for the switch
    link_list: NDArray[np.uint32]  # links with free channels and heads that wait for them
    source_list: NDArray[np.uint32]  # routers whose cores inject
    fresh: NDArray[np.uint32]  # buffers that got a channel in this cycle
    guess: NDArray[np.uint32]  # links whose heads speculate in this cycle
    news: Records  # messages that have arrived
    chosen: NDArray[np.uint32]  # (64,): the head that each channel of a link chose
    sleep_time: NDArray[np.int64]  # heap of cores that wait for a time
    sleeper: NDArray[np.uint32]
    # The wheel of what is on its way, by cycle modulo its size: each cycle's part begins at a
    # multiple of 8 (credits 8, tails 1, routes 16) · routers and ends at
    flit_end: NDArray[np.uint32]
    flit_buffer: NDArray[np.uint32]
    flit_flight: NDArray[np.uint32]  # of a head, or NONE
    credit_end: NDArray[np.uint32]
    credit_slot: NDArray[np.uint32]
    tail_end: NDArray[np.uint32]
    tail_flight: NDArray[np.uint32]
    route_end: NDArray[np.uint32]
    route_buffer: NDArray[np.uint32]
