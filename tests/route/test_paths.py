"""Paths: their definition against the emulator's own, and a few by hand."""

from __future__ import annotations

import random

import pytest
from traffic_cases import KINDS

from meshc.chips import load_chip
from meshc.ir.chip import Coord
from meshc.ir.routing import Route
from meshc.paths import EAST, NORTH, SOUTH, STEPS, WEST, Hop, path

CHIPS = {**KINDS, "odd torus": {"noc.topology": "torus", "rows": "5", "cols": "3"}}


@pytest.mark.parametrize("kind", CHIPS)
def test_the_emulator_takes_the_same_links(kind: str) -> None:
    paths = pytest.importorskip("meshc.emulator.paths")
    chip = load_chip("test4x4", CHIPS[kind])
    emulated = paths.Paths(chip)
    rng = random.Random(1)

    def core() -> Coord:
        return Coord(rng.randrange(chip.rows), rng.randrange(chip.cols))

    for _ in range(300):
        policy = rng.choice(("xy", "yx", "via"))
        network = rng.randrange(chip.noc.networks)
        route = Route(policy, network, waypoint=core() if policy == "via" else None)
        source, destination = core(), core()
        links = emulated.links(
            source.row * chip.cols + source.col,
            destination.row * chip.cols + destination.col,
            route,
        )
        expected = [
            ((h.network * chip.rows + h.row) * chip.cols + h.col) * 4 + h.direction
            for h in path(source, destination, route, chip)
        ]
        assert links == expected


@pytest.mark.parametrize("kind", [k for k in CHIPS if k != "exchange"])
def test_paths_lead_from_source_to_destination(kind: str) -> None:
    chip = load_chip("test4x4", CHIPS[kind])
    rng = random.Random(2)
    for _ in range(200):
        ends = [Coord(rng.randrange(chip.rows), rng.randrange(chip.cols)) for _ in range(3)]
        policy = rng.choice(("xy", "yx", "via"))
        way = ends[2] if policy == "via" else None
        at = ends[0]
        for hop in path(ends[0], ends[1], Route(policy, 0, waypoint=way), chip):
            assert (hop.row, hop.col) == (at.row, at.col)
            down, right = STEPS[hop.direction]
            at = Coord((at.row + down) % chip.rows, (at.col + right) % chip.cols)
        assert at == ends[1]


def test_by_hand() -> None:
    mesh = load_chip("test4x4")
    there = path(Coord(0, 0), Coord(1, 2), Route("xy"), mesh)
    assert there == (Hop(0, 0, 0, EAST), Hop(0, 0, 1, EAST), Hop(0, 0, 2, SOUTH))
    assert path(Coord(1, 2), Coord(0, 2), Route("yx"), mesh) == (Hop(0, 1, 2, NORTH),)
    assert path(Coord(2, 2), Coord(2, 2), Route("xy"), mesh) == ()
    torus = load_chip("test4x4", {"noc.topology": "torus"})
    assert path(Coord(0, 0), Coord(0, 3), Route("xy"), torus) == (Hop(0, 0, 0, WEST),)
    assert len(path(Coord(0, 0), Coord(0, 2), Route("xy"), torus)) == 2
    one_way = load_chip("test4x4", KINDS["one-way"])
    assert len(path(Coord(0, 0), Coord(3, 3), Route("xy", 0), one_way)) == 6
    assert path(Coord(0, 0), Coord(3, 3), Route("xy", 1), one_way) == (
        Hop(1, 0, 0, NORTH),
        Hop(1, 3, 0, WEST),
    )
