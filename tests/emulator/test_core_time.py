"""Times of kernels: rates, padding, wider types, systolic arrays."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from meshc.emulator.core import CoreTimer, array_cycles
from meshc.emulator.cores import run_streams
from meshc.errors import InputError
from meshc.ir.chip import Array
from meshc.ir.graph import Op
from meshc.ir.stream import Kernel, View

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
    file = SHARED / "systolic_gemm.csv"
    if not file.exists():
        pytest.skip(f"{file} is not there: SCALE-Sim's cycles cannot be compared")
    rows = [r for r in csv.DictReader(file.open()) if r["dataflow"] == dataflow]
    assert rows
    for r in rows:
        h, w, m, n, k, cycles = (int(r[x]) for x in ("H", "W", "M", "N", "K", "total_cycles"))
        assert array_cycles(Array(h, w, dataflow, False), m, k, n) == cycles


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
