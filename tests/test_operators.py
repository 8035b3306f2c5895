"""`meshc ops`: what becomes of each operator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontend.models import info, weight, write
from onnx import helper

from meshc import frontend
from meshc.operators import operators

Meshc = Callable[..., Any]


def test_every_node_has_a_fate(example: Path, meshc: Meshc) -> None:
    done = meshc("ops", example, "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["reason"] is None
    rows = {r["op"]: r for r in found["ops"]}
    model = frontend.load_model(example)
    assert sum(r["count"] for r in found["ops"]) == model.node_count == 621
    for r in rows.values():
        assert r["count"] == sum(r[f] for f in ("fused", "executed", "folded", "unsupported"))
    assert rows["Constant"]["folded"] == 221 and rows["Shape"]["status"] == "folded"
    assert rows["Softmax"]["status"] == rows["ReduceMean"]["status"] == "fused"
    assert rows["MatMul"]["executed"] and rows["MatMul"]["folded"] == 1
    assert found["patterns"] == {"norm": 5, "rotary": 4, "attention": 2, "gated mlp": 2}


def test_the_table_for_people(example: Path, meshc: Meshc) -> None:
    done = meshc("ops", example)
    assert done.code == 0 and "Recognised: 5 × norm" in done.out
    assert meshc("ops", example, "--quiet").out == ""


def test_without_a_model_what_is_known(meshc: Meshc) -> None:
    names = {r["op"] for r in json.loads(meshc("ops", "--json").out)["ops"]}
    assert {"MatMul", "Celu", "Attention", "com.microsoft:GroupQueryAttention", "If"} <= names
    assert not names & {"LSTM", "NonMaxSuppression", "RandomNormal"}


def odd(path: Path, *extra: Any) -> Path:
    """A model whose middle is foreign, behind and in front of known operators."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("Shape", ["x"], ["unused"]),
        helper.make_node("Foreign", ["x"], ["y"], domain="acme"),
        helper.make_node("Foreign", ["y"], ["z"], domain="acme"),
        helper.make_node("Relu", ["z"], ["logits"]),
        *extra,
    ]
    inputs = [info("input_ids", "int64", ["batch", "sequence"])]
    outputs = [info("logits", "float32", ["batch", "sequence", 4])]
    table = weight("table", np.ones((7, 4), np.float32))
    return write(path, nodes, inputs, outputs, [table], {"": 18, "acme": 1})


def test_unsupported_operators_are_listed_and_refused(tmp_path: Path, meshc: Meshc) -> None:
    done = meshc("ops", odd(tmp_path / "odd.onnx"), "--json")
    rows = {r["op"]: (r["count"], r["status"]) for r in json.loads(done.out)["ops"]}
    assert rows == {
        "acme:Foreign": (2, "unsupported"),
        "Gather": (1, "executed"),
        "Relu": (1, "executed"),
        "Shape": (1, "folded"),
    }
    assert done.code == 2
    assert done.sentence == (
        "Model 'odd.onnx' has operators that are not supported: 'acme:Foreign' (2 nodes); export "
        "it without them ('meshc ops' lists what is supported)."
    )


def test_a_model_that_cannot_be_bound_still_has_a_table(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    shape = ["width", "depth", "more"]
    path = write(
        tmp_path / "free.onnx",
        nodes,
        [info("x", "float32", shape)],
        [info("y", "float32", shape)],
        [],
    )
    found = operators(path)
    assert [(r.operator, r.status) for r in found.rows] == [("Mul", "executed")]
    assert "--dim" in found.reason
    assert operators(path, dims={"width": 2, "depth": 3, "more": 4}).reason == ""


@pytest.mark.parametrize("flag", ["--batch", "--prompt"])
def test_workload_flags_are_those_of_compile(flag: str, example: Path, meshc: Meshc) -> None:
    assert meshc("ops", example, flag, 3, "--quiet").code == 0
    assert meshc("ops", example, flag, -3, "--quiet").code == 2
