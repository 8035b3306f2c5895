"""ONNX Runtime's gated and branched operators of recent decoders."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.formula import Formula, Term, formula, inner_dtype
from meshc.frontend.labels import FIXED

Values = Sequence[Value | None]


def scaled_silu(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """z · sigmoid(z) of the scaled data, each step rounded to its type."""
    v, scale, alpha = need(x, 0), optional(x, 1), float(call.attr("alpha", 1.0))

    def write(f: Formula, a: Term, factor: Term) -> None:
        z = f("mul", a, factor)
        f("mul", z, f("sigmoid", z))

    if scale is None:
        return [formula(b, [v], lambda f, a: write(f, a, alpha), inner=v.dtype)]
    factor = b.reshape(scale, (), (), "scale")
    return [formula(b, [v, factor], write, inner=v.dtype)]


def gated_add(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """X + Y · gate; with weights the gate is the sigmoid of its product with them."""
    first, second, gate, weight = need(x, 0), need(x, 1), need(x, 2), optional(x, 3)
    kind = first.dtype
    if weight is not None:
        gate = b.apply("sigmoid", b.matmul(gate, weight, suffix="project"), suffix="gate")
    if gate.shape[:-1] != first.shape[:-1] or gate.shape[-1] != 1:
        raise Unsupported(f"with a gate of shape {list(gate.shape)}")

    def write(f: Formula, p: Term, q: Term, g: Term) -> None:
        f("add", p, f("mul", q, g))

    return [formula(b, [first, second, gate], write, inner=kind)]


def _scale(b: Builder, v: Value, width: int, eps: float) -> tuple[Value, Value, str]:
    """[…, C] as […, C / width, width], 1 / rms of each row, and the type inside."""
    inner = inner_dtype(v.dtype)
    if v.shape[-1] % width or v.labels[-1] != FIXED:
        raise Unsupported(f"with {v.shape[-1]} elements in rows of {width}")
    shape = (*v.shape[:-1], v.shape[-1] // width, width)
    rows = b.reshape(v, shape, (*v.labels, FIXED), "rows")
    squares = formula(b, [rows], lambda f, a: f("mul", a, a), inner, suffix="square")
    mean = b.reduce("mean", squares, [-1], suffix="mean")

    def root(f: Formula, m: Term) -> None:
        f("reciprocal", f("sqrt", f("add", m, eps)))

    return rows, formula(b, [mean], root, inner, suffix="inverse"), inner


def gated_rms_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """X / rms · scale · activation(gate), rows as long as the scale."""
    v, scale, gate = need(x, 0), need(x, 1), need(x, 2)
    kind = call.attr("activation", "silu")
    if kind not in ("silu", "swish", "sigmoid"):
        raise Unsupported(f"with activation '{kind}'")
    rows, inverse, inner = _scale(b, v, scale.shape[-1], float(call.attr("epsilon", 1e-5)))
    gates = b.reshape(gate, rows.shape, rows.labels, "gates")

    def write(f: Formula, a: Term, i: Term, s: Term, g: Term) -> None:
        opened = f("sigmoid", g)
        f("mul", f("mul", f("mul", a, i), s), opened if kind == "sigmoid" else f("mul", g, opened))

    out = formula(b, [rows, inverse, scale, gates], write, v.dtype, inner, "scale")
    return [b.reshape(out, v.shape, v.labels)]


def branchwise_rms_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """RMS normalisation of each branch: the last axis, or one of `num_branches` parts of it."""
    v, scale, count = need(x, 0), optional(x, 1), int(call.attr("num_branches", 0))
    eps = float(call.attr("epsilon", 1e-5))
    parts = count or (v.shape[-2] if v.rank > 1 else 1)
    width = v.shape[-1] // count if count else v.shape[-1]
    flat = v
    if not count:
        if v.rank < 2 or v.labels[-1] != FIXED or v.labels[-2] != FIXED:
            raise Unsupported("on branches whose number the workload decides")
        shape = (*v.shape[:-2], parts * width)
        flat = b.reshape(v, shape, (*v.labels[:-2], FIXED), "flat")
    rows, inverse, inner = _scale(b, flat, width, eps)
    operands = [rows, inverse]
    if scale is not None:
        whole = scale.rank == 2 or scale.shape[-1] != width
        size = (parts, width) if whole else (width,)
        operands.append(b.reshape(scale, size, [FIXED] * len(size), "scale.rows"))

    def write(f: Formula, a: Term, i: Term, s: Term | None = None) -> None:
        out = f("mul", a, i)
        if s is not None:
            f("mul", out, s)

    out = formula(b, operands, write, v.dtype, inner, "scale")
    return [b.reshape(out, v.shape, v.labels)]


MS = "com.microsoft"
TABLE: dict[tuple[str, str], Lowering] = {
    (MS, "ScaledSiLU"): scaled_silu,
    (MS, "GatedAdd"): gated_add,
    (MS, "GatedRMSNorm"): gated_rms_norm,
    (MS, "BranchwiseRMSNorm"): branchwise_rms_norm,
}
