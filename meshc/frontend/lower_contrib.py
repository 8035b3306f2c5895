"""ONNX Runtime's attention operators with one key per query head, and BERT's embedding."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.formula import inner_dtype
from meshc.frontend.indexing import iota
from meshc.frontend.labels import BATCH, BUFFER, FIXED, MIXED, NEW, TOTAL
from meshc.frontend.lower_attention import additive, attend, causal, padded
from meshc.frontend.lower_fold import write_rows
from meshc.frontend.lower_norm import layer
from meshc.frontend.lower_rotary import merge_heads, split_heads

Values = Sequence[Value | None]


def _heads_first(b: Builder, x: Value, heads: int, name: str) -> Value:
    """[B, S, H·D] → [B, H, S, D]; a tensor of rank 4 is that already."""
    if x.rank == 4:
        return x
    return b.transpose(split_heads(b, x, heads, f"{name}.heads"), (0, 2, 1, 3), f"{name}.turn")


def _padding(b: Builder, mask: Value, batch: int, total: int, value: float, inner: str) -> Value:
    """What a padding mask adds to the scores, `value` where nothing is to be seen.

    mask: [B, T] or [B, S, T] with zeros there, or where each sequence ends [B], ends and begins
    [2 · B], or its length in the first B of 3 · B + 2 numbers.
    """
    if mask.rank > 3:
        raise Unsupported(f"with a padding mask of rank {mask.rank}")
    if mask.rank == 1:
        count = mask.shape[0]
        if count not in (batch, 2 * batch, 3 * batch + 2):
            raise Unsupported(f"with a padding mask of {count} numbers for {batch} sequences")
        cols = b.reshape(iota(b, total, TOTAL, mask.dtype), (1, total), (FIXED, TOTAL), "cols")

        def bound(i: int) -> Value:
            part = b.slice(mask, 0, i * batch, batch, BATCH, suffix=f"bound{i}", exact=False)
            return b.reshape(part, (batch, 1), (BATCH, FIXED), f"bound{i}.column")

        seen = b.apply("less", cols, bound(0), suffix="inside")
        if count == 2 * batch and count != batch:
            begun = b.apply("greaterorequal", cols, bound(1), suffix="begun")
            seen = b.apply("and", seen, begun, suffix="seen")
        hidden = b.apply("not", seen, dtype="bool", suffix="padding")
    else:
        if mask.shape[-1] != total:
            raise Unsupported(f"with a padding mask for {mask.shape[-1]} of {total} keys")
        hidden = b.apply("equal", mask, 0, dtype="bool", suffix="padding")
    added = b.apply("where", hidden, value, 0.0, dtype=inner, suffix="padding.added")
    if added.rank == 2:
        added = b.insert_axis(added, 1, "padding.a")
    return b.insert_axis(added, 1, "padding.b")


def _mask(
    b: Builder, call: Call, q: Value, k: Value, padding: Value | None, bias: Value | None,
    past: int, valid: Value | None = None,
) -> Value | None:  # fmt: skip
    """Causality, padding and bias as one additive tensor. valid: what is in use of a buffer."""
    inner = inner_dtype(q.dtype)
    filtered = float(call.attr("mask_filter_value", -10000.0))
    parts: list[Value] = []
    if call.attr("unidirectional", 0):
        parts.append(additive(b, causal(b, q.shape[2], k.shape[2], past), inner))
    if valid is not None:
        parts.append(additive(b, valid, inner))
    if padding is not None:
        parts.append(_padding(b, padding, q.shape[0], k.shape[2], filtered, inner))
    if bias is not None:
        parts.append(b.cast(padded(b, bias, k.shape[2]), inner))
    total = None
    for part in parts:
        total = part if total is None else b.apply("add", total, part, dtype=inner, suffix="mask")
    return total


def _attend(
    b: Builder, call: Call, q: Value, k: Value, v: Value, mask: Value | None, scores: int = -1
) -> tuple[Value, list[Value]]:
    """Output [B, S, H · E] and, if output `scores` is wanted, the masked scores."""
    scale = float(call.attr("scale", 0.0)) or 1.0 / sqrt(q.shape[3])
    stages = ["masked"] if call.wants(scores) else []
    done = attend(b, q, k, v, scale, mask, stages=stages)
    out = merge_heads(b, b.transpose(done.out, (0, 2, 1, 3), "turn"), "merge")
    return out, list(done.scores.values())


def _unpacked(b: Builder, call: Call, x: Values, heads: int) -> list[Value]:
    """Queries, keys and values as [B, S, H · D], or [B, H, S, D] where they are that already."""
    q, k, v = need(x, 0), optional(x, 1), optional(x, 2)

    def parts(packed: Value, count: int, name: str) -> list[Value]:
        """[B, S, H, count, D] → count tensors [B, S, H · D]."""
        shape = (*packed.shape[:2], heads * packed.shape[4])
        labels = (*packed.labels[:2], FIXED)
        found = []
        for i in range(count):
            one = b.slice(packed, 3, i, 1, FIXED, suffix=f"{name}.part{i}")
            found.append(b.reshape(one, shape, labels, f"{name}.flat{i}"))
        return found

    if q.rank == 5:
        return parts(q, 3, "packed")
    if k is None:  # queries, keys and values behind each other
        width = q.shape[2] // 3
        return [b.slice(q, 2, i * width, width, FIXED, suffix=f"part{i}") for i in range(3)]
    if k.rank == 5:
        return [q, *parts(k, 2, "packed")]
    if v is None:
        raise Unsupported("without its input 2")
    return [q, k, v]


def _biased(b: Builder, bias: Value, q: Value, k: Value, v: Value) -> list[Value]:
    """Each projection with its part of the bias; keys and values that are cached have theirs."""
    start, parts = 0, []
    for name, part in (("query", q), ("key", k), ("value", v)):
        width = part.shape[2] if part.rank == 3 else part.shape[1] * part.shape[3]
        if part.rank == 3:
            own = b.slice(bias, 0, start, width, FIXED, suffix=f"{name}.bias.part")
            part = b.apply("add", part, own, suffix=f"{name}.bias")
        parts.append(part)
        start += width
    return parts


def _joined(
    b: Builder, k: Value, v: Value, past_k: Value | None, past_v: Value | None,
    length: Value | None, shared: bool,
) -> tuple[Value, Value, int, Value | None]:  # fmt: skip
    """Keys and values with those that are cached, the number of cached ones, and what is in use of
    them where they are a buffer. length: tokens that the buffer holds."""
    if past_k is None or past_v is None:
        return k, v, 0, None
    if not shared:
        past = past_k.shape[2]
        k, v = b.append(past_k, k, 2, "key.append"), b.append(past_v, v, 2, "value.append")
        return k, v, past, None
    if length is None or length.const is None:
        raise Unsupported("with a buffer whose length in use is known at run time only")
    past, new = int(length.const.array().reshape(-1)[0]), k.shape[2]
    k, v = write_rows(b, past_k, k, 2, past), write_rows(b, past_v, v, 2, past)
    seen = np.arange(k.shape[2]) < past + new
    const = Const.of(seen[None, None, None], "bool", MIXED)
    key = ("in use", k.shape[2], past + new)
    return k, v, past, b.once(key, lambda: const, (FIXED, FIXED, FIXED, BUFFER))


def multi_head_attention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Q, K, V, bias of all three, padding mask, attention bias, past key, past value, tokens in
    use of a shared buffer."""
    if optional(x, 9) is not None:
        raise Unsupported("with beams")
    heads = int(call.attr("num_heads"))
    q, k, v = _unpacked(b, call, x, heads)
    bias = optional(x, 3)
    if bias is not None:
        q, k, v = _biased(b, bias, q, k, v)
    q = _heads_first(b, q, heads, "query")
    k, v = _heads_first(b, k, heads, "key"), _heads_first(b, v, heads, "value")
    length = optional(x, 8)
    k, v, past, valid = _joined(b, k, v, optional(x, 6), optional(x, 7), length, length is not None)
    mask = _mask(b, call, q, k, optional(x, 4), optional(x, 5), past, valid)
    out, scores = _attend(b, call, q, k, v, mask, 3)
    return [out, k, v, *scores][: call.outputs]


def decoder_attention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """DecoderMaskedMultiHeadAttention, one new token: Q, K, V, padding mask, attention bias, past
    key, past value, tokens in use, beams, their indirection, bias."""
    width = optional(x, 8)
    beams = width is not None and (
        width.const is None or int(width.const.array().reshape(-1)[0]) > 1
    )
    if beams or optional(x, 9) is not None:
        raise Unsupported("with beams")
    heads = int(call.attr("num_heads"))
    q, k, v = _unpacked(b, call, x, heads)
    bias = optional(x, 10)
    if bias is not None:
        q, k, v = _biased(b, bias, q, k, v)
    q = _heads_first(b, q, heads, "query")
    k, v = _heads_first(b, k, heads, "key"), _heads_first(b, v, heads, "value")
    shared = bool(call.attr("past_present_share_buffer", 0))
    k, v, past, valid = _joined(b, k, v, optional(x, 5), optional(x, 6), optional(x, 7), shared)
    mask = _mask(b, call, q, k, optional(x, 3), optional(x, 4), past, valid)
    if call.wants(3) and (valid is not None or not call.attr("output_qk", 0)):
        raise Unsupported("with the scores over a buffer as an output")
    call.ignore("output_qk")
    out, scores = _attend(b, call, q, k, v, mask, 3)
    return [out, k, v, *scores][: call.outputs]


def packed_attention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """com.microsoft Attention: input, weights and bias of all three projections, mask, past, bias
    of the scores, tokens in use of a shared buffer."""
    both = b.matmul(need(x, 0), need(x, 1), suffix="projections")
    bias = optional(x, 2)
    if bias is not None:
        both = b.apply("add", both, bias, suffix="projections.bias")
    return attention_of(
        b, call, both, optional(x, 3), optional(x, 4), optional(x, 5), optional(x, 6)
    )


def attention_of(
    b: Builder, call: Call, both: Value, padding: Value | None, past: Value | None,
    added: Value | None, length: Value | None = None,
) -> Sequence[Value | None]:  # fmt: skip
    """Attention of queries, keys and values that lie behind each other in the last dimension.

    past: keys and values [2, B, H, P, D].
    """
    if call.attr("do_rotary", 0):
        raise Unsupported("with do_rotary")
    call.ignore("rotary_embedding_dim")
    shared = bool(call.attr("past_present_share_buffer", 0))
    heads = int(call.attr("num_heads"))
    widths = [int(n) for n in call.attr("qkv_hidden_sizes", ())] or [both.shape[2] // 3] * 3
    parts, start = [], 0
    for name, width in zip(("query", "key", "value"), widths, strict=True):
        part = b.slice(both, 2, start, width, FIXED, suffix=f"{name}.part")
        parts.append(_heads_first(b, part, heads, name))
        start += width
    q, k, v = parts
    halves: list[Value | None] = [None, None]
    if past is not None:
        inside = (past.shape[1:], past.labels[1:])
        for i, name in enumerate(("key", "value")):
            one = b.slice(past, 0, i, 1, FIXED, suffix=f"{name}.past.part")
            halves[i] = b.reshape(one, *inside, f"{name}.past")
    k, v, cached, valid = _joined(b, k, v, halves[0], halves[1], length, shared)
    mask = _mask(b, call, q, k, padding, added, cached, valid)
    out, _ = _attend(b, call, q, k, v, mask)
    if not call.wants(1):
        return [out]
    return [out, b.concat([b.insert_axis(x, 0, "present.part") for x in (k, v)], 0, "present")]


def embed_layer_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Word, position and segment embeddings added and normalised."""
    lengths = None
    if call.wants(1) and optional(x, 7) is not None:
        lengths = b.reduce("sum", need(x, 7), [1], keepdims=False, suffix="lengths")
    elif call.wants(1):  # zeros, as ONNX Runtime has it
        zero, ids = b.constant(np.zeros((), np.int32), f"{b.scope}.zero"), need(x, 0)
        lengths = b.expand(zero, ids.shape[:1], ids.labels[:1], "lengths")
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
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): decoder_attention,
    ("com.microsoft", "Attention"): packed_attention,
    ("com.microsoft", "EmbedLayerNormalization"): embed_layer_norm,
}
