"""Times of kernels: rates, padding, wider types, systolic arrays."""

from __future__ import annotations

import csv
import re
from math import inf
from pathlib import Path
from typing import Any

import pytest

from meshc.emulator.core import CoreTimer
from meshc.emulator.cores import run_streams
from meshc.errors import InputError
from meshc.ir.chip import Array
from meshc.ir.graph import Op
from meshc.ir.stream import Kernel, View
from meshc.ops import Work
from meshc.ops.timing import array_cycles
from meshc.partition.cost import CostModel

from .handmade import chip, step, streams

SHARED = Path(__file__).parents[3] / "shared" / "groundtruth"
MATMUL = Op("mm", "matmul", ("a", "b"), "c")


def matmul(m: int, k: int, n: int, dtype: str) -> Kernel:
    def view(address: int, *shape: int) -> View:
        return View(address, shape, tuple(range(s) for s in shape), dtype)

    return Kernel("mm", (view(0, m, k), view(1024, k, n)), view(2048, m, n), ((), (), ()))


def kernel_cycles(kernel: Kernel, **core: Any) -> int:
    return CoreTimer(chip(core={"kernel_cycles": 10, **core}), {"mm": MATMUL}).kernel(kernel).cycles


def test_matmul_is_bound_by_macs_or_memory() -> None:
    assert kernel_cycles(matmul(16, 16, 16, "fp32")) == 10 + 16**3 / 64
    # 1·16 + 16·8 + 1·8 elements of 4 bytes at 64 B/cycle are 9.5 cycles, its 128 MACs only 2.
    assert kernel_cycles(matmul(1, 16, 8, "fp32")) == 10 + 10


def test_ragged_tiles_are_padded() -> None:
    tiles = {"mac_tile": (4, 4, 4), "sram_bytes_per_cycle": 1e9}
    assert kernel_cycles(matmul(5, 6, 7, "fp32"), **tiles) == 10 + 8 * 8 * 8 / 64


def test_missing_float_uses_the_next_wider_one() -> None:
    one = {"macs_per_cycle": {"fp32": 1, "fp16": 4}, "sram_bytes_per_cycle": 1e9}
    assert kernel_cycles(matmul(4, 4, 4, "fp16"), **one) == 10 + 16
    assert kernel_cycles(matmul(4, 4, 4, "bf16"), **one) == 10 + 64


def test_types_that_no_rate_covers_are_refused() -> None:
    sentence = (
        "Op 'mm' multiplies in int8, but a core of chip 'handmade' multiplies only fp32, fp16; "
        "add core.macs_per_cycle.int8 to the chip or compile with another --dtype."
    )
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        kernel_cycles(matmul(4, 4, 4, "int8"))


def test_empty_output_costs_nothing() -> None:
    trace = run_streams(streams(c00=[step(matmul(0, 4, 4, "fp32"))]), chip(), {"mm": MATMUL})
    assert trace.cycles == 0


def test_macs_are_counted_by_the_type_that_ran() -> None:
    kernel = matmul(4, 5, 6, "bf16")
    trace = run_streams(streams(c00=[step(kernel)], c11=[step(kernel)]), chip(), {"mm": MATMUL})
    assert trace.mac_by_dtype == {"fp32": 240}
    assert trace.macs[1, 1] == 120
    assert trace.mac_cycles[1, 1] == 120 / 64


@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
def test_systolic_arrays_are_those_of_scale_sim(dataflow: Any) -> None:
    """Every kernel of the table, and one of each kind of it without the table."""
    rows = {"ws": (8, 8, 33, 17, 65, 1484), "os": (8, 8, 33, 17, 65, 1184)}
    cases = [rows.get(dataflow, (8, 8, 64, 64, 64, 5503))]
    file = SHARED / "systolic_gemm.csv"
    if file.exists():
        names = ("H", "W", "M", "N", "K", "total_cycles")
        table = [r for r in csv.DictReader(file.open()) if r["dataflow"] == dataflow]
        cases += [tuple(int(r[x]) for x in names) for r in table]
        assert len(cases) > 1
    for h, w, m, n, k, cycles in cases:
        core = {"array": Array(h, w, dataflow, False), "macs_per_cycle": {}, "kernel_cycles": 0}
        assert kernel_cycles(matmul(m, k, n, "int8"), **core, sram_bytes_per_cycle=1e9) == cycles


@pytest.mark.parametrize(
    "core",
    [
        {"array": Array(8, 4, "ws", False), "macs_per_cycle": {}},
        {"array": Array(8, 4, "os", True), "macs_per_cycle": {}},
        {"mac_tile": (1, 4, 8), "mac_start_cycles": 7},
    ],
)
def test_the_planner_prices_what_the_emulator_takes(core: Any) -> None:
    work = Work(((9, 17, 11, 3),), "fp32", 100, "fp32", 4000)
    timer = CoreTimer(chip(core=core), {"mm": MATMUL})
    kernel = matmul(9, 17, 11, "fp32")
    one = Work(((9, 17, 11, 1),), "fp32", sram_bytes=4 * (9 * 17 + 17 * 11 + 9 * 11))
    model = CostModel(timer.chip)
    assert model.kernel(one) == timer.kernel(kernel).cycles
    assert model.kernel(work) > model.kernel(one)


def test_streams_past_a_tile_begin_with_a_cost() -> None:
    engine = {"mac_tile": (1, 4, 8), "mac_start_cycles": 7, "sram_bytes_per_cycle": 1e9}
    assert kernel_cycles(matmul(9, 17, 11, "fp32"), **engine) == 10 + 5 * 2 * (7 + 9 * 32 / 64)


def test_overlapped_loading_is_near_onnxim() -> None:
    """128 × 512 × 512 on 8 × 8: 525,092 cycles (ONNXim; Gemmini's RTL within 0.23 %)."""
    cycles = array_cycles(Array(8, 8, "ws", True), 128, 512, 512)
    assert cycles == pytest.approx(525_092, rel=0.0025)


@pytest.mark.parametrize("dataflow", ["ws", "os", "is"])
def test_overlap_never_takes_longer_and_one_tile_takes_the_same(dataflow: Any) -> None:
    for m, k, n in [(1, 8, 8), (8, 8, 8), (64, 8, 8), (3, 100, 50), (100, 3, 1)]:
        fast = array_cycles(Array(8, 8, dataflow, True), m, k, n)
        assert fast <= array_cycles(Array(8, 8, dataflow, False), m, k, n)
    assert array_cycles(Array(8, 8, dataflow, True), 8, 8, 8) == array_cycles(
        Array(8, 8, dataflow, False), 8, 8, 8
    )


def test_array_runs_whole_kernels() -> None:
    core = {"array": Array(8, 8), "macs_per_cycle": {}, "sram_bytes_per_cycle": 1e9}
    assert kernel_cycles(matmul(8, 8, 8, "int8"), **core) == 10 + 8 + 22 - 1


def test_joining_costs_the_planner_what_it_takes_and_is_priced_out_without_a_rate() -> None:
    whole = chip(core={"vector_ops_per_cycle": {"fp32": 16}})
    took = CoreTimer(whole, {}).combine_cycles("sum", "fp32", 400)
    assert CostModel(whole).combine(100, "fp32") == took == 19  # 1,200 bytes at 64 a cycle
    assert CostModel(chip(core={"vector_ops_per_cycle": {"fp16": 16}})).combine(1, "fp32") == inf
