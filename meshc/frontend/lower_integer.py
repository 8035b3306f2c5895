"""Arithmetic on 8-bit integers: products with 32-bit sums, and ONNX Runtime's operators whose
operands and results are quantised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshc.frontend import lower_activation, lower_elementwise, lower_reduce
from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.lower_contrib import attention_of, embed_layer_norm
from meshc.frontend.lower_matmul import with_vectors
from meshc.frontend.lower_quant import dequantised, is_zero, limits, quantised
from meshc.frontend.lower_shape import concat

Values = Sequence[Value | None]
BYTES = ("int8", "uint8")
FLOAT: dict[tuple[str, str], Lowering] = {
    **lower_elementwise.TABLE,
    **lower_activation.TABLE,
    **lower_reduce.TABLE,
}


def integer_product(
    b: Builder,
    left: Value,
    right: Value,
    left_zero: Value | None,
    right_zero: Value | None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Value:
    """(left − its zero point) · (right − its own) in int32.

    The 8-bit operands themselves are multiplied; the zero points act on sums of their rows and
    columns: A·B − a·Σ B − b·Σ (A − a). A zero point is one number, or one per row of the left
    operand or per column of the right one.
    """
    for v in (left, right):
        if v.dtype not in BYTES:
            raise Unsupported(f"on {v.dtype}")
    out = b.matmul(left, right, transpose_a, transpose_b, dtype="int32", suffix="product")
    rows = None if left_zero is None else _zero(b, left_zero, True)
    columns = None
    if right_zero is not None and not (right.const is not None and is_zero(right_zero)):
        columns = _zero(b, right_zero, False)
    operands: list[Value] = [out]
    steps: list[tuple[Any, ...]] = []
    if rows is not None:
        sums = _sums(b, b.cast(right, "int32"), -1 if transpose_b else -2, transpose_b, "columns")
        operands += [rows, sums]
        steps.append(("mul", (("in", 1), ("in", 2)), "int32"))
        steps.append(("sub", (("in", 0), ("step", 0)), "int32"))
    if columns is not None:
        wide = b.cast(left, "int32")
        if rows is not None:
            if transpose_a and rows.rank:
                raise Unsupported("with a zero point per row of a transposed operand")
            wide = b.apply("sub", wide, rows, dtype="int32", suffix="left.shifted")
        sums = _sums(b, wide, -2 if transpose_a else -1, transpose_a, "rows")
        at, before = len(operands), ("step", 1) if steps else ("in", 0)
        operands += [columns, sums]
        steps.append(("mul", (("in", at), ("in", at + 1)), "int32"))
        steps.append(("sub", (before, ("step", len(steps) - 1)), "int32"))
    return b.map(steps, operands, "shifted") if steps else out


def _sums(b: Builder, v: Value, axis: int, turned: bool, name: str) -> Value:
    """Sums over one of the last two dimensions, laid as the product is."""
    summed = b.reduce("sum", v, [axis], suffix=f"{name}.sums")
    if not turned:
        return summed
    return b.transpose(summed, (*range(v.rank - 2), v.rank - 1, v.rank - 2), f"{name}.turn")


def _zero(b: Builder, zero: Value, rows: bool) -> Value:
    """A zero point in int32 that broadcasts against the product."""
    zero = b.cast(zero, "int32")
    if zero.rank == 1 and zero.shape[0] == 1:
        return b.reshape(zero, (), (), "zero")
    if zero.rank == 1 and rows:
        return b.insert_axis(zero, 1, "zero.rows")
    return zero


def _one(b: Builder, v: Value) -> Value:
    """A single number without dimensions."""
    return b.reshape(v, (), (), "number") if v.shape == (1,) else v


def _per_row(b: Builder, v: Value) -> Value:
    """Scales of the left operand, one number or one per row, against the product."""
    v = _one(b, v)
    return b.insert_axis(v, 1, "rows") if v.rank == 1 else v


def dynamic_quantize(b: Builder, x: Value, suffix: str = "") -> tuple[Value, Value, Value]:
    """x as uint8, its scale and its zero point, from its largest and smallest numbers."""
    axes = list(range(x.rank))
    low = b.reduce("min", x, axes, keepdims=False, suffix=f"{suffix}lowest")
    high = b.reduce("max", x, axes, keepdims=False, suffix=f"{suffix}highest")
    inner = x.dtype
    ends: list[tuple[Any, ...]] = [
        ("min", (("in", 0), 0.0), inner),
        ("max", (("in", 1), 0.0), inner),
        ("sub", (("step", 1), ("step", 0)), inner),
        ("div", (("step", 2), 255.0), inner),
        ("equal", (("step", 0), ("step", 1)), "bool"),
        ("where", (("step", 4), 1.0, ("step", 3)), inner),
    ]
    scale = b.map(ends, [low, high], f"{suffix}scale")
    middle: list[tuple[Any, ...]] = [
        ("min", (("in", 0), 0.0), inner),
        ("div", (("step", 0), ("in", 1)), inner),
        ("neg", (("step", 1),), inner),
        ("clip", (("step", 2), 0.0, 255.0), inner),
        ("round", (("step", 3),), inner),
        ("cast", (("step", 4),), "uint8"),
    ]
    zero = b.map(middle, [low, scale], f"{suffix}zero")
    return quantised(b, x, scale, zero, "uint8", suffix=f"{suffix}quantised"), scale, zero


def dynamic_quantize_linear(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    return list(dynamic_quantize(b, need(x, 0)))[: call.outputs]


def matmul_integer(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """A, B and their zero points; vectors as in MatMul."""

    def product(p: Value, q: Value) -> Value:
        return integer_product(b, p, q, optional(x, 2), optional(x, 3))

    return [with_vectors(b, need(x, 0), need(x, 1), product)]


def _scaled_product(
    b: Builder,
    left: Value,
    right: Value,
    scales: tuple[Value, Value],
    zeros: tuple[Value | None, Value | None],
    bias: Value | None,
) -> Value:
    """The integer product times both scales, in the scales' type, plus a bias."""
    whole = integer_product(b, left, right, *zeros)
    factor = b.apply("mul", _per_row(b, scales[0]), _one(b, scales[1]), suffix="factor")
    dtype = scales[0].dtype
    steps: list[tuple[Any, ...]] = [
        ("cast", (("in", 0),), "fp32"),
        ("mul", (("step", 0), ("in", 1)), dtype),
    ]
    operands = [whole, factor]
    if bias is not None:
        steps.append(("add", (("step", 1), ("in", 2)), dtype))
        operands.append(bias)
    return b.map(steps, operands, "scaled")


def matmul_integer_to_float(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """A, B, their scales, their zero points, bias."""
    scales, zeros = (need(x, 2), need(x, 3)), (optional(x, 4), optional(x, 5))
    return [_scaled_product(b, need(x, 0), need(x, 1), scales, zeros, optional(x, 6))]


def dynamic_quantize_matmul(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """A is rounded to 8 bits here; B, its scale, its zero point, bias."""
    codes, scale, zero = dynamic_quantize(b, need(x, 0), "a.")
    zeros = (zero, optional(x, 3))
    return [_scaled_product(b, codes, need(x, 1), (scale, need(x, 2)), zeros, optional(x, 4))]


def _requantised(b: Builder, x: Value, scale: Value, zero: Value | None, like: Value) -> Value:
    kind = zero.dtype if zero is not None else like.dtype
    return quantised(b, x, _one(b, scale), None if zero is None else _one(b, zero), kind)


def qlinear_matmul(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """A, scale, zero; B, scale, zero; the result's scale and zero."""
    a, c = need(x, 0), need(x, 3)
    for zero in (need(x, 2), need(x, 5), need(x, 7)):
        if zero.dtype not in BYTES:
            raise Unsupported(f"on {zero.dtype}")

    def product(p: Value, q: Value) -> Value:
        return integer_product(b, p, q, need(x, 2), need(x, 5))

    whole = with_vectors(b, a, c, product)
    return [_rescaled(b, whole, need(x, 1), need(x, 4), need(x, 6), need(x, 7))]


def _rescaled(
    b: Builder, whole: Value, left: Value, right: Value, scale: Value, zero: Value
) -> Value:
    """An int32 product as 8-bit integers of another scale: times left · right / scale."""
    both = b.apply("mul", _per_row(b, left), _one(b, right), suffix="factor")
    factor = b.apply("div", both, _one(b, scale), suffix="ratio")
    low, high = limits(zero.dtype)
    steps: list[tuple[Any, ...]] = [
        ("cast", (("in", 0),), "fp32"),
        ("mul", (("step", 0), ("in", 1)), "fp32"),
        ("round", (("step", 1),), "fp32"),
        ("add", (("step", 2), ("in", 2)), "fp32"),
        ("saturate", (("step", 3), float(low), float(high)), "fp32"),
        ("cast", (("step", 4),), zero.dtype),
    ]
    return b.map(steps, [whole, factor, b.cast(_one(b, zero), "fp32")], "requantised")


def qgemm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """A, scale, zero; B, scale, zero; C in int32; the result's scale and zero, without which it
    is a float."""
    ta, tb = bool(call.attr("transA", 0)), bool(call.attr("transB", 0))
    whole = integer_product(b, need(x, 0), need(x, 3), need(x, 2), need(x, 5), ta, tb)
    c = optional(x, 6)
    if c is not None:
        whole = b.apply("add", whole, c, dtype="int32", suffix="bias")
    alpha = float(call.attr("alpha", 1.0))
    left = _one(b, need(x, 1))
    if alpha != 1.0:
        left = b.apply("mul", left, alpha, suffix="alpha")
    scale, zero = optional(x, 7), optional(x, 8)
    if scale is not None:
        if zero is None:
            raise Unsupported("with a scale of its result and no zero point")
        return [_rescaled(b, whole, left, need(x, 4), scale, zero)]
    factor = b.apply("mul", left, _one(b, need(x, 4)), suffix="factor")
    return [b.apply("mul", b.cast(whole, "fp32"), factor, suffix="scaled")]


# -- operators on quantised numbers: dequantise, compute, quantise ----------------------------


def _real(b: Builder, x: Values, at: int) -> Value:
    """Operands `at`, its scale and its zero point, as floats."""
    v, scale, zero = need(x, at), need(x, at + 1), optional(x, at + 2)
    zero = None if zero is None else _one(b, zero)
    return dequantised(b, v, _one(b, scale), zero, scale.dtype, f"in{at}")


def _inner(call: Call, op: str, opset: int = 13) -> Call:
    """The call of the float operator inside; it reads the same attributes."""
    return replace(call, domain="", op=op, opset=opset, used=(True,))


def _qlinear(op: str, operands: int) -> Lowering:
    """A float operator on quantised numbers: `operands` triples (number, scale, zero point), then
    the result's scale and zero point."""

    def run(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
        given = [_real(b, x, 3 * i) for i in range(operands)]
        (out,) = FLOAT["", op](b, _inner(call, op), given)
        assert out is not None
        at = 3 * operands
        return [_requantised(b, out, need(x, at), optional(x, at + 1), need(x, 0))]

    return run


def qlinear_softmax(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """The attribute opset says which version of Softmax it is."""
    inner = _inner(call, "Softmax", int(call.attr("opset", 13)))
    (out,) = lower_reduce.softmax(b, inner, [_real(b, x, 0)])
    assert out is not None
    return [_requantised(b, out, need(x, 3), optional(x, 4), need(x, 0))]


def qlinear_concat(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """The result's scale and zero point, then a triple per part."""
    parts = [_real(b, x, at) for at in range(2, len(x), 3)]
    (out,) = concat(b, _inner(call, "Concat"), parts)
    assert out is not None
    return [_requantised(b, out, need(x, 0), optional(x, 1), need(x, 2))]


def qlinear_where(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Condition, two triples, the result's scale and zero point."""
    chosen = [need(x, 0), _real(b, x, 1), _real(b, x, 4)]
    (out,) = lower_elementwise.where(b, _inner(call, "Where"), chosen)
    assert out is not None
    return [_requantised(b, out, need(x, 7), optional(x, 8), need(x, 1))]


def qattention(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Input, weights, bias, their scales, mask, their zero points, past: the projections are an
    integer product, all behind them is in floats."""
    scales, zeros = (need(x, 3), need(x, 4)), (optional(x, 6), optional(x, 7))
    both = _scaled_product(b, need(x, 0), need(x, 1), scales, zeros, optional(x, 2))
    return attention_of(b, call, both, optional(x, 5), optional(x, 8), None)


def qembed_layer_norm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """As EmbedLayerNormalization, tables and norm quantised: ids, segments, three tables, γ, β,
    mask, five scales, five zero points."""

    def real(at: int) -> Value | None:
        v = optional(x, 2 + at)
        if v is None:
            return None
        scale, zero = _one(b, need(x, 8 + at)), optional(x, 13 + at)
        return dequantised(b, v, scale, None if zero is None else _one(b, zero), scale.dtype,
                           f"in{at}")  # fmt: skip

    parts = [real(at) for at in range(5)]
    return embed_layer_norm(b, call, [need(x, 0), optional(x, 1), *parts, optional(x, 7)])


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "DynamicQuantizeLinear"): dynamic_quantize_linear,
    ("", "MatMulInteger"): matmul_integer,
    ("", "QLinearMatMul"): qlinear_matmul,
    ("com.microsoft", "MatMulIntegerToFloat"): matmul_integer_to_float,
    ("com.microsoft", "DynamicQuantizeMatMul"): dynamic_quantize_matmul,
    ("com.microsoft", "QGemm"): qgemm,
    **{("com.microsoft", f"QLinear{op}"): _qlinear(op, 1) for op in ("Sigmoid", "LeakyRelu")},
    **{("com.microsoft", f"QLinear{op}"): _qlinear(op, 2) for op in ("Add", "Mul")},
    ("com.microsoft", "QLinearSoftmax"): qlinear_softmax,
    ("com.microsoft", "QLinearConcat"): qlinear_concat,
    ("com.microsoft", "QLinearWhere"): qlinear_where,
    ("com.microsoft", "QAttention"): qattention,
    ("com.microsoft", "QEmbedLayerNormalization"): qembed_layer_norm,
}
