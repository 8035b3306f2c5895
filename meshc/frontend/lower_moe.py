"""ONNX Runtime's mixture-of-experts operators, as its CPU kernels compute them.

Every token becomes k rows, one per chosen expert; `experts` multiplies each with the weights of its
expert. Of equal router scores the later experts are chosen, unlike in TopK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.formula import inner_dtype
from meshc.frontend.indexing import experts, merged, pick, topk
from meshc.frontend.labels import FIXED

Values = Sequence[Value | None]
PLAIN = {"relu": "relu", "gelu": "gelu_tanh", "silu": "silu"}


@dataclass(frozen=True)
class Layer:
    """Weights [E, N, K] of one projection of every expert, and its bias [E, N]."""

    weights: Value
    bias: Value | None = None

    def half(self, b: Builder, start: int, count: int, step: int, name: str) -> Layer:
        """Some of the N rows."""
        weights = b.slice(self.weights, 1, start, count, FIXED, step, f"{name}.weights")
        bias = self.bias
        if bias is not None:
            bias = b.slice(bias, 1, start, count, FIXED, step, f"{name}.bias")
        return Layer(weights, bias)

    def __call__(self, b: Builder, rows: Value, ids: Value, name: str) -> Value:
        out = experts(b, rows, self.weights, ids, True, name)
        if self.bias is None:
            return out
        own = b.gather(self.bias, ids, 0, f"{name}.bias.rows")
        return b.apply("add", out, own, dtype=out.dtype, suffix=f"{name}.biased")


def _gated(b: Builder, call: Call, gate: Value, up: Value) -> Value:
    """min(g, limit) · sigmoid(α · g) · (clip(u, limit) + β)."""
    alpha, beta = float(call.attr("activation_alpha", 1.0)), float(call.attr("activation_beta", 0))
    limit, late = call.attr("swiglu_limit"), bool(call.attr("swiglu_limit_after_activation", 0))
    steps: list[tuple[Any, ...]] = []
    dtype = gate.dtype

    def add(fn: str, *args: Any) -> tuple[str, int]:
        steps.append((fn, args, dtype))
        return ("step", len(steps) - 1)

    g, u = ("in", 0), ("in", 1)
    if limit is not None:
        bound = float(limit)
        u = add("min", add("max", u, -bound), bound)
        if not late:
            g = add("min", g, bound)
    scaled = add("mul", g, alpha) if alpha != 1.0 else g
    hot = add("mul", g, add("sigmoid", scaled))
    if limit is not None and late:
        hot = add("min", hot, float(limit))
    add("mul", hot, add("add", u, beta) if beta else u)
    return b.map(steps, [gate, up], "swiglu")


def _hidden(
    b: Builder, call: Call, rows: Value, ids: Value, one: Layer, two: Layer | None
) -> Value:
    """What the second projection reads: the first one activated, gated where there are two."""
    kind, fusion = str(call.attr("activation_type", "relu")), int(call.attr("swiglu_fusion", 0))
    if kind != "swiglu":  # they belong to its gate alone
        call.ignore("activation_alpha", "activation_beta", "swiglu_limit")
        call.ignore("swiglu_limit_after_activation")
    if kind in ("swiglu", "geglu"):
        if fusion not in (0, 1, 2):
            raise Unsupported(f"with swiglu_fusion {fusion}")
        if (two is None) != (fusion != 0):
            raise Unsupported(f"of {kind} with swiglu_fusion {fusion} and fc3 weights or without")
        if two is None:
            width = one.weights.shape[1] // 2
            step = 2 if fusion == 1 else 1
            up_start = 1 if fusion == 1 else width
            gate = one.half(b, 0, width, step, "gate")
            two = one.half(b, up_start, width, step, "up")
        else:
            gate = one
        g, u = gate(b, rows, ids, "gate"), two(b, rows, ids, "up")
        if kind == "swiglu":
            return _gated(b, call, g, u)
        return b.apply("mul", b.apply("gelu_tanh", g, suffix="gate.active"), u, suffix="gated")
    h = one(b, rows, ids, "fc1")
    if kind == "relu2":
        h = b.apply("relu", h, suffix="active")
        h = b.apply("mul", h, h, suffix="squared")
    elif kind in PLAIN:
        h = b.apply(PLAIN[kind], h, suffix="active")
    elif kind != "identity":
        raise Unsupported(f"with activation_type '{kind}'")
    if two is None:
        return h
    return b.apply("mul", h, two(b, rows, ids, "fc3"), suffix="gated")


def _routed(
    b: Builder, call: Call, scores: Value, mixing: Value | None, softmax_all: bool
) -> tuple[Value, Value]:
    """Experts of every token [T, k] and their weights [T, k]."""
    k = int(call.attr("k", 1))
    if call.attr("use_sparse_mixer", 0):
        raise Unsupported("with use_sparse_mixer")
    if not 0 < k <= scores.shape[1]:
        raise Unsupported(f"with k = {k} of {scores.shape[1]} experts")
    inner = inner_dtype(scores.dtype)
    ids = topk(b, scores, 1, k, FIXED, "indices", last=True)
    normalised = bool(call.attr("normalize_routing_weights", 0))
    if mixing is not None:
        own = pick(b, mixing, ids, 1, 1, "mixing")
        if not normalised:
            return ids, own
        total = b.reduce("sum", own, [1], suffix="mixing.sum")
        return ids, b.apply("div", own, total, suffix="mixing.normalised")
    if softmax_all and not normalised:
        every = b.softmax(scores, 1, inner, inner)
        return ids, pick(b, every, ids, 1, 1, "routed")
    best = topk(b, scores, 1, k, FIXED, "values", last=True)
    return ids, b.softmax(best, 1, inner, inner)


def _mixture(
    b: Builder,
    call: Call,
    x: Value,
    routed: tuple[Value, Value],
    one: Layer,
    two: Layer | None,
    last: Layer,
) -> Value:
    ids, weights = routed
    tokens, k = ids.shape
    flat = merged(b, x, 0, x.rank - 1, "tokens")
    if flat.shape[0] != tokens:
        raise Unsupported(f"with {tokens} rows of router scores for {flat.shape[0]} tokens")
    width, label = flat.shape[1], flat.labels[0]
    many = b.expand(b.insert_axis(flat, 1, "each"), (tokens, k, width), (label, FIXED, FIXED),
                    "copies")  # fmt: skip
    rows, own = merged(b, many, 0, 2, "rows"), merged(b, ids, 0, 2, "ids")
    hidden = _hidden(b, call, rows, own, one, two)
    made = last(b, hidden, own, "fc2")
    inner = inner_dtype(x.dtype)
    split = b.reshape(made, (tokens, k, made.shape[1]), (label, FIXED, FIXED), "by_token")
    share = b.insert_axis(weights, 2, "shares")
    mixed = b.apply("mul", split, share, dtype=inner, suffix="weighted")
    total = b.cast(b.reduce("sum", mixed, [1], keepdims=False, suffix="mixed"), x.dtype)
    return b.reshape(total, x.shape, x.labels)


def _scores(b: Builder, v: Value, name: str) -> Value:
    return merged(b, v, 0, v.rank - 1, name) if v.rank != 2 else v


def _arranged(b: Builder, weights: Value, inputs: int, outputs: int, name: str) -> Value:
    """Weights as [E, N, K]. Files of old exporters declare [E, K, N] for the same bytes."""
    wanted = (weights.shape[0], outputs, inputs)
    if weights.rank != 3 or sorted(weights.shape[1:]) != sorted(wanted[1:]):
        raise Unsupported(
            f"with {name} weights {list(weights.shape)} where {list(wanted)} are expected"
        )
    return b.reshape(weights, wanted, (FIXED,) * 3, f"{name}.arranged")


def moe(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Input, router scores, and weights and bias of fc1, fc2 and fc3."""
    data, scores = need(x, 0), _scores(b, need(x, 1), "scores")
    first, second, third = need(x, 2), need(x, 4), optional(x, 6)
    width = data.shape[-1]
    inner = second.shape[1] * second.shape[2] // width
    wide = first.shape[1] * first.shape[2] // width
    one = Layer(_arranged(b, first, width, wide, "fc1"), optional(x, 3))
    last = Layer(_arranged(b, second, inner, width, "fc2"), optional(x, 5))
    two = None
    if third is not None:
        two = Layer(_arranged(b, third, width, inner, "fc3"), optional(x, 7))
    routed = _routed(b, call, scores, None, softmax_all=True)
    return [_mixture(b, call, data, routed, one, two, last)]


def _unpacked(b: Builder, packed: Value, bits: int, count: int, name: str) -> Value:
    """The last dimension's numbers of `bits` bits, low ones first, of which `count` count."""
    if bits == 8:
        return packed
    flat = b.unpack(packed, bits, suffix=f"{name}.codes")
    if flat.shape[-1] < count:
        raise Unsupported(f"with {flat.shape[-1]} packed numbers where {count} are expected")
    if flat.shape[-1] == count:
        return flat
    return b.slice(flat, flat.rank - 1, 0, count, FIXED, suffix=f"{name}.cut")


def _dequantised(
    b: Builder,
    call: Call,
    x: Values,
    at: tuple[int, int, int],
    bits: int,
    shape: tuple[int, int, int],
    name: str,
) -> Value:
    """(code − zero point) · scale as [E, N, K]. at: operands with codes, scales, zero points."""
    packed, scales, zeros = need(x, at[0]), need(x, at[1]), optional(x, at[2])
    experts_, n, k = shape
    block = int(call.attr("block_size", 0) or 0) or k
    if k % block or packed.dtype != "uint8" or packed.shape[:2] != (experts_, n):
        raise Unsupported(
            f"with {name} weights {packed.dtype}{list(packed.shape)} in blocks of {block} where "
            f"{list(shape)} numbers of {bits} bits are expected"
        )
    blocks = k // block
    codes = _unpacked(b, packed, bits, k, name)
    dtype = scales.dtype
    split, fixed = (experts_, n, blocks, block), (FIXED,) * 4
    wide = b.reshape(codes, split, fixed, f"{name}.blocks")
    scale = b.reshape(scales, (*split[:3], 1), fixed, f"{name}.scales")
    if zeros is None:
        zero: Value | int = 1 << (bits - 1)
    elif scales.rank == 2:
        plain = _unpacked(b, zeros, bits, n, f"{name}.zeros")
        zero = b.reshape(plain, (*split[:3], 1), fixed, f"{name}.zeros")
    else:
        plain = _unpacked(b, zeros, bits, blocks, f"{name}.zeros")
        zero = b.reshape(plain, (*split[:3], 1), fixed, f"{name}.zeros")
    shifted = b.apply("sub", b.cast(wide, dtype), b.cast(zero, dtype) if isinstance(zero, Value)
                      else zero, dtype=dtype, suffix=f"{name}.shifted")  # fmt: skip
    real = b.apply("mul", shifted, scale, dtype=dtype, suffix=f"{name}.real")
    return b.reshape(real, shape, (FIXED,) * 3, f"{name}.weights")


def qmoe(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """As MoE, with integer weights in blocks along the input features.

    Without weights of their own the chosen experts share by softmax of their scores whether
    normalize_routing_weights is set or not. accuracy_level is a hint.
    """
    if call.attr("quant_type", "int") != "int" or any(optional(x, i) for i in range(15, 21)):
        raise Unsupported(f"with quant_type '{call.attr('quant_type', 'int')}'")
    if int(call.attr("weights_prepacked", -1)) == 1:
        raise Unsupported("with prepacked weights, whose layout belongs to one kernel")
    call.ignore("accuracy_level")
    common = int(call.attr("expert_weight_bits", 4))
    bits = [int(call.attr(f"fc{i}_expert_weight_bits", 0) or common) for i in (1, 2, 3)]
    if any(n not in (2, 4, 8) for n in bits):
        raise Unsupported(f"with weights of {', '.join(map(str, bits))} bits")
    data, scores = need(x, 0), _scores(b, need(x, 1), "scores")
    width, n1 = data.shape[-1], need(x, 2).shape[1]
    count = need(x, 2).shape[0]
    gated = str(call.attr("activation_type", "relu")) in ("swiglu", "geglu")
    inner = n1 // 2 if gated and int(call.attr("swiglu_fusion", 0)) else n1
    first = _dequantised(b, call, x, (2, 3, 11), bits[0], (count, n1, width), "fc1")
    second = _dequantised(b, call, x, (5, 6, 12), bits[1], (count, width, inner), "fc2")
    one, last = Layer(first, optional(x, 4)), Layer(second, optional(x, 7))
    two = None
    if optional(x, 8) is not None:
        third = _dequantised(b, call, x, (8, 9, 13), bits[2], (count, inner, width), "fc3")
        two = Layer(third, optional(x, 10))
    mixing = optional(x, 14)
    mixing = _scores(b, mixing, "mixing.scores") if mixing is not None else None
    routed = _routed(b, call, scores, mixing, softmax_all=False)
    return [_mixture(b, call, data, routed, one, two, last)]


TABLE: dict[tuple[str, str], Lowering] = {
    ("com.microsoft", "MoE"): moe,
    ("com.microsoft", "QMoE"): qmoe,
}
