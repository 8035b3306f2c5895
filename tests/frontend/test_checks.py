"""Files whose data, names or versions are wrong: refused when read, or read as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from meshc.errors import InputError
from meshc.frontend import bind, load_model
from meshc.frontend.expertload import split
from meshc.frontend.oracle import brief

from .models import check, info, step, write
from .test_reader import linear, refused


def edited(path: Path, edit: Any) -> Path:
    proto = onnx.load(linear(path))
    edit(proto, proto.graph.initializer[0])
    path.write_bytes(proto.SerializeToString())
    return path


def resized(change: int, rows: int = 10) -> Any:
    def edit(proto: Any, t: Any) -> None:
        t.dims[0] = rows
        t.raw_data = bytes(rows * 80 + change)

    return edit


def typed(proto: Any, t: Any) -> None:
    t.ClearField("raw_data")
    t.float_data.extend([0.0] * 199)


def other_field(proto: Any, t: Any) -> None:
    t.ClearField("raw_data")
    t.int32_data.extend([0] * 200)


def packed(proto: Any, t: Any) -> None:
    small = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3, 3], raw_data=bytes(4))
    proto.graph.node[0].attribute.add(name="t", t=small, type=onnx.AttributeProto.TENSOR)


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        (resized(-4), "796 bytes of data where its dimensions [10, 20] need 800"),
        (resized(1), "801 bytes of data where its dimensions [10, 20] need 800"),
        (resized(-1, 2000), "159999 bytes of data where its dimensions [2000, 20] need 160000"),
        (typed, "199 elements of data where its dimensions [10, 20] need 200"),
        (other_field, "0 elements of data where its dimensions [10, 20] need 200"),
        (packed, "4 bytes of data where its dimensions [3, 3] need 5"),
    ],
)
def test_data_must_have_the_size_that_the_dimensions_say(
    tmp_path: Path, edit: Any, found: str
) -> None:
    path = edited(tmp_path / "m.onnx", edit)
    assert refused(path) == f"Weight 'w' of model '{path}' has {found}; export the model again."


def test_large_data_of_the_right_size(tmp_path: Path) -> None:
    def edit(proto: Any, t: Any) -> None:
        resized(0, 4000)(proto, t)
        t.doc_string = "many"
        t.metadata_props.add(key="a", value="b")

    assert load_model(edited(tmp_path / "m.onnx", edit)).weight("w").dims[0] == 4000


def test_versions_that_nobody_knows(tmp_path: Path) -> None:
    def opset(proto: Any, t: Any) -> None:
        proto.opset_import[0].version = 99

    def ir(proto: Any, t: Any) -> None:
        proto.ir_version = 99

    highest = onnx.defs.onnx_opset_version()
    assert f"operator set 99 of the ONNX standard, where 1 to {highest} exist" in refused(
        edited(tmp_path / "m.onnx", opset)
    )
    assert "ONNX IR version 99" in refused(edited(tmp_path / "m.onnx", ir))


def test_data_in_a_directory(tmp_path: Path) -> None:
    def edit(proto: Any, t: Any) -> None:
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        t.external_data.add(key="location", value=".")

    assert "stored in '.', which is a directory" in refused(edited(tmp_path / "m.onnx", edit))


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """ONNX Runtime loads them; inputs and outputs among them."""
    nodes = [
        helper.make_node("Relu", ["in_x"], ["between"], "first"),
        helper.make_node("Add", ["between", "in_x"], ["out_y"], "second"),
    ]
    path = write(tmp_path / "m.onnx", nodes, [info("in_x", "float32", [3, 10])],
                 [info("out_y", "float32", [3, 10])])  # fmt: skip
    data = path.read_bytes()
    for name in (b"in_x", b"between", b"out_y", b"second"):
        data = data.replace(name, name[:-1] + b"\xff")
    path.write_bytes(data)
    bound = check(load_model(path), step())
    assert list(bound.inputs) == ["in_\\xff"]


def test_shares_of_experts_beyond_floats() -> None:
    assert split(8, [1e308] * 4) == (2, 2, 2, 2)
    assert split(5, [1.5e308, 0, 1e308, 0]) == (3, 0, 2, 0)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : Load model from /a/b.onnx failed:/src/graph.cc:16 "
            "void onnxruntime::Graph::Read(const onnx::Model&) This is an invalid model. Graph "
            "output (y) does not exist in the graph.\n",
            "Graph output (y) does not exist in the graph",
        ),
        (
            '[ONNXRuntimeError] : 10 : INVALID_GRAPH : This is an invalid model. In Node, ("n", '
            'Foo, "", -1) : ("x": tensor(float),) -> ("y",) , Error No Op registered for Foo',
            "node 'n' (Foo): No Op registered for Foo",
        ),
    ],
)
def test_what_onnx_runtime_says_in_short(text: str, kept: str) -> None:
    assert brief(RuntimeError(text)) == kept


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("Concat", {"axis": 2}), ("Softmax", {"axis": -3}), ("SplitToSequence", {"axis": 2})],
)
def test_an_axis_that_is_not_there(tmp_path: Path, op: str, attrs: Any) -> None:
    node = helper.make_node(op, ["x", "x"] if op == "Concat" else ["x"], ["y"], "n", **attrs)
    path = write(tmp_path / "m.onnx", [node], [info("x", "float32", [3, 10])],
                 [info("y", "float32", [3, 10])])  # fmt: skip
    with pytest.raises(InputError, match=rf"axis {attrs['axis']} where there are 2 dimensions"):
        bind(load_model(path), step())


def test_a_cycle_is_named(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "second"),
        helper.make_node("Neg", ["b"], ["y"], "third"),
    ]
    path = write(tmp_path / "m.onnx", nodes, [info("x", "float32", [3])],
                 [info("y", "float32", [3])])  # fmt: skip
    with pytest.raises(InputError, match="has a cycle through 'second', 'first'; export"):
        bind(load_model(path), step())


def test_an_operator_that_nobody_knows(tmp_path: Path) -> None:
    node = helper.make_node("MatMulFoo", ["c"], ["y"], "n")
    constant = helper.make_tensor("c", TensorProto.FLOAT, [1], [0.0])
    path = write(tmp_path / "m.onnx", [node], [], [info("y", "float32", [1])], [constant])
    with pytest.raises(InputError, match=r"'MatMulFoo' \(1 node, unknown to the ONNX standard\)"):
        bind(load_model(path), step())
