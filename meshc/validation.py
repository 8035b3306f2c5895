"""Published against emulated, point by point: `python -m meshc.validation DATA`.

DATA is a folder of measurements by machines and simulators that others built, as
`../shared/groundtruth`. The table goes to stdout, or as a page to the file given with -o
(`chipspecs/VALIDATION.md`). A section is a function from that folder to its points, in SECTIONS.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from meshc import corepoints
from meshc.chips import load_chip
from meshc.emulator.batch import Batch
from meshc.emulator.messages import send_messages
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec, CoreSpec, NocSpec
from meshc.noc import run_file
from meshc.points import Point

# The flit-level simulator's routers, as its parameters.json describes them and a chip spec says
# them. They belong to no chip, so they stand here and not among the shipped specs.
ROUTERS: dict[str, dict[str, Any]] = {
    "vc8": {"virtual_channels": 8, "buffer_flits": 8},
    "vc2": {"virtual_channels": 2, "buffer_flits": 8},
    "wh1": {"virtual_channels": 1, "buffer_flits": 8},
    "wh1d4": {"virtual_channels": 1, "buffer_flits": 4},
    "fast1": {"virtual_channels": 1, "buffer_flits": 8, "hop_cycles": 3, "ramp_cycles": (3, 2)},
    "vc8rc": {"virtual_channels": 8, "buffer_flits": 8, "hop_cycles": 5, "ramp_cycles": (4, 3)},
}
BOOKSIM = "BookSim2, commit 28f4329"
CYCLES = 15_000  # of uniform traffic; the first fifth is not counted


def router_chip(router: str, k: int) -> ChipSpec:
    """A mesh of k × k with one of the simulator's routers; a byte is a flit."""
    core = CoreSpec(1, 1, {"fp32": 1}, {"fp32": 1})
    values: dict[str, Any] = {
        "link_bytes_per_cycle": 1,
        "hop_cycles": 4,
        "ramp_cycles": (3, 3),
    } | ROUTERS[router]
    return ChipSpec(f"{router} {k}x{k}", BOOKSIM, k, k, 1e9, core, NocSpec(**values))


def _batch(columns: Any) -> Batch:
    """Messages from columns of ready time, source, target and flits."""
    ready, source, target, flits = (np.asarray(c, np.int64) for c in columns)
    return Batch(
        ready,
        source.astype(np.int32),
        target.astype(np.int32),
        flits,
        np.zeros(len(ready), np.int32),
    )


def recorded_traffic(data: Path) -> Iterator[Point]:
    """Makespan and mean latency of recorded traces."""
    folder = data / "network"
    for entry in json.loads((folder / "index.json").read_text()):
        name, router = entry["trace"], entry["router"]
        with gzip.open(folder / f"{name}.trace.gz") as file:
            batch = _batch(np.loadtxt(file, np.int64, comments="#", ndmin=2).T)
        times = send_messages(router_chip(router, entry["k"]), batch)
        latency = float((times.arrive - batch.ready).mean())
        for what, published, emulated in (
            ("makespan", entry["makespan"], times.makespan_cycles),
            ("mean latency", entry["mean_packet_latency"], latency),
        ):
            yield Point(f"{what}, {router}", name, published, emulated, "cycles", BOOKSIM)


def uniform_traffic(data: Path) -> Iterator[Point]:
    """Latency against offered rate up to 80 % of saturation, and the accepted rate at saturation:
    Bernoulli traffic to random cores of 8 × 8."""
    with (data / "network" / "uniform_8x8.csv").open() as file:
        rows = list(csv.DictReader(file))
    most = {
        (r["router"], r["packet_flits"]): float(r["accepted_flit_rate"])
        for r in rows
        if r["kind"] == "saturation"
    }
    for row in rows:
        router, flits = row["router"], int(row["packet_flits"])
        offered = float(row["offered_flit_rate"])
        saturated = row["kind"] == "saturation"
        if not saturated and (
            row["kind"] != "latency" or offered > 0.8 * most[router, row["packet_flits"]]
        ):
            continue
        latency, accepted = uniform(router, offered, flits)
        what, published, emulated, unit = (
            ("accepted rate at saturation", row["accepted_flit_rate"], accepted, "flits/cycle/core")
            if saturated
            else ("latency under load", row["avg_packet_latency"], latency, "cycles")
        )
        name = f"{flits} flits, offered {offered:g}"
        yield Point(f"{what}, {router}", name, float(published), emulated, unit, BOOKSIM)


def uniform(router: str, rate: float, flits: int) -> tuple[float, float]:
    """Mean latency, and flits accepted per cycle and core, after the start."""
    rng = np.random.default_rng(1)
    ready, source = np.nonzero(rng.random((CYCLES, 64)) < rate / flits)
    batch = _batch((ready, source, rng.integers(0, 64, len(ready)), np.full(len(ready), flits)))
    times = send_messages(router_chip(router, 8), batch)
    begin = CYCLES // 5
    latency = (times.arrive - batch.ready)[batch.ready >= begin].mean()
    counted = ((times.arrive >= begin) & (times.arrive < CYCLES)).sum()
    return float(latency), float(counted * flits / 64 / (CYCLES - begin))


def wormhole_transfers(data: Path) -> Iterator[Point]:
    """Kernels that re-shard tensors on a Wormhole card."""
    folder = data / "wormhole"
    spec = load_chip("wormhole-noc")
    for truth in json.loads((folder / "index.json").read_text())["traces"]:
        result = run_file(folder / f"{truth['trace']}.csv.gz", spec)
        yield Point(
            "kernel, Wormhole",
            truth["trace"],
            truth["golden_cycles"],
            result.makespan_cycles,
            "cycles",
            "measured, tenstorrent/tt-npe",
        )


SECTIONS: dict[str, tuple[str, Callable[[Path], Iterator[Point]], str]] = {
    "traffic": (
        "Network: recorded traffic",
        recorded_traffic,
        "Routers with finite buffers are emulated flit by flit by the rules in "
        "`meshc/emulator/router.py`, so that every packet of these traces arrives in the same "
        "cycle as in the flit-level simulator.",
    ),
    "uniform": (
        "Network: uniform random traffic on 8 × 8",
        uniform_traffic,
        "The random numbers are not the simulator's, so that single points differ by chance.",
    ),
    "wormhole": (
        "Network: transfers on Wormhole silicon",
        wormhole_transfers,
        "Chip `wormhole-noc`. The depth of its buffers is not published; 16 flits are assumed. "
        "Two numbers are not tt-npe's: links carry a flit of 32 bytes per cycle, as the "
        "documentation says, and a message is seen 100 cycles after it arrived, as kernels do that "
        "read from DRAM without contention. What misses most are kernels that the order of "
        "transfers at their sources decides.",
    ),
    "systolic": (
        "Cores: systolic arrays",
        corepoints.systolic_arrays,
        "One matmul kernel on a core that has nothing but the array, timed by the emulator. With "
        "loading overlapped the emulator pays loading, filling and draining once; what the "
        "simulator has beyond that is not published.",
    ),
    "ipu": (
        "Cores: IPU tiles",
        corepoints.ipu_tiles,
        "Kernels in fp16 on one tile of `gc200`, as ops that meshc has. A convolution by a kernel "
        "of one row is a matmul of positions × (taps · channels) × outputs, and so is one whose "
        "window fits 16 elements of k and whose outputs are a multiple of 16. Any other is a "
        "batched matmul: each line of the image is a stream past weights of four outputs and of "
        "the whole window (at most 16 positions) or of four positions of one kernel row; lines of "
        "at most 20 elements take all kernel rows at once. A pooling is a maximum per position of "
        "the window, over the part that overlaps the image, each with its own start. Stride one "
        "and padding are assumed: the table does not say. The mean error of the 164 rows at hand "
        "that are not in the group above the engine's peak is 10.8 %. The mapping and the tile "
        "were found by looking at the whole table, so that no row is an independent check of "
        "them; start costs and the vector rate were set with every other row, which are 10.9 % "
        "off on average, the rest 10.7 %. What misses: 3 × 3 windows of one channel to 8 and "
        "those of 16, 32 or 48 channels, for which the vendor's library has kernels that the "
        "mapping does not know; and images of 64 positions, where start costs differ by kernel. "
        "The group above the engine's peak (a whole series: 10 of its 14 rows are) has more "
        "multiply-accumulates per cycle than the engine: it cannot be the convolution that the "
        "table says (its cycles are those of a 3 × 3 window), and no mapping of it is right.",
    ),
    "tenstorrent": (
        "Cores: GEMMs on Wormhole",
        corepoints.tenstorrent_gemms,
        "Not a compiled program: one core's share of the GEMM on the 8 × 8 grid of `n150` (M and "
        "N divided by 8) as one kernel timed by the emulator. meshc keeps operands in SRAM, where "
        "2048 and larger do not fit with every core's share of them, so that operands from DRAM "
        "are added at the channels' rate, without overlap; messages between cores are left out. "
        "The start of a kernel, 9,000 cycles, is from the two BFP8 HiFi2 rows; the rates are "
        "documented ones. BF16 is bound by the unpackers, which read two tiles for each product, "
        "and BFP8 at LoFi too. BFP8 at HiFi2 misses by a fifth: the engine is then bound by its "
        "32 cycles per product, which silicon does not reach (the published shares of peak imply "
        "about 36).",
    ),
}


def groups(points: list[Point]) -> dict[str, list[Point]]:
    """Points by group, in order."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.group, []).append(point)
    return found


def summary(points: list[Point]) -> str:
    """A table of mean and worst errors by group."""
    lines = ["| what | points | mean error | worst |", "|---|---:|---:|---:|"]
    for group, members in groups(points).items():
        errors = [abs(p.error) for p in members]
        mean, worst = 100 * sum(errors) / len(errors), 100 * max(errors)
        lines.append(f"| {group} | {len(members)} | {mean:.2f} % | {worst:.2f} % |")
    return "\n".join(lines) + "\n"


def table(points: list[Point]) -> str:
    """A table of all points."""
    lines = [
        "| what | point | published | emulated | unit | error | source |",
        "|---|---|---:|---:|---|---:|---|",
    ]
    lines += [
        f"| {p.group} | {p.name} | {p.published:.6g} | {p.emulated:.6g} | {p.unit} "
        f"| {100 * p.error:+.2f} % | {p.source} |"
        for p in points
    ]
    return "\n".join(lines) + "\n"


def page(data: Path, names: list[str]) -> str:
    """The whole page."""
    parts = [
        "# Published against emulated\n\n"
        "Made by `python -m meshc.validation ../shared/groundtruth -o chipspecs/VALIDATION.md`; "
        "errors are relative to the published number.\n"
    ]
    details = []
    for name in names:
        title, section, remark = SECTIONS[name]
        points = list(section(data))
        parts.append(f"## {title}\n\n{remark}\n\n{summary(points)}")
        details.append(f"### {title}\n\n{table(points)}")
    return "\n".join([*parts, "## Every point\n", *details])


def main(argv: list[str] | None = None) -> int:
    """Print the page or write it."""
    flags = argparse.ArgumentParser(prog="python -m meshc.validation", description=__doc__)
    flags.add_argument("data", type=Path, metavar="DATA")
    flags.add_argument("-o", "--output", type=Path, metavar="FILE")
    flags.add_argument("--only", action="append", choices=list(SECTIONS), help="these sections")
    args = flags.parse_args(argv)
    try:
        text = page(args.data, args.only or list(SECTIONS))
    except FileNotFoundError as error:
        raise InputError(f"Folder {args.data} lacks {error.filename}; give the data's.") from None
    if args.output:
        args.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
