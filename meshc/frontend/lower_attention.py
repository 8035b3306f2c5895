"""Fused attention operators as matmuls and a softmax in fp32.

Grouped heads are never repeated: the queries of a group become one more dimension, and the keys
and values get a dimension of size one that broadcasts against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, known, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.formula import inner_dtype
from meshc.frontend.labels import BATCH, FIXED, MIXED, NEW, TOTAL
from meshc.frontend.lower_rotary import merge_heads, rotate, split_heads, table_rows
from meshc.frontend.quantcache import codecs
from meshc.ir.dtypes import NUMPY

Values = Sequence[Value | None]
LOWEST = float(np.finfo(np.float32).min)


def attend(
    b: Builder,
    q: Value,
    k: Value,
    v: Value,
    scale: float,
    mask: Value | None = None,
    softcap: float = 0.0,
) -> Value:
    """softmax(scale · q kᵀ, capped, + mask) v.

    q [B, H, S, D], k [B, KV, T, D], v [B, KV, T, E], mask broadcasts to [B, H, S, T] and is added
    in fp32. Returns [B, H, S, E] in q's dtype.
    """
    inner = inner_dtype(q.dtype)
    heads, groups = q.shape[1], k.shape[1]
    if heads % groups:
        raise Unsupported(f"with {heads} heads on {groups} cached heads")
    shape, labels = q.shape, q.labels
    if heads != groups:
        q = _group(b, q, groups, "query")
        k, v = b.insert_axis(k, 2, "key.group"), b.insert_axis(v, 2, "value.group")
        if mask is not None:
            mask = _group(b, mask, groups, "mask.group")
    scores = b.matmul(q, k, transpose_b=True, dtype=inner, suffix="scores")
    steps: list[tuple[Any, ...]] = [("mul", (("in", 0), scale), inner)]
    if softcap:
        steps.append(("mul", (("step", len(steps) - 1), 1.0 / softcap), inner))
        steps.append(("tanh", (("step", len(steps) - 1),), inner))
        steps.append(("mul", (("step", len(steps) - 1), softcap), inner))
    operands = [scores]
    if mask is not None:
        steps.append(("add", (("step", len(steps) - 1), ("in", 1)), inner))
        operands.append(b.cast(mask, inner))
    scores = b.map(steps, operands, "scaled")
    weights = b.softmax(scores, scores.rank - 1, q.dtype, inner)
    out = b.matmul(weights, v, dtype=q.dtype, suffix="mix")
    if heads != groups:
        last = (v.shape[-1], v.labels[-1])
        out = b.reshape(out, (*shape[:3], last[0]), (*labels[:3], last[1]), "ungroup")
    return out


def _group(b: Builder, x: Value, groups: int, suffix: str) -> Value:
    """[B, H, S, ·] → [B, KV, H / KV, S, ·]; a single head stays single."""
    outer, inner = (1, 1) if x.shape[1] == 1 else (groups, x.shape[1] // groups)
    shape = (x.shape[0], outer, inner, *x.shape[2:])
    return b.reshape(x, shape, (x.labels[0], FIXED, FIXED, *x.labels[2:]), suffix)


def causal(b: Builder, new: int, total: int, offset: int, window: int = 0) -> Value:
    """Bool [1, 1, S, T]: new token i sees cached positions up to i + offset, the last `window`
    of them if that is positive."""

    def make() -> Const:
        rows = np.arange(new)[:, None] + offset
        cols = np.arange(total)[None, :]
        seen = cols <= rows
        if window > 0:
            seen &= cols > rows - window
        return Const.of(seen[None, None], "bool", MIXED)

    key = ("causal", new, total, offset, window)
    return b.once(key, make, (FIXED, FIXED, NEW, TOTAL))


def valid(b: Builder, new: int, total: int, lengths: np.ndarray, is_causal: bool) -> Value:
    """Bool [B, 1, S, T]: the first `lengths` cached positions of each sequence, of which a causal
    new token sees those up to its own, the last new token being the last valid one."""

    def make() -> Const:
        size = lengths.reshape(-1, 1, 1, 1)
        cols = np.arange(total)[None, None, None, :]
        seen = np.broadcast_to(cols < size, (len(lengths), 1, new, total))
        if is_causal:
            seen = seen & (cols <= np.arange(new)[None, None, :, None] + size - new)
        return Const.of(seen, "bool", MIXED)

    key = ("valid", new, total, lengths.tobytes(), is_causal)
    return b.once(key, make, (BATCH, FIXED, NEW, TOTAL))


def additive(b: Builder, mask: Value, inner: str) -> Value:
    """A bool mask as zeros and the lowest float; a float mask in the inner type."""
    if mask.dtype != "bool":
        return b.cast(mask, inner)
    return b.apply("where", mask, 0.0, LOWEST, dtype=inner, suffix="additive")


def _combined(b: Builder, mask: Value | None, seen: Value | None, inner: str) -> Value | None:
    """Mask and causality in one additive tensor."""
    if mask is None:
        return None if seen is None else additive(b, seen, inner)
    mask = additive(b, mask, inner)
    if seen is None:
        return mask
    return b.apply("where", seen, mask, LOWEST, dtype=inner, suffix="mask")


def _padded(b: Builder, mask: Value, total: int) -> Value:
    """A mask of rank 4 over all cached tokens; what a shorter one leaves out is not seen."""
    while mask.rank < 4:
        mask = b.insert_axis(mask, 0, "mask.rank")
    missing = total - mask.shape[3]
    if missing > 0 and mask.shape[3] != 1:
        fill: Any = False if mask.dtype == "bool" else LOWEST
        shape = (*mask.shape[:3], missing)
        pad = b.once(
            ("pad", shape, mask.dtype),
            lambda: Const.of(np.full(shape, fill, NUMPY[mask.dtype]), mask.dtype, MIXED),
            (*mask.labels[:3], MIXED),
        )
        mask = b.concat([mask, pad], 3, "mask.pad")
    return mask


def attention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """ai.onnx Attention (opset 23, 24): Q, K, V, mask, past key, past value, valid lengths."""
    q, k, v = need(x, 0), need(x, 1), need(x, 2)
    if call.wants(3):
        raise Unsupported("with qk_matmul_output")
    flat = q.rank == 3
    if flat:
        heads, groups = int(call.attr("q_num_heads", 0)), int(call.attr("kv_num_heads", 0))
        q = b.transpose(split_heads(b, q, heads, "query.heads"), (0, 2, 1, 3), "query.turn")
        k = b.transpose(split_heads(b, k, groups, "key.heads"), (0, 2, 1, 3), "key.turn")
        v = b.transpose(split_heads(b, v, groups, "value.heads"), (0, 2, 1, 3), "value.turn")
    past_k, past_v = optional(x, 4), optional(x, 5)
    if past_k is not None:
        k = b.append(past_k, k, 2, "key.append")
    if past_v is not None:
        v = b.append(past_v, v, 2, "value.append")
    new, total = q.shape[2], k.shape[2]
    inner = inner_dtype(q.dtype)
    mask = optional(x, 3)
    seen = None
    if optional(x, 6) is not None:
        lengths = known(x, 6).array().reshape(-1)
        seen = valid(b, new, total, lengths, bool(call.attr("is_causal", 0)))
    elif call.attr("is_causal", 0):
        seen = causal(b, new, total, past_k.shape[2] if past_k is not None else 0)
    if mask is not None:
        mask = _padded(b, mask, total)
    scale = float(call.attr("scale", 0.0)) or 1.0 / sqrt(q.shape[3])
    out = attend(
        b, q, k, v, scale, _combined(b, mask, seen, inner), float(call.attr("softcap", 0.0))
    )
    if flat:
        out = merge_heads(b, b.transpose(out, (0, 2, 1, 3), "turn"), "merge")
    return [out, k, v][: call.outputs]


_GROUPED_ATTRS = frozenset(
    (
        *("num_heads", "kv_num_heads", "scale", "softcap", "local_window_size"),
        *("do_rotary", "rotary_interleaved", "k_quant_type", "v_quant_type"),
        "kv_cache_bit_width",
    )
)


def group_query_attention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """com.microsoft GroupQueryAttention: Q (or packed QKV), K, V, past key, past value, last
    positions, total length, cos and sin tables, position ids, bias."""
    for name in sorted(set(call.attrs) - _GROUPED_ATTRS):
        if call.attr(name) not in (0, 0.0, "", "NONE"):
            raise Unsupported(f"with {name}")
    if optional(x, 11) is not None:
        raise Unsupported("with head_sink")
    heads, groups = int(call.attr("num_heads")), int(call.attr("kv_num_heads"))
    q = need(x, 0)
    if optional(x, 1) is None:
        size = q.shape[2] // (heads + 2 * groups)
        width = (heads * size, groups * size)
        packed = q
        q = b.slice(packed, 2, 0, width[0], FIXED, suffix="query.part")
        k = b.slice(packed, 2, width[0], width[1], FIXED, suffix="key.part")
        v = b.slice(packed, 2, sum(width), width[1], FIXED, suffix="value.part")
    else:
        k, v = need(x, 1), need(x, 2)
    q = split_heads(b, q, heads, "query.heads")
    k = k if k.rank == 4 else split_heads(b, k, groups, "key.heads")
    v = v if v.rank == 4 else split_heads(b, v, groups, "value.heads")
    new = q.shape[1]
    last = known(x, 5).array().reshape(-1)
    if len(set(last.tolist())) > 1:
        raise Unsupported("with sequences of different lengths")
    total = int(last[0]) + 1
    if call.attr("do_rotary", 0):
        q, k = _rotated(b, call, x, q, k, total - new)
    q = b.transpose(q, (0, 2, 1, 3), "query.turn")
    k = b.transpose(k, (0, 2, 1, 3), "key.turn")
    v = b.transpose(v, (0, 2, 1, 3), "value.turn")
    small = codecs(b, call, x, groups, q.shape[3])
    if small:
        k, v = small[0].stored(b, k), small[1].stored(b, v)
    past_k, past_v = optional(x, 3), optional(x, 4)
    if past_k is not None and past_v is not None:
        k, v = b.append(past_k, k, 2, "key.append"), b.append(past_v, v, 2, "value.append")
    keys, values = k, v
    if small:
        keys, values = small[0].read(b, k, q.dtype), small[1].read(b, v, q.dtype)
    if k.shape[2] != total:
        raise Unsupported(f"with {total} valid tokens in a cache of {k.shape[2]}")
    window = max(int(call.attr("local_window_size", -1)), 0)
    inner = inner_dtype(q.dtype)
    bias = optional(x, 10)
    seen = None
    if call.phase != "decode" or window:  # a single new token sees the whole cache
        seen = causal(b, new, total, total - new, window)
    if bias is not None:
        bias = _padded(b, bias, total)
    scale = float(call.attr("scale", 0.0)) or 1.0 / sqrt(q.shape[3])
    out = attend(
        b, q, keys, values, scale, _combined(b, bias, seen, inner),
        float(call.attr("softcap", 0.0)),
    )  # fmt: skip
    out = merge_heads(b, b.transpose(out, (0, 2, 1, 3), "turn"), "merge")
    return [out, k, v][: call.outputs]


def _rotated(
    b: Builder, call: Call, x: Values, q: Value, k: Value, start: int
) -> tuple[Value, Value]:
    """Queries and keys [B, S, H, D] turned by their positions, which begin at `start`."""
    positions = optional(x, 9)
    if positions is None:

        def make() -> Const:
            rows = np.arange(start, start + q.shape[1], dtype=np.int64)
            return Const.of(rows[None], "int64", MIXED)

        positions = b.once(("positions", start, q.shape[1]), make, (FIXED, NEW))
    tables = []
    for i, tag in ((7, "cos"), (8, "sin")):
        rows = table_rows(b, need(x, i), positions, tag)
        tables.append(b.cast(b.insert_axis(rows, 2, f"{tag}.row"), q.dtype))
    turned = bool(call.attr("rotary_interleaved", 0))
    return (
        rotate(b, q, tables[0], tables[1], turned, "query."),
        rotate(b, k, tables[0], tables[1], turned, "key."),
    )


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "Attention"): attention,
    ("com.microsoft", "GroupQueryAttention"): group_query_attention,
}
