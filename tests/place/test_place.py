"""Placement against enumeration, dead cores, seams and wraps, windows, what does not fit."""

from __future__ import annotations

import itertools
import math
import random
import time

import numpy as np
import pytest

from meshc.chips import load_chip
from meshc.errors import DoesNotFitError, InvariantError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.placement import Placement, Region
from meshc.place import Block, Net, byte_hops, place
from meshc.place.blocks import axis_hops, fits

KINDS: dict[str, dict[str, str]] = {
    "mesh": {},
    "torus": {"noc.topology": "torus"},
    "seams": {"seams.rows": "2", "seams.cols": "2", "seams.hop_cycles": "7"},
    "dead": {"dead_cores": "[[1,2]]"},
    "wide": {"rows": "3", "cols": "6"},
}


def cores(region: Region) -> set[Coord]:
    return {region.core(r, c) for r in range(region.rows) for c in range(region.cols)}


def check(placement: Placement, blocks: list[Block], chip: ChipSpec) -> None:
    """Every block inside the mesh, off dead cores, on cores of its own."""
    assert list(placement.regions) == [b.name for b in blocks]
    used: set[Coord] = set()
    for block in blocks:
        region = placement.regions[block.name]
        assert (region.rows, region.cols) == (block.rows, block.cols)
        assert 0 <= region.row <= chip.rows - block.rows
        assert 0 <= region.col <= chip.cols - block.cols
        mine = cores(region)
        assert not mine & used
        assert not mine & chip.dead()
        used |= mine


def brute_force(blocks: list[Block], nets: list[Net], chip: ChipSpec) -> float:
    """Least byte-hops over all positions; inf when the blocks do not fit."""
    places = [
        list(itertools.product(range(chip.rows - b.rows + 1), range(chip.cols - b.cols + 1)))
        for b in blocks
    ]
    best = math.inf
    for choice in itertools.product(*places):
        regions = {
            b.name: Region(b.name, *p, b.rows, b.cols) for b, p in zip(blocks, choice, strict=True)
        }
        sets = [cores(r) for r in regions.values()]
        if any(s & chip.dead() for s in sets):
            continue
        if len(set().union(*sets)) == sum(map(len, sets)):
            best = min(best, byte_hops(Placement(regions), nets, chip))
    return best


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_least_byte_hops(kind: str, seed: int) -> None:
    chip = load_chip("test4x4", KINDS[kind])
    rng = random.Random(seed)
    blocks = [
        Block(f"b{i}", rng.randint(1, 2), rng.choice((1, 2, 2))) for i in range(rng.randint(2, 3))
    ]
    nets = [
        Net(*rng.sample([b.name for b in blocks], 2), bytes=float(rng.randint(1, 9)))
        for _ in range(3)
    ]
    nets.append(Net("dram.0", "b1", float(rng.randint(0, 3))))
    best = brute_force(blocks, nets, chip)
    placement, stats = place(blocks, nets, chip, gap=0.0)
    check(placement, blocks, chip)
    assert byte_hops(placement, nets, chip) == pytest.approx(best, rel=1e-5)
    assert stats[0].status == "optimal"
    assert "every position" in stats[0].scope


@pytest.mark.parametrize("solver", ["ilp", "greedy", "anneal"])
def test_chain_of_stages_is_a_snake(solver: str) -> None:
    chip = load_chip("test16x16")
    blocks = [Block(f"s{i}", 4, 4) for i in range(16)]
    nets = [Net(f"s{i}", f"s{i + 1}", 10.0) for i in range(15)]
    placement, stats = place(blocks, nets, chip, solver=solver)
    check(placement, blocks, chip)
    assert byte_hops(placement, nets, chip) == 15 * 4 * 10
    assert stats[0].bound <= 600.001


def test_low_rows_and_cols_first() -> None:
    chip = load_chip("test8x8")
    placement, _ = place([Block("a", 3, 5)], [], chip)
    assert placement.dump() == "region a at (0,0) 3x5\n"


def test_same_input_same_place() -> None:
    chip = load_chip("test8x8", {"dead_cores": "[[2,2]]"})
    blocks = [Block(f"s{i}", 2, 2 + i % 2) for i in range(5)]
    nets = [Net("s0", "s4", 3.0), Net("s1", "s2", 5.0)]
    for solver in ("ilp", "greedy", "anneal"):
        first, _ = place(blocks, nets, chip, solver=solver, time_limit=60.0)
        second, _ = place(blocks, nets, chip, solver=solver, time_limit=60.0)
        assert first == second


def test_shared_cores() -> None:
    chip = load_chip("test4x4", {"dead_cores": "[[0,0]]"})
    blocks = [Block("a", 3, 3), Block("b", 3, 3)]
    placement, _ = place(blocks, [Net("a", "b", 8.0)], chip, share=True)
    assert byte_hops(placement, [Net("a", "b", 8.0)], chip) == 0
    assert not cores(placement.regions["a"]) & chip.dead()


def test_more_blocks_than_a_window() -> None:
    chip = load_chip("test16x16")
    blocks = [Block(f"s{i}", 2, 2) for i in range(40)]
    nets = [Net(f"s{i}", f"s{(i * 7 + 3) % 40}", 10.0) for i in range(40)]
    greedy, _ = place(blocks, nets, chip, solver="greedy", time_limit=4.0)
    placement, stats = place(blocks, nets, chip, time_limit=4.0)
    check(placement, blocks, chip)
    check(greedy, blocks, chip)
    assert stats[0].scope.startswith("window 1 of 4, 16 of 40 blocks")


def test_wafer_with_dead_rows_is_fast() -> None:
    wafer = {"rows": "750", "cols": "994", "dead_rows": "[100]", "dead_cores_forward": "true"}
    chip = load_chip("test16x16", {**wafer, "dead_cores": "[[300,300],[500,700]]"})
    blocks = [Block(f"s{i}", 180, 190) for i in range(4)]
    begin = time.monotonic()
    placement, _ = place(blocks, [Net("s0", "s1", 9.0), Net("s1", "s2", 9.0)], chip)
    assert time.monotonic() - begin < 6.0
    for region in placement.regions.values():
        assert not region.row <= 100 < region.row + region.rows


def test_distances() -> None:
    torus = load_chip("test8x8", {"noc.topology": "torus"})
    at = np.array([0.0, 3.5, 7.0])
    assert axis_hops(torus, 0, at, at)[0].tolist() == [0.0, 3.5, 1.0]
    cut = load_chip("test8x8", {"seams.rows": "4", "seams.cols": "4", "seams.hop_cycles": "10"})
    assert axis_hops(cut, 0, at, at)[0].tolist() == [0.0, 3.5, 7.0 + 9.0]


def test_fits_looks_at_every_core() -> None:
    free = np.random.default_rng(0).random((9, 11)) > 0.2
    found = fits(free, 2, 3)
    for r, c in itertools.product(range(8), range(9)):
        assert found[r, c] == free[r : r + 2, c : c + 3].all()


@pytest.mark.parametrize(
    ("blocks", "overrides", "message"),
    [
        (
            [Block("a", 9, 2)],
            {},
            "region a of 9x2 cores is larger than the 8x8 mesh of test8x8; use a smaller region "
            "(--grid) or a larger chip.",
        ),
        (
            [Block("a", 8, 8)],
            {"dead_cores": "[[3,4]]"},
            "region a of 8x8 cores fits nowhere on the 8x8 mesh of test8x8 without one of its 1 "
            "dead cores; use a smaller region (--grid).",
        ),
        (
            [Block(f"s{i}", 4, 4) for i in range(5)],
            {},
            "5 regions of 4x4 need 80 cores of their own, but test8x8 has 64 working ones, 16 too "
            "few; use fewer or smaller regions.",
        ),
        (
            [Block("a", 5, 5), Block("b", 5, 5)],
            {},
            "2 regions of 5x5 cannot stand on the 8x8 mesh of test8x8 without overlap: 1 of them "
            "fit; use fewer or smaller regions.",
        ),
    ],
)
def test_does_not_fit(blocks: list[Block], overrides: dict[str, str], message: str) -> None:
    with pytest.raises(DoesNotFitError) as error:
        place(blocks, [], load_chip("test8x8", overrides))
    assert str(error.value) == message


def test_malformed() -> None:
    chip = load_chip("test4x4")
    with pytest.raises(InvariantError, match="block a is given 2 times"):
        place([Block("a", 1, 1), Block("a", 1, 1)], [], chip)
    with pytest.raises(InvariantError, match="names z, which is neither a block"):
        place([Block("a", 1, 1)], [Net("a", "z", 1.0)], chip)
    assert place([], [], chip) == (Placement({}), [])
