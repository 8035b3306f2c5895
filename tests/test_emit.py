"""Programs: every message has its partner, nobody waits in a circle, no byte has two owners, the
size is that of one layer, and the emulated result is ONNX Runtime's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partition.replay import Streams, check_memory, check_messages, check_order, expand_all
from partition.small import (
    Data,
    Draft,
    interpret,
    layers,
    program_of,
    random_data,
    random_plan,
    small_chip,
)

from meshc import frontend
from meshc.chips import load_chip
from meshc.emulator import emulate
from meshc.expand import POSITIONS, Expander, expand
from meshc.fusion import fuse
from meshc.ir.chip import ChipSpec
from meshc.ir.codec import dumps, loads
from meshc.ir.compiled import Compiled, CompileOptions
from meshc.ir.dtypes import NUMPY
from meshc.ir.graph import CachePair, Graph
from meshc.ir.layout import replicated
from meshc.ir.plan import Plan
from meshc.ir.program import Broadcast, Compute, Move, Program, Reduce, Run, Transfer
from meshc.ir.stream import Copy, Recv, Send
from meshc.partition.auto import stages_of
from meshc.partition.cost import CostModel
from meshc.partition.select import build, choose
from meshc.pipeline import compile as compile_model
from meshc.pipeline import longest, step_program
from meshc.run import Tensors, random_inputs, verify_outputs, verify_phase

EXAMPLE = Path(__file__).parents[1] / "examples" / "llama-optimum-with_past.onnx"
ROOM = 1 << 20


@lru_cache
def example() -> frontend.Model:
    return frontend.load_model(EXAMPLE)


@lru_cache
def bound(
    phase: str, batch: int, prompt: int, context: int, room: int, fused: bool
) -> tuple[frontend.Bound, Graph, Graph]:
    """The example model bound for a step: with its data, and its graphs now and at full length."""
    wanted = frontend.workloads(
        example(), phase=phase, batch=batch, prompt=None if phase == "decode" else prompt,
        context=context, max_context=room,
    )  # fmt: skip
    w = wanted[phase][1]  # type: ignore[index]
    now = frontend.bind(example(), w)
    far = now if longest(w) == w else frontend.bind(example(), longest(w))
    if not fused:
        return now, now.graph, far.graph
    return now, fuse(now.graph), fuse(far.graph)


@dataclass(frozen=True)
class Step:
    """A step of the example on a grid. seed: of a plan drawn by lot; None: the greedy plan."""

    phase: str
    batch: int
    prompt: int
    context: int
    room: int
    rows: int
    cols: int
    stages: int = 1
    fused: bool = True
    multicast: bool = True
    seed: int | None = 0


STEPS = [
    Step("decode", 1, 1, 0, 4, 2, 2),
    Step("decode", 1, 1, 5, 6, 2, 3, stages=2),
    Step("decode", 2, 1, 7, 11, 4, 4, fused=False),
    Step("decode", 3, 1, 4, 9, 2, 3, multicast=False, seed=None),
    Step("prefill", 1, 1, 0, 1, 2, 2, stages=2, multicast=False),
    Step("prefill", 1, 6, 0, 8, 4, 4),
    Step("prefill", 2, 5, 3, 8, 2, 3, fused=False, seed=None),
    Step("prefill", 1, 7, 2, 12, 3, 2, stages=2, seed=1),
    Step("prefill", 1, 3, 0, 3, 1, 5, stages=2, seed=None),
]


@lru_cache
def program(step: Step) -> tuple[Program, Streams]:
    _, graph, full = bound(step.phase, step.batch, step.prompt, step.context, step.room, step.fused)
    chip = small_chip(8, 8, multicast=step.multicast)
    space = build(graph, full, CostModel(chip), step.rows, step.cols, step.stages, step.room, ROOM)
    assert space is not None
    if step.seed is None:
        found = choose(space, solver="greedy", gap=1, time_limit=5, seed=0)[0]
        assert found is not None
        stages = stages_of(graph, step.stages)
        plan = Plan(step.phase, "auto", step.rows, step.cols, stages, found.ops, found.carried)
    else:
        plan = random_plan(np.random.default_rng(step.seed), space, graph, step.stages)
    done, memory = program_of(graph, full, plan, chip, step.room)
    assert memory.needed <= ROOM
    return done, expand_all(done)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_every_send_has_its_receives(step: Step) -> None:
    assert check_messages(program(step)[1]) > 0


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_nobody_waits_in_a_circle(step: Step) -> None:
    check_order(program(step)[1])


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_no_byte_has_two_owners(step: Step) -> None:
    done, streams = program(step)
    check_memory(done, streams, small_chip(8, 8))


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_emulated_tensors_are_those_of_onnx_runtime(step: Step) -> None:
    done, _ = program(step)
    data, graph, _ = bound(step.phase, step.batch, step.prompt, step.context, step.room, step.fused)
    feeds = random_inputs(data, 3)
    trace = emulate(done, small_chip(8, 8, multicast=step.multicast),
                    tensors=Tensors(feeds, data.data))  # fmt: skip
    expected, oracle = frontend.run_oracle(example(), {**data.folded, **feeds})
    assert trace.outputs is not None
    report = verify_outputs(graph, trace.outputs, expected, oracle)
    assert report["passed"], report["outputs"]
    assert {o["name"] for o in report["outputs"]} == set(expected)


@pytest.mark.parametrize(
    "noc",
    [
        {"topology": "torus"},
        {"topology": "exchange", "sync_cycles": 7},
        {"networks": 2, "message_cycles": 9, "virtual_channels": 2},
        {"inject_bytes_per_cycle": 3, "eject_bytes_per_cycle": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("overlap", [False, True])
def test_the_network_changes_no_values(noc: dict[str, Any], overlap: bool) -> None:
    """Cores that wait until a message has left, other topologies: no deadlock, equal outputs."""
    done, _ = program(STEPS[1])
    data = bound("decode", 1, 1, 5, 6, True)[0]
    tensors = Tensors(random_inputs(data, 3), data.data)
    plain = small_chip(8, 8)
    chip = replace(plain, core=replace(plain.core, overlap=overlap), noc=replace(plain.noc, **noc))
    a, b = emulate(done, plain, tensors=tensors), emulate(done, chip, tensors=tensors)
    assert a.outputs is not None and b.outputs is not None
    for name, value in a.outputs.items():
        np.testing.assert_array_equal(value, b.outputs[name])


def test_text_of_a_program() -> None:
    """Written and read back it is the same program, and the same plan gives the same bytes."""
    done, _ = program(STEPS[1])
    text = dumps(done)
    assert loads(text) == done and dumps(loads(text)) == text
    program.cache_clear()
    bound.cache_clear()
    assert dumps(program(STEPS[1])[0]) == text


# --- by lot: the miniature decoder on any grid, with any plan ---


@pytest.mark.parametrize("seed", range(18))
def test_any_plan_of_the_miniature_decoder_is_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, cols = [(2, 2), (2, 3), (1, 3), (3, 1), (4, 4), (1, 1)][seed % 6]
    repeat = int(rng.integers(1, 5))
    stages = min(repeat, int(rng.integers(1, 4)), 48 // (rows * cols))
    if len(stages_of(layers(repeat), stages)) != stages:
        stages = 1
    new = int(rng.integers(1, 4))
    tokens = new + int(rng.integers(0, 5))
    room = tokens + int(rng.integers(0, 4))
    graph, full = layers(repeat, 8, new, tokens), layers(repeat, 8, new, room)
    data = random_data(graph, seed)
    expected = interpret(graph, data)
    if rng.random() < 0.5:
        graph, full = fuse(graph), fuse(full)
    chip = small_chip(8, 12, multicast=bool(rng.integers(2)))
    space = build(graph, full, CostModel(chip), rows, cols, stages, room, ROOM)
    assert space is not None
    plan = random_plan(rng, space, graph, stages)
    check_program(program_of(graph, full, plan, chip, room)[0], chip, data, expected)


EXPORTED = Path(__file__).parents[2] / "shared" / "onnx"
MODELS = (
    "bert-optimum", "gemma2-optimum-with_past", "gemma3-hf-op20-prefill", "gpt2-mobius-std",
    "llama-genai-fp16-cuda", "llama-hf-staticcache-decode", "llama-mobius-bf16-std",
    "mistral-genai-fp32-cpu", "opt-optimum-with_past", "qwen3-optimum-with_past",
    "t5-optimum-encoder_model",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELS)
def test_any_plan_of_exported_models_is_right(name: str, seed: int) -> None:
    path = EXPORTED / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"needs ../shared/onnx/{name}.onnx beside the repository")
    model = frontend.load_model(path)
    rng = np.random.default_rng(seed)
    phase = "decode" if "decode" in model.phases and seed % 2 else model.phases[0]
    context = int(rng.integers(0, 5)) if model.has_past else 0
    prompt = int(rng.integers(1, 5)) if phase == "prefill" else None
    wanted = frontend.workloads(
        model, phase=phase, batch=1 + seed % 2, prompt=prompt, context=context,
        max_context=context + (prompt or 1) + (2 if model.has_past else 0),
    )  # fmt: skip
    w = wanted[phase][1]  # type: ignore[index]
    now = frontend.bind(model, w)
    far = now if longest(w) == w else frontend.bind(model, longest(w))
    graph, full = (now.graph, far.graph) if seed == 2 else (fuse(now.graph), fuse(far.graph))
    chip = small_chip(8, 8, 64 << 20, multicast=bool(rng.integers(2)))
    space = build(graph, full, CostModel(chip), 2, 2 + seed % 2, 1, w.max_context, 64 << 20)
    assert space is not None
    done, _ = program_of(graph, full, random_plan(rng, space, graph), chip, w.max_context)
    check_step(done, now, model, chip)


def check_program(done: Program, chip: ChipSpec, data: Data, expected: Data) -> None:
    streams = expand_all(done)
    check_messages(streams)
    check_order(streams)
    check_memory(done, streams, chip)
    trace = emulate(done, chip, tensors=data)
    assert trace.outputs is not None and set(trace.outputs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(trace.outputs[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


def hidden_states(repeat: int, wanted: tuple[int, ...], inner: bool = False) -> Graph:
    """Layers whose hidden states (or tensors inside) the model puts out."""
    d = Draft()
    d.begin()
    d.input("x", 3, 4)
    d.map("tanh", ("x",), "h", 3, 4)
    d.end("prologue")
    d.begin(repeat)
    d.weight("w", 4, 4)
    d.op("matmul", ("h", "w"), "m", 3, 4)
    d.map("tanh", ("m",), "t", 3, 4)
    d.map("add", ("t", "h"), "n", 3, 4)
    d.end("body", (("h", "n"),))
    d.begin()
    d.map("exp", ("n",), "y", 3, 4)
    d.end("epilogue")
    d.output("y")
    tensor = "t" if inner else "n"
    names = tuple(f"{tensor}.{i}" for i in range(repeat))
    d.tensors[tensor] = replace(d.tensors[tensor], kind="OUTPUT", instances=names)
    d.outputs += [(names[i], tensor, i) for i in wanted]
    return d.graph()


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("wanted", [(0, 1, 2, 3), (1,), (0, 3), (3,)])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_outputs_of_every_layer_are_kept(wanted: tuple[int, ...], stages: int, inner: bool) -> None:
    """What a later layer makes must not take the place of an earlier one's output."""
    graph = hidden_states(4, wanted, inner)
    chip = small_chip(8, 8)
    space = build(graph, graph, CostModel(chip), 2, 2, stages, 0, ROOM)
    assert space is not None
    data = random_data(graph)
    plan = random_plan(np.random.default_rng(stages), space, graph, stages)
    done, _ = program_of(graph, graph, plan, chip, 0)
    check_program(done, chip, data, interpret(graph, data))
    kept = [b for b in done.buffers.values() if b.kind == "output"]
    assert len(kept) == (wanted != (3,)), "the last layer's output stays where it was made"


def test_two_carried_tensors_that_change_places() -> None:
    """Each layer hands its two results on crosswise."""
    d = Draft()
    d.begin()
    d.input("x", 4, 4)
    d.map("tanh", ("x",), "a", 4, 4)
    d.map("exp", ("x",), "b", 4, 4)
    d.end("prologue")
    d.begin(3)
    d.weight("w", 4, 4)
    d.op("matmul", ("a", "w"), "c", 4, 4)
    d.map("add", ("b", "c"), "e", 4, 4)
    d.end("body", (("a", "e"), ("b", "c")))
    d.begin()
    d.map("mul", ("e", "c"), "y", 4, 4)
    d.end("epilogue")
    d.output("y")
    graph = d.graph()
    data = random_data(graph)
    chip = small_chip(8, 8)
    for stages in (1, 3):
        space = build(graph, graph, CostModel(chip), 2, 2, stages, 0, ROOM)
        assert space is not None
        for seed in range(6):
            plan = random_plan(np.random.default_rng(seed), space, graph, stages)
            check_program(
                program_of(graph, graph, plan, chip, 0)[0], chip, data, interpret(graph, data)
            )


def test_what_every_layer_reads_from_before_lasts() -> None:
    """A tensor made once, in front of the layers, must outlive the activations of each, and so
    must one that only the end reads."""
    d = Draft()
    d.begin()
    d.input("x", 4, 4)
    d.map("sin", ("x",), "angle", 4, 4)
    d.map("cos", ("x",), "late", 4, 4)
    d.map("tanh", ("x",), "h", 4, 4)
    d.end("prologue")
    d.begin(3)
    d.weight("w", 4, 4)
    d.map("mul", ("h", "angle"), "t", 4, 4)
    d.op("matmul", ("t", "w"), "m", 4, 4)
    d.op("matmul", ("m", "w"), "p", 4, 4)
    d.map("tanh", ("p",), "n", 4, 4)
    d.end("body", (("h", "n"),))
    d.begin()
    d.map("mul", ("n", "late"), "y", 4, 4)
    d.end("epilogue")
    d.output("y")
    graph = d.graph()
    data = random_data(graph)
    expected = interpret(graph, data)
    chip = small_chip(8, 8)
    for stages in (1, 3):
        space = build(graph, graph, CostModel(chip), 2, 2, stages, 0, ROOM)
        assert space is not None
        for seed in range(8):
            plan = random_plan(np.random.default_rng(seed), space, graph, stages)
            check_program(program_of(graph, graph, plan, chip, 0)[0], chip, data, expected)


@pytest.mark.parametrize("stages", [1, 3])
def test_an_input_that_the_layers_carry(stages: int) -> None:
    """It lies in its buffer from the start, while other ops run in front of the layers."""
    d = Draft()
    d.begin()
    d.input("x", 4, 4)
    d.input("z", 4, 4)
    d.map("sin", ("z",), "s", 4, 4)
    d.map("exp", ("s",), "angle", 4, 4)
    d.end("prologue")
    d.begin(3)
    d.weight("w", 4, 4)
    d.map("mul", ("x", "angle"), "t", 4, 4)
    d.op("matmul", ("t", "w"), "m", 4, 4)
    d.map("tanh", ("m",), "n", 4, 4)
    d.end("body", (("x", "n"),))
    d.output("n", turn=2)
    graph = d.graph()
    data = random_data(graph)
    expected = interpret(graph, data)
    chip = small_chip(8, 8)
    space = build(graph, graph, CostModel(chip), 2, 2, stages, 0, ROOM)
    assert space is not None
    for seed in range(8):
        plan = random_plan(np.random.default_rng(seed), space, graph, stages)
        check_program(program_of(graph, graph, plan, chip, 0)[0], chip, data, expected)


def static_cache(at: int, room: int = 6) -> Graph:
    """A layer whose cache is a buffer of `room` tokens into which the step writes token `at`."""
    d = Draft()
    d.begin()
    d.input("x", 1, 2, 1, 4)
    d.map("tanh", ("x",), "h", 1, 2, 1, 4)
    d.end("prologue")
    d.begin(2)
    d.given("past", "CACHE", (1, 2, room, 4), several=True)
    d.op("slice", ("past",), "before", 1, 2, at, 4, axis=2, start=0, step=1)
    d.op("slice", ("past",), "behind", 1, 2, room - at - 1, 4, axis=2, start=at + 1, step=1)
    d.op("concat", ("before", "h", "behind"), "present", 1, 2, room, 4, axis=2)
    d.caches.append(CachePair("past", "present", 2))
    d.op("matmul", ("h", "present"), "s", 1, 2, 1, room, transpose_b=True)
    d.op("matmul", ("s", "present"), "m", 1, 2, 1, 4)
    d.map("tanh", ("m",), "n", 1, 2, 1, 4)
    d.end("body", (("h", "n"),))
    d.begin()
    d.map("exp", ("n",), "y", 1, 2, 1, 4)
    d.end("epilogue")
    d.output("y")
    names = ("present.0", "present.1")
    d.tensors["present"] = replace(d.tensors["present"], kind="OUTPUT", instances=names)
    d.outputs += [(name, "present", i) for i, name in enumerate(names)]
    return d.graph()


@pytest.mark.parametrize("at", [0, 2, 5])
@pytest.mark.parametrize("fused", [False, True])
def test_static_caches_at_any_position(at: int, fused: bool) -> None:
    """What lies behind the written token is longest where the cached tokens are fewest."""
    graph, full = static_cache(at), static_cache(5)
    data = random_data(graph, at)
    expected = interpret(graph, data)
    if fused:
        graph, full = fuse(graph), fuse(full)
    chip = small_chip(8, 8)
    space = build(graph, full, CostModel(chip), 2, 2, 1, 6, ROOM)
    assert space is not None
    for seed in range(3):
        plan = random_plan(np.random.default_rng(seed), space, graph)
        check_program(program_of(graph, full, plan, chip, 6)[0], chip, data, expected)


# --- sizes ---


def size(done: Program) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for body in done.bodies.values():
        for i in body:
            kinds[type(i).__name__] = kinds.get(type(i).__name__, 0) + 1
    return {**kinds, "buffers": len(done.buffers), "schedule": len(done.schedule)}


def plain_plan(graph: Graph, rows: int, cols: int, stages: int = 1) -> Program:
    """Every op divided by the same rule on every grid: the first candidate that divides most."""
    chip = small_chip(8, 8)
    space = build(graph, graph, CostModel(chip), rows, cols, stages, 5, ROOM)
    assert space is not None
    chosen = {
        name: next(
            (c.plan for c in sorted(options, key=lambda c: str(c.plan.assignment))
             if c.plan.assignment == (None, None)),
            options[0].plan,
        )
        for name, options in zip(space.names, space.options, strict=True)
    }  # fmt: skip
    carried = {n: found[0] for n, found in space.carried}
    plan = Plan("decode", "test", rows, cols, stages_of(graph, stages), chosen, carried)
    return program_of(graph, graph, plan, chip, 5)[0]


@pytest.mark.parametrize("seed", range(4))
def test_size_does_not_depend_on_the_number_of_layers(seed: int) -> None:
    """The same plan for 2 and for 40 layers: as many instructions and buffers."""
    sizes = []
    for repeat in (2, 40):
        graph = layers(repeat)
        chip = small_chip(8, 8)
        space = build(graph, graph, CostModel(chip), 2, 3, 1, 5, ROOM)
        assert space is not None
        plan = random_plan(np.random.default_rng(seed), space, graph)
        done, _ = program_of(graph, graph, plan, chip, 5)
        sizes.append(size(done))
    assert sizes[0] == sizes[1]


def test_size_does_not_depend_on_the_number_of_cores() -> None:
    """The same divisions on 4 and on 16 cores."""
    graph = layers(3, width=16)
    sizes = []
    for rows, cols in ((2, 2), (4, 4)):
        chip = small_chip(8, 8)
        space = build(graph, graph, CostModel(chip), rows, cols, 1, 5, ROOM)
        assert space is not None
        chosen = {}
        for name, options in zip(space.names, space.options, strict=True):
            by = {c.plan.assignment: c.plan for c in options}
            chosen[name] = by.get((None, None)) or min(by.items(), key=lambda x: str(x[0]))[1]
        carried = {n: found[0] for n, found in space.carried}
        plan = Plan("decode", "test", rows, cols, stages_of(graph, 1), chosen, carried)
        sizes.append(size(program_of(graph, graph, plan, chip, 5)[0]))
    for counts in sizes:
        counts.pop("Transfer", None)
    extra = {k: sizes[1].get(k, 0) - n for k, n in sizes[0].items()}
    assert extra["Compute"] == extra["schedule"] == 0
    big = dumps(program(STEPS[0])[0])
    assert len(big) < 200_000


def test_stages_add_only_moves() -> None:
    one, two = plain_plan(layers(4), 2, 2), plain_plan(layers(4), 2, 2, 2)
    assert {k: tuple(v) for k, v in one.bodies.items()} == {
        k: tuple(v) for k, v in two.bodies.items()
    }
    moves = [e for e in two.schedule if isinstance(e, Move)]
    runs = [e for e in two.schedule if isinstance(e, Run)]
    assert len(moves) == 1 and len(runs) == 4
    assert moves[0].transfer.source == moves[0].transfer.destination == "carried h"


# --- what the program says ---


def test_operands_are_read_in_place_where_a_lane_has_them() -> None:
    """A Transfer stands only where some lane lacks something."""
    done, _ = program(STEPS[6])
    region = next(iter(done.regions.values()))
    from meshc.ir.shards import covers

    for body in done.bodies.values():
        for i in body:
            if isinstance(i, Transfer) and i.name.startswith("reshard"):
                a, b = done.buffers[i.source], done.buffers[i.destination]
                assert not covers(a.layout, b.layout, b.capacity, region.rows, region.cols)
            if isinstance(i, Compute):
                op = done.ops[i.op]
                for buffer, layout, tensor in zip(i.inputs, i.layouts, op.inputs, strict=True):
                    held = done.buffers[buffer].layout
                    shape = done.tensor_shapes[tensor]
                    assert covers(held, layout, shape, region.rows, region.cols)


def test_a_reduction_is_followed_by_its_broadcast() -> None:
    for step in STEPS:
        for body in program(step)[0].bodies.values():
            for i, after in pairwise(body):
                if isinstance(i, Reduce):
                    assert isinstance(after, Broadcast)
                    assert (after.buffer, after.axis, after.groups) == (i.buffer, i.axis, i.groups)
                    assert after.multicast == step.multicast


def test_everything_read_first_is_loaded() -> None:
    """The load list names every weight, cache, constant and input, each once per region."""
    done, _ = program(STEPS[1])
    assert len(set(done.load)) == len(done.load)
    held = {n for n, b in done.buffers.items() if b.kind in ("weight", "constant", "input", "kv")}
    assert held <= {buffer for _, buffer, _, _ in done.load}


def test_streams_of_one_core_and_of_all_are_the_same() -> None:
    done, streams = program(STEPS[1])
    core = sorted(streams)[3]
    assert list(expand(done, core)) == streams[core]
    assert list(Expander(done).stream(core)) == streams[core]
    for steps in streams.values():
        entries = [s.position // POSITIONS for s in steps]
        assert entries == sorted(entries)


def test_what_goes_nowhere_is_no_message() -> None:
    """Copies stay on the core, and a lane that has nothing to do has no step for it."""
    for step in STEPS[:3]:
        _, streams = program(step)
        for core, steps in streams.items():
            for s in steps:
                assert s.actions
                for a in s.actions:
                    if isinstance(a, Copy | Send | Recv):
                        view = a.destination if isinstance(a, Copy) else a.view
                        assert view.elements
                    if isinstance(a, Recv):
                        assert a.source != core


# --- the checks notice what they are for ---


def test_replay_notices_two_buffers_at_one_address() -> None:
    done, _ = program(STEPS[0])
    arena = [b for b in done.buffers.values() if b.kind == "activation"]
    # A carried buffer is reserved throughout the layer, whether it is read late or not.
    pairs = [
        (a, b) for a in arena for b in arena
        if a.live[0] < b.live[0] < a.live[1] and not a.name.startswith("carried")
    ][:12]  # fmt: skip
    noticed = 0
    for a, b in pairs:
        moved = replace(done, buffers={**done.buffers, b.name: replace(b, offset=a.offset)})
        try:
            check_memory(moved, expand_all(moved), small_chip(8, 8))
        except AssertionError as error:
            noticed += "wrote last" in str(error)
    assert noticed >= len(pairs) // 2 > 0


def test_replay_notices_what_was_never_loaded() -> None:
    done, _ = program(STEPS[0])
    weight = next(b for b in done.buffers.values() if b.kind == "weight")
    less = replace(done, load=tuple(x for x in done.load if x[1] != weight.name))
    with pytest.raises(AssertionError, match="where nobody wrote last"):
        check_memory(less, expand_all(less), small_chip(8, 8))


def test_messages_and_order_notice() -> None:
    _, streams = program(STEPS[0])
    core = next(c for c, steps in streams.items()
                if any(isinstance(a, Recv) for s in steps for a in s.actions))  # fmt: skip
    deaf = {c: list(steps) for c, steps in streams.items()}
    deaf[core] = [
        replace(s, actions=tuple(a for a in s.actions if not isinstance(a, Recv)))
        for s in deaf[core]
    ]
    with pytest.raises(AssertionError):
        check_messages(deaf)
    late = {c: list(steps) for c, steps in streams.items()}
    late[core] = [s for s in streams[core] if not any(isinstance(a, Recv) for a in s.actions)] + [
        s for s in streams[core] if any(isinstance(a, Recv) for a in s.actions)
    ]
    with pytest.raises(AssertionError, match="cores wait in a circle"):
        check_order(late)


# --- through the pipeline ---


@lru_cache
def compiled() -> Compiled:
    done = compile_model(
        EXAMPLE,
        CompileOptions(
            "test4x4", phase="both", prompt=5, max_context=9, grid=(2, 3), solver="greedy"
        ),
    )
    assert done is not None
    return done


@pytest.mark.parametrize(("prompt", "context"), [(1, 0), (2, 0), (3, 4), (4, 1), (5, 0), (5, 4)])
def test_shorter_prompts_of_a_compiled_prefill(prompt: int, context: int) -> None:
    done = compiled()
    step, data = step_program(done, "prefill", example(), context=context, prompt=prompt)
    check_step(step, data, example(), load_chip("test4x4"))


@pytest.mark.parametrize("context", [0, 1, 4, 5, 8])
def test_other_contexts_of_a_compiled_decode(context: int) -> None:
    done = compiled()
    step, data = step_program(done, "decode", example(), context=context)
    check_step(step, data, example(), load_chip("test4x4"))


def check_step(step: Program, data: frontend.Bound, model: frontend.Model, chip: ChipSpec) -> None:
    streams = expand_all(step)
    check_messages(streams)
    check_order(streams)
    check_memory(step, streams, chip)
    feeds = random_inputs(data, 1)
    trace = emulate(step, chip, tensors=Tensors(feeds, data.data))
    expected, oracle = frontend.run_oracle(model, {**data.folded, **feeds})
    assert trace.outputs is not None
    report = verify_outputs(data.graph, trace.outputs, expected, oracle)
    assert report["passed"], report["outputs"]


def test_verify_of_the_pipeline_passes() -> None:
    for phase in ("prefill", "decode"):
        result = verify_phase(compiled(), phase)
        assert result.verify is not None and result.verify["passed"]
        assert result.trace.cycles >= result.free.cycles > 0


def test_sixteen_bit_programs_round_where_they_store() -> None:
    """A sum of eight lanes in fp16 is rounded at every lane, but stays close."""
    d = Draft()
    d.begin()
    d.given("x", "INPUT", (4, 32), "fp16")
    d.given("w", "WEIGHT", (32, 4), "fp16")
    d.op("matmul", ("x", "w"), "y", 4, 4, dtype="fp16")
    d.end("model")
    d.output("y")
    graph = d.graph()
    chip = small_chip(4, 4)
    space = build(graph, graph, CostModel(chip), 2, 4, 1, 0, ROOM)
    assert space is not None
    data = random_data(graph)
    expected = interpret(graph, data)["y"].astype(np.float32)
    for c in space.options[0]:
        plan = Plan("decode", "test", 2, 4, stages_of(graph, 1), {"make y": c.plan}, {})
        trace = emulate(program_of(graph, graph, plan, chip, 0)[0], chip, tensors=data)
        assert trace.outputs is not None
        got = trace.outputs["y"]
        assert got.dtype == NUMPY["fp16"]
        np.testing.assert_allclose(got.astype(np.float32), expected, atol=4e-2)
        if not c.plan.reduce:
            np.testing.assert_array_equal(got.astype(np.float32), expected)


def test_replicated_layout_needs_no_message() -> None:
    """One lane: a program without communication."""
    done = plain_plan(layers(2), 1, 1)
    assert all(isinstance(i, Compute | Transfer) for body in done.bodies.values() for i in body)
    assert check_messages(expand_all(done)) == 0
    assert all(b.layout == replicated(len(b.shape)) for b in done.buffers.values())
