"""Plan selection: one candidate per op, chosen by an integer program.

Choices are the ops and the tensors carried from layer to layer; a pair of choices costs what
re-sharding the tensor between them takes; limits keep every position of the program within SRAM.
A repeated layer appears once, its costs times its repetitions.

SRAM that weights and caches occupy has a price: filling it whole costs as much as the ops at
their fastest. Without it the plan would copy every weight to every core as long as there is room
for a cycle's gain, at the expense of the longest context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import numpy as np

from meshc.ir.graph import Graph, Op, Segment
from meshc.ir.layout import AXES, Axis, Layout, split
from meshc.ir.plan import OpPlan, SolveStats
from meshc.ir.program import lane_bytes
from meshc.ir.shards import covers
from meshc.partition.candidates import Candidate, candidates
from meshc.partition.cost import CostModel
from meshc.partition.growing import growing_dims
from meshc.partition.liveness import Intervals, carried_names, intervals
from meshc.solve import Choice, ChoiceProblem, Limit, Pair, solve

Solver = Literal["ilp", "greedy", "anneal"]


@dataclass(frozen=True)
class Fixed:
    """Layouts decided elsewhere: of weights (by instance content) and of caches (by order)."""

    weights: Mapping[str, Layout] = field(default_factory=dict)
    caches: Mapping[int, Layout] = field(default_factory=dict)


@dataclass(frozen=True)
class Space:
    """The search space of one region shape: what can be chosen and what it costs.

    rents: per op and option, the part of its cost that is the price of SRAM.
    """

    rows: int
    cols: int
    stages: int
    names: tuple[str, ...]
    options: tuple[tuple[Candidate, ...], ...]
    carried: tuple[tuple[str, tuple[Layout, ...]], ...]
    problem: ChoiceProblem
    rents: tuple[tuple[float, ...], ...]
    least_bytes: float


@dataclass(frozen=True)
class Selection:
    """The solved choice: plans by op, layouts of the carried tensors, predicted cycles (the
    objective without the price of SRAM)."""

    space: Space
    ops: dict[str, OpPlan]
    carried: dict[str, Layout]
    cycles: float


def kv_bytes(
    graph: Graph, present: str, axis: int, layout: Layout, max_context: int, rows: int, cols: int
) -> int:
    """Bytes per lane that a cache reserves for `max_context` tokens."""
    t = graph.tensors[present]
    shape = tuple(max_context if d == axis else n for d, n in enumerate(t.shape))
    return lane_bytes(shape, t.dtype, layout, rows, cols)


def layouts_for(
    shape: tuple[int, ...], grows: frozenset[int], rows: int, cols: int
) -> tuple[Layout, ...]:
    """Every layout of a tensor, for tensors that no op's candidates decide."""
    found: dict[Layout, None] = {}
    free: list[int | None] = [None, *(d for d, n in enumerate(shape) if n > 1)]
    for choice in product(free, free):
        axes: list[tuple[Axis, ...]] = [()] * len(shape)
        for axis, d in zip(AXES, choice, strict=True):
            if d is not None:
                axes[d] = (*axes[d], axis)
        found[
            Layout(tuple(split(n, axes[d], rows, cols, 1, d in grows) for d, n in enumerate(shape)))
        ] = None
    return tuple(found)


def build(
    graph: Graph,
    full: Graph,
    model: CostModel,
    rows: int,
    cols: int,
    stages: int,
    max_context: int,
    capacity: int,
    *,
    fixed: Fixed | None = None,
    digests: Mapping[str, str] | None = None,
    reserved: int = 0,
) -> Space | None:
    """The search space for regions of rows × cols, `stages` of them; None when some op has no
    candidate.

    capacity: SRAM bytes of a lane.   reserved: bytes of it that something else holds.
    fixed, digests: layouts that weights (known by content) and caches must have.
    """
    growing = growing_dims(full)
    repeat = {op.name: s.repeat for s, op in full.ops()}
    segment_of = {op.name: s for s, op in full.ops()}
    pairs_of = {p.present: (i, p.axis) for i, p in enumerate(full.caches)}
    names: list[str] = []
    options: list[tuple[Candidate, ...]] = []
    sizes: list[list[float]] = []  # bytes that stay, per option
    for segment, op in full.ops():
        found = candidates(graph, full, op, growing, rows, cols, model)
        if fixed is not None:
            found = [c for c in found if _respects(full, op, c, fixed, digests or {})]
        if not found:
            return None
        names.append(op.name)
        options.append(tuple(found))
        stay = []
        layers = -(-segment.repeat // stages)
        kept = any(n == op.output and turn < segment.repeat - 1 for _, n, turn in full.outputs)
        for c in found:
            size = float(_resident(full, segment, c, stages))
            if op.output in pairs_of:
                _, axis = pairs_of[op.output]
                size += layers * kv_bytes(
                    full, op.output, axis, c.plan.output, max_context, rows, cols
                )
            elif kept:  # every layer's result lasts until the end
                size += layers * c.output_bytes
            stay.append(size)
        sizes.append(stay)
    index = {n: i for i, n in enumerate(names)}
    made_by = {op.output: op.name for _, op in full.ops()}
    carried: list[tuple[str, tuple[Layout, ...]]] = []
    carried_index: dict[str, int] = {}
    renamed = carried_names(full)
    least = sum(min(c.cycles for c in o) * repeat[n] for n, o in zip(names, options, strict=True))
    price = least / max(1, capacity)
    choices = [
        Choice(n, tuple(c.cycles * repeat[n] + price * b for c, b in zip(o, stay, strict=True)))
        for n, o, stay in zip(names, options, sizes, strict=True)
    ]
    for segment in full.segments:
        for read, _ in segment.carried:
            t = full.tensors[read]
            found_layouts = layouts_for(t.shape, growing.get(read, frozenset()), rows, cols)
            carried_index[read] = len(choices)
            carried.append((read, found_layouts))
            hop = [
                (stages - 1)
                * model.message(lane_bytes(t.shape, t.dtype, lay, rows, cols), max(rows, cols))
                for lay in found_layouts
            ]
            choices.append(Choice(f"carried {read}", tuple(hop)))
    pairs: list[Pair] = []
    pair_at: dict[tuple[int, int, str], int] = {}
    copies: dict[int, list[tuple[int, np.ndarray]]] = {}

    def add_pair(
        first: int,
        sources: list[Layout],
        second: int,
        wanted: list[Layout],
        tensor: str,
        weight: int,
        at: int,
    ) -> None:
        t, big = graph.tensors[tensor], full.tensors[tensor]
        # Many options agree on a layout: price each pair of distinct ones once.
        rows_of, cols_of = _numbered(sources), _numbered(wanted)
        price = np.zeros((len(rows_of), len(cols_of)))
        extra = np.zeros((len(rows_of), len(cols_of)))
        for a, i in rows_of.items():
            for b, j in cols_of.items():
                price[i, j] = weight * model.reshard(a, b, t.shape, t.dtype, rows, cols)
                if not covers(a, b, big.shape, rows, cols):
                    extra[i, j] = lane_bytes(big.shape, big.dtype, b, rows, cols)
        pick = np.ix_([rows_of[a] for a in sources], [cols_of[b] for b in wanted])
        cost, grow = price[pick], extra[pick]
        if not cost.any() and not grow.any():
            return
        pair_at[first, second, tensor] = len(pairs)
        pairs.append(Pair(first, second, cost))
        if grow.any():
            copies.setdefault(at, []).append((len(pairs) - 1, grow))

    spans = intervals(full)
    for segment, op in full.ops():
        second = index[op.name]
        for slot, name in enumerate(op.inputs):
            kind = full.tensors[name].kind
            if op.kind == "append" and slot == 0 and len(op.inputs) == 2:
                continue
            wanted = [c.plan.inputs[slot] for c in options[second]]
            first, sources = _producer(
                name, segment, full, renamed, carried_index, carried, made_by, index, options
            )
            if first is None:
                if kind not in ("WEIGHT", "CONSTANT", "INPUT"):
                    raise AssertionError(f"no producer for {name}")
                continue
            if first == second:
                continue
            at = spans.position[op.name]
            add_pair(first, sources, second, wanted, name, segment.repeat, at)
    for segment in full.segments:
        for read, made in segment.carried:
            second = carried_index[read]
            wanted = list(carried[second - len(names)][1])
            if made in made_by and segment_of[made_by[made]].name == segment.name:
                first = index[made_by[made]]
                sources = [c.plan.output for c in options[first]]
                at = spans.ends[segment.name]
                add_pair(first, sources, second, wanted, made, segment.repeat, at)
            if read in made_by:
                first = index[made_by[read]]
                sources = [c.plan.output for c in options[first]]
                home = segment_of[made_by[read]].name
                add_pair(first, sources, second, wanted, read, 1, spans.ends[home])
    limits = _limits(
        full,
        spans,
        names,
        options,
        sizes,
        carried,
        carried_index,
        copies,
        pairs,
        capacity - reserved,
        pairs_of,
        rows,
        cols,
    )
    bytes_ = sum(min(s) for s in sizes)
    problem = ChoiceProblem(
        stage="plan",
        scope=f"region {rows}x{cols}" + (f", {stages} stages" if stages > 1 else ""),
        choices=tuple(choices),
        pairs=tuple(pairs),
        limits=tuple(limits),
    )
    return Space(
        rows,
        cols,
        stages,
        tuple(names),
        tuple(options),
        tuple(carried),
        problem,
        tuple(tuple(price * b for b in stay) for stay in sizes),
        bytes_,
    )


def _numbered(layouts: list[Layout]) -> dict[Layout, int]:
    """Distinct layouts, numbered in order of appearance."""
    found: dict[Layout, int] = {}
    for layout in layouts:
        found.setdefault(layout, len(found))
    return found


def _producer(
    name: str,
    segment: Segment,
    full: Graph,
    renamed: dict[str, str],
    carried_index: dict[str, int],
    carried: list[tuple[str, tuple[Layout, ...]]],
    made_by: dict[str, str],
    index: dict[str, int],
    options: list[tuple[Candidate, ...]],
) -> tuple[int | None, list[Layout]]:
    """Which choice decides the layout in which an op finds `name`, and its layouts by option."""
    reads = {read for read, _ in segment.carried}
    own = {op.output for op in segment.ops}
    key = name if name in reads else None
    if key is None and name in renamed and name not in own:
        key = renamed[name]
    if key is not None:
        at = carried_index[key]
        return at, list(carried[at - len(options)][1])
    if full.tensors[name].kind == "CACHE":
        for pair in full.caches:
            if pair.past == name:
                name = pair.present
    if name in made_by:
        at = index[made_by[name]]
        return at, [c.plan.output for c in options[at]]
    return None, []


def _resident(full: Graph, segment: Segment, c: Candidate, stages: int) -> int:
    """Bytes of a candidate's weights on a lane: one instance per layer of a stage."""
    layers = -(-segment.repeat // stages)
    return sum(
        size * (layers if len(full.tensors[name].instances) > 1 else 1) for name, size in c.held
    )


def _respects(full: Graph, op: Op, c: Candidate, fixed: Fixed, digests: Mapping[str, str]) -> bool:
    """Whether a candidate keeps the weights and caches in the layouts decided elsewhere."""
    for tensor, layout in zip(op.inputs, c.plan.inputs, strict=True):
        t = full.tensors[tensor]
        if t.kind == "WEIGHT":
            want = fixed.weights.get(digests.get(t.instances[0], ""))
            if want is not None and len(want.splits) == len(layout.splits) and want != layout:
                return False
    for i, pair in enumerate(full.caches):
        if pair.present == op.output and i in fixed.caches and fixed.caches[i] != c.plan.output:
            return False
    return True


def _limits(
    full: Graph,
    spans: Intervals,
    names: list[str],
    options: list[tuple[Candidate, ...]],
    sizes: list[list[float]],
    carried: list[tuple[str, tuple[Layout, ...]]],
    carried_index: dict[str, int],
    copies: dict[int, list[tuple[int, np.ndarray]]],
    pairs: list[Pair],
    capacity: int,
    pairs_of: dict[str, tuple[int, int]],
    rows: int,
    cols: int,
) -> list[Limit]:
    """One SRAM limit per position, or none at all when nothing could ever exceed it."""
    made_by = {op.output: op.name for _, op in full.ops()}
    index = {n: i for i, n in enumerate(names)}
    at: list[dict[int, np.ndarray]] = [{} for _ in range(spans.length)]

    def add(position: int, choice: int, amounts: np.ndarray) -> None:
        known = at[position].get(choice)
        at[position][choice] = amounts if known is None else known + amounts

    for tensor, (first, last) in spans.live.items():
        if tensor in carried_index:
            choice = carried_index[tensor]
            t = full.tensors[tensor]
            amounts = np.array(
                [
                    lane_bytes(t.shape, t.dtype, lay, rows, cols)
                    for lay in carried[choice - len(names)][1]
                ],
                dtype=float,
            )
            for p in range(first, last + 1):
                add(p, choice, amounts)
        if tensor in made_by and tensor not in pairs_of:
            choice = index[made_by[tensor]]
            amounts = np.array([c.output_bytes for c in options[choice]], dtype=float)
            begin = spans.position[made_by[tensor]]
            stop = last if tensor not in carried_index else begin
            for p in range(begin, stop + 1):
                add(p, choice, amounts)
    for i, name in enumerate(names):
        scratch = np.array([c.scratch_bytes for c in options[i]], dtype=float)
        if scratch.any():
            add(spans.position[name], i, scratch)
    stay = [np.array(s) for s in sizes]
    worst_stay = sum(float(s.max()) for s in stay)
    worst = max(
        sum(float(a.max()) for a in at[p].values())
        + sum(float(g.max()) for _, g in copies.get(p, ()))
        for p in range(spans.length)
    )
    if worst_stay + worst <= capacity:
        return []
    limits = []
    for p in range(spans.length):
        if not at[p] and p not in copies:
            continue
        terms = []
        for choice in range(len(names) + len(carried)):
            total = at[p].get(choice, np.zeros(1))
            if choice < len(names):
                total = total + stay[choice]
            if not total.any():
                continue
            terms.append((choice, np.asarray(total, dtype=float)))
        limits.append(
            Limit(f"SRAM at position {p}", tuple(terms), float(capacity), tuple(copies.get(p, ())))
        )
    return limits


def choose(
    space: Space, *, solver: Solver, gap: float, time_limit: float, seed: int
) -> tuple[Selection | None, SolveStats]:
    """Solve one space."""
    answer, stats = solve(space.problem, solver=solver, gap=gap, time_limit=time_limit, seed=seed)
    if answer is None:
        return None, stats
    n = len(space.names)
    ops = {name: space.options[i][answer.options[i]].plan for i, name in enumerate(space.names)}
    carried = {
        name: layouts[answer.options[n + i]] for i, (name, layouts) in enumerate(space.carried)
    }
    rent = sum(space.rents[i][answer.options[i]] for i in range(n))
    return Selection(space, ops, carried, answer.objective - rent), stats
