"""transpose, expand and slice: the same elements at other places."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.ir.dtypes import size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work


def moved(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """Work of a copy: the output is written, and as much is read."""
    del op, shapes
    size = size_bytes(dtypes[0]) if dtypes else size_bytes(output_dtype)
    return Work(sram_bytes=prod(output) * (size + size_bytes(output_dtype)))


def _parallel(shape: Sequence[int]) -> tuple[IterDim, ...]:
    return tuple(IterDim(f"d{i}", n, "parallel") for i, n in enumerate(shape))


def _transpose_space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    (t,) = inputs
    uses = tuple(Use(i) for i in range(len(t.shape)))
    return Space(_parallel(t.shape), (uses,), tuple(Use(p) for p in op.attr("perm")))


def _transpose(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs, output
    return np.transpose(arrays[0], op.attr("perm"))


def _expand_space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    del op
    (t,) = inputs
    lead = len(output.shape) - len(t.shape)
    uses = tuple(
        Use(lead + i) if n == output.shape[lead + i] else Use(None) for i, n in enumerate(t.shape)
    )
    return Space(_parallel(output.shape), (uses,), tuple(Use(i) for i in range(len(output.shape))))


def _expand(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del op, inputs
    return np.broadcast_to(arrays[0], tuple(len(r) for r in output))


def _slice_space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    (t,) = inputs
    axis = op.attr("axis")
    same = t.shape[axis] == output.shape[axis] and op.attr("step", 1) == 1
    dims = tuple(
        IterDim(f"d{i}", n, "parallel" if i != axis or same else "whole")
        for i, n in enumerate(output.shape)
    )
    whole = Use(None)
    uses = tuple(Use(i) if i != axis or same else whole for i in range(len(t.shape)))
    return Space(dims, (uses,), uses)


def _slice(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    axis = op.attr("axis")
    start, step, length = op.attr("start", 0), op.attr("step", 1), len(output[axis])
    if len(inputs[0][axis]) == length and step == 1:
        return arrays[0]
    return np.asarray(np.take(arrays[0], start + step * np.arange(length), axis=axis))


TRANSPOSE = OpRecord("transpose", _transpose_space, _transpose, moved)
EXPAND = OpRecord("expand", _expand_space, _expand, moved)
SLICE = OpRecord("slice", _slice_space, _slice, moved)
