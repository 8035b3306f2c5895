"""topk: the k largest or smallest elements along one axis, or where they are.

Attributes: axis, largest, result ("values" or "indices"), last (of equal elements the one with the
highest index comes first; otherwise the lowest, as in ONNX Runtime). The output's length says how
many; the best come first.
An operator that gives values and indices is two ops, each of which selects for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod

import numpy as np

from meshc.ir.dtypes import NUMPY, size_bytes
from meshc.ir.graph import Op
from meshc.ops.elementwise import vector_dtype
from meshc.ops.record import OpRecord, Ranges, Work, along_one_axis


def select(x: np.ndarray, axis: int, k: int, largest: bool, last: bool, result: str) -> np.ndarray:
    """The k best of `x` along `axis`: values in x's type or int64 indices, best first.

    Not-a-number counts as larger than any number.
    """
    n = x.shape[axis]
    if x.dtype in (NUMPY["fp16"], NUMPY["bf16"]):
        x = x.astype(np.float32)
    # A stable sort keeps equal elements in order; which order that is follows from turning.
    turned = largest != last
    y = np.flip(x, axis) if turned else x
    order = np.argsort(y, axis=axis, kind="stable")
    if turned:
        order = n - 1 - order
    if largest:
        order = np.flip(order, axis)
    picked = np.take(order, np.arange(k), axis=axis).astype(np.int64)
    return np.take_along_axis(x, picked, axis) if result == "values" else picked


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs
    return select(
        arrays[0],
        op.attr("axis"),
        len(output[op.attr("axis")]),
        bool(op.attr("largest", True)),
        bool(op.attr("last", False)),
        op.attr("result"),
    )


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """A heap of k: every element is compared with log2(k + 1) others."""
    elements = prod(shapes[0])
    return Work(
        vector_ops=elements * log2(output[op.attr("axis")] + 1),
        vector_dtype=vector_dtype(dtypes),
        sram_bytes=elements * size_bytes(dtypes[0]) + prod(output) * size_bytes(output_dtype),
    )


RECORD = OpRecord("topk", along_one_axis, _evaluate, _work)
