"""Transfers, compiled: all messages of one instruction, which do not depend on each other.

Heads are served in order of time, as in `meshc.emulator.network`, where the transfer has few
links to serve; in larger ones message after message in the order in which they leave.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import compiled, inlined
from meshc.emulator.lanes.fleet import ACTIONS, Fleet, enter, give, leave, sent, take, until_read
from meshc.emulator.lanes.fleet import write as write_local
from meshc.emulator.lanes.wires import (
    HOPS,
    STAMP,
    Floats,
    Ints,
    Way,
    Wires,
    leave_port,
    multicast,
    reach,
    serial_cycles,
    serve,
    steps,
    unicast,
)

Shorts = NDArray[np.int32]


class Mail(NamedTuple):
    """The messages of `meshc.emulator.lanes.deliveries.Deliveries`, and their times: when each
    departs, its port takes it and has sent it, and when each delivery arrives.

    cores: all that take part.   copier, copy_bytes, copy_cycles: copies of the cores themselves.
    """

    cores: Shorts
    giver: Shorts
    size: Ints
    first: Ints
    taker: Shorts
    copier: Shorts
    copy_bytes: Ints
    copy_cycles: Floats
    inbox: Shorts
    inbox_core: Shorts
    inbox_first: Ints
    message_of: Shorts
    depart: Floats
    inject: Floats
    injected: Floats
    arrived: Floats

    def moved(self, cores: int) -> Mail:
        """The same messages between cores of other numbers."""
        if cores == 0:
            return self
        step = np.int32(cores)
        return self._replace(
            cores=self.cores + step,
            giver=self.giver + step,
            taker=self.taker + step,
            copier=self.copier + step,
            inbox_core=self.inbox_core + step,
        )


class Trees(NamedTuple):
    """Links of all messages as trees, and the heads on their way.

    By node: its link, its first child and its parent's next one, the first delivery that leaves
    the network behind it, and the tail's time. root, local: of each message, its first node and
    the first delivery on its own router.   next_out: the next delivery behind the same node.
    node_at: of each router, the node that leads there.   sizes: how many nodes there are, and heads
    on their way.   time, message, place: the heap, whose
    places are nodes, or nodes' number + 1 + a delivery, or -1 for a port.
    """

    link: Ints
    child: Shorts
    next: Shorts
    out: Shorts
    tail: Floats
    root: Shorts
    local: Shorts
    next_out: Shorts
    node_at: Shorts
    sizes: Ints
    time: Floats
    message: Shorts
    place: Ints
    end: Floats


@compiled
def open_step(f: Fleet, m: Mail, target_first: int, target_end: int) -> None:
    """All cores enter the step and post their receives."""
    for k in range(len(m.cores)):
        enter(f, m.cores[k])
        f.post[m.cores[k], 0] = f.clock[m.cores[k]]
    for k in range(len(m.inbox_core)):
        core = m.inbox_core[k]
        until_read(f, core, target_first, target_end)
        f.post[core, 0] = f.clock[core]


@compiled
def hand_over(f: Fleet, w: Wires, way: Way, m: Mail, first: int, end: int) -> None:
    """Every giver hands over its messages; without overlap they leave one after the other."""
    for k in range(len(m.giver)):
        core = m.giver[k]
        give(f, core, m.size[k])
        f.tally[ACTIONS] += 1
        ready = f.clock[core]
        for j in range(m.first[k], m.first[k + 1]):
            ready = max(ready, f.post[m.taker[j], 0])
        m.depart[k] = ready + f.sync_cycles
        if f.overlap == 0:
            m.inject[k], m.injected[k] = leave_port(w, way, core, m.size[k], m.depart[k])
            sent(f, core, first, end, m.depart[k], m.injected[k])


@compiled
def close_step(f: Fleet, m: Mail, first: int, end: int, target_first: int, target_end: int) -> None:
    """Sends may still read; then copies and receives, in order."""
    if f.overlap != 0:
        for k in range(len(m.giver)):
            sent(f, m.giver[k], first, end, m.depart[k], m.injected[k])
    for k in range(len(m.copier)):
        core = m.copier[k]
        write_local(f, core, target_first, target_end, m.copy_cycles[k])
        f.sram_bytes[core] += 2 * m.copy_bytes[k]
        f.tally[ACTIONS] += 1
    for k in range(len(m.inbox_core)):
        core = m.inbox_core[k]
        for j in range(m.inbox_first[k], m.inbox_first[k + 1]):
            delivery = m.inbox[j]
            message = m.message_of[delivery]
            take(f, core, m.depart[message], m.arrived[delivery], m.size[message])
            f.tally[ACTIONS] += 1
    for k in range(len(m.cores)):
        leave(f, m.cores[k])


@compiled
def leave_ports(w: Wires, way: Way, m: Mail, order: Ints) -> None:
    """Ports take messages in order."""
    for k in range(len(order)):
        n = order[k]
        m.inject[n], m.injected[n] = leave_port(w, way, m.giver[n], m.size[n], m.depart[n])


@compiled
def one_by_one(w: Wires, way: Way, m: Mail, order: Ints) -> None:
    """Messages that have left their ports, one after the other."""
    for k in range(len(order)):
        n = order[k]
        first, last = m.first[n], m.first[n + 1]
        if last == first + 1:
            m.arrived[first] = unicast(
                w, way, m.giver[n], m.taker[first], m.size[n], m.inject[n], m.injected[n]
            )[1]
        else:
            multicast(
                w,
                way,
                m.giver[n],
                m.taker,
                first,
                last,
                m.size[n],
                m.inject[n],
                m.injected[n],
                m.arrived,
            )


@compiled
def count_hops(w: Wires, way: Way, m: Mail, limit: int) -> int:
    """An upper bound of the links that all messages take, as far as `limit`."""
    total = 0
    for n in range(len(m.giver)):
        for k in range(m.first[n], m.first[n + 1]):
            a, b = m.giver[n], m.taker[k]
            if way.policy == 2:
                total += abs(a // w.cols - way.core // w.cols) + abs(a % w.cols - way.core % w.cols)
                a = way.core
            total += abs(steps(w, a // w.cols, b // w.cols, w.rows, way.network))
            total += abs(steps(w, a % w.cols, b % w.cols, w.cols, way.network))
        if total > limit:
            return total
    return total


@inlined
def push(t: Trees, time: float, message: int, place: int) -> None:
    """A head that comes to a node, an exit or a port."""
    at = t.sizes[1]
    t.sizes[1] += 1
    while at > 0:
        up = (at - 1) >> 1
        if t.time[up] < time or (t.time[up] == time and t.message[up] <= message):
            break
        t.time[at], t.message[at], t.place[at] = t.time[up], t.message[up], t.place[up]
        at = up
    t.time[at], t.message[at], t.place[at] = time, message, place


@inlined
def pop(t: Trees) -> None:
    """Drop the first head."""
    size = t.sizes[1] - 1
    t.sizes[1] = size
    time, message, place = t.time[size], t.message[size], t.place[size]
    at = 0
    while 2 * at + 1 < size:
        down = 2 * at + 1
        if down + 1 < size and (
            t.time[down + 1] < t.time[down]
            or (t.time[down + 1] == t.time[down] and t.message[down + 1] < t.message[down])
        ):
            down += 1
        if time < t.time[down] or (time == t.time[down] and message <= t.message[down]):
            break
        t.time[at], t.message[at], t.place[at] = t.time[down], t.message[down], t.place[down]
        at = down
    t.time[at], t.message[at], t.place[at] = time, message, place


@compiled
def grow(
    w: Wires, t: Trees, way: Way, message: int, source: int, target: int, policy: int, node: int
) -> int:
    """Add the way to a target to a message's tree, from `node` (-1: its root) on; returns the last
    node."""
    cols = w.cols
    if w.dead_ends[source] or w.dead_ends[target]:
        w.counts[2], w.counts[3] = source + 1, target + 1
        w.counts[4] = (source if w.dead_ends[source] else target) + 1
    if w.exchange != 0 and w.seam_rows == 0:
        return node
    row, col = source // cols, source % cols
    across = steps(w, col, target % cols, cols, way.network)
    down = steps(w, row, target // cols, w.rows, way.network)
    row_first = policy == 0
    if w.one_way != 0:
        row_first = way.network % 2 == 0
    first, second = (across, down) if row_first else (down, across)
    length = abs(first)
    base = way.network * w.rows * cols
    stamp = w.counts[STAMP]
    for place in range(length + abs(second)):
        ahead = (first if place < length else second) > 0
        at = row * cols + col
        if w.dead_routers[at]:
            w.counts[2], w.counts[3], w.counts[4] = source + 1, target + 1, at + 1
        seam = False
        if row_first == (place < length):
            to = (col + (1 if ahead else -1)) % cols
            if w.seam_rows != 0:
                seam = to // w.seam_cols != col // w.seam_cols
            col = to
            link = ((base + at) << 2) | (0 if ahead else 1)
        else:
            to = (row + (1 if ahead else -1)) % w.rows
            if w.seam_rows != 0:
                seam = to // w.seam_rows != row // w.seam_rows
            row = to
            link = ((base + at) << 2) | (2 if ahead else 3)
        here = row * cols + col
        if w.stamp[here] == stamp:
            node = t.node_at[here]
            continue
        if seam or w.exchange == 0:
            new = t.sizes[0]
            t.sizes[0] += 1
            t.link[new] = link << 1 | (1 if seam else 0)
            t.child[new], t.out[new] = -1, -1
            if node < 0:
                t.next[new] = t.root[message]
                t.root[message] = new
            else:
                t.next[new] = t.child[node]
                t.child[node] = new
            node = new
        w.stamp[here] = stamp
        t.node_at[here] = node
    return node


@compiled
def plant(w: Wires, t: Trees, way: Way, m: Mail) -> None:
    """The trees of all messages."""
    t.sizes[0] = 0
    for n in range(len(m.giver)):
        t.root[n], t.local[n] = -1, -1
        source, policy, top = m.giver[n], way.policy, -1
        begin = t.sizes[0]
        if policy == 2:
            w.counts[STAMP] += 1
            top = grow(w, t, way, n, source, way.core, 0, -1)
            source, policy = way.core, 0
        w.counts[STAMP] += 1
        for k in range(m.first[n], m.first[n + 1]):
            node = grow(w, t, way, n, source, m.taker[k], policy, top)
            if node < 0:
                t.next_out[k] = t.local[n]
                t.local[n] = k
            else:
                t.next_out[k] = t.out[node]
                t.out[node] = k
        hops = t.sizes[0] - begin + (1 if w.exchange != 0 else 0)
        w.counts[HOPS] += hops * m.size[n]


@inlined
def go_on(t: Trees, time: float, tail: float, message: int, node: int, out: int) -> None:
    """A head goes to all links and exits from here."""
    while node >= 0:
        t.tail[node] = tail
        push(t, time, message, node)
        node = t.next[node]
    while out >= 0:
        t.end[out] = tail
        push(t, time, message, t.sizes[0] + out)
        out = t.next_out[out]


@compiled
def in_time(w: Wires, t: Trees, way: Way, m: Mail, injected: int) -> None:
    """Serve all heads in order of time. injected: whether ports have taken the messages."""
    t.sizes[1] = 0
    for n in range(len(m.giver)):
        push(t, m.inject[n] if injected != 0 else m.depart[n], n, -1)
    while t.sizes[1] > 0:
        time, n, place = t.time[0], t.message[0], t.place[0]
        pop(t)
        size = m.size[n]
        if place < 0:
            if injected == 0:
                m.inject[n], m.injected[n] = leave_port(w, way, m.giver[n], size, time)
            tail = m.injected[n] + w.ramp_in
            go_on(t, m.inject[n] + w.ramp_in, tail, n, t.root[n], t.local[n])
        elif place < t.sizes[0]:
            link, seam = t.link[place] >> 1, t.link[place] & 1
            cycles = serial_cycles(size, w.seam_rate if seam != 0 else w.rate)
            hop = w.seam_hop if seam != 0 else w.hop
            start = serve(w.link, link, time, cycles, w.contention)
            w.link_busy[link] += cycles
            w.link_bytes[link] += size
            tail = max(start + cycles, t.tail[place]) + hop
            go_on(t, start + hop, tail, n, t.child[place], t.out[place])
        else:
            k = place - t.sizes[0]
            m.arrived[k] = reach(w, way, m.taker[k], size, time, t.end[k])[1]


def make_trees(mail: Mail, nodes: int, cores: int) -> Trees:
    """Room for so many links."""
    messages, takers = len(mail.giver), len(mail.taker)
    heap = messages + nodes + takers + 1
    return Trees(
        np.empty(nodes + 1, np.int64),
        np.empty(nodes + 1, np.int32),
        np.empty(nodes + 1, np.int32),
        np.empty(nodes + 1, np.int32),
        np.empty(nodes + 1),
        np.empty(messages, np.int32),
        np.empty(messages, np.int32),
        np.empty(takers, np.int32),
        np.empty(cores, np.int32),
        np.zeros(2, np.int64),
        np.empty(heap),
        np.empty(heap, np.int32),
        np.empty(heap, np.int64),
        np.empty(takers),
    )


def send_all(f: Fleet, w: Wires, way: Way, mail: Mail, most_hops: int) -> None:
    """The network's part of a transfer whose messages have been handed over.

    most_hops: with more links than this, messages go one by one.
    """
    if not len(mail.giver):
        return
    hops = count_hops(w, way, mail, most_hops) if w.contention else most_hops + 1
    if hops <= most_hops:
        trees = make_trees(mail, hops, len(w.stamp))
        plant(w, trees, way, mail)
        in_time(w, trees, way, mail, int(not f.overlap))
        return
    if f.overlap:
        leave_ports(w, way, mail, np.argsort(mail.depart, kind="stable"))
    one_by_one(w, way, mail, np.argsort(mail.inject, kind="stable"))
