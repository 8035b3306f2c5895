"""Rotary position embedding: slices, maps and a concat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.labels import FIXED, MIXED
from meshc.ir.dtypes import NUMPY

Values = Sequence[Value | None]


def rotate(b: Builder, x: Value, cos: Value, sin: Value, interleaved: bool, tag: str = "") -> Value:
    """Rotate pairs of the last dimension of x; cos and sin broadcast to x with half as many.

    The pairs are (i, i + half) or, interleaved, (2i, 2i + 1): x · cos + swapped(x) · ±sin, one map
    over x and views of it. Elements behind the rotated ones (partial rotary) keep their value.
    """
    half, size = cos.shape[-1], x.shape[-1]
    last, d = x.rank - 1, x.dtype
    wide_cos, wide_sin = _wide_tables(b, cos, sin, size, interleaved)
    if interleaved:
        shape, labels = (*x.shape[:-1], half, 2), (*x.labels[:-1], FIXED, FIXED)
        turned = (
            x if 2 * half == size else b.slice(x, last, 0, 2 * half, FIXED, suffix=f"{tag}head")
        )
        pairs = b.reshape(turned, shape, labels, f"{tag}pairs")
        sides = [b.slice(pairs, x.rank, i, 1, FIXED, suffix=f"{tag}side{i}") for i in (1, 0)]
        swapped = b.concat(sides, x.rank, f"{tag}swapped.pairs")
        parts = [b.reshape(swapped, turned.shape, turned.labels, f"{tag}swapped.flat")]
    else:
        parts = [
            b.slice(x, last, half, half, FIXED, suffix=f"{tag}high"),
            b.slice(x, last, 0, half, FIXED, suffix=f"{tag}low"),
        ]
    if 2 * half < size:
        parts.append(b.slice(x, last, 2 * half, size - 2 * half, FIXED, suffix=f"{tag}rest"))
    other = parts[0] if len(parts) == 1 else b.concat(parts, last, f"{tag}swapped")
    steps: list[tuple[Any, ...]] = [
        ("mul", (("in", 0), ("in", 1)), d),
        ("mul", (("in", 2), ("in", 3)), d),
        ("add", (("step", 0), ("step", 1)), d),
    ]
    return b.map(steps, [x, wide_cos, other, wide_sin], f"{tag}rotated")


def _wide_tables(
    b: Builder, cos: Value, sin: Value, size: int, interleaved: bool
) -> tuple[Value, Value]:
    """Factors of x and of its swapped pairs for all `size` elements."""
    half, last = cos.shape[-1], cos.rank - 1
    rest = size - 2 * half
    opposite = b.apply("neg", sin, suffix="opposite")
    tables = []
    for name, pair in (("cosines", (cos, cos)), ("sines", (opposite, sin))):
        if interleaved:
            parts = [b.insert_axis(p, cos.rank, f"{name}.column") for p in pair]
            table = b.concat(parts, cos.rank, f"{name}.pairs")
            shape = (*cos.shape[:-1], 2 * half)
            table = b.reshape(table, shape, (*cos.labels[:-1], FIXED), f"{name}.flat")
        else:
            table = b.concat(pair, last, name)
        if rest:
            shape = (*cos.shape[:-1], rest)
            array = np.full(shape, float(name == "cosines")).astype(NUMPY[cos.dtype])
            const = Const.of(array, cos.dtype, MIXED)
            key = (f"{name}.rest", shape, cos.dtype)
            still = b.once(key, lambda const=const: const, (*cos.labels[:-1], FIXED))  # type: ignore[misc]
            table = b.concat([table, still], last, f"{name}.whole")
        tables.append(table)
    return tables[0], tables[1]


def table_rows(b: Builder, table: Value, positions: Value, suffix: str) -> Value:
    """Rows of a cosine or sine table, checked against its size."""
    if positions.const is not None:
        top = int(positions.const.array().max(initial=0))
        if top >= table.shape[0]:
            raise InputError(
                f"Node '{b.scope}' needs position {top} of the table '{table.name}', which has "
                f"{table.shape[0]} rows; lower --context, --prompt or --max-context."
            )
    return b.gather(table, positions, 0, suffix)


def split_heads(b: Builder, x: Value, heads: int, suffix: str) -> Value:
    """[B, S, H·D] → [B, S, H, D]."""
    if heads <= 0 or x.shape[2] % heads:
        raise Unsupported(f"of width {x.shape[2]} with {heads} heads")
    return b.reshape(
        x,
        (*x.shape[:2], heads, x.shape[2] // heads),
        (*x.labels[:2], FIXED, FIXED),
        suffix,
    )


def merge_heads(b: Builder, x: Value, suffix: str) -> Value:
    """[B, S, H, D] → [B, S, H·D]."""
    return b.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3]), (*x.labels[:2], FIXED), suffix)


def _embed(
    b: Builder, call: Call, x: Value, cos: Value, sin: Value, heads: int, interleaved: bool
) -> Value:
    """cos and sin [B or 1, S, half]; x [B, S, H·D] or [B, H, S, D]."""
    axis = 2 if x.rank == 3 else 1
    wide = split_heads(b, x, heads, "heads") if x.rank == 3 else x
    out = rotate(
        b, wide, _as_row(b, cos, axis, x.dtype), _as_row(b, sin, axis, x.dtype), interleaved
    )
    return merge_heads(b, out, "merge") if x.rank == 3 else out


def _as_row(b: Builder, table: Value, axis: int, dtype: str) -> Value:
    """A table with a dimension for the heads."""
    return b.cast(b.insert_axis(table, axis, "row"), dtype)


def _half(b: Builder, table: Value, half: int, suffix: str) -> Value:
    """The first `half` columns, where the table is wider than what is rotated."""
    if half == table.shape[-1]:
        return table
    return b.slice(table, table.rank - 1, 0, half, FIXED, suffix=suffix)


def rotary(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """ai.onnx RotaryEmbedding (opset 23): X, cos, sin, position_ids."""
    v, cos, sin = need(x, 0), need(x, 1), need(x, 2)
    positions = optional(x, 3)
    if positions is not None:
        cos, sin = table_rows(b, cos, positions, "cos"), table_rows(b, sin, positions, "sin")
    dim = int(call.attr("rotary_embedding_dim", 0))
    if dim:
        cos, sin = _half(b, cos, dim // 2, "cos.cut"), _half(b, sin, dim // 2, "sin.cut")
    heads = int(call.attr("num_heads", 0))
    return [_embed(b, call, v, cos, sin, heads, bool(call.attr("interleaved", 0)))]


def contrib_rotary(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """com.microsoft RotaryEmbedding: X, position_ids ([B, S] or one offset), cos, sin tables."""
    v, positions, cos, sin = need(x, 0), need(x, 1), need(x, 2), need(x, 3)
    call.ignore("scale")  # ONNX Runtime has the attribute and multiplies by nothing
    call.ignore("is_packed_batching")  # only says that sequences may be longer than the tables
    tokens = v.shape[1] if v.rank == 3 else v.shape[2]
    label = v.labels[1] if v.rank == 3 else v.labels[2]
    if positions.rank == 1:
        count = Const.of(np.arange(tokens, dtype=np.int64), "int64", MIXED)
        steps = b.once(("range", tokens), lambda: count, (label,))
        shifted = b.apply("add", positions, steps, suffix="positions")
        positions = b.reshape(shifted, (1, tokens), (FIXED, label), "positions.row")
    heads = int(call.attr("num_heads", 0))
    dim = int(call.attr("rotary_embedding_dim", 0))
    if v.rank == 3 and not heads:
        if dim:
            raise Unsupported("with rotary_embedding_dim and without num_heads")
        heads = v.shape[2] // (2 * cos.shape[1])
    cos, sin = table_rows(b, cos, positions, "cos"), table_rows(b, sin, positions, "sin")
    return [_embed(b, call, v, cos, sin, heads, bool(call.attr("interleaved", 0)))]


def gemma_rotary(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """com.microsoft GemmaRotaryEmbedding: angles [B, S, D], and queries and keys [B, H, S, D] with
    what they are rotated towards."""
    angles = need(x, 0)
    out: list[Value | None] = []
    tables = [b.apply(fn, angles, suffix=fn) for fn in ("cos", "sin")]
    for i, name in ((1, "query"), (3, "key")):
        v, other = need(x, i), need(x, i + 1)
        cos, sin = (b.insert_axis(b.cast(t, v.dtype), 1, f"{name}.row") for t in tables)
        steps: list[tuple[Any, ...]] = [
            ("mul", (("in", 0), ("in", 1)), v.dtype),
            ("mul", (("in", 2), ("in", 3)), v.dtype),
            ("add", (("step", 0), ("step", 1)), v.dtype),
        ]
        out.append(b.map(steps, [v, cos, other, sin], f"{name}.rotated"))
    return out


TABLE: dict[tuple[str, str], Lowering] = {
    ("com.microsoft", "GemmaRotaryEmbedding"): gemma_rotary,
    ("", "RotaryEmbedding"): rotary,
    ("com.microsoft", "RotaryEmbedding"): contrib_rotary,
}
