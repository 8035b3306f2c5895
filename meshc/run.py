"""Running a compiled model on the emulator: timing, verification, given inputs, generation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshc import frontend
from meshc.emulator import DEFAULT_ENGINE, Faults, emulate
from meshc.errors import InputError, InvariantError, VerificationError
from meshc.ir.compiled import Compiled, CompiledPhase
from meshc.ir.dtypes import FLOATS, NUMPY
from meshc.ir.graph import Graph
from meshc.ir.program import Program
from meshc.ir.trace import Trace
from meshc.pipeline import step_program

FP32_TOLERANCE = 1e-4  # of the largest magnitude (CONTRACT)
HALF_TOLERANCE = 2e-2


class Tensors(Mapping[str, np.ndarray]):
    """Data by the model's names: given arrays first, then the model file's, read when asked."""

    def __init__(self, given: Mapping[str, np.ndarray], data: Any) -> None:
        self._given, self._data = given, data

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._given:
            return self._given[name]
        found: np.ndarray = self._data.read(name)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._given or name in self._data.consts

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)


def open_model(phase: CompiledPhase) -> Any:
    """The ONNX model of a compiled phase; InputError when it is gone or has changed."""
    path = Path(phase.model_path)
    if not path.exists():
        raise InputError(
            f"Model file '{path}' is gone; put it back or compile the model again from its new "
            "place."
        )
    model = frontend.load_model(path)
    if model.sha256 != phase.model_sha256:
        raise InputError(
            f"Model file '{path}' has changed since it was compiled; compile it again."
        )
    return model


@dataclass(frozen=True)
class Result:
    """One emulated step: with contention, without, and the comparison with the oracle.

    experts: rows that each expert got, per mixture-of-experts layer.
    """

    trace: Trace
    free: Trace
    verify: dict[str, Any] | None = None
    experts: tuple[tuple[int, ...], ...] = ()


def run_phase(
    compiled: Compiled,
    phase: str,
    *,
    engine: str = DEFAULT_ENGINE,
    tensors: Mapping[str, np.ndarray] | None = None,
    faults: Faults | None = None,
    program: Program | None = None,
    core_spans: bool = False,
) -> tuple[Trace, Trace]:
    """Emulate one phase with contention and without; returns both traces."""
    done = program if program is not None else compiled.phases[phase].program
    trace = emulate(
        done,
        compiled.chip,
        tensors=tensors,
        engine=engine,
        faults=faults,
        core_spans=core_spans,
    )
    free = emulate(done, compiled.chip, contention=False, engine=engine)
    return trace, free


def random_inputs(bound: Any, seed: int) -> dict[str, np.ndarray]:
    """Run-time inputs and past caches: normal floats, indices within their tables."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    limits = index_limits(bound.graph)
    for name, (shape, dtype) in bound.inputs.items():
        if name in bound.usual:
            feeds[name] = bound.usual[name]
        else:
            feeds[name] = _random(rng, shape, dtype, limits.get(name))
    for past, _, shape, dtype in bound.caches:
        if past is not None:
            feeds[past] = _random(rng, shape, dtype, None)
    return feeds


def _random(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, limit: int | None
) -> np.ndarray:
    if dtype in FLOATS:
        return rng.standard_normal(shape, dtype=np.float32).astype(NUMPY[dtype])
    if dtype == "bool":
        return np.ones(shape, dtype=np.bool_)
    if limit is None and dtype in ("int8", "uint8"):  # quantised numbers
        low = 0 if dtype == "uint8" else -128
        return rng.integers(low, low + 256, size=shape).astype(NUMPY[dtype])
    return rng.integers(0, limit or 2, size=shape).astype(NUMPY[dtype])


def index_limits(graph: Graph) -> dict[str, int]:
    """Model inputs that are indices into a table → the table's length."""
    found: dict[str, int] = {}
    for _, outer in graph.ops():
        for op in outer.body or (outer,):
            if op.kind != "gather" or not set(op.inputs) <= set(outer.inputs):
                continue
            index = graph.tensors[op.inputs[1]]
            size = graph.tensors[op.inputs[0]].shape[op.attr("axis", 0)]
            for name in index.instances:
                found[name] = min(size, found.get(name, size))
    return found


def tolerance(graph: Graph) -> float:
    """2e-2 when the graph computes in 16-bit floats anywhere, else 1e-4."""
    narrow = any(t.dtype in ("fp16", "bf16") for t in graph.tensors.values())
    return HALF_TOLERANCE if narrow else FP32_TOLERANCE


def compare(name: str, got: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """Largest error of one output, absolute and relative to the largest magnitude expected."""
    if got.shape != expected.shape:
        return {
            "name": name,
            "max_abs_error": None,
            "max_rel_error": None,
            "problem": f"shape {list(got.shape)} instead of {list(expected.shape)}",
        }
    a, b = got.astype(np.float64), expected.astype(np.float64)
    if a.size == 0:
        return {"name": name, "max_abs_error": 0.0, "max_rel_error": 0.0}
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(a - b))
    if not np.isfinite(error).all():
        bad = int((~np.isfinite(error)).sum())
        return {
            "name": name,
            "max_abs_error": None,
            "max_rel_error": None,
            "problem": f"{bad} of its {a.size:,} elements are infinite or NaN on one side only",
        }
    worst = float(error.max())
    return {"name": name, "max_abs_error": worst, "max_rel_error": worst / magnitude(b)}


def magnitude(b: np.ndarray) -> float:
    """The largest finite magnitude, which errors are relative to; 1 where all is zero."""
    finite = np.abs(b[np.isfinite(b)])
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def verify_outputs(
    graph: Graph,
    outputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    oracle: str,
    defined: Mapping[str, tuple[int, int]] | None = None,
    spread: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The report's verify entry. defined: outputs of which only the first elements of an axis mean
    something → (axis, count).   spread: by how much outputs may differ beyond the tolerance,
    because the graph rounds to a quantised type; their rows have a tolerance of their own."""
    limit = tolerance(graph)
    rows = []
    for name, got in outputs.items():
        want = expected[name]
        if defined and name in defined and got.shape == want.shape:
            axis, count = defined[name]
            got, want = (np.take(a, range(count), axis=axis) for a in (got, want))
        rows.append(compare(name, got, want))
        if spread and spread.get(name):
            rows[-1]["tolerance"] = limit + spread[name] / magnitude(want.astype(np.float64))
    return {
        "oracle": oracle,
        "outputs": rows,
        "tolerance": limit,
        "passed": all(
            r["max_rel_error"] is not None and r["max_rel_error"] <= r.get("tolerance", limit)
            for r in rows
        ),
    }


def verify_phase(
    compiled: Compiled,
    phase: str,
    *,
    feeds: Mapping[str, np.ndarray] | None = None,
    engine: str = DEFAULT_ENGINE,
    faults: Faults | None = None,
    program: Program | None = None,
    core_spans: bool = False,
    check: bool = True,
) -> Result:
    """Carry tensors through the compiled program and compare with the oracle.

    feeds: run-time inputs and past caches by the model's names (random ones of the compiled seed
    when absent).   program: another program than the compiled one (tests corrupt it).
    """
    model = open_model(compiled.phases[phase])
    w = compiled.phases[phase].workload
    own, bound = step_program(compiled, phase, model, context=w.context)
    bound.data.require()
    if feeds is None:
        feeds = random_inputs(bound, compiled.options.seed)
    try:
        trace, free = run_phase(
            compiled,
            phase,
            engine=engine,
            tensors=Tensors(feeds, bound.data),
            faults=faults,
            program=program if program is not None else own,
            core_spans=core_spans,
        )
    except InvariantError as error:
        if not check:
            raise
        raise VerificationError(
            f"Verification failed: the {phase} program cannot be run: {error}"
        ) from error
    assert trace.outputs is not None
    trace = replace(trace, outputs=bound.whole(trace.outputs))
    experts = frontend.observed(bound.graph, trace.routed)
    if not check:
        return Result(trace, free, experts=experts)
    given = bound.whole({**bound.folded, **feeds})
    if bound.stored:
        model = frontend.as_stored(model, bound)
    expected, oracle = frontend.run_oracle(model, given)
    if bound.stored:
        oracle += ", weights quantised and dequantised"
    assert trace.outputs is not None
    found = verify_outputs(bound.graph, trace.outputs, expected, oracle, bound.defined)
    if not found["passed"]:
        spread = frontend.rounding_spread(model, given, expected)
        found = verify_outputs(bound.graph, trace.outputs, expected, oracle, bound.defined, spread)
    return Result(trace, free, found, experts)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file; InputError where it is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {n: file[n] for n in file.files}
    except FileNotFoundError:
        raise InputError(
            f"Input file '{path}' does not exist; give an .npz with the model's inputs."
        ) from None
    except (ValueError, OSError, EOFError, Exception) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"Input file '{path}' is not an .npz of arrays ({type(error).__name__}); write it "
            "with numpy.savez."
        ) from None


def feeds_from_file(path: Path, compiled: Compiled) -> tuple[str, dict[str, np.ndarray]]:
    """Read --inputs: the phase that the shapes belong to, and the tensors.

    Inputs that the workload determines may be given too and must agree with it.
    """
    given = read_arrays(path)
    problems: list[str] = []
    for phase, done in compiled.phases.items():
        model = open_model(done)
        _, bound = step_program(compiled, phase, model, context=done.workload.context)
        apart = [n for n in given if n in bound.stacks]
        parts = bound.parts(given) if not apart or _stackable(given, apart, bound) else given
        problem = _mismatch(parts, bound)
        if problem is None:
            names = [*bound.inputs, *(p for p, *_ in bound.caches if p is not None)]
            return phase, {n: _cast(parts[n], bound, n) for n in names}
        problems.append(f"{phase}: {problem}")
    raise InputError(f"The inputs in '{path}' do not suit the compiled model; {' '.join(problems)}")


def _stackable(given: Mapping[str, np.ndarray], names: list[str], bound: Any) -> bool:
    """Whether stacked tensors have as many parts as the graph keeps."""
    for name in names:
        parts = bound.stacks[name]
        depth = parts[0].count(",", parts[0].rindex("[")) + 1
        if int(np.prod(given[name].shape[:depth])) != len(parts):
            return False
    return True


def _cast(array: np.ndarray, bound: Any, name: str) -> np.ndarray:
    for past, _, _, dtype in bound.caches:
        if past == name:
            return array.astype(NUMPY[dtype])
    return array.astype(NUMPY[bound.inputs[name][1]])


def _mismatch(given: Mapping[str, np.ndarray], bound: Any) -> str | None:
    """What speaks against these inputs, as the rest of a sentence; None when they suit."""
    wanted = {n: tuple(s) for n, (s, _) in bound.inputs.items()}
    wanted |= {p: tuple(s) for p, _, s, _ in bound.caches if p is not None}
    for name, shape in wanted.items():
        if name not in given:
            return f"input '{name}' of shape {list(shape)} is missing, add it to the file."
        if given[name].shape != shape:
            return (
                f"input '{name}' has shape {list(given[name].shape)} where {list(shape)} was "
                "compiled, compile with fitting --batch, --prompt and --context."
            )
    types = {n: d for n, (_, d) in bound.inputs.items()}
    types |= {p: d for p, _, _, d in bound.caches if p is not None}
    for name, dtype in types.items():
        kinds = "fiub" if dtype in FLOATS else "iub"
        if given[name].dtype.kind not in kinds and given[name].dtype != NUMPY[dtype]:
            return (
                f"input '{name}' holds elements of type {given[name].dtype} where {dtype} is "
                "wanted, convert it."
            )
    limits = index_limits(bound.graph)
    for name, size in limits.items():
        if name in given and given[name].size:
            low, high = int(given[name].min()), int(given[name].max())
            if low < -size or high >= size:
                worst = high if high >= size else low
                return (
                    f"input '{name}' holds {worst} where {size} entries exist, give 0 to "
                    f"{size - 1}."
                )
    for name, array in given.items():
        if name in wanted or name in bound.unread:
            continue
        if name not in bound.folded:
            known = ", ".join(f"'{n}'" for n in [*wanted, *bound.folded])
            return f"the model has no input '{name}', it has {known}."
        if np.asarray(bound.folded[name]).shape != array.shape:
            return (
                f"input '{name}' has shape {list(array.shape)} where the workload gives "
                f"{list(bound.folded[name].shape)}, give that shape or compile for another one."
            )
        if not np.array_equal(np.asarray(bound.folded[name]), array):
            return (
                f"input '{name}' contradicts what was folded for the workload, compile with "
                "--dynamic-mask to keep masks and positions as run-time inputs."
            )
    return None


def decode_steps(
    compiled: Compiled,
    count: int,
    *,
    engine: str = DEFAULT_ENGINE,
    say: Callable[[str], None] | None = None,
) -> list[tuple[int, Trace]]:
    """Timing of `count` decode steps in a row, with the cached entries that each begins with."""
    done = compiled.phases.get("decode")
    if done is None:
        raise InputError(
            "--tokens decodes, and only the prefill was compiled; compile with --phase both or "
            "--phase decode."
        )
    w = done.workload
    if w.kept is None and w.context + count * w.prompt > w.max_context:
        raise InputError(
            f"--tokens {count} from context {w.context} needs {w.context + count} cached tokens "
            f"where SRAM is reserved for {w.max_context}; compile with --max-context "
            f"{w.context + count} or give at most {w.max_context - w.context} tokens."
        )
    model = open_model(done)
    found = []
    context = w.context
    for i in range(count):
        if say:
            say(f"decode step {i + 1} of {count}")
        program, bound = step_program(compiled, "decode", model, context=context)
        found.append((context, emulate(program, compiled.chip, engine=engine)))
        context = frontend.entries_after(bound.kept, replace(w, context=context))
    return found


__all__ = ["Result", "Tensors", "decode_steps", "run_phase", "verify_phase"]
