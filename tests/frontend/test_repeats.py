"""Repeats are found where the wiring repeats, and nowhere else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from meshc.frontend import bind, load_model

from .models import check, info, step, weight, write


def chain(path: Path, layers: int, wire: Any) -> Path:
    """Layers of a product and a rectifier; `wire(layer, values)` says what each one reads."""
    nodes, weights, values = [], [], ["x"]
    rng = np.random.default_rng(3)
    for i in range(layers):
        weights.append(weight(f"w{i}", rng.standard_normal((6, 6)).astype(np.float32) / 3))
        nodes.append(helper.make_node("MatMul", [wire(i, values), f"w{i}"], [f"a{i}"], f"mm{i}"))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"], f"relu{i}"))
        nodes.append(helper.make_node("Add", [values[-1], f"r{i}"], [f"s{i}"], f"add{i}"))
        values.append(f"s{i}")
    nodes.append(helper.make_node("Tanh", [values[-1]], ["y"], "out"))
    return write(path, nodes, [info("x", "float32", [2, 6])], [info("y", "float32", [2, 6])],
                 weights)  # fmt: skip


def shape(path: Path) -> list[tuple[str, int]]:
    bound = check(load_model(path), step())
    return [(s.name, s.repeat) for s in bound.graph.segments]


def test_plain_chain(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", 7, lambda i, v: v[-1])
    assert shape(path) == [("body", 7), ("epilogue", 1)]
    graph = bind(load_model(path), step()).graph
    body = graph.segments[0]
    assert body.carried == (("x", "s0"),)
    assert graph.tensors["w0"].instances == tuple(f"w{i}" for i in range(7))


def test_numbers_of_each_layer_become_operands(tmp_path: Path) -> None:
    nodes, weights, rng = [], [], np.random.default_rng(3)
    for i in range(4):
        weights += [weight(f"w{i}", rng.standard_normal((6, 6)).astype(np.float32) / 3),
                    weight(f"k{i}", np.float32(1 + i)), weight(f"n{i}", np.int64(i))]  # fmt: skip
        before = f"s{i - 1}" if i else "x"
        nodes += [
            helper.make_node("MatMul", [before, f"w{i}"], [f"a{i}"], f"mm{i}"),
            helper.make_node("Mul", [f"a{i}", f"k{i}"], [f"b{i}"], f"mul{i}"),
            helper.make_node("Pow", [f"b{i}", "two"], [f"c{i}"], f"pow{i}"),
            helper.make_node("Cast", [f"c{i}"], [f"d{i}"], f"int{i}", to=7),
            helper.make_node("Add", [f"d{i}", f"n{i}"], [f"e{i}"], f"add{i}"),
            helper.make_node("Cast", [f"e{i}"], [f"f{i}"], f"float{i}", to=1),
            helper.make_node("Add", [f"a{i}", f"f{i}"], [f"s{i}"], f"sum{i}"),
        ]
    weights.append(weight("two", np.float32(2)))
    path = write(tmp_path / "m.onnx", nodes, [info("x", "float32", [2, 6])],
                 [info("s3", "float32", [2, 6])], weights)  # fmt: skip
    bound = check(load_model(path), step())
    assert [(s.name, s.repeat) for s in bound.graph.segments] == [("body", 4)]
    numbers = [t for t in bound.graph.tensors.values() if t.shape == () and t.kind == "WEIGHT"]
    assert {len(t.instances) for t in numbers} == {4} and len(numbers) == 2  # all square alike


def test_a_value_from_before_that_all_layers_read_is_steady(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    chain(path, 5, lambda i, v: v[-1])
    import onnx

    proto = onnx.load(path)
    for i, node in enumerate(n for n in proto.graph.node if n.op_type == "Relu"):
        node.op_type = "Mul"
        node.input.append("z")
        node.name = f"mul{i}"
    proto.graph.input.append(info("z", "float32", [2, 6]))
    onnx.save(proto, path)
    assert shape(path) == [("body", 5), ("epilogue", 1)]
    bound = bind(load_model(path), step())
    assert bound.graph.tensors["z"].instances == ("z",)


def test_layers_that_reach_back_further_do_not_repeat(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", 4, lambda i, v: v[0] if i % 2 else v[-1])
    assert all(name == "model" or n == 2 for name, n in shape(path))


def test_an_early_value_read_at_the_end_forbids_the_repeat(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", 4, lambda i, v: v[-1])
    import onnx

    proto = onnx.load(path)
    proto.graph.node[-1].op_type = "Add"
    proto.graph.node[-1].input.append("s1")
    onnx.save(proto, path)
    check(load_model(path), step())


def test_one_weight_for_all_layers_is_one_instance(tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", 4, lambda i, v: v[-1])
    import onnx

    proto = onnx.load(path)
    for node in proto.graph.node:
        if node.op_type == "MatMul":
            node.input[1] = "w0"
    onnx.save(proto, path)
    assert shape(path) == [("body", 4), ("epilogue", 1)]
    assert bind(load_model(path), step()).graph.tensors["w0"].instances == ("w0",)


def test_many_layers_take_linear_time(tmp_path: Path) -> None:
    model = load_model(chain(tmp_path / "m.onnx", 4000, lambda i, v: v[-1]))
    start = time.perf_counter()
    graph = bind(model, step()).graph
    assert time.perf_counter() - start < 20
    assert [s.repeat for s in graph.segments] == [4000, 1]
