"""Positions among which the integer program chooses: few enough to solve, near the origin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from meshc.place.blocks import Anchors, Block, Mask, fits

MAX_ANCHORS = 150


def candidate_anchors(
    blocks: Sequence[Block],
    free: Mask,
    known: Sequence[tuple[int, int] | None],
) -> tuple[list[Anchors], str]:
    """Candidate upper left corners of every block, in row-major order, and what they are in words.

    All positions where there are few; else the first free position of every cell of a coarser
    grid, within a window that surely holds the known positions and a square arrangement.
    known: a position of each block that must be among its candidates (None: none).
    """
    rows, cols = free.shape
    count = len(blocks)
    tall = max(b.rows for b in blocks)
    wide = max(b.cols for b in blocks)
    if all((rows - b.rows + 1) * (cols - b.cols + 1) <= MAX_ANCHORS for b in blocks):
        return [np.argwhere(fits(free, b.rows, b.cols)) for b in blocks], "every position"
    side = math.isqrt(max(count - 1, 0)) + 2
    low = (0, 0)
    high = (side * tall, side * wide)
    ends = [
        (a[0] + b.rows, a[1] + b.cols) for a, b in zip(known, blocks, strict=True) if a is not None
    ]
    starts = [a for a in known if a is not None]
    if starts:
        low = (min(a[0] for a in starts), min(a[1] for a in starts))
        low = (max(0, low[0] - tall), max(0, low[1] - wide))
        low = (low[0] // tall * tall, low[1] // wide * wide)
        high = (max(low[0] + high[0], *(e[0] for e in ends)), 0 + high[1])
        high = (high[0], max(low[1] + high[1], *(e[1] for e in ends)))
    high = (min(rows, high[0]), min(cols, high[1]))
    window = np.zeros_like(free)
    window[low[0] : high[0], low[1] : high[1]] = free[low[0] : high[0], low[1] : high[1]]
    step = [math.gcd(*(b.rows for b in blocks)), math.gcd(*(b.cols for b in blocks))]
    size = (high[0] - low[0], high[1] - low[1])
    while math.ceil(size[0] / step[0]) * math.ceil(size[1] / step[1]) > MAX_ANCHORS:
        axis = 0 if size[0] / step[0] >= size[1] / step[1] else 1
        step[axis] *= 2
    out = []
    for block, sure in zip(blocks, known, strict=True):
        places = np.argwhere(fits(window, block.rows, block.cols))
        cells = (places[:, 0] - low[0]) // step[0] * cols + (places[:, 1] - low[1]) // step[1]
        _, first = np.unique(cells, return_index=True)
        chosen = {(int(r), int(c)) for r, c in places[first]}
        if sure is not None:
            chosen.add(sure)
        out.append(np.array(sorted(chosen), np.int64).reshape(-1, 2))
    return out, f"steps of {step[0]}x{step[1]} in {high[0] - low[0]}x{high[1] - low[1]}"
