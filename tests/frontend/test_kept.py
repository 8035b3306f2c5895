"""Caches that keep the last entries only, or put out the new ones alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from meshc import frontend
from meshc.errors import InputError
from meshc.generation import generate
from meshc.ir.compiled import Compiled, CompileOptions
from meshc.pipeline import compile as compile_model
from meshc.run import decode_steps, verify_phase

HEADS, WIDTH, VOCABULARY, WINDOW = 2, 8, 40, 6
MODEL = HEADS * WIDTH
HEAD_SHAPE, PROMPT = [0, 0, HEADS, WIDTH], [3, 1, 7]
# what the present outputs are, made of `joined` (past and new) and `new`
PRESENTS = {
    "sliding": [("Slice", ["joined", "last6", "end", "axis"], "present")],
    "sinks": [
        ("Slice", ["joined", "start", "two", "axis"], "sinks"),
        ("Slice", ["joined", "last4", "end", "axis"], "latest"),
        ("Concat", ["sinks", "latest"], "present"),
    ],
    "fresh": [("Identity", ["new"], "present")],
    "one of two": [("Slice", ["joined", "last6", "end", "axis"], "present")],
}  # fmt: skip


def model(path: Path, kind: str, positions: bool = False) -> Path:
    """A decoder of one layer without a mask, its caches of `kind`."""
    rng = np.random.default_rng(0)
    node = helper.make_node

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.6).astype("f"), name)

    def number(name: str, *values: int) -> Any:
        return numpy_helper.from_array(np.array(values), name)

    nodes = [node("Gather", ["table", "input_ids"], ["h"])]
    for x in "qkv":
        nodes += [
            node("MatMul", ["h", f"w{x}"], [f"{x}.flat"]),
            node("Reshape", [f"{x}.flat", "heads"], [f"{x}.heads"]),
            node("Transpose", [f"{x}.heads"], [f"{x}.turned"], perm=[0, 2, 1, 3]),
            node("Tanh" if kind == "fresh" else "Identity", [f"{x}.turned"], [f"{x}.new"]),
        ]
    for x, name in (("k", "key"), ("v", "value")):
        inner = {"joined": f"{x}.joined", "new": f"{x}.new", "present": f"present.{name}"}
        inner |= {n: f"{x}.{n}" for n in ("sinks", "latest")}
        nodes.append(node("Concat", [f"past.{name}", f"{x}.new"], [f"{x}.joined"], axis=2))
        steps = PRESENTS[kind]
        if kind == "one of two" and x == "v":
            steps = [("Identity", ["joined"], "present")]
        for op, given, made in steps:
            attrs = {"axis": 2} if op == "Concat" else {}
            names = [inner.get(n, n) for n in given]
            nodes.append(node(op, names, [inner[made]], **attrs))
    nodes += [
        node("Transpose", ["k.joined"], ["k.last"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q.new", "k.last"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v.joined"], ["mixed"]),
        node("Transpose", ["mixed"], ["mixed.turned"], perm=[0, 2, 1, 3]),
        node("Reshape", ["mixed.turned", "flat"], ["mixed.flat"]),
        node("Add", ["mixed.flat", "h"], ["sum"]),
        node("MatMul", ["sum", "head"], ["logits"]),
    ]
    given = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])]
    if positions:
        nodes[0].output[0] = "h.plain"
        nodes[1:1] = [
            node("Gather", ["table", "position_ids"], ["h.position"]),
            node("Add", ["h.plain", "h.position"], ["h"]),
        ]
        given.append(
            helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "seq"])
        )

    def cache(name: str, length: str) -> Any:
        shape = ["batch", HEADS, length, WIDTH]
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    results = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", VOCABULARY])
    ]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [*given, cache("past.key", "past"), cache("past.value", "past")],
        [*results, cache("present.key", "kept"), cache("present.value", "kept")],
        [
            weight("table", VOCABULARY, MODEL), weight("head", MODEL, VOCABULARY),
            *(weight(f"w{x}", MODEL, MODEL) for x in "qkv"),
            number("heads", *HEAD_SHAPE), number("flat", 0, 0, MODEL),
            number("last6", -WINDOW), number("last4", 2 - WINDOW), number("two", 2),
            number("start", 0), number("end", 2**63 - 1), number("axis", 2),
        ],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def compiled(path: Path, **options: Any) -> Compiled:
    done = compile_model(path, CompileOptions("test4x4", solver="greedy", **options))
    assert done is not None
    return done


def loop(path: Path, count: int, *, append: bool = False) -> list[int]:
    """Greedy decoding with ONNX Runtime, every present handed to its past, or appended to it."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    caches = [np.zeros((1, HEADS, 0, WIDTH), np.float32)] * 2
    found: list[int] = []
    fed = PROMPT
    for _ in range(count):
        feeds = {"input_ids": np.array([fed]), "past.key": caches[0], "past.value": caches[1]}
        logits, *presents = session.run(None, feeds)
        if append:
            presents = [np.concatenate(p, axis=2) for p in zip(caches, presents, strict=True)]
        caches = presents
        found.append(int(logits[0, -1].argmax()))
        fed = found[-1:]
    return found


@pytest.mark.parametrize("kind", ["sliding", "sinks", "fresh"])
def test_generates_what_onnx_runtime_does(tmp_path: Path, kind: str) -> None:
    path = model(tmp_path / "m.onnx", kind)
    done = compiled(path, prompt=5)
    for phase in done.phases:
        found = verify_phase(done, phase).verify
        assert found is not None and found["passed"], found
    tokens = [g.token for g in generate(done, PROMPT, 12)]
    assert tokens == loop(path, 12, append=kind == "fresh")


def test_a_full_window_stays_full(tmp_path: Path) -> None:
    """However many steps: no more SRAM, no more entries."""
    path = model(tmp_path / "m.onnx", "sliding")
    done = compiled(path, prompt=9)  # longer than the window
    workload = done.phases["decode"].workload
    assert (workload.context, workload.reserved) == (WINDOW, WINDOW)
    assert [context for context, _ in decode_steps(done, 3)] == [WINDOW] * 3
    assert {b.capacity[2] for b in done.phases["decode"].program.buffers.values()
            if b.kind == "kv"} == {WINDOW}  # fmt: skip
    short = compiled(path, phase="decode", context=4, max_context=20)
    assert [context for context, _ in decode_steps(short, 4)] == [4, 5, 6, 6]


def test_a_past_longer_than_the_window_is_refused(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", "sliding")
    with pytest.raises(InputError) as error:
        compiled(path, phase="decode", context=10)
    assert str(error.value) == (
        "--context 10 is more than the 6 entries that cache output 'present.key' keeps, however "
        "many tokens came before; give --context 6."
    )


def test_caches_that_keep_different_numbers(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", "one of two")
    with pytest.raises(InputError) as error:
        compiled(path, prompt=5, max_context=20)
    assert str(error.value) == (
        "After 20 tokens cache output 'present.key' keeps 6 entries and 'present.value' 20; meshc "
        "carries caches that keep equally many, so give a --max-context of at most 6 tokens."
    )
    tokens = [g.token for g in generate(compiled(path, prompt=5, max_context=6), PROMPT, 4)]
    assert tokens == loop(path, 4)


def test_positions_beyond_a_window_are_not_guessed(tmp_path: Path) -> None:
    done = compiled(model(tmp_path / "m.onnx", "sliding", positions=True), prompt=5)
    assert len(generate(done, PROMPT, 4)) == 4
    with pytest.raises(InputError, match="caches keep 6 entries of the 7 tokens that 3 prompt"):
        generate(done, PROMPT, 5)


def test_told_from_the_sizes(tmp_path: Path) -> None:
    found = {}
    for kind in PRESENTS:
        m = frontend.load_model(model(tmp_path / f"{kind}.onnx", kind))
        _, workload = frontend.workloads(m, phase="decode", context=9)["decode"]
        kept = frontend.bind(m, workload).kept
        found[kind] = [(k.entries, k.fresh) for k in kept]
    assert found == {
        "sliding": [(6, False)] * 2,
        "sinks": [(6, False)] * 2,
        "fresh": [(1, True)] * 2,
        "one of two": [(6, False), (10, False)],
    }
