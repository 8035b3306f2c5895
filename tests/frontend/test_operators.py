"""Every lowered operator against ONNX Runtime, one node at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .models import check_node

RNG = np.random.default_rng(7)


def r(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.onnx"


UNARY = [
    "Sqrt", "Reciprocal", "Neg", "Abs", "Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Erf", "Relu",
    "Softplus", "Sign", "Floor", "Ceil", "Round", "Identity", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Log",
]  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_unary(path: Path, op: str) -> None:
    x = np.abs(r(3, 5)) + 0.1 if op in ("Sqrt", "Log") else r(3, 5)
    check_node(path, op, {"x": x})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum"])
def test_binary_broadcasts(path: Path, op: str) -> None:
    check_node(path, op, {"a": r(2, 3, 4), "b": r(3, 1)})
    check_node(path, op, {"a": r(2, 3, 4), "b": np.array([1.5], np.float32)}, fixed=("b",))
    check_node(path, op, {"a": np.array(2.5, np.float32), "b": r(2, 3)}, fixed=("a",))


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparison(path: Path, op: str) -> None:
    a = RNG.integers(0, 3, (3, 4)).astype(np.int64)
    check_node(path, op, {"a": a, "b": RNG.integers(0, 3, (3, 4)).astype(np.int64)})


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logic(path: Path, op: str) -> None:
    check_node(path, op, {"a": RNG.random((3, 4)) > 0.5, "b": RNG.random((4,)) > 0.5})


def test_integer_division_truncates(path: Path) -> None:
    a = np.array([-7, -6, 7, 5], np.int64)
    check_node(path, "Div", {"a": a, "b": np.array([2], np.int64)}, fixed=("b",))
    check_node(path, "Div", {"a": a, "b": np.array([2, 3, -2, 5], np.int64)}, fixed=("a", "b"))


def test_pow_where_cast_clip_gelu(path: Path) -> None:
    check_node(path, "Pow", {"a": np.abs(r(3, 4)), "b": np.array(1.5, np.float32)}, fixed=("b",))
    check_node(path, "Pow", {"a": r(3, 4), "b": np.array(2, np.int64)}, fixed=("b",))
    check_node(path, "Where", {"c": RNG.random((3, 1)) > 0.5, "a": r(3, 4), "b": r(4)})
    check_node(path, "Cast", {"a": r(3, 4) * 5}, to=7)
    check_node(path, "Cast", {"a": r(3, 4) * 5}, to=10)
    low, high = np.array(-0.5, np.float32), np.array(0.5, np.float32)
    check_node(path, "Clip", {"a": r(3, 4), "lo": low, "hi": high})
    check_node(path, "Clip", {"a": r(3, 4), "lo": None, "hi": high}, fixed=("hi",))
    check_node(path, "Gelu", {"a": r(3, 4)}, opset=20)
    check_node(path, "Gelu", {"a": r(3, 4)}, opset=20, approximate="tanh")
    check_node(path, "Gelu", {"a": r(3, 4)}, domain="com.microsoft")
    check_node(path, "FastGelu", {"a": r(3, 4), "b": r(4)}, domain="com.microsoft")
    check_node(path, "BiasGelu", {"a": r(3, 4), "b": r(4)}, domain="com.microsoft")
    check_node(path, "QuickGelu", {"a": r(3, 4)}, domain="com.microsoft", alpha=1.7)


@pytest.mark.parametrize("shapes", [
    ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)),
    ((2, 1, 3, 4), (1, 5, 4, 2)),
])  # fmt: skip
def test_matmul(path: Path, shapes: Any) -> None:
    check_node(path, "MatMul", {"a": r(*shapes[0]), "b": r(*shapes[1])})


def test_gemm(path: Path) -> None:
    check_node(path, "Gemm", {"a": r(3, 4), "b": r(4, 5), "c": r(5)})
    check_node(path, "Gemm", {"a": r(4, 3), "b": r(5, 4)}, transA=1, transB=1, alpha=0.5)
    check_node(path, "Gemm", {"a": r(3, 4), "b": r(4, 5), "c": r(3, 1)}, beta=0.25)
    check_node(
        path, "FusedMatMul", {"a": r(2, 3, 4), "b": r(2, 5, 4)}, domain="com.microsoft",
        transB=1, alpha=0.3,
    )  # fmt: skip


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd",
                                "ReduceL2", "ReduceSumSquare"])  # fmt: skip
def test_reduce(path: Path, op: str) -> None:
    x, axes = r(2, 3, 4), np.array([-1], np.int64)
    check_node(path, op, {"x": x, "axes": axes}, fixed=("axes",))
    check_node(path, op, {"x": x, "axes": axes}, fixed=("axes",), keepdims=0)
    check_node(path, op, {"x": x})
    check_node(path, op, {"x": x}, noop_with_empty_axes=1)
    if op != "ReduceSum":
        check_node(path, op, {"x": x}, opset=13, axes=[0, 2])


def test_softmax(path: Path) -> None:
    check_node(path, "Softmax", {"x": r(2, 3, 4)})
    check_node(path, "Softmax", {"x": r(2, 3, 4)}, axis=1)
    check_node(path, "LogSoftmax", {"x": r(2, 3, 4)})
    check_node(path, "Softmax", {"x": r(2, 3, 4).astype(np.float16)}, tolerance=2e-3)


def test_shape_changes(path: Path) -> None:
    x = r(2, 3, 4)
    i = lambda *n: np.array(n, np.int64)  # noqa: E731
    check_node(path, "Reshape", {"x": x, "s": i(0, -1)}, fixed=("s",))
    check_node(path, "Reshape", {"x": x, "s": i(6, 2, 2)}, fixed=("s",))
    check_node(path, "Unsqueeze", {"x": x, "a": i(0, -1)}, fixed=("a",))
    check_node(path, "Unsqueeze", {"x": x}, opset=11, axes=[1])
    check_node(path, "Squeeze", {"x": r(1, 3, 1), "a": i(0)}, fixed=("a",))
    check_node(path, "Squeeze", {"x": r(1, 3, 1)})
    check_node(path, "Flatten", {"x": x}, axis=2)
    check_node(path, "Transpose", {"x": x}, perm=[2, 0, 1])
    check_node(path, "Transpose", {"x": x})
    check_node(path, "Expand", {"x": r(3, 1), "s": i(2, 1, 4)}, fixed=("s",))
    check_node(path, "Tile", {"x": r(2, 3), "n": i(2, 3)}, fixed=("n",))
    check_node(path, "Concat", {"a": r(2, 3), "b": r(2, 4)}, axis=-1)
    check_node(path, "Concat", {"a": r(2, 3)}, axis=0)


def test_split(path: Path) -> None:
    i = np.array([1, 3], np.int64)
    check_node(path, "Split", {"x": r(2, 4), "s": i}, outputs=2, fixed=("s",), axis=-1)
    check_node(path, "Split", {"x": r(2, 5)}, outputs=3, axis=1, num_outputs=3)
    check_node(path, "Split", {"x": r(2, 4)}, outputs=2, opset=11, axis=1, split=[1, 3])


@pytest.mark.parametrize("part", [
    ([0], [2], [1], [1]), ([1], [2**63 - 1], [-1], [1]), ([-2], [2**31 - 1], [2], [1]),
    ([0], [-1], [1], [1]), ([-1], [-(2**63)], [2], [-1]), ([3], [0], [2], [-2]),
    ([0, 1], [2, 4], [0, 2], [1, 2]), ([1], [1], [1], [1]),
])  # fmt: skip
def test_slice(path: Path, part: Any) -> None:
    operands = {n: np.array(v, np.int64) for n, v in zip("sead", part, strict=True)}
    check_node(path, "Slice", {"x": r(2, 3, 4), **operands}, fixed=tuple(operands))


def test_gather(path: Path) -> None:
    i = np.array([[0, 2], [1, -1]], np.int64)
    check_node(path, "Gather", {"x": r(3, 4), "i": i}, axis=1)
    check_node(path, "Gather", {"x": r(3, 4), "i": i}, fixed=("i",))
    check_node(path, "Gather", {"x": r(3, 4), "i": np.abs(i)}, fixed=("x",))
    check_node(path, "Gather", {"x": r(3, 4), "i": np.array(-1, np.int64)}, fixed=("i",), axis=1)


NORM = {"x": r(2, 3, 8), "g": r(8)}


def test_rms_norm(path: Path) -> None:
    check_node(path, "RMSNormalization", NORM, opset=23, epsilon=1e-3, fixed=("g",))
    two = {"x": r(2, 3, 8), "g": r(3, 8)}
    check_node(path, "RMSNormalization", two, opset=23, axis=-2)
    check_node(path, "SimplifiedLayerNormalization", NORM, epsilon=1e-5)
    half = {n: (v * 100).astype(np.float16) for n, v in NORM.items()}
    check_node(path, "SimplifiedLayerNormalization", half, tolerance=2e-3)


def test_skip_rms_norm(path: Path) -> None:
    ms = "com.microsoft"
    operands = {"x": r(2, 3, 8), "s": r(2, 3, 8), "g": r(8)}
    name = "SkipSimplifiedLayerNormalization"
    check_node(path, name, operands, domain=ms, epsilon=1e-5)
    check_node(path, name, operands, domain=ms, outputs=4, used=(True, False, False, True))
    check_node(path, name, {**operands, "b": r(8)}, domain=ms, outputs=4,
               used=(True, False, False, True))  # fmt: skip


def test_layer_norm(path: Path) -> None:
    check_node(path, "LayerNormalization", {**NORM, "b": r(8)}, epsilon=1e-3)
    check_node(path, "LayerNormalization", NORM, outputs=3)
    check_node(
        path, "SkipLayerNormalization",
        {"x": r(2, 3, 8), "s": r(2, 3, 8), "g": r(8), "b": r(8), "c": r(8)},
        domain="com.microsoft", outputs=4, used=(True, False, False, True),
    )  # fmt: skip


POSITIONS = np.array([[0, 1, 2], [4, 5, 6]], np.int64)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("dim", [0, 4])
def test_rotary(path: Path, interleaved: int, dim: int) -> None:
    half = (dim or 8) // 2
    tables = {"cos": r(10, half), "sin": r(10, half), "p": POSITIONS}
    options: dict[str, Any] = {"interleaved": interleaved, "rotary_embedding_dim": dim}
    check_node(path, "RotaryEmbedding", {"x": r(2, 4, 3, 8), **tables}, opset=23, **options)
    flat = {"x": r(2, 3, 32), **tables}
    check_node(path, "RotaryEmbedding", flat, opset=23, num_heads=4, fixed=("cos",), **options)
    direct = {"x": r(2, 4, 3, 8), "cos": r(2, 3, half), "sin": r(2, 3, half)}
    check_node(path, "RotaryEmbedding", direct, opset=23, **options)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_contrib_rotary(path: Path, interleaved: int) -> None:
    tables = {"cos": r(10, 4), "sin": r(10, 4)}
    ms: Any = {"domain": "com.microsoft", "interleaved": interleaved}
    check_node(path, "RotaryEmbedding", {"x": r(2, 3, 32), "p": POSITIONS, **tables}, **ms)
    check_node(path, "RotaryEmbedding", {"x": r(2, 4, 3, 8), "p": POSITIONS, **tables}, **ms)
    offset = {"x": r(2, 3, 32), "p": np.array([3], np.int64), **tables}
    check_node(path, "RotaryEmbedding", offset, fixed=("p",), scale=0.5, **ms)
    part = {"x": r(2, 3, 32), "p": POSITIONS, "cos": r(10, 2), "sin": r(10, 2)}
    check_node(path, "RotaryEmbedding", part, num_heads=4, rotary_embedding_dim=4, **ms)
