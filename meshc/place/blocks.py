"""What is placed: blocks of cores and the nets between them, and where a block may stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshc.ir.chip import ChipSpec

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Anchors = np.ndarray[Any, np.dtype[np.int64]]  # shape (n, 2): row and col of upper left corners


@dataclass(frozen=True)
class Block:
    """A rectangle of cores that wants a position; it is never turned."""

    name: str
    rows: int
    cols: int


@dataclass(frozen=True)
class Net:
    """Bytes that go from one block to another in a step.

    Either end may also be a DRAM channel, as "dram.0".
    """

    first: str
    second: str
    bytes: float


def working(chip: ChipSpec) -> Mask:
    """True for every core that computes."""
    mask = np.ones((chip.rows, chip.cols), bool)
    mask[list(chip.dead_rows), :] = False
    mask[:, list(chip.dead_cols)] = False
    for core in chip.dead_cores:
        mask[core.row, core.col] = False
    return mask


def fits(free: Mask, rows: int, cols: int) -> Mask:
    """For every upper left corner, whether a rectangle of rows × cols is all free.

    The result has shape (R - rows + 1, C - cols + 1), empty when the rectangle is too large.
    """
    height, width = free.shape
    if rows > height or cols > width:
        return np.zeros((max(0, height - rows + 1), max(0, width - cols + 1)), bool)
    if free.all():
        return np.ones((height - rows + 1, width - cols + 1), bool)
    sums = np.zeros((height + 1, width + 1), np.int32)
    sums[1:, 1:] = np.cumsum(np.cumsum(~free, 0, dtype=np.int32), 1, dtype=np.int32)
    taken = sums[rows:, cols:] - sums[:-rows, cols:] - sums[rows:, :-cols] + sums[:-rows, :-cols]
    return np.asarray(taken == 0)


def centres(anchors: Anchors, block: Block) -> Floats:
    """Middle of the block at each anchor, as (row, col)."""
    half = np.array([(block.rows - 1) / 2, (block.cols - 1) / 2])
    return np.asarray(anchors + half, float)


def axis_hops(chip: ChipSpec, axis: int, first: Floats, second: Floats) -> Floats:
    """Hops along one axis (0 rows, 1 cols) between all positions of two lists.

    A hop over a seam counts as many as it takes longer. On a torus the shorter way round counts;
    on an exchange only seams do.
    """
    size = (chip.rows, chip.cols)[axis]
    gap: Floats = np.abs(first[:, None] - second[None, :])
    extra = 0.0
    crossed: Floats = np.zeros_like(gap)
    cuts = 0
    if chip.seams is not None:
        part = (chip.seams.rows, chip.seams.cols)[axis]
        crossed = np.abs(first[:, None] // part - second[None, :] // part)
        extra = chip.seams.hop_cycles / (chip.noc.hop_cycles or 1.0) - 1.0
        cuts = size // part if size > part else 0
    if chip.noc.topology == "exchange":
        return np.asarray(crossed * (extra + 1.0))
    there = gap + crossed * extra
    if chip.noc.topology == "torus":
        there = np.minimum(there, size - gap + (cuts - crossed) * extra)
    return there


def apart(chip: ChipSpec, first: Block, second: Block) -> float:
    """Least hops between two blocks that do not overlap."""
    if chip.noc.topology == "exchange":
        return 0.0
    ratio = 1.0
    if chip.seams is not None:
        ratio = min(1.0, chip.seams.hop_cycles / (chip.noc.hop_cycles or 1.0))
    return ratio * min((first.rows + second.rows) / 2, (first.cols + second.cols) / 2)
