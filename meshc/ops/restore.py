"""restore: floats out of blocks that share a scale, along the last dimension.

Lanes divide the blocks; what a block holds stays together. An engine that multiplies block floating
point itself restores nothing: the vector operations count only where it does not. Scaled integers
are always restored, because the activations that they meet are floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.ir.dtypes import BLOCK_FORMATS, NUMPY, size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.blocks import from_blocks
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work

NATIVE = ("bfp8", "bfp4")  # what an engine may multiply itself
OPS_PER_ELEMENT = 2  # to a float, and by the scale


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    del output
    (t,) = inputs
    dims = tuple(IterDim(f"d{i}", n, "parallel") for i, n in enumerate(t.shape))
    own = tuple(Use(i) for i in range(len(dims)))
    elements = BLOCK_FORMATS[op.attr("format")].elements
    return Space(dims, (own,), (*own[:-1], Use(len(dims) - 1, elements)))


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs, output
    values = from_blocks(arrays[0], op.attr("format"))
    return values.astype(NUMPY[op.attr("to")], copy=False)


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    elements = prod(output)
    form = op.attr("format")
    return Work(
        stored=form if form in NATIVE else "",
        restore_ops=OPS_PER_ELEMENT * elements,
        sram_bytes=prod(shapes[0]) * size_bytes(dtypes[0]) + elements * size_bytes(output_dtype),
    )


RECORD = OpRecord("restore", _space, _evaluate, _work)
