"""The search over region shapes, stages, and what is said when nothing fits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from meshc.emit import emit
from meshc.errors import DoesNotFitError
from meshc.fusion import fuse
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.graph import Graph
from meshc.ir.plan import Plan
from meshc.memory import assign
from meshc.partition import STRATEGIES, Options, PhaseGraphs, auto
from meshc.partition.auto import stages_of
from meshc.partition.shapes import free_rectangle, shapes

from .small import layers, side_by_side, small_chip

RETRIES = 4  # as the pipeline plans again when the memory layout is fuller than planned


def phase(name: str, repeat: int, new: int, tokens: int, room: int, **sizes: int) -> PhaseGraphs:
    """The miniature decoder, fused, bound for a step and for the longest context."""
    graph = fuse(layers(repeat, new=new, tokens=tokens, **sizes))
    full = graph if name == "prefill" else fuse(layers(repeat, new=new, tokens=room, **sizes))
    digests = {n: n for t in graph.tensors.values() for n in t.instances}
    return PhaseGraphs(name, graph, full, room, 1.0, digests)


def lay_out(
    phases: list[PhaseGraphs], chip: ChipSpec, options: Options, strategy: str = "auto"
) -> tuple[int, dict[str, Plan]]:
    """Plan, emit and assign like the pipeline; returns the bytes that a lane needs."""
    reserve = 0
    needed, plans = 0, {}
    for _ in range(RETRIES):
        found, _ = STRATEGIES[strategy](phases, chip, replace(options, reserve_bytes=reserve))
        plans = found[0]
        drafts = [
            emit(p.graph, p.full, plans[p.phase], side_by_side(plans[p.phase], chip), chip,
                 p.max_context)
            for p in phases
        ]  # fmt: skip
        keys: list[dict[str, Any]] = [
            {
                b.name: (b.tensor, str(b.layout)) if b.kind == "weight" else b.tensor
                for b in d.buffers.values()
                if b.kind in ("weight", "kv")
            }
            for d in drafts
        ]
        needed = assign(drafts, keys)[1].needed
        if needed <= chip.core.usable_bytes:
            break
        reserve += needed - chip.core.usable_bytes
    return needed, plans


SENTENCE = re.compile(
    r"^Model 'small' does not fit (?P<where>small|the \d+x\d+ grid): the best mapping found, on "
    r"(?P<stages>\d+) regions? of (?P<rows>\d+)x(?P<cols>\d+) cores, needs (?P<need>\d+) bytes of "
    r"SRAM per core where (?P<usable>\d+) are usable, (?P<over>\d+) too many \(its weights take "
    r"(?P<weights>\d+) bytes and its KV cache of (?P<tokens>\d+) tokens (?P<kv>\d+)\); "
    r"core\.sram_bytes of at least (?P<advised>\d+), (or )?about (?P<scale>[\d.]+) times as many "
    r"cores(, or a shorter --max-context or smaller --batch)? would make it fit\.$"
)
PHASES = {
    "decode": lambda: [phase("decode", 4, 1, 6, 12)],
    "prefill": lambda: [phase("prefill", 3, 4, 4, 4)],
    "both": lambda: [phase("prefill", 2, 3, 3, 6), phase("decode", 2, 1, 4, 6)],
    "wide": lambda: [phase("decode", 2, 1, 6, 12, width=16)],
}


@pytest.mark.parametrize(
    ("name", "sram", "reserved", "grid"),
    [
        ("decode", 300, 0, (1, 2)),
        ("decode", 700, 200, None),
        ("prefill", 300, 0, None),
        ("both", 700, 200, (2, 2)),
        ("wide", 700, 100, (2, 2)),
    ],
)
def test_advice_of_what_does_not_fit(
    name: str,
    sram: int,
    reserved: int,
    grid: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence with all numbers, and the advised SRAM is enough, though not by much."""
    phases = PHASES[name]()
    chip = small_chip(2, 2, sram)
    chip = replace(chip, core=replace(chip.core, reserved_bytes=reserved))
    options = Options(grid=grid, gap=1.0)
    with pytest.raises(DoesNotFitError) as raised:
        lay_out(phases, chip, options)
    said = SENTENCE.match(str(raised.value))
    assert said is not None, str(raised.value)
    number = {k: int(v) for k, v in said.groupdict().items() if k not in ("where", "scale")}
    assert said["where"] == ("small" if grid is None else f"the {grid[0]}x{grid[1]} grid")
    assert number["usable"] == sram - reserved
    assert number["over"] == number["need"] - number["usable"] > 0
    assert number["advised"] == number["need"] + reserved
    full = phases[0].full if len(phases) == 1 else phases[1].full
    weights = [t for t in full.tensors.values() if t.kind == "WEIGHT"]
    assert number["weights"] == sum(t.bytes * len(t.instances) for t in weights)
    assert number["tokens"] == phases[-1].max_context
    keys = full.tensors["keys"]
    assert number["kv"] == keys.bytes * len(keys.instances)
    enough = replace(chip, core=replace(chip.core, sram_bytes=number["advised"]))
    needed, _ = lay_out(phases, enough, options)
    assert needed <= enough.core.usable_bytes
    less = int(0.85 * number["need"]) - 64 + reserved
    monkeypatch.setattr(auto, "_least_capacity", lambda *_: 1)  # no need to be told again
    with pytest.raises(DoesNotFitError):
        lay_out(phases, replace(chip, core=replace(chip.core, sram_bytes=less)), options)


def test_no_free_rectangle_is_said() -> None:
    chip = replace(small_chip(1, 2), dead_cores=(Coord(0, 0), Coord(0, 1)))
    with pytest.raises(DoesNotFitError) as raised:
        lay_out([phase("decode", 1, 1, 3, 4)], chip, Options())
    assert str(raised.value) == (
        "Model 'small' does not fit small: no rectangle of working cores can run all of its "
        "operations; use a chip with fewer dead cores."
    )


def test_tiny_work_takes_a_small_region() -> None:
    """A miniature layer is all latency: 64 cores would only add collectives."""
    _, plans = lay_out([phase("decode", 2, 1, 4, 8)], small_chip(8, 8), Options())
    assert plans["decode"].rows * plans["decode"].cols <= 4


def test_large_work_takes_a_large_region() -> None:
    _, small = lay_out([phase("prefill", 2, 8, 8, 8)], small_chip(4, 4), Options(gap=0.1))
    wide = [phase("prefill", 2, 64, 64, 64, width=64)]
    _, large = lay_out(wide, small_chip(4, 4), Options(gap=0.1))
    areas = [p["prefill"].rows * p["prefill"].cols for p in (small, large)]
    assert areas[0] < areas[1]


def test_a_small_sram_takes_more_cores() -> None:
    """Weights that fit no single core are spread."""
    phases = [phase("decode", 3, 1, 4, 8, width=16)]
    plan = lay_out(phases, small_chip(2, 4), Options(solver="greedy"))[1]["decode"]
    needed, plans = lay_out(phases, small_chip(2, 4, 1400), Options(solver="greedy"))
    tight = plans["decode"]
    assert needed <= 1400
    assert tight.rows * tight.cols * len(tight.stages) > plan.rows * plan.cols


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_grid_is_obeyed(grid: tuple[int, int]) -> None:
    _, plans = lay_out([phase("decode", 2, 1, 4, 8)], small_chip(), Options(grid=grid))
    assert (plans["decode"].rows, plans["decode"].cols) == grid
    assert len(plans["decode"].stages) == 1


@pytest.mark.parametrize(
    ("grid", "repeat", "asked", "got"),
    [((2, 2), 4, 2, 2), ((2, 2), 4, 4, 4), ((2, 2), 4, 9, 4), ((2, 2), 5, 4, 3), ((4, 4), 3, 3, 1)],
)
def test_stages_on_a_given_grid(grid: tuple[int, int], repeat: int, asked: int, got: int) -> None:
    options = Options(grid=grid, least_stages=asked, solver="greedy")
    _, plans = lay_out([phase("decode", repeat, 1, 4, 8)], small_chip(), options)
    assert len(plans["decode"].stages) == got


@pytest.mark.parametrize("repeat", [1, 3])
def test_pipeline_gives_layers_regions_of_their_own(repeat: int) -> None:
    _, plans = lay_out(
        [phase("decode", repeat, 1, 4, 8)], small_chip(), Options(solver="greedy"), "pipeline"
    )
    assert len(plans["decode"].stages) == repeat
    assert plans["decode"].strategy == "pipeline"


def test_phases_share_shape_weights_and_caches() -> None:
    phases = [phase("prefill", 3, 4, 4, 9), phase("decode", 3, 1, 5, 9)]
    _, plans = lay_out(phases, small_chip(), Options(grid=(2, 2), gap=1.0))
    prefill, decode = plans["prefill"], plans["decode"]
    assert (prefill.rows, prefill.cols) == (decode.rows, decode.cols)
    assert prefill.stages == decode.stages
    for _, op in phases[0].graph.ops():
        a, b = prefill.ops[op.name], decode.ops[op.name]
        for name, x, y in zip(op.inputs, a.inputs, b.inputs, strict=True):
            if phases[0].graph.tensors[name].kind == "WEIGHT":
                assert x == y, f"{name} lies differently in the two phases"
        if op.kind == "append":
            assert a.output == b.output


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("solver", ["ilp", "greedy", "anneal"])
def test_every_strategy_plans_every_op(name: str, solver: str) -> None:
    phases = [phase("decode", 2, 1, 4, 8)]
    options = Options(solver=solver, gap=0.1, time_limit=1)  # type: ignore[arg-type]
    needed, plans = lay_out(phases, small_chip(), options, name)
    plan = plans["decode"]
    assert set(plan.ops) == {op.name for _, op in phases[0].graph.ops()}
    assert plan.strategy == name and plan.predicted_cycles > 0 and needed > 0
    for p in plan.ops.values():
        for layout in (*p.inputs, p.output):
            layout.verify()


def test_plans_repeat() -> None:
    """The same phases, chip and seed give the same plan."""
    phases = PHASES["both"]()
    options = Options(grid=(2, 3), gap=0.05)
    assert lay_out(phases, small_chip(), options) == lay_out(phases, small_chip(), options)


@pytest.mark.parametrize(("repeat", "count"), [(1, 1), (4, 1), (4, 2), (5, 2), (5, 3), (3, 3)])
def test_stages_run_every_layer_once_in_order(repeat: int, count: int) -> None:
    graph: Graph = layers(repeat)
    stages = stages_of(graph, count)
    assert len(stages) == count
    body = [(a, b) for s in stages for n, a, b in s.segments if n == "body"]
    assert [i for a, b in body for i in range(a, b)] == list(range(repeat))
    names = [n for s in stages for n, _, _ in s.segments]
    assert names[0] == "prologue" and names[-1] == "epilogue"
    assert stages[0].segments[0][0] == "prologue" and stages[-1].segments[-1][0] == "epilogue"


def test_shapes_are_free_rectangles_small_first() -> None:
    chip = replace(small_chip(4, 6), dead_cols=(2,))
    found = shapes(chip)
    assert found and len(set(found)) == len(found)
    for rows, cols in found:
        free = [
            (r, c)
            for r in range(chip.rows - rows + 1)
            for c in range(chip.cols - cols + 1)
            if not any(Coord(r + i, c + j) in chip.dead() for i in range(rows) for j in range(cols))
        ]
        assert free
    assert (4, 3) in found, "the widest healthy rectangle"
    assert all(min(shape) > 1 for shape in found), "both axes divide something"
    assert not free_rectangle(chip, 1, 4) and free_rectangle(chip, 4, 3)
    assert (1, 6) in shapes(small_chip(1, 6)), "on a line there is nothing else"
    assert not free_rectangle(chip, 5, 1)
    areas = [r * c for r, c in shapes(small_chip(8, 8))]
    assert areas == sorted(areas), "smallest area first"
    assert areas[-1] == 64
