"""ONNX Runtime's GroupQueryAttention: a cache, lengths instead of a mask, rotary inside.

The new tokens of sequence b stand at positions P[b] .. P[b] + S - 1, where P[b] follows from
seqlens_k. The cache is either as long as what was cached, then it grows; or longer, then it is a
buffer that the new tokens are written into; or it holds the last tokens of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from meshc.errors import InputError
from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, known, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.formula import inner_dtype
from meshc.frontend.indexing import iota, pick
from meshc.frontend.labels import FIXED, MIXED, NEW, TOTAL, Label
from meshc.frontend.lower_attention import attend, causal, combined, frontier, padded
from meshc.frontend.lower_fold import write_rows
from meshc.frontend.lower_norm import rms
from meshc.frontend.lower_rotary import merge_heads, rotate, split_heads, table_rows
from meshc.frontend.quantcache import codecs

Values = Sequence[Value | None]


@dataclass(frozen=True)
class Lengths:
    """Where the new tokens stand.

    last: last valid position of each sequence [B].   start: of the first new one [B].
    total: length of the longest sequence.   known: start, where it is known and the same for all.
    """

    last: Value
    start: Value
    total: int
    known: int | None


def group_query_attention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Q (or packed QKV), K, V, past key, past value, last positions, total length, cos and sin
    tables, position ids, bias, sinks, scales of a quantised cache, norms of Q and K."""
    if optional(x, 16) is not None:
        raise Unsupported("with query_seqlens")
    heads, groups = int(call.attr("num_heads")), int(call.attr("kv_num_heads"))
    q, k, v = _projections(b, x, heads, groups)
    q, k = _normed(b, call, x, q, k)
    new, inner = q.shape[1], inner_dtype(q.dtype)
    at = _lengths(b, x, q)
    if call.attr("do_rotary", 0):
        q, k = _rotated(b, call, x, q, k, at)
    else:
        call.ignore("rotary_interleaved")
    q = b.transpose(q, (0, 2, 1, 3), "query.turn")
    k = b.transpose(k, (0, 2, 1, 3), "key.turn")
    v = b.transpose(v, (0, 2, 1, 3), "value.turn")
    small = codecs(b, call, x, groups, q.shape[3])
    if small:
        k, v = small[0].stored(b, k), small[1].stored(b, v)
    window = max(int(call.attr("local_window_size", -1)), 0)
    is_causal = bool(call.attr("causal", 1))
    bias = optional(x, 10)
    seen: Value | None
    if call.attr("sliding_window_cache", 0):
        k, v, presents, seen = _windowed(b, x, k, v, at, window)
        if bias is not None:
            raise Unsupported("with a bias over a cache that is a window")
    else:
        k, v = _cached(b, optional(x, 3), k, at, "key"), _cached(b, optional(x, 4), v, at, "value")
        presents = [k, v]
        seen = _visible(b, call, at, new, k.shape[2], is_causal, window)
        if bias is not None:
            bias = padded(b, bias, k.shape[2])
    if small:
        k, v = small[0].read(b, k, q.dtype), small[1].read(b, v, q.dtype)
    sink: Value | float | None = optional(x, 11)
    if sink is None and call.attr("smooth_softmax", 0):
        sink = 0.0
    mode = int(call.attr("qk_output", 0))
    stages = ["masked" if mode == 1 else "weights"] if mode and call.wants(3) else []
    if stages and k.shape[2] != at.total:
        raise Unsupported("with scores over a buffer as an output")
    scale = float(call.attr("scale", 0.0)) or 1.0 / sqrt(q.shape[3])
    softcap = float(call.attr("softcap", 0.0))
    mask = combined(b, bias, seen, inner)
    done = attend(b, q, k, v, scale, mask, softcap, sink=sink, stages=stages)
    out = merge_heads(b, b.transpose(done.out, (0, 2, 1, 3), "turn"), "merge")
    scores = list(done.scores.values())
    if stages == ["masked"] and seen is not None:  # zeros where nothing is seen
        scores = [b.apply("where", seen, scores[0], 0.0, dtype=scores[0].dtype, suffix="scores")]
    return [out, *presents, *scores][: call.outputs]


def _projections(b: Builder, x: Values, heads: int, groups: int) -> tuple[Value, Value, Value]:
    """Queries, keys and values [B, S, H, D]."""
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
    return q, k, v


def _normed(b: Builder, call: Call, x: Values, q: Value, k: Value) -> tuple[Value, Value]:
    """RMS norms of every head of the queries and keys."""
    shared = float(call.attr("qk_norm_epsilon", 1e-6))
    out = []
    for v, i, name in ((q, 14, "q_norm_epsilon"), (k, 15, "k_norm_epsilon")):
        gamma, epsilon = optional(x, i), float(call.attr(name, shared))
        if gamma is not None:
            inside = Call(call.domain, call.op, call.name, {"epsilon": epsilon}, call.opset)
            v, _ = rms(b, inside, v, gamma, [3])
        out.append(v)
    return out[0], out[1]


def _lengths(b: Builder, x: Values, q: Value) -> Lengths:
    new = q.shape[1]
    last = need(x, 5)
    total = int(known(x, 6).array().reshape(-1)[0])
    last = b.reshape(last, (q.shape[0],), q.labels[:1], "last")
    if last.const is not None and last.const.size:
        numbers = last.const.array()
        same = bool((numbers == numbers[0]).all())
        if same and (total != new or int(numbers[0]) + 1 == new):
            total, start = int(numbers[0]) + 1, int(numbers[0]) + 1 - new
            return Lengths(last, _whole(b, start, last), total, start)
    if total == new:  # a prompt, padded on the right
        return Lengths(last, _whole(b, 0, last), total, None)
    shift = b.cast(b.ints([new - 1], [MIXED]), last.dtype)
    return Lengths(last, b.apply("sub", last, shift, suffix="start"), total, None)


def _whole(b: Builder, start: int, last: Value) -> Value:
    key = ("start", start, last.shape, last.dtype)
    array = np.full(last.shape, start, np.int32 if last.dtype == "int32" else np.int64)
    return b.once(key, lambda: Const.of(array, last.dtype, MIXED), last.labels)


def _cached(b: Builder, past: Value | None, new: Value, at: Lengths, name: str) -> Value:
    """The cache with the new tokens in it, [B, KV, C, D]."""
    if past is None:
        if new.shape[2] != at.total:
            raise Unsupported(f"with {at.total} valid tokens and no cache")
        return b.append(None, new, 2, f"{name}.append")
    past = b.sized(past, new)
    held, tokens = past.shape[2], new.shape[2]
    if at.known == held:
        return b.append(past, new, 2, f"{name}.append")
    if at.known is not None and held >= at.total:
        out = write_rows(b, past, new, 2, at.known)
        b.defined[id(out)] = (2, at.total)  # what lies behind is nobody's
        return out
    if at.known is not None:
        raise Unsupported(
            f"with {at.total} valid tokens, {tokens} of them new, in a cache of {held}"
        )
    if at.total == tokens and held == 0:  # nothing is cached: a padded prompt
        return b.append(past, new, 2, f"{name}.append")
    out = _scattered(b, past, new, at, name)
    last = at.last.const
    b.defined[id(out)] = (2, int(last.array().min()) + 1 if last is not None else 0)
    return out


def _scattered(b: Builder, past: Value, new: Value, at: Lengths, name: str) -> Value:
    """New tokens at places that differ by sequence, or that are known at run time only."""
    size, tokens = max(past.shape[2], at.total), new.shape[2]
    label = past.labels[2] if size == past.shape[2] else TOTAL
    if size > past.shape[2]:
        shape = (*past.shape[:2], size - past.shape[2], past.shape[3])
        labels = (*past.labels[:2], NEW, past.labels[3])
        zeros = b.apply("cast", _zeros(b, shape, labels), dtype=past.dtype)
        past = b.concat([past, zeros], 2, f"{name}.room")
    count = past.shape[0]
    places = b.reshape(iota(b, size, label, at.start.dtype), (1, size), (FIXED, label), "places")
    first = b.reshape(at.start, (count, 1), (at.start.labels[0], FIXED), "first")
    offset = b.apply("sub", places, first, suffix="offset")
    near = b.apply("clip", offset, 0, tokens - 1, dtype="int64", suffix="near")
    inside = b.apply("equal", offset, b.cast(near, offset.dtype), suffix="inside")
    rows = pick(b, b.transpose(new, (0, 2, 1, 3), f"{name}.rows"), near, 1, 1, f"{name}.picked")
    rows = b.transpose(rows, (0, 2, 1, 3), f"{name}.placed")
    here = b.reshape(inside, (count, 1, size, 1), (past.labels[0], FIXED, label, FIXED), "here")
    return b.apply("where", here, rows, past, dtype=past.dtype, suffix=f"{name}.written")


def _zeros(b: Builder, shape: tuple[int, ...], labels: Sequence[Label]) -> Value:
    zero = Const.of(np.zeros(shape, np.float32), "fp32", MIXED)
    return b.once(("zeros", shape), lambda: zero, tuple(labels))


def _visible(
    b: Builder, call: Call, at: Lengths, new: int, size: int, is_causal: bool, window: int
) -> Value | None:
    """What the new tokens see of a cache of `size`."""
    if at.known is not None and size == at.total:
        if not is_causal:
            return None
        if call.phase != "decode" or window:  # a single new token sees the whole cache
            return causal(b, new, size, at.known, window)
        return None
    one = b.cast(b.ints([1], [FIXED]), at.last.dtype)
    lengths = b.apply("add", at.last, one, suffix="lengths")
    return frontier(b, new, size, at.start, lengths, is_causal, window)


def rows_held(tokens: int, window: int, size: int) -> int:
    """Rows of a window's cache that are in use after so many tokens: it fills up, and then begins
    anew with the window."""
    return tokens if tokens <= size else window + (tokens - window) % (size - window + 1)


def _windowed(
    b: Builder, x: Values, k: Value, v: Value, at: Lengths, window: int
) -> tuple[Value, Value, list[Value], Value]:
    """Keys and values that the window's cache and the new tokens give, the presents, and what is
    seen of them."""
    new = k.shape[2]
    if at.known is None:
        raise Unsupported("with sliding_window_cache and lengths that are known at run time only")
    size = need(x, 3).shape[2]
    if not 0 < window <= size:
        raise InputError(
            f"Node '{b.scope}' keeps a window of {window} tokens in a cache of {size}; make the "
            f"cache at least {max(window, 1)} long with --dim."
        )
    held, left = rows_held(at.known, window, size), rows_held(at.total, window, size)
    wholes, presents = [], []
    for past, fresh, name in ((need(x, 3), k, "key"), (need(x, 4), v, "value")):
        past = b.sized(past, fresh)
        old = b.slice(past, 2, 0, held, MIXED, suffix=f"{name}.held", exact=False)
        both = b.concat([old, fresh], 2, f"{name}.both")
        both.labels = (*both.labels[:2], MIXED, both.labels[3])
        keep = b.slice(both, 2, held + new - left, left, MIXED, suffix=f"{name}.keep", exact=False)
        rest = b.slice(past, 2, left, size - left, MIXED, suffix=f"{name}.rest", exact=False)
        present = b.concat([keep, rest], 2, f"{name}.present")
        present.labels = past.labels
        b.defined[id(present)] = (2, left)
        wholes.append(both)
        presents.append(present)

    def make() -> Const:
        rows = np.arange(new)[:, None] + held
        cols = np.arange(held + new)[None, :]
        seen = (cols <= rows) & (cols > rows - window)
        return Const.of(seen[None, None], "bool", MIXED)

    key = ("windowed", new, held, window)
    seen = b.once(key, make, (FIXED, FIXED, NEW, MIXED))
    return wholes[0], wholes[1], presents, seen


def _rotated(
    b: Builder, call: Call, x: Values, q: Value, k: Value, at: Lengths
) -> tuple[Value, Value]:
    """Queries and keys [B, S, H, D] turned by their positions."""
    positions, new = optional(x, 9), q.shape[1]
    if positions is not None and at.total == new:
        first = b.slice(positions, 1, 0, 1, FIXED, suffix="positions.first")
        first = b.slice(first, 0, 0, 1, FIXED, suffix="positions.one")
        steps = b.reshape(iota(b, new, NEW), (1, new), (FIXED, NEW), "positions.steps")
        positions = b.apply("add", first, steps, suffix="positions")
    elif positions is None and at.known is not None:
        start = at.known

        def make() -> Const:
            rows = np.arange(start, start + new, dtype=np.int64)
            return Const.of(rows[None], "int64", MIXED)

        positions = b.once(("positions", start, new), make, (FIXED, NEW))
    elif positions is None:
        begin = b.cast(at.start, "int64")
        begin = b.reshape(begin, (q.shape[0], 1), (q.labels[0], FIXED), "positions.begin")
        steps = b.reshape(iota(b, new, NEW), (1, new), (FIXED, NEW), "positions.steps")
        positions = b.apply("add", begin, steps, suffix="positions")
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
    ("com.microsoft", "GroupQueryAttention"): group_query_attention,
}
