"""Routing: one path policy and one colour per flow, least loaded links first, without deadlock."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshc.choice import Conflict, Options
from meshc.errors import DoesNotFitError, InvariantError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.plan import SolveStats
from meshc.ir.routing import Routing
from meshc.route.candidates import Obstacles, candidates
from meshc.route.colours import colour
from meshc.route.deadlock import channel_cycle, dependencies, find_cycles, holders
from meshc.route.flow import Floats, Flow, Ints, Messages, messages
from meshc.route.problem import Loads, choose, hops_weight, loads, objective
from meshc.route.segments import link_bytes

__all__ = ["Flow", "LinkLoads", "channel_cycle", "link_loads", "route"]

ROUNDS = 15  # solves with cuts against deadlock before the best deadlock-free answer known is taken
CUTS = 30  # cuts added in a round


@dataclass(frozen=True, eq=False)
class LinkLoads:
    """bytes: over one step on every link, shape (networks, rows, cols, 4: E, W, S, N)."""

    bytes: Floats

    @property
    def largest_bytes(self) -> float:
        """Load of the fullest link."""
        return float(self.bytes.max(initial=0.0))

    @property
    def byte_hops(self) -> float:
        """Sum over all links."""
        return float(self.bytes.sum())


def route(
    flows: Sequence[Flow],
    chip: ChipSpec,
    *,
    solver: str = "ilp",
    gap: float = 0.01,
    time_limit: float = 10.0,
    seed: int = 0,
) -> tuple[Routing, list[SolveStats], LinkLoads]:
    """A route for every flow, the statistics of the solves, and the load of every link.

    The answer does not depend on the order of the flows. Raises DoesNotFitError where dead cores
    block a flow, a core would need more routing entries than it has, or no deadlock-free choice
    exists.
    """
    names = [f.name for f in flows]
    if len(set(names)) < len(names):
        twice = sorted(n for n in set(names) if names.count(n) > 1)[0]
        raise InvariantError(f"flow {twice} is given more than once; names must differ.")
    if not flows:
        return Routing({}), [], link_loads([], Routing({}), chip)
    row, col, part = _bounding_box(flows, chip)
    routing, stats, inner = _route(
        [_moved(f, row, col) for f in flows] if part is not chip else flows,
        part,
        Coord(row, col),
        solver=solver,
        gap=gap,
        time_limit=time_limit,
        seed=seed,
    )
    total = np.zeros((chip.noc.networks, chip.rows, chip.cols, 4))
    total[:, row : row + part.rows, col : col + part.cols] = inner.bytes
    return routing, stats, LinkLoads(total)


def _route(
    flows: Sequence[Flow],
    chip: ChipSpec,
    origin: Coord,
    *,
    solver: str,
    gap: float,
    time_limit: float,
    seed: int,
) -> tuple[Routing, list[SolveStats], LinkLoads]:
    """As `route`, on a part of the mesh whose corner lies at `origin` of the whole."""
    deadline = time.monotonic() + time_limit
    obstacles = Obstacles(chip)
    found = [messages(f, chip) for f in sorted(flows, key=lambda f: f.name)]
    table = loads(found, [candidates(m, chip, obstacles) for m in found], chip)
    chosen, record = _without_deadlock(
        table, chip, solver=solver, gap=gap, time_limit=0.8 * time_limit, seed=seed
    )
    routes = {m.name: o[c] for m, o, c in zip(found, table.options, chosen, strict=True)}
    colours, more = colour(
        found,
        routes,
        chip,
        origin,
        solver=solver,
        gap=gap,
        time_limit=max(0.1, deadline - time.monotonic()),
        seed=seed,
    )
    routing = Routing({n: replace(r, colour=colours[n]) for n, r in routes.items()})
    return routing, [record, *more], _loads(found, routing, chip)


def _bounding_box(flows: Sequence[Flow], chip: ChipSpec) -> tuple[int, int, ChipSpec]:
    """The smallest rectangle with all ends of all messages, as (row, col, a chip of that size),
    if it is much smaller than the mesh and every xy and yx path stays inside and is free: on a
    mesh without seams, and without dead cores in the rectangle. Otherwise the whole chip."""
    whole = (0, 0, chip)
    if chip.noc.topology != "mesh" or chip.seams is not None:
        return whole
    ends = {c for f in flows for s, to, _ in f.pairs for c in (s, *to)}
    if not ends:
        return whole
    row, col = min(c.row for c in ends), min(c.col for c in ends)
    rows = max(c.row for c in ends) - row + 1
    cols = max(c.col for c in ends) - col + 1
    inside = any(row <= c.row < row + rows and col <= c.col < col + cols for c in chip.dead())
    if inside or 4 * rows * cols > chip.rows * chip.cols or row < 0 or col < 0:
        return whole
    if row + rows > chip.rows or col + cols > chip.cols:
        return whole
    part = replace(chip, rows=rows, cols=cols, dead_cores=(), dead_rows=(), dead_cols=(), dram=())
    return row, col, part


def _moved(flow: Flow, row: int, col: int) -> Flow:
    """The flow with the rectangle's corner as the origin."""

    def at(c: Coord) -> Coord:
        return Coord(c.row - row, c.col - col)

    return replace(
        flow, pairs=tuple((at(s), tuple(at(d) for d in to), b) for s, to, b in flow.pairs)
    )


def link_loads(flows: Sequence[Flow], routing: Routing, chip: ChipSpec) -> LinkLoads:
    """Bytes on every link under a routing."""
    return _loads([messages(f, chip) for f in flows], routing, chip)


def _loads(found: Sequence[Messages], routing: Routing, chip: ChipSpec) -> LinkLoads:
    total = np.zeros((chip.noc.networks, chip.rows, chip.cols, 4))
    for m in found:
        r = routing.routes[m.name]
        total[r.network] += link_bytes(m, r, chip)
    return LinkLoads(total)


def _without_deadlock(
    table: Loads, chip: ChipSpec, *, solver: str, gap: float, time_limit: float, seed: int
) -> tuple[Options, SolveStats]:
    """Solve; where the choice can deadlock, forbid what makes the circles and solve again.

    The statistics are of the last solve, with the seconds of all.
    """
    begin = time.monotonic()
    deadline = begin + time_limit
    walked: dict[tuple[int, int], Ints] = {}
    conflicts: list[Conflict] = []
    weight = hops_weight(table)
    known: list[Options] = []
    for plain in _uniform(table):
        if not _circles(table, plain, chip, walked, 1):
            limit = begin + (0.15 + 0.15 * len(known)) * time_limit
            known.append(_descended(table, plain, chip, walked, weight, limit))
    starts = sorted(known, key=lambda o: objective(table, o, weight))
    bound = -math.inf
    for _ in range(ROUNDS if solver == "ilp" else 3):
        scope = f"{len(table.flows)} flows"
        if conflicts:
            scope += f", {len(conflicts)} cuts against deadlock"
        answer, record = choose(
            table,
            conflicts,
            scope,
            solver=solver,
            gap=gap,
            time_limit=max(0.1, deadline - time.monotonic()),
            seed=seed,
            starts=starts,
        )
        bound = max(bound, record.bound)
        if answer is None:
            break
        cuts = _circles(table, answer.options, chip, walked, CUTS)
        if not cuts:
            return answer.options, replace(record, seconds=time.monotonic() - begin)
        conflicts += cuts
        if time.monotonic() > deadline:
            break
    if not starts:
        raise DoesNotFitError(
            f"every choice of routes for the {len(table.flows)} flows on {chip.name} that was "
            "found can deadlock, because the ways around dead cores form a circle; set "
            "noc.virtual_channels = 2, or dead_cores_forward = true if dead cores forward messages."
        )
    value = objective(table, starts[0], weight)
    bound = min(bound, value)
    return starts[0], replace(
        record,
        status="time-limit" if solver == "ilp" else "heuristic",
        objective=value,
        bound=bound,
        gap=(value - bound) / value if value > bound else 0.0,
        seconds=time.monotonic() - begin,
        heuristic_objective=value,
    )


def _uniform(table: Loads) -> list[Options]:
    """Every flow's first route, and the column-first one wherever a flow has it."""
    first: Options = tuple(0 for _ in table.flows)
    policies = [[r.policy for r in o] for o in table.options]
    second: Options = tuple(p.index("yx") if "yx" in p else 0 for p in policies)
    return [first] if second == first else [first, second]


def _descended(
    table: Loads,
    start: Options,
    chip: ChipSpec,
    walked: dict[tuple[int, int], Ints],
    weight: float,
    deadline: float,
) -> Options:
    """Better routes of single flows, one by one, as long as no circle comes of it."""
    best = start
    value = objective(table, best, weight)
    improved = True
    while improved:
        improved = False
        for f, options in enumerate(table.options):
            for o in range(len(options)):
                if o == best[f]:
                    continue
                if time.monotonic() > deadline:
                    return best
                trial = (*best[:f], o, *best[f + 1 :])
                cost = objective(table, trial, weight)
                if cost < value * (1 - 1e-9) and not _circles(table, trial, chip, walked, 1):
                    best, value, improved = trial, cost, True
    return best


def _circles(
    table: Loads, chosen: Options, chip: ChipSpec, walked: dict[tuple[int, int], Ints], most: int
) -> list[Conflict]:
    """For up to `most` circles of waiting channels, the (flow, option) items that cause each."""
    edges = {}
    for i, o in enumerate(chosen):
        if (i, o) not in walked:
            walked[i, o] = dependencies(table.flows[i], table.options[i][o], chip)
        edges[str(i)] = walked[i, o]
    circles = find_cycles(edges, chip, most)
    found = {tuple(sorted(holders(c, edges), key=int)) for c in circles}
    return [Conflict(tuple((int(n), chosen[int(n)]) for n in names)) for names in sorted(found)]
