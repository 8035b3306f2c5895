"""The output folder: written whole or not at all.

OUT/compiled.json has everything that `meshc run` needs but the model's weights, which stay in
the model file; OUT/report.json and OUT/trace-PHASE.{json,npz} come from a run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meshc import __version__
from meshc.errors import InputError, InvariantError
from meshc.ir import codec
from meshc.ir.compiled import Compiled
from meshc.ir.dtypes import NUMPY
from meshc.ir.program import Compute, Program, Run
from meshc.ir.trace import Span, Trace
from meshc.memory import region_buffers

COMPILED = "compiled.json"
MARKER = "meshc.json"
SECONDS = "seconds.json"
# What a run, its pictures and the dumps of a compilation leave in the folder.
RESULT = re.compile(
    r"report\.(json|html)|outputs\.npz|trace-(prefill|decode)\.(json|npz)"
    r"|(placement|sram|utilization|links|timeline)(-(prefill|decode))?\.(png|svg)"
    r"|(prefill|decode)\.(graph|plan|program|routing)\.txt|placement\.txt"
)
STAGES = ("import", "partition", "place", "route", "emit")
REPORT = "report.json"
EXPERTS = "experts.json"


def check_target(out: Path) -> None:
    """Refuse a target that is a file, a folder of something else, or that cannot be written."""
    if out.exists() and not out.is_dir():
        raise InputError(f"Output '{out}' is a file, not a folder; give a folder with -o.")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists():
        raise InputError(
            f"Output folder '{out}' holds files that meshc did not write; give an empty or new "
            "folder with -o."
        )
    parent = out.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"Output '{out}' lies below the file '{parent}'; give another folder.")
    with writable(parent):
        Path(tempfile.mkdtemp(prefix=".meshc.", dir=parent)).rmdir()


@contextmanager
def writable(place: Path) -> Iterator[None]:
    """Turn what the file system refuses into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"'{place}' cannot be written ({error.strerror}); give another place."
        ) from None


@contextmanager
def whole_folder(out: Path, *, keep: bool = False) -> Iterator[Path]:
    """A folder for new files, which come to `out` all together when the block ends without an
    error. Files there that meshc did not write stay; results of an earlier compilation, which do
    not belong to the new one, go, unless `keep`."""
    check_target(out)
    out = out.resolve()
    with writable(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
        place = out if out.exists() else out.parent
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=place))
    try:
        yield fresh
        if not out.exists():
            fresh.chmod(0o755)
            fresh.rename(out)
            return
        if not keep:
            for old in out.iterdir():
                if old.is_file() and RESULT.fullmatch(old.name):
                    old.unlink()
        for new in sorted(fresh.iterdir()):
            os.replace(new, out / new.name)
    finally:
        if fresh.exists():
            shutil.rmtree(fresh, ignore_errors=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it appears complete or not at all."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def save_compiled(compiled: Compiled, folder: Path) -> None:
    """Write compiled.json into a folder, and the seconds that it took beside it, so that equal
    inputs give an equal compiled.json."""
    phases = {n: replace(p, graph=None) for n, p in compiled.phases.items()}
    solves = tuple(replace(s, seconds=0.0) for s in compiled.solves)
    text = codec.dumps(replace(compiled, phases=phases, solves=solves, seconds={}))
    write_whole(folder / COMPILED, (text + "\n").encode())
    taken = {"stages": compiled.seconds, "solves": [s.seconds for s in compiled.solves]}
    write_json(folder / SECONDS, taken)


def open_compiled(out: Path) -> Compiled:
    """Read what `meshc compile` wrote; InputError when there is none."""
    path = out / COMPILED
    if out.exists() and not out.is_dir():
        raise InputError(f"'{out}' is a file; give the folder that meshc compile wrote.")
    if not out.is_dir():
        raise InputError(
            f"Folder '{out}' does not exist; make it with: meshc compile MODEL.onnx --chip CHIP "
            f"-o {out}."
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"Folder '{out}' holds no compiled model ({COMPILED}); make it with: meshc compile "
            f"MODEL.onnx --chip CHIP -o {out}."
        ) from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror}).") from None
    try:
        compiled = codec.loads(data.decode())
        if not isinstance(compiled, Compiled) or compiled.version != __version__:
            raise TypeError
        for phase in compiled.phases.values():
            phase.program.verify()
            for r in phase.program.regions.values():
                if not (
                    0 <= r.row <= r.row + r.rows <= compiled.chip.rows
                    and 0 <= r.col <= r.col + r.cols <= compiled.chip.cols
                    and (phase.plan.rows, phase.plan.cols) == (r.rows, r.cols)
                ):
                    raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, InvariantError):
        raise InputError(
            f"'{path}' is damaged or from another version of meshc; compile the model again."
        ) from None
    return _with_seconds(compiled, out / SECONDS)


def _with_seconds(compiled: Compiled, path: Path) -> Compiled:
    """Put the times taken back in; without their file they are unknown and stay zero."""
    try:
        taken = json.loads(path.read_text())
        solves = tuple(
            replace(s, seconds=t) for s, t in zip(compiled.solves, taken["solves"], strict=True)
        )
        return replace(compiled, solves=solves, seconds=taken["stages"])
    except (OSError, ValueError, KeyError, TypeError):
        return replace(compiled, seconds=dict.fromkeys(STAGES, 0.0))


def write_json(path: Path, value: Any) -> None:
    write_whole(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An .npz, whole or not at all. numpy has no bfloat16, which is widened to float32."""
    arrays = {n: a.astype(np.float32) if a.dtype == NUMPY["bf16"] else a for n, a in arrays.items()}
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


def mark(folder: Path) -> None:
    """Note that meshc wrote this folder and may replace what is in it."""
    write_whole(folder / MARKER, (json.dumps({"meshc": __version__}) + "\n").encode())


def viz_module() -> Any:
    """The drawing code: `meshc.viz` when installed, the `viz` folder in a source checkout."""
    from importlib import import_module

    try:
        return import_module("meshc.viz")
    except ModuleNotFoundError as error:
        if error.name != "meshc.viz":
            raise
    root = str(Path(__file__).resolve().parent.parent)
    if root not in sys.path:
        sys.path.insert(0, root)
    return import_module("viz")


def write_trace(out: Path, phase: str, trace: Trace, compiled: Compiled) -> None:
    """OUT/trace-PHASE.json and .npz: what the pictures are drawn from."""
    done = compiled.phases[phase]
    program, chip = done.program, compiled.chip
    sram: dict[str, Any] = {"capacity_bytes": chip.core.usable_bytes}
    peak = np.zeros((chip.rows, chip.cols), dtype=np.int64)
    for name, region in program.regions.items():
        rows = []
        for b, count in region_buffers(program, name):
            top = b.offset + (count - 1) * b.stride + b.bytes
            block = np.s_[
                region.row : region.row + region.rows, region.col : region.col + region.cols
            ]
            peak[block] = np.maximum(peak[block], top)
            rows.append(
                {
                    "name": b.name,
                    "kind": b.kind,
                    "tensor": b.tensor,
                    "segment": b.segment,
                    "offset": b.offset,
                    "bytes": b.bytes,
                    "stride": b.stride,
                    "layers": count,
                    "live": list(b.live),
                }
            )
        sram[name] = rows
    ops: dict[str, list[list[str]]] = {}
    stages: dict[str, list[list[Any]]] = {}
    for entry in program.schedule:
        if isinstance(entry, Run):
            stages.setdefault(entry.region, []).append([entry.segment, entry.first, entry.last])
            ops.setdefault(entry.region, []).extend(
                [i.op, program.ops[i.op].core]
                for i in program.bodies[entry.body]
                if isinstance(i, Compute)
            )
    value = {
        "chip": {
            "name": chip.name,
            "rows": chip.rows,
            "cols": chip.cols,
            "clock_hz": chip.clock_hz,
            "dead": [[c.row, c.col] for c in sorted(chip.dead())],
        },
        "model": compiled.model["name"],
        "phase": phase,
        "cycles": trace.cycles,
        "regions": {n: [r.row, r.col, r.rows, r.cols] for n, r in program.regions.items()},
        "spans": [
            [
                s.position,
                s.name,
                s.op,
                _span_kind(s, program),
                s.layer,
                s.region,
                s.start_cycle,
                s.end_cycle,
                s.compute_cycles,
                s.communication_cycles,
                s.wait_cycles,
            ]
            for s in trace.spans
        ],
        "sram": sram,
        "stages": stages,
        "ops": ops,
    }
    write_arrays(
        out / f"trace-{phase}.npz",
        {
            "compute_cycles": trace.compute_cycles,
            "communication_cycles": trace.communication_cycles,
            "wait_cycles": trace.wait_cycles,
            "finish_cycles": trace.finish_cycles,
            "sram_peak_bytes": peak,
            "sram_bytes": trace.sram_bytes,
            "macs": trace.macs,
            "link_busy_cycles": trace.link_busy_cycles,
            "link_bytes": trace.link_bytes,
        },
    )
    write_json(out / f"trace-{phase}.json", value)


def _span_kind(span: Span, program: Program) -> str:
    """The op's kind for kernels, the instruction's for communication."""
    if span.kind == "compute" and span.op in program.ops:
        return program.ops[span.op].core
    return span.kind


def check_file(path: Path) -> None:
    """Refuse a file's place that is a folder or lies in none."""
    if path.is_dir():
        raise InputError(f"'{path}' is a folder; give the name of a file.")
    if not path.absolute().parent.is_dir():
        raise InputError(
            f"Folder '{path.absolute().parent}' does not exist; make it or give another place."
        )


def write_chrome_trace(path: Path, traces: dict[str, Trace], compiled: Compiled) -> None:
    """A trace that Perfetto and chrome://tracing open: a track per core, or per region above
    4,096 cores, and a counter of what the links carry. Times are in microseconds of the chip's
    clock."""
    events: list[dict[str, Any]] = []
    scale = 1e6 / compiled.chip.clock_hz
    for number, (phase, trace) in enumerate(traces.items()):
        events.append({"ph": "M", "pid": number, "name": "process_name", "args": {"name": phase}})
        tracks: dict[str, int] = {}

        def track(name: str, number: int = number, tracks: dict[str, int] = tracks) -> int:
            if name not in tracks:
                tracks[name] = len(tracks)
                events.append(
                    {
                        "ph": "M",
                        "pid": number,
                        "tid": tracks[name],
                        "name": "thread_name",
                        "args": {"name": name},
                    }
                )
            return tracks[name]

        used = int((trace.finish_cycles > 0).sum())
        if trace.core_spans and used <= 4096:
            for row, col, index, start, end in trace.core_spans:
                s = trace.spans[index]
                events.append(_event(number, track(f"core {row},{col}"), s, start, end, scale))
        else:
            for s in trace.spans:
                events.append(_event(number, track(s.region), s, s.start_cycle, s.end_cycle, scale))
        events.extend(_traffic(number, trace, scale))
    write_whole(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}).encode())


def _traffic(process: int, trace: Trace, scale: float) -> list[dict[str, Any]]:
    """Counter of the bytes that messages bring per cycle: each instruction's over its own time."""
    change: dict[float, float] = {}
    for s in trace.spans:
        if s.message_bytes and s.end_cycle > s.start_cycle:
            rate = s.message_bytes / (s.end_cycle - s.start_cycle)
            change[s.start_cycle] = change.get(s.start_cycle, 0.0) + rate
            change[s.end_cycle] = change.get(s.end_cycle, 0.0) - rate
    events, level = [], 0.0
    for cycle in sorted(change):
        level += change[cycle]
        value = {"bytes per cycle": round(max(level, 0.0), 6)}
        events.append(
            {"ph": "C", "pid": process, "name": "links", "ts": cycle * scale, "args": value}
        )
    return events


def _event(
    process: int, thread: int, span: Span, start: float, end: float, scale: float
) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": span.name,
        "cat": span.kind,
        "ts": start * scale,
        "dur": (end - start) * scale,
        "args": {"layer": span.layer, "op": span.op, "start_cycle": start, "end_cycle": end},
    }
