"""The harness itself: it divides, it compares, and it notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import harness
from .harness import check, f32, op, refuses, tensor

X = f32("batch", "sequence", 8)


def test_a_small_graph_is_compiled_divided_and_compared(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    nodes = [op("MatMul", "x,w", "h"), op("Softmax", "h", "y"), op("Relu", "h", "z")]
    bounds = check(tmp_path, nodes, {"x": X}, {"w": w})
    assert [o for b in bounds for _, o, _ in b.graph.outputs][:2] == ["y", "z"]


def test_a_wrong_result_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshc.ops.elementwise import FUNCTIONS

    monkeypatch.setitem(FUNCTIONS, "tanh", np.sin)
    with pytest.raises(AssertionError, match=r"y at Step.*: error"):
        check(tmp_path, [op("Tanh", "x")], {"x": X})


def test_the_reference_stands_in_where_onnx_runtime_has_no_kernel(tmp_path: Path) -> None:
    x = tensor("bf16", "batch", "sequence", 4)
    check(tmp_path, [op("Add", "x,x")], {"x": x})
    check(tmp_path, [op("Neg", "x")], {"x": tensor("int32", "batch", 3)}, oracle="reference")


def test_a_refusal_names_the_operator_and_the_reason(tmp_path: Path) -> None:
    refuses(tmp_path, [op("Det", "x")], {"x": X}, "1 node")


@pytest.mark.parametrize("node", [
    op("ReduceProd", "x"), op("Softmax", "x"), op("Hardmax", "x"),
    op("LpNormalization", "x"), op("Mish", "x"), op("Einsum", "x,x", equation="bsh,bth->bst"),
    op("Pad", "x,p", mode="reflect"), op("MeanVarianceNormalization", "x", axes=[1, 2]),
])  # fmt: skip
def test_operators_are_divided(tmp_path: Path, node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No op of these is whole on every lane when arithmetic is slow."""
    plans: dict[str, str] = {}
    plain = harness.compile_model
    monkeypatch.setattr(harness, "compile_model", lambda *a: plain(*a, dumps=plans))
    pads = {"p": np.array([0, 0, 1, 0, 0, 1])}
    check(tmp_path, [node], {"x": X}, pads, steps=(harness.Step(2, 4, (2, 2)),))
    assert "assign=" in plans["prefill.plan"]
    assert "assign=(None, None)" not in plans["prefill.plan"], plans["prefill.plan"]
