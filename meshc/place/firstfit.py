"""The greedy placer: every block at the first place where it fits, along a snake of bands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshc.place.blocks import Anchors, Block, Mask, fits


def first_fit(blocks: Sequence[Block], free: Mask) -> tuple[list[tuple[int, int] | None], int]:
    """Upper left corner of each block (None: no room) and the number of blocks placed.

    Tried in the order given and from the largest down, along the snake and row by row; the first
    attempt that places all wins, else the one that places most.
    """
    given = list(range(len(blocks)))
    by_area = sorted(given, key=lambda i: (-blocks[i].rows * blocks[i].cols, i))
    by_rows = sorted(given, key=lambda i: (-blocks[i].rows, -blocks[i].cols, i))
    best: tuple[list[tuple[int, int] | None], int] = ([None] * len(blocks), -1)
    for order in (given, by_area, by_rows):
        for snake in (True, False):
            found = _attempt(blocks, free.copy(), order, snake)
            count = sum(a is not None for a in found)
            if count > best[1]:
                best = (found, count)
            if count == len(blocks):
                return best
    return best


def _attempt(
    blocks: Sequence[Block], free: Mask, order: list[int], snake: bool
) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = [None] * len(blocks)
    band = max(b.rows for b in blocks)
    for i in order:
        block = blocks[i]
        places = np.argwhere(fits(free, block.rows, block.cols))
        if not len(places):
            continue
        row, col = _along_snake(places, block, band, free.shape[1]) if snake else places[0]
        found[i] = (int(row), int(col))
        free[row : row + block.rows, col : col + block.cols] = False
    return found


def _along_snake(places: Anchors, block: Block, band: int, width: int) -> Anchors:
    """The first place in bands of `band` rows that are read left to right, then right to left."""
    number = places[:, 0] // band
    col = np.where(number % 2 == 0, places[:, 1], width - block.cols - places[:, 1])
    key = (number * width + col) * band + places[:, 0] % band
    first: Anchors = places[int(np.argmin(key))]
    return first
