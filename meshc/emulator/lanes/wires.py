"""Links and ports as arrays, and messages that walk over them, compiled.

The rules are those of `meshc.emulator.network`. Instructions are worked out one after the other
and not in order of time, so a server (a link or a port) remembers the last two intervals in
which it was taken: a message that is worked out later but comes earlier takes its place before or
between them if it fits, and waits only where it would overlap. Without contention this is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import compiled, inlined
from meshc.emulator.paths import Paths
from meshc.emulator.sizes import serial_cycles as _serial_cycles
from meshc.errors import InvariantError
from meshc.ir.chip import ChipSpec
from meshc.ir.program import Broadcast, Reduce, Transfer
from meshc.ir.routing import Route

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
HOPS, STAMP, BAD_SOURCE, BAD_TARGET, BAD_AT = range(5)  # places in Wires.counts
serial_cycles: Any = inlined(_serial_cycles)


class Wires(NamedTuple):
    """All servers of a chip. Times in cycles, rates in bytes per cycle.

    link: of shape (networks · rows · cols · 4, 4), the last axis being start and end of the last
    interval in which the server was taken and of the one before; inject, eject: of shape
    (networks · rows · cols, 4).   stamp, head, tail: of each router, the multicast that passed
    last, and when.   counts: byte-hops, stamps given, a forbidden way (source, target, dead core).
    """

    rows: int
    cols: int
    wraps: int
    one_way: int
    exchange: int
    contention: int
    seam_rows: int
    seam_cols: int
    ramp_in: float
    ramp_out: float
    hop: float
    seam_hop: float
    rate: float
    seam_rate: float
    inject_rate: Floats
    eject_rate: Floats
    dead_ends: NDArray[np.uint8]
    dead_routers: NDArray[np.uint8]
    link: Floats
    inject: Floats
    eject: Floats
    link_busy: Floats
    link_bytes: Ints
    stamp: Ints
    head: Floats
    tail: Floats
    counts: Ints


class Way(NamedTuple):
    """A route as numbers. policy: 0 along the row first, 1 along the column first, 2 by `core`."""

    policy: int
    network: int
    core: int


@inlined
def serve(slots: Floats, server: int, time: float, cycles: float, contention: int) -> float:
    """Take a server for so many cycles from `time` on, or as soon as it is free; returns when."""
    if contention == 0:
        return time
    start = time
    if start < slots[server, 3] and start + cycles > slots[server, 2]:
        start = slots[server, 3]
    if start < slots[server, 1] and start + cycles > slots[server, 0]:
        start = slots[server, 1]
    end = start + cycles
    if start >= slots[server, 1]:
        if start > slots[server, 1]:
            slots[server, 2], slots[server, 3] = slots[server, 0], slots[server, 1]
            slots[server, 0] = start
        slots[server, 1] = end
    elif start >= slots[server, 3]:
        if start > slots[server, 3]:
            slots[server, 2] = start
        slots[server, 3] = end
    return start


@inlined
def steps(w: Wires, start: int, end: int, size: int, network: int) -> int:
    """Signed number of hops along one axis."""
    if w.wraps == 0:
        return end - start
    forward = (end - start) % size
    if w.one_way != 0:
        if network % 2 == 0:
            return forward
        return forward - size if forward > 0 else 0
    return forward if 2 * forward <= size else forward - size


@inlined
def on_way(at: int, hops: int, size: int) -> int:
    """A position after so many signed hops; divisions would take longer than all the rest."""
    at += hops
    return at - size if at >= size else at + size if at < 0 else at


@compiled
def leg(
    w: Wires,
    network: int,
    source: int,
    target: int,
    policy: int,
    head: float,
    tail: float,
    size: int,
    stamp: int,
) -> tuple[float, float, int]:
    """A head that leaves the router `source` at `head`, its tail at `tail`: when they reach the
    router `target`, and the links taken. stamp: number of a multicast, whose branches share links;
    0 for other messages."""
    cols = w.cols
    if w.dead_ends[source] or w.dead_ends[target]:
        w.counts[BAD_SOURCE], w.counts[BAD_TARGET] = source + 1, target + 1
        w.counts[BAD_AT] = (source if w.dead_ends[source] else target) + 1
    if w.exchange != 0 and w.seam_rows == 0:
        return head, tail, 0
    row, col = source // cols, source % cols
    across = steps(w, col, target % cols, cols, network)
    down = steps(w, row, target // cols, w.rows, network)
    row_first = policy == 0
    if w.one_way != 0:
        row_first = network % 2 == 0
    first, second = (across, down) if row_first else (down, across)
    length, total = abs(first), abs(first) + abs(second)
    place = 0
    if stamp != 0:
        place = total
        while place > 0:
            one = min(place, length) * (1 if first > 0 else -1)
            two = max(place - length, 0) * (1 if second > 0 else -1)
            if row_first:
                at = on_way(row, two, w.rows) * cols + on_way(col, one, cols)
            else:
                at = on_way(row, one, w.rows) * cols + on_way(col, two, cols)
            if w.stamp[at] == stamp:
                head, tail = w.head[at], w.tail[at]
                break
            place -= 1
        one = min(place, length) * (1 if first > 0 else -1)
        two = max(place - length, 0) * (1 if second > 0 else -1)
        if row_first:
            row, col = on_way(row, two, w.rows), on_way(col, one, cols)
        else:
            row, col = on_way(row, one, w.rows), on_way(col, two, cols)
    plain = serial_cycles(size, w.rate)
    slow = serial_cycles(size, w.seam_rate)
    base = network * w.rows * cols
    taken = 0
    while place < total:
        along_row = row_first == (place < length)
        ahead = (first if place < length else second) > 0
        at = row * cols + col
        if w.dead_routers[at]:
            w.counts[BAD_SOURCE], w.counts[BAD_TARGET] = source + 1, target + 1
            w.counts[BAD_AT] = at + 1
        seam = False
        if along_row:
            to = col + (1 if ahead else -1)
            to = 0 if to == cols else cols - 1 if to < 0 else to
            if w.seam_rows != 0:
                seam = to // w.seam_cols != col // w.seam_cols
            col = to
            link = ((base + at) << 2) | (0 if ahead else 1)
        else:
            to = row + (1 if ahead else -1)
            to = 0 if to == w.rows else w.rows - 1 if to < 0 else to
            if w.seam_rows != 0:
                seam = to // w.seam_rows != row // w.seam_rows
            row = to
            link = ((base + at) << 2) | (2 if ahead else 3)
        place += 1
        if seam or w.exchange == 0:
            cycles = slow if seam else plain
            hop = w.seam_hop if seam else w.hop
            start = serve(w.link, link, head, cycles, w.contention)
            w.link_busy[link] += cycles
            w.link_bytes[link] += size
            tail = max(start + cycles, tail) + hop
            head = start + hop
            taken += 1
        if stamp != 0:
            at = row * cols + col
            w.stamp[at], w.head[at], w.tail[at] = stamp, head, tail
    return head, tail, taken


@inlined
def leave_port(w: Wires, way: Way, source: int, size: int, depart: float) -> tuple[float, float]:
    """When the port of a core takes a message, and when it has sent all of it."""
    cycles = serial_cycles(size, w.inject_rate[source])
    port = way.network * w.rows * w.cols + source
    start = serve(w.inject, port, depart, cycles, w.contention)
    return start, start + cycles


@inlined
def reach(
    w: Wires, way: Way, target: int, size: int, head: float, tail: float
) -> tuple[float, float]:
    """When head and tail of a message have arrived that reach the target's router."""
    cycles = serial_cycles(size, w.eject_rate[target])
    port = way.network * w.rows * w.cols + target
    start = serve(w.eject, port, head, cycles, w.contention)
    return start + w.ramp_out, max(start + cycles, tail) + w.ramp_out - 1


@compiled
def unicast(
    w: Wires, way: Way, source: int, target: int, size: int, inject: float, injected: float
) -> tuple[float, float]:
    """When head and tail of a message arrive that a port sends from `inject` to `injected`."""
    head, tail = inject + w.ramp_in, injected + w.ramp_in
    taken = 1 if w.exchange != 0 else 0
    policy = way.policy
    if policy == 2:
        head, tail, more = leg(w, way.network, source, way.core, 0, head, tail, size, 0)
        taken += more
        source, policy = way.core, 0
    head, tail, more = leg(w, way.network, source, target, policy, head, tail, size, 0)
    w.counts[HOPS] += (taken + more) * size
    return reach(w, way, target, size, head, tail)


@compiled
def multicast(
    w: Wires,
    way: Way,
    source: int,
    targets: NDArray[np.int32],
    first: int,
    last: int,
    size: int,
    inject: float,
    injected: float,
    arrived: Floats,
) -> None:
    """Fill arrived[first:last] with when one message arrives at each of these targets."""
    head, tail = inject + w.ramp_in, injected + w.ramp_in
    taken = 1 if w.exchange != 0 else 0
    policy, root = way.policy, source
    if policy == 2:
        head, tail, more = leg(w, way.network, source, way.core, 0, head, tail, size, 0)
        taken += more
        root, policy = way.core, 0
    w.counts[STAMP] += 1
    stamp = w.counts[STAMP]
    w.stamp[root], w.head[root], w.tail[root] = stamp, head, tail
    for k in range(first, last):
        target = targets[k]
        at, end, more = leg(w, way.network, root, target, policy, head, tail, size, stamp)
        taken += more
        arrived[k] = reach(w, way, target, size, at, end)[1]
    w.counts[HOPS] += taken * size


def make_wires(chip: ChipSpec, contention: bool) -> Wires:
    """A chip's network before anything was sent."""
    noc, seams = chip.noc, chip.seams
    plane = chip.rows * chip.cols
    paths = Paths(chip)
    exchange = noc.topology == "exchange"
    inject, eject = chip.port_rates()
    ends, routers = np.zeros(plane, np.uint8), np.zeros(plane, np.uint8)
    for core in chip.dead():
        ends[paths.index(core)] = 1
        routers[paths.index(core)] = not (chip.dead_cores_forward or exchange)
    ports = noc.networks * plane
    return Wires(
        rows=chip.rows,
        cols=chip.cols,
        wraps=int(noc.topology == "torus"),
        one_way=int(noc.one_way),
        exchange=int(exchange),
        contention=int(contention),
        seam_rows=seams.rows if seams else 0,
        seam_cols=seams.cols if seams else 0,
        ramp_in=float(noc.ramp_cycles[0] + (noc.hop_cycles if exchange else 0)),
        ramp_out=float(noc.ramp_cycles[1]),
        hop=float(noc.hop_cycles),
        seam_hop=float(seams.hop_cycles if seams else noc.hop_cycles),
        rate=float(noc.link_bytes_per_cycle),
        seam_rate=float(seams.link_bytes_per_cycle if seams else noc.link_bytes_per_cycle),
        inject_rate=np.array(inject),
        eject_rate=np.array(eject),
        dead_ends=ends,
        dead_routers=routers,
        link=np.zeros((ports * 4, 4)),
        inject=np.zeros((ports, 4)),
        eject=np.zeros((ports, 4)),
        link_busy=np.zeros(ports * 4),
        link_bytes=np.zeros(ports * 4, np.int64),
        stamp=np.zeros(plane, np.int64),
        head=np.zeros(plane),
        tail=np.zeros(plane),
        counts=np.zeros(5, np.int64),
    )


def way_of(chip: ChipSpec, instruction: Reduce | Broadcast | Transfer) -> Way:
    """An instruction's route; raises InvariantError for a network that the chip lacks."""
    route: Route = instruction.route
    if not 0 <= route.network < chip.noc.networks:
        raise InvariantError(
            f"A route names network {route.network}, but chip '{chip.name}' has "
            f"{chip.noc.networks}."
        )
    if route.policy == "via" and route.waypoint is not None:
        return Way(2, route.network, route.waypoint.row * chip.cols + route.waypoint.col)
    return Way(int(route.policy == "yx"), route.network, 0)


def check_ways(chip: ChipSpec, w: Wires) -> None:
    """InvariantError if a message went from, to or through a dead core."""
    if w.counts[BAD_AT]:
        source, target, dead = (
            "({},{})".format(*divmod(int(w.counts[k]) - 1, chip.cols))
            for k in (BAD_SOURCE, BAD_TARGET, BAD_AT)
        )
        raise InvariantError(
            f"The path from core {source} to core {target} uses core {dead}, which is dead on "
            f"chip '{chip.name}' and does not forward."
        )
