"""Reductions and what is built from them: sums, norms, softmax and its kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need
from meshc.frontend.folding import Const
from meshc.frontend.formula import Formula, Term, formula, inner_dtype
from meshc.frontend.labels import FIXED, MIXED
from meshc.frontend.lower_shape import axes_of
from meshc.ir.dtypes import FLOATS

Values = Sequence[Value | None]
Reducer = Callable[[Builder, Value, list[int], bool], Value]


def _plain(fn: str) -> Reducer:
    return lambda b, v, axes, keep: b.reduce(fn, v, axes, keep)


def _mean(b: Builder, v: Value, axes: list[int], keep: bool) -> Value:
    """Integers are divided after they are all summed, towards zero."""
    if v.dtype in FLOATS:
        return b.reduce("mean", v, axes, keep)
    count = _count(b, v, axes)
    return b.apply("div", b.reduce("sum", v, axes, keep, "sum"), count, dtype=v.dtype)


def _count(b: Builder, v: Value, axes: list[int]) -> Value:
    number = np.asarray(prod(v.shape[a % v.rank] for a in axes), np.int64)
    origin = MIXED if any(v.labels[a % v.rank] for a in axes) else FIXED
    return b.cast(b.value(Const.of(number, "int64", origin), f"{b.scope}.count"), v.dtype)


def _wide_sum(before: str, after: str) -> Reducer:
    """A sum in fp32 of halves, between two functions of its terms and of itself."""

    def reduce(b: Builder, v: Value, axes: list[int], keep: bool) -> Value:
        inner = inner_dtype(v.dtype)
        if before == "square":
            terms = formula(b, [v], lambda f, x: f("mul", x, x), inner, suffix="square")
        elif before:
            terms = b.apply(before, v, dtype=inner, suffix=before)
        else:
            terms = b.cast(v, inner)
        total = b.reduce("sum", terms, axes, keep, "sum")
        return b.apply(after, total, dtype=v.dtype) if after else b.cast(total, v.dtype)

    return reduce


def _log_sum_exp(b: Builder, v: Value, axes: list[int], keep: bool) -> Value:
    """The largest term is taken out, where it is finite."""
    inner = inner_dtype(v.dtype)
    top = b.reduce("max", v, axes, True, "max")

    def finite(f: Formula, x: Term) -> None:
        f("where", f.test("less", f("abs", x), inf), x, 0.0)

    shift = formula(b, [top], finite, inner, suffix="shift")
    terms = formula(b, [v, shift], lambda f, x, s: f("exp", f("sub", x, s)), inner, suffix="exp")
    total = b.reduce("sum", terms, axes, True, "sum")
    out = formula(b, [total, shift], lambda f, t, s: f("add", f("log", t), s), v.dtype)
    if keep:
        return out
    gone = {a % v.rank for a in axes}
    kept = [i for i in range(v.rank) if i not in gone]
    return b.reshape(out, [out.shape[i] for i in kept], [out.labels[i] for i in kept], "squeeze")


# operator → (its meaning, and the function of a single element where nothing is reduced)
REDUCERS: dict[str, tuple[Reducer, str]] = {
    "ReduceSum": (_plain("sum"), ""),
    "ReduceMean": (_mean, ""),
    "ReduceMax": (_plain("max"), ""),
    "ReduceMin": (_plain("min"), ""),
    "ReduceProd": (_plain("prod"), ""),
    "ReduceL1": (_wide_sum("abs", ""), "abs"),
    "ReduceL2": (_wide_sum("square", "sqrt"), "abs"),
    "ReduceSumSquare": (_wide_sum("square", ""), "square"),
    "ReduceLogSum": (_wide_sum("", "log"), "log"),
    "ReduceLogSumExp": (_log_sum_exp, ""),
}


def _reduce(op: str) -> Lowering:
    """Axes are an attribute before opset 13 (ReduceSum) or 18, an operand since."""
    reducer, single = REDUCERS[op]

    def lower(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
        v, axes = need(x, 0), axes_of(call, x, 1)
        keep, noop = bool(call.attr("keepdims", 1)), call.attr("noop_with_empty_axes", 0)
        if any(not -v.rank <= a < v.rank for a in axes or ()):
            raise Unsupported(f"over axes {axes} of {v.rank} dimensions")
        if not axes:
            if noop or v.rank == 0:
                return [b.apply("mul", v, v) if single == "square"
                        else b.apply(single, v) if single else v]  # fmt: skip
            axes = list(range(v.rank))
        return [reducer(b, v, axes, keep)]

    return lower


def softmax_axes(call: Call, v: Value) -> list[int]:
    """Since opset 13 one axis; before, all axes from `axis` on, as if flattened."""
    axis = int(call.attr("axis", -1 if call.opset >= 13 else 1))
    if not -v.rank <= axis < max(v.rank, 1):
        raise Unsupported(f"along axis {axis} of {v.rank} dimensions")
    axis = axis % v.rank if v.rank else 0
    return list(range(axis, v.rank)) if call.opset < 13 else [axis]


def softmax_over(b: Builder, v: Value, axis: int) -> Value:
    """Softmax over all axes from `axis` on."""
    return b.softmax(v, list(range(axis % v.rank, v.rank)), v.dtype, v.dtype)


def softmax(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    return [b.softmax(v, softmax_axes(call, v), v.dtype, v.dtype)]


def log_softmax(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v, axes = need(x, 0), softmax_axes(call, need(x, 0))
    inner = inner_dtype(v.dtype)
    top = b.reduce("max", v, axes, suffix="max")
    low = b.apply("sub", v, top, dtype=inner, suffix="sub")
    total = b.reduce("sum", b.apply("exp", low, suffix="exp"), axes, suffix="sum")
    return [formula(b, [low, total], lambda f, s, t: f("sub", s, f("log", t)), v.dtype, inner)]


def hardmax(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """One at the first of the largest elements: the least place that holds the maximum."""
    v, axes = need(x, 0), softmax_axes(call, need(x, 0))
    shape = [n if i in axes else 1 for i, n in enumerate(v.shape)]
    labels = [n if i in axes else FIXED for i, n in enumerate(v.labels)]
    size = prod(shape)
    origin = MIXED if any(labels) else FIXED
    order = Const.of(np.arange(size, dtype=np.int32).reshape(shape), "int32", origin)
    places = b.value(order, f"{b.scope}.places", tuple(labels))
    top = b.reduce("max", v, axes, suffix="max")

    def place(f: Formula, a: Term, m: Term, p: Term) -> None:
        f("where", f.test("equal", a, m), p, 2**31 - 1, dtype="int32")

    held = formula(b, [v, top, places], place, "int32", v.dtype, "place")
    first = b.reduce("min", held, axes, suffix="first")

    def one(f: Formula, p: Term, a: Term) -> None:
        f("cast", f.test("equal", p, a))

    return [formula(b, [places, first], one, v.dtype, v.dtype)]


TABLE: dict[tuple[str, str], Lowering] = {
    **{("", op): _reduce(op) for op in REDUCERS},
    ("", "Softmax"): softmax,
    ("", "LogSoftmax"): log_softmax,
    ("", "Hardmax"): hardmax,
}
