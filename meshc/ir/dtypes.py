"""Element types: their names in meshc, sizes and numpy counterparts."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class BlockFormat:
    """Floats stored in blocks of `elements` that share a scale, `bytes` each.

    dtype: of one block, an element type of its own.   bits: of one element beside the scale.
    """

    dtype: str
    elements: int
    bytes: int
    bits: int


# bfp8, bfp4: 16 elements share an exponent of 8 bits. int8, int4: 32 share a scale in fp16.
BLOCK_FORMATS = {
    "bfp8": BlockFormat("bfp8x16", 16, 17, 8),
    "bfp4": BlockFormat("bfp4x16", 16, 9, 4),
    "int8": BlockFormat("int8x32", 32, 34, 8),
    "int4": BlockFormat("int4x32", 32, 18, 4),
}

NUMPY: dict[str, np.dtype] = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "fp64": np.dtype(np.float64),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int16": np.dtype(np.int16),
    "uint16": np.dtype(np.uint16),
    "int32": np.dtype(np.int32),
    "uint32": np.dtype(np.uint32),
    "int64": np.dtype(np.int64),
    "uint64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
    "fp8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "fp8e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "fp8e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    **{f.dtype: np.dtype(f"V{f.bytes}") for f in BLOCK_FORMATS.values()},
}
NAMES: dict[np.dtype, str] = {v: k for k, v in NUMPY.items()}
FLOATS = ("fp16", "bf16", "fp32", "fp64")
FLOAT8 = ("fp8e4m3fn", "fp8e4m3fnuz", "fp8e5m2", "fp8e5m2fnuz")  # storage only
NARROW = tuple(NUMPY[name] for name in ("fp16", "bf16", *FLOAT8))  # computed in fp32


def size_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return NUMPY[dtype].itemsize
