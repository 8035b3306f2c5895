"""How fast meshc itself is, and what its integer programs buy. Not collected by pytest.

    python tests/benchmarks/speed.py [--quick] [--json FILE]

Every line is measured in this one run: seconds of processor time (so that a busy machine counts
less), cycles of the emulated chip, and ratios of them. Ratios travel between machines; seconds
do not.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from frontend.decoders import Sizes, standard  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from meshc.emulator import emulate  # noqa: E402
from meshc.emulator.lanes import run_lanes  # noqa: E402
from meshc.ir import codec  # noqa: E402
from meshc.ir.compiled import Compiled, CompileOptions  # noqa: E402
from meshc.pipeline import compile as compile_model  # noqa: E402
from meshc.run import verify_phase  # noqa: E402

EXAMPLE = ROOT / "examples" / "llama-optimum-with_past.onnx"


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """A function's value and the processor seconds that it took."""
    begin = time.process_time()
    value = function()
    return value, time.process_time() - begin


@dataclass
class Board:
    """Rows of (what, value, unit)."""

    rows: list[tuple[str, float, str]] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str) -> float:
        self.rows.append((what, value, unit))
        return value

    def show(self) -> None:
        table = Table(title="meshc, measured in one run", title_justify="left")
        for name, side in (("what", "left"), ("value", "right"), ("unit", "left")):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        for what, value, unit in self.rows:
            table.add_row(what, f"{value:,.3g}" if value < 1000 else f"{value:,.0f}", unit)
        Console(highlight=False).print(table)


def compiled(model: Path, **options: Any) -> tuple[Compiled, float]:
    """Compile and the seconds that it took."""
    value, seconds = timed(lambda: compile_model(model, CompileOptions(**options)))
    assert value is not None
    return value, seconds


def example_on(board: Board, chip: str) -> None:
    """Both solvers on one chip."""
    cycles: dict[str, dict[str, float]] = {}
    seconds: dict[str, float] = {}
    for solver in ("greedy", "ilp"):
        result, seconds[solver] = compiled(EXAMPLE, chip=chip, solver=solver)
        board.add(f"{chip}: compile, {solver}", seconds[solver], "s")
        for stage in ("import", "partition", "route"):
            board.add(f"{chip}: of that {stage}, {solver}", result.seconds[stage], "s (wall)")
        cycles[solver] = {}
        for phase, done in result.phases.items():
            trace, spent = timed(lambda p=done.program, c=result.chip: emulate(p, c))
            cycles[solver][phase] = trace.cycles
            board.add(f"{chip}: {phase} latency, {solver}", trace.cycles, "cycles")
            error = done.predicted_cycles / trace.cycles - 1
            board.add(f"{chip}: {phase} predicted over emulated, {solver}", 100 * error, "%")
            if solver == "ilp":
                board.add(f"{chip}: emulate {phase}", spent, "s")
                board.add(f"{chip}: {phase} rate", trace.instructions / spent, "actions/s")
                board.add(f"{chip}: {phase} network rate", trace.messages / spent, "messages/s")
                checked, spent = timed(lambda p=phase, r=result: verify_phase(r, p))
                assert checked.verify["passed"], checked.verify
                board.add(f"{chip}: run and verify {phase}", spent, "s")
        size = sum(len(codec.dumps(p.program)) for p in result.phases.values())
        board.add(f"{chip}: programs as text, {solver}", size, "bytes")
    for phase in cycles["ilp"]:
        ratio = cycles["greedy"][phase] / cycles["ilp"][phase]
        board.add(f"{chip}: {phase} cycles, greedy / ilp", ratio, "times")
    board.add(f"{chip}: compile seconds, ilp / greedy", seconds["ilp"] / seconds["greedy"], "times")


def layers(board: Board, folder: Path) -> None:
    """What more layers cost: the compiler sees one, the emulator runs them all."""
    spent: dict[int, tuple[float, float]] = {}
    for count in (2, 6, 24):
        model = standard(folder / f"{count}.onnx", Sizes(layers=count))
        result, first = compiled(model, chip="test4x4", solver="greedy", grid=(4, 4))
        program = result.phases["decode"].program
        _, second = timed(lambda p=program, c=result.chip: emulate(p, c))
        spent[count] = (first, second)
        board.add(f"{count} layers: compile", first, "s")
        board.add(f"{count} layers: emulate decode", second, "s")
    board.add("compile, 6 layers / 2 layers", spent[6][0] / spent[2][0], "times")
    board.add("compile, 24 layers / 2 layers", spent[24][0] / spent[2][0], "times")
    board.add("emulate, 24 layers / 2 layers", spent[24][1] / spent[2][1], "times")


def grids(board: Board) -> None:
    """What a larger region costs to compile for and to emulate."""
    for rows, cols in ((2, 2), (4, 4), (8, 8), (16, 16)):
        grid = (rows, cols)
        options: dict[str, Any] = {"chip": "test16x16", "solver": "greedy", "phase": "decode"}
        result, first = compiled(EXAMPLE, grid=grid, **options)
        program = result.phases["decode"].program
        trace, second = timed(lambda p=program, c=result.chip: emulate(p, c))
        board.add(f"{rows}x{cols}: compile decode", first, "s")
        board.add(f"{rows}x{cols}: emulate decode", second, "s")
        board.add(f"{rows}x{cols}: rate", trace.instructions / second, "actions/s")


def engines(board: Board) -> None:
    """The two engines of the emulator on one program, and what more cores cost the faster one."""
    seconds: dict[int, float] = {}
    for side in (8, 16, 32, 64):
        options: dict[str, Any] = {"chip": "test16x16", "solver": "greedy", "phase": "decode"}
        more = ("rows=64", "cols=64", "core.sram_bytes=4000000")
        until = 16 if side > 16 else side
        result, _ = compiled(EXAMPLE, grid=(until, until), overrides=more, **options)
        program = result.phases["decode"].program
        if side > 16:  # the same divisions over more lanes: those beyond hold nothing or copies
            regions = {n: replace(r, rows=side, cols=side) for n, r in program.regions.items()}
            program = replace(program, regions=regions)
        run_lanes(program, result.chip)  # compiled once
        trace, seconds[side] = timed(lambda p=program, c=result.chip: run_lanes(p, c))
        board.add(f"{side}x{side}: emulate with lanes", seconds[side], "s")
        if side <= 16:
            slow, spent = timed(lambda p=program, c=result.chip: emulate(p, c, engine="cores"))
            board.add(f"{side}x{side}: seconds, cores / lanes", spent / seconds[side], "times")
            board.add(f"{side}x{side}: cycles, lanes / cores", trace.cycles / slow.cycles, "times")
        elif side == 64:
            board.add("lanes, 64x64 / 32x32", seconds[64] / seconds[32], "times")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    flags.add_argument("--quick", action="store_true", help="only the example on test4x4")
    flags.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    args = flags.parse_args()
    board = Board()
    compiled(EXAMPLE, chip="test4x4", solver="greedy", grid=(1, 1), phase="decode")  # warm up
    example_on(board, "test4x4")
    if not args.quick:
        example_on(board, "test8x8")
        with tempfile.TemporaryDirectory() as folder:
            layers(board, Path(folder))
        grids(board)
        engines(board)
    scale = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 2**20
    board.add("largest memory of this process", peak, "MiB")
    board.show()
    if args.json:
        rows = [{"what": w, "value": v, "unit": u} for w, v, u in board.rows]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
