"""Reductions and broadcasts along the lines of a region, compiled: all lines of an instruction in
one call. The steps of a lane are those of `meshc.expand`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshc.collectives import tree
from meshc.emulator.compiled import compiled, inlined
from meshc.emulator.lanes.fleet import (
    ACTIONS,
    BYTES,
    MESSAGES,
    Fleet,
    enter,
    give,
    leave,
    sent,
    take,
    until_read,
)
from meshc.emulator.lanes.fleet import write as write_local
from meshc.emulator.lanes.wires import Floats, Ints, Way, Wires, leave_port, multicast, unicast
from meshc.ir.layout import Axis
from meshc.ir.placement import Region


class Lines(NamedTuple):
    """The lines of a region along an axis as numbers: core = base + place · step + line · pitch."""

    base: int
    step: int
    pitch: int
    places: int
    lines: int


class Level(NamedTuple):
    """One level of a tree: as `meshc.collectives.Tree`, children in two columns, -1 for none."""

    order: NDArray[np.int32]
    parent: NDArray[np.int32]
    child: NDArray[np.int32]


def lines_of(region: Region, axis: Axis, cols: int) -> Lines:
    """The lines of a region on a chip of so many columns."""
    base = region.row * cols + region.col
    if axis == "row":
        return Lines(base, cols, 1, region.rows, region.cols)
    return Lines(base, 1, cols, region.cols, region.rows)


def levels_of(places: int, groups: int) -> tuple[list[Level], int]:
    """The levels of the tree on a line, and its root."""
    t = tree(places, groups)
    found = []
    for order, parent, children in zip(t.order, t.parent, t.children, strict=True):
        child = np.full((places, 2), -1, np.int32)
        for lane, own in enumerate(children):
            child[lane, : len(own)] = own
        found.append(Level(np.array(order, np.int32), np.array(parent, np.int32), child))
    return found, t.root


@inlined
def meet(
    f: Fleet, w: Wires, way: Way, child: int, depart: float, size: int, first: int, end: int
) -> tuple[float, float]:
    """A child's message departs: when its port has taken and sent it. The child's step ends."""
    inject, injected = leave_port(w, way, child, size, depart)
    injected = max(injected, f.last[child] + 1)
    sent(f, child, first, end, depart, injected)
    leave(f, child)
    return inject, injected


@compiled
def set_up(f: Fleet, on: Lines, sizes: Ints, cycles: float) -> None:
    """Every lane makes ready for a collective."""
    for line in range(on.lines):
        if sizes[line] == 0:
            continue
        for place in range(on.places):
            core = on.base + line * on.pitch + place * on.step
            enter(f, core)
            f.clock[core] += cycles
            f.tally[ACTIONS] += 1
            leave(f, core)


@inlined
def pass_on(
    f: Fleet,
    core: int,
    size: int,
    depart: float,
    head: float,
    arrived: float,
    whole: float,
    one: float,
    first: int,
    end: int,
) -> None:
    """A lane combines a message as it arrives, from `head` to `arrived`, with its bytes [first,
    end), and hands the result over as it comes out. whole, one: cycles of all and of a flit."""
    if depart > f.clock[core]:
        f.held[core] += depart - f.clock[core]
    f.clock[core] = max(head, f.clock[core]) + f.message_cycles
    until_read(f, core, first, end)
    time = f.clock[core]
    f.sent[core] = time + one + f.message_cycles
    f.last[core] = max(max(arrived, time) + one, time + whole) + f.message_cycles
    f.clock[core] = f.last[core]
    f.work[core] += whole
    f.sram_bytes[core] += 3 * size
    f.tally[MESSAGES] += 1
    f.tally[BYTES] += size
    f.tally[ACTIONS] += 1


@compiled
def reduce_level(
    f: Fleet,
    w: Wires,
    way: Way,
    on: Lines,
    level: Level,
    sizes: Ints,
    combine_cycles: Floats,
    first_cycles: Floats,
    streams: bool,
    spans: Ints,
) -> None:
    """One level of a reduction on every line.

    sizes, combine_cycles: of each line, bytes of a message (0: the line has none) and cycles of
    one combine.   first_cycles: of its first flit.   streams: whether a lane with one child passes
    the result on while it comes.   spans: bytes of the two receive buffers and of the buffer
    itself, shape (3, 2).
    """
    for line in range(on.lines):
        size = sizes[line]
        if size == 0:
            continue
        start = on.base + line * on.pitch
        for k in range(len(level.order)):
            lane = level.order[k]
            if level.parent[lane] < 0 and level.child[lane, 0] < 0:
                continue
            core = start + lane * on.step
            enter(f, core)
            for number in range(2):
                if level.child[lane, number] >= 0:
                    until_read(f, core, spans[number, 0], spans[number, 1])
                    f.post[core, number] = f.clock[core]
        for k in range(len(level.order)):
            lane = level.order[k]
            if level.parent[lane] < 0 and level.child[lane, 0] < 0:
                continue
            core = start + lane * on.step
            one, two = level.child[lane, 0], level.child[lane, 1]
            depart_one = arrived_one = depart_two = arrived_two = 0.0
            late = 0  # whether the second child's message comes first
            if one >= 0:
                depart_one = max(f.sent[start + one * on.step], f.post[core, 0]) + f.sync_cycles
            if two >= 0:
                depart_two = max(f.sent[start + two * on.step], f.post[core, 1]) + f.sync_cycles
                there = depart_two + abs(two - lane) * w.hop
                late = 1 if there < depart_one + abs(one - lane) * w.hop else 0
            head = 0.0
            for turn in range(2):
                number = turn ^ late
                child = two if number == 1 else one
                if child < 0:
                    continue
                other = start + child * on.step
                depart = depart_two if number == 1 else depart_one
                inject, injected = meet(f, w, way, other, depart, size, spans[2, 0], spans[2, 1])
                head, arrived = unicast(w, way, other, core, size, inject, injected)
                if number == 1:
                    arrived_two = arrived
                else:
                    arrived_one = arrived
            if streams and one >= 0 and two < 0 and level.parent[lane] >= 0:
                pass_on(
                    f, core, size, depart_one, head, arrived_one, combine_cycles[line],
                    first_cycles[line], spans[2, 0], spans[2, 1],
                )  # fmt: skip
                continue
            if one >= 0:
                take(f, core, depart_one, arrived_one, size)
                write_local(f, core, spans[2, 0], spans[2, 1], combine_cycles[line])
                f.sram_bytes[core] += 3 * size
                f.tally[ACTIONS] += 2
            if two >= 0:
                take(f, core, depart_two, arrived_two, size)
                write_local(f, core, spans[2, 0], spans[2, 1], combine_cycles[line])
                f.sram_bytes[core] += 3 * size
                f.tally[ACTIONS] += 2
            if level.parent[lane] >= 0:
                give(f, core, size)
                f.tally[ACTIONS] += 1
                f.last[core] = -1.0
                f.sent[core] = f.clock[core]  # it leaves the step when its parent has come
            else:
                leave(f, core)


@compiled
def spread(
    f: Fleet,
    w: Wires,
    way: Way,
    on: Lines,
    root: int,
    sizes: Ints,
    first: int,
    end: int,
    targets: NDArray[np.int32],
    arrived: Floats,
) -> None:
    """One multicast from the root of every line to its other lanes.

    targets, arrived: room for one number per place.
    """
    for line in range(on.lines):
        size = sizes[line]
        if size == 0:
            continue
        start = on.base + line * on.pitch
        giver = start + root * on.step
        enter(f, giver)
        give(f, giver, size)
        depart = f.clock[giver]
        count = 0
        for place in range(on.places):
            if place == root:
                continue
            core = start + place * on.step
            enter(f, core)
            until_read(f, core, first, end)
            depart = max(depart, f.clock[core])
            targets[count] = core
            count += 1
        depart += f.sync_cycles
        inject, injected = leave_port(w, way, giver, size, depart)
        if count == 1:
            arrived[0] = unicast(w, way, giver, targets[0], size, inject, injected)[1]
        else:
            multicast(w, way, giver, targets, 0, count, size, inject, injected, arrived)
        sent(f, giver, first, end, depart, injected)
        leave(f, giver)
        for k in range(count):
            take(f, targets[k], depart, arrived[k], size)
            leave(f, targets[k])
        f.tally[ACTIONS] += count + 1


@compiled
def begin_descent(f: Fleet, on: Lines, root: int, sizes: Ints, first: int, end: int) -> None:
    """Every lane enters the step in which a result is passed down the tree."""
    for line in range(on.lines):
        if sizes[line] == 0:
            continue
        for place in range(on.places):
            core = on.base + line * on.pitch + place * on.step
            enter(f, core)
            if place != root:
                until_read(f, core, first, end)
            f.post[core, 0] = f.clock[core]


@compiled
def descend(
    f: Fleet, w: Wires, way: Way, on: Lines, level: Level, sizes: Ints, first: int, end: int
) -> None:
    """One level of passing a result down, parents before children."""
    for line in range(on.lines):
        size = sizes[line]
        if size == 0:
            continue
        start = on.base + line * on.pitch
        for k in range(len(level.order) - 1, -1, -1):
            lane = level.order[k]
            core = start + lane * on.step
            for number in range(2):
                child = level.child[lane, number]
                if child < 0:
                    continue
                other = start + child * on.step
                give(f, core, size)
                depart = max(f.clock[core], f.post[other, 0]) + f.sync_cycles
                inject, injected = leave_port(w, way, core, size, depart)
                sent(f, core, first, end, depart, injected)
                arrived = unicast(w, way, core, other, size, inject, injected)[1]
                take(f, other, depart, arrived, size)
                f.tally[ACTIONS] += 2


@compiled
def end_descent(f: Fleet, on: Lines, sizes: Ints) -> None:
    """Every lane leaves that step."""
    for line in range(on.lines):
        if sizes[line] == 0:
            continue
        for place in range(on.places):
            leave(f, on.base + line * on.pitch + place * on.step)
