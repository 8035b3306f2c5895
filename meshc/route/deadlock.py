"""Deadlock check: the dependencies between channels, built hop by hop, must have no cycle.

A channel is (network, link, class). A message that holds one channel waits for the next one of its
path; if such waits form a circle, messages can block each other for ever. Classes are virtual
channels: after the wrap-around link of a torus's ring a message uses class 1 of that ring (the
dateline), and behind its waypoint it uses two further classes where the chip has virtual channels.
All messages are walked at once, one hop per round; nothing here is shared with the router's loads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshc.ir.chip import ChipSpec
from meshc.ir.routing import Route, Routing
from meshc.paths import EAST, NORTH, SOUTH, STEPS, WEST
from meshc.route.flow import Flow, Ints, Messages, messages

_CLASSES = 4
_TURNS = 4 * _CLASSES
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Channel(NamedTuple):
    """A link (the router it leaves, its direction) on a network, and the virtual channel class."""

    network: int
    row: int
    col: int
    direction: int
    virtual: int


def channel_cycle(flows: Sequence[Flow], routing: Routing, chip: ChipSpec) -> list[Channel] | None:
    """A circle of channels, each waited for by the holder of the one before; None if there is none.

    Raises KeyError for a flow that the routing lacks.
    """
    walked = {f.name: dependencies(messages(f, chip), routing.routes[f.name], chip) for f in flows}
    circles = find_cycles(walked, chip, 1)
    return [channel(c, chip) for c in circles[0]] if circles else None


def channel(code: int, chip: ChipSpec) -> Channel:
    """The channel of a code as `dependencies` uses it."""
    rest, virtual = divmod(code, _CLASSES)
    rest, direction = divmod(rest, 4)
    rest, col = divmod(rest, chip.cols)
    network, row = divmod(rest, chip.rows)
    return Channel(network, row, col, direction, virtual)


def dependencies(m: Messages, route: Route, chip: ChipSpec) -> Ints:
    """Distinct waits of a flow's messages, sorted.

    A wait is the code of the held channel × _TURNS + the direction and class of the wanted one,
    which is a link of the router that the held one leads to.
    """
    cores = chip.rows * chip.cols
    pair = m.source @ (chip.cols, 1) * cores + m.destination @ (chip.cols, 1)
    source, destination = np.divmod(np.unique(pair), cores)
    at = np.stack(np.divmod(source, chip.cols), 1)
    goal = np.stack(np.divmod(destination, chip.cols), 1)
    if chip.noc.topology == "exchange":
        return np.zeros(0, np.int64)
    legs = [goal]
    policy = route.policy
    if policy == "via":
        assert route.waypoint is not None
        way = np.array([[route.waypoint.row, route.waypoint.col]], np.int64)
        legs = [np.repeat(way, len(goal), 0), goal]
        policy = "xy"
    if chip.noc.one_way:
        policy = "xy" if route.network % 2 == 0 else "yx"
    held = np.full(len(at), -1, np.int64)
    seen = np.zeros(chip.rows * chip.cols * 4 * _CLASSES * _TURNS, bool)
    for number, target in enumerate(legs):
        further = 2 * number if chip.noc.virtual_channels > 1 else 0
        for axis in (1, 0) if policy == "xy" else (0, 1):
            _walk(at, target, axis, route.network, further, held, seen, chip)
    return np.flatnonzero(seen) + route.network * len(seen)


def _walk(
    at: Ints,
    target: Ints,
    axis: int,
    network: int,
    further: int,
    held: Ints,
    seen: Mask,
    chip: ChipSpec,
) -> None:
    """Move all messages along one axis to their target, in place; mark each wait as seen.

    held: channel of each message within the network, -1 before its first.
    """
    size = (chip.rows, chip.cols)[axis]
    forward = (target[:, axis] - at[:, axis]) % size
    if chip.noc.topology != "torus":
        positive = target[:, axis] > at[:, axis]
    elif chip.noc.one_way:
        positive = np.full(len(at), network % 2 == 0)
    else:
        positive = 2 * forward <= size
    plus, minus = (SOUTH, NORTH) if axis == 0 else (EAST, WEST)
    moving = np.flatnonzero(at[:, axis] != target[:, axis])
    row, col = at[moving, 0], at[moving, 1]
    along = row if axis == 0 else col
    goal = target[moving, axis]
    step = np.where(positive[moving], 1, -1)
    direction = np.where(positive[moving], plus, minus)
    before = held[moving]
    virtual = np.full(len(moving), further, np.int64)
    last = np.zeros(len(moving), np.int64)
    index = np.arange(len(moving))
    while len(index):
        after = along + step
        out = (after < 0) | (after >= size)
        if out.any():
            virtual = np.where(out, further + 1, virtual)
            after = after % size
        first = before >= 0
        turn = direction * _CLASSES + virtual
        if first.all():
            seen[before * _TURNS + turn] = True
        else:
            seen[before[first] * _TURNS + turn[first]] = True
        here_row, here_col = (along, col) if axis == 0 else (row, along)
        before = (here_row * chip.cols + here_col) * _TURNS + turn
        along = after
        there = along == goal
        if there.any():
            last[index[there]] = before[there]
            on = ~there
            index, along, goal, step = index[on], along[on], goal[on], step[on]
            direction, virtual, before = direction[on], virtual[on], before[on]
            row, col = row[on], col[on]
    at[moving, axis] = target[moving, axis]
    held[moving] = last


def wanted(waits: Ints, chip: ChipSpec) -> tuple[Ints, Ints]:
    """Codes of the held and of the wanted channel of each wait."""
    held, turn = np.divmod(waits, _TURNS)
    router, own = np.divmod(held, _TURNS)
    network, place = np.divmod(router, chip.rows * chip.cols)
    row, col = np.divmod(place, chip.cols)
    direction = own // _CLASSES
    down, right = np.array(STEPS)[direction].T
    row = (row + down) % chip.rows
    col = (col + right) % chip.cols
    return held, ((network * chip.rows + row) * chip.cols + col) * _TURNS + turn


def _distinct(parts: Sequence[Ints]) -> Ints:
    """All values once, sorted; the parts are so themselves."""
    if len(parts) < 2:
        return parts[0] if parts else np.zeros(0, np.int64)
    joined = np.sort(np.concatenate(parts), kind="stable")
    new = np.ones(len(joined), bool)
    new[1:] = joined[1:] != joined[:-1]
    return joined[new]


def find_cycles(walked: Mapping[str, Ints], chip: ChipSpec, most: int) -> list[list[int]]:
    """Circles of channel codes in the union of the flows' waits, each the shortest of its channel.

    At most `most` of them; none only when there is none.
    """
    held, next_ = wanted(_distinct([e for e in walked.values() if len(e)]), chip)
    nodes = _distinct([_distinct([held]), np.sort(next_)])
    first, second = np.searchsorted(nodes, held), np.searchsorted(nodes, next_)
    left = np.ones(len(nodes), bool)
    _peel(first, second, left)
    if not left.any():
        return []
    order = np.argsort(second, kind="stable")
    _peel(second[order], first[order], left)
    inside = left[first] & left[second]
    ahead: dict[int, list[int]] = {}
    for a, b in zip(first[inside].tolist(), second[inside].tolist(), strict=True):
        ahead.setdefault(a, []).append(b)
    circles: dict[tuple[int, ...], list[int]] = {}
    names = sorted(ahead)
    tries = names[:: max(1, len(names) // (2 * most))]
    for node in [*tries, *names]:
        circle = _shortest_circle(ahead, node)
        if circle is not None:
            circles.setdefault(tuple(sorted(circle)), [int(nodes[n]) for n in circle])
        if len(circles) >= most or (node == tries[-1] and circles):
            break
    return list(circles.values())


def _peel(first: Ints, second: Ints, left: Mask) -> None:
    """Take away, round by round, the nodes that no arc from a node left leads to.

    first, second: arcs, sorted by first.   left: changed in place.
    """
    inside = left[first] & left[second]
    waiting = np.bincount(second[inside], minlength=len(left))
    begin = np.searchsorted(first, np.arange(len(left) + 1))
    ready = np.flatnonzero(left & (waiting == 0))
    while len(ready):
        left[ready] = False
        counts = begin[ready + 1] - begin[ready]
        offset = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        targets = second[np.repeat(begin[ready], counts) + offset]
        targets = targets[left[targets]]
        np.subtract.at(waiting, targets, 1)
        reached = np.unique(targets)
        ready = reached[waiting[reached] == 0]


def _shortest_circle(ahead: Mapping[int, Sequence[int]], node: int) -> list[int] | None:
    """The shortest way from a node back to itself."""
    before = {node: node}
    front = [node]
    while front:
        reached = []
        for a in front:
            for b in ahead.get(a, ()):
                if b == node:
                    trail = [a]
                    while trail[-1] != node:
                        trail.append(before[trail[-1]])
                    return trail[::-1]
                if b not in before:
                    before[b] = a
                    reached.append(b)
        front = reached
    return None


def holders(circle: Sequence[int], walked: Mapping[str, Ints]) -> list[str]:
    """Flows that together cause the circle: for each of its waits, one that has it."""
    chosen: list[str] = []
    for held, next_ in zip(circle, [*circle[1:], circle[0]], strict=True):
        wait = held * _TURNS + next_ % _TURNS
        by = []
        for name, waits in walked.items():
            at = int(np.searchsorted(waits, wait))
            if at < len(waits) and waits[at] == wait:
                by.append(name)
        if not any(name in chosen for name in by):
            chosen.append(by[0])
    return chosen
