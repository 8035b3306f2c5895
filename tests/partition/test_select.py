"""Plan selection against enumeration: the cost of every plan is added up here once more, from
candidates and re-sharding prices, without the choice problem."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import inf

import numpy as np
import pytest

from meshc.ir.graph import Graph
from meshc.ir.layout import WHOLE, Layout, split
from meshc.ir.plan import OpPlan, Plan
from meshc.partition.auto import stages_of
from meshc.partition.candidates import Candidate
from meshc.partition.cost import CostModel
from meshc.partition.select import Fixed, Selection, Space, build, choose, kv_bytes

from .small import Draft, layers, program_of, random_plan, small_chip

ROOM = 1 << 20
CHIP = small_chip()
MODEL = CostModel(CHIP)
GRIDS = [(2, 2), (2, 3)]


def mlp() -> Graph:
    d = Draft()
    d.begin()
    d.input("x", 1, 4, 8)
    d.weight("w1", 8, 6)
    d.weight("w2", 6, 4)
    d.op("matmul", ("x", "w1"), "a", 1, 4, 6)
    d.map("tanh", ("a",), "b", 1, 4, 6)
    d.op("matmul", ("b", "w2"), "y", 1, 4, 4)
    d.end("model")
    d.output("y")
    return d.graph()


def softmax() -> Graph:
    """A tensor read twice, once through a reduction."""
    d = Draft()
    d.begin()
    d.input("x", 4, 6)
    d.map("exp", ("x",), "e", 4, 6)
    d.op("reduce", ("e",), "s", 4, 1, fn="sum", axes=(1,), keepdims=True)
    d.map("div", ("e", "s"), "y", 4, 6)
    d.end("model")
    d.output("y")
    return d.graph()


def turned() -> Graph:
    """Four ops, two of them views, whose divisions follow different dims."""
    d = Draft()
    d.begin()
    d.input("x", 2, 12)
    d.map("exp", ("x",), "e", 2, 12)
    d.op("reshape", ("e",), "r", 2, 3, 4)
    d.op("transpose", ("r",), "t", 3, 2, 4, perm=(1, 0, 2))
    d.op("reduce", ("t",), "y", 3, 2, fn="max", axes=(2,), keepdims=False)
    d.end("model")
    d.output("y")
    return d.graph()


def loop() -> Graph:
    """A layer that repeats: its costs count three times."""
    d = Draft()
    d.begin()
    d.input("x", 2, 4)
    d.map("exp", ("x",), "h", 2, 4)
    d.end("prologue")
    d.begin(3)
    d.weight("w", 4, 4)
    d.op("matmul", ("h", "w"), "m", 2, 4)
    d.map("tanh", ("m",), "n", 2, 4)
    d.end("body", (("h", "n"),))
    d.output("n", turn=2)
    return d.graph()


GRAPHS = {"mlp": mlp, "softmax": softmax, "turned": turned, "loop": loop}


@lru_cache
def space_of(name: str, rows: int, cols: int, capacity: int = ROOM) -> Space:
    graph = GRAPHS[name]()
    space = build(graph, graph, MODEL, rows, cols, 1, 0, capacity)
    assert space is not None
    return space


def cost(
    graph: Graph, ops: dict[str, OpPlan], carried: dict[str, Layout], rows: int, cols: int
) -> float:
    """Cycles of a plan: kernels and collectives, and every tensor brought where it is wanted."""
    total = 0.0
    found: dict[str, Layout] = {}

    def move(tensor: str, a: Layout, b: Layout) -> float:
        t = graph.tensors[tensor]
        return MODEL.reshard(a, b, t.shape, t.dtype, rows, cols)

    for segment in graph.segments:
        inside = {read: carried[read] for read, _ in segment.carried}
        for read, _ in segment.carried:
            if read in found:
                total += move(read, found[read], inside[read])
        found |= inside
        for op in segment.ops:
            plan = ops[op.name]
            total += segment.repeat * plan.predicted_cycles
            for name, wanted in zip(op.inputs, plan.inputs, strict=True):
                if name in found:
                    total += segment.repeat * move(name, found[name], wanted)
            found[op.output] = plan.output
        for read, made in segment.carried:
            total += segment.repeat * move(made, found[made], inside[read])
            found[made] = inside[read]
    return total


def every_plan(
    space: Space,
) -> Iterator[tuple[tuple[Candidate, ...], dict[str, Layout], tuple[int, ...]]]:
    n = len(space.names)
    sizes = [len(o) for o in space.options] + [len(found) for _, found in space.carried]
    for numbers in product(*map(range, sizes)):
        picked = tuple(o[i] for o, i in zip(space.options, numbers[:n], strict=True))
        layouts = {
            name: found[i] for (name, found), i in zip(space.carried, numbers[n:], strict=True)
        }
        yield picked, layouts, numbers


def rent(space: Space, numbers: tuple[int, ...]) -> float:
    n = len(space.names)
    return sum(r[i] for r, i in zip(space.rents, numbers[:n], strict=True))


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("rows", "cols"), GRIDS)
def test_ilp_finds_the_best_of_all_plans(name: str, rows: int, cols: int) -> None:
    graph, space = GRAPHS[name](), space_of(name, rows, cols)
    best = inf
    for picked, layouts, numbers in every_plan(space):
        plans = {c.plan.op: c.plan for c in picked}
        best = min(best, cost(graph, plans, layouts, rows, cols) + rent(space, numbers))
    found, stats = choose(space, solver="ilp", gap=0.0, time_limit=30, seed=0)
    assert found is not None and stats.status == "optimal"
    assert stats.objective == pytest.approx(best, rel=1e-9)
    own = cost(graph, found.ops, found.carried, rows, cols)
    assert found.cycles == pytest.approx(own, rel=1e-9)


@pytest.mark.parametrize("name", GRAPHS)
def test_rent_is_the_share_of_sram_times_the_least_time(name: str) -> None:
    graph, space = GRAPHS[name](), space_of(name, 2, 2)
    repeat = {op.name: s.repeat for s, op in graph.ops()}
    least = sum(
        min(c.cycles for c in o) * repeat[n]
        for n, o in zip(space.names, space.options, strict=True)
    )
    for options, rents in zip(space.options, space.rents, strict=True):
        for c, price in zip(options, rents, strict=True):
            stay = sum(size * len(graph.tensors[n].instances) for n, size in c.held)
            assert price == pytest.approx(least * stay / ROOM)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("rows", "cols"), GRIDS)
def test_greedy_and_annealing_are_never_better(name: str, rows: int, cols: int) -> None:
    space = space_of(name, rows, cols)
    ilp = choose(space, solver="ilp", gap=0.0, time_limit=30, seed=0)[1].objective
    for solver in ("greedy", "anneal"):
        found, stats = choose(space, solver=solver, gap=0.0, time_limit=2, seed=1)  # type: ignore[arg-type]
        assert found is not None
        assert stats.objective >= ilp * (1 - 1e-9)


@pytest.mark.parametrize("name", ["mlp", "loop", "softmax"])
@pytest.mark.parametrize(("rows", "cols"), GRIDS)
def test_tight_capacity_is_respected(name: str, rows: int, cols: int) -> None:
    """At every capacity the answer is the best plan that the limits allow, or none."""
    graph = GRAPHS[name]()
    feasible = 0
    for capacity in (40, 90, 140, 200, 260, 400):
        space = space_of(name, rows, cols, capacity)
        best = inf
        for picked, layouts, numbers in every_plan(space):
            if not space.problem.violations(numbers):
                plans = {c.plan.op: c.plan for c in picked}
                best = min(best, cost(graph, plans, layouts, rows, cols) + rent(space, numbers))
        found, stats = choose(space, solver="ilp", gap=0.0, time_limit=30, seed=0)
        if found is None:
            assert best == inf and stats.status == "infeasible"
            continue
        feasible += 1
        assert stats.objective == pytest.approx(best, rel=1e-9)
        assert needed(graph, found, rows, cols) <= capacity + slack(graph)
    assert feasible


def needed(graph: Graph, found: Selection, rows: int, cols: int) -> int:
    """Bytes of SRAM that the emitted program really takes."""
    plan = Plan("decode", "test", rows, cols, stages_of(graph, 1), found.ops, found.carried)
    return program_of(graph, graph, plan, CHIP, 0)[1].needed


def slack(graph: Graph) -> int:
    """Addresses are multiples of 8 where the planner counts in words of 4."""
    return 4 * len(graph.tensors)


def test_limits_count_what_the_program_takes() -> None:
    """Random plans: the planner's fullest position is close to the memory layout's height."""
    graph, full = layers(3, new=2, tokens=5), layers(3, new=2, tokens=9)
    rng = np.random.default_rng(0)
    space = build(graph, full, MODEL, 2, 2, 1, 9, 1)
    assert space is not None and space.problem.limits
    ratios = []
    for _ in range(20):
        plan = random_plan(rng, space, graph)
        numbers = [
            next(i for i, c in enumerate(o) if c.plan == plan.ops[n])
            for n, o in zip(space.names, space.options, strict=True)
        ] + [found.index(plan.carried[n]) for n, found in space.carried]
        counted = max(
            sum(float(a[numbers[c]]) for c, a in limit.terms)
            + sum(
                float(a[numbers[space.problem.pairs[p].first],
                        numbers[space.problem.pairs[p].second]])
                for p, a in limit.pair_terms
            )
            for limit in space.problem.limits
        )  # fmt: skip
        ratios.append(program_of(graph, full, plan, CHIP, 9)[1].needed / counted)
    assert max(ratios) < 1.25, ratios
    assert min(ratios) > 0.6, ratios


def test_fixed_layouts_are_kept() -> None:
    graph = layers(2)
    digests = {n: f"content of {n}" for t in graph.tensors.values() for n in t.instances}
    first = build(graph, graph, MODEL, 2, 2, 1, 5, ROOM, digests=digests)
    assert first is not None
    found = choose(first, solver="greedy", gap=1, time_limit=5, seed=0)[0]
    assert found is not None
    weights, caches = {}, {}
    for _, op in graph.ops():
        for name, layout in zip(op.inputs, found.ops[op.name].inputs, strict=True):
            if graph.tensors[name].kind == "WEIGHT":
                weights[digests[graph.tensors[name].instances[0]]] = layout
        if op.kind == "append":
            caches[0] = found.ops[op.name].output
    again = build(
        graph, graph, MODEL, 2, 2, 1, 5, ROOM, fixed=Fixed(weights, caches), digests=digests
    )
    assert again is not None
    for name, options in zip(again.names, again.options, strict=True):
        op = next(o for _, o in graph.ops() if o.name == name)
        for c in options:
            for tensor, layout in zip(op.inputs, c.plan.inputs, strict=True):
                if graph.tensors[tensor].kind == "WEIGHT":
                    assert layout == weights[digests[graph.tensors[tensor].instances[0]]]
            if op.kind == "append":
                assert c.plan.output == caches[0]


def test_cache_bytes_grow_with_the_reserved_context() -> None:
    graph = layers(2, new=1, tokens=5)
    layout = Layout((WHOLE, WHOLE, split(5, ("row",), 4, 1, cyclic=True), WHOLE))
    sizes = [kv_bytes(graph, "keys", 2, layout, n, 4, 1) for n in (4, 5, 8, 9)]
    assert sizes == [16 * n for n in (1, 2, 2, 3)]
