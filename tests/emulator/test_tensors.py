"""A program that computes: two layers of x := relu(x · W) on a 2 × 3 region, then a move."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from meshc.emulator import Faults, check_chip_runs, emulate
from meshc.emulator.cores import run_streams
from meshc.emulator.sram import POISON, Memory
from meshc.errors import InputError, InvariantError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.graph import Op
from meshc.ir.layout import Layout, Split, replicated, split
from meshc.ir.placement import Region
from meshc.ir.program import (
    Broadcast,
    Buffer,
    Compute,
    Move,
    Program,
    Reduce,
    Run,
    Transfer,
    lane_bytes,
)
from meshc.ops.combine import combine

from .handmade import array, chip, recv, send, step, streams

N = 10  # not divisible by 2 or 3
LAYERS = 2
ROWS, COLS = 2, 3


def along(*axes: tuple[str, ...], cyclic: bool = False) -> Layout:
    """One tuple of mesh axes per dimension of N elements."""
    return Layout(tuple(split(N, a, ROWS, COLS, cyclic=cyclic) for a in axes))  # type: ignore[arg-type]


def program(dtype: str = "fp32", cyclic: bool = False) -> Program:
    """x [4, N] lies along "row", W [N, N] along both axes, the product is partial over "row"."""
    splits = {
        "x": Layout((Split(), *along(("row",), cyclic=cyclic).splits)),
        "w": along(("row",), ("col",), cyclic=cyclic),
        "y": Layout((Split(), *along(("col",), cyclic=cyclic).splits)),
        "z": replicated(2),
    }
    buffers: dict[str, Buffer] = {}
    offset = 0

    def add(name: str, layout: str, shape: tuple[int, ...], kind: str, layers: int = 1) -> None:
        nonlocal offset
        size = lane_bytes(shape, dtype, splits[layout], ROWS, COLS, 8)
        stride = size if layers > 1 else 0
        buffers[name] = Buffer(
            name,
            name,
            kind,  # type: ignore[arg-type]
            shape,
            shape,
            dtype,
            splits[layout],
            size,
            offset,
            stride,
        )
        offset += size * layers

    add("x", "x", (4, N), "input")
    add("w", "w", (N, N), "weight", LAYERS)
    add("y", "y", (4, N), "activation")
    add("s0", "y", (4, N), "scratch")
    add("s1", "y", (4, N), "scratch")
    add("z", "z", (4, N), "activation")
    relu = (("relu", (("in", 0),), dtype),)
    ops = {
        "mm": Op("mm", "matmul", ("x", "w"), "y"),
        "act": Op("act", "map", ("y",), "y", (("steps", relu),)),
    }
    body = (
        Compute("mm", "mm", ("x", "w"), "y", (splits["x"], splits["w"])),
        Reduce("sum", "mm", "y", "row", "sum", 1, ("s0", "s1")),
        Broadcast("back", "mm", "y", "row", 1, True),
        Compute("act", "act", ("y",), "y", (splits["y"],)),
        Transfer("turn", "act", "y", "x", False),
    )
    here, there = Region("here", 0, 0, ROWS, COLS), Region("there", 2, 0, ROWS, COLS)
    return Program(
        phase="prefill",
        chip="handmade",
        rows=ROWS,
        cols=COLS,
        regions={"here": here, "there": there},
        buffers=buffers,
        ops=ops,
        bodies={"body": body},
        schedule=(
            Run("body", "body", "here", 0, LAYERS),
            Move(Transfer("out", "", "x", "z", True), "here", "there"),
        ),
        load=(("x", "x", "here", 0), ("w0", "w", "here", 0), ("w1", "w", "here", 1)),
        outputs=(("z", "z", "there", 0), ("y", "y", "here", 0)),
        tensor_shapes={"x": (4, N), "w": (N, N), "y": (4, N), "z": (4, N)},
        tensor_dtypes=dict.fromkeys("xwyz", dtype),
    )


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {"x": (4, N), "w0": (N, N), "w1": (N, N)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def expected() -> np.ndarray:
    t = tensors()
    return np.maximum(np.maximum(t["x"] @ t["w0"], 0) @ t["w1"], 0)


SPEC: ChipSpec = chip(link_bytes_per_cycle=4)


@pytest.mark.parametrize("cyclic", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 1e-5), ("fp16", 2e-2), ("bf16", 0.2)])
def test_cores_compute_what_numpy_does(dtype: str, tolerance: float, cyclic: bool) -> None:
    outputs = emulate(program(dtype, cyclic), SPEC, tensors=tensors()).outputs
    assert outputs is not None
    assert set(outputs) == {"y", "z"}
    for value in outputs.values():
        np.testing.assert_allclose(value.astype(np.float32), expected(), atol=tolerance)


@pytest.mark.parametrize("contention", [True, False])
def test_timing_is_the_same_with_and_without_tensors(contention: bool) -> None:
    with_tensors = emulate(program(), SPEC, tensors=tensors(), contention=contention)
    without = emulate(program(), SPEC, contention=contention)
    assert without.outputs is None
    assert with_tensors.spans == without.spans
    for field in ("finish_cycles", "compute_cycles", "wait_cycles", "sram_bytes", "link_bytes"):
        assert (getattr(with_tensors, field) == getattr(without, field)).all()
    assert with_tensors.macs.sum() == LAYERS * 4 * N * N


def test_spans_follow_the_schedule() -> None:
    spans = emulate(program(), SPEC).spans
    names = [(s.layer, s.name, s.region) for s in spans]
    body = ["mm", "sum", "back", "act", "turn"]
    want = [(layer, name, "here") for layer in range(LAYERS) for name in body]
    assert names == [*want, (-1, "out", "here")]
    for s in spans:
        parts = s.compute_cycles + s.communication_cycles + s.wait_cycles
        assert parts <= s.end_cycle - s.start_cycle


def wrong(value: np.ndarray) -> bool:
    return not np.allclose(value, expected(), atol=1e-3)


def test_a_corrupted_message_is_visible() -> None:
    """All but one: in the first layer nobody reads the sum that core (0,2) is given."""
    count = emulate(program(), SPEC).messages
    for number in set(range(count)) - {3}:
        trace = emulate(program(), SPEC, tensors=tensors(), faults=Faults(corrupt_message=number))
        assert trace.outputs is not None
        assert any(wrong(v) for v in trace.outputs.values()), f"message {number}"


@pytest.mark.parametrize("victim", ["x", "y", "s0", "w"])
def test_buffers_that_lie_on_each_other_are_visible(victim: str) -> None:
    p = program()
    other = {"x": "y", "y": "x", "s0": "y", "w": "x"}[victim]
    moved = replace(p.buffers[victim], offset=p.buffers[other].offset)
    bad = replace(p, buffers=p.buffers | {victim: moved})
    trace = emulate(bad, SPEC, tensors=tensors())
    assert trace.outputs is not None
    assert any(wrong(v) for v in trace.outputs.values())


def test_a_wrong_shard_is_visible() -> None:
    """The rows of W lie on other lanes than the elements of x that they belong to."""
    p = program()
    even = split(N, ("row",), ROWS, COLS, cyclic=True)
    first = p.bodies["body"][0]
    assert isinstance(first, Compute)
    other = Layout((even, first.layouts[1].splits[1]))
    body = (replace(first, layouts=(first.layouts[0], other)), *p.bodies["body"][1:])
    weights = replace(p.buffers["w"], layout=other)
    bad = replace(p, buffers=p.buffers | {"w": weights}, bodies={"body": body})
    trace = emulate(bad, SPEC, tensors=tensors())
    assert trace.outputs is not None
    assert any(wrong(v) for v in trace.outputs.values())


def test_replicas_that_differ_are_no_output() -> None:
    """Without the broadcast only the root's row has the sum of y."""
    p = program()
    body = tuple(i for i in p.bodies["body"] if not isinstance(i, Broadcast))
    trace = emulate(replace(p, bodies={"body": body}), SPEC, tensors=tensors())
    assert trace.outputs is not None
    assert np.isnan(trace.outputs["y"]).any()


def test_missing_and_misshapen_tensors_are_refused() -> None:
    given = tensors()
    sentence = (
        "The program loads 'w1' into buffer 'w', but no tensor of that name is given; give every "
        "input of the model."
    )
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        emulate(program(), SPEC, tensors={k: v for k, v in given.items() if k != "w1"})
    sentence = (
        "The tensor 'x' has shape (3, 10), but the program was compiled for (4, 10); give that "
        "shape or compile again."
    )
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        emulate(program(), SPEC, tensors=given | {"x": given["x"][:3]})


def test_chip_that_cannot_compute_in_a_type_is_refused_before_the_run() -> None:
    weak = chip(core={"vector_ops_per_cycle": {"fp16": 4}})
    sentence = (
        "Op 'act' computes in fp32, but a core of chip 'handmade' computes only in fp16; add "
        "core.vector_ops_per_cycle.fp32 to the chip."
    )
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        check_chip_runs(program(), weak)
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        emulate(program(), weak)


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^The emulator has no engine 'dream'; choose one of lanes, cores\.$"
    ):
        emulate(program(), SPEC, engine="dream")


def test_untouched_memory_is_not_a_number() -> None:
    memory = Memory("(0,0)", 64)
    for dtype in ("fp32", "fp16", "bf16", "fp64"):
        assert np.isnan(memory.view(array(0, 2, dtype)).astype(np.float64)).all()
    assert (memory.view(array(0, 2, "int64")) < -(2**40)).all()
    assert POISON == 0xFFF1


def test_memory_ends_where_the_chip_says() -> None:
    memory = Memory("(1,2)", 64)
    memory.write(array(0, 16, "fp32"), np.zeros(16))
    with pytest.raises(
        InvariantError,
        match=r"^Core \(1,2\) uses bytes \[4, 68\) of its SRAM, which has 64\.$",
    ):
        memory.view(array(4, 16, "fp32"))


def test_small_floats_are_combined_in_float32() -> None:
    a, b = np.float16([60000.0]), np.float16([60000.0])
    assert combine("sum", a, b)[0] == 120000.0
    assert combine("max", np.int8([3]), np.int8([4])).dtype == np.int8


def test_two_receives_into_the_same_bytes_are_refused() -> None:
    memories = {Coord(0, c): Memory(f"(0,{c})", 4096) for c in range(3)}
    cores = streams(
        c00=[step(send(1, [(0, 1)], array(0, 8)))],
        c01=[step(recv(1, (0, 0), array(0, 8)), recv(2, (0, 2), array(4, 8)))],
        c02=[step(send(2, [(0, 1)], array(0, 8)))],
    )
    with pytest.raises(
        InvariantError,
        match=r"^Core \(0,1\) posts messages \(0, 0, 1\) and \(0, 0, 2\) to the same bytes of its "
        r"SRAM\.$",
    ):
        run_streams(cores, chip(), memories=memories)


def test_parts_of_one_array_may_be_received_at_once() -> None:
    memories = {Coord(0, c): Memory(f"(0,{c})", 4096) for c in range(3)}
    for core, memory in memories.items():
        memory.write(array(0, 16), np.full(16, core.col, np.int8))
    odd, even = (array(0, 16, part=range(k, 16, 2)) for k in (1, 0))
    cores = streams(
        c00=[step(send(1, [(0, 1)], odd))],
        c01=[step(recv(1, (0, 0), odd), recv(2, (0, 2), even))],
        c02=[step(send(2, [(0, 1)], odd))],
    )
    run_streams(cores, chip(), memories=memories)
    assert list(memories[Coord(0, 1)].view(array(0, 16))) == [2, 0] * 8
