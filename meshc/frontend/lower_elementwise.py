"""Elementwise operators: each becomes a `map`."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import numpy as np
from ml_dtypes import finfo

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, known, need, onnx_dtype, optional
from meshc.frontend.formula import overflown
from meshc.ir.dtypes import FLOAT8, FLOATS, NUMPY

UNARY = {
    "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Neg": "neg", "Abs": "abs", "Exp": "exp",
    "Log": "log", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Tanh": "tanh", "Sigmoid": "sigmoid",
    "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh",
    "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "BitwiseNot": "bitnot",
    "Erf": "erf", "Relu": "relu", "Softplus": "softplus", "Sign": "sign", "Floor": "floor",
    "Ceil": "ceil", "Round": "round", "Not": "not", "IsNaN": "isnan",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "equal", "Less": "less",
    "LessOrEqual": "lessorequal", "Greater": "greater", "GreaterOrEqual": "greaterorequal",
    "And": "and", "Or": "or", "Xor": "xor", "BitwiseAnd": "bitand", "BitwiseOr": "bitor",
    "BitwiseXor": "bitxor",
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


def mean(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    (total,) = _variadic("add")(b, call, x)
    assert total is not None
    return [b.apply("div", total, len(x)) if len(x) > 1 else total]


def mod(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    """The sign of the divisor, or with `fmod` that of the dividend, as in C."""
    a, fmod = need(x, 0), call.attr("fmod", 0)
    if a.dtype in FLOATS and not fmod:
        raise Unsupported("of floats without fmod=1, which ONNX asks for")
    return [b.apply("fmod" if fmod else "mod", a, need(x, 1))]


def bit_shift(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    direction = call.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise Unsupported(f"with direction '{direction}'")
    return [b.apply(f"shift{direction.lower()}", need(x, 0), need(x, 1))]


def is_inf(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    """Either infinity, or the one that the attributes leave."""
    v = need(x, 0)
    low, high = call.attr("detect_negative", 1), call.attr("detect_positive", 1)
    if low and high:
        return [b.apply("isinf", v)]
    return [b.apply("equal", v, -inf if low else inf if high else nan)]


def where(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    a = need(x, 1)
    return [b.apply("where", need(x, 0), a, need(x, 2), dtype=a.dtype)]


def cast(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    return [_cast(b, call, need(x, 0), onnx_dtype(call.attr("to")))]


def cast_like(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    return [_cast(b, call, need(x, 0), need(x, 1).dtype)]


def _cast(b: Builder, call: Call, v: Value, dtype: str) -> Value:
    """To 8-bit floats, what is out of range becomes the largest number, or not with saturate=0."""
    saturate = call.attr("saturate", 1)
    if dtype not in FLOAT8 or v.dtype == dtype:
        return b.cast(v, dtype)
    if not saturate:
        wide = [("cast", (("in", 0),), "fp32"), *overflown(("step", 0), dtype, 1)]
        return b.map([*wide, ("cast", (("step", len(wide) - 1),), dtype)], [v], "cast")
    top = float(finfo(NUMPY[dtype]).max)  # type: ignore[no-untyped-call]
    inner = v.dtype if v.dtype in FLOATS else "fp32"
    steps = [("clip", (("in", 0), -top, top), inner), ("cast", (("step", 0),), dtype)]
    return b.map(steps, [v], "cast")


def identity(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    return [need(x, 0)]


def dropout(b: Builder, call: Call, x: Sequence[Value | None]) -> Sequence[Value | None]:
    """Inference: the data itself and a mask of ones; ratio and seed mean nothing then."""
    v = need(x, 0)
    call.ignore("seed", "ratio")
    if optional(x, 2) is not None and known(x, 2).array().any():
        ratio = optional(x, 1)
        if ratio is None or known(x, 1).array().any():
            raise Unsupported("in training mode")
    if call.attr("is_test", 1) != 1:
        raise Unsupported("in training mode")
    if not call.wants(1):
        return [v]
    kind = "bool" if call.opset >= 10 else v.dtype
    shown = b.constant(np.ones((), NUMPY[kind]), f"{b.scope}.one")
    return [v, b.expand(shown, v.shape, v.labels, "mask")]


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


TABLE: dict[tuple[str, str], Lowering] = {
    **{("", op): _unary(fn) for op, fn in UNARY.items()},
    **{("", op): _binary(fn) for op, fn in BINARY.items()},
    **{("", op): _variadic(fn) for op, fn in VARIADIC.items()},
    ("", "Pow"): power,
    ("", "Mean"): mean,
    ("", "Mod"): mod,
    ("", "BitShift"): bit_shift,
    ("", "IsInf"): is_inf,
    ("", "Where"): where,
    ("", "Cast"): cast,
    ("", "CastLike"): cast_like,
    ("", "Identity"): identity,
    ("", "Dropout"): dropout,
    ("", "Clip"): clip,
}
