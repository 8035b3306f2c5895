"""The search space of plan selection for one region shape, as a choice problem.

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
from functools import cached_property
from itertools import product

import numpy as np

from meshc.analysis.growing import growing_dims
from meshc.analysis.liveness import Intervals, carried_names, intervals
from meshc.errors import InvariantError
from meshc.ir.graph import Graph, Op, Segment
from meshc.ir.layout import AXES, Axis, Layout, split
from meshc.ir.program import lane_bytes
from meshc.ir.shards import covers
from meshc.partition.candidates import Candidate, Rule, candidates
from meshc.partition.cost import CostModel
from meshc.solve import Choice, ChoiceProblem, Limit, Pair


@dataclass(frozen=True)
class Fixed:
    """Layouts decided elsewhere: of weights (by instance content) and of caches (by order)."""

    weights: Mapping[str, Layout] = field(default_factory=dict)
    caches: Mapping[int, Layout] = field(default_factory=dict)


@dataclass(frozen=True)
class Space:
    """The search space of one region shape: what can be chosen and what it costs.

    rents: per op and option, the part of its cost that is the price of SRAM.
    least_bytes: of weights and caches on a lane, whatever is chosen.
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
    rule: Rule | None = None,
) -> Space | None:
    """The search space for regions of rows × cols, `stages` of them; None when some op has no
    candidate.

    capacity: SRAM bytes of a lane.   reserved: bytes of it that something else holds.
    fixed, digests: layouts that weights (known by content) and caches must have.
    rule: how ops may be divided, where they can.
    """
    b = _Builder(graph, full, model, rows, cols, stages, max_context, rule)
    if not b.add_ops(fixed or Fixed(), digests or {}):
        return None
    b.add_carried()
    b.add_operands()
    b.add_hand_ons()
    least = sum(
        min(c.cycles for c in options) * segment.repeat
        for (segment, _), options in zip(full.ops(), b.options, strict=True)
    )
    price = least / max(1, capacity)
    rents = tuple(tuple(price * size for size in stay) for stay in b.stays)
    choices = [
        Choice(op.name, tuple(c.cycles * segment.repeat + r for c, r in zip(o, rent, strict=True)))
        for (segment, op), o, rent in zip(full.ops(), b.options, rents, strict=True)
    ]
    problem = ChoiceProblem(
        stage="plan",
        scope=f"region {rows}x{cols}" + (f", {stages} stages" if stages > 1 else ""),
        choices=(*choices, *b.carried_choices()),
        pairs=tuple(b.pairs),
        limits=tuple(b.limits(capacity - reserved)),
    )
    return Space(
        rows,
        cols,
        stages,
        tuple(b.index),
        tuple(b.options),
        tuple(b.carried),
        problem,
        rents,
        sum(min(s) for s in b.stays),
    )


@dataclass
class _Builder:
    """Collects the parts of a space.

    index: op name → number of its choice; carried tensors' choices come behind the ops'.
    stays: per op and option, bytes of a lane that stay for the whole step.
    copies: position → (pair, bytes of the re-sharded copy for each combination).
    """

    graph: Graph
    full: Graph
    model: CostModel
    rows: int
    cols: int
    stages: int
    max_context: int
    rule: Rule | None = None
    index: dict[str, int] = field(default_factory=dict)
    options: list[tuple[Candidate, ...]] = field(default_factory=list)
    stays: list[list[float]] = field(default_factory=list)
    carried: list[tuple[str, tuple[Layout, ...]]] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    copies: dict[int, list[tuple[int, np.ndarray]]] = field(default_factory=dict)

    @cached_property
    def growing(self) -> dict[str, frozenset[int]]:
        return growing_dims(self.full)

    @cached_property
    def spans(self) -> Intervals:
        return intervals(self.full)

    @cached_property
    def made_by(self) -> dict[str, tuple[Segment, Op]]:
        return {op.output: (s, op) for s, op in self.full.ops()}

    @cached_property
    def caches(self) -> dict[str, int | None]:
        """Present tensor → the axis that grows, if any."""
        return {p.present: p.axis for p in self.full.caches}

    @cached_property
    def renamed(self) -> dict[str, str]:
        return carried_names(self.full)

    def add_ops(self, fixed: Fixed, digests: Mapping[str, str]) -> bool:
        """A choice for every op; False when one has no option left."""
        for segment, op in self.full.ops():
            found = [
                c
                for c in candidates(
                    self.graph,
                    self.full,
                    op,
                    self.growing,
                    self.rows,
                    self.cols,
                    self.model,
                    self.rule,
                )
                if _respects(self.full, op, c, fixed, digests)
            ]
            if not found:
                return False
            self.index[op.name] = len(self.options)
            self.options.append(tuple(found))
            self.stays.append([self._stay(segment, op, c) for c in found])
        return True

    def _stay(self, segment: Segment, op: Op, c: Candidate) -> float:
        """Bytes of a lane that a candidate occupies for the whole step."""
        layers = -(-segment.repeat // self.stages)
        size = sum(
            held * (layers if len(self.full.tensors[name].instances) > 1 else 1)
            for name, held in c.held
        )
        if op.output in self.caches:
            size += layers * self._kv_bytes(op.output, c.plan.output)
        elif any(n == op.output and turn < segment.repeat - 1 for _, n, turn in self.full.outputs):
            size += layers * c.output_bytes  # every layer's result lasts until the end
        return float(size)

    def _kv_bytes(self, present: str, layout: Layout) -> int:
        t = self.full.tensors[present]
        return kv_bytes(
            self.full, present, self.caches[t.name], layout, self.max_context, self.rows, self.cols
        )

    def add_carried(self) -> None:
        """A choice of layout for every tensor that passes from layer to layer."""
        for segment in self.full.segments:
            for read, _ in segment.carried:
                shape = self.full.tensors[read].shape
                grows = self.growing.get(read, frozenset())
                self.carried.append((read, layouts_for(shape, grows, self.rows, self.cols)))

    def _carried_at(self, read: str) -> int:
        """Number of the choice of a carried tensor."""
        return len(self.options) + [name for name, _ in self.carried].index(read)

    def _carried_bytes(self, read: str, layouts: tuple[Layout, ...]) -> list[int]:
        t = self.full.tensors[read]
        return [lane_bytes(t.shape, t.dtype, lay, self.rows, self.cols) for lay in layouts]

    def carried_choices(self) -> list[Choice]:
        """Carried tensors cost what handing them from stage to stage takes."""
        far = max(self.rows, self.cols)
        return [
            Choice(
                f"carried {read}",
                tuple(
                    (self.stages - 1) * self.model.message(size, far)
                    for size in self._carried_bytes(read, layouts)
                ),
            )
            for read, layouts in self.carried
        ]

    def add_operands(self) -> None:
        """Pairs of the ops that make a tensor, or hand it on, with those that read it."""
        for segment, op in self.full.ops():
            second = self.index[op.name]
            for slot, name in enumerate(op.inputs):
                if op.kind == "append" and slot == 0 and len(op.inputs) == 2:
                    continue  # the past lies where the present will
                source = self._source(segment, name)
                if source is None or source[0] == second:
                    continue
                wanted = [c.plan.inputs[slot] for c in self.options[second]]
                at = self.spans.position[op.name]
                self._add_pair(*source, second, wanted, name, segment.repeat, at)

    def _source(self, segment: Segment, name: str) -> tuple[int, list[Layout]] | None:
        """Which choice decides the layout in which an op of the segment finds `name`, and the
        layout by option; None for what the host provides in any layout."""
        own = {op.output for op in segment.ops}
        read = name if any(name == r for r, _ in segment.carried) else None
        if read is None and name not in own:
            read = self.renamed.get(name)
        if read is not None:
            at = self._carried_at(read)
            return at, list(self.carried[at - len(self.options)][1])
        kind = self.full.tensors[name].kind
        if kind == "CACHE":
            name = next((p.present for p in self.full.caches if p.past == name), name)
        if name in self.made_by:
            return self._outputs(name)
        if kind not in ("WEIGHT", "CONSTANT", "INPUT"):
            raise InvariantError(f"Tensor '{name}' of kind {kind} is made by no op.")
        return None

    def _outputs(self, name: str) -> tuple[int, list[Layout]]:
        """The choice of the op that makes a tensor, and the tensor's layout by option."""
        at = self.index[self.made_by[name][1].name]
        return at, [c.plan.output for c in self.options[at]]

    def add_hand_ons(self) -> None:
        """Pairs of the ops that make a carried tensor, before the loop and in it, with it."""
        for segment in self.full.segments:
            for read, made in segment.carried:
                second = self._carried_at(read)
                wanted = list(self.carried[second - len(self.options)][1])
                if made in self.made_by and self.made_by[made][0].name == segment.name:
                    at = self.spans.ends[segment.name]
                    self._add_pair(*self._outputs(made), second, wanted, made, segment.repeat, at)
                if read in self.made_by:
                    at = self.spans.ends[self.made_by[read][0].name]
                    self._add_pair(*self._outputs(read), second, wanted, read, 1, at)

    def _add_pair(
        self,
        first: int,
        sources: list[Layout],
        second: int,
        wanted: list[Layout],
        tensor: str,
        weight: int,
        at: int,
    ) -> None:
        """Price every combination of the layouts in which a tensor is and is wanted."""
        t, big = self.graph.tensors[tensor], self.full.tensors[tensor]
        rows, cols = self.rows, self.cols
        # Many options agree on a layout: price each pair of distinct ones once.
        rows_of, cols_of = _numbered(sources), _numbered(wanted)
        price = np.zeros((len(rows_of), len(cols_of)))
        extra = np.zeros((len(rows_of), len(cols_of)))
        for a, i in rows_of.items():
            for b, j in cols_of.items():
                price[i, j] = weight * self.model.reshard(a, b, t.shape, t.dtype, rows, cols)
                if not covers(a, b, big.shape, rows, cols):
                    extra[i, j] = lane_bytes(big.shape, big.dtype, b, rows, cols)
        pick = np.ix_([rows_of[a] for a in sources], [cols_of[b] for b in wanted])
        cost, grow = price[pick], extra[pick]
        if not cost.any() and not grow.any():
            return
        self.pairs.append(Pair(first, second, cost))
        if grow.any():
            self.copies.setdefault(at, []).append((len(self.pairs) - 1, grow))

    def limits(self, capacity: int) -> list[Limit]:
        """One SRAM limit per position, or none at all when nothing could ever exceed it."""
        at = self._activations()
        stay = [np.array(s) for s in self.stays]
        worst = max(
            sum(float(a.max()) for a in at[p].values())
            + sum(float(g.max()) for _, g in self.copies.get(p, ()))
            for p in range(self.spans.length)
        )
        if sum(float(s.max()) for s in stay) + worst <= capacity:
            return []
        limits = []
        for p in range(self.spans.length):
            if not at[p] and p not in self.copies:
                continue
            terms = []
            for choice in range(len(stay) + len(self.carried)):
                total = at[p].get(choice, np.zeros(1))
                if choice < len(stay):
                    total = total + stay[choice]
                if total.any():
                    terms.append((choice, np.asarray(total, dtype=float)))
            copies = tuple(self.copies.get(p, ()))
            name = f"SRAM at position {p}"
            limits.append(Limit(name, tuple(terms), float(capacity), copies))
        return limits

    def _activations(self) -> list[dict[int, np.ndarray]]:
        """Per position: choice → bytes of the activations that live there, by option."""
        at: list[dict[int, np.ndarray]] = [{} for _ in range(self.spans.length)]

        def add(first: int, last: int, choice: int, sizes: list[int]) -> None:
            amounts = np.array(sizes, dtype=float)
            for p in range(first, last + 1):
                at[p][choice] = at[p][choice] + amounts if choice in at[p] else amounts

        held = dict(self.carried)
        for tensor, (first, last) in self.spans.live.items():
            if tensor in held:
                sizes = self._carried_bytes(tensor, held[tensor])
                add(first, last, self._carried_at(tensor), sizes)
            if tensor in self.made_by and tensor not in self.caches:
                op = self.made_by[tensor][1]
                choice = self.index[op.name]
                begin = self.spans.position[op.name]
                stop = begin if tensor in held else last
                add(begin, stop, choice, [c.output_bytes for c in self.options[choice]])
        for name, choice in self.index.items():
            p = self.spans.position[name]
            add(p, p, choice, [c.scratch_bytes for c in self.options[choice]])
        return at


def kv_bytes(
    graph: Graph,
    present: str,
    axis: int | None,
    layout: Layout,
    max_context: int,
    rows: int,
    cols: int,
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
        splits = tuple(split(n, axes[d], rows, cols, 1, d in grows) for d, n in enumerate(shape))
        found[Layout(splits)] = None
    return tuple(found)


def _numbered(layouts: list[Layout]) -> dict[Layout, int]:
    """Distinct layouts, numbered in order of appearance."""
    found: dict[Layout, int] = {}
    for layout in layouts:
        found.setdefault(layout, len(found))
    return found


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
