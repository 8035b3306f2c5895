"""matmul: numpy's batched matrix product, either operand possibly stored transposed.

Integers of 8 bits are multiplied exactly; their sums are 32-bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.ir.dtypes import FLOATS, NUMPY, size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    a, b = inputs
    batch = len(output.shape) - 2
    m, n = batch, batch + 1
    k = batch + 2
    ta, tb = op.attr("transpose_a", False), op.attr("transpose_b", False)
    depth = a.shape[-2] if ta else a.shape[-1]
    dims = [IterDim(f"b{i}", s, "parallel") for i, s in enumerate(output.shape[:-2])]
    dims += [
        IterDim("m", output.shape[-2], "parallel"),
        IterDim("n", output.shape[-1], "parallel"),
        IterDim("k", depth, "sum"),
    ]

    def lead(t: Tensor) -> list[Use]:
        skip = batch - (len(t.shape) - 2)
        return [
            Use(skip + i) if s == output.shape[skip + i] else Use(None)
            for i, s in enumerate(t.shape[:-2])
        ]

    uses_a = lead(a) + ([Use(k), Use(m)] if ta else [Use(m), Use(k)])
    uses_b = lead(b) + ([Use(n), Use(k)] if tb else [Use(k), Use(n)])
    out = tuple(Use(i) for i in range(batch + 2))
    return Space(tuple(dims), (tuple(uses_a), tuple(uses_b)), out)


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs, output
    a, b = arrays
    a, b = widened(a, b)
    if op.attr("transpose_a", False):
        a = np.swapaxes(a, -1, -2)
    if op.attr("transpose_b", False):
        b = np.swapaxes(b, -1, -2)
    with np.errstate(all="ignore"):
        return product(a, b)


def stored_type(dtypes: Sequence[str]) -> str:
    """The float type of the second operand where it differs from the first one's."""
    a, b = dtypes[:2]
    return b if a != b and a in FLOATS and b in FLOATS else ""


def widened(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Operands in the type that they are multiplied in."""
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return a.astype(np.int32), b.astype(np.int32)
    if a.dtype == NUMPY["fp64"]:
        return a, b
    return a.astype(np.float32), b.astype(np.float32)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a · b; integers go through float64, in which these sums are exact, and wrap like int32."""
    if a.dtype.kind in "iu":
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
        return np.asarray(exact.astype(np.int64).astype(np.int32))
    return np.asarray(np.matmul(a, b))


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    a, b = shapes
    k = a[-2] if op.attr("transpose_a", False) else a[-1]
    m, n, count = output[-2], output[-1], prod(output[:-2])
    if prod(b[:-2]) == 1:  # one weight matrix for every batch: a single taller product
        m, count = m * count, 1
    traffic = prod(a) * size_bytes(dtypes[0]) + prod(b) * size_bytes(dtypes[1])
    return Work(
        matmuls=((m, k, n, count),) if m * k * n * count else (),
        dtype="int8" if dtypes[0] == "uint8" else dtypes[0],  # one rate for both
        sram_bytes=traffic + prod(output) * size_bytes(output_dtype),
        stored=stored_type(dtypes),
    )


RECORD = OpRecord("matmul", _space, _evaluate, _work)
