"""The ways to divide one op over a region: every assignment of the two mesh axes to iteration
dimensions that its record allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, product
from math import prod

from meshc.ir.graph import Graph, Op
from meshc.ir.layout import AXES, WHOLE, Axis, Layout, Split, split
from meshc.ir.plan import OpPlan
from meshc.ir.program import lane_bytes
from meshc.ops import Space, Use, scratch, space, work
from meshc.ops.record import PARTIAL
from meshc.partition.cost import CostModel

# Whether a strategy allows an op to be divided so: (op, its space, assignment).
Rule = Callable[[Op, Space, tuple[int | None, int | None]], bool]


@dataclass(frozen=True)
class Candidate:
    """One way to run an op.

    cycles: predicted time of the kernel and of the all-reduces behind it.
    held: (tensor, bytes per lane and instance) of operands that stay in SRAM for the whole step
    (weights, constants, inputs).   output_bytes: per lane.   scratch_bytes: receive buffers.
    """

    plan: OpPlan
    cycles: float
    held: tuple[tuple[str, int], ...]
    output_bytes: int
    scratch_bytes: int

    @property
    def resident(self) -> int:
        return sum(size for _, size in self.held)


def layouts_of(
    s: Space,
    axes: tuple[tuple[Axis, ...], ...],
    shapes: list[tuple[int, ...]],
    growing: list[frozenset[int]],
    rows: int,
    cols: int,
) -> list[Layout] | None:
    """Operand layouts when iteration dimension d is divided over axes[d]; None if it cannot be."""
    found = []
    for uses, shape, grows in zip((*s.inputs, s.output), shapes, growing, strict=True):
        splits = []
        for d, (use, n) in enumerate(zip(uses, shape, strict=True)):
            if use.dim is None or not axes[use.dim]:
                splits.append(WHOLE)
                continue
            cyclic = d in grows
            if cyclic and use.unit != 1:
                return None
            splits.append(split(n, axes[use.dim], rows, cols, use.unit, cyclic))
        found.append(Layout(tuple(splits)))
    return found


def assignments(s: Space, rows: int, cols: int) -> list[tuple[int | None, int | None]]:
    """Every choice of an iteration dimension, or none, for the row axis and the column axis."""
    free = [i for i, d in enumerate(s.dims) if d.kind != "whole" and d.size > 1]
    by_row: list[int | None] = [None, *(free if rows > 1 else [])]
    by_col: list[int | None] = [None, *(free if cols > 1 else [])]
    return list(product(by_row, by_col))


def candidates(
    graph: Graph,
    full: Graph,
    op: Op,
    growing: dict[str, frozenset[int]],
    rows: int,
    cols: int,
    model: CostModel,
    rule: Rule | None = None,
) -> list[Candidate]:
    """All ways to run `op` on a rows × cols region, without those that another one beats in time
    and memory at equal layouts.

    rule: only these, where there are any.

    graph: priced at these shapes.   full: the same graph at the longest context, which decides
    what can be divided and how many bytes it takes.
    """
    operands = [full.tensors[n] for n in (*op.inputs, op.output)]
    s = space(op, operands[:-1], operands[-1])
    if op.kind == "append" and len(op.inputs) == 2:
        # The past's own memory is the output's.
        s = Space(s.dims, (s.output, s.inputs[1]), s.output)
    grows = [growing.get(t.name, frozenset()) for t in operands]
    # A cache that keeps a window may be longer now than at the longest context.
    shapes = [tuple(map(max, t.shape, graph.tensors[t.name].shape)) for t in operands]
    every = assignments(s, rows, cols)
    for choices in ([a for a in every if rule(op, s, a)] if rule else [], every):
        best: dict[tuple[Layout, ...], Candidate] = {}
        for choice in choices:
            per_dim: list[tuple[Axis, ...]] = [()] * len(s.dims)
            for axis, dim in zip(AXES, choice, strict=True):
                if dim is not None:
                    per_dim[dim] = (*per_dim[dim], axis)
            layouts = layouts_of(s, tuple(per_dim), shapes, grows, rows, cols)
            if layouts is None or not _consistent(s, layouts):
                continue
            made = _candidate(graph, full, op, s, choice, per_dim, layouts, rows, cols, model)
            key = tuple(layouts)
            if key not in best or made.cycles < best[key].cycles:
                best[key] = made
        if best:
            break
    return _undominated(full, op, list(best.values()))


def _consistent(s: Space, layouts: list[Layout]) -> bool:
    """Every operand must cut a dimension at the same units, cyclically or in blocks alike."""
    seen: dict[int, tuple[bool, int]] = {}
    for uses, layout in zip((*s.inputs, s.output), layouts, strict=True):
        for use, part in zip(uses, layout.splits, strict=True):
            if use.dim is None or not part.axes:
                continue
            cut = (part.cyclic, part.block // use.unit)
            if seen.setdefault(use.dim, cut) != cut:
                return False
    return True


def _candidate(
    graph: Graph,
    full: Graph,
    op: Op,
    s: Space,
    choice: tuple[int | None, int | None],
    per_dim: list[tuple[Axis, ...]],
    layouts: list[Layout],
    rows: int,
    cols: int,
    model: CostModel,
) -> Candidate:
    names = (*op.inputs, op.output)
    local = [
        layout.largest(graph.tensors[n].shape, rows, cols)
        for layout, n in zip(layouts, names, strict=True)
    ]
    dtypes = [graph.tensors[n].dtype for n in names]
    cycles = model.kernel(work(op, local[:-1], local[-1], dtypes[:-1], dtypes[-1]))
    reduce: list[Axis] = []
    groups: list[int] = []
    for d, dim in enumerate(s.dims):
        if dim.kind in PARTIAL:
            for axis in per_dim[d]:
                lanes = rows if axis == "row" else cols
                best, time = model.best_groups(
                    prod(local[-1]), dtypes[-1], lanes, model.pitch(axis), dim.kind
                )
                reduce.append(axis)
                groups.append(best)
                cycles += time
    plan = OpPlan(
        op.name, choice, tuple(layouts[:-1]), layouts[-1], tuple(reduce), tuple(groups), cycles
    )
    sizes = [
        lane_bytes(full.tensors[n].shape, full.tensors[n].dtype, layout, rows, cols)
        for n, layout in zip(names, layouts, strict=True)
    ]
    held = tuple(
        (n, size)
        for n, size in zip(names[:-1], sizes[:-1], strict=True)
        if full.tensors[n].kind in ("WEIGHT", "CONSTANT", "INPUT")
    )
    longest = [
        layout.largest(full.tensors[n].shape, rows, cols)
        for layout, n in zip(layouts, names, strict=True)
    ]
    own = scratch(op, longest[:-1], longest[-1], dtypes[:-1], dtypes[-1])
    return Candidate(plan, cycles, held, sizes[-1], max(own, 2 * sizes[-1] if reduce else 0))


def _undominated(full: Graph, op: Op, found: list[Candidate]) -> list[Candidate]:
    """Drop candidates that one with the same activations' layouts beats in time and memory."""

    def seen(c: Candidate) -> tuple[Layout, ...]:
        return (
            *(
                layout
                for n, layout in zip(op.inputs, c.plan.inputs, strict=True)
                if full.tensors[n].kind not in ("WEIGHT", "CONSTANT", "INPUT")
            ),
            c.plan.output,
        )

    kept: list[Candidate] = []
    for c in sorted(found, key=lambda c: (c.cycles, c.resident, str(c.plan.assignment))):
        if not any(seen(k) == seen(c) and k.resident <= c.resident for k in kept):
            kept.append(c)
    return kept


def resize(graph: Graph, op: Op, plan: OpPlan, rows: int, cols: int) -> OpPlan:
    """The plan of an op for tensors of other sizes, divided over the same axes.

    What runs along what may change where a dimension shrinks to one element, so the axes are read
    from the plan's layouts and not from its assignment: an iteration dimension stays divided where
    all that run along it were divided alike, and becomes whole otherwise.
    """
    operands = [graph.tensors[n] for n in (*op.inputs, op.output)]
    s = space(op, operands[:-1], operands[-1])
    parts = [
        list(zip(uses, layout.splits, t.shape, strict=True))
        for uses, layout, t in zip(
            (*s.inputs, s.output), (*plan.inputs, plan.output), operands, strict=True
        )
    ]
    axes = _axes_kept(s, list(chain.from_iterable(parts)), plan)

    def resized(use: Use, old: Split, n: int) -> Split:
        if use.dim is None or use.dim not in axes or not old.axes:
            return WHOLE
        return old if old.cyclic else split(n, old.axes, rows, cols, use.unit)

    layouts = [Layout(tuple(resized(*p) for p in part)) for part in parts]
    joined = {a for d, own in axes.items() if s.dims[d].kind in PARTIAL for a in own}
    kept = [(a, g) for a, g in zip(plan.reduce, plan.groups, strict=True) if a in joined]
    row, col = (next((d for d, own in axes.items() if a in own), None) for a in AXES)
    return replace(
        plan,
        assignment=(row, col),
        inputs=tuple(layouts[:-1]),
        output=layouts[-1],
        reduce=tuple(a for a, _ in kept),
        groups=tuple(g for _, g in kept),
    )


def _axes_kept(
    s: Space, parts: list[tuple[Use, Split, int]], plan: OpPlan
) -> dict[int, tuple[Axis, ...]]:
    """Iteration dimension → the axes that still divide it. parts: use, split before and size now
    of every operand dimension."""
    found: dict[int, set[tuple[Axis, ...]]] = {}
    for use, old, n in parts:
        if use.dim is not None and (old.axes or n != 1):
            found.setdefault(use.dim, set()).add(old.axes)
    kept: dict[int, tuple[Axis, ...]] = {}
    for d, alike in found.items():
        axes = next(iter(alike))
        kind = s.dims[d].kind
        if len(alike) > 1 or not axes or kind == "whole":
            continue
        if kind in PARTIAL and not set(axes) <= set(plan.reduce):
            continue
        kept[d] = axes
    return kept


def resize_layout(layout: Layout, shape: tuple[int, ...], rows: int, cols: int) -> Layout:
    """A layout over the same axes for a tensor of another size."""
    return Layout(
        tuple(
            old if old.cyclic or not old.axes else split(n, old.axes, rows, cols)
            for old, n in zip(layout.splits, shape, strict=True)
        )
    )
