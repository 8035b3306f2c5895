"""Routing against enumeration, the loads against single paths, dead cores, colours, order."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter

import pytest
from traffic_cases import KINDS, TORUS, random_flows

from meshc.chips import load_chip
from meshc.errors import DoesNotFitError, InvariantError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.routing import Route, Routing
from meshc.paths import Hop, crosses_seam, path
from meshc.route import Flow, LinkLoads, link_loads, route
from meshc.route.candidates import Obstacles, candidates
from meshc.route.deadlock import channel_cycle
from meshc.route.flow import messages
from meshc.route.problem import HOPS_SHARE


def slow_loads(flows: list[Flow], routes: dict[str, Route], chip: ChipSpec) -> Counter[Hop]:
    """Bytes per link, path by path."""
    out: Counter[Hop] = Counter()
    for flow in flows:
        for source, to, size in flow.pairs:
            ways = [path(source, d, routes[flow.name], chip) for d in to]
            if chip.noc.multicast:
                # Twice over a link only where one path does so itself (round a one-way ring).
                ways = [tuple(_union(ways).elements())]
            for way in ways:
                for hop in way:
                    out[hop] += size * flow.weight
    return out


def _union(ways: list[tuple[Hop, ...]]) -> Counter[Hop]:
    joined: Counter[Hop] = Counter()
    for way in ways:
        joined |= Counter(way)
    return joined


def slow_objective(flows: list[Flow], routes: dict[str, Route], chip: ChipSpec) -> float:
    """The largest load, seam links counted by how much slower they are."""
    slower = 1.0
    if chip.seams is not None:
        slower = chip.noc.link_bytes_per_cycle / chip.seams.link_bytes_per_cycle
    loads = slow_loads(flows, routes, chip)
    return max((b * (slower if crosses_seam(h, chip) else 1) for h, b in loads.items()), default=0)


def as_counter(loads: LinkLoads) -> dict[Hop, float]:
    return {
        Hop(*index): float(loads.bytes[index])
        for index in itertools.product(*map(range, loads.bytes.shape))
        if loads.bytes[index]
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_loads_are_those_of_the_paths(kind: str, seed: int) -> None:
    chip = load_chip("test4x4", KINDS[kind])
    flows = random_flows(seed, chip, 5)
    rng = random.Random(seed)
    for policy in ("xy", "yx", "via"):
        routes = {
            f.name: Route(
                policy,
                rng.randrange(chip.noc.networks),
                waypoint=Coord(rng.randrange(4), rng.randrange(4)) if policy == "via" else None,
            )
            for f in flows
        }
        if policy == "via":
            flows = [
                Flow(f.name, tuple((s, to[:1], b) for s, to, b in f.pairs), f.weight) for f in flows
            ]
        assert as_counter(link_loads(flows, Routing(routes), chip)) == dict(
            slow_loads(flows, routes, chip)
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_least_largest_load(kind: str, seed: int) -> None:
    chip = load_chip("test4x4", KINDS[kind])
    flows = random_flows(seed, chip, 4)
    routing, stats, loads = route(flows, chip, gap=0.0)
    offered = [candidates(messages(f, chip), chip, Obstacles(chip)) for f in flows]
    names = [f.name for f in flows]
    best = min(
        slow_objective(flows, dict(zip(names, choice, strict=True)), chip)
        for choice in itertools.product(*offered)
        if channel_cycle(flows, Routing(dict(zip(names, choice, strict=True))), chip) is None
    )
    mine = slow_objective(flows, routing.routes, chip)
    assert best <= mine <= best * (1 + 2 * HOPS_SHARE)
    assert channel_cycle(flows, routing, chip) is None
    assert as_counter(loads) == dict(slow_loads(flows, routing.routes, chip))
    assert all(s.bound <= s.objective * (1 + 1e-9) for s in stats)


@pytest.mark.parametrize("solver", ["ilp", "greedy", "anneal"])
def test_order_of_flows_and_pairs_does_not_matter(solver: str) -> None:
    chip = load_chip("test8x8")
    flows = random_flows(5, chip, 12)
    turned = [Flow(f.name, tuple(reversed(f.pairs)), f.weight) for f in reversed(flows)]
    first, _, _ = route(flows, chip, solver=solver)
    second, _, _ = route(turned, chip, solver=solver)
    assert first.dump() == second.dump()


@pytest.mark.parametrize("overrides", [{}, TORUS, {"noc.virtual_channels": "2"}])
@pytest.mark.parametrize("seed", range(10))
def test_dead_cores_are_avoided(seed: int, overrides: dict[str, str]) -> None:
    chip = load_chip("test8x8", {"dead_cores": "[[3,4],[5,1]]", **overrides})
    flows = random_flows(seed, chip, 6, most=2)
    routing, _, _ = route(flows, chip)
    dead = chip.dead()
    for flow in flows:
        for source, to, _ in flow.pairs:
            for d in to:
                way = path(source, d, routing.routes[flow.name], chip)
                assert not dead & {Coord(h.row, h.col) for h in way}
    assert channel_cycle(flows, routing, chip) is None


def test_around_a_dead_core_in_the_way() -> None:
    chip = load_chip("test8x8", {"dead_cores": "[[3,4]]"})
    routing, _, loads = route([Flow("a", ((Coord(3, 0), (Coord(3, 7),), 64.0),))], chip)
    assert routing.routes["a"].policy == "via"
    assert loads.byte_hops == 64 * 9


def test_no_way_around() -> None:
    chip = load_chip("test4x4", {"dead_cores": "[[0,1],[1,3],[2,1],[3,3],[1,1]]"})
    chips = Flow("a", ((Coord(0, 0), (Coord(0, 3), Coord(3, 0), Coord(2, 3)), 64.0),))
    with pytest.raises(DoesNotFitError) as error:
        route([chips], chip)
    assert str(error.value) == (
        "no route of flow a on test4x4 avoids the dead cores: from (0, 0) to (0, 3) along the row, "
        "along the column and over any one waypoint that serves all its 3 messages, each way is "
        "blocked; set dead_cores_forward = true if dead cores forward messages, or use regions "
        "that lie on one side of them (--grid)."
    )


def test_two_transfers_are_spread_over_both_ways() -> None:
    chip = load_chip("test8x8")
    flows = [
        Flow("a", ((Coord(0, 0), (Coord(7, 7),), 1000.0),)),
        Flow("b", ((Coord(0, 0), (Coord(7, 7),), 1000.0),)),
    ]
    _, stats, loads = route(flows, chip)
    assert loads.largest_bytes == 1000
    assert stats[0].status in ("optimal", "gap")


def test_colours_differ_where_flows_meet() -> None:
    chip = load_chip("test8x8")
    flows = random_flows(2, chip, 14)
    same = Flow("twin", flows[0].pairs, 7.0)
    routing, _, _ = route([*flows, same], chip)
    routes_at: dict[tuple[Coord, int], set[Route]] = {}
    tables: dict[tuple[int, Coord], set[frozenset[tuple[Coord, ...]]]] = {}
    for flow in [*flows, same]:
        r = routing.routes[flow.name]
        sends: dict[Coord, set[tuple[Coord, ...]]] = {}
        for source, to, _ in flow.pairs:
            sends.setdefault(source, set()).add(tuple(sorted(to)))
            for d in to:
                for core in {source, d} | {Coord(h.row, h.col) for h in path(source, d, r, chip)}:
                    routes_at.setdefault((core, r.colour), set()).add(r)
        for source, places in sends.items():
            tables.setdefault((r.colour, source), set()).add(frozenset(places))
    assert all(len(routes) == 1 for routes in routes_at.values())
    # Flows that share a colour agree on where each of their common sources sends.
    assert all(len(found) == 1 for found in tables.values())
    if routing.routes["twin"].policy == routing.routes["f0"].policy:
        assert routing.routes["twin"].colour == routing.routes["f0"].colour


def test_more_routes_than_a_core_has() -> None:
    chip = load_chip("test8x8", {"noc.max_routes": "2"})
    # The same source sends elsewhere in each, so that no two can share a colour.
    flows = [Flow(f"f{i}", ((Coord(0, 2), (Coord(0, 5 + i),), 10.0),)) for i in range(3)]
    with pytest.raises(DoesNotFitError) as error:
        route(flows, chip)
    assert str(error.value) == (
        "core (0, 2) of test8x8 would hold 3 routing entries, one for each kind of message through "
        "it, but noc.max_routes allows 2, 1 fewer; use a strategy with fewer kinds of transfers or "
        "raise noc.max_routes."
    )


def test_many_messages_are_fast() -> None:
    chip = load_chip("test16x16", {"rows": "64", "cols": "64"})
    rng = random.Random(0)
    cores = [Coord(r, c) for r in range(64) for c in range(64)]
    flows = [
        Flow(f"f{i}", tuple((a, (rng.choice(cores),), 64.0) for a in rng.choices(cores, k=25_000)))
        for i in range(4)
    ]
    begin = time.process_time()
    route(flows, chip)
    assert time.process_time() - begin < 10.0


def test_nothing_to_route() -> None:
    chip = load_chip("test4x4")
    routing, stats, loads = route([], chip)
    assert (routing.routes, stats, loads.largest_bytes) == ({}, [], 0.0)
    routing, _, loads = route([Flow("idle", ())], chip)
    assert routing.routes["idle"].policy == "xy"
    assert loads.byte_hops == 0


def test_malformed_flows() -> None:
    chip = load_chip("test4x4")
    with pytest.raises(InvariantError, match="flow a is given more than once"):
        route([Flow("a", ()), Flow("a", ())], chip)
    with pytest.raises(InvariantError, match="outside the 4x4 mesh"):
        route([Flow("a", ((Coord(0, 0), (Coord(4, 0),), 1.0),))], chip)
