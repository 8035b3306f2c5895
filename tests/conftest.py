"""What the end-to-end tests share: models, compiled programs, the command line, and where every
byte that a program reads comes from.
"""

from __future__ import annotations

import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc import chips, cli, store
from meshc.emulator.sram import lane_view
from meshc.expand import Expander
from meshc.ir.chip import Coord
from meshc.ir.compiled import Compiled, CompileOptions
from meshc.ir.program import Compute, Program, Run
from meshc.ir.stream import Combine, Copy, Kernel, Key, Recv, Send, Step, View
from meshc.pipeline import compile as compile_model

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "llama-optimum-with_past.onnx"
EXPORTED = ROOT.parent / "shared" / "onnx"
PAIR = "llama-hf-op20-pair"  # prefill and decode in two files


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="record the metrics in tests/golden/ anew"
    )


def exported_file(name: str) -> Path:
    """An exporter's file; skips where ../shared/onnx is not beside the repository. The example
    model travels with it."""
    path = EXPORTED / name
    if not path.exists() and name == EXAMPLE.name:
        return EXAMPLE
    if not path.exists():
        pytest.skip(f"needs ../shared/onnx/{name} beside the repository")
    return path


@pytest.fixture(scope="session")
def exported() -> Callable[[str], Path]:
    """name of a file in ../shared/onnx → its path, or a skip."""
    return exported_file


@pytest.fixture(scope="session")
def example() -> Path:
    """The model that the repository carries: Llama, 2 layers, hidden 64, prefill and decode."""
    return EXAMPLE


@pytest.fixture(scope="session")
def build() -> Callable[..., Compiled]:
    """compile() with the greedy solver unless asked otherwise; equal calls share one result.

    model: a name in ../shared/onnx without .onnx, PAIR, or a path.
    """
    done: dict[Any, Compiled] = {}

    def compiled(model: str | Path = EXAMPLE, chip: str = "test4x4", **options: Any) -> Compiled:
        key = (str(model), chip, *sorted(options.items()))
        if key not in done:
            if chip not in chips.chip_names() and not Path(chip).exists():
                pytest.skip(f"chip {chip} is not shipped")
            path: Path = Path(model)
            if model == PAIR:
                path = exported_file("llama-hf-op20-prefill.onnx")
                options["decode_model"] = str(exported_file("llama-hf-op20-decode.onnx"))
            elif not path.suffix:
                path = exported_file(f"{model}.onnx")
            given = CompileOptions(**{"chip": chip, "solver": "greedy", **options})
            result = compile_model(path, given)
            assert result is not None
            done[key] = result
        return done[key]

    return compiled


@dataclass(frozen=True)
class Outcome:
    """What a command did: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The complaint: exactly one line on stderr, a sentence, and no traceback."""
        assert "Traceback" not in self.err, self.err
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith(".\n") and ".." not in self.err and ".;" not in self.err, self.err
        return self.err.rstrip("\n")


@pytest.fixture
def meshc(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command line, in this process: meshc("run", folder, "--verify")."""

    def run(*argv: object) -> Outcome:
        capsys.readouterr()
        try:
            code = cli.main([str(a) for a in argv])
        except SystemExit as stop:
            code = int(stop.code or 0)
        except Exception:  # what a user sees as a traceback and exit code 1
            traceback.print_exc(file=sys.stderr)
            code = 1
        shown = capsys.readouterr()
        return Outcome(code, shown.out, shown.err)

    return run


@pytest.fixture
def folder(build: Callable[..., Compiled], tmp_path: Path) -> Callable[..., Path]:
    """An output folder as `meshc compile` leaves it, from a program that `build` has made."""

    def made(name: str = "out", **options: Any) -> Path:
        out = tmp_path / name
        with store.whole_folder(out) as fresh:
            store.mark(fresh)
            store.save_compiled(build(**options), fresh)
        return out

    return made


# -- what a program reads ----------------------------------------------------------------------


@dataclass(frozen=True)
class Read:
    """One action's reading of one view.

    what: "gather" for a table of which only some rows count, "shift" for what only serves to find
    the maximum that a softmax takes off and that cancels out, else the step's name.
    origins: the writes that its bytes come from.   checksum: over the origin of every byte.
    """

    what: str
    origins: tuple[int, ...]
    checksum: int


@dataclass
class History:
    """What one core reads, in order, and from which reads each of its writes follows.

    made: write → reads that it follows from.   sent: message → read.   got: write → message.
    kept: reads of the outputs.
    """

    reads: list[Read] = field(default_factory=list)
    made: dict[int, list[int]] = field(default_factory=dict)
    sent: dict[Key, int] = field(default_factory=dict)
    got: dict[int, Key] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)


def streams(program: Program) -> dict[Coord, list[Step]]:
    """Every core's own instructions."""
    expander = Expander(program)
    return {core: list(expander.stream(core)) for core in expander.cores()}


def views_of(step: Step) -> Iterator[View]:
    """Every part of SRAM that a step touches."""
    for a in step.actions:
        if isinstance(a, Kernel):
            yield from (*a.inputs, a.output)
        elif isinstance(a, Copy | Combine):
            yield from (a.source, a.destination)
        else:
            yield a.view


def layers_of(program: Program) -> int:
    """Most instances that a buffer has."""
    return max(
        (e.base + e.last - e.first for e in program.schedule if isinstance(e, Run)), default=1
    )


def apart(program: Program) -> Program:
    """The same program with every instance of every buffer at addresses of its own."""
    at, layers, buffers = 0, layers_of(program), {}
    for b in program.buffers.values():
        stride = b.bytes if b.stride else 0
        buffers[b.name] = replace(b, offset=at, stride=stride)
        at += b.bytes * (layers if stride else 1)
    return replace(program, buffers=buffers)


def histories(program: Program) -> dict[Coord, History]:
    """Per core, which earlier write each byte comes from that it reads.

    Loads, received messages and results are numbered; a byte that a message is awaited for has a
    number of its own.
    """
    return {core: _history(program, core, steps) for core, steps in streams(program).items()}


def _history(program: Program, core: Coord, steps: list[Step]) -> History:
    loads = list(_held(program, core, program.load, before=True))
    results = list(_held(program, core, program.outputs))
    top = max(v.span[1] for v in (*loads, *results, *(v for s in steps for v in views_of(s))))
    origin = np.full(top, -1, np.int64)
    h = History()
    maxima = cancelling(program)
    number = 0

    def part(view: View) -> np.ndarray:
        first, end = view.span
        assert first >= 0, "a view begins below address 0"
        array = origin[first:end].reshape(*view.extent, -1)
        return array[tuple(slice(r.start, r.stop, r.step) for r in view.ranges)]

    def read(step: Step | None, *views: View, operands: tuple[str, ...] = ()) -> list[int]:
        first = len(h.reads)
        op = program.ops.get(step.op) if step else None
        for n, v in enumerate(views):
            if v.elements:
                what = step.name if step else "output"
                if op and (op.name in maxima or (operands and operands[n] in maxima)):
                    what = "shift"
                elif op and operands and op.kind == "gather" and n == 0:
                    what = "gather"
                origins = np.ascontiguousarray(part(v))
                distinct = tuple(np.unique(origins).tolist())
                h.reads.append(Read(what, distinct, zlib.crc32(origins.tobytes())))
        return list(range(first, len(h.reads)))

    def write(view: View, reads: list[int]) -> int:
        nonlocal number
        number += 1
        if view.elements:
            part(view)[...] = number
        h.made[number] = reads
        return number

    for view in loads:
        write(view, [])
    for step in steps:
        for a in step.actions:
            if isinstance(a, Recv):
                write(a.view, [])
        for a in step.actions:
            if isinstance(a, Send):
                h.sent[a.key] = read(step, a.view)[0]
            elif isinstance(a, Kernel):
                if a.output.elements:
                    names = program.ops[a.op].inputs
                    write(a.output, read(step, *_used(program, a), operands=names))
            elif isinstance(a, Copy):
                write(a.destination, read(step, a.source))
            elif isinstance(a, Combine):
                write(a.destination, read(step, a.source, a.destination))
            else:
                h.got[write(a.view, [])] = a.key
    h.kept = read(None, *results)
    return h


def cancelling(program: Program) -> set[str]:
    """Ops, and their tensors, that take a maximum: in these models a softmax subtracts it from
    all its terms, so that any finite value in its place gives the same result."""
    found = set()
    for op in program.ops.values():
        if any(o.kind == "reduce" and o.attr("fn") == "max" for o in (op, *op.body)):
            found |= {op.name, op.output}
    return found


def spared(program: Program) -> set[str]:
    """Ops of whose result a lane reads only a part: lanes repeat rows that others look after, so
    that a wrong operand of such a row may go unseen."""
    found = set()
    for body in program.bodies.values():
        for i in body:
            if not isinstance(i, Compute):
                continue
            whole = program.buffers[i.output].layout
            reads = [
                layout
                for j in body
                if isinstance(j, Compute)
                for name, layout in zip(j.inputs, j.layouts, strict=True)
                if name == i.output
            ]
            if reads and whole not in reads:
                found.add(i.op)
    return found


def _used(program: Program, kernel: Kernel) -> list[View]:
    """The operands that a kernel's result depends on: a lane that keeps none of the new tokens
    appends nothing."""
    op = program.ops[kernel.op]
    if op.kind == "append" and len(kernel.inputs) == 2:
        tokens = kernel.ranges[-1][op.attr("axis")]
        if not any(t >= op.attr("past", 0) for t in tokens):
            return [kernel.inputs[0]]
    return list(kernel.inputs)


def needed(found: dict[Coord, History]) -> tuple[set[tuple[Coord, int]], set[Key]]:
    """The reads (core, number) and the messages that the outputs depend on."""
    reads: set[tuple[Coord, int]] = set()
    messages: set[Key] = set()
    senders = {key: core for core, h in found.items() for key in h.sent}
    todo = [(core, r) for core, h in found.items() for r in h.kept]
    while todo:
        core, r = todo.pop()
        if (core, r) in reads:
            continue
        reads.add((core, r))
        h = found[core]
        for write in h.reads[r].origins:
            todo += [(core, before) for before in h.made.get(write, ())]
            if write in h.got:
                key = h.got[write]
                messages.add(key)
                todo.append((senders[key], found[senders[key]].sent[key]))
    return reads, messages


def _held(
    program: Program,
    core: Coord,
    items: tuple[tuple[str, str, str, int], ...],
    before: bool = False,
) -> Iterator[View]:
    """This core's part of what the program puts out, or loads: of caches, the past."""
    past = {op.output: op.attr("past", 0) for op in program.ops.values() if op.kind == "append"}
    for _, name, place, layer in items:
        region, b = program.regions[place], program.buffers[name]
        if not region.contains(core):
            continue
        if before and b.growing is not None and b.tensor in past:
            shape = list(b.shape)
            shape[b.growing] = past[b.tensor]
            b = replace(b, shape=tuple(shape))
        lane = (core.row - region.row, core.col - region.col)
        yield lane_view(b, layer, lane, (region.rows, region.cols))


@dataclass(frozen=True)
class Anatomy:
    """The functions above, for tests."""

    streams: Callable[[Program], dict[Coord, list[Step]]] = streams
    views_of: Callable[[Step], Iterator[View]] = views_of
    layers_of: Callable[[Program], int] = layers_of
    apart: Callable[[Program], Program] = apart
    histories: Callable[[Program], dict[Coord, History]] = histories
    needed: Callable[..., tuple[set[tuple[Coord, int]], set[Key]]] = needed
    cancelling: Callable[[Program], set[str]] = cancelling
    spared: Callable[[Program], set[str]] = spared


@pytest.fixture(scope="session")
def anatomy() -> Anatomy:
    """How to take a program apart."""
    return Anatomy()
