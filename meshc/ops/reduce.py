"""reduce: sum, mean, max and the like over some axes.

A mean's divisor is the whole tensor's element count, attribute `count`, which the emitter adds:
a lane that holds part of the axis divides its partial sum by it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.errors import InvariantError
from meshc.ir.dtypes import NARROW, size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.elementwise import vector_dtype
from meshc.ops.record import DimKind, IterDim, OpRecord, Ranges, Space, Use, Work

_KINDS: dict[str, DimKind] = {
    "sum": "sum",
    "mean": "sum",
    "sumsquare": "sum",
    "max": "max",
    "prod": "prod",
    "min": "min",
}


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    (t,) = inputs
    axes, keep = op.attr("axes"), op.attr("keepdims", True)
    kind = _KINDS.get(op.attr("fn"), "whole")
    dims = tuple(
        IterDim(f"d{i}", n, kind if i in axes else "parallel") for i, n in enumerate(t.shape)
    )
    out = [Use(None) if i in axes else Use(i) for i in range(len(t.shape)) if keep or i not in axes]
    return Space(dims, (tuple(Use(i) for i in range(len(t.shape))),), tuple(out))


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs
    (x,) = arrays
    axes = tuple(op.attr("axes"))
    if x.dtype in NARROW:
        x = x.astype(np.float32)
    fn = op.attr("fn")
    keep = bool(op.attr("keepdims", True))
    with np.errstate(all="ignore"):
        if fn in ("sum", "mean"):
            y = np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype)
            if fn == "mean":
                y = y / x.dtype.type(op.attr("count") or prod(x.shape[a] for a in axes))
        elif fn == "sumsquare":
            y = np.sum(x * x, axis=axes, keepdims=keep, dtype=x.dtype)
        elif fn == "l2":
            y = np.sqrt(np.sum(x * x, axis=axes, keepdims=keep, dtype=x.dtype))
        elif fn in ("max", "min"):
            low = fn == "max"
            if np.issubdtype(x.dtype, np.floating):
                start = -np.inf if low else np.inf
            elif x.dtype == np.bool_:
                start = not low
            else:
                start = np.iinfo(x.dtype).min if low else np.iinfo(x.dtype).max
            y = (np.max if low else np.min)(x, axis=axes, keepdims=keep, initial=start)
        elif fn == "prod":
            y = np.prod(x, axis=axes, keepdims=keep, dtype=x.dtype)
        else:
            raise InvariantError(f"Op '{op.name}' reduces by the unknown function '{fn}'.")
    return np.asarray(y).reshape(tuple(len(r) for r in output))


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
        sram_bytes=elements * size_bytes(dtypes[0]) + prod(output) * size_bytes(output_dtype),
    )


RECORD = OpRecord("reduce", _space, _evaluate, _work)
