"""concat: operands behind each other along one axis, which every lane needs whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshc.ir.graph import Op, Tensor
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use
from meshc.ops.views import moved


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    axis = op.attr("axis")
    dims = tuple(
        IterDim(f"d{i}", n, "whole" if i == axis else "parallel")
        for i, n in enumerate(output.shape)
    )
    uses = tuple(Use(None) if i == axis else Use(i) for i in range(len(output.shape)))
    return Space(dims, tuple(uses for _ in inputs), uses)


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs, output
    return np.concatenate(list(arrays), axis=op.attr("axis"))


RECORD = OpRecord("concat", _space, _evaluate, moved)
