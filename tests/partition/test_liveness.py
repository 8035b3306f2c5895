"""What lives when, and what grows, against a step-by-step run of small graphs."""

from __future__ import annotations

import pytest

from meshc.analysis.growing import growing_dims
from meshc.analysis.liveness import carried_names, intervals
from meshc.ir.graph import Graph

from .small import Draft, layers


def shared() -> Graph:
    """Something made in front of the layers that all of them read, and one that the end reads."""
    d = Draft()
    d.begin()
    d.input("x", 2, 2)
    d.map("sin", ("x",), "angle", 2, 2)
    d.map("cos", ("x",), "late", 2, 2)
    d.map("tanh", ("x",), "h", 2, 2)
    d.end("prologue")
    d.begin(3)
    d.map("mul", ("h", "angle"), "t", 2, 2)
    d.map("exp", ("t",), "n", 2, 2)
    d.map("neg", ("t",), "o", 2, 2)
    d.end("body", (("h", "n"),))
    d.begin()
    d.map("add", ("n", "late"), "y", 2, 2)
    d.end("epilogue")
    d.output("y")
    d.output("o", turn=2)
    return d.graph()


GRAPHS = {"shared": shared, "layers": lambda: layers(3), "one layer": lambda: layers(1)}


def held(graph: Graph) -> dict[str, set[int]]:
    """Tensor → positions at which some op of the unrolled program still needs its value."""
    spans = intervals(graph)
    renamed = carried_names(graph)
    events: list[tuple[int, list[str], list[str]]] = []  # position, reads, writes
    for segment in graph.segments:
        for _ in range(segment.repeat):
            for op in segment.ops:
                inside = {read for read, _ in segment.carried}
                own = {o.output for o in segment.ops}
                names = [
                    renamed[n] if n in renamed and n not in own and n not in inside else n
                    for n in op.inputs
                ]
                events.append((spans.position[op.name], names, [op.output]))
            for read, made in segment.carried:
                events.append((spans.ends[segment.name], [made], [read]))
    final = [renamed.get(tensor, tensor) for _, tensor, _ in graph.outputs]
    events.append((spans.length - 1, final, []))
    made = {op.output for _, op in graph.ops()} | set(renamed.values())
    found: dict[str, set[int]] = {n: set() for n in made}
    for name in made:
        since: int | None = None
        for at, (_, reads, writes) in enumerate(events):
            if name in reads and since is not None:
                found[name] |= {events[i][0] for i in range(since, at + 1)}
                since = at
            if name in writes:
                since = at
                found[name].add(events[at][0])
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_intervals_hold_everything_that_is_needed(name: str) -> None:
    graph = GRAPHS[name]()
    spans = intervals(graph)
    caches = {p.present for p in graph.caches}  # have memory of their own
    for tensor, positions in held(graph).items():
        if tensor in caches:
            continue
        first, last = spans.live[tensor]
        assert positions <= set(range(first, last + 1)), tensor


@pytest.mark.parametrize("name", GRAPHS)
def test_intervals_are_no_longer_than_a_layer_needs(name: str) -> None:
    """Within a layer an activation goes with its last reader."""
    graph = GRAPHS[name]()
    spans = intervals(graph)
    needed = held(graph)
    special = {n for s in graph.segments for pair in s.carried for n in pair}
    special |= {tensor for _, tensor, _ in graph.outputs}
    for segment in graph.segments:
        for op in segment.ops:
            if op.output not in special and needed[op.output]:
                assert spans.live[op.output] == (min(needed[op.output]), max(needed[op.output]))


def test_positions_count_ops_and_ends() -> None:
    spans = intervals(shared())
    assert [spans.position[f"make {n}"] for n in ("angle", "late", "h")] == [0, 1, 2]
    assert spans.ends == {"prologue": 3, "body": 7, "epilogue": 9}
    assert spans.length == 10
    assert spans.live["angle"] == (0, 7) and spans.live["late"] == (1, 8)
    assert spans.live["h"] == (2, 8) or spans.live["h"][1] >= 7


def test_growth_spreads_from_the_caches() -> None:
    grows = growing_dims(layers(2))
    assert grows["past"] == grows["keys"] == {2}
    assert grows["k.one"] == grows["k.two"] == {3} and grows["k.all"] == {2}
    assert grows["scores"] == grows["shift"] == grows["soft"] == {3}
    for name in ("q", "k", "top", "mix", "h", "next", "wq", "logits"):
        assert not grows.get(name)


def test_nothing_grows_without_a_cache() -> None:
    assert growing_dims(shared()) == {}
