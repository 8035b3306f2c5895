"""Every elementwise function against ONNX Runtime, and the rounding between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from meshc import ops
from meshc.errors import InvariantError
from meshc.ir.dtypes import NUMPY
from meshc.ops.elementwise import FUNCTIONS

from .lanes import make_op

TYPES = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
TYPES["fp64"] = TensorProto.DOUBLE
REAL = np.array(
    [
        "-inf",
        "-300",
        "-88.5",
        "-7.25",
        "-2.5",
        "-1.5",
        "-1",
        "-0.5",
        "-1e-4",
        "-0.0",
        "0.0",
        "1e-4",
        "0.5",
        "1",
        "1.5",
        "2.5",
        "3",
        "7.25",
        "88.5",
        "300",
        "inf",
        "nan",
    ],
    np.float32,
)
FINITE = REAL[np.isfinite(REAL)]
SMALL = FINITE[np.abs(FINITE) <= 10]
POSITIVE = FINITE[FINITE > 0]
WHOLE = np.array([-7, -6, -5, -3, -1, 1, 2, 3, 4, 9], np.int64)
TRUTH = np.array([False, True])
LEAST = np.array([-(2**63), 2**63 - 1, 2**62 + 1], np.int64)
BYTES = np.array([0, 1, 2, 3, 4, 5, 7, 100, 255], np.uint8)

# Function → (ONNX operator, attributes, operands in each of the types to try).
Operands = list[tuple[np.ndarray, ...]]


def pairs(values: np.ndarray, others: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    a, b = np.meshgrid(values, values if others is None else others, indexing="ij")
    return a.reshape(-1), b.reshape(-1)


TRIPLE = (np.array([True, False, True]), FINITE[:3], FINITE[3:6])
ONNX: dict[str, tuple[str, dict[str, Any], Operands]] = {
    "add": ("Add", {}, [pairs(REAL), pairs(WHOLE)]),
    "sub": ("Sub", {}, [pairs(REAL), pairs(WHOLE)]),
    "mul": ("Mul", {}, [pairs(REAL), pairs(WHOLE)]),
    "div": (
        "Div",
        {},
        [pairs(REAL), pairs(WHOLE), pairs(WHOLE.astype(np.int32)), pairs(LEAST, WHOLE[5:])],
    ),
    "pow": (
        "Pow",
        {},
        [pairs(POSITIVE, SMALL), pairs(SMALL, np.float32([0, 1, 2, 3])), pairs(WHOLE)],
    ),
    "sqrt": ("Sqrt", {}, [(REAL,)]),
    "reciprocal": ("Reciprocal", {}, [(REAL,)]),
    "neg": ("Neg", {}, [(REAL,), (WHOLE,)]),
    "abs": ("Abs", {}, [(REAL,), (WHOLE,)]),
    "exp": ("Exp", {}, [(REAL,)]),
    "log": ("Log", {}, [(REAL,)]),
    "sin": ("Sin", {}, [(FINITE,)]),
    "cos": ("Cos", {}, [(FINITE,)]),
    "tan": ("Tan", {}, [(SMALL,)]),
    "asin": ("Asin", {}, [(SMALL[np.abs(SMALL) <= 1],)]),
    "acos": ("Acos", {}, [(SMALL[np.abs(SMALL) <= 1],)]),
    "atan": ("Atan", {}, [(REAL,)]),
    "sinh": ("Sinh", {}, [(SMALL,)]),
    "cosh": ("Cosh", {}, [(SMALL,)]),
    "asinh": ("Asinh", {}, [(SMALL,)]),
    "acosh": ("Acosh", {}, [(FINITE[FINITE >= 1],)]),
    "atanh": ("Atanh", {}, [(SMALL[np.abs(SMALL) < 1],)]),
    "bitand": ("BitwiseAnd", {}, [pairs(WHOLE)]),
    "bitor": ("BitwiseOr", {}, [pairs(WHOLE)]),
    "bitxor": ("BitwiseXor", {}, [pairs(WHOLE)]),
    "bitnot": ("BitwiseNot", {}, [(WHOLE,)]),
    "shiftleft": ("BitShift", {"direction": "LEFT"}, [pairs(BYTES, BYTES[:7])]),
    "shiftright": ("BitShift", {"direction": "RIGHT"}, [pairs(BYTES, BYTES[:7])]),
    "tanh": ("Tanh", {}, [(REAL,)]),
    "erf": ("Erf", {}, [(REAL,)]),
    "sigmoid": ("Sigmoid", {}, [(REAL,)]),
    "relu": ("Relu", {}, [(FINITE,)]),
    "gelu": ("Gelu", {"approximate": "none"}, [(FINITE,)]),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}, [(FINITE,)]),
    "quickgelu": ("com.microsoft.QuickGelu", {"alpha": 1.702}, [(FINITE,)]),
    "silu": ("com.microsoft.QuickGelu", {"alpha": 1.0}, [(FINITE,)]),
    "hardswish": ("HardSwish", {}, [(FINITE,)]),
    "softplus": ("Softplus", {}, [(REAL[:-1],)]),
    "sign": ("Sign", {}, [(REAL[:-1],), (WHOLE,)]),
    "floor": ("Floor", {}, [(REAL,)]),
    "ceil": ("Ceil", {}, [(REAL,)]),
    "round": ("Round", {}, [(REAL,)]),
    "min": ("Min", {}, [pairs(FINITE), pairs(WHOLE)]),
    "max": ("Max", {}, [pairs(FINITE), pairs(WHOLE)]),
    "mod": ("Mod", {}, [pairs(WHOLE), pairs(WHOLE.astype(np.int32))]),
    "fmod": ("Mod", {"fmod": 1}, [pairs(SMALL, POSITIVE), pairs(WHOLE)]),
    "equal": ("Equal", {}, [pairs(REAL), pairs(WHOLE), pairs(TRUTH)]),
    "less": ("Less", {}, [pairs(REAL), pairs(WHOLE)]),
    "lessorequal": ("LessOrEqual", {}, [pairs(REAL), pairs(WHOLE)]),
    "greater": ("Greater", {}, [pairs(REAL), pairs(WHOLE)]),
    "greaterorequal": ("GreaterOrEqual", {}, [pairs(REAL), pairs(WHOLE)]),
    "and": ("And", {}, [pairs(TRUTH)]),
    "or": ("Or", {}, [pairs(TRUTH)]),
    "xor": ("Xor", {}, [pairs(TRUTH)]),
    "not": ("Not", {}, [(TRUTH,)]),
    "where": ("Where", {}, [TRIPLE]),
    "isnan": ("IsNaN", {}, [(REAL,)]),
    "isinf": ("IsInf", {}, [(REAL,)]),
    "clip": ("Clip", {}, [(FINITE, np.array(-2, np.float32), np.array(3, np.float32))]),
    "cast": ("Cast", {}, [(FINITE,), (WHOLE,), (TRUTH,)]),
}
LOGICAL = ("equal", "less", "lessorequal", "greater", "greaterorequal", "isnan", "isinf", "not")
CASES = [(fn, i) for fn, (_, _, found) in ONNX.items() for i in range(len(found))]


def run_onnx(
    operator: str, attrs: dict[str, Any], arrays: Sequence[np.ndarray], result: str
) -> np.ndarray:
    """The operator alone in ONNX Runtime."""
    domain, _, name = operator.rpartition(".")
    names = [f"x{i}" for i in range(len(arrays))]
    types = [TYPES[str(ops_name(a))] for a in arrays]
    graph = helper.make_graph(
        [helper.make_node(name, names, ["y"], domain=domain, **attrs)],
        "one",
        [
            helper.make_tensor_value_info(n, t, a.shape)
            for n, t, a in zip(names, types, arrays, strict=True)
        ],
        [helper.make_tensor_value_info("y", TYPES[result], None)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, dict(zip(names, arrays, strict=True)))[0])


def ops_name(array: np.ndarray) -> str:
    return next(n for n, t in NUMPY.items() if t == np.asarray(array).dtype)


def apply(fn: str, arrays: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    """The function as a map of one step, rounded to its dtype."""
    steps = ((fn, tuple(("in", i) for i in range(len(arrays))), dtype),)
    op = make_op("map", len(arrays), steps=steps)
    shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
    ranges = [tuple(map(range, np.shape(a))) for a in arrays]
    return ops.evaluate(op, [np.asarray(a) for a in arrays], ranges, tuple(map(range, shape)))


CODES = ("e2m1", "fp4", "nf4", "saturate")  # the last three in tests/frontend/test_quantised.py


def test_four_bit_floats() -> None:
    numbers = np.arange(16, dtype=np.uint8)
    wanted = numbers.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(apply("e2m1", [numbers], "fp32"), wanted)


@pytest.mark.parametrize("fn", [fn for fn in FUNCTIONS if fn not in CODES])
def test_every_function_has_a_reference(fn: str) -> None:
    assert fn in ONNX, f"Function '{fn}' has no ONNX operator in {__name__}; add it."


@pytest.mark.parametrize(("fn", "number"), CASES)
def test_function_agrees_with_onnx(fn: str, number: int) -> None:
    operator, attrs, found = ONNX[fn]
    arrays = found[number]
    dtype = "bool" if fn in LOGICAL else ops_name(arrays[-1])
    wanted = run_onnx(operator, {"to": TYPES[dtype], **attrs} if fn == "cast" else attrs,
                      arrays, dtype)  # fmt: skip
    got = apply(fn, arrays, dtype)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("to", ["fp16", "fp32", "fp64", "int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("source", ["fp32", "int64", "bool"])
def test_casts_agree_with_onnx(source: str, to: str) -> None:
    values = {"fp32": SMALL, "int64": WHOLE, "bool": TRUTH}[source]
    if to == "uint8":
        values = np.abs(values)  # a negative number as an unsigned one is nobody's business
    wanted = run_onnx("Cast", {"to": TYPES[to]}, [values], to)
    np.testing.assert_array_equal(apply("cast", [values], to), wanted)


@pytest.mark.parametrize("dtype", ["fp16", "fp64"])
@pytest.mark.parametrize("fn", ["add", "mul", "div", "sqrt", "exp", "tanh", "sigmoid"])
def test_other_floats_agree_with_onnx(fn: str, dtype: str) -> None:
    operator, attrs, found = ONNX[fn]
    arrays = [np.clip(np.nan_to_num(a), -9, 9).astype(NUMPY[dtype]) for a in found[0]]
    wanted = run_onnx(operator, attrs, arrays, dtype)
    tolerance = 1.5e-3 if dtype == "fp16" else 1e-12
    np.testing.assert_allclose(apply(fn, arrays, dtype), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "unit"), [("fp16", 2.0**-10), ("bf16", 2.0**-7)])
def test_each_step_rounds_to_its_type(dtype: str, unit: float) -> None:
    """1 + ε/2 rounds to 1 (half to even), in the first step, so the second sees no difference."""
    x = np.ones(1, NUMPY[dtype])
    narrow = (("add", (("in", 0), ("const", unit / 2)), dtype),)
    wide = (("add", (("in", 0), ("const", unit / 2)), "fp32"),)
    again = ("sub", (("step", 0), ("in", 0)), "fp32")
    rounded = _run((*narrow, again), x)
    kept = _run((*wide, again), x)
    assert rounded.item() == 0.0
    assert kept.item() == unit / 2
    assert rounded.dtype == kept.dtype == np.float32


def test_half_to_even_and_overflow() -> None:
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38], np.float32)
    got = _run((("cast", (("in", 0),), "bf16"),), x).astype(np.float32)
    np.testing.assert_array_equal(got, np.array([1.0, 1 + 2**-6, np.inf], np.float32))
    half = _run((("cast", (("in", 0),), "fp16"),), np.array([65519.0, 65520.0], np.float32))
    np.testing.assert_array_equal(half, np.array([65504, np.inf], np.float16))


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div", "max", "min", "mod"])
@pytest.mark.parametrize("const", [2, 2.0, -3])
def test_numbers_take_the_type_of_their_operand(fn: str, const: float) -> None:
    """A whole number beside a float is that float's number, on either side."""
    x = np.array([0.75, 2.5], np.float32)
    for args in ((("const", const), ("in", 0)), (("in", 0), ("const", const))):
        values = [np.float32(const) if kind == "const" else x for kind, _ in args]
        named = {"div": "divide", "sub": "subtract", "mul": "multiply", "max": "maximum",
                 "min": "minimum"}  # fmt: skip
        wanted = getattr(np, named.get(fn, fn))(*values)
        np.testing.assert_allclose(_run(((fn, args, "fp32"),), x), wanted, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_matmul_accumulates_in_fp32(dtype: str) -> None:
    """2048 ones overflow the mantissa of a 16-bit sum but not of the product's accumulator."""
    a, b = np.ones((1, 2049), NUMPY[dtype]), np.ones((2049, 1), NUMPY[dtype])
    op = make_op("matmul", 2)
    ranges = [tuple(map(range, a.shape)), tuple(map(range, b.shape))]
    got = ops.evaluate(op, [a, b], ranges, (range(1), range(1)))
    assert got.dtype == np.float32 and got.item() == 2049
    total = make_op("reduce", 1, fn="sum", axes=(1,), keepdims=True)
    got = ops.evaluate(total, [a], ranges[:1], (range(1), range(1)))
    assert got.dtype == np.float32 and got.item() == 2049


def test_bf16_is_the_same_type_everywhere() -> None:
    assert NUMPY["bf16"] == np.dtype(ml_dtypes.bfloat16)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvariantError, match=r"^Op 'op' uses the unknown function 'sec'\.$"):
        _run((("sec", (("in", 0),), "fp32"),), np.ones(1, np.float32))
    op = make_op("sort", 1)
    message = r"^Op kind 'sort' has no record; known: map, matmul, .*\.$"
    with pytest.raises(InvariantError, match=message):
        ops.evaluate(op, [np.ones(1)], [(range(1),)], (range(1),))
    op = make_op("reduce", 1, fn="median", axes=(0,))
    with pytest.raises(InvariantError, match=r"^Op 'op' reduces by the unknown function 'median'"):
        ops.evaluate(op, [np.ones(1, np.float32)], [(range(1),)], (range(1),))


def _run(steps: tuple[Any, ...], x: np.ndarray) -> np.ndarray:
    op = make_op("map", 1, steps=steps)
    return ops.evaluate(op, [x], [(range(len(x)),)], (range(len(x)),))
