"""Normalisations by the statistics of channels, groups or whole axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need
from meshc.frontend.formula import Formula, Term, formula, inner_dtype
from meshc.frontend.labels import FIXED
from meshc.frontend.labels import product as labels_product
from meshc.frontend.lower_norm import stash_dtype

Values = Sequence[Value | None]


def per_channel(b: Builder, v: Value, rank: int, suffix: str) -> Value:
    """[C] as [C, 1, …], which broadcasts to the channels of a tensor [N, C, …] of this rank."""
    return b.reshape(v, (*v.shape, *[1] * (rank - 2)), (*v.labels, *[FIXED] * (rank - 2)), suffix)


def centred(
    b: Builder, v: Value, axes: Sequence[int], inner: str, eps: float
) -> tuple[Value, Value]:
    """The mean over `axes` and 1 / sqrt(variance + ε)."""
    wide = b.cast(v, inner)
    mean = b.reduce("mean", wide, axes, suffix="mean")

    def square(f: Formula, x: Term, m: Term) -> None:
        d = f("sub", x, m)
        f("mul", d, d)

    squares = formula(b, [wide, mean], square, inner, suffix="square")
    var = b.reduce("mean", squares, axes, suffix="variance")

    def root(f: Formula, x: Term) -> None:
        f("reciprocal", f("sqrt", f("add", x, eps)))

    return mean, formula(b, [var], root, inner, suffix="inverse")


def scaled(b: Builder, v: Value, mean: Value, inverse: Value, gamma: Value, beta: Value) -> Value:
    """(v − mean) · inverse · γ + β."""

    def write(f: Formula, x: Term, m: Term, i: Term, g: Term, c: Term) -> None:
        f("add", f("mul", f("mul", f("sub", x, m), i), g), c)

    return formula(b, [v, mean, inverse, gamma, beta], write, v.dtype, inverse.dtype, "scale")


def instance_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Statistics of each sample's channel."""
    v = need(x, 0)
    eps, inner = float(call.attr("epsilon", 1e-5)), inner_dtype(v.dtype)
    mean, inverse = centred(b, v, range(2, v.rank), inner, eps)
    gamma, beta = (per_channel(b, need(x, i), v.rank, n) for i, n in ((1, "gamma"), (2, "beta")))
    return [scaled(b, v, mean, inverse, gamma, beta)]


def batch_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Inference: with the given statistics of each channel."""
    if call.attr("training_mode", 0) or any(call.wants(i) for i in range(1, call.outputs)):
        raise Unsupported("in training mode")
    if not call.attr("spatial", 1):
        raise Unsupported("with spatial=0")
    call.ignore("momentum")
    v, eps = need(x, 0), float(call.attr("epsilon", 1e-5))
    names = ("gamma", "beta", "mean", "variance")
    gamma, beta, mean, var = (
        per_channel(b, need(x, i), max(v.rank, 2), n) for i, n in enumerate(names, start=1)
    )
    inner = inner_dtype(v.dtype)

    def root(f: Formula, s: Term) -> None:
        f("reciprocal", f("sqrt", f("add", s, eps)))

    inverse = formula(b, [var], root, inner_dtype(var.dtype), inner, "inverse")
    return [scaled(b, v, mean, inverse, gamma, beta)]


def group_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Statistics of groups of channels; γ and β by group before opset 21, by channel since."""
    v, gamma, beta = need(x, 0), need(x, 1), need(x, 2)
    groups, eps = int(call.attr("num_groups")), float(call.attr("epsilon", 1e-5))
    inner = stash_dtype(call, v) if call.opset >= 21 else inner_dtype(v.dtype)
    channels = v.shape[1]
    if channels % groups:
        raise Unsupported(f"with {channels} channels in {groups} groups")
    each = channels // groups
    shape = (v.shape[0], groups, each, prod(v.shape[2:]))
    rest = labels_product(v.labels[2:], v.shape[2:])
    grouped = b.reshape(v, shape, (v.labels[0], FIXED, FIXED, rest), "groups")
    mean, inverse = centred(b, grouped, (2, 3), inner, eps)

    def spread(p: Value, name: str) -> Value:
        if p.shape[0] == groups and (call.opset < 21 or each == 1):
            return b.reshape(p, (groups, 1, 1), [FIXED] * 3, name)
        return b.reshape(p, (groups, each, 1), [FIXED] * 3, name)

    out = scaled(b, grouped, mean, inverse, spread(gamma, "gamma"), spread(beta, "beta"))
    return [b.reshape(out, v.shape, v.labels, "join")]


def mean_variance_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """(x − mean) / (sqrt(variance) + 1e-9), as the standard's function has it."""
    v = need(x, 0)
    axes = [int(a) for a in call.attr("axes", (0, 2, 3))]
    inner = inner_dtype(v.dtype)
    wide = b.cast(v, inner)
    mean = b.reduce("mean", wide, axes, suffix="mean")

    def square(f: Formula, a: Term, m: Term) -> None:
        d = f("sub", a, m)
        f("mul", d, d)

    var = b.reduce("mean", formula(b, [wide, mean], square, inner, suffix="square"), axes)

    def write(f: Formula, a: Term, m: Term, s: Term) -> None:
        f("div", f("sub", a, m), f("add", f("sqrt", s), 1e-9))

    return [formula(b, [wide, mean, var], write, v.dtype, inner, "scale")]


def lp_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """x over its 1- or 2-norm along an axis; where that is zero, zero."""
    v, p = need(x, 0), int(call.attr("p", 2))
    axis = int(call.attr("axis", -1))
    if p not in (1, 2):
        raise Unsupported(f"with p {p}")
    inner = inner_dtype(v.dtype)

    def term(f: Formula, a: Term) -> None:
        if p == 1:
            f("abs", a)
        else:
            f("mul", a, a)

    total = b.reduce("sum", formula(b, [v], term, inner, suffix="terms"), [axis], suffix="sum")

    def write(f: Formula, a: Term, t: Term) -> None:
        norm = t if p == 1 else f("sqrt", t)
        f("where", f.test("equal", norm, 0.0), 0.0, f("div", a, norm))

    return [formula(b, [v, total], write, v.dtype, inner, "scale")]


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "InstanceNormalization"): instance_norm,
    ("", "BatchNormalization"): batch_norm,
    ("", "GroupNormalization"): group_norm,
    ("", "MeanVarianceNormalization"): mean_variance_norm,
    ("", "LpNormalization"): lp_norm,
}
