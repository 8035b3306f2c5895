"""Routing as a choice problem: one route per flow, least maximum link load, then least hops.

A load is in bytes over the step; on a link between chips it counts as many times as that link is
slower. Links that every choice loads alike are one cell, links that can never be the fullest are
none, and of the rest only the likeliest are in the program at first: where the answer's fullest
link is another one, it is added and the program solved again, so that the result is exact.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshc.choice import Choice, ChoiceProblem, Conflict, Options, Peak
from meshc.ir.chip import ChipSpec
from meshc.ir.plan import SolveStats
from meshc.ir.routing import Route
from meshc.route.flow import Floats, Ints, Messages
from meshc.route.segments import link_bytes, seam_links
from meshc.solve import Assignment, solve

HOPS_SHARE = 1e-3  # all byte-hops together weigh at most this part of the peak
CELLS = 300  # cells in the program at first, and cells added in a round


@dataclass(frozen=True, eq=False)
class Loads:
    """What each option of each flow loads.

    options: per flow its routes.   cells, load: per flow and option the links (flat index over
    networks × rows × cols × 4) and their load.   hops: byte-hops of each option.   base: load of
    the flows that have one option.
    """

    flows: tuple[Messages, ...]
    options: tuple[tuple[Route, ...], ...]
    cells: tuple[tuple[Ints, ...], ...]
    load: tuple[tuple[Floats, ...], ...]
    hops: tuple[tuple[float, ...], ...]
    base: Floats

    def total(self, chosen: Sequence[int]) -> Floats:
        """Load of every link."""
        out = self.base.copy()
        for cells, load, o in zip(self.cells, self.load, chosen, strict=True):
            if len(cells) > 1:
                out[cells[o]] += load[o]
        return out


def loads(flows: Sequence[Messages], options: Sequence[Sequence[Route]], chip: ChipSpec) -> Loads:
    """Loads of every option; options that load all links alike are kept once."""
    links = chip.rows * chip.cols * 4
    slow = np.ones(links)
    if chip.seams is not None:
        ratio = chip.noc.link_bytes_per_cycle / chip.seams.link_bytes_per_cycle
        slow = np.where(seam_links(chip).ravel() > 0, ratio, 1.0)
    base = np.zeros(chip.noc.networks * links)
    kept: list[tuple[Route, ...]] = []
    all_cells: list[tuple[Ints, ...]] = []
    all_loads: list[tuple[Floats, ...]] = []
    all_hops: list[tuple[float, ...]] = []
    for m, routes in zip(flows, options, strict=True):
        mine: list[tuple[Route, Ints, Floats, float]] = []
        known: set[bytes] = set()
        for route in routes:
            amount = link_bytes(m, route, chip).ravel()
            cells = np.flatnonzero(amount)
            key = (cells + route.network * links).tobytes() + amount[cells].tobytes()
            if key in known:
                continue
            known.add(key)
            load = amount[cells] * slow[cells]
            mine.append((route, cells + route.network * links, load, float(amount.sum())))
        if len(mine) == 1:
            base[mine[0][1]] += mine[0][2]
        kept.append(tuple(r for r, _, _, _ in mine))
        all_cells.append(tuple(c for _, c, _, _ in mine))
        all_loads.append(tuple(a for _, _, a, _ in mine))
        all_hops.append(tuple(h for _, _, _, h in mine))
    return Loads(
        tuple(flows), tuple(kept), tuple(all_cells), tuple(all_loads), tuple(all_hops), base
    )


def objective(table: Loads, chosen: Sequence[int], weight: float) -> float:
    """Largest load plus weight × byte-hops."""
    hops = sum(h[o] for h, o in zip(table.hops, chosen, strict=True))
    return float(table.total(chosen).max(initial=0.0)) + weight * hops


def hops_weight(table: Loads) -> float:
    """Weight of a byte-hop that lets no sum of them outweigh the peak."""
    most = sum(max(h) for h in table.hops)
    least = max(float(table.base.max(initial=0.0)), _least_peak(table))
    return HOPS_SHARE * least / most if most > 0 else 0.0


def _least_peak(table: Loads) -> float:
    """A lower bound of the largest load: each flow's own least, or the mean over the links used."""
    own = [min(float(a.max(initial=0.0)) for a in load) for load in table.load]
    return max(own, default=0.0)


def choose(
    table: Loads,
    conflicts: Sequence[Conflict],
    scope: str,
    *,
    solver: str,
    gap: float,
    time_limit: float,
    seed: int,
    starts: Sequence[Options],
) -> tuple[Assignment | None, SolveStats]:
    """The option of each flow; the statistics are of the last solve, with all seconds.

    conflicts: (flow, option) sets that must not be taken together.
    """
    deadline = time.monotonic() + time_limit
    weight = hops_weight(table)
    cells, matrix = _distinct_cells(table)
    upper = table.base[cells] + sum(
        (m.max(0) for m in matrix if m.size), start=np.zeros(len(cells))
    )
    order = np.argsort(-upper, kind="stable")
    active = order[:CELLS].tolist()
    seconds = 0.0
    best: Options | None = None
    while True:
        problem = _problem(table, cells, matrix, active, conflicts, weight, scope)
        left = max(0.05, deadline - time.monotonic())
        known = [*starts, *([best] if best is not None else [])]
        answer, record = solve(
            problem, solver=solver, gap=gap, time_limit=left, seed=seed, starts=known
        )
        seconds += record.seconds
        if answer is None:
            return None, replace(record, seconds=seconds)
        chosen = answer.options
        true = objective(table, chosen, weight)
        if best is None or true < objective(table, best, weight):
            best = chosen
        at_cells = table.base[cells] + sum(
            (m[o] for m, o in zip(matrix, chosen, strict=True) if m.size),
            start=np.zeros(len(cells)),
        )
        seen = set(active)
        peak = float(at_cells[active].max(initial=0.0))
        missing = [int(i) for i in np.argsort(-at_cells, kind="stable") if int(i) not in seen]
        missing = [i for i in missing[:CELLS] if at_cells[i] > peak * (1 + 1e-9)]
        if not missing or time.monotonic() > deadline:
            break
        active += missing
    value = objective(table, best, weight)
    heuristic = max(record.heuristic_objective, value) if math.isfinite(value) else value
    gap_now = 0.0 if value <= record.bound else (value - record.bound) / value
    status = record.status
    if gap_now > max(gap, 1e-6) and status in ("optimal", "gap"):
        status = "time-limit" if solver == "ilp" else "heuristic"
    elif gap_now > 1e-6 and status == "optimal":
        status = "gap"
    record = replace(
        record,
        status=status,
        objective=value,
        bound=min(record.bound, value),
        gap=gap_now,
        seconds=seconds,
        heuristic_objective=heuristic,
    )
    return Assignment(best, value), record


def _distinct_cells(table: Loads) -> tuple[Ints, list[Floats]]:
    """Links that can matter, and for each flow (with a choice) its load [option, link].

    Links with the same base and the same load by every option are represented by one.
    """
    rng = np.random.default_rng(0)
    marks = np.zeros(len(table.base))
    free = [i for i, c in enumerate(table.cells) if len(c) > 1]
    for i in free:
        for cells, load in zip(table.cells[i], table.load[i], strict=True):
            marks[cells] += load * rng.random()
    lowest = max(float(table.base.max(initial=0.0)), 0.0)
    used = np.flatnonzero((marks > 0) | (table.base >= lowest))
    _, first = np.unique(np.stack([table.base[used], marks[used]], 1), axis=0, return_index=True)
    cells = np.sort(used[first])
    matrix = _matrix(table, cells)
    upper = table.base[cells] + sum(
        (m.max(0) for m in matrix if m.size), start=np.zeros(len(cells))
    )
    lower = table.base[cells] + sum(
        (m.min(0) for m in matrix if m.size), start=np.zeros(len(cells))
    )
    keep = upper > float(lower.max(initial=0.0)) * (1 - 1e-12)
    if not keep.any():
        keep[:1] = True
    return cells[keep], [m[:, keep] if m.size else m for m in matrix]


def _matrix(table: Loads, cells: Ints) -> list[Floats]:
    position = np.full(len(table.base), -1, np.int64)
    position[cells] = np.arange(len(cells))
    matrix = []
    for own, load in zip(table.cells, table.load, strict=True):
        if len(own) < 2:
            matrix.append(np.zeros((0, 0)))
            continue
        m = np.zeros((len(own), len(cells)))
        for o, (c, a) in enumerate(zip(own, load, strict=True)):
            where = position[c]
            m[o, where[where >= 0]] = a[where >= 0]
        matrix.append(m)
    return matrix


def _problem(
    table: Loads,
    cells: Ints,
    matrix: Sequence[Floats],
    active: Sequence[int],
    conflicts: Sequence[Conflict],
    weight: float,
    scope: str,
) -> ChoiceProblem:
    loads_of = []
    for i in active:
        members = tuple(
            (f, m[:, i].copy()) for f, m in enumerate(matrix) if m.size and m[:, i].any()
        )
        loads_of.append(members)
    base = tuple(table.base[cells[list(active)]].tolist())
    return ChoiceProblem(
        "route",
        scope,
        tuple(
            Choice(m.name, tuple(weight * v for v in h))
            for m, h in zip(table.flows, table.hops, strict=True)
        ),
        peaks=(Peak("fullest link", 1.0, tuple(loads_of), base),),
        conflicts=tuple(conflicts),
    )
