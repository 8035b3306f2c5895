"""ONNX Runtime's attention operators with one key per query head, and BERT's embedding."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.formula import inner_dtype
from meshc.frontend.labels import BATCH, FIXED, MIXED, NEW, TOTAL
from meshc.frontend.lower_attention import additive, attend, causal
from meshc.frontend.lower_norm import layer
from meshc.frontend.lower_rotary import merge_heads, split_heads

Values = Sequence[Value | None]


def _heads_first(b: Builder, x: Value, heads: int, name: str) -> Value:
    """[B, S, H·D] → [B, H, S, D]; a tensor of rank 4 is that already."""
    if x.rank == 4:
        return x
    return b.transpose(split_heads(b, x, heads, f"{name}.heads"), (0, 2, 1, 3), f"{name}.turn")


def _padding(b: Builder, mask: Value, total: int, value: float, inner: str) -> Value:
    """A padding mask [B, T], or lengths [B], as [B, 1, 1, T] that is added: `value` where
    nothing is to be seen."""
    if mask.rank > 2 or (mask.rank == 1 and mask.const is None):
        raise Unsupported(f"with a padding mask of rank {mask.rank}")
    if mask.rank == 1 and mask.const is not None:
        sizes, cols = mask.const.array(), np.arange(total)
        inside = Const.of((cols[None] < sizes[:, None]).astype(np.int32), "int32", MIXED)
        mask = b.once(("inside", total, sizes.tobytes()), lambda: inside, (BATCH, TOTAL))
    hidden = b.apply("equal", mask, 0, dtype="bool", suffix="padding")
    added = b.apply("where", hidden, value, 0.0, dtype=inner, suffix="padding.added")
    return b.insert_axis(b.insert_axis(added, 1, "padding.a"), 1, "padding.b")


def _mask(
    b: Builder, call: Call, q: Value, k: Value, padding: Value | None, bias: Value | None, past: int
) -> Value | None:
    """Causality, padding and bias as one additive tensor."""
    inner = inner_dtype(q.dtype)
    filtered = float(call.attr("mask_filter_value", -10000.0))
    parts: list[Value] = []
    if call.attr("unidirectional", 0):
        parts.append(additive(b, causal(b, q.shape[2], k.shape[2], past), inner))
    if padding is not None:
        parts.append(_padding(b, padding, k.shape[2], filtered, inner))
    if bias is not None:
        parts.append(b.cast(bias, inner))
    total = None
    for part in parts:
        total = part if total is None else b.apply("add", total, part, dtype=inner, suffix="mask")
    return total


def _attend(b: Builder, call: Call, q: Value, k: Value, v: Value, mask: Value | None) -> Value:
    scale = float(call.attr("scale", 0.0)) or 1.0 / sqrt(q.shape[3])
    out = attend(b, q, k, v, scale, mask)
    return merge_heads(b, b.transpose(out, (0, 2, 1, 3), "turn"), "merge")


def multi_head_attention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Q, K, V, bias of all three, padding mask, attention bias, past key, past value."""
    q, k, v = need(x, 0), optional(x, 1), optional(x, 2)
    if q.rank != 3 or k is None or v is None or k.rank == 5:
        raise Unsupported("with packed projections")
    if any(optional(x, i) is not None for i in (8, 9)) or call.wants(3):
        raise Unsupported("with a shared buffer, beams or qk as an output")
    heads = int(call.attr("num_heads"))
    bias = optional(x, 3)
    if bias is not None:
        start, parts = 0, []
        for name, part in (("query", q), ("key", k), ("value", v)):
            if part.rank != 3:
                raise Unsupported("with a bias on a cached key")
            width = part.shape[2]
            own = b.slice(bias, 0, start, width, FIXED, suffix=f"{name}.bias.part")
            parts.append(b.apply("add", part, own, suffix=f"{name}.bias"))
            start += width
        q, k, v = parts
    q = _heads_first(b, q, heads, "query")
    k, v = _heads_first(b, k, heads, "key"), _heads_first(b, v, heads, "value")
    past_k, past_v = optional(x, 6), optional(x, 7)
    past = 0
    if past_k is not None and past_v is not None:
        past = past_k.shape[2]
        k, v = b.append(past_k, k, 2, "key.append"), b.append(past_v, v, 2, "value.append")
    mask = _mask(b, call, q, k, optional(x, 4), optional(x, 5), past)
    return [_attend(b, call, q, k, v, mask), k, v][: call.outputs]


def packed_attention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """com.microsoft Attention: input, weights and bias of all three projections, mask."""
    both = b.matmul(need(x, 0), need(x, 1), suffix="projections")
    bias = optional(x, 2)
    if bias is not None:
        both = b.apply("add", both, bias, suffix="projections.bias")
    return attention_of(b, call, both, optional(x, 3), optional(x, 4), optional(x, 5))


def attention_of(
    b: Builder, call: Call, both: Value, padding: Value | None, past: Value | None,
    added: Value | None,
) -> Sequence[Value | None]:  # fmt: skip
    """Attention of queries, keys and values that lie behind each other in the last dimension."""
    if past is not None or call.wants(1):
        raise Unsupported("with a past")
    if call.attr("do_rotary", 0):
        raise Unsupported("with do_rotary")
    heads = int(call.attr("num_heads"))
    widths = [int(n) for n in call.attr("qkv_hidden_sizes", ())] or [both.shape[2] // 3] * 3
    parts, start = [], 0
    for name, width in zip(("query", "key", "value"), widths, strict=True):
        part = b.slice(both, 2, start, width, FIXED, suffix=f"{name}.part")
        parts.append(_heads_first(b, part, heads, name))
        start += width
    q, k, v = parts
    mask = _mask(b, call, q, k, padding, added, 0)
    return [_attend(b, call, q, k, v, mask)]


def embed_layer_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Word, position and segment embeddings added and normalised."""
    lengths = None
    if call.wants(1):
        lengths = b.reduce("sum", need(x, 7), [1], keepdims=False, suffix="lengths")
    ids, positions, segments = need(x, 0), optional(x, 8), optional(x, 1)
    total = b.gather(need(x, 2), ids, 0, "words")
    if positions is None:
        rows = Const.of(np.arange(ids.shape[1], dtype=np.int64), "int64", MIXED)
        positions = b.once(("positions", ids.shape[1]), lambda: rows, (NEW,))
    total = b.apply("add", total, b.gather(need(x, 3), positions, 0, "places"), suffix="placed")
    if segments is not None:
        total = b.apply("add", total, b.gather(need(x, 4), segments, 0, "kinds"), suffix="sum")
    out, _, _ = layer(b, call, total, need(x, 5), optional(x, 6), [total.rank - 1], 1e-12)
    return [out, lengths, total][: call.outputs]


TABLE: dict[tuple[str, str], Lowering] = {
    ("com.microsoft", "MultiHeadAttention"): multi_head_attention,
    ("com.microsoft", "Attention"): packed_attention,
    ("com.microsoft", "EmbedLayerNormalization"): embed_layer_norm,
}
