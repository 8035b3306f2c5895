"""unpack: small integers out of the bytes that hold several of them, low bits first.

Lanes divide the bytes; what a byte holds stays together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.ir.dtypes import size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work


def unpacked(x: np.ndarray, bits: int, signed: bool) -> np.ndarray:
    """uint8 [..., n] → uint8 or int8 [..., n · 8 / bits]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (np.asarray(x)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    codes = codes.reshape((*x.shape[:-1], x.shape[-1] * (8 // bits)))
    if not signed:
        return np.asarray(codes)
    half = 1 << (bits - 1)
    return ((codes ^ np.uint8(half)).astype(np.int8) - np.int8(half)).astype(np.int8)


def packed(x: np.ndarray, bits: int) -> np.ndarray:
    """Small integers [..., n] → uint8 [..., ⌈n · bits / 8⌉], what is missing being zero."""
    per = 8 // bits
    codes = np.asarray(x).astype(np.int16).astype(np.uint8) & np.uint8((1 << bits) - 1)
    missing = -codes.shape[-1] % per
    if missing:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, missing)])
    codes = codes.reshape((*codes.shape[:-1], codes.shape[-1] // per, per))
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(codes << shifts, axis=-1).astype(np.uint8))


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    del output
    (t,) = inputs
    dims = tuple(IterDim(f"d{i}", n, "parallel") for i, n in enumerate(t.shape))
    own = tuple(Use(i) for i in range(len(dims)))
    return Space(dims, (own,), (*own[:-1], Use(len(dims) - 1, 8 // op.attr("bits"))))


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs, output
    return unpacked(arrays[0], op.attr("bits"), op.attr("signed"))


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """A shift and mask per element."""
    del op
    elements = prod(output)
    return Work(
        vector_ops=elements,
        sram_bytes=prod(shapes[0]) * size_bytes(dtypes[0]) + elements * size_bytes(output_dtype),
    )


RECORD = OpRecord("unpack", _space, _evaluate, _work)
