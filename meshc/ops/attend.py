"""attend: softmax over the scores of cached tokens, and the sum of values that it weighs.

The result is not yet divided: each row holds the weighted sum, then the sum of the weights, then
the largest score. Lanes that hold different tokens join such rows in one reduction ("attend" in
`meshc.ops.combine`) where maximum, sum and product would take three.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.ir.dtypes import NUMPY, size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.elementwise import vector_dtype
from meshc.ops.record import ROW_BLOCK, IterDim, OpRecord, Ranges, Space, Use, Work, blocked


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    scores, values = inputs
    lead = len(output.shape) - 2
    dims = [IterDim(f"b{i}", n, "parallel") for i, n in enumerate(output.shape[:-2])]
    dims.append(IterDim("m", output.shape[-2], "parallel"))
    dims.append(IterDim("t", scores.shape[-1], "attend"))

    def uses(t: Tensor) -> list[Use]:
        skip = lead - (len(t.shape) - 2)
        return [
            Use(skip + i) if n == output.shape[skip + i] else Use(None)
            for i, n in enumerate(t.shape[:-2])
        ]

    out = (*(Use(i) for i in range(lead + 1)), Use(None))
    tokens, width = Use(lead + 1), Use(None)
    turned = op.attr("transpose_v", False)
    return Space(
        tuple(dims),
        (
            (*uses(scores), Use(lead), tokens),
            (*uses(values), *((width, tokens) if turned else (tokens, width))),
        ),
        out,
    )


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs
    scores, values = arrays
    inner = np.float64 if scores.dtype == NUMPY["fp64"] else np.float32
    scores = scores.astype(inner)
    if op.attr("transpose_v", False):
        values = np.swapaxes(values, -1, -2)
    with np.errstate(all="ignore"):
        top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        weights = np.where(top == -np.inf, 0, np.exp(scores - top))
        # The product's operands have the type of the values, its sum is wide.
        rounded = weights.astype(values.dtype).astype(inner)
        mixed = np.matmul(rounded, values.astype(inner))
        total = np.sum(weights, axis=-1, keepdims=True, dtype=inner)
    shape = tuple(len(r) for r in output)
    rows = [
        np.broadcast_to(x, (*shape[:-1], x.shape[-1])) for x in (mixed, total, top.astype(inner))
    ]
    return np.concatenate(rows, axis=-1)


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """The scores are read for their maximum and again for the weights, which are written and
    read by the product."""
    scores, values = shapes
    m, t, count = output[-2], scores[-1], prod(output[:-2])
    n = output[-1] - 2
    elements = prod(output[:-1]) * t
    weights = 2 * elements * size_bytes(dtypes[1])
    inner = prod(scores) * size_bytes(dtypes[0]) + weights
    again = (-(-m // ROW_BLOCK) - 1) * prod(values) * size_bytes(dtypes[1])
    traffic = prod(scores) * size_bytes(dtypes[0]) + prod(values) * size_bytes(dtypes[1])
    return Work(
        matmuls=blocked(m, t, n, count),
        dtype=dtypes[1],
        vector_ops=4 * elements,
        vector_dtype=vector_dtype([dtypes[0]]),
        sram_bytes=traffic + prod(output) * size_bytes(output_dtype) + inner + max(0, again),
        inner_bytes=inner + max(0, again),
    )


def _scratch(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> int:
    """The weights of a block of rows."""
    del op, output_dtype
    return min(prod(output[:-1]), ROW_BLOCK) * shapes[0][-1] * size_bytes(dtypes[1])


RECORD = OpRecord("attend", _space, _evaluate, _work, scratch=_scratch, passes=((0, 2),))
