"""scatter: rows of `data` overwritten by, or combined with, rows of `updates`.

data [B…, R, C…], indices [B…, M], updates [B…, M, C…] → the shape of data; attribute `batch` is
the number of dimensions B. Row indices[b, m] of data takes updates[b, m]; an index outside
0..R-1 takes part in nothing. Attribute `reduction`: none (of several the last one stays), add,
mul, max or min. A lane that holds some of the rows looks through all indices for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.ir.dtypes import NUMPY, size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.elementwise import vector_dtype
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work

REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def scattered(
    data: np.ndarray,
    indices: np.ndarray,
    updates: np.ndarray,
    batch: int,
    reduction: str,
    held: range,
) -> np.ndarray:
    """`data`, whose rows are `held` of the whole, with the updates of those rows in it.

    Half-precision floats are combined in float32 and stay wide.
    """
    half = data.dtype in (NUMPY["fp16"], NUMPY["bf16"])
    out = data.astype(np.float32) if half else data.copy()
    new = updates.astype(np.float32) if half else updates
    count = prod(data.shape[:batch])
    # Sizes are spelled out because -1 cannot be inferred where there are no elements.
    flat = out.reshape(count, data.shape[batch], prod(data.shape[batch + 1 :]))
    rows = indices.reshape(count, indices.shape[batch])
    fresh = new.reshape(count, indices.shape[batch], prod(data.shape[batch + 1 :]))
    place = rows.astype(np.int64) - held.start
    mine = (place >= 0) & (place % held.step == 0) & (place // held.step < len(held))
    b, m = np.nonzero(mine)  # in row-major order, so that the last update of a row is last
    at = place[b, m] // held.step
    with np.errstate(all="ignore"):
        if reduction == "none":
            flat[b, at] = fresh[b, m]
        else:
            REDUCTIONS[reduction].at(flat, (b, at), fresh[b, m])
    return flat.reshape(data.shape)


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    del output
    data, indices, updates = inputs
    batch = op.attr("batch", 0)
    dims = [IterDim(f"d{i}", n, "parallel") for i, n in enumerate(data.shape)]
    own = tuple(Use(i) for i in range(len(data.shape)))
    lead = own[:batch]
    del indices, updates
    return Space(tuple(dims), (own, (*lead, Use(None)), (*lead, Use(None), *own[batch + 1 :])), own)


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs
    batch = op.attr("batch", 0)
    data, indices, updates = arrays
    return scattered(data, indices, updates, batch, op.attr("reduction", "none"), output[batch])


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """Every index is compared; data and updates are read, the result is written."""
    indices, updates = prod(shapes[1]), prod(shapes[2])
    combined = updates if op.attr("reduction", "none") != "none" else 0
    traffic = sum(prod(s) * size_bytes(d) for s, d in zip(shapes, dtypes, strict=True))
    return Work(
        vector_ops=indices + combined,
        vector_dtype=vector_dtype([dtypes[0]]),
        sram_bytes=traffic + prod(output) * size_bytes(output_dtype),
    )


RECORD = OpRecord("scatter", _space, _evaluate, _work)
