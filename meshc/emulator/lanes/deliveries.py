"""Who sends what to whom in a Transfer, for all lanes at once: the rules of `meshc.expand` as
arrays."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import compiled
from meshc.ir.dtypes import size_bytes
from meshc.ir.layout import AXES, Axis, Split
from meshc.ir.placement import Region
from meshc.ir.program import Buffer

Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]


@dataclass(frozen=True)
class Deliveries:
    """The messages of a transfer, in the order of their givers and, within a giver, of sending.

    Cores are row · cols + col of the chip. `giver` and `size` (bytes) are by message, `first` by
    message and one more; `taker`[first[m]:first[m + 1]] get message m. `copier` and `copied` are
    the lanes that copy so many bytes themselves, one entry per copy. `inbox` lists deliveries by
    taker: inbox[inbox_first[k]:inbox_first[k + 1]] are those of inbox_core[k], in order. `cores`
    are all that have something to do.
    """

    giver: Shorts
    size: Ints
    first: Ints
    taker: Shorts
    copier: Shorts
    copied: Ints
    inbox: Shorts
    inbox_core: Shorts
    inbox_first: Ints
    cores: Shorts


@dataclass
class _Wishes:
    """Rows: a taker (its lane), a giver's coordinates (-1: the taker's own) and the first element
    and the number of elements of each dimension."""

    taker: Ints
    row: Ints
    col: Ints
    parts: list[Ints]


def _lane(split: Split, row: Ints, col: Ints, rows: int, cols: int) -> Ints:
    """Index along a split of lanes at (row, col)."""
    index = np.zeros_like(row)
    for axis in split.axes:
        index = index * (rows if axis == "row" else cols) + (row if axis == "row" else col)
    return index


def _wanted(
    split: Split, n: int, row: Ints, col: Ints, rows: int, cols: int
) -> tuple[Ints, Ints, int]:
    """First element, count and step of what lanes hold of a dimension."""
    if not split.axes:
        return np.zeros_like(row), np.full_like(row, n), 1
    lane = _lane(split, row, col, rows, cols)
    if split.cyclic:
        lanes = split.lanes(rows, cols)
        start = np.minimum(lane, n)
        return start, (n - start + lanes - 1) // lanes, lanes
    start = np.minimum(lane * split.block, n)
    return start, np.minimum((lane + 1) * split.block, n) - start, 1


def _options(
    split: Split, n: int, start: Ints, count: Ints, step: int, rows: int, cols: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """For each range (start, count, step): lanes along `split` that hold some of it, in order.

    Returns the range's number, the lane, the first common element and their count.
    """
    lanes = split.lanes(rows, cols)
    here = np.flatnonzero(count > 0)
    start, count = start[here], count[here]
    last = start + (count - 1) * step
    if split.cyclic:
        low, high = np.zeros_like(start), np.full_like(start, min(lanes, n) - 1)
    else:
        low, high = start // split.block, last // split.block
    many = high - low + 1
    which = np.repeat(np.arange(len(here)), many)
    lane = np.arange(len(which)) - np.repeat(np.cumsum(many) - many, many) + low[which]
    start, count, last = start[which], count[which], last[which]
    if split.cyclic:
        # start + k · step ≡ lane (mod lanes): k ≡ k0 (mod lanes / divisor)
        divisor = gcd(step, lanes)
        modulus = lanes // divisor
        inverse = pow(step // divisor, -1, modulus) if modulus > 1 else 0
        apart = lane - start
        k0 = apart // divisor * inverse % modulus if modulus > 1 else np.zeros_like(apart)
        common = np.where(
            (apart % divisor == 0) & (k0 < count), (count - k0 + modulus - 1) // modulus, 0
        )
        first = start + k0 * step
    else:
        floor = lane * split.block
        k0 = np.maximum(0, -(-(floor - start) // step))
        k1 = np.minimum(count - 1, (np.minimum(floor + split.block, n) - 1 - start) // step)
        common = np.maximum(0, k1 - k0 + 1)
        first = start + k0 * step
    some = common > 0
    return here[which[some]], lane[some], first[some], common[some]


def _wishes(source: Buffer, target: Buffer, region: Region, to: Region, lanes: Ints) -> _Wishes:
    """What the takers `lanes` (row · cols + col of region `to`) need from whom, in their order."""
    row, col = np.divmod(lanes, to.cols)
    dims = list(zip(source.layout.splits, target.layout.splits, target.shape, strict=True))
    wanted = [_wanted(w, n, row, col, to.rows, to.cols) for _, w, n in dims]
    some = np.ones(len(lanes), bool)
    for _, count, _ in wanted:
        some &= count > 0
    lanes, row, col = lanes[some], row[some], col[some]
    found = _Wishes(lanes, np.full_like(lanes, -1), np.full_like(lanes, -1), [])
    number = np.arange(len(lanes))  # of each row, its taker
    for (s, _, n), (starts, counts, step) in zip(dims, wanted, strict=True):
        start, count = starts[some], counts[some]
        if not s.axes:
            take = np.arange(len(number))
            parts = (start[number], count[number])
            lane = None
        else:
            # options by range, which many takers share
            ranges, of = np.unique(start * (n + 1) + count, return_inverse=True)
            which, lane, first, common = _options(
                s, n, ranges // (n + 1), ranges % (n + 1), step, region.rows, region.cols
            )
            # every row so far meets all options of its taker
            begin = np.searchsorted(which, np.arange(len(ranges) + 1))
            mine = of.reshape(-1)[number]
            many = (begin[1:] - begin[:-1])[mine]
            take = np.repeat(np.arange(len(number)), many)
            inner = np.arange(len(take)) - np.repeat(np.cumsum(many) - many, many)
            option = begin[mine[take]] + inner
            parts = (first[option], common[option])
            lane = lane[option]
        found.taker, found.row, found.col = found.taker[take], found.row[take], found.col[take]
        found.parts = [p[take] for p in found.parts] + list(parts)
        number = number[take]
        if lane is not None:
            for axis in reversed(s.axes):
                size = region.rows if axis == "row" else region.cols
                if axis == "row":
                    found.row = lane % size
                else:
                    found.col = lane % size
                lane = lane // size
    own_row, own_col = row[number] % region.rows, col[number] % region.cols
    found.row = np.where(found.row < 0, own_row, found.row)
    found.col = np.where(found.col < 0, own_col, found.col)
    return found


def deliveries(
    source: Buffer,
    target: Buffer,
    region: Region,
    to: Region,
    multicast: bool,
    grid: tuple[int, int],
    lanes: Ints | None = None,
) -> Deliveries:
    """The messages that bring every lane of `to` its shard of `target` from lanes of `region`,
    which hold it in `source`.

    grid: rows and cols of the chip.   lanes: only these takers (row · cols + col), ascending.
    """
    axis = same_for_all(source, target) if multicast and lanes is None else None
    if axis is not None:
        return spread_deliveries(source, target, region, to, axis, grid)
    chip_cols, most_cores = grid[1], grid[0] * grid[1]
    if lanes is None:
        lanes = np.arange(to.rows * to.cols)
    x = _wishes(source, target, region, to, lanes)
    size = np.full(len(x.taker), size_bytes(source.dtype))
    for count in x.parts[1::2]:
        size = size * count
    to_row, to_col = np.divmod(x.taker, to.cols)
    giver = (region.row + x.row) * chip_cols + region.col + x.col
    taker = (to.row + to_row) * chip_cols + to.col + to_col
    own = giver == taker
    copier, copied = taker[own], size[own]

    away = np.flatnonzero(~own)
    lane = x.row[away] * region.cols + x.col[away]
    # A part is known by its giver and its ranges; parts of one giver come in the order in which
    # their first taker meets them.
    key = lane
    parts = [p[away] for p in x.parts]
    order = np.lexsort((np.arange(len(away)), *reversed(parts), key))
    same = np.zeros(len(away), bool)
    if len(away):
        same[1:] = key[order][1:] == key[order][:-1]
        for p in parts:
            same[1:] &= p[order][1:] == p[order][:-1]
    group = np.cumsum(~same) - 1
    heads = order[~same]  # of each part, its first wish: lexsort kept their order
    first_wish = np.empty(len(away), np.int64)
    first_wish[order] = heads[group] if len(away) else group
    # The order of all wishes: of parts by where they are first wished, also by those who copy.
    begin = _first_met(x, own, away, first_wish, region)
    mine = x.row[away] * to.cols + x.col[away]
    turn = (x.taker[away] - mine) % (to.rows * to.cols)
    if multicast:
        lead = first_wish  # the message is known by its first delivery away
        rank = np.lexsort((np.arange(len(away)), lead, begin, turn[lead], lane))
        lead = lead[rank]
        starts = np.flatnonzero(np.r_[True, lead[1:] != lead[:-1]]) if len(away) else lead
    else:
        rank = np.lexsort((np.arange(len(away)), begin, x.taker[away], turn, lane))
        starts = np.arange(len(away))
    chosen = away[rank]
    return _deliveries(
        giver[chosen[starts]],
        size[chosen[starts]],
        np.r_[starts, len(chosen)],
        taker[chosen].astype(np.int32),
        copier,
        copied,
        most_cores,
    )


def _deliveries(
    giver: Ints,
    size: Ints,
    first: Ints,
    taker: Shorts,
    copier: Ints,
    copied: Ints,
    cores: int,
) -> Deliveries:
    """Messages with all that follows from them. cores: of the chip."""
    starts = np.zeros(cores + 1, np.int64)
    inbox = np.empty(len(taker), np.int32)
    by_taker(taker, starts, inbox)
    takes = np.flatnonzero(starts[1:] > starts[:-1])
    busy = np.zeros(cores, bool)
    busy[takes] = busy[giver] = busy[copier] = True
    return Deliveries(
        giver.astype(np.int32),
        size,
        first.astype(np.int64),
        taker,
        copier.astype(np.int32),
        copied,
        inbox,
        takes.astype(np.int32),
        np.r_[starts[takes], len(taker)].astype(np.int64),
        np.flatnonzero(busy).astype(np.int32),
    )


@compiled
def by_taker(taker: Shorts, starts: Ints, inbox: Shorts) -> None:
    """Sort deliveries by taker, stably; starts: where each core's begin."""
    for k in range(len(taker)):
        starts[taker[k]] += 1
    total = 0
    for core in range(len(starts)):
        total += starts[core]
        starts[core] = total
    for k in range(len(taker) - 1, -1, -1):
        starts[taker[k]] -= 1
        inbox[starts[taker[k]]] = k


def same_for_all(source: Buffer, target: Buffer) -> Axis | None:
    """An axis along which all takers want the same from the same givers, if there is one."""
    used = {a for s in source.layout.splits for a in s.axes}
    wanted = {a for s in target.layout.splits for a in s.axes}
    return next((a for a in AXES if a in used and a not in wanted), None)


def spread_deliveries(
    source: Buffer, target: Buffer, region: Region, to: Region, axis: Axis, grid: tuple[int, int]
) -> Deliveries:
    """As `deliveries` with multicast where all takers along `axis` are alike, without asking each
    of them. grid: rows and cols of the chip."""
    along = to.cols if axis == "col" else to.rows
    lanes = np.arange(to.rows) * to.cols if axis == "col" else np.arange(to.cols)
    x = _wishes(source, target, region, to, lanes)
    size = np.full(len(x.taker), size_bytes(source.dtype))
    for count in x.parts[1::2]:
        size = size * count
    lane = x.row * region.cols + x.col
    order = np.lexsort((np.arange(len(lane)), *reversed(x.parts), lane))
    new = np.zeros(len(lane), bool)
    new[:1] = True
    for column in (lane, *x.parts):
        new[1:] |= column[order][1:] != column[order][:-1]
    begin = np.flatnonzero(new)  # of each part, in `order`
    head = order[begin]
    many = np.diff(np.r_[begin, len(order)])
    giver = (region.row + x.row[head]) * grid[1] + region.col + x.col[head]
    # The first taker that is not the giver itself decides when a message is sent.
    second = np.minimum(begin + 1, len(order) - 1)
    lead = x.taker[head]
    lead_core = (to.row + lead // to.cols) * grid[1] + to.col + lead % to.cols
    if axis == "col":
        following = lead + 1 if along > 1 else x.taker[order[second]]
    else:
        following = np.where(many > 1, x.taker[order[second]], lead + to.cols)
    lead = np.where(lead_core == giver, following, lead)
    mine = x.row[head] * to.cols + x.col[head]
    rank = np.lexsort((head, (lead - mine) % (to.rows * to.cols), lane[head]))
    places = (x.taker[order] // to.cols if axis == "col" else x.taker[order]).astype(np.int32)
    room = int(many.sum()) * along
    taker = np.empty(room, np.int32)
    first = np.zeros(len(rank) + 1, np.int64)
    copies = np.empty(len(rank), np.int64)
    corner = to.row * grid[1] + to.col
    fill(
        rank,
        begin,
        many,
        places,
        giver,
        corner,
        along,
        axis == "col",
        grid[1],
        taker,
        first,
        copies,
    )
    own = copies >= 0
    some = first[1:] > first[:-1]
    return _deliveries(
        giver[rank][some],
        size[head][rank][some],
        np.r_[first[:-1][some], first[-1]],
        taker[: first[-1]],
        copies[own],
        size[head][rank][own],
        grid[0] * grid[1],
    )


@compiled
def fill(
    rank: Ints,
    begin: Ints,
    many: Ints,
    places: Shorts,
    giver: Ints,
    corner: int,
    along: int,
    by_rows: bool,
    cols: int,
    taker: Shorts,
    first: Ints,
    copies: Ints,
) -> None:
    """Write down the takers of each message, row by row; copies: the giver where it takes too."""
    count = 0
    for k in range(len(rank)):
        part = rank[k]
        copies[k] = -1
        for n in range(many[part] * along):
            if by_rows:
                row, col = places[begin[part] + n // along], n % along
            else:
                row, col = n // many[part], places[begin[part] + n % many[part]]
            core = corner + row * cols + col
            if core == giver[part]:
                copies[k] = core
            else:
                taker[count] = core
                count += 1
        first[k + 1] = count


def _first_met(x: _Wishes, own: NDArray[np.bool_], away: Ints, first: Ints, region: Region) -> Ints:
    """Of each wish away, the number of the first wish of its part, own copies included."""
    if not own.any() or not len(away):
        return away[first] if len(away) else away
    whole = x.row * region.cols + x.col
    order = np.lexsort((np.arange(len(whole)), *reversed(x.parts), whole))
    same = np.zeros(len(whole), bool)
    same[1:] = whole[order][1:] == whole[order][:-1]
    for p in x.parts:
        same[1:] &= p[order][1:] == p[order][:-1]
    heads = order[~same]
    found = np.empty(len(whole), np.int64)
    found[order] = heads[np.cumsum(~same) - 1]
    return found[away]
