"""scan: running sums along one axis. Attributes: axis, exclusive, reverse."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.ir.dtypes import NUMPY, size_bytes
from meshc.ir.graph import Op
from meshc.ops.elementwise import vector_dtype
from meshc.ops.record import OpRecord, Ranges, Work, along_one_axis


def cumulate(x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    """Running sums in x's type; half-precision floats add in float32 and stay wide."""
    if x.dtype in (NUMPY["fp16"], NUMPY["bf16"]):
        x = x.astype(np.float32)
    y = np.flip(x, axis) if reverse else x
    sums = np.cumsum(y, axis=axis, dtype=y.dtype)
    if exclusive and x.shape[axis]:
        first = np.zeros_like(np.take(sums, [0], axis=axis))
        rest = np.take(sums, np.arange(x.shape[axis] - 1), axis=axis)
        sums = np.concatenate([first, rest], axis=axis)
    return np.flip(sums, axis) if reverse else sums


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs, output
    exclusive, reverse = bool(op.attr("exclusive", False)), bool(op.attr("reverse", False))
    return cumulate(arrays[0], op.attr("axis"), exclusive, reverse)


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    del op
    elements = prod(shapes[0])
    return Work(
        vector_ops=elements,
        vector_dtype=vector_dtype(dtypes),
        sram_bytes=elements * (size_bytes(dtypes[0]) + size_bytes(output_dtype)),
    )


RECORD = OpRecord("scan", along_one_axis, _evaluate, _work)
