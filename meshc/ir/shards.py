"""Arithmetic of shards: intersections of ranges, and which lanes hold what."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np

from meshc.errors import InvariantError
from meshc.ir.layout import Layout, Split


def intersect(a: range, b: range) -> range:
    """Common elements of two ascending ranges, as a range."""
    if not a or not b:
        return range(0)
    if a.step == 1 and b.step == 1:
        return range(max(a.start, b.start), max(max(a.start, b.start), min(a.stop, b.stop)))
    divisor = gcd(a.step, b.step)
    if (b.start - a.start) % divisor:
        return range(0)
    step = a.step // divisor * b.step
    # Solve a.start + i·a.step ≡ b.start (mod b.step) for the smallest i.
    modulus = b.step // divisor
    i = (b.start - a.start) // divisor * pow(a.step // divisor, -1, modulus) % modulus
    first = a.start + i * a.step
    low = max(a.start, b.start)
    if first < low:
        first += -(-(low - first) // step) * step
    stop = min(a[-1], b[-1]) + 1
    return range(first, stop, step) if first < stop else range(0)


def local(part: range, shard: range) -> range:
    """Positions within `shard` of the elements of `part`, which it must contain."""
    if not part:
        return range(0)
    if not contains(shard, part):
        raise InvariantError(f"Elements {part} are not all in the shard {shard}.")
    start = (part.start - shard.start) // shard.step
    step = part.step // shard.step if len(part) > 1 else 1
    return range(start, start + (len(part) - 1) * step + 1, step)


def contains(shard: range, part: range) -> bool:
    """Whether every element of `part` is in `shard`."""
    return not part or (
        part[0] in shard and part[-1] in shard and (len(part) == 1 or part.step % shard.step == 0)
    )


@lru_cache(maxsize=200_000)
def covers(source: Layout, wanted: Layout, shape: tuple[int, ...], rows: int, cols: int) -> bool:
    """Whether every lane already holds, in `source`, the shard that `wanted` gives it."""
    if source == wanted:
        return True
    for s, w, n in zip(source.splits, wanted.splits, shape, strict=True):
        if s == w or not s.axes:
            continue
        if not w.axes and n > 0:
            return False
        if not _covers_dimension(s, w, n, rows, cols):
            return False
    return True


def _covers_dimension(s: Split, w: Split, n: int, rows: int, cols: int) -> bool:
    """Whether every lane's part of one dimension under `w` lies in its part under `s`."""
    both = set(s.axes) | set(w.axes)
    rows_seen, cols_seen = rows if "row" in both else 1, cols if "col" in both else 1
    # Most differ somewhere among a few lanes; only what does not is looked at whole.
    few, whole = (_samples(rows_seen), _samples(cols_seen)), np.ogrid[:rows_seen, :cols_seen]
    return _held(s, w, n, few[0][:, None], few[1][None, :], rows, cols) and _held(
        s, w, n, whole[0], whole[1], rows, cols
    )


def _samples(lanes: int) -> np.ndarray:
    """Some lanes of a line: more of the first ones, as the last may hold nothing."""
    found = {0, lanes // 2, lanes - 1, *(1 << i for i in range(lanes.bit_length() - 1))}
    return np.array(sorted(found))


def _held(
    s: Split, w: Split, n: int, row: np.ndarray, col: np.ndarray, rows: int, cols: int
) -> bool:
    """Whether the lanes (row, col) have under `s` what `w` gives them."""
    first, last, step = _ends(w, n, row, col, rows, cols)
    low, high, stride = _ends(s, n, row, col, rows, cols)
    inside = (low <= first) & (last <= high)
    inside &= ((first - low) % stride == 0) & ((first == last) | (step % stride == 0))
    return bool((inside | (last < first)).all())


def _ends(
    s: Split, n: int, row: np.ndarray, col: np.ndarray, rows: int, cols: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """First and last element and step of each lane's shard; empty ones end before they begin."""
    lane = np.zeros_like(row + col)
    for a in s.axes:
        lane = lane * (rows if a == "row" else cols) + (row if a == "row" else col)
    if s.cyclic:
        lanes = s.lanes(rows, cols)
        return lane, lane + (n - 1 - lane) // lanes * lanes, lanes
    if not s.axes:
        return lane, lane + n - 1, 1
    return lane * s.block, np.minimum((lane + 1) * s.block, n) - 1, 1


Piece = tuple[tuple[int, int], tuple[range, ...]]  # source lane, global ranges


def pieces(
    source: Layout,
    wanted: tuple[range, ...],
    shape: tuple[int, ...],
    rows: int,
    cols: int,
    home: tuple[int, int],
) -> list[Piece]:
    """Which lanes of a rows × cols region give the elements `wanted` of a tensor in `source`.

    Where several lanes hold the same elements, the one nearest to lane `home` (same row or
    column) gives them.
    """
    found: list[tuple[dict[str, int], tuple[range, ...]]] = [({}, ())]
    for s, part, n in zip(source.splits, wanted, shape, strict=True):
        options: list[tuple[dict[str, int], range]] = []
        if not part:
            return []
        if not s.axes:
            options.append(({}, part))
        else:
            lanes = s.lanes(rows, cols)
            first, last = 0, min(lanes, n) - 1
            if not s.cyclic:
                first, last = part[0] // s.block, part[-1] // s.block
            for lane in range(first, last + 1):
                at = _coordinates(s.axes, lane, rows, cols)
                held = s.shard(n, at.get("row", 0), at.get("col", 0), rows, cols)
                common = intersect(held, part)
                if common:
                    options.append((at, common))
        found = [({**at, **more}, (*rs, r)) for at, rs in found for more, r in options]
    return [
        ((at.get("row", home[0] % rows), at.get("col", home[1] % cols)), rs) for at, rs in found
    ]


def _coordinates(axes: tuple[str, ...], lane: int, rows: int, cols: int) -> dict[str, int]:
    at: dict[str, int] = {}
    for a in reversed(axes):
        size = rows if a == "row" else cols
        at[a] = lane % size
        lane //= size
    return at
