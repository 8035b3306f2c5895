"""Arithmetic on 8-bit integers, carried through the compiler, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc.chips import load_chip
from meshc.errors import InputError
from meshc.frontend import bind, load_model
from meshc.pipeline import check_rates

from .harness import Input, Step, check, f32, op, refuses, tensor, write
from .models import step

MS = "com.microsoft"
RNG = np.random.default_rng(5)
BOTH = (Step(2, 3, (2, 2)), Step(2, 3, (1, 3), fusion=False))
ONE = BOTH[:1]


def bytes_(*shape: int, low: int = -128, high: int = 127) -> np.ndarray:
    return RNG.integers(low, high + 1, shape).astype(np.int8 if low < 0 else np.uint8)


def unsigned(*dims: Any) -> Input:
    return tensor("uint8", *dims, make=lambda rng, shape: rng.integers(0, 256, shape))


def signed(*dims: Any) -> Input:
    return tensor("int8", *dims, make=lambda rng, shape: rng.integers(-128, 128, shape))


def scales(*shape: int) -> np.ndarray:
    return np.asarray(RNG.random(shape) * 0.1 + 0.02, np.float32)


X = unsigned("batch", "sequence", 12)


@pytest.mark.parametrize("zeros", ["", "a", "b", "ab", "columns"])
def test_matmul_integer_is_exact(tmp_path: Path, zeros: str) -> None:
    weights = {"w": bytes_(12, 6), "a": np.uint8(121), "b": np.int8(-3)}
    if zeros == "columns":
        weights["b"] = bytes_(6)
    names = "x,w," + ("a" if "a" in zeros or zeros == "columns" else "") + ","
    names += "b" if "b" in zeros or zeros == "columns" else ""
    check(tmp_path, [op("MatMulInteger", names)], {"x": X}, weights, steps=BOTH)


def test_matmul_integer_of_two_activations(tmp_path: Path) -> None:
    inputs = {"x": signed("batch", 3, "sequence"), "y": signed("batch", "sequence", 4)}
    weights = {"a": np.int8(5), "b": np.int8(-3)}
    check(tmp_path, [op("MatMulInteger", "x,y,a,b", "z")], inputs, weights, steps=BOTH)


def test_dynamic_quantisation(tmp_path: Path) -> None:
    nodes = [
        op("DynamicQuantizeLinear", "x", "q,s,z"),
        op("MatMulInteger", "q,w,z", "p"),
        op("Cast", "p", "f", to=1),
        op("Mul", "s,t", "u"),
        op("Mul", "f,u"),
    ]
    weights = {"w": bytes_(16, 6), "t": scales()}
    check(tmp_path, nodes, {"x": f32("batch", "sequence", 16)}, weights, steps=BOTH,
          outputs=["y", "q", "s", "z"])  # fmt: skip


def test_a_constant_row_is_quantised(tmp_path: Path) -> None:
    zero = f32("batch", "sequence", 4, make=lambda _, shape: np.zeros(shape))
    check(tmp_path, [op("DynamicQuantizeLinear", "x", "q,s,z")], {"x": zero}, steps=ONE)


@pytest.mark.parametrize("columns", [False, True])
def test_matmul_integer_to_float_and_dynamic_quantize_matmul(tmp_path: Path, columns: bool) -> None:
    n = (6,) if columns else ()
    weights = {
        "w": bytes_(12, 6), "s": scales(), "t": scales(*n), "a": np.uint8(100),
        "b": np.zeros(n, np.int8), "c": scales(6),
    }  # fmt: skip
    node = op("MatMulIntegerToFloat", "x,w,s,t,a,b,c", domain=MS)
    check(tmp_path, [node], {"x": X}, weights, steps=ONE)
    node = op("DynamicQuantizeMatMul", "x,w,t,b,c", domain=MS)
    check(tmp_path, [node], {"x": f32("batch", "sequence", 12)}, weights, steps=BOTH, limit=1e-5)


def test_qlinear_matmul(tmp_path: Path) -> None:
    weights = {
        "s": scales(), "a": np.uint8(120), "w": bytes_(12, 6), "t": scales(6), "b": bytes_(6) // 64,
        "u": np.float32(0.4), "c": np.uint8(128),
    }  # fmt: skip
    check(tmp_path, [op("QLinearMatMul", "x,s,a,w,t,b,u,c")], {"x": X}, weights, steps=BOTH)


@pytest.mark.parametrize("result", ["float", "bytes"])
def test_qgemm(tmp_path: Path, result: str) -> None:
    weights = {
        "s": scales(), "a": np.uint8(120), "w": bytes_(6, 12), "t": scales(), "b": np.int8(2),
        "k": RNG.integers(-99, 99, 6).astype(np.int32), "u": np.float32(0.4), "c": np.uint8(128),
    }  # fmt: skip
    names = "x,s,a,w,t,b,k" + (",u,c" if result == "bytes" else "")
    node = op("QGemm", names, domain=MS, transB=1, alpha=0.5)
    check(tmp_path, [node], {"x": unsigned("sequence", 12)}, weights, steps=BOTH)


PAIR = {"s": scales(), "a": np.uint8(120), "t": scales(), "b": np.uint8(7), "u": np.float32(0.3),
        "c": np.uint8(100)}  # fmt: skip


@pytest.mark.parametrize("kind", ["Add", "Mul"])
def test_qlinear_pairs(tmp_path: Path, kind: str) -> None:
    inputs = {"x": X, "z": unsigned(12)}
    node = op(f"QLinear{kind}", "x,s,a,z,t,b,u,c", domain=MS)
    check(tmp_path, [node], inputs, PAIR, steps=ONE)


@pytest.mark.parametrize(("kind", "attrs"), [
    ("Sigmoid", {}), ("LeakyRelu", {"alpha": 0.2}), ("Softmax", {"axis": -1, "opset": 13}),
])  # fmt: skip
def test_qlinear_functions(tmp_path: Path, kind: str, attrs: dict[str, Any]) -> None:
    small = kind in ("Sigmoid", "Softmax")
    weights = {"s": np.float32(0.02), "a": np.uint8(128), "u": np.float32(1 / 256 if small else 1),
               "c": np.uint8(0 if small else 9)}  # fmt: skip
    node = op(f"QLinear{kind}", "x,s,a,u,c", domain=MS, **attrs)
    check(tmp_path, [node], {"x": X}, weights, steps=ONE)


def test_qlinear_concat_and_where(tmp_path: Path) -> None:
    node = op("QLinearConcat", "u,c,x,s,a,z,t,b", domain=MS, axis=2)
    inputs = {"x": X, "z": unsigned("batch", "sequence", 4)}
    check(tmp_path, [node], inputs, PAIR, steps=ONE)
    node = op("QLinearWhere", "k,x,s,a,z,t,b,u,c", domain=MS)
    inputs = {"k": tensor("bool", "batch", "sequence", 1), "x": X, "z": unsigned(12)}
    check(tmp_path, [node], inputs, PAIR, steps=ONE)


def test_qattention(tmp_path: Path) -> None:
    weights = {
        "w": bytes_(16, 48), "k": scales(48), "s": np.float32(0.01), "t": np.float32(0.01),
        "a": np.uint8(128), "b": np.int8(0),
    }  # fmt: skip
    node = op("QAttention", "x,w,k,s,t,,a,b", domain=MS, num_heads=2, unidirectional=1)
    check(tmp_path, [node], {"x": unsigned("batch", "sequence", 16)}, weights, steps=ONE)


def test_qembed_layer_norm(tmp_path: Path) -> None:
    ids = tensor("int32", "batch", "sequence", make=lambda rng, shape: rng.integers(0, 7, shape))
    kinds = tensor("int32", "batch", "sequence", make=lambda rng, shape: rng.integers(0, 2, shape))
    tables = {"w": bytes_(7, 8, low=0, high=255), "p": bytes_(9, 8, low=0, high=255),
              "k": bytes_(2, 8, low=0, high=255), "g": bytes_(8, low=0, high=255),
              "h": bytes_(8, low=0, high=255)}  # fmt: skip
    numbers = {f"{n}s": scales() for n in tables} | {f"{n}z": np.uint8(120) for n in tables}
    names = ["ids", "kinds", *tables, "", *(f"{n}s" for n in tables), *(f"{n}z" for n in tables)]
    node = op("QEmbedLayerNormalization", ",".join(names), "y,mask", domain=MS)
    check(tmp_path, [node], {"ids": ids, "kinds": kinds}, {**tables, **numbers}, steps=ONE,
          outputs=["y"])  # fmt: skip


def test_a_chip_without_a_rate_for_bytes_is_refused(tmp_path: Path) -> None:
    node = op("MatMulInteger", "x,w")
    path = write(tmp_path / "one.onnx", [node], {"x": X}, {"w": bytes_(12, 6)})
    from .harness import _declare

    _declare(path, [np.zeros((1, 1, 6), np.int32)], ["y"])
    bound = bind(load_model(path), step())
    chip = load_chip("test4x4", {"core.macs_per_cycle": "{ fp32 = 4 }"})
    message = (
        r"^Operation '.*' of 'one' computes in int8, for which chip test4x4 has no rate in "
        r"core.macs_per_cycle \(it has fp32\); give one with --override, .*\.$"
    )
    with pytest.raises(InputError, match=message):
        check_rates(bound.graph, chip)


def test_what_is_refused(tmp_path: Path) -> None:
    node = op("QAttention", "x,w,k,s,t", domain=MS, num_heads=2, do_rotary=1)
    weights = {"w": bytes_(16, 48), "k": scales(48), "s": scales(), "t": scales()}
    inputs = {"x": unsigned("batch", "sequence", 16)}
    refuses(tmp_path, [node], inputs, "with do_rotary", weights)
