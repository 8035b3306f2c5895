"""Floats in blocks that share a scale: what the formats of `meshc.ir.dtypes.BLOCK_FORMATS` mean.

A block lies along the last dimension. Block floating point: one byte of exponent, biased by 127,
then for each element a sign and a magnitude of 7 (bfp8) or 3 bits (bfp4), the largest of which uses
all of them; an element is ± magnitude · 2^(exponent − bits + 2). Scaled integers: a scale in fp16,
then for each element an integer of −127..127 or −7..7 in two's complement. Halves are rounded to
even; elements of 4 bits lie two in a byte, the first in its low bits.
"""

from __future__ import annotations

import numpy as np

from meshc.ir.dtypes import BLOCK_FORMATS, NUMPY, BlockFormat
from meshc.ops.unpack import packed, unpacked

BIAS = 127


def blocks_of(n: int, form: str) -> int:
    """Blocks of n elements."""
    return -(-n // BLOCK_FORMATS[form].elements)


def to_blocks(x: np.ndarray, form: str) -> np.ndarray:
    """[..., n] → [..., ⌈n / elements⌉] blocks; what is missing in the last one is zero."""
    f = BLOCK_FORMATS[form]
    values = np.asarray(x, np.float32)
    missing = -values.shape[-1] % f.elements
    if missing:
        values = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
    values = values.reshape((*values.shape[:-1], values.shape[-1] // f.elements, f.elements))
    scale, codes = _shared(values, f.bits) if form.startswith("bfp") else _scaled(values, f.bits)
    body = packed(codes, 4) if f.bits == 4 else codes.astype(np.int16).astype(np.uint8)
    whole = np.concatenate([scale, body], axis=-1)
    return np.ascontiguousarray(whole).view(NUMPY[f.dtype])[..., 0]


def _shared(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Exponents [..., 1], and signs and magnitudes."""
    largest = np.abs(values).max(axis=-1, keepdims=True)
    exponent = np.clip(np.frexp(largest)[1] - 1, -BIAS, 255 - BIAS - 1)
    magnitude = np.rint(np.ldexp(np.abs(values), bits - 2 - exponent))
    magnitude = np.minimum(magnitude, (1 << (bits - 1)) - 1).astype(np.int16)
    sign = np.signbit(values).astype(np.int16) << (bits - 1)
    biased = np.where(largest > 0, exponent + BIAS, 0).astype(np.uint8)
    return biased, np.where(magnitude > 0, magnitude | sign, 0)


def _scaled(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the scales [..., 2], and integers."""
    top = (1 << (bits - 1)) - 1
    scale = (np.abs(values).max(axis=-1, keepdims=True) / top).astype(np.float16)
    wide = scale.astype(np.float32)
    codes = np.rint(np.divide(values, wide, out=np.zeros_like(values), where=wide > 0))
    return scale.view(np.uint8), np.clip(codes, -top, top).astype(np.int16)


def from_blocks(x: np.ndarray, form: str) -> np.ndarray:
    """[..., b] blocks → float32 [..., b · elements]."""
    f = BLOCK_FORMATS[form]
    raw = np.ascontiguousarray(x)[..., None].view(np.uint8)
    values = _floats(raw, form, f)
    return np.asarray(values.reshape((*x.shape[:-1], x.shape[-1] * f.elements)))


def _floats(raw: np.ndarray, form: str, f: BlockFormat) -> np.ndarray:
    if not form.startswith("bfp"):
        scale = np.ascontiguousarray(raw[..., :2]).view(np.float16).astype(np.float32)
        body = raw[..., 2:]
        codes = unpacked(body, 4, True) if f.bits == 4 else body.view(np.int8)
        return np.asarray(codes.astype(np.float32) * scale)
    exponent = raw[..., :1].astype(np.int32) - BIAS
    codes = unpacked(raw[..., 1:], 4, False) if f.bits == 4 else raw[..., 1:]
    half = 1 << (f.bits - 1)
    magnitude = (codes & (half - 1)).astype(np.float32)
    signed = np.where(codes & half, -magnitude, magnitude)
    return np.asarray(np.ldexp(signed, exponent - f.bits + 2))
