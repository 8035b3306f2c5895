"""Messages that wait for others to arrive: some twenty bytes for each message, and none for any
where nothing waits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import compiled, whole
from meshc.emulator.spool import Spool

NONE = 0xFFFFFFFF  # no message


class Waits(NamedTuple):
    """By message number.

    counts: for how many messages it still waits.   release: when the last one of them arrived.
    start: wake[start[n] : start[n + 1]] wait for message n, and begin at the routers `wake_source`.
    """

    counts: NDArray[np.int32]
    release: NDArray[np.float64]
    start: NDArray[np.uint32]
    wake: NDArray[np.uint32]
    wake_source: NDArray[np.uint32]


def no_waits() -> Waits:
    """Nothing waits."""
    none = np.zeros(0, np.uint32)
    return Waits(np.zeros(0, np.int32), np.zeros(0), none, none, none)


def make_waits(later: NDArray[Any], earlier: NDArray[Any], sources: NDArray[Any]) -> Waits:
    """From pairs: `later[k]` waits for `earlier[k]`. `sources`: the router of each message."""
    if not len(later):
        return no_waits()
    start = np.zeros(len(sources) + 1, np.uint32)
    wake = np.zeros(len(later), np.uint32)
    counts = np.zeros(len(sources), np.int32)
    _group(earlier, later, start, wake, counts)
    return Waits(counts, np.zeros(len(sources)), start, wake, sources[wake].astype(np.uint32))


@compiled
def _group(earlier: Any, later: Any, start: Any, wake: Any, counts: Any) -> None:
    for k in range(len(earlier)):
        start[earlier[k] + 1] += 1
        counts[later[k]] += 1
    for k in range(1, len(start)):
        start[k] += start[k - 1]
    for k in range(len(earlier)):  # moves each start on to its end, which is the next one's start
        place = start[earlier[k]]
        wake[place] = later[k]
        start[earlier[k]] = place + 1
    for k in range(len(start) - 1, 0, -1):
        start[k] = start[k - 1]
    start[0] = 0


def unloaded_arrivals(spool: Spool, alone: NDArray[np.float64], waits: Waits) -> Any:
    """When each message would arrive if no other were in its way: messages of a source still
    begin in order, and after those that they wait for.

    alone: cycles of each message in an empty network.
    """
    count = len(alone)
    following = np.full(count, NONE, np.uint32)
    arrive = np.zeros(count)
    before: Any = np.zeros(0, np.uint32), np.zeros(0, np.uint32)
    for records in spool.chunks():
        source = np.concatenate([before[0], records["source"]])
        number = np.concatenate([before[1], records["number"]])
        same = source[1:] == source[:-1]
        following[number[:-1][same]] = number[1:][same]
        before = source[-1:], number[-1:]
        arrive[records["number"]] = records["ready"]
    waiting = waits.counts.copy()
    waiting[following[following != NONE]] += 1
    _arrive_unloaded(waiting, following, waits.start, waits.wake, alone, arrive)
    return arrive


@compiled
def _arrive_unloaded(
    waiting: Any, following: Any, start: Any, wake: Any, alone: Any, arrive: Any
) -> None:
    """Turn the times at which messages are ready into those at which they arrive. Where nothing is
    left to wait for, `waiting` becomes the list of the messages that are free."""
    free = whole(NONE)
    for k in range(len(waiting)):
        if waiting[k] == 0:
            waiting[k] = -1 - whole(free) if free != NONE else 0
            free = k
    while free != NONE:
        message = free
        free = -1 - whole(waiting[message]) if waiting[message] < 0 else whole(NONE)
        begin = arrive[message]
        arrive[message] = begin + alone[message]
        for k in range(start[message], start[message + 1]):
            other = whole(wake[k])
            arrive[other] = max(arrive[other], arrive[message])
            waiting[other] -= 1
            if waiting[other] == 0:
                waiting[other] = -1 - free if free != NONE else 0
                free = other
        other = whole(following[message])
        if other != NONE:
            arrive[other] = max(arrive[other], begin)
            waiting[other] -= 1
            if waiting[other] == 0:
                waiting[other] = -1 - free if free != NONE else 0
                free = other
