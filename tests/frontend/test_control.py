"""Branches, loops, sequences and functions, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, helper

from meshc.errors import InputError
from meshc.frontend import bind, load_model

from .models import check, info, step, weight, write

X = info("x", "float32", ["batch", 4])
Y = info("y", "float32", ["batch", 4])
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    names = inputs.split(",") if inputs else []
    return helper.make_node(op, names, outputs.split(","), f"{op}_{outputs}", **attrs)


def port(name: str, kind: int = FLOAT, dims: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def graph(nodes: list[Any], outputs: str, inputs: tuple[Any, ...] = (), weights: Any = ()) -> Any:
    ends = [helper.make_empty_tensor_value_info(n) for n in outputs.split(",")]
    return helper.make_graph(nodes, "g", list(inputs), ends, list(weights))


def run(path: Path, nodes: list[Any], weights: dict[str, Any], output: Any = Y, **more: Any) -> Any:
    given = [weight(n, np.asarray(a)) for n, a in weights.items()]
    return check(load_model(write(path, nodes, [X], [output], given, **more)), step(2, 1))


def refused(path: Path, nodes: list[Any], weights: dict[str, Any], inputs: Any = (X,)) -> str:
    given = [weight(n, np.asarray(a)) for n, a in weights.items()]
    model = load_model(write(path, nodes, list(inputs), [Y], given))
    with pytest.raises(InputError) as caught:
        bind(model, step(2, 1))
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("first", [True, False])
def test_branches_within_branches(path: Path, first: bool) -> None:
    """They see outer values, have weights of their own, and put out what is outside of them."""
    own = weight("w", np.full(4, 3.0, np.float32))
    deep = graph([node("Mul", "h,w", "a")], "a", weights=(own,))
    flat = graph([node("Neg", "h", "b")], "b")
    inner = node("If", "no", "c", then_branch=flat, else_branch=deep)
    plain = graph([node("Identity", "x", "z")], "z")
    outer = node("If", "first", "y", then_branch=graph([inner], "c"), else_branch=plain)
    weights = {"first": first, "no": False, "one": np.float32(1)}
    run(path, [node("Add", "x,one", "h"), outer], weights)


def body(extra: list[Any], outputs: str, go: str = "go") -> Any:
    inputs = (port("i", INT, []), port("cond", BOOL, []), port("s", FLOAT, ["batch", 4]))
    nodes = [node("Identity", "cond", "go"), *extra]
    return graph(nodes, f"{go},{outputs}", inputs)


def test_a_loop_is_unrolled(path: Path) -> None:
    turn = [node("Cast", "i", "f", to=FLOAT), node("Add", "s,f", "t"), node("Mul", "t,k", "u")]
    loop = node("Loop", "n,,x", "y,all", body=body(turn, "u,t"))
    weights = {"n": np.int64(3), "k": np.float32(0.5)}
    run(path, [loop], weights)
    everything = info("all", "float32", [3, "batch", 4])
    run(path, [loop], weights, everything)


def test_a_loop_ends_by_its_condition(path: Path) -> None:
    turn = [node("Add", "s,k", "u"), node("Less", "i,last", "on")]
    loop = node("Loop", ",yes,x", "y", body=body(turn, "u", "on"))
    run(path, [loop], {"k": np.float32(2), "last": np.int64(3), "yes": True})


def test_a_scan_over_a_fixed_dimension(path: Path) -> None:
    inputs = (port("s", FLOAT, ["batch", 4]), port("w", FLOAT, [4]))
    turn = graph([node("Mul", "s,w", "t"), node("Add", "t,s", "u")], "u,t", inputs)
    scan = node("Scan", "x,ws", "y,all", body=turn, num_scan_inputs=1, scan_input_directions=[1])
    weights = {"ws": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    run(path, [scan], weights)
    run(path, [scan], weights, info("all", "float32", [3, "batch", 4]))
    for axis, shape in ((1, ["batch", 3, 4]), (-1, ["batch", 4, 3])):
        scan = node("Scan", "x,ws", "y,all", body=turn, num_scan_inputs=1, scan_output_axes=[axis])
        run(path, [scan], weights, info("all", "float32", shape))


def test_what_run_time_data_decides_is_refused(path: Path) -> None:
    flat = graph([node("Neg", "x", "b")], "b")
    same = graph([node("Identity", "x", "c")], "c")
    inputs = (X, info("flag", "bool", []), info("n", "int64", []))
    branch = node("If", "flag", "y", then_branch=flat, else_branch=same)
    reason = "'If' with a condition that depends on run-time data"
    assert reason in refused(path, [branch], {}, inputs)
    loop = node("Loop", "n,,x", "y", body=body([node("Neg", "s", "u")], "u"))
    reason = "'Loop' with a trip count that depends on run-time data"
    assert reason in refused(path, [loop], {}, inputs)
    turn = [node("ReduceSum", "s", "r", keepdims=0), node("Greater", "r", "on")]
    turn[1].input.append("k")
    loop = node("Loop", "m,,x", "y", body=body([*turn, node("Neg", "s", "u")], "u", "on"))
    text = refused(path, [loop], {"m": np.int64(4), "k": np.float32(0)})
    assert "'Loop' with a condition that depends on run-time data" in text


def test_a_recurrence_over_tokens_is_refused(path: Path) -> None:
    size = [node("Shape", "x", "dims"), node("Gather", "dims,zero", "n")]
    loop = node("Loop", "n,,x", "y", body=body([node("Neg", "s", "u")], "u"))
    text = refused(path, [*size, loop], {"zero": np.int64(0)})
    assert "'Loop' whose number of turns depends on the number of tokens, a recurrence" in text
    inputs = (port("s", FLOAT, [4]), port("w", FLOAT, [4]))
    turn = graph([node("Add", "s,w", "u")], "u", inputs)
    scan = node("Scan", "k,x", "y", body=turn, num_scan_inputs=1)
    text = refused(path, [scan], {"k": np.zeros(4, np.float32)})
    assert "'Scan' over tokens, a recurrence" in text


def test_sequences(path: Path) -> None:
    nodes = [
        node("SplitToSequence", "x,two", "s", axis=1), node("SequenceAt", "s,last", "a"),
        node("SequenceErase", "s,zero", "rest"), node("SequenceInsert", "rest,a,zero", "more"),
        node("Identity", "more", "same"), node("SequenceLength", "same", "n"),
        node("ConcatFromSequence", "same", "c", axis=1), node("Cast", "n", "f", to=FLOAT),
        node("SequenceConstruct", "c,x", "pair"), node("ConcatFromSequence", "pair", "d", axis=0,
                                                       new_axis=1),
        node("ReduceSum", "d,zeros", "e", keepdims=0), node("Mul", "e,f", "y"),
    ]  # fmt: skip
    weights = {"two": np.int64(2), "last": np.int64(-1), "zero": np.int64(0),
               "zeros": np.array([0])}  # fmt: skip
    run(path, nodes, weights)


def test_optionals(path: Path) -> None:
    there = graph([node("OptionalGetElement", "o", "a")], "a")
    absent = graph([node("Neg", "x", "b")], "b")
    nodes = [node("Optional", "x", "o"), node("OptionalHasElement", "o", "has"),
             node("If", "has", "y", then_branch=there, else_branch=absent)]  # fmt: skip
    run(path, nodes, {})


def test_functions(path: Path) -> None:
    """Nested, with default attributes, references inside subgraphs, overloads and a name that the
    standard has."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]

    def reference(name: str, kind: Any, to: str) -> Any:
        attr = AttributeProto(name=name, type=kind, ref_attr_name=to)
        return attr

    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.append(reference("value_float", AttributeProto.FLOAT, "factor"))
    scale = helper.make_function(
        "own", "Scale", ["a"], ["r"], [constant, helper.make_node("Mul", ["a", "c"], ["r"])],
        imports, attribute_protos=[helper.make_attribute("factor", 2.0)],
    )  # fmt: skip
    inside = helper.make_node("Constant", [], ["d"])
    inside.attribute.append(reference("value_float", AttributeProto.FLOAT, "shift"))
    then = graph([inside, node("Add", "a,d", "e")], "e")
    other = graph([node("Identity", "a", "z")], "z")
    yes = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("t", BOOL, [], [True]))
    choose = helper.make_node("If", ["yes"], ["q"], then_branch=then, else_branch=other)
    both = helper.make_function(
        "own", "Both", ["a"], ["r"],
        [yes, choose, helper.make_node("Scale", ["q"], ["s"], domain="own"),
         helper.make_node("Scale", ["s"], ["r"], domain="own", factor=0.25)],
        imports, ["shift"],
    )  # fmt: skip
    relu = helper.make_function(
        "own", "Relu", ["a"], ["r"], [helper.make_node("Neg", ["a"], ["r"])], imports
    )
    nodes = [helper.make_node("Both", ["x"], ["h"], domain="own", shift=1.5),
             helper.make_node("Relu", ["h"], ["y"], domain="own")]  # fmt: skip
    run(path, nodes, {}, functions=[scale, both, relu], opsets={"": 18, "own": 1})


def test_a_function_means_what_the_model_s_operator_set_says(tmp_path: Path) -> None:
    """As in ONNX Runtime, which puts its nodes into the graph: since 13 Softmax takes one axis."""
    body = [helper.make_node("Softmax", ["a"], ["b"])]
    old = helper.make_function("own", "Soft", ["a"], ["b"], body, [helper.make_opsetid("", 11)])
    nodes = [helper.make_node("Soft", ["x"], ["y"], "soft", domain="own")]
    for opset in (18, 12):
        path = write(tmp_path / f"{opset}.onnx", nodes, [info("x", "float32", [2, 3, 4])],
                     [info("y", "float32", [2, 3, 4])], [], {"": opset, "own": 1},
                     [old])  # fmt: skip
        check(load_model(path), step())
