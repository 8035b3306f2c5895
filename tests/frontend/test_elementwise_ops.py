"""Elementwise operators and activations at run time, through the compiler, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from meshc.frontend import load_model, run_oracle

from .harness import STEPS, Input, check, f32, op, refuses, tensor, write

X = f32("batch", "sequence", 8)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.5, 1e-30], np.float32)


def special(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice(SPECIAL, shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.abs(rng.standard_normal(shape)) + 1.01


def small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(-0.99, 0.99, shape)


def nonzero(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.choice([-7, -3, -2, -1, 1, 2, 3, 5], shape)


def node(kind: str, inputs: str = "x", domain: str = "", **attrs: Any) -> Any:
    return op(kind, inputs, "y", domain, **attrs)


MS = "com.microsoft"
# (opset, node)
ACTIVATIONS: list[tuple[int, Any]] = [
    (13, node("Elu")), (22, node("Elu", alpha=0.3)), (13, node("Celu", alpha=0.7)),
    (13, node("Selu")), (22, node("Selu", alpha=1.1, gamma=0.9)),
    (13, node("LeakyRelu")), (16, node("LeakyRelu", alpha=-0.5)),
    (13, node("ThresholdedRelu")), (22, node("ThresholdedRelu", alpha=0.1)),
    (13, node("HardSigmoid")), (22, node("HardSigmoid", alpha=0.4, beta=0.1)),
    (14, node("HardSwish")), (18, node("Mish")), (22, node("Mish")),
    (13, node("Softplus")), (22, node("Softsign")),
    (13, node("Shrink", lambd=0.3, bias=0.2)), (13, node("Relu")), (20, node("Gelu")),
    (20, node("Gelu", approximate="tanh")), (18, node("Sign")), (13, node("Erf")),
    (13, node("Gelu", domain=MS)), (13, node("QuickGelu", domain=MS)),
    (13, node("QuickGelu", domain=MS, alpha=0.5)), (13, node("FastGelu", domain=MS)),
]  # fmt: skip


def test_activations(tmp_path: Path) -> None:
    for opset, what in ACTIVATIONS:
        check(tmp_path, [what], {"x": X}, opset=opset, steps=STEPS[:1])


def test_activations_in_half_precision(tmp_path: Path) -> None:
    for opset, what in ACTIVATIONS[::3]:
        half = tensor("fp16", "batch", "sequence", 8)
        check(tmp_path, [what], {"x": half}, opset=opset, steps=STEPS[1:2], limit=1.5e-3)


def test_activations_without_a_kernel_follow_the_standard(tmp_path: Path) -> None:
    for what in (node("Swish"), node("Swish", alpha=0.5)):
        check(tmp_path, [what], {"x": X}, opset=24, oracle="reference", steps=STEPS[1:])
    wide = tensor("int32", "batch", "sequence", 8)
    slope = {"s": np.array([2, -1, 3, 0, 1, 1, 1, 5], np.int32)}
    check(tmp_path, [node("PRelu", "x,s")], {"x": wide}, slope, 16)


def test_prelu_broadcasts_its_slope(tmp_path: Path) -> None:
    slope = {"s": np.random.default_rng(0).standard_normal((1, 8)).astype(np.float32)}
    check(tmp_path, [node("PRelu", "x,s")], {"x": X}, slope, 16)
    check(tmp_path, [node("PRelu", "x,s")], {"x": X, "s": f32("sequence", 1)}, opset=13)


UNARY: list[tuple[str, Any]] = [
    *((n, None) for n in ("Abs", "Neg", "Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Floor", "Ceil",
                          "Round", "Sinh", "Cosh", "Atan", "Asinh", "Identity")),
    *((n, positive) for n in ("Sqrt", "Log", "Reciprocal", "Acosh")),
    *((n, small) for n in ("Asin", "Acos", "Atanh", "Tan")),
]  # fmt: skip


def test_unary(tmp_path: Path) -> None:
    for kind, make in UNARY:
        x = f32("batch", "sequence", 8, make=make)
        check(tmp_path, [node(kind)], {"x": x}, opset=13, steps=STEPS[:1])


def test_special_numbers(tmp_path: Path) -> None:
    x = f32("batch", "sequence", 8, make=special)
    for what in (node("Abs"), node("Neg"), node("Floor"), node("Round"), node("Exp"),
                 node("Reciprocal"), node("Sqrt"), node("Add", "x,x"), node("Mul", "x,x"),
                 node("Max", "x,x"), node("Div", "x,x"), node("Tanh")):  # fmt: skip
        check(tmp_path, [what], {"x": x}, steps=STEPS[:1], limit=1e-6)
    for what in (node("IsNaN"), node("IsInf"), node("IsInf", detect_negative=0),
                 node("IsInf", detect_positive=0), node("Equal", "x,x"), node("Less", "x,x"),
                 node("IsInf", detect_positive=0, detect_negative=0)):  # fmt: skip
        check(tmp_path, [what], {"x": x}, opset=20, steps=STEPS[:1])


INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint32")


def test_integer_arithmetic_wraps(tmp_path: Path) -> None:
    def full(dtype: str) -> Input:
        top = np.iinfo(dtype)
        return tensor(
            dtype, "batch", "sequence", 6,
            make=lambda rng, shape: rng.integers(top.min, top.max, shape, dtype, endpoint=True),
        )  # fmt: skip

    for dtype in INTEGERS:
        inputs = {"x": full(dtype), "z": full(dtype)}
        kinds = ("Add", "Sub", "Mul", "Max", "Min", "Greater")
        nodes = [op(kind, "x,z", f"y{kind}") for kind in kinds]
        check(tmp_path, nodes, inputs, steps=STEPS[:1], oracle="reference")


def test_integer_division_and_remainders(tmp_path: Path) -> None:
    for dtype in ("int32", "int64"):
        inputs = {n: tensor(dtype, "batch", "sequence", 6, make=nonzero) for n in "xz"}
        nodes = [op("Div", "x,z", "q"), op("Mod", "x,z", "m"), op("Mod", "x,z", "f", fmod=1),
                 op("Pow", "x,z", "p")]  # fmt: skip
        check(tmp_path, nodes, inputs, steps=STEPS[:2])
    floats = {n: f32("batch", "sequence", 6) for n in "xz"}
    check(tmp_path, [node("Mod", "x,z", fmod=1)], floats, steps=STEPS[:1])
    refuses(tmp_path, [node("Mod", "x,z")], floats, "without fmod=1")


def test_powers_of_mixed_types(tmp_path: Path) -> None:
    base = f32("batch", "sequence", 6, make=positive)
    for kind in ("fp32", "int32", "int64", "fp64"):
        check(tmp_path, [node("Pow", "x,e")], {"x": base},
              {"e": np.array([2], kind.replace("fp", "float"))}, 15, steps=STEPS[:1])  # fmt: skip
    whole = tensor("int32", "batch", "sequence", 6)
    check(tmp_path, [node("Pow", "x,e")], {"x": whole}, {"e": np.float32(2.0)}, steps=STEPS[:1])
    check(tmp_path, [node("Pow", "x,e")], {"x": base, "e": tensor("int64", 6)}, steps=STEPS[:1])


def test_bits(tmp_path: Path) -> None:
    inputs = {n: tensor("uint8", "batch", "sequence", 6) for n in "xz"}
    nodes = [op(f"Bitwise{k}", "x,z", k) for k in ("And", "Or", "Xor")]
    nodes += [op("BitwiseNot", "x", "n")]
    nodes += [op("BitShift", "x,c", d, direction=d) for d in ("LEFT", "RIGHT")]
    check(tmp_path, nodes, inputs, {"c": np.array([0, 1, 2, 3, 4, 7], np.uint8)})


def test_logic_and_choice(tmp_path: Path) -> None:
    inputs = {n: tensor("bool", "batch", "sequence", 6) for n in "pq"}
    nodes = [op(k, "p,q", k) for k in ("And", "Or", "Xor", "Equal")]
    nodes += [op("Not", "p", "n"), op("Where", "p,x,z", "w"), op("Where", "q,c,d", "c2")]
    given = {**inputs, "x": f32("batch", 1, 6), "z": f32("sequence", 6)}
    check(tmp_path, nodes, given, {"c": np.int64(3), "d": np.int64(-1)})


CASTS = ("fp32", "fp16", "fp64", "int8", "uint8", "int32", "int64", "bool")


def test_casts(tmp_path: Path) -> None:
    from .harness import TYPES

    for source in ("fp32", "int32", "bool", "fp16"):
        x = tensor(source, "batch", "sequence", 6)
        if source in ("fp32", "fp16"):
            x = tensor(source, "batch", "sequence", 6, make=lambda r, s: r.uniform(0, 100, s))
        elif source == "int32":
            x = tensor(source, "batch", "sequence", 6, make=lambda r, s: r.integers(0, 120, s))
        nodes = [op("Cast", "x", f"y{i}", to=TYPES[k]) for i, k in enumerate(CASTS) if k != source]
        nodes += [op("CastLike", "x,l", "l2")]
        check(tmp_path, nodes, {"x": x}, {"l": np.zeros((), np.int16)}, 19, steps=STEPS[:1])
    refuses(tmp_path, [node("Cast", to=8)], {"x": X}, "of ONNX element type 8", opset=19)


def test_casts_to_bytes_of_floats_saturate(tmp_path: Path) -> None:
    wide = f32(
        "batch",
        "sequence",
        8,
        make=lambda r, s: r.standard_normal(s) * 10.0 ** r.integers(-3, 6, s),
    )
    edges = np.array([464, 465, 479, 480, 485, 495, 496, 512, 57344, 61439, 61440, 65535, 65536])
    near = f32("batch", "sequence", 8, make=lambda r, s: r.choice([*edges, *-edges], s))
    for kind in (17, 18, 19, 20):
        for saturate in (0, 1):
            nodes = [
                op("Cast", "x", "h", to=kind, saturate=saturate), op("Cast", "h", "y", to=1),
                op("Cast", "e", "i", to=kind, saturate=saturate), op("Cast", "i", "z", to=1),
            ]  # fmt: skip
            check(tmp_path, nodes, {"x": wide, "e": near}, opset=19, steps=STEPS[:1])


def test_bfloat16(tmp_path: Path) -> None:
    x = tensor("bf16", "batch", "sequence", 8)
    for what in (node("Mul", "x,x"), node("Elu"), node("Sigmoid"), node("ReduceSum", "x")):
        check(tmp_path, [what], {"x": x}, steps=STEPS[:1])


def test_bfloat16_between_casts(tmp_path: Path) -> None:
    """The oracle is widened only where something computes in bf16."""
    narrow, back = op("Cast", "x", "h", to=16), op("Cast", "h", "y", to=1)
    check(tmp_path, [narrow, back], {"x": X}, exact=True, steps=STEPS[:1])
    path = write(tmp_path / "m.onnx", [narrow, op("Mul", "h,h", "m"), op("Cast", "m", "y", to=1)],
                 {"x": X})  # fmt: skip
    proto = onnx.load(path)
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, None))
    onnx.save(proto, path)
    x = np.ones((1, 2, 8), np.float32)
    got, oracle = run_oracle(load_model(path), {"x": x * 3})
    assert oracle == "onnxruntime, graph widened to fp32" and (got["y"] == 9).all()


def test_variadic(tmp_path: Path) -> None:
    inputs = {"a": X, "b": f32("sequence", 1), "c": f32(1)}
    for kind in ("Sum", "Mean", "Max", "Min"):
        nodes = [op(kind, "a,b,c", "y"), op(kind, "b", "z")]
        check(tmp_path, nodes, inputs, opset=13, steps=STEPS[1:2])


def test_clip_of_every_version(tmp_path: Path) -> None:
    bounds = {"lo": np.float32(-0.5), "hi": np.float32(0.5)}
    check(tmp_path, [node("Clip", "x,lo,hi")], {"x": X}, bounds, 13)
    check(tmp_path, [node("Clip", "x,,hi")], {"x": X}, bounds, 12, steps=STEPS[:1])
    check(tmp_path, [node("Clip", "x,hi,lo")], {"x": X}, bounds, 13, steps=STEPS[:1])
    check(tmp_path, [node("Clip", min=-0.3)], {"x": X}, opset=6, steps=STEPS[:1])
    whole = {"lo": np.int32(-3), "hi": np.int32(4)}
    check(tmp_path, [node("Clip", "x,lo,hi")], {"x": tensor("int32", "batch", 5)}, whole, 13)
    check(tmp_path, [node("Clip", "x,lo")], {"x": X, "lo": f32()}, opset=13, steps=STEPS[:1])


def test_dropout_is_the_identity_in_inference(tmp_path: Path) -> None:
    given = {"r": np.float32(0.3), "f": np.array(False), "t": np.array(True)}
    nodes = [op("Dropout", "x,r,f", "y,m", seed=3), op("Mul", "y,y", "z")]
    check(tmp_path, nodes, {"x": X}, given, 13, outputs=("z", "m"))
    refuses(tmp_path, [op("Dropout", "x,r,t")], {"x": X}, "in training mode", given, 13)


def test_ranks_differ(tmp_path: Path) -> None:
    """A constant of one element that has more dimensions, and scalars."""
    nodes = [op("Add", "x,c", "y"), op("Mul", "s,s", "z"), op("Add", "s,c", "w")]
    check(
        tmp_path, nodes, {"x": f32("sequence"), "s": f32()}, {"c": np.ones((1, 1, 1), np.float32)}
    )


def test_empty_tensors(tmp_path: Path) -> None:
    nodes = [op("Add", "x,x", "a"), op("Erf", "x", "e"), op("ReduceSum", "x,n", "r")]
    check(tmp_path, nodes, {"x": f32("batch", 0, 4)}, {"n": np.array([1], np.int64)})


def test_doubles_on_a_chip_that_has_them(tmp_path: Path) -> None:
    x = tensor("fp64", "batch", "sequence", 6)
    for what in (node("Erf"), node("Elu"), node("Add", "x,x"), node("ReduceMean", "x")):
        oracle = "reference" if what.op_type == "Erf" else "onnxruntime"
        limit = 1e-7 if oracle == "reference" else 1e-12  # its erf is that of floats
        check(tmp_path, [what], {"x": x}, steps=STEPS[:1], limit=limit, oracle=oracle)


def test_biased_activations(tmp_path: Path) -> None:
    bias = {"b": np.random.default_rng(1).standard_normal(8).astype(np.float32)}
    for kind in ("BiasGelu", "FastGelu"):
        check(tmp_path, [node(kind, "x,b", MS)], {"x": X}, bias, steps=STEPS[:2])


@pytest.mark.parametrize(("what", "reason"), [
    (node("Gelu", approximate="fast"), "with approximate 'fast'"),
    (node("Relu", slope=2), "with slope"),
    (node("Bernoulli"), "draws random numbers"),
])  # fmt: skip
def test_what_is_refused(tmp_path: Path, what: Any, reason: str) -> None:
    refuses(tmp_path, [what], {"x": X}, reason, opset=20)
