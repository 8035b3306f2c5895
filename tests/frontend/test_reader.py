"""Files that are no model are refused in one sentence."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from meshc.errors import InputError
from meshc.frontend import bind, load_model

from .models import info, step, weight, write


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(path)
    return str(caught.value)


def linear(path: Path, **options: Any) -> Path:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    matrix = weight("w", np.arange(200, dtype=np.float32).reshape(10, 20))
    return write(path, [node], [info("x", "float32", [3, 10])],
                 [info("y", "float32", [3, 20])], [matrix], **options)  # fmt: skip


def test_missing(tmp_path: Path) -> None:
    path = tmp_path / "no.onnx"
    assert refused(path) == f"Model '{path}' does not exist; give the path of an .onnx file."


def test_directory(tmp_path: Path) -> None:
    expected = f"Model '{tmp_path}' is a directory; give the path of an .onnx file."
    assert refused(tmp_path) == expected


def test_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.touch()
    assert refused(path) == f"Model '{path}' is empty (0 bytes); export or copy it again."


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.95])
def test_truncated(tmp_path: Path, keep: float) -> None:
    path = linear(tmp_path / "m.onnx")
    data = path.read_bytes()
    size = int(len(data) * keep)
    path.write_bytes(data[:size])
    assert refused(path) == (
        f"Model '{path}' ({size} bytes) cannot be parsed: it is truncated or not an ONNX file; "
        "export or copy it again."
    )


@pytest.mark.parametrize("content", [b"hello world, this is text", b"\x00\x01\x02", b"{}\n"])
def test_foreign(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert str(path) in refused(path)


def test_graph_without_outputs(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph([], "g", [], [])), path)
    assert refused(path) == (
        f"Model '{path}' is not an ONNX model: it has no graph with outputs and operator sets; "
        "give the path of an .onnx file."
    )


def external(tmp_path: Path, location: str) -> Path:
    path = linear(tmp_path / "m.onnx")
    proto = onnx.load(path)
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_read_where_it_lies(tmp_path: Path) -> None:
    model = load_model(external(tmp_path, "m.data"))
    bound = bind(model, step())
    assert np.array_equal(bound.data.read("w"), np.arange(200, dtype=np.float32).reshape(10, 20))


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd", "a/../../m.data", ""])
def test_external_data_outside(tmp_path: Path, location: str) -> None:
    path = external(tmp_path, location)
    assert refused(path) == (
        f"Weight 'w' of model '{path}' is stored in '{location}', outside the model's directory; "
        "put the data file beside the model."
    )


def test_external_data_too_short(tmp_path: Path) -> None:
    path = external(tmp_path, "m.data")
    (tmp_path / "m.data").write_bytes(b"\0" * 100)
    assert refused(path) == (
        f"Weight 'w' of model '{path}' ends at byte 800 of 'm.data', which has 100 bytes; copy the "
        "data file again."
    )


def test_weights_with_part_of_their_data(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx")
    proto = onnx.load(path)
    proto.graph.initializer[0].raw_data = b"\0" * 100
    onnx.save(proto, path)
    assert refused(path) == (
        f"Weight 'w' of model '{path}' has 100 bytes of data where its dimensions [10, 20] "
        "need 800; export the model again."
    )


def test_facts(tmp_path: Path) -> None:
    path = linear(tmp_path / "tiny.onnx", opsets={"": 18, "com.microsoft": 1})
    model = load_model(path)
    assert model.name == "tiny"
    assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (model.phases, model.default_phase, model.has_past) == (("prefill",), "prefill", False)
    graph = bind(model, step()).graph
    assert (graph.parameters, graph.node_count, graph.sha256) == (200, 1, model.sha256)


def test_initializers_that_are_inputs_stay_weights(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx")
    proto = onnx.load(path)
    proto.graph.input.append(info("w", "float32", [10, 20]))
    onnx.save(proto, path)
    assert [p.name for p in load_model(path).inputs] == ["x"]


def test_output_that_nothing_makes(tmp_path: Path) -> None:
    path = linear(tmp_path / "m.onnx")
    proto = onnx.load(path)
    proto.graph.output.append(info("z", "float32", [1]))
    onnx.save(proto, path)
    with pytest.raises(InputError) as caught:
        bind(load_model(path), step())
    assert str(caught.value) == (
        "Output 'z' of 'm.onnx' is made by no node; export the model again."
    )


def test_outputs_that_are_inputs_or_weights_are_copied(tmp_path: Path) -> None:
    from .models import check

    nodes = [
        helper.make_node("Identity", [a], [b]) for a, b in (("x", "y"), ("w", "z"), ("x", "q"))
    ]
    outputs = [info(n, "float32", [3]) for n in "yzq"]
    ones = weight("w", np.ones(3, np.float32))
    path = write(tmp_path / "m.onnx", nodes, [info("x", "float32", [3])], outputs, [ones])
    check(load_model(path), step())


def test_unknown_operators_are_listed_together(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Blur", ["x", "w"], ["a"]),
        helper.make_node("Blur", ["a", "w"], ["b"]),
        helper.make_node("Secret", ["b"], ["c"], domain="my.ops"),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("TopK", ["x", "k"], ["dead", ""]),
    ]
    weights = [weight("w", np.ones((1, 1, 1), np.float32)), weight("k", np.array([1], np.int64))]
    path = write(
        tmp_path / "m.onnx", nodes, [info("x", "float32", [1, 1, 4])],
        [info("y", "float32", [1, 1, 4])], weights, {"": 18, "my.ops": 1},
    )  # fmt: skip
    with pytest.raises(InputError) as caught:
        bind(load_model(path), step())
    assert str(caught.value) == (
        "Model 'm.onnx' has operators that are not supported: 'Blur' (2 nodes, unknown to the "
        "ONNX standard), 'my.ops:Secret' (1 node); export it without them ('meshc ops' "
        "lists what is supported)."
    )


def test_branches_are_taken_only_on_constants(tmp_path: Path) -> None:
    from .models import check

    def branch(name: str, op: str) -> Any:
        node = helper.make_node(op, ["x"], [f"{name}_out"])
        return helper.make_graph([node], name, [], [info(f"{name}_out", "float32", [3])])

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Exp")
    )
    ports = [info("x", "float32", [3])], [info("y", "float32", [3])]
    for value in (True, False):
        flag = weight("c", np.array(value))
        path = write(tmp_path / f"{value}.onnx", [node], *ports, [flag])
        check(load_model(path), step())
    path = write(tmp_path / "m.onnx", [node], [*ports[0], info("c", "bool", [])], ports[1])
    with pytest.raises(InputError) as caught:
        bind(load_model(path), step())
    assert str(caught.value) == (
        "Model 'm.onnx' has operators in a form that is not supported: 'If' with a condition that "
        "depends on run-time data (1 node); export it without them ('meshc ops' lists what is "
        "supported)."
    )


def test_functions_of_the_model_are_inlined(tmp_path: Path) -> None:
    from .models import check

    body = [
        helper.make_node("Mul", ["a", "a"], ["s"]),
        helper.make_node("Constant", [], ["c"], value_float=2.0),
        helper.make_node("Add", ["s", "c"], ["r"]),
    ]
    function = helper.make_function("my.ops", "Twist", ["a"], ["r"], body,
                                    [helper.make_opsetid("", 18)])  # fmt: skip
    nodes = [
        helper.make_node("Twist", ["x"], ["m"], domain="my.ops"),
        helper.make_node("Twist", ["m"], ["y"], domain="my.ops"),
    ]
    path = write(
        tmp_path / "m.onnx", nodes, [info("x", "float32", [3])], [info("y", "float32", [3])],
        [], {"": 18, "my.ops": 1}, [function],
    )  # fmt: skip
    bound = check(load_model(path), step())
    assert [o.kind for _, o in bound.graph.ops()] == ["map"]


def test_unsorted_nodes_and_empty_names(tmp_path: Path) -> None:
    from .models import check

    nodes = [
        helper.make_node("Exp", ["b"], ["y"]),
        helper.make_node("Neg", ["x"], ["b"]),
        helper.make_node("Clip", ["x", "", "hi"], ["unused"]),
    ]
    path = write(
        tmp_path / "m.onnx", nodes[1::-1] + nodes[2:], [info("x", "float32", [3])],
        [info("y", "float32", [3])], [weight("hi", np.array(1, np.float32))],
    )  # fmt: skip
    proto = onnx.load(path)
    check(load_model(path), step())
    first, second = proto.graph.node[0], proto.graph.node[1]
    reordered = [second, first]
    del proto.graph.node[:]
    proto.graph.node.extend(reordered)
    onnx.save(proto, path)
    assert len(list(bind(load_model(path), step()).graph.ops())) == 1


def test_types_that_are_not_numbers(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    strings = helper.make_tensor_value_info("x", TensorProto.STRING, [2])
    out = helper.make_tensor_value_info("y", TensorProto.STRING, [2])
    path = write(tmp_path / "m.onnx", [node], [strings], [out])
    with pytest.raises(InputError) as caught:
        bind(load_model(path), step())
    assert str(caught.value) == (
        "Input 'x' of 'm.onnx' has onnx type 8, which is not supported; export it in a float type."
    )
