"""Fused attention operators as matmuls and a softmax in fp32.

Grouped heads are never repeated: the queries of a group become one more dimension, and the keys
and values get a dimension of size one that broadcasts against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.formula import inner_dtype
from meshc.frontend.indexing import iota
from meshc.frontend.labels import FIXED, MIXED, NEW, TOTAL
from meshc.frontend.lower_rotary import merge_heads, split_heads
from meshc.ir.dtypes import NUMPY

Values = Sequence[Value | None]
LOWEST = float(np.finfo(np.float32).min)
_ONE = (FIXED, FIXED, FIXED)


@dataclass(frozen=True)
class Attended:
    """What attention makes: its output [B, H, S, E], and the scores [B, H, S, T] that were asked
    for ("raw", "capped", "masked", "weights")."""

    out: Value
    scores: dict[str, Value]


def attend(
    b: Builder,
    q: Value,
    k: Value,
    v: Value,
    scale: float,
    mask: Value | None = None,
    softcap: float = 0.0,
    *,
    sink: Value | float | None = None,
    guarded: bool = False,
    stages: Sequence[str] = (),
) -> Attended:
    """softmax(scale · q kᵀ, capped, + mask) v.

    q [B, H, S, D], k [B, KV, T, D], v [B, KV, T, E], mask broadcasts to [B, H, S, T] and is added
    in fp32; the output is in q's dtype.
    sink: a logit, of all heads or [H], that takes its share of the softmax and has no value.
    guarded: a row in which the mask hides everything (with minus infinity) becomes zeros.
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
    if isinstance(sink, Value):
        one = (1, heads, 1, 1) if heads == groups else (1, groups, heads // groups, 1, 1)
        sink = b.cast(b.reshape(sink, one, (FIXED,) * len(one), "sink.heads"), inner)
    found: dict[str, Value] = {}

    def keep(stage: str, x: Value) -> None:
        if stage in stages:
            whole = (*shape[:3], x.shape[-1])
            flat = b.reshape(x, whole, (*labels[:3], x.labels[-1]), f"{stage}.scores")
            found[stage] = b.cast(flat, q.dtype)

    scores = b.matmul(q, k, transpose_b=True, dtype=inner, suffix="scores")
    steps: list[tuple[Any, ...]] = [("mul", (("in", 0), scale), inner)]
    operands = [scores]

    def cut(stage: str) -> None:
        """Make what the steps have so far a value of its own."""
        nonlocal steps, operands
        if stage in stages:
            done = b.map(steps, operands, stage)
            keep(stage, done)
            steps, operands = [("cast", (("in", 0),), inner)], [done]

    cut("raw")
    if softcap:
        steps.append(("mul", (("step", len(steps) - 1), 1.0 / softcap), inner))
        steps.append(("tanh", (("step", len(steps) - 1),), inner))
        steps.append(("mul", (("step", len(steps) - 1), softcap), inner))
    cut("capped")
    if mask is not None:
        steps.append(("add", (("step", len(steps) - 1), ("in", len(operands))), inner))
        operands.append(b.cast(mask, inner))
    cut("masked")
    scores = b.map(steps, operands, "scaled")
    weights = _softmax(b, scores, q.dtype, inner, sink, guarded)
    keep("weights", weights)
    out = b.matmul(weights, v, dtype=q.dtype, suffix="mix")
    if heads != groups:
        last = (v.shape[-1], v.labels[-1])
        out = b.reshape(out, (*shape[:3], last[0]), (*labels[:3], last[1]), "ungroup")
    return Attended(out, found)


def _softmax(
    b: Builder, x: Value, dtype: str, inner: str, sink: Value | float | None, guarded: bool
) -> Value:
    """Softmax along the last dimension, in `inner`, delivered in `dtype`."""
    last = x.rank - 1
    if sink is None and not guarded:
        return b.softmax(x, last, dtype, inner)
    top = b.reduce("max", x, [last], suffix="max")
    if sink is not None:
        top = b.apply("max", top, sink, dtype=inner, suffix="top")
    steps: list[tuple[Any, ...]] = [
        ("max", (("in", 1), LOWEST), inner),
        ("sub", (("in", 0), ("step", 0)), inner),
        ("exp", (("step", 1),), inner),
    ]
    weights = b.map(steps if guarded else _unguarded(inner), [x, top], "exp")
    total = b.reduce("sum", weights, [last], suffix="sum")
    if sink is not None:
        own = [sink] if isinstance(sink, Value) else []
        first: Any = ("in", 2) if own else sink
        steps = [
            ("sub", (first, ("in", 1)), inner),
            ("exp", (("step", 0),), inner),
            ("add", (("in", 0), ("step", 1)), inner),
        ]
        total = b.map(steps, [total, top, *own], "sum.sink")
    if not guarded:
        return b.apply("div", weights, total, dtype=dtype, suffix="div")
    steps = [
        ("div", (("in", 0), ("in", 1)), inner),
        ("greaterorequal", (("in", 2), LOWEST), "bool"),
        ("where", (("step", 1), ("step", 0), 0.0), dtype),
    ]
    return b.map(steps, [weights, total, top], "div")


def _unguarded(inner: str) -> list[tuple[Any, ...]]:
    return [("sub", (("in", 0), ("in", 1)), inner), ("exp", (("step", 0),), inner)]


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


def frontier(
    b: Builder,
    new: int,
    total: int,
    start: Value,
    lengths: Value | None,
    is_causal: bool,
    window: int = 0,
) -> Value:
    """Bool [B, 1, S, T]: what new token i of each sequence sees, its own position being
    start + i: positions up to its own, the last `window` of them, below `lengths`.

    start, lengths: [B], integers that may be run-time data.
    """
    own = (start.shape[0], 1, 1, 1)
    labels = (start.labels[0], FIXED, FIXED, FIXED)
    cols = b.reshape(iota(b, total, TOTAL, start.dtype), (1, 1, 1, total), (*_ONE, TOTAL), "cols")
    rows = b.reshape(
        iota(b, new, NEW, start.dtype), (1, 1, new, 1), (*_ONE[:2], NEW, FIXED), "rows"
    )
    seen: Value | None = None
    if is_causal or window:
        ends = b.apply("add", rows, b.reshape(start, own, labels, "start"), suffix="ends")
        seen = b.apply("lessorequal", cols, ends, suffix="causal")
        if window:
            begin = b.apply("sub", ends, window, suffix="begin")
            seen = b.apply("and", seen, b.apply("greater", cols, begin), suffix="window")
    if lengths is not None:
        inside = b.apply("less", cols, b.reshape(lengths, own, labels, "lengths"), suffix="inside")
        seen = inside if seen is None else b.apply("and", seen, inside, suffix="seen")
    assert seen is not None
    return seen


def additive(b: Builder, mask: Value, inner: str, lowest: float = LOWEST) -> Value:
    """A bool mask as zeros and the lowest float; a float mask in the inner type."""
    if mask.dtype != "bool":
        return b.cast(mask, inner)
    return b.apply("where", mask, 0.0, lowest, dtype=inner, suffix="additive")


def combined(
    b: Builder, mask: Value | None, seen: Value | None, inner: str, lowest: float = LOWEST
) -> Value | None:
    """Mask and causality in one additive tensor."""
    if mask is None:
        return None if seen is None else additive(b, seen, inner, lowest)
    mask = additive(b, mask, inner, lowest)
    if seen is None:
        return mask
    return b.apply("where", seen, mask, lowest, dtype=inner, suffix="mask")


def padded(b: Builder, mask: Value, total: int) -> Value:
    """A mask of rank 4 over all cached tokens; what a shorter one leaves out is not seen."""
    while mask.rank < 4:
        mask = b.insert_axis(mask, 0, "mask.rank")
    missing = total - mask.shape[3]
    if missing < 0:
        raise Unsupported(f"with a mask for {mask.shape[3]} of {total} keys")
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


def _may_hide_all(parts: Sequence[Value | None]) -> bool:
    """Whether masks may leave a row nothing to see: at run time, or in values that are known."""
    seen: Any = True
    for part in parts:
        if part is None:
            continue
        if part.const is None:
            return True
        array = part.const.array()
        seen = seen & (array if part.dtype == "bool" else ~np.isneginf(array.astype(np.float32)))
    return not bool(np.all(np.any(np.atleast_1d(seen), axis=-1)))


_STAGES = ("raw", "capped", "masked", "weights")


def attention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """ai.onnx Attention (opset 23, 24): Q, K, V, mask, past key, past value, valid lengths."""
    q, k, v = need(x, 0), need(x, 1), need(x, 2)
    precision = int(call.attr("softmax_precision", 1))
    if precision not in (0, 1, 10, 16):  # fp32 and less: computed in fp32
        raise Unsupported(f"with softmax_precision {precision}")
    flat = q.rank == 3
    heads, groups = int(call.attr("q_num_heads", 0)), int(call.attr("kv_num_heads", 0))
    if flat:
        q = b.transpose(split_heads(b, q, heads, "query.heads"), (0, 2, 1, 3), "query.turn")
        k = b.transpose(split_heads(b, k, groups, "key.heads"), (0, 2, 1, 3), "key.turn")
        v = b.transpose(split_heads(b, v, groups, "value.heads"), (0, 2, 1, 3), "value.turn")
    past_k, past_v = optional(x, 4), optional(x, 5)
    if (past_k is None) != (past_v is None):
        raise Unsupported("with only one of past_key and past_value")
    if past_k is not None and past_v is not None:
        k = b.append(past_k, k, 2, "key.append")
        v = b.append(past_v, v, 2, "value.append")
    new, total = q.shape[2], k.shape[2]
    inner = inner_dtype(q.dtype)
    is_causal = bool(call.attr("is_causal", 0))
    mask, lengths, seen = optional(x, 3), optional(x, 6), None
    if lengths is not None:
        lengths = b.reshape(lengths, (lengths.shape[0],), lengths.labels[:1], "lengths")
        start = lengths
        if past_k is None:
            whole = b.cast(b.ints([new], [q.labels[2]]), lengths.dtype)
            start = b.apply("sub", lengths, whole, suffix="start")
        seen = frontier(b, new, total, start, lengths, is_causal)
    elif is_causal:
        seen = causal(b, new, total, past_k.shape[2] if past_k is not None else 0)
    if mask is not None:
        mask = padded(b, mask, total)
    mode = int(call.attr("qk_matmul_output_mode", 0))
    stages = [_STAGES[mode]] if call.wants(3) else []
    guarded = mask is not None or lengths is not None
    guarded = guarded and _may_hide_all([mask, seen])
    lowest = float("-inf") if guarded else LOWEST
    scale = float(call.attr("scale", 0.0)) or 1.0 / sqrt(q.shape[3])
    done = attend(
        b,
        q,
        k,
        v,
        scale,
        combined(b, mask, seen, inner, lowest),
        float(call.attr("softcap", 0.0)),
        guarded=guarded,
        stages=stages,
    )
    if "masked" in stages and (guarded or q.dtype == "fp16"):
        # What is hidden has the lowest number of the output's type in ONNX Runtime.
        bottom = float(np.finfo(np.float16).min) if q.dtype == "fp16" else LOWEST
        for shown in (seen, mask):
            if shown is not None and shown.dtype == "bool":
                done.scores["masked"] = b.apply(
                    "where", shown, done.scores["masked"], bottom, dtype=q.dtype, suffix="hidden"
                )
    out = done.out
    if flat:
        out = merge_heads(b, b.transpose(out, (0, 2, 1, 3), "turn"), "merge")
    return [out, k, v, *done.scores.values()][: call.outputs]


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "Attention"): attention,
}
