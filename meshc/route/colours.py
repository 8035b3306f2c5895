"""Colours: the routing entry of each flow, different wherever two flows share a core.

A colour is a table that says for each source where its messages go. Flows on the same path share
one when their tables do not contradict each other: every source that both have sends to the same
cores. Every core that a colour touches (its ends and the routers between) holds one entry for it;
reuse of an entry by flows that never meet in time is not modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshc.choice import Choice, ChoiceProblem, Pair
from meshc.errors import DoesNotFitError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.plan import SolveStats
from meshc.ir.routing import Route
from meshc.route.flow import Messages
from meshc.route.segments import touched
from meshc.solve import solve


def colour(
    flows: Sequence[Messages],
    routes: Mapping[str, Route],
    chip: ChipSpec,
    origin: Coord,
    *,
    solver: str,
    gap: float,
    time_limit: float,
    seed: int,
) -> tuple[dict[str, int], list[SolveStats]]:
    """Flow name → colour from 0, few of them, and the solve's statistics where one was needed.

    origin: where the corner of `chip` lies, if it is a part of a larger mesh.

    Raises DoesNotFitError when a core would hold more entries than noc.max_routes.
    """
    kinds = _kinds(flows, routes)
    entries = np.zeros((chip.rows, chip.cols), np.int64)
    masks = []
    for kind in kinds:
        mask = np.zeros_like(entries, bool)
        for m in kind.members:
            if len(m.message):
                mask |= touched(m, kind.route, chip)
        entries += mask
        masks.append(np.packbits(mask.ravel()))
    most = int(entries.max(initial=0))
    limit = chip.noc.max_routes
    if 0 < limit < most:
        row, col = divmod(int(entries.argmax()), chip.cols)
        raise DoesNotFitError(
            f"core ({row + origin.row}, {col + origin.col}) of {chip.name} would hold {most} "
            "routing entries, one for each kind of message through it, but noc.max_routes allows "
            f"{limit}, {most - limit} fewer; "
            "use a strategy with fewer kinds of transfers or raise noc.max_routes."
        )
    count = len(masks)
    near: list[set[int]] = [set() for _ in range(count)]
    for i in range(count):
        for j in range(i):
            if bool(np.any(masks[i] & masks[j])):
                near[i].add(j)
                near[j].add(i)
    found = _greedy(near)
    stats: list[SolveStats] = []
    if solver == "ilp" and 0 < limit < max(found, default=-1) + 1:
        found, record = _fewer(found, near, most, gap=gap, time_limit=time_limit, seed=seed)
        stats.append(record)
    if 0 < limit < max(found, default=-1) + 1:
        raise DoesNotFitError(
            f"the flows on {chip.name} need {max(found) + 1} colours so that no two share one at a "
            f"core, but noc.max_routes allows {limit}; use a strategy with fewer kinds of "
            "transfers or raise noc.max_routes."
        )
    return {m.name: found[i] for i, kind in enumerate(kinds) for m in kind.members}, stats


@dataclass
class _Kind:
    """Flows that share a colour. table: source → the destination sets of its messages."""

    route: Route
    members: list[Messages]
    table: dict[tuple[int, int], frozenset[tuple[tuple[int, int], ...]]]

    def takes(self, table: dict[tuple[int, int], frozenset[tuple[tuple[int, int], ...]]]) -> bool:
        return all(self.table.get(source, to) == to for source, to in table.items())


def _kinds(flows: Sequence[Messages], routes: Mapping[str, Route]) -> list[_Kind]:
    """Join flows whose tables agree, the largest tables first."""
    alike: dict[tuple[bytes, Route], list[Messages]] = {}
    for m in flows:
        alike.setdefault((m.signature(), routes[m.name]), []).append(m)
    tables = [(route, members, _table(members[0])) for (_, route), members in alike.items()]
    tables.sort(key=lambda t: (-len(t[2]), t[1][0].name))
    kinds: list[_Kind] = []
    for route, members, table in tables:
        home = next((k for k in kinds if k.route == route and k.takes(table)), None)
        if home is None:
            kinds.append(_Kind(route, list(members), dict(table)))
        else:
            home.members += members
            home.table |= table
    return kinds


def _table(m: Messages) -> dict[tuple[int, int], frozenset[tuple[tuple[int, int], ...]]]:
    to: dict[int, list[tuple[int, int]]] = {}
    source: dict[int, tuple[int, int]] = {}
    for number, s, d in zip(
        m.message.tolist(), m.source.tolist(), m.destination.tolist(), strict=True
    ):
        to.setdefault(number, []).append((d[0], d[1]))
        source[number] = (s[0], s[1])
    found: dict[tuple[int, int], set[tuple[tuple[int, int], ...]]] = {}
    for number, places in to.items():
        found.setdefault(source[number], set()).add(tuple(sorted(places)))
    return {s: frozenset(sets) for s, sets in found.items()}


def _greedy(near: Sequence[set[int]]) -> list[int]:
    """DSATUR: next the flow that sees most colours, then most neighbours, then the first."""
    found = [-1] * len(near)
    seen: list[set[int]] = [set() for _ in near]
    for _ in near:
        i = max(
            (i for i, c in enumerate(found) if c < 0),
            key=lambda i: (len(seen[i]), len(near[i]), -i),
        )
        found[i] = next(c for c in range(len(near)) if c not in seen[i])
        for j in near[i]:
            seen[j].add(found[i])
    return found


def _fewer(
    found: list[int],
    near: Sequence[set[int]],
    least: int,
    *,
    gap: float,
    time_limit: float,
    seed: int,
) -> tuple[list[int], SolveStats]:
    """Try to colour with fewer colours: an option's cost is 1 for each colour above the least."""
    colours = max(found) + 1
    costs = tuple(float(max(0, c + 1 - least)) for c in range(colours))
    same = np.where(np.eye(colours, dtype=bool), np.inf, 0.0)
    problem = ChoiceProblem(
        "route",
        f"colours of {len(near)} flows, at least {least}",
        tuple(Choice(str(i), costs) for i in range(len(near))),
        tuple(Pair(j, i, same) for i in range(len(near)) for j in sorted(near[i]) if j < i),
    )
    answer, record = solve(
        problem, gap=gap, time_limit=time_limit, seed=seed, starts=[tuple(found)]
    )
    if answer is None or max(answer.options) >= max(found):
        return found, record
    return list(answer.options), record
