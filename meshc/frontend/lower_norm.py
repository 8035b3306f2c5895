"""Normalisations. Their inside is computed in fp32, as ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, onnx_dtype, optional
from meshc.ir.dtypes import FLOATS

Values = Sequence[Value | None]


def stash_dtype(call: Call, x: Value) -> str:
    """Type of the inside: fp32, or a float type that `stash_type` names; fp64 stays, as in ONNX
    Runtime."""
    dtype = onnx_dtype(int(call.attr("stash_type", 1)))
    if dtype not in FLOATS:
        raise Unsupported(f"with stash_type {dtype}")
    return x.dtype if x.dtype == "fp64" else dtype


def _axes(call: Call, x: Value) -> list[int]:
    axis = int(call.attr("axis", -1)) % x.rank
    return list(range(axis, x.rank))


def rms(
    b: Builder, call: Call, x: Value, gamma: Value, axes: list[int], epsilon: float = 1e-5
) -> tuple[Value, Value]:
    """x / sqrt(mean(x²) + ε) · γ, and the inverse root."""
    inner, eps = stash_dtype(call, x), float(call.attr("epsilon", epsilon))
    squares: list[tuple[Any, ...]] = [("mul", (("in", 0), ("in", 0)), inner)]
    mean = b.reduce("mean", b.map(squares, [x], "square"), axes, suffix="mean")
    steps: list[tuple[Any, ...]] = [
        ("add", (("in", 0), eps), inner),
        ("sqrt", (("step", 0),), inner),
        ("reciprocal", (("step", 1),), inner),
    ]
    inverse = b.map(steps, [mean], "inverse")
    scaled: list[tuple[Any, ...]] = [
        ("mul", (("in", 0), ("in", 1)), inner),
        ("mul", (("step", 0), ("in", 2)), x.dtype),
    ]
    return b.map(scaled, [x, inverse, gamma], "scale"), inverse


def layer(
    b: Builder,
    call: Call,
    x: Value,
    gamma: Value | None,
    beta: Value | None,
    axes: list[int],
    epsilon: float = 1e-5,
) -> tuple[Value, Value, Value]:
    """(x − mean) / sqrt(var + ε) · γ + β, the mean and the inverse deviation."""
    inner, eps = stash_dtype(call, x), float(call.attr("epsilon", epsilon))
    wide = x
    if inner != x.dtype:
        wide = b.cast(x, inner)
    mean = b.reduce("mean", wide, axes, suffix="mean")
    squares: list[tuple[Any, ...]] = [
        ("sub", (("in", 0), ("in", 1)), inner),
        ("mul", (("step", 0), ("step", 0)), inner),
    ]
    var = b.reduce("mean", b.map(squares, [wide, mean], "square"), axes, suffix="variance")
    steps: list[tuple[Any, ...]] = [
        ("add", (("in", 0), eps), inner),
        ("sqrt", (("step", 0),), inner),
        ("reciprocal", (("step", 1),), inner),
    ]
    inverse = b.map(steps, [var], "inverse")
    scaled: list[tuple[Any, ...]] = [
        ("sub", (("in", 0), ("in", 1)), inner),
        ("mul", (("step", 0), ("in", 2)), inner),
    ]
    operands = [wide, mean, inverse]
    for fn, extra in (("mul", gamma), ("add", beta)):
        if extra is not None:
            scaled.append((fn, (("step", len(scaled) - 1), ("in", len(operands))), inner))
            operands.append(extra)
    scaled[-1] = (*scaled[-1][:2], x.dtype)
    return b.map(scaled, operands, "scale"), mean, inverse


def rms_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """RMSNormalization and SimplifiedLayerNormalization; output 1 is the inverse root."""
    v = need(x, 0)
    if optional(x, 2) is not None:
        raise Unsupported("with a bias")
    out, inverse = rms(b, call, v, need(x, 1), _axes(call, v))
    return [out, inverse][: call.outputs]


def layer_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    out, *statistics = layer(b, call, v, need(x, 1), optional(x, 2), _axes(call, v))
    kind = onnx_dtype(int(call.attr("stash_type", 1)))
    return [out, *(b.cast(s, kind) if call.wants(i) else None
                   for i, s in enumerate(statistics, start=1))]  # fmt: skip


def _residual(b: Builder, v: Value, others: Sequence[Value | None]) -> Value:
    """The sum that skip normalisations put out as well."""
    for i, other in enumerate(others):
        if other is not None:
            v = b.apply("add", v, other, dtype=v.dtype, suffix=("skip", "bias")[i])
    return v


def skip_rms_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """input, skip, γ, bias → output, mean, inverse root, the sum."""
    total = _residual(b, need(x, 0), (need(x, 1), optional(x, 3)))
    if call.wants(1):
        raise Unsupported("with its mean as an output")
    out, inverse = rms(b, call, total, need(x, 2), [total.rank - 1], 1e-12)
    return [out, None, inverse, total][: call.outputs]


def skip_layer_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """input, skip, γ, β, bias → output, mean, inverse deviation, the sum."""
    total = _residual(b, need(x, 0), (need(x, 1), optional(x, 4)))
    out, mean, inverse = layer(b, call, total, need(x, 2), optional(x, 3), [total.rank - 1], 1e-12)
    return [out, mean, inverse, total][: call.outputs]


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "RMSNormalization"): rms_norm,
    ("", "SimplifiedLayerNormalization"): rms_norm,
    ("com.microsoft", "SimplifiedLayerNormalization"): rms_norm,
    ("", "LayerNormalization"): layer_norm,
    ("", "SkipSimplifiedLayerNormalization"): skip_rms_norm,
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): skip_rms_norm,
    ("com.microsoft", "SkipLayerNormalization"): skip_layer_norm,
}
