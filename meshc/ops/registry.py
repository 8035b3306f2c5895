"""The table of op kinds, and the questions that the rest of meshc asks about an op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshc.errors import InvariantError
from meshc.ir.graph import Op, Tensor
from meshc.ops import (
    append,
    attend,
    concat,
    elementwise,
    experts,
    fused,
    gather,
    matmul,
    reduce,
    reshape,
    restore,
    scan,
    scatter,
    topk,
    unpack,
    views,
)
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work

RECORDS: dict[str, OpRecord] = {
    "map": elementwise.RECORD,
    "matmul": matmul.RECORD,
    "reduce": reduce.RECORD,
    "transpose": views.TRANSPOSE,
    "reshape": reshape.RECORD,
    "expand": views.EXPAND,
    "slice": views.SLICE,
    "concat": concat.RECORD,
    "gather": gather.RECORD,
    "append": append.RECORD,
    "topk": topk.RECORD,
    "scan": scan.RECORD,
    "scatter": scatter.RECORD,
    "experts": experts.RECORD,
    "unpack": unpack.RECORD,
    "restore": restore.RECORD,
    "attend": attend.RECORD,
    "fused": fused.RECORD,
}

__all__ = [
    "RECORDS",
    "IterDim",
    "OpRecord",
    "Ranges",
    "Space",
    "Use",
    "Work",
    "evaluate",
    "record",
    "scratch",
    "share",
    "space",
    "uneven",
    "work",
]


def record(kind: str) -> OpRecord:
    """The record of `kind`; InvariantError when there is none."""
    if kind not in RECORDS:
        raise InvariantError(f"Op kind '{kind}' has no record; known: {', '.join(RECORDS)}.")
    return RECORDS[kind]


def space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    """Iteration space of the op for these whole tensors."""
    return record(op.kind).space(op, inputs, output)


def evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    """The op's meaning on one lane's shards.

    arrays: local operands.   inputs, output: the global index ranges that the shards are.
    Accumulates in float32; the caller rounds the result to the output's dtype.
    """
    return record(op.kind).evaluate(op, arrays, inputs, output)


def work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """What one lane does for shards of these shapes."""
    return record(op.kind).work(op, shapes, output, dtypes, output_dtype)


def uneven(op: Op) -> bool:
    """Whether lanes with parts of equal shapes may have unequal work."""
    return any(record(o.kind).share is not None for o in op.body or (op,))


def share(
    op: Op,
    inputs: Sequence[Ranges],
    output: Ranges,
    dtypes: Sequence[str],
    output_dtype: str,
    layer: int = -1,
) -> Work:
    """What the lane does that holds these parts of the tensors.

    layer: number of the repetition in a repeated segment, -1 outside.
    """
    found = record(op.kind)
    if found.share is not None and uneven(op):
        return found.share(op, inputs, output, dtypes, output_dtype, layer)
    shapes = [tuple(map(len, ranges)) for ranges in inputs]
    return found.work(op, shapes, tuple(map(len, output)), dtypes, output_dtype)


def scratch(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> int:
    """Bytes of SRAM that one lane's kernel needs beside its operands."""
    return record(op.kind).scratch(op, shapes, output, dtypes, output_dtype)
