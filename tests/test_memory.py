"""SRAM layout: buffers that live at the same time never share a byte."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition.replay import check_memory, expand_all
from partition.small import (
    Draft,
    interpret,
    layers,
    program_of,
    random_data,
    random_plan,
    side_by_side,
    small_chip,
)

from meshc.emit import emit
from meshc.emulator import emulate
from meshc.errors import InvariantError
from meshc.fusion import fuse
from meshc.ir.compiled import MemoryMap
from meshc.ir.graph import Graph
from meshc.ir.layout import replicated
from meshc.ir.plan import Plan
from meshc.ir.program import Buffer, Program, Run
from meshc.memory import (
    ALIGN,
    assign,
    assign_like,
    layers_per_region,
    pack,
    peak_by_region,
    region_buffers,
)
from meshc.partition import Options, PhaseGraphs
from meshc.partition.auto import plan_auto
from meshc.partition.candidates import resize, resize_layout
from meshc.partition.cost import CostModel
from meshc.partition.select import build

CHIP = small_chip(4, 8)


def buffer(name: str, size: int, first: int, last: int) -> Buffer:
    return Buffer(
        name, name, "activation", (size,), (size,), "int8", replicated(1), size, live=(first, last)
    )


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    found = []
    for i in range(draw(st.integers(0, 14))):
        first = draw(st.integers(0, 12))
        last = first + draw(st.integers(0, 6))
        found.append(buffer(f"b{i}", draw(st.sampled_from([0, 1, 8, 12, 100, 64, 7])), first, last))
    return found


def rounded(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def most_alive(found: list[Buffer]) -> int:
    """Bytes of the fullest moment: no layout is lower."""
    return max(
        (sum(rounded(b.bytes) for b in found if b.live[0] <= t <= b.live[1]) for t in range(20)),
        default=0,
    )


@settings(max_examples=200, deadline=None)
@given(buffers())
def test_pack_never_overlaps_what_lives_together(found: list[Buffer]) -> None:
    offsets, height = pack(found)
    assert set(offsets) == {b.name for b in found}
    for b in found:
        assert offsets[b.name] >= 0 and offsets[b.name] % ALIGN == 0
        assert offsets[b.name] + b.bytes <= height
    for a, b in combinations(found, 2):
        together = a.live[0] <= b.live[1] and b.live[0] <= a.live[1]
        apart = (
            offsets[a.name] + a.bytes <= offsets[b.name]
            or offsets[b.name] + b.bytes <= offsets[a.name]
        )
        assert apart or not together or not a.bytes or not b.bytes
    assert most_alive(found) <= height <= sum(rounded(b.bytes) for b in found)


def test_pack_is_close_to_the_lower_bound() -> None:
    ratios = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        found = []
        for i in range(40):
            first = int(rng.integers(0, 15))
            size = int(rng.integers(1, 40)) * 8
            found.append(buffer(f"b{i}", size, first, first + int(rng.geometric(0.4)) - 1))
        ratios.append(pack(found)[1] / most_alive(found))
    assert max(ratios) <= 1.3
    assert sum(ratios) / len(ratios) <= 1.08


def test_pack_does_not_depend_on_the_order() -> None:
    found = [buffer(f"b{i}", 8 * (i % 3 + 1), i % 4, i % 4 + 2) for i in range(9)]
    assert pack(found) == pack(found[::-1])


@lru_cache
def two_phases(
    repeat: int = 3, stages: int = 1, grid: tuple[int, int] = (2, 2)
) -> tuple[list[Program], list[dict[str, object]], list[PhaseGraphs]]:
    """Drafts of a prefill and a decode of one model, and the identities of what they share."""
    room = 9
    graphs = {
        "prefill": (fuse(layers(repeat, new=4, tokens=4)), fuse(layers(repeat, new=4, tokens=4))),
        "decode": (
            fuse(layers(repeat, new=1, tokens=6)),
            fuse(layers(repeat, new=1, tokens=room)),
        ),
    }
    digests = {n: n for g, _ in graphs.values() for t in g.tensors.values() for n in t.instances}
    phases = [PhaseGraphs(p, g, full, room, 1.0, digests) for p, (g, full) in graphs.items()]
    (plans, *_), _ = plan_auto(
        phases, CHIP, Options(grid=grid, least_stages=stages, solver="greedy")
    )
    drafts = [
        emit(p.graph, p.full, plans[p.phase], side_by_side(plans[p.phase], CHIP), CHIP, room)
        for p in phases
    ]
    return drafts, [identities(p.graph, d) for p, d in zip(phases, drafts, strict=True)], phases


def identities(graph: Graph, program: Program) -> dict[str, object]:
    found: dict[str, object] = {}
    for b in program.buffers.values():
        if b.kind == "weight":
            found[b.name] = ("weight", graph.tensors[b.tensor].instances, str(b.layout))
        elif b.kind == "kv":
            found[b.name] = ("kv", b.tensor)
    return found


def intervals(p: Program) -> list[tuple[int, int, tuple[int, int] | None, str]]:
    """(start, end, live) of every instance of every buffer; live None: always."""
    found = []
    for b in p.buffers.values():
        count = layers_per_region(p, b.segment) if b.stride else 1
        live = b.live if b.kind in ("activation", "scratch") else None
        for i in range(count):
            found.append((b.address(i), b.address(i) + b.bytes, live, b.name))
    return found


def check_no_overlap(p: Program) -> None:
    for a, b in combinations(intervals(p), 2):
        if a[2] is not None and b[2] is not None and (a[2][0] > b[2][1] or b[2][0] > a[2][1]):
            continue
        assert a[1] <= b[0] or b[1] <= a[0], f"{a} overlaps {b}"


@pytest.mark.parametrize("repeat,stages", [(1, 1), (3, 1), (4, 2), (3, 3)])
def test_assign_shares_what_the_phases_share(repeat: int, stages: int) -> None:
    drafts, keys, _ = two_phases(repeat, stages)
    programs, _ = assign(drafts, keys)
    placed: dict[object, tuple[int, int]] = {}
    for p, key in zip(programs, keys, strict=True):
        check_no_overlap(p)
        for name, identity in key.items():
            b = p.buffers[name]
            at = (b.offset, b.stride)
            assert placed.setdefault(identity, at) == at, f"{identity} lies at two places"
    assert len(set(placed.values())) == len(placed)
    shared = set(keys[0].values()) & set(keys[1].values())
    assert len(shared) >= 4, "the phases share no weights"


@pytest.mark.parametrize("repeat,stages", [(1, 1), (3, 1), (4, 2), (3, 3)])
def test_memory_map_adds_up(repeat: int, stages: int) -> None:
    drafts, keys, _ = two_phases(repeat, stages)
    programs, memory = assign(drafts, keys)
    for p, step, arena in zip(programs, memory.step_bytes, memory.arena_bytes, strict=True):
        tops = [end for _, end, _, _ in intervals(p)]
        assert max(tops) <= memory.persistent_bytes + step + arena <= memory.needed
        for b in p.buffers.values():
            if b.kind in ("weight", "kv"):
                count = layers_per_region(p, b.segment) if b.stride else 1
                assert b.address(count - 1) + b.bytes <= memory.persistent_bytes
            elif not b.stride:
                assert b.offset >= memory.persistent_bytes
    assert memory.weight_bytes + memory.kv_bytes <= memory.persistent_bytes
    assert memory.needed == max(
        memory.persistent_bytes + s + a
        for s, a in zip(memory.step_bytes, memory.arena_bytes, strict=True)
    )


def test_strides_are_one_block_of_a_layer() -> None:
    drafts, keys, phases = two_phases(3)
    programs, _ = assign(drafts, keys)
    for p, phase in zip(programs, phases, strict=True):
        layered = [b for b in p.buffers.values() if b.stride]
        assert layered and len({b.stride for b in layered}) == 1
        stride = layered[0].stride
        for b in layered:
            assert len(phase.graph.tensors[b.tensor].instances) == 3
            assert b.segment == "body" and b.offset + b.bytes <= stride
        for b in p.buffers.values():
            if b.kind in ("weight", "kv") and not b.stride:
                assert len(phase.graph.tensors[b.tensor].instances) == 1


def test_a_stage_of_one_layer_has_no_stride() -> None:
    drafts, keys, _ = two_phases(3, 3)
    programs, _ = assign(drafts, keys)
    assert all(b.stride == 0 for p in programs for b in p.buffers.values())
    assert layers_per_region(programs[0], "body") == 1


@lru_cache
def decode_plan() -> Plan:
    phase = two_phases()[2][1]
    return plan_auto([phase], CHIP, Options(grid=(2, 2), solver="greedy"))[0][0]["decode"]


def decode_draft(phase: PhaseGraphs, tokens: int) -> Program:
    """A draft of a decode step."""
    graph = fuse(layers(3, new=1, tokens=tokens))
    plan = decode_plan()
    return emit(graph, phase.full, plan, side_by_side(plan, CHIP), CHIP, 9)


def decode_alone() -> tuple[Program, MemoryMap, PhaseGraphs]:
    phase = two_phases()[2][1]
    draft = decode_draft(phase, 6)
    (program,), memory = assign([draft], [{}])
    return program, memory, phase


def test_assign_like_keeps_what_persists() -> None:
    program, memory, phase = decode_alone()
    for tokens in (1, 5, 6, 7, 9):
        step = assign_like(decode_draft(phase, tokens), program, memory)
        check_no_overlap(step)
        assert set(step.buffers) == set(program.buffers)
        for b in step.buffers.values():
            old = program.buffers[b.name]
            if b.kind in ("weight", "kv"):
                assert (b.offset, b.stride, b.bytes) == (old.offset, old.stride, old.bytes)
            else:
                assert b.offset >= memory.persistent_bytes
        if tokens == 6:
            assert step == program


def masked(new: int) -> Graph:
    """Layers with a mask of their own each, as large as the prompt."""
    d = Draft()
    d.begin()
    d.input("x", new, 4)
    d.map("tanh", ("x",), "h", new, 4)
    d.end("prologue")
    d.begin(3)
    d.given("mask", "CONSTANT", (new, 4), several=True)
    d.weight("w", 4, 4)
    d.map("mul", ("h", "mask"), "t", new, 4)
    d.op("matmul", ("t", "w"), "n", new, 4)
    d.end("body", (("h", "n"),))
    d.output("n", turn=2)
    return d.graph()


@pytest.mark.parametrize("seed", range(6))
def test_constants_of_each_layer_for_a_shorter_prompt(seed: int) -> None:
    """Divided otherwise than in the compiled program, they get addresses of their own."""
    full = masked(6)
    space = build(full, full, CostModel(CHIP), 2, 2, 1, 0, 1 << 20)
    assert space is not None
    plan = random_plan(np.random.default_rng(seed), space, full)
    program, memory = program_of(full, full, plan, CHIP, 0)
    for new in (1, 2, 3, 5, 6):
        graph = masked(new)
        shorter = replace(
            plan,
            ops={op.name: resize(graph, op, plan.ops[op.name], 2, 2) for _, op in graph.ops()},
            carried={
                n: resize_layout(x, graph.tensors[n].shape, 2, 2) for n, x in plan.carried.items()
            },
        )
        draft = emit(graph, graph, shorter, side_by_side(shorter, CHIP), CHIP, 0)
        step = assign_like(draft, program, memory)
        check_no_overlap(step)
        check_memory(step, expand_all(step), CHIP)
        data = random_data(graph)
        trace = emulate(step, CHIP, tensors=data)
        assert trace.outputs is not None
        np.testing.assert_allclose(trace.outputs["n"], interpret(graph, data)["n"], rtol=1e-5)


def test_assign_like_refuses_what_was_never_placed() -> None:
    program, memory, phase = decode_alone()
    draft = decode_draft(phase, 7)
    gone = next(n for n, b in program.buffers.items() if b.kind == "weight")
    less = replace(program, buffers={n: b for n, b in program.buffers.items() if n != gone})
    with pytest.raises(InvariantError) as raised:
        assign_like(draft, less, memory)
    assert str(raised.value) == f"Buffer '{gone}' of the step is not in the compiled program."


@pytest.mark.parametrize("stages", [1, 2])
def test_what_a_region_uses(stages: int) -> None:
    drafts, keys, _ = two_phases(4, stages)
    (program, _), memory = assign(drafts, keys)
    peaks = peak_by_region(program)
    assert set(peaks) == set(program.regions) and len(peaks) == stages
    assert 0 < max(peaks.values()) <= memory.needed
    seen = set()
    for region in program.regions:
        for b, count in region_buffers(program, region):
            seen.add(b.name)
            assert count == (4 // stages if b.stride else 1)
    assert seen == set(program.buffers)


def test_layers_per_region_counts_the_longest_run() -> None:
    program = decode_alone()[0]
    runs = (Run("body", "body", "a", 0, 3), Run("body", "body", "b", 3, 5))
    assert layers_per_region(replace(program, schedule=runs), "body") == 3
    assert layers_per_region(replace(program, schedule=runs), "other") == 1
