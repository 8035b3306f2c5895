"""gather: rows of a table picked by indices.

A lane that holds part of the table looks up the indices that fall into its part and leaves zero
for the others, so dividing the table's axis leaves partial sums. Attribute `batch`: the first
dimensions of data and indices are the same ones, and each has its own table.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.ir.dtypes import size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    del output
    data, indices = inputs
    axis, batch = op.attr("axis", 0), op.attr("batch", 0)
    dims = [
        IterDim(f"d{i}", n, "sum" if i == axis else "parallel") for i, n in enumerate(data.shape)
    ]
    data_uses = tuple(Use(i) for i in range(len(data.shape)))
    own = range(batch, len(indices.shape))
    index_uses = (*data_uses[:batch], *(Use(len(dims) + i) for i in range(len(own))))
    dims += [IterDim(f"i{i}", indices.shape[i], "parallel") for i in own]
    out = data_uses[:axis] + index_uses[batch:] + data_uses[axis + 1 :]
    return Space(tuple(dims), (data_uses, index_uses), out)


def pick(data: np.ndarray, places: np.ndarray, axis: int, batch: int) -> np.ndarray:
    """data's elements at `places` (non-negative) along `axis`, table by table."""
    if not batch:
        return np.asarray(np.take(data, places, axis=axis))
    count = prod(data.shape[:batch])
    tables = data.reshape(count, *data.shape[batch:])
    rows = places.reshape(count, *places.shape[batch:])
    shape = (*data.shape[:axis], *places.shape[batch:], *data.shape[axis + 1 :])
    out = np.empty((count, *shape[batch:]), data.dtype)
    for i in range(count):
        out[i] = np.take(tables[i], rows[i], axis=axis - batch)
    return out.reshape(shape)


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    data, indices = arrays
    axis, batch = op.attr("axis", 0), op.attr("batch", 0)
    held = inputs[0][axis]
    size = op.attr("size") or len(held)
    wanted = np.where(indices < 0, indices + size, indices).astype(np.int64)
    place = wanted - held.start
    mine = (place >= 0) & (place % held.step == 0) & (place // held.step < len(held))
    if len(held) == 0:
        return np.zeros(tuple(len(r) for r in output), data.dtype)
    picked = pick(data, np.where(mine, place // held.step, 0), axis, batch)
    lead, own = mine.shape[:batch], mine.shape[batch:]
    mask = mine.reshape(lead + (1,) * (axis - batch) + own + (1,) * (data.ndim - axis - 1))
    return np.where(mask, picked, np.zeros((), data.dtype))


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    del op
    return Work(
        vector_ops=prod(shapes[1]),
        vector_dtype="fp32",
        sram_bytes=prod(shapes[1]) * size_bytes(dtypes[1])
        + 2 * prod(output) * size_bytes(output_dtype),
    )


RECORD = OpRecord("gather", _space, _evaluate, _work)
