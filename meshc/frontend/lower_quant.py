"""Quantised weights: linear quantisation of whole tensors, axes and blocks, and the operators of
ONNX Runtime that multiply or look up packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, onnx_dtype, optional
from meshc.frontend.folding import Const
from meshc.frontend.formula import overflown
from meshc.frontend.labels import FIXED, MIXED, Label
from meshc.frontend.reader import SMALL
from meshc.ir.dtypes import FLOAT8, FLOATS, NUMPY
from meshc.ops.unpack import packed, unpacked

Values = Sequence[Value | None]
Step = tuple[str, tuple[Any, ...], str]
_PEEK = 1 << 16  # elements: zero points up to this number are looked at


def limits(kind: str) -> tuple[int, int]:
    """Smallest and largest number of an integer type, those smaller than a byte included."""
    bits = int(kind.lstrip("uint"))
    return (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def is_zero(v: Value) -> bool:
    """Whether a zero point is known to be zero everywhere; large ones are not looked at, nor those
    of external files, so that the graph is the same without them."""
    if v.const is None or not v.const.fixed or v.const.outside or v.const.size > _PEEK:
        return False
    return not v.const.array().astype(np.float32).any()


def dequantised(
    b: Builder, x: Value, scale: Value, zero: Value | None, dtype: str, suffix: str = "dequantised"
) -> Value:
    """(x − zero) · scale in fp32, rounded to dtype; scale and zero broadcast against x.

    A zero point that happens to be zero is left out for weights alone: among activations, one
    layer's may be zero and the next one's not, and layers should be alike.
    """
    operands = [x]
    steps: list[Step] = [("cast", (("in", 0),), "fp32")]
    if zero is not None and not (x.const is not None and is_zero(zero)):
        if x.dtype == "int32":
            steps = [
                ("sub", (("in", 0), ("in", 1)), "int32"),
                ("cast", (("step", 0),), "fp32"),
            ]
            zero = b.cast(zero, "int32")
        else:
            steps.append(("sub", (("step", 0), ("in", 1)), "fp32"))
            zero = b.cast(zero, "fp32")
        operands.append(zero)
    steps.append(("mul", (("step", len(steps) - 1), ("in", len(operands))), dtype))
    return b.map(steps, [*operands, scale], suffix)


def quantised(
    b: Builder,
    x: Value,
    scale: Value,
    zero: Value | None,
    kind: str,
    saturate: bool = True,
    inner: str = "fp32",
    suffix: str = "quantised",
) -> Value:
    """round(x / scale) + zero, kept within the type `kind`; ties go to the even number."""
    dtype, small = kind, ""
    if kind not in NUMPY:  # smaller than a byte: held in a whole one
        dtype, small = ("int8" if kind.startswith("int") else "uint8"), kind
    steps: list[Step] = []
    if x.dtype not in FLOATS:
        steps.append(("cast", (("in", 0),), "fp32"))
    first: Any = ("step", 0) if steps else ("in", 0)
    steps.append(("div", (first, ("in", 1)), inner))
    operands = [x, scale]

    def then(fn: str, *more: Any, to: str = "fp32") -> None:
        steps.append((fn, (("step", len(steps) - 1), *more), to))

    if kind in FLOAT8:
        if saturate:
            top = float(ml_dtypes.finfo(NUMPY[kind]).max)  # type: ignore[no-untyped-call]
            then("clip", -top, top)
        else:
            steps += overflown(("step", len(steps) - 1), kind, len(steps))
    else:
        then("round")
        if zero is not None:
            operands.append(b.cast(zero, "fp32"))
            then("add", ("in", 2))
        low, high = limits(kind)
        then("saturate", float(low), float(high))
    then("cast", to=dtype)
    out = b.map(steps, operands, suffix)
    out.small = small
    return out


def _along(b: Builder, v: Value | None, x: Value, axis: int) -> Value | None:
    """A vector along one axis of x, or a single number, in a shape that broadcasts."""
    if v is None or v.rank == 0:
        return v
    if v.rank > 1:
        raise Unsupported("with scales of several dimensions and no block_size")
    if v.shape == (1,):
        return b.reshape(v, (), (), "whole")
    if v.shape[0] != x.shape[axis]:
        raise Unsupported(f"with {v.shape[0]} scales for {x.shape[axis]} elements of its axis")
    shape, labels = [1] * x.rank, [FIXED] * x.rank
    shape[axis], labels[axis] = v.shape[0], v.labels[0]
    return b.reshape(v, shape, labels, "axis")


def _blocked(
    b: Builder, x: Value, scale: Value, zero: Value | None, axis: int, size: int
) -> tuple[Value, Value, Value | None]:
    """x with its axis cut into blocks, and scales and zero points that broadcast against it; or x
    itself with a scale per element, where the axis is no whole number of blocks."""
    if scale.rank != x.rank or scale.shape[axis] != -(-x.shape[axis] // size):
        raise Unsupported(f"with scales {list(scale.shape)} for blocks of {size}")
    if x.labels[axis] == FIXED and x.shape[axis] % size == 0:
        blocks = x.shape[axis] // size
        shape = (*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])
        labels: tuple[Label, ...] = (*x.labels[:axis], FIXED, FIXED, *x.labels[axis + 1 :])
        parts = [b.insert_axis(v, axis + 1, "block") if v else None for v in (scale, zero)]
        assert parts[0] is not None
        return b.reshape(x, shape, labels, "blocks"), parts[0], parts[1]
    own = np.arange(x.shape[axis], dtype=np.int64) // size
    origin: Label = FIXED if x.labels[axis] == FIXED else MIXED
    where = b.value(Const.of(own, "int64", origin), f"{b.scope}.block", (x.labels[axis],))
    found = [b.gather(v, where, axis, "block") if v else None for v in (scale, zero)]
    assert found[0] is not None
    return x, found[0], found[1]


def _arranged(
    b: Builder, call: Call, x: Value, scale: Value, zero: Value | None, default_axis: int = 1
) -> tuple[Value, Value, Value | None]:
    """x, scale and zero point for the call's axis and block_size."""
    size = int(call.attr("block_size", 0))
    if scale.rank == 0 or (scale.rank == 1 and scale.shape[0] == 1 and not size):
        flat = _along(b, scale, x, 0)
        assert flat is not None
        return x, flat, _along(b, zero, x, 0)
    axis = int(call.attr("axis", default_axis))
    if not -x.rank <= axis < x.rank:
        raise Unsupported(f"with axis {axis} of a tensor of rank {x.rank}")
    axis %= x.rank
    if size:
        return _blocked(b, x, scale, zero, axis, size)
    per_axis = _along(b, scale, x, axis)
    assert per_axis is not None
    return x, per_axis, _along(b, zero, x, axis)


def dequantize_linear(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Opsets 10 to 25 and ONNX Runtime's own: per tensor, per axis, or in blocks of an axis."""
    given, scale = need(x, 0), need(x, 1)
    to = int(call.attr("output_dtype", 0))
    dtype = onnx_dtype(to) if to else scale.dtype
    v, s, z = _arranged(b, call, given, scale, optional(x, 2))
    out = dequantised(b, v, s, z, dtype)
    return [b.reshape(out, given.shape, given.labels, "whole")]


def quantize_linear(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """The type is the zero point's, or output_dtype, or uint8."""
    given, zero = need(x, 0), optional(x, 2)
    number = int(call.attr("output_dtype", 0))
    if zero is not None:
        kind = zero.small or zero.dtype
    else:
        kind = SMALL[number][0] if number in SMALL else onnx_dtype(number or 2)
    if kind == "fp4e2m1" or (kind not in FLOAT8 and kind in FLOATS):
        raise Unsupported(f"to {kind}")
    precision = int(call.attr("precision", 0))
    inner = onnx_dtype(precision) if precision else "fp32"
    v, s, z = _arranged(b, call, given, need(x, 1), zero)
    out = quantised(b, v, s, z, kind, bool(call.attr("saturate", 1)), inner)
    whole = b.reshape(out, given.shape, given.labels, "whole")
    whole.small = out.small
    return [whole]


# -- packed weights ---------------------------------------------------------------------------


def block_weights(
    b: Builder,
    data: Value,
    scales: Value,
    zeros: Value | None,
    lead: tuple[int, ...],
    depth: int,
    bits: int,
    size: int,
    dtype: str,
    groups: Value | None = None,
    midpoint: float | None = None,
) -> Value:
    """Weights [*lead, depth] in `dtype` from packed ones.

    data: bytes of [*lead, blocks, size] with `bits` per element, the first in the low bits.
    scales: one per block.   zeros: packed like the data, each row of blocks beginning a byte, or
    one float per block; absent: `midpoint`, by default the middle of the range.
    groups: block of each element of the depth, where it does not follow from its place.
    """
    if bits not in (2, 4, 8):
        raise Unsupported(f"with {bits} bits")
    if size < 1 or size * bits % 8:
        raise Unsupported(f"with blocks of {size} elements")
    blocks = -(-depth // size)

    def whole(v: Value, shape: tuple[int, ...], what: str) -> Value:
        if int(np.prod(v.shape, dtype=np.int64)) != int(np.prod(shape, dtype=np.int64)):
            raise Unsupported(f"with {what} of shape {list(v.shape)} instead of {list(shape)}")
        return b.reshape(v, shape, (FIXED,) * len(shape), what)

    codes = whole(data, (*lead, blocks, size * bits // 8), "weights")
    if bits < 8:
        codes = b.unpack(codes, bits, suffix="codes")
    per_block = (*lead, blocks, 1)
    scale = whole(scales, per_block, "scales")
    if zeros is None:
        middle = float(1 << (bits - 1)) if midpoint is None else midpoint
        zero = b.constant(np.asarray(middle, np.float32), f"{b.scope}.middle")
    elif zeros.dtype in FLOATS:
        zero = whole(zeros, per_block, "zeros")
    else:
        zero = whole(zeros, (*lead, -(-blocks * bits // 8)), "zeros")
        if bits < 8:
            zero = b.unpack(zero, bits, suffix="zeros.codes")
            zero = b.slice(zero, -1, 0, blocks, FIXED, suffix="zeros.row")
        zero = whole(zero, per_block, "zeros.block")
    flat, labels = (*lead, blocks * size), (FIXED,) * (len(lead) + 1)
    if groups is not None:
        if zeros is not None and zeros.dtype not in FLOATS:
            # ONNX Runtime's CPU kernel reads another nibble than the definition says.
            raise Unsupported("with g_idx and packed zero points")
        codes = b.reshape(codes, flat, labels, "row")
        codes = b.slice(codes, -1, 0, depth, FIXED, suffix="depth")
        own = b.slice(groups, 0, 0, depth, FIXED, suffix="groups")
        rank = len(lead) + 1
        scale = b.gather(b.reshape(scale, per_block[:-1], labels), own, rank - 1, "scales.each")
        if zero.rank:
            zero = b.gather(b.reshape(zero, per_block[:-1], labels), own, rank - 1, "zeros.each")
        return dequantised(b, codes, scale, zero, dtype)
    values = b.reshape(dequantised(b, codes, scale, zero, dtype), flat, labels, "row")
    return b.slice(values, -1, 0, depth, FIXED, suffix="depth") if depth % size else values


def matmul_nbits(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """A [..., K] · Bᵀ with B [N, K] packed in blocks along K; accuracy_level is a hint, by which
    ONNX Runtime may round A to 8 bits."""
    a, depth, rows = need(x, 0), int(call.attr("K")), int(call.attr("N"))
    call.ignore("accuracy_level")
    weights = block_weights(
        b, need(x, 1), need(x, 2), optional(x, 3), (rows,), depth,
        int(call.attr("bits", 4)), int(call.attr("block_size")), a.dtype, optional(x, 4),
    )  # fmt: skip
    out = b.matmul(a, weights, transpose_b=True)
    bias = optional(x, 5)
    return [out if bias is None else b.apply("add", out, bias, suffix="bias")]


def matmul_bnb4(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """A · Bᵀ with B of bitsandbytes' 4-bit floats; the first of a byte lies in the high bits."""
    a, depth, rows = need(x, 0), int(call.attr("K")), int(call.attr("N"))
    size = int(call.attr("block_size"))
    kinds = {0: "fp4", 1: "nf4"}
    table = kinds.get(int(call.attr("quant_type", -1)))
    if table is None:
        raise Unsupported(f"with quant_type {call.attr('quant_type')}")
    if call.attr("training_mode", 0) or not call.attr("transB", 1):
        raise Unsupported("with training_mode or transB")
    data, const = need(x, 1), need(x, 1).const
    if const is None or rows * depth % size or size % 2:
        raise Unsupported("with weights that are no constant or no whole number of blocks")
    shape = (rows * depth // size, size // 2)

    def swapped() -> np.ndarray:
        codes = unpacked(const.array().reshape(shape), 4, False)
        return packed(codes.reshape(*shape, 2)[..., ::-1].reshape(shape[0], size), 4)

    low_first = b.derived(
        Const(shape, "uint8", FIXED, swapped, const.outside, const.lacks), data.name
    )
    codes = b.unpack(low_first, 4, suffix="codes")
    scale = b.reshape(need(x, 2), (shape[0], 1), (FIXED, FIXED), "scales")
    steps = [(table, (("in", 0),), "fp32"), ("mul", (("step", 0), ("in", 1)), a.dtype)]
    values = b.map(steps, [codes, scale], "dequantised")
    weights = b.reshape(values, (rows, depth), (FIXED, FIXED), "row")
    return [b.matmul(a, weights, transpose_b=True)]


def gather_block_quantized(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Rows of a table that is quantised in blocks of another axis."""
    data, indices, scales = need(x, 0), need(x, 1), need(x, 2)
    zeros = optional(x, 3)
    size, bits = int(call.attr("block_size", 128)), int(call.attr("bits", 4))
    axis = int(call.attr("gather_axis", 0)) % data.rank
    own = int(call.attr("quantize_axis", 1)) % data.rank
    if axis == own:
        raise Unsupported("along the axis of its blocks")
    if data.small or (bits == 8 and data.dtype == "int8"):
        table, scale, zero = _blocked(b, data, scales, zeros, own, size)
        values = dequantised(b, table, scale, zero, scales.dtype)
        values = b.reshape(values, data.shape, data.labels, "table")
    else:
        if own != data.rank - 1:
            raise Unsupported("with bytes that are not packed along the blocks' axis")
        depth = data.shape[-1] * (8 // bits)
        if depth % size:
            raise Unsupported(f"with rows of {depth} elements in blocks of {size}")
        values = block_weights(
            b, data, scales, zeros, data.shape[:-1], depth, bits, size, scales.dtype
        )
    return [b.gather(values, indices, axis)]


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "DequantizeLinear"): dequantize_linear,
    ("com.microsoft", "DequantizeLinear"): dequantize_linear,
    ("", "QuantizeLinear"): quantize_linear,
    ("com.microsoft", "QuantizeLinear"): quantize_linear,
    ("com.microsoft", "MatMulNBits"): matmul_nbits,
    ("com.microsoft", "MatMulBnb4"): matmul_bnb4,
    ("com.microsoft", "GatherBlockQuantized"): gather_block_quantized,
}
