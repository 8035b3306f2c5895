"""Caches of small integers: keys and values are rounded when they are appended and multiplied as
the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, known, need, optional
from meshc.frontend.labels import FIXED
from meshc.frontend.lower_quant import dequantised, quantised

Values = Sequence[Value | None]
KINDS = ("PER_TENSOR", "PER_CHANNEL")


@dataclass(frozen=True)
class Codec:
    """How keys or values lie in their cache.

    scale: one number, or one per head and channel as [1, KV, 1, D].   bits: 8, or 4 with two
    numbers in a byte, the first in the low bits, each with 8 added.
    """

    scale: Value
    bits: int
    name: str

    def stored(self, b: Builder, x: Value) -> Value:
        """[B, KV, S, D] as int8, or as bytes [B, KV, S, D / 2]."""
        kind = "int8" if self.bits == 8 else "int4"
        codes = quantised(b, x, self.scale, None, kind, suffix=f"{self.name}.codes")
        if self.bits == 8:
            return codes
        if x.shape[-1] % 2 or x.labels[-1] != FIXED:
            raise Unsupported("with an odd head size in a cache of 4 bits")
        low, high = (
            b.slice(codes, -1, i, x.shape[-1] // 2, FIXED, step=2, suffix=f"{self.name}.half{i}")
            for i in (0, 1)
        )
        steps: list[tuple[Any, ...]] = [
            ("cast", (("in", 0),), "int32"),
            ("cast", (("in", 1),), "int32"),
            ("mul", (("step", 1), 16), "int32"),
            ("add", (("step", 0), ("step", 2)), "int32"),
            ("add", (("step", 3), 8 + 16 * 8), "int32"),
            ("cast", (("step", 4),), "uint8"),
        ]
        return b.map(steps, [low, high], f"{self.name}.packed")

    def read(self, b: Builder, cache: Value, dtype: str) -> Value:
        """The numbers of a cache [B, KV, T, ·] as [B, KV, T, D]."""
        if self.bits == 8:
            return dequantised(b, cache, self.scale, None, dtype, f"{self.name}.numbers")
        codes = b.unpack(cache, 4, suffix=f"{self.name}.unpacked")
        middle = b.constant(8, f"{self.name}.middle")
        return dequantised(b, codes, self.scale, b.cast(middle, "fp32"), dtype,
                           f"{self.name}.numbers")  # fmt: skip


def codecs(b: Builder, call: Call, x: Values, groups: int, size: int) -> tuple[Codec, ...]:
    """Codecs of keys and values of a GroupQueryAttention; none where its cache is in floats."""
    kinds = [str(call.attr(f"{part}_quant_type", "NONE")) for part in "kv"]
    bits = int(call.attr("kv_cache_bit_width", 0))
    scales = optional(x, 12), optional(x, 13)
    if kinds == ["NONE", "NONE"]:
        if any(s is not None for s in scales) or bits:
            raise Unsupported("with scales of its cache and no k_quant_type")
        return ()
    if bits not in (4, 8) or any(k not in KINDS for k in kinds):
        raise Unsupported(f"with a cache of {bits} bits, quantised {' and '.join(kinds)}")
    found = []
    for name, kind, at in (("key", kinds[0], 12), ("value", kinds[1], 13)):
        scale, count = need(x, at), known(x, at).size
        shape = (1, groups, 1, size) if kind == "PER_CHANNEL" else ()
        if count != (groups * size if shape else 1):
            raise Unsupported(f"with {count} scales of its {name}s, quantised {kind}")
        flat = b.reshape(scale, shape, (FIXED,) * len(shape), f"{name}.scale")
        found.append(Codec(flat, bits, name))
    return tuple(found)
