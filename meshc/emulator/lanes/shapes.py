"""Kernels of all lanes of a region by what their cost depends on: lanes with equal shards share
one cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshc.expand import Expander, LaneKernel
from meshc.ir.layout import Layout, Split
from meshc.ir.placement import Region
from meshc.ir.program import Compute, Program

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class KernelKinds:
    """kind: of each lane, row by row, its place in `kernels`.   lanes: how many have each."""

    kind: NDArray[np.int32]
    kernels: tuple[LaneKernel, ...]
    lanes: Ints


def held(split: Split, size: int, rows: int, cols: int, lane: Ints) -> Ints:
    """How many elements of a dimension lane numbers along a split hold."""
    if split.cyclic:
        lanes = split.lanes(rows, cols)
        return (size - np.minimum(lane, size) + lanes - 1) // lanes
    return np.minimum((lane + 1) * split.block, size) - np.minimum(lane * split.block, size)


def kernel_kinds(expander: Expander, i: Compute, region: Region, uneven: bool) -> KernelKinds:
    """The kinds of kernel that a Compute is on a region. uneven: where equal shapes may be unequal
    work, so that every range of elements is a kind of its own."""
    program: Program = expander.program
    op = program.ops[i.op]
    rows, cols = region.rows, region.cols
    layouts: tuple[Layout, ...] = (*i.layouts, program.buffers[i.output].layout)
    by_row: list[Ints] = []
    by_col: list[Ints] = []
    by_both: list[Ints] = []
    seen: set[tuple[Split, int]] = set()
    for layout, tensor in zip(layouts, (*op.inputs, op.output), strict=True):
        for split, size in zip(layout.splits, program.tensor_shapes[tensor], strict=True):
            if not split.axes or (split, size) in seen:
                continue
            seen.add((split, size))
            lane = np.arange(split.lanes(rows, cols))
            value = held(split, size, rows, cols, lane)
            if uneven:
                value = np.where(value > 0, lane, -1)
            if split.axes == ("row",):
                by_row.append(value)
            elif split.axes == ("col",):
                by_col.append(value)
            elif split.axes == ("row", "col"):
                by_both.append(value)
            else:
                by_both.append(value.reshape(cols, rows).T.reshape(-1))
    kind = _numbers(by_row, rows)[:, None] * cols + _numbers(by_col, cols)[None, :]
    whole = kind.reshape(-1)
    for value in by_both:
        whole = _joined(whole, value)
    _, first, inverse, lanes = np.unique(
        whole, return_index=True, return_inverse=True, return_counts=True
    )
    kernels = tuple(expander.lane_kernel(i, region, (int(k) // cols, int(k) % cols)) for k in first)
    return KernelKinds(inverse.reshape(-1).astype(np.int32), kernels, lanes)


def _joined(a: Ints, b: Ints) -> Ints:
    """Numbers of the pairs of two columns of numbers."""
    b = b - b.min(initial=0)
    pairs = a * (int(b.max(initial=0)) + 1) + b
    return np.asarray(np.unique(pairs, return_inverse=True)[1], np.int64).reshape(-1)


def _numbers(columns: list[Ints], count: int) -> Ints:
    """A small number for each different row of some columns."""
    found = np.zeros(count, np.int64)
    for column in columns:
        found = _joined(found, column)
    return found
