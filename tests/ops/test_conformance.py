"""Every op kind on lanes: any legal division, evaluated lane by lane, gives the whole result."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest

from meshc import ops
from meshc.ops import RECORDS

from .cases import CASES, Generator
from .lanes import GRIDS, Case, axes_by_dim, check, legal, reductions

ROUNDS = 10
GENERATORS = [(kind, g) for kind, found in CASES.items() for g in found]
IDS = [f"{kind}-{g.__name__}" for kind, g in GENERATORS]


def source(generator: Generator, number: int) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(generator.__name__.encode()), number])


def planned_for(full: Case, step: Case) -> Case:
    """The step's case, its op told what it was planned for, as programs tell it."""
    if not step.op.body:
        return step
    planned = ("planned", full.op.attr("shapes"))
    return replace(step, op=replace(step.op, attrs=(planned, *step.op.attrs)))


@pytest.mark.parametrize("kind", RECORDS)
def test_every_kind_has_a_case(kind: str) -> None:
    assert CASES.get(kind), f"Op kind '{kind}' has no generator in tests/ops/cases.py; add one."
    for generator in CASES[kind]:
        assert generator(source(generator, 0), 5).op.kind == kind


@pytest.mark.parametrize(("kind", "generator"), GENERATORS, ids=IDS)
def test_lanes_give_the_whole_result(kind: str, generator: Generator) -> None:
    divided = 0
    for number in range(ROUNDS):
        tokens = int(source(generator, number).integers(0, 12))
        case = generator(source(generator, number), tokens)
        rows, cols = GRIDS[number % len(GRIDS)]
        s = case.space()
        for assignment, layouts in legal(case, rows, cols):
            reduce = reductions(s, assignment)
            check(case, layouts, reduce, rows, cols, f"{generator.__name__} {assignment}")
            divided += any(layout.axes for layout in layouts)
    assert divided, "no round divided anything; the case is too small"


@pytest.mark.parametrize(("kind", "generator"), GENERATORS, ids=IDS)
def test_layouts_of_the_longest_context_serve_every_step(kind: str, generator: Generator) -> None:
    """A program is laid out at the longest context and runs at all shorter ones."""
    for number in range(4):
        full = generator(source(generator, number), 11)
        rows, cols = GRIDS[number % len(GRIDS)]
        s = full.space()
        for tokens in (1, 2, 7):
            step = planned_for(full, generator(source(generator, number), tokens))
            for assignment, layouts in legal(full, rows, cols):
                reduce = reductions(s, assignment)
                check(step, layouts, reduce, rows, cols, f"{assignment} at {tokens} tokens")


@pytest.mark.parametrize(("kind", "generator"), GENERATORS, ids=IDS)
def test_work_is_finite_and_whole_work_is_not_lost(kind: str, generator: Generator) -> None:
    """The lanes' multiply-accumulates add up to at least those of the whole op."""
    for number in range(6):
        case = generator(source(generator, number), 6)
        rows, cols = 2, 3
        dtypes = [t.dtype for t in (*case.inputs, case.output)]
        shapes = case.shapes
        total = ops.work(case.op, shapes[:-1], shapes[-1], dtypes[:-1], dtypes[-1])
        for _, layouts in legal(case, rows, cols):
            macs = 0
            for r in range(rows):
                for c in range(cols):
                    local = [
                        tuple(map(len, layout.shard(shape, r, c, rows, cols)))
                        for layout, shape in zip(layouts, shapes, strict=True)
                    ]
                    done = ops.work(case.op, local[:-1], local[-1], dtypes[:-1], dtypes[-1])
                    assert done.sram_bytes >= 0 and done.vector_ops >= 0
                    macs += done.macs
            assert macs >= total.macs


def test_replicating_axis_must_not_be_summed() -> None:
    """The check itself notices a lane that contributes a replica to a sum."""
    case = CASES["reduce"][2](np.random.default_rng(0), 6)
    s = case.space()
    for assignment, layouts in legal(case, 2, 3):
        reduce = reductions(s, assignment)
        used = {axis for axis, _ in reduce}
        if len(used) == 1 and case.expected.any() and not axes_by_dim(s, assignment)[1]:
            wrong = [*reduce, ("col" if "row" in used else "row", "sum")]
            if assignment[0] is None or assignment[1] is None:
                with pytest.raises(AssertionError):
                    check(case, layouts, wrong, 2, 3, "summed replicas")
                return
    pytest.fail("no assignment with a replicating axis")
