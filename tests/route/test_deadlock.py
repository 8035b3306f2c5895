"""The deadlock check against a plain graph search, and circles that must be found or broken."""

from __future__ import annotations

import networkx as nx
import pytest
from traffic_cases import ONE_WAY, TORUS, random_flows

from meshc.chips import load_chip
from meshc.errors import DoesNotFitError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.routing import Route, Routing
from meshc.paths import STEPS, path
from meshc.route import Flow, channel_cycle, route

# Four messages round a square: each turns the corner that the next one starts from.
SQUARE = [
    Flow("a", ((Coord(0, 0), (Coord(2, 2),), 1.0),)),
    Flow("b", ((Coord(0, 2), (Coord(2, 0),), 1.0),)),
    Flow("c", ((Coord(2, 2), (Coord(0, 0),), 1.0),)),
    Flow("d", ((Coord(2, 0), (Coord(0, 2),), 1.0),)),
]
ROUND = {"a": Route("xy"), "b": Route("yx"), "c": Route("xy"), "d": Route("yx")}


def slow_graph(flows: list[Flow], routing: Routing, chip: ChipSpec) -> nx.DiGraph:
    """Channel dependencies path by path (no waypoints)."""
    graph = nx.DiGraph()
    for flow in flows:
        for source, to, _ in flow.pairs:
            for d in to:
                before = None
                wrapped = [0, 0]
                for hop in path(source, d, routing.routes[flow.name], chip):
                    down, right = STEPS[hop.direction]
                    axis = 0 if down else 1
                    after = hop.row + down if down else hop.col + right
                    if not 0 <= after < (chip.rows, chip.cols)[axis]:
                        wrapped[axis] = 1
                    node = (hop, wrapped[axis])
                    if before is not None:
                        graph.add_edge(before, node)
                    before = node
    return graph


def test_a_circle_is_found() -> None:
    chip = load_chip("test4x4")
    cycle = channel_cycle(SQUARE, Routing(ROUND), chip)
    assert cycle is not None
    assert {(c.row, c.col) for c in cycle} == {
        (0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0),
    }  # fmt: skip
    for held, wanted in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        down, right = STEPS[held.direction]
        assert (held.row + down, held.col + right) == (wanted.row, wanted.col)


def test_one_direction_first_has_no_circle() -> None:
    chip = load_chip("test4x4")
    for policy in ("xy", "yx"):
        routing = Routing({f.name: Route(policy) for f in SQUARE})  # type: ignore[arg-type]
        assert channel_cycle(SQUARE, routing, chip) is None


def test_networks_are_separate_channels() -> None:
    chip = load_chip("test4x4", {"noc.networks": "2"})
    routes = {n: Route(r.policy, int(r.policy == "yx")) for n, r in ROUND.items()}
    assert channel_cycle(SQUARE, Routing(routes), chip) is None


@pytest.mark.parametrize("overrides", [{}, TORUS, ONE_WAY])
@pytest.mark.parametrize("seed", range(25))
def test_as_a_graph_search_says(seed: int, overrides: dict[str, str]) -> None:
    chip = load_chip("test4x4", overrides)
    flows = random_flows(seed, chip, 3 + seed % 4, most=3)
    routes = {f.name: Route("xy" if (seed + i) % 2 else "yx") for i, f in enumerate(flows)}
    cycle = channel_cycle(flows, Routing(routes), chip)
    graph = slow_graph(flows, Routing(routes), chip)
    assert (cycle is None) == nx.is_directed_acyclic_graph(graph)


def test_the_router_breaks_circles() -> None:
    """The least loaded choice of these flows is a circle; the answer is the next best."""
    chip = load_chip("test4x4")
    # Heavy straight traffic on the other sides makes going round the square cheapest.
    blocks = [
        Flow("e", ((Coord(0, 0), (Coord(2, 0),), 50.0),)),
        Flow("f", ((Coord(0, 2), (Coord(0, 0),), 50.0),)),
        Flow("g", ((Coord(2, 2), (Coord(0, 2),), 50.0),)),
        Flow("h", ((Coord(2, 0), (Coord(2, 2),), 50.0),)),
    ]
    flows = [Flow(f.name, tuple((s, d, 60.0) for s, d, _ in f.pairs)) for f in SQUARE] + blocks
    routing, stats, _ = route(flows, chip, gap=0.0)
    assert channel_cycle(flows, routing, chip) is None
    assert len(stats) >= 1


def test_waypoints_without_virtual_channels_may_have_no_answer() -> None:
    chip = load_chip("test4x4", {"dead_cores": "[[1,1],[1,2]]"})
    flows = random_flows(1, chip, 6, most=1)
    try:
        routing, _, _ = route(flows, chip)
    except DoesNotFitError as error:
        assert "can deadlock" in str(error) or "avoids the dead cores" in str(error)
    else:
        assert channel_cycle(flows, routing, chip) is None
