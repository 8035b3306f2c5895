"""Elementwise operators: each becomes a `map`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, onnx_dtype
from meshc.ir.dtypes import FLOATS

UNARY = {
    "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Neg": "neg", "Abs": "abs", "Exp": "exp",
    "Log": "log", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Tanh": "tanh", "Sigmoid": "sigmoid",
    "Erf": "erf", "Relu": "relu", "Softplus": "softplus", "Sign": "sign", "Floor": "floor",
    "Ceil": "ceil", "Round": "round", "Not": "not", "IsNaN": "isnan",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "equal", "Less": "less",
    "LessOrEqual": "lessorequal", "Greater": "greater", "GreaterOrEqual": "greaterorequal",
    "And": "and", "Or": "or", "Xor": "xor",
}  # fmt: skip
VARIADIC = {"Sum": "add", "Max": "max", "Min": "min"}


def _unary(fn: str) -> Lowering:
    def lower(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
        return [b.apply(fn, need(x, 0))]

    return lower


def _binary(fn: str) -> Lowering:
    def lower(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
        return [b.apply(fn, need(x, 0), need(x, 1))]

    return lower


def _variadic(fn: str) -> Lowering:
    def lower(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
        total = need(x, 0)
        for i in range(1, len(x)):
            total = b.apply(fn, total, need(x, i))
        return [total]

    return lower


def power(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    """The result has the base's type."""
    base = need(x, 0)
    return [b.apply("pow", base, need(x, 1), dtype=base.dtype)]


def mod(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    a = need(x, 0)
    if call.attr("fmod", 0) and a.dtype in FLOATS:
        raise Unsupported("with fmod")
    return [b.apply("mod", a, need(x, 1))]


def where(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    a = need(x, 1)
    return [b.apply("where", need(x, 0), a, need(x, 2), dtype=a.dtype)]


def cast(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    return [b.cast(need(x, 0), onnx_dtype(call.attr("to")))]


def cast_like(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    return [b.cast(need(x, 0), need(x, 1).dtype)]


def identity(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    return [need(x, 0), *([None] * (call.outputs - 1))]


def clip(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    """Bounds are operands since opset 11, attributes before."""
    a = need(x, 0)
    low: Any = x[1] if len(x) > 1 else call.attr("min")
    high: Any = x[2] if len(x) > 2 else call.attr("max")
    if low is not None:
        a = b.apply("max", a, low, dtype=a.dtype, suffix="low")
    if high is not None:
        a = b.apply("min", a, high, dtype=a.dtype, suffix="high")
    return [a]


def gelu(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    return [b.apply("gelu_tanh" if call.attr("approximate", "none") == "tanh" else "gelu",
                    need(x, 0))]  # fmt: skip


def bias_gelu(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    return [b.apply("gelu", b.apply("add", need(x, 0), need(x, 1)))]


def fast_gelu(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    a = need(x, 0)
    if len(x) > 1 and x[1] is not None:
        a = b.apply("add", a, x[1])
    return [b.apply("gelu_tanh", a)]


def quick_gelu(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    a, alpha = need(x, 0), float(call.attr("alpha", 1.702))
    steps = [
        ("mul", (("in", 0), alpha), a.dtype),
        ("sigmoid", (("step", 0),), a.dtype),
        ("mul", (("in", 0), ("step", 1)), a.dtype),
    ]
    return [b.map(steps, [a])]


def swish(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    a, alpha = need(x, 0), float(call.attr("alpha", 1.0))
    steps: list[tuple[Any, ...]] = [
        ("mul", (("in", 0), alpha), a.dtype),
        ("sigmoid", (("step", 0),), a.dtype),
        ("mul", (("in", 0), ("step", 1)), a.dtype),
    ]
    return [b.map(steps, [a])]


def leaky_relu(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    a, alpha = need(x, 0), float(call.attr("alpha", 0.01))
    steps = [
        ("less", (("in", 0), 0.0), "bool"),
        ("mul", (("in", 0), alpha), a.dtype),
        ("where", (("step", 0), ("step", 1), ("in", 0)), a.dtype),
    ]
    return [b.map(steps, [a])]


def hard_sigmoid(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    a = need(x, 0)
    steps = [
        ("mul", (("in", 0), float(call.attr("alpha", 0.2))), a.dtype),
        ("add", (("step", 0), float(call.attr("beta", 0.5))), a.dtype),
        ("clip", (("step", 1), 0.0, 1.0), a.dtype),
    ]
    return [b.map(steps, [a])]


def hard_swish(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    return [b.apply("hardswish", need(x, 0))]


TABLE: dict[tuple[str, str], Lowering] = {
    **{("", op): _unary(fn) for op, fn in UNARY.items()},
    **{("", op): _binary(fn) for op, fn in BINARY.items()},
    **{("", op): _variadic(fn) for op, fn in VARIADIC.items()},
    ("", "Pow"): power,
    ("", "Mod"): mod,
    ("", "Where"): where,
    ("", "Cast"): cast,
    ("", "CastLike"): cast_like,
    ("", "Identity"): identity,
    ("", "Dropout"): identity,
    ("", "Clip"): clip,
    ("", "Gelu"): gelu,
    ("", "Swish"): swish,
    ("", "LeakyRelu"): leaky_relu,
    ("", "HardSigmoid"): hard_sigmoid,
    ("", "HardSwish"): hard_swish,
    ("com.microsoft", "Gelu"): gelu,
    ("com.microsoft", "BiasGelu"): bias_gelu,
    ("com.microsoft", "FastGelu"): fast_gelu,
    ("com.microsoft", "QuickGelu"): quick_gelu,
}
