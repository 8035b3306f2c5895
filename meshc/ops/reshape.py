"""reshape: the same elements in row-major order under another shape.

Attribute `loose`, where it is there, has the input's and the output's dimensions whose size grows
with the cached tokens and that the other side has not: how many elements of such a dimension go
with one of another's is not the same at every step, so nothing that must last may be divided by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np

from meshc.ir.graph import Op, Tensor
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use
from meshc.ops.views import moved


def _groups(a: Sequence[int], b: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Cut both shapes into runs of dimensions of equal product, as short as possible."""
    groups = []
    i = j = 0
    while i < len(a) or j < len(b):
        left, right = [], []
        pa = pb = 1
        if i < len(a):
            left.append(i)
            pa *= a[i]
            i += 1
        if j < len(b):
            right.append(j)
            pb *= b[j]
            j += 1
        while pa != pb:
            if pa < pb and i < len(a):
                left.append(i)
                pa *= a[i]
                i += 1
            elif j < len(b):
                right.append(j)
                pb *= b[j]
                j += 1
            else:
                left.append(i)
                pa *= a[i]
                i += 1
        groups.append((left, right))
    return groups


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    """Only the outermost dimension of each group can be divided: its parts stay contiguous."""
    (t,) = inputs
    loose_in, loose_out = op.attr("loose", ((), ()))
    dims: list[IterDim] = []
    uses_in = [Use(None)] * len(t.shape)
    uses_out = [Use(None)] * len(output.shape)
    if 0 in t.shape:
        return Space((), (tuple(uses_in),), tuple(uses_out))
    for left, right in _groups(t.shape, output.shape):
        outer_in = [i for i in left if t.shape[i] > 1]
        outer_out = [j for j in right if output.shape[j] > 1]
        if not outer_in or not outer_out:
            # Keeps the numbering of dimensions the same for batches and prompts of one.
            dims.append(IterDim(f"d{len(dims)}", 1, "parallel"))
            continue
        i, j = outer_in[0], outer_out[0]
        a, b = t.shape[i], output.shape[j]
        units = gcd(a, b)
        # Neither divides the other: no common contiguous part; or only at this step.
        if max(a, b) % min(a, b) or (a != b and (i in loose_in or j in loose_out)):
            dims.append(IterDim(f"d{len(dims)}", 1, "parallel"))
            continue
        dims.append(IterDim(f"d{len(dims)}", units, "parallel"))
        uses_in[i] = Use(len(dims) - 1, a // units)
        uses_out[j] = Use(len(dims) - 1, b // units)
    return Space(tuple(dims), (tuple(uses_in),), tuple(uses_out))


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del op, inputs
    return np.reshape(arrays[0], tuple(len(r) for r in output))


RECORD = OpRecord("reshape", _space, _evaluate, moved)
