"""What the pictures are drawn from: one phase of one run, as `meshc run` wrote it.

A run's folder holds report.json and, for each phase, `trace-<phase>.json` and
`trace-<phase>.npz`. The JSON has

    chip     {name, rows, cols, dead [[row, col], ...], clock_hz}
    model, phase, cycles
    regions  {name: [row, col, rows, cols]}
    spans    [[position, name, op, kind, layer, region, start, end,
               compute, communication, wait], ...]      times in cycles; kind: the op's for a
               computing span, else reduce, broadcast, transfer or shift
    sram     {capacity_bytes, REGION: [{name, kind, tensor, segment, offset, bytes, stride,
               layers, live [first, last]}], ...}     or with the regions under "buffers"
    stages   {region: [[segment, first, last], ...]}                      layers [first, last)
    ops      {region: [[op, kind], ...]}

and the npz the per-core arrays of `meshc.ir.trace.Trace`, `sram_peak_bytes` and the link arrays.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.ir.chip import Coord
from meshc.ir.placement import Region
from meshc.ir.trace import DIRECTIONS, Span

PHASES = ("prefill", "decode")
CORE_ARRAYS = (
    "compute_cycles",
    "communication_cycles",
    "wait_cycles",
    "finish_cycles",
    "sram_peak_bytes",
    "sram_bytes",
    "macs",
)
LINK_ARRAYS = ("link_busy_cycles", "link_bytes")
COMMUNICATION = ("broadcast", "transfer", "shift", "move")


@dataclass(frozen=True)
class SramBuffer:
    """A buffer of `meshc.ir.program`, as far as the address map needs it.

    bytes: of one instance on the fullest lane.   stride: bytes from one layer's instance to the
    next.   layers: instances on this region.   live: first and last position in the program at
    which it holds a value, (0, -1) when it always does.
    """

    name: str
    kind: str
    tensor: str
    segment: str
    offset: int
    bytes: int
    stride: int = 0
    layers: int = 1
    live: tuple[int, int] = (0, -1)

    @property
    def persistent(self) -> bool:
        return self.live[1] < self.live[0]

    @property
    def instances(self) -> int:
        return max(1, self.layers) if self.stride else 1

    @property
    def total_bytes(self) -> int:
        return self.bytes * self.instances


@dataclass(frozen=True)
class RunData:
    """One phase of one run. Per-core arrays are (rows, cols); link arrays (networks, rows, cols, 4)
    with the last axis in the order of `meshc.ir.trace.DIRECTIONS`. clock_hz is 0 when unknown.
    """

    model: str
    chip: str
    phase: str
    rows: int
    cols: int
    clock_hz: float
    cycles: float
    dead: tuple[Coord, ...]
    regions: dict[str, Region]
    stages: dict[str, tuple[tuple[str, int, int], ...]]
    ops: dict[str, tuple[tuple[str, str], ...]]
    spans: tuple[Span, ...]
    sram_capacity_bytes: int
    buffers: dict[str, tuple[SramBuffer, ...]]
    compute_cycles: np.ndarray
    communication_cycles: np.ndarray
    wait_cycles: np.ndarray
    finish_cycles: np.ndarray
    sram_peak_bytes: np.ndarray
    sram_bytes: np.ndarray
    macs: np.ndarray
    link_busy_cycles: np.ndarray
    link_bytes: np.ndarray
    report: dict[str, Any] = field(default_factory=dict)

    def verify(self) -> None:
        """Raise InputError unless every array has the chip's shape and regions lie on it."""
        for name in CORE_ARRAYS:
            shape = getattr(self, name).shape
            if shape != (self.rows, self.cols):
                raise InputError(
                    f"Array '{name}' of phase '{self.phase}' has shape {shape}, but the chip "
                    f"'{self.chip}' has {self.rows} × {self.cols} cores; run `meshc run` again."
                )
        for name in LINK_ARRAYS:
            shape = getattr(self, name).shape
            if len(shape) != 4 or shape[1:] != (self.rows, self.cols, len(DIRECTIONS)):
                raise InputError(
                    f"Array '{name}' of phase '{self.phase}' has shape {shape}, but the chip "
                    f"'{self.chip}' needs (networks, {self.rows}, {self.cols}, "
                    f"{len(DIRECTIONS)}); run `meshc run` again."
                )
        for r in self.regions.values():
            if min(r.row, r.col) < 0 or r.row + r.rows > self.rows or r.col + r.cols > self.cols:
                raise InputError(
                    f"Region '{r.name}' covers rows {r.row} to {r.row + r.rows - 1} and columns "
                    f"{r.col} to {r.col + r.cols - 1}, but the chip '{self.chip}' has "
                    f"{self.rows} × {self.cols} cores; run `meshc run` again."
                )

    @cached_property
    def dead_mask(self) -> np.ndarray:
        """(rows, cols), True for a core that does not compute."""
        mask = np.zeros((self.rows, self.cols), dtype=bool)
        for core in self.dead:
            mask[core.row, core.col] = True
        return mask

    @cached_property
    def used_mask(self) -> np.ndarray:
        """(rows, cols), True for a working core of some region."""
        mask = np.zeros((self.rows, self.cols), dtype=bool)
        for r in self.regions.values():
            mask[r.row : r.row + r.rows, r.col : r.col + r.cols] = True
        if not self.regions:
            mask |= self.compute_cycles + self.communication_cycles > 0
        mask &= ~self.dead_mask
        return mask

    @property
    def networks(self) -> int:
        return int(self.link_busy_cycles.shape[0])

    def percent(self, cycles: np.ndarray) -> np.ndarray:
        """Cycles as a share of the step's time, in percent."""
        share: np.ndarray = np.multiply(cycles, 100.0 / self.cycles if self.cycles else 0.0)
        return share

    @cached_property
    def repeated(self) -> frozenset[str]:
        """Segments whose ops repeat: the model's layers."""
        return frozenset(
            name
            for runs in self.stages.values()
            for name, _, last in runs
            if last > 1 or name == "body" or "layer" in name.lower()
        )

    def hosted(self, region: str) -> str:
        """The layers and other segments of a region, as in "layers 0–1 + embedding, head"."""
        layers, others = [], []
        for name, first, last in self.stages.get(region, ()):
            if name not in self.repeated:
                others.append(name)
                continue
            word = name if len(self.repeated) > 1 else "layer" if last - first == 1 else "layers"
            layers.append(f"{word} {first}" if last - first == 1 else f"{word} {first}–{last - 1}")
        return " + ".join(p for p in (", ".join(layers), ", ".join(others)) if p)

    def resident_bytes(self, region: str) -> int:
        """Bytes that stay in the SRAM of the region's fullest core from start to end."""
        return sum(b.total_bytes for b in self.buffers.get(region, ()) if b.persistent)

    @cached_property
    def _op_kinds(self) -> dict[str, str]:
        return {name: kind for ops in self.ops.values() for name, kind in ops}

    def lane(self, span: Span) -> str:
        """What sort of instruction a span is: compute, reduce (over cores), broadcast, transfer or
        shift. Computing spans carry their op's kind, so that "reduce" may be either: one without
        communication is local."""
        kind = span.kind.lower()
        if kind in COMMUNICATION:
            return "transfer" if kind == "move" else kind
        local = self._op_kinds.get(span.op) == "reduce" and not span.communication_cycles
        return "reduce" if kind in ("reduce", "allreduce") and not local else "compute"

    def kind(self, span: Span) -> str:
        """The key of a span's colour: its op's kind when it computes, else how it communicates."""
        lane = self.lane(span)
        if lane == "reduce":
            return "all-reduce"
        if lane != "compute":
            return lane
        return self._op_kinds.get(span.op, span.kind.lower())


def phases(out_dir: Path) -> list[str]:
    """Phases that a run's folder has traces of, prefill first."""
    found = {p.stem.removeprefix("trace-") for p in out_dir.glob("trace-*.json")}
    return [p for p in PHASES if p in found] + sorted(found - set(PHASES))


def load_run(out_dir: Path | str, phase: str) -> RunData:
    """Read one phase of the run in `out_dir`.

    Raises InputError when a file is missing or does not have the form described above.
    """
    folder = Path(out_dir)
    report = _read_json(folder / "report.json")
    trace = _read_json(folder / f"trace-{phase}.json")
    arrays_path = folder / f"trace-{phase}.npz"
    try:
        with np.load(arrays_path, allow_pickle=False) as npz:
            arrays = {name: npz[name] for name in (*CORE_ARRAYS, *LINK_ARRAYS)}
    except FileNotFoundError as error:
        raise _missing(arrays_path) from error
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise _malformed(arrays_path, error) from error
    try:
        run = _run_data(phase, report, trace, arrays)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _malformed(folder / f"trace-{phase}.json", error) from error
    run.verify()
    return run


def _run_data(
    phase: str, report: dict[str, Any], trace: dict[str, Any], arrays: dict[str, np.ndarray]
) -> RunData:
    chip, sram = trace["chip"], trace.get("sram", {})
    tables = sram.get("buffers", {k: v for k, v in sram.items() if isinstance(v, list)})
    return RunData(
        model=str(report.get("model", {}).get("name") or trace.get("model", "model")),
        chip=str(chip["name"]),
        phase=phase,
        rows=int(chip["rows"]),
        cols=int(chip["cols"]),
        clock_hz=float(report.get("chip", {}).get("clock_hz") or chip.get("clock_hz") or 0),
        cycles=float(trace["cycles"]),
        dead=tuple(Coord(int(r), int(c)) for r, c in chip.get("dead", ())),
        regions={n: Region(n, *map(int, box)) for n, box in trace["regions"].items()},
        stages={
            r: tuple((str(n), int(a), int(b)) for n, a, b in runs)
            for r, runs in trace.get("stages", {}).items()
        },
        ops={
            r: tuple((str(n), str(k).lower()) for n, k in ops)
            for r, ops in trace.get("ops", {}).items()
        },
        spans=tuple(_span(values) for values in trace["spans"]),
        sram_capacity_bytes=int(sram.get("capacity_bytes", 0)),
        buffers={r: tuple(_buffer(b) for b in table) for r, table in tables.items()},
        report=report,
        **arrays,
    )


def _span(values: Sequence[Any]) -> Span:
    position, name, op, kind, layer, region, *times = values
    start, end, compute, communication, wait = (float(t) for t in times[:5])
    return Span(
        int(position), str(name), str(op), str(kind), int(layer), str(region),
        start, end, compute, communication, wait,
    )  # fmt: skip


def _buffer(record: dict[str, Any]) -> SramBuffer:
    first, last = record.get("live", (0, -1))
    return SramBuffer(
        name=str(record["name"]),
        kind=str(record["kind"]),
        tensor=str(record.get("tensor", "")),
        segment=str(record.get("segment", "")),
        offset=int(record["offset"]),
        bytes=int(record["bytes"]),
        stride=int(record.get("stride", 0)),
        layers=int(record.get("layers", 1)),
        live=(int(first), int(last)),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (OSError, ValueError) as error:
        raise _malformed(path, error) from error
    if not isinstance(value, dict):
        raise _malformed(path, TypeError("it is not a JSON object"))
    return value


def _missing(path: Path) -> InputError:
    return InputError(
        f"The folder '{path.parent}' has no {path.name}; run `meshc run {path.parent}` first."
    )


def _malformed(path: Path, error: Exception) -> InputError:
    return InputError(
        f"The file '{path}' is not a trace that meshc can draw ({type(error).__name__}: {error}); "
        f"run `meshc run {path.parent}` again."
    )
