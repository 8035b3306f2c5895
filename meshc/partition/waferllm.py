"""Strategy `waferllm`: the mapping of WaferLLM (OSDI'25, arXiv 2502.04563).

A square grid. Decode: every product divides its weights' inputs over one axis and their outputs
over the other, so that products alternate between the axes and nothing is re-sharded; what each
core lacks is joined by an all-reduce along a line, a two-level tree of groups. Projections of one
input share an all-reduce. The statistics of a norm, the maximum and the sum of a softmax have
one each: ten in a layer. Caches are divided token by token, so that they stay balanced.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from meshc.errors import InputError
from meshc.ir.chip import ChipSpec
from meshc.ir.graph import Graph, Op, Segment
from meshc.ir.plan import OpPlan, Plan, SolveStats
from meshc.ops import Space
from meshc.ops.record import PARTIAL
from meshc.partition.auto import Options, PhaseGraphs, plan_auto

SETTINGS = ("groups",)
SIDES = 12  # grids that are tried where none is given
PRODUCTS = ("matmul",)


def plan_waferllm(
    phases: list[PhaseGraphs], chip: ChipSpec, options: Options
) -> tuple[list[dict[str, Plan]], list[SolveStats]]:
    """The published mapping on the grid, or on the square that is predicted fastest.

    Setting `groups`: of the reduction trees; the square root of the grid's side otherwise.
    Raises InputError for settings or grids that it does not have.
    """
    groups = _groups(options)
    if options.grid and options.grid[0] != options.grid[1]:
        raise InputError(
            f"Strategy 'waferllm' maps onto square grids, but --grid is {options.grid[0]}x"
            f"{options.grid[1]}; give one such as {min(options.grid)}x{min(options.grid)}."
        )
    side = min(chip.rows, chip.cols)
    sides = sorted({max(1, side * k // SIDES) for k in range(1, SIDES + 1)})
    plain = [replace(p.in_form(()), make=None) for p in phases]
    ruled = replace(options, rule=_rule, shapes=tuple((n, n) for n in sides))
    finalists, stats = plan_auto(plain, chip, ruled)
    graphs = {p.phase: p.full for p in plain}
    return [
        {phase: _published(graphs[phase], p, groups) for phase, p in plans.items()}
        for plans in finalists
    ], stats


def _groups(options: Options) -> int | None:
    """The setting `groups`."""
    found = dict(options.settings).get("groups")
    if found is None:
        return None
    if not found.isdecimal() or int(found) < 1:
        raise InputError(
            f"Setting 'groups' of strategy 'waferllm' is '{found}', but it must be a whole number "
            "of at least 1; give one such as --set groups=20."
        )
    return int(found)


def _product(op: Op) -> bool:
    """Whether a kernel multiplies by a matrix."""
    return op.kind in PRODUCTS or any(o.kind in PRODUCTS for o in op.body)


def _rule(op: Op, s: Space, choice: tuple[int | None, int | None]) -> bool:
    """Whether an op is divided as published: a product over what it sums up on one axis and over
    what it makes on the other, a statistic over what it sums up on one axis."""
    partial = [d for d in choice if d is not None and s.dims[d].kind in PARTIAL]
    if not any(d.kind in PARTIAL for d in s.dims):
        return True
    if len(partial) != 1:
        return False
    others = [d for d in choice if d is not None and d not in partial]
    if _product(op):
        return bool(s.output) and others == [s.output[-1].dim]
    return not others


def _published(graph: Graph, plan: Plan, groups: int | None) -> Plan:
    """The plan with the published trees and joined all-reduces."""
    lanes = {"row": plan.rows, "col": plan.cols}

    def trees(p: OpPlan) -> OpPlan:
        count = tuple(groups or round(sqrt(lanes[axis])) for axis in p.reduce)
        return replace(p, groups=count)

    ops = {name: trees(p) for name, p in plan.ops.items()}
    joined = tuple(g for s in graph.segments for g in _joined(graph, s, ops))
    return replace(plan, strategy="waferllm", ops=ops, joined=joined)


def _joined(graph: Graph, segment: Segment, ops: dict[str, OpPlan]) -> list[tuple[str, ...]]:
    """Products of one tensor with weights whose results are joined along the same lines."""
    presents = {pair.present for pair in graph.caches}
    found: dict[tuple[object, ...], list[str]] = {}
    for op in segment.ops:
        p = ops[op.name]
        read = [n for n in op.inputs if graph.tensors[n].kind not in ("WEIGHT", "CONSTANT")]
        if not _product(op) or len(read) != 1 or len(p.reduce) != 1 or op.output in presents:
            continue
        key = (read[0], p.reduce, p.groups, graph.tensors[op.output].dtype)
        found.setdefault(key, []).append(op.name)
    return [tuple(names) for names in found.values() if len(names) > 1]
