"""Kernels on one core beside measured ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshc import corepoints
from meshc.chips import load_chip
from meshc.corepoints import Tile
from meshc.emulator.core import CoreTimer

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared" / "groundtruth"


def tile_timer() -> CoreTimer:
    ops = (corepoints.MATMUL, corepoints.MAXIMUM)
    return CoreTimer(load_chip("gc200"), {op.name: op for op in ops})


def test_measured_tiles_are_near_and_impossible_ones_stand_apart() -> None:
    points = list(corepoints.ipu_tiles(DATA))
    apart = [p for p in points if "above the engine's peak" in p.group]
    assert [p.name for p in apart] == ["batch 2, 4 to 4 channels, 3600 positions, 49 taps"]
    errors = [abs(p.error) for p in points if p not in apart]
    assert max(errors) < 0.15


def test_all_measured_tiles_are_near_on_average() -> None:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not there: the measured tiles cannot be compared")
    points = [p for p in corepoints.ipu_tiles(SHARED) if "above" not in p.group]
    assert sum(abs(p.error) for p in points) / len(points) < 0.12


def test_a_convolution_of_one_position_is_a_matmul() -> None:
    timer = tile_timer()
    row = Tile("conv", 2, 20, 12, 100, 1, 1)
    shapes = ((200, 20), (20, 12), (200, 12))
    assert corepoints.convolution(timer, row) == corepoints.op_cycles(
        timer, corepoints.MATMUL, shapes, "fp16"
    )


def test_a_window_pays_for_every_line_and_block() -> None:
    # 8 lines of 8 positions, 6 channels: a window of 25 is 2 blocks of 5 rows, 24 elements of k in
    # 2 tiles; 8 outputs are 2 groups. A stream is 20 cycles and 2 for each of 8 positions.
    row = Tile("conv", 1, 6, 8, 64, 25, 1)
    assert row.image == (8, 8)
    streams = 8 * 2 * 2 * 5
    assert corepoints.convolution(tile_timer(), row) == 200 + streams * 2 * (20 + 2 * 8)


def test_pooling_skips_what_lies_outside_of_the_image() -> None:
    alone = corepoints.pooling(tile_timer(), Tile("pool", 1, 4, 4, 1, 9, 1))
    assert alone == 200 + 4  # 4 maxima at 1.33 a cycle; the window's other positions are empty


def test_gemms_are_near_on_average_and_bound_by_unpacking() -> None:
    points = list(corepoints.tenstorrent_gemms(DATA))
    assert sum(abs(p.error) for p in points) / len(points) < 0.15
    chip = load_chip("n150")
    free = replace(chip, core=replace(chip.core, mac_operand_bytes_per_cycle=0))
    products = 8 * 64 * 8  # of tiles of 32 x 32 x 32 on a core, for 2048 on 8 x 8
    start = chip.core.kernel_cycles
    assert corepoints.gemm(chip, 2048, "bf16", "HiFi2", False) == start + products * 51.2 + 0.8
    assert corepoints.gemm(free, 2048, "bf16", "HiFi2", False) == start + products * 32
