"""Graphs that round: how they are run by the oracle, and what their tolerance grows by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from meshc.frontend import load_model, rounding_spread, run_oracle
from meshc.frontend.rounding import as_written, moved, rounds
from meshc.ops.unpack import packed

from .harness import Input, _declare, f32, op, tensor, write

MS = "com.microsoft"
RNG = np.random.default_rng(3)


def model_of(
    folder: Path, nodes: list[Any], inputs: dict[str, Input], weights: dict[str, Any],
    shape: tuple[int, ...] = (1, 2, 6), dtype: Any = np.float32,
) -> Any:  # fmt: skip
    path = write(folder / "rounds.onnx", nodes, inputs, weights, opset=21)
    names = [o.name for o in onnx.load(path).graph.output]
    _declare(path, [np.zeros(shape, dtype)] * len(names), names)
    return load_model(path)


def test_a_value_between_two_steps_widens_the_tolerance(tmp_path: Path) -> None:
    """0.5 rounds to 0, a little more rounds to 1: the output may differ by the weight of a step."""
    nodes = [op("QuantizeLinear", "x,s", "q"), op("DequantizeLinear", "q,s", "d"),
             op("Mul", "d,w")]  # fmt: skip
    weights = {"s": np.float32(0.1), "w": np.float32(3)}
    model = model_of(tmp_path, nodes, {"x": f32("batch", "sequence", 6)}, weights)
    assert rounds(model.proto)
    for value, wanted in ((0.05, 0.6), (0.03, 0.0)):
        feeds = {"x": np.full((1, 2, 6), value, np.float32)}
        expected, _ = run_oracle(model, feeds)
        assert rounding_spread(model, feeds, expected)["y"] == pytest.approx(wanted)


def test_graphs_that_round_nothing_keep_their_tolerance(tmp_path: Path) -> None:
    weights = {"w": RNG.integers(-9, 9, (4, 6)).astype(np.int8), "s": np.float32(0.1)}
    nodes = [op("DequantizeLinear", "w,s", "d"), op("MatMul", "x,d")]
    model = model_of(tmp_path, nodes, {"x": f32("batch", "sequence", 4)}, weights)
    feeds = {"x": np.ones((1, 2, 4), np.float32)}
    expected, oracle = run_oracle(model, feeds)
    assert oracle == "onnxruntime" and rounding_spread(model, feeds, expected) == {}


def test_a_hint_rounds_no_activations(tmp_path: Path) -> None:
    k, size = 32, 16
    codes = RNG.integers(0, 16, (6, 2, size))
    weights = {"b": packed(codes, 4), "s": (RNG.random((6, 2)) + 0.1).astype(np.float32)}
    node = op("MatMulNBits", "x,b,s", domain=MS, K=k, N=6, bits=4, block_size=size,
              accuracy_level=4)  # fmt: skip
    model = model_of(tmp_path, [node], {"x": f32("batch", "sequence", k)}, weights)
    feeds = {"x": RNG.standard_normal((1, 2, k)).astype(np.float32)}
    expected, oracle = run_oracle(model, feeds)
    real = ((codes - 8) * weights["s"][..., None]).reshape(6, k)
    np.testing.assert_allclose(expected["y"], feeds["x"] @ real.T, atol=1e-4)
    assert oracle == "onnxruntime, activations not rounded"
    assert as_written(as_written(model.proto)) is None


def test_packed_experts_round_no_activations(tmp_path: Path) -> None:
    """The weights of two experts of 8 bits in blocks of 16, of which every token takes one."""
    codes = {n: RNG.integers(0, 256, (2, 16, 16)).astype(np.uint8) for n in "ac"}
    scales = {n: (RNG.random((2, 16, 1)) + 0.1).astype(np.float32) for n in "bd"}
    node = op("QMoE", "x,p,a,b,,c,d", domain=MS, expert_weight_bits=8, block_size=16,
              activation_type="identity")  # fmt: skip
    given = {"x": f32(3, 16), "p": f32(3, 2)}
    model = model_of(tmp_path, [node], given, {**codes, **scales})
    x, p = (RNG.standard_normal((3, n)).astype(np.float32) for n in (16, 2))
    expected, oracle = run_oracle(model, {"x": x, "p": p})
    one, two = ((codes[c] - 128.0) * scales[s] for c, s in ("ab", "cd"))
    want = [two[e] @ (one[e] @ row) for row, e in zip(x, p.argmax(1), strict=True)]
    assert np.abs(expected["y"] - want).max() <= 1e-5 * np.abs(want).max()
    assert oracle == "onnxruntime, activations not rounded"


PAIR = {"s": np.float32(0.1), "a": np.uint8(128), "t": np.float32(0.2), "u": np.float32(0.3)}


@pytest.mark.parametrize("nodes", [
    [op("DynamicQuantizeLinear", "x", "q,s1,z1"), op("DequantizeLinear", "q,s1,z1", "y")],
    [op("Round", "x")],
    [op("DynamicQuantizeMatMul", "x,w,t", domain=MS)],
    [op("QuantizeLinear", "x,row", "q", axis=2), op("DequantizeLinear", "q,row", "y", axis=2)],
    [op("QuantizeLinear", "x,s,a", "q"), op("QLinearAdd", "q,s,a,q,t,a,u,a", "r", domain=MS),
     op("DequantizeLinear", "r,u,a", "y")],
])  # fmt: skip
def test_moved_graphs_run_and_stay_near(tmp_path: Path, nodes: list[Any]) -> None:
    weights = {**PAIR, "w": RNG.integers(-99, 99, (6, 6)).astype(np.int8),
               "row": (RNG.random(6) + 0.1).astype(np.float32)}  # fmt: skip
    read = {n for node in nodes for n in node.input}
    kept = {n: w for n, w in weights.items() if n in read}
    model = model_of(tmp_path, nodes, {"x": f32("batch", "sequence", 6)}, kept)
    feeds = {"x": RNG.standard_normal((1, 2, 6)).astype(np.float32)}
    expected, _ = run_oracle(model, feeds)
    spread = rounding_spread(model, feeds, expected)
    assert set(spread) == {"y"} and 0 <= spread["y"] < 0.2 * max(1, np.abs(expected["y"]).max())
    up, down = (moved(model.proto, sign) for sign in (1, -1))
    assert up != down and len(up.graph.node) > len(model.proto.graph.node)


def test_halves(tmp_path: Path) -> None:
    nodes = [op("QuantizeLinear", "x,s", "q"), op("DequantizeLinear", "q,s", "y")]
    given = {"x": tensor("fp16", "batch", "sequence", 6)}
    model = model_of(tmp_path, nodes, given, {"s": np.float16(0.1)}, dtype=np.float16)
    feeds = {"x": RNG.standard_normal((1, 2, 6)).astype(np.float16)}
    expected, _ = run_oracle(model, feeds)
    assert rounding_spread(model, feeds, expected)["y"] < 0.3
