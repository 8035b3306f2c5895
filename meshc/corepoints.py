"""Kernels on one core against measurements: systolic arrays, IPU tiles, Tenstorrent's GEMMs.

Every time is the emulator's own (`CoreTimer`, `meshc.ops.timing`) for ops that meshc has; how a
measured kernel is written as such ops stands with its function. `meshc.validation` prints the
points.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, isqrt
from pathlib import Path

from meshc.chips import load_chip
from meshc.emulator.core import CoreTimer
from meshc.ir.chip import Array, ChipSpec, CoreSpec, NocSpec
from meshc.ir.graph import Op
from meshc.ir.stream import Kernel, View
from meshc.ops import Work, timing
from meshc.points import Point

SCALE_SIM = "SCALE-Sim v3"
ONNXIM = "ONNXim, near Gemmini's RTL"
ELK = "measured, Elk's artifact"
TT_METAL = "measured, tenstorrent/tt-metal"

MATMUL = Op("product", "matmul", ("a", "b"), "c")
MAXIMUM = Op(
    "maximum",
    "map",
    ("a", "b"),
    "c",
    (("steps", (("max", (("in", 0), ("in", 1)), "fp16"),)),),
)
# The IPU's matrix engine has 16 outputs; on a sliding window it takes four positions of a kernel
# row at a time and has four outputs.
ENGINE_OUTPUTS, WINDOW_POSITIONS, WINDOW_OUTPUTS = 16, 4, 4
# Elements of the longest line whose kernel rows the vendor's library takes at once: read off the
# measurements, in which lines of 20 still are and lines of 24 are not.
UNROLLED_LINE = 20

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tile:
    """A line of ipu_tiles.csv. kind: conv or pool."""

    kind: str
    batch: int
    in_channels: int
    out_channels: int
    pixels: int
    taps: int
    cycles: int

    @property
    def window(self) -> tuple[int, int]:
        """Rows and columns of the kernel: a square, else one row."""
        side = isqrt(self.taps)
        return (side, side) if side * side == self.taps else (1, self.taps)

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns of an image: as square as possible."""
        rows = next(r for r in range(isqrt(self.pixels), 0, -1) if self.pixels % r == 0)
        return rows, self.pixels // rows


def op_cycles(timer: CoreTimer, op: Op, shapes: Sequence[Shape], dtype: str) -> int:
    """Cycles of one kernel; `shapes` are those of the inputs and of the output."""
    views = [View(0, s, tuple(range(n) for n in s), dtype) for s in shapes]
    return timer.kernel(Kernel(op.name, tuple(views[:-1]), views[-1], ())).cycles


def systolic_arrays(data: Path) -> Iterator[Point]:
    """Every GEMM of the table as one matmul kernel, loading not overlapped; and overlapped."""
    with (data / "systolic_gemm.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        h, w, m, n, k = (int(row[x]) for x in ("H", "W", "M", "N", "K"))
        flow = row["dataflow"]
        yield Point(
            f"systolic array, {flow}",
            f"{h} × {w}, M {m}, N {n}, K {k}",
            float(row["total_cycles"]),
            _array_gemm(Array(h, w, flow, overlap_load=False), m, k, n),  # type: ignore[arg-type]
            "cycles",
            SCALE_SIM,
        )
    overlapped = _array_gemm(Array(8, 8, "ws", overlap_load=True), 128, 512, 512)
    yield Point(
        "systolic array, ws, loading overlapped",
        "8 × 8, M 128, N 512, K 512",
        525_092,
        overlapped,
        "cycles",
        ONNXIM,
    )


def _array_gemm(array: Array, m: int, k: int, n: int) -> int:
    core = CoreSpec(1, 1e12, {"fp32": 1}, array=array, kernel_cycles=0)  # nothing but the array
    chip = ChipSpec("one array", SCALE_SIM, 1, 1, 1e9, core, NocSpec(1))
    timer = CoreTimer(chip, {MATMUL.name: MATMUL})
    return op_cycles(timer, MATMUL, ((m, k), (k, n), (m, n)), "int8")


def ipu_tiles(data: Path) -> Iterator[Point]:
    """Convolutions and poolings on one tile of gc200.

    A series (same batch and kernel size) with a member that would multiply faster than the engine
    can is a group of its own: what was run there is not what the table says.
    """
    with (data / "ipu_tiles.csv").open() as file:
        rows = [Tile(r.pop("kind"), *map(int, r.values())) for r in csv.DictReader(file)]
    chip = load_chip("gc200")
    timer = CoreTimer(chip, {op.name: op for op in (MATMUL, MAXIMUM)})
    odd = {(r.batch, r.taps) for r in rows if r.kind == "conv" and _above_peak(r, chip)}
    for row in rows:
        pool = row.kind == "pool"
        height, width = row.window
        name = "IPU tile, " + ("pooling" if pool else f"convolution {height} × {width}")
        if not pool and (row.batch, row.taps) in odd:
            name += f", batch {row.batch}: above the engine's peak"
        emulated = (pooling if pool else convolution)(timer, row)
        point = (
            f"batch {row.batch}, {row.in_channels} to {row.out_channels} channels, "
            f"{row.pixels} positions, {row.taps} taps"
        )
        yield Point(name, point, row.cycles, emulated, "cycles", ELK)


def _above_peak(row: Tile, chip: ChipSpec) -> bool:
    macs = row.batch * row.pixels * row.taps * row.in_channels * row.out_channels
    return macs / row.cycles > timing.mac_rate(chip.core, "fp16")


def convolution(timer: CoreTimer, row: Tile) -> int:
    """Cycles of a convolution as one matmul kernel.

    A window of one row is a matmul of all positions, and so is a window that fits one tile of k and
    gives multiples of 16 outputs. Others slide: lines of the image are streams, for four output
    channels at a time, past weights of the whole window where it has no more positions than a tile
    has k, else of four positions of a kernel row at a time. Short lines are taken with all kernel
    rows at once, as if these were channels.
    """
    (height, width), (lines, length) = row.window, row.image
    channels, outputs = row.in_channels, row.out_channels
    tile_k, k = timer.core.mac_tile[1], row.taps * channels
    if height == 1 or (k <= tile_k and outputs % ENGINE_OUTPUTS == 0):
        m = row.batch * row.pixels
        return op_cycles(timer, MATMUL, ((m, k), (k, outputs), (m, outputs)), "fp16")
    streams = row.batch * lines * ceil(outputs / WINDOW_OUTPUTS)
    if row.taps > tile_k:
        k = WINDOW_POSITIONS * channels
        streams *= ceil(width / WINDOW_POSITIONS)
        if length * channels <= UNROLLED_LINE:
            k *= height
        else:
            streams *= height
    n = min(outputs, WINDOW_OUTPUTS)
    shapes = ((streams, length, k), (streams, k, n), (streams, length, n))
    return op_cycles(timer, MATMUL, shapes, "fp16")


def pooling(timer: CoreTimer, row: Tile) -> int:
    """Cycles of a maximum pooling of stride one: for every position of the window, a maximum of
    the result so far with the image moved there, where the two overlap."""
    (height, width), (lines, length) = row.window, row.image
    cycles = 0
    for down in range(height):
        for right in range(width):
            tall = max(0, lines - abs(down - height // 2))
            wide = max(0, length - abs(right - width // 2))
            part = (row.batch, tall, wide, row.in_channels)
            cycles += op_cycles(timer, MAXIMUM, (part, part, part), "fp16")
    return cycles


# n150, M = K = N: size, storage, fidelity, from DRAM, ns.
GEMMS = (
    (512, "bf16", "HiFi2", True, 19_965),
    (1024, "bf16", "HiFi2", True, 68_984),
    (2048, "bf16", "HiFi2", True, 298_922),
    (3072, "bf16", "HiFi2", True, 886_178),
    (4096, "bf16", "HiFi2", True, 2_008_533),
    (2048, "bfp8", "HiFi2", False, 178_199),
    (3072, "bfp8", "HiFi2", False, 580_282),
    (2048, "bfp8", "LoFi", False, 124_400),
)


def tenstorrent_gemms(data: Path) -> Iterator[Point]:
    """A core's share of a GEMM divided over the rows and columns of n150's grid.

    From DRAM, the operands are read and the product is written before and after, at the rate of
    all channels together.
    """
    del data
    chip = load_chip("n150")
    for size, dtype, fidelity, dram, published in GEMMS:
        cycles = gemm(chip, size, dtype, fidelity, dram)
        name = f"{size}, {dtype} {fidelity}, from {'DRAM' if dram else 'L1'}"
        yield Point("GEMM, n150", name, published, cycles * 1e9 / chip.clock_hz, "ns", TT_METAL)


def gemm(chip: ChipSpec, size: int, dtype: str, fidelity: str, dram: bool) -> float:
    """Cycles of a square GEMM. LoFi multiplies at bfp4's rate, one phase instead of two."""
    core = chip.core
    if fidelity == "LoFi":
        core = replace(core, macs_per_cycle={dtype: core.macs_per_cycle["bfp4"]})
    m, n = ceil(size / chip.rows), ceil(size / chip.cols)
    element = timing.operand_bytes(dtype)
    share = Work(((m, size, n, 1),), dtype, sram_bytes=int((m * size + size * n + m * n) * element))
    cycles = ceil(timing.kernel_cycles(core, share))
    moved = 3 * size * size * element / sum(channel.bytes_per_cycle for channel in chip.dram)
    return cycles + (moved if dram else 0)
