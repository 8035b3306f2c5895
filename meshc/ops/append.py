"""append: new tokens join a cache in the cache's own memory.

The growing axis may be divided cyclically: token t lives on lane t mod lanes. Every lane gets all
new tokens and keeps its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.ir.dtypes import size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    axis = op.attr("axis")
    dims = tuple(IterDim(f"d{i}", n, "parallel") for i, n in enumerate(output.shape))
    own = tuple(Use(i) for i in range(len(output.shape)))
    new = tuple(Use(None) if i == axis else Use(i) for i in range(len(output.shape)))
    return Space(dims, (own, new) if len(inputs) == 2 else (new,), own)


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    axis = op.attr("axis")
    new = arrays[-1]
    held = output[axis]
    past = op.attr("past", 0)  # tokens before the new ones, in the whole tensor
    mine = [t - past for t in held if t >= past]
    fresh = np.take(new, np.asarray(mine, np.int64), axis=axis)
    return np.concatenate([arrays[0], fresh], axis=axis) if len(arrays) == 2 else fresh


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """Only this lane's new tokens move; the past stays where it is."""
    axis = op.attr("axis")
    old = shapes[0][axis] if len(shapes) == 2 else 0
    fresh = prod(output[:axis]) * (output[axis] - old) * prod(output[axis + 1 :])
    return Work(sram_bytes=fresh * (size_bytes(dtypes[-1]) + size_bytes(output_dtype)))


RECORD = OpRecord("append", _space, _evaluate, _work)
