"""The order of the stages: from a model file and a chip to a compiled model.

The only module that knows every stage. `compile` runs them all; `step_program` makes the program
of another decode step of a compiled model, whose plan, addresses and routes stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

from meshc import frontend
from meshc.chips import load_chip, parse_overrides
from meshc.emit import emit
from meshc.emulator import check_chip_runs
from meshc.errors import DoesNotFitError, InputError
from meshc.finalist import Finalist, fastest, lay_out
from meshc.flows import attach
from meshc.fusion import fuse
from meshc.ir.chip import ChipSpec
from meshc.ir.compiled import Compiled, CompiledPhase, CompileOptions
from meshc.ir.graph import Graph
from meshc.ir.plan import OpPlan, Plan, SolveStats
from meshc.ir.program import Program
from meshc.ir.workload import Workload
from meshc.memory import assign_like
from meshc.ops import timing, work
from meshc.partition import SETTINGS, STRATEGIES, Options, PhaseGraphs
from meshc.partition.candidates import resize, resize_layout
from meshc.partition.predict import predict
from meshc.patterns import FORMS, PRIMITIVES
from meshc.store import STAGES

MARGINS = (1.0, 1.05, 1.15, 1.4)  # of what should do, when advice is tried
ADVICE_SECONDS = 20.0  # for trying advice, or twice what planning took
T = TypeVar("T")
RETRIES = 4  # of planning with less SRAM, when the memory layout is fuller than planned


@dataclass
class _Clock:
    """Seconds spent per stage."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def __call__(self, stage: str, since: float) -> float:
        """Book the time since `since` on a stage; returns the time now."""
        now = time.perf_counter()
        self.seconds[stage] += now - since
        return now

    def book(self, laid: list[Finalist]) -> None:
        """Book what the finalists took."""
        for x in laid:
            for stage, seconds in x.seconds.items():
                self.seconds[stage] += seconds


def _forms(options: CompileOptions) -> tuple[str, ...]:
    """The forms that kernels may take."""
    return FORMS if options.fusion and options.recognition else ()


def _fused(graph: Graph, options: CompileOptions, form: tuple[str, ...]) -> Graph:
    """The graph with its kernels in these forms; without any where the options say so."""
    return fuse(graph, form) if options.fusion and form != PRIMITIVES else graph


def _bind(
    model: Any, workload: Workload, options: CompileOptions, form: tuple[str, ...] | None = None
) -> Any:
    """Bind the model for a step.   form: of its kernels; None for the graph of primitives."""
    bound = frontend.bind(
        model, workload, dynamic_mask=options.dynamic_mask, recognise=options.recognition
    )
    types = frontend.parse_dtypes(options.dtype)
    if types:
        bound = frontend.store(bound, types, model.values())
    if form is None:
        return bound
    return replace(bound, graph=_fused(bound.graph, options, form))


def longest(workload: Workload) -> Workload:
    """The same step at the longest context that SRAM is reserved for."""
    if workload.phase == "prefill":
        return workload
    if workload.kept is not None:
        return replace(workload, context=workload.kept)
    return replace(workload, context=workload.max_context - workload.prompt)


def compile(
    model_path: str | Path,
    options: CompileOptions,
    *,
    progress: Callable[[str], None] | None = None,
    until: str | None = None,
    dumps: dict[str, str] | None = None,
    note: Callable[[str], None] | None = None,
) -> Compiled | None:
    """Compile a model for a chip.

    until: stop after this stage and return None.   dumps: receives each stage's text dump.
    note: receives sentences that the user should know although nothing is wrong.
    Raises InputError for input that cannot be accepted, DoesNotFitError when it does not fit.
    """
    say = progress or (lambda text: None)
    clock = _Clock()
    start = time.perf_counter()
    if options.strategy not in STRATEGIES:
        raise InputError(
            f"Strategy '{options.strategy}' is not available; this version has "
            f"{', '.join(STRATEGIES)}."
        )
    frontend.parse_dtypes(options.dtype)
    known = SETTINGS.get(options.strategy, ())
    for key, _ in options.settings:
        if key not in known:
            has = f" (it has {', '.join(known)})" if known else ""
            raise InputError(
                f"--set {key} is not an option of strategy '{options.strategy}'{has}; leave it out."
            )
    chip = load_chip(options.chip, parse_overrides(options.overrides))
    if options.grid and (options.grid[0] > chip.rows or options.grid[1] > chip.cols):
        raise InputError(
            f"--grid {options.grid[0]}x{options.grid[1]} is larger than the "
            f"{chip.rows}x{chip.cols} mesh of {chip.name}; give a rectangle that lies within it."
        )
    say("import")
    model = frontend.load_model(model_path)
    decode_model = frontend.load_model(options.decode_model) if options.decode_model else None
    found = frontend.workloads(
        model,
        phase=options.phase,
        batch=options.batch,
        prompt=options.prompt,
        context=options.context,
        max_context=options.max_context,
        dims=dict(options.dims),
        decode_model=decode_model,
    )
    wanted: dict[str, Any] = {
        str(phase): (m, replace(w, experts=options.experts)) for phase, (m, w) in found.items()
    }
    bound: dict[str, Any] = {}
    full: dict[str, Any] = {}
    if "decode" in wanted:
        wanted, full["decode"] = _furthest(wanted, options)
    for phase, (m, w) in wanted.items():
        w.verify()
        same = phase not in full or longest(w) == w
        bound[phase] = full[phase] if phase in full and same else _bind(m, w, options)
        full[phase] = bound[phase] if same else full[phase]
        frontend.check_past(bound[phase].kept, w)
        frontend.check_room(bound[phase].graph, w)
        graph = _fused(bound[phase].graph, options, _forms(options))
        graph.verify()
        _dump(dumps, f"{phase}.graph", graph.dump())
    _note_absent(note, [m for m in (model, decode_model) if m is not None])
    start = clock("import", start)
    if until == "import":
        return None
    for b in bound.values():
        check_rates(b.graph, chip)
    phases = [
        _phase(w, bound[phase], full[phase], options, decode_model is None)
        for phase, (_, w) in wanted.items()
    ]
    if decode_model is not None and len(phases) == 2:
        a, b = phases
        frontend.check_pair(
            (model, decode_model), (bound[a.phase], bound[b.phase]), (a.digests, b.digests)
        )
    try:
        fitting, stats = _fit(phases, chip, options, clock, say, until == "partition")
    except DoesNotFitError as error:
        raise _advised(error, phases, chip, options, time.perf_counter() - start) from None
    if until == "partition":
        _dump_plans(dumps, fitting[0].plans)
        return None
    start = time.perf_counter()
    for program in fitting[0].programs:
        check_chip_runs(program, chip)
    if until in ("place", "emit"):
        _dump_plans(dumps, fitting[0].plans)
        _dump(dumps, "placement", fitting[0].placement.dump())
        if until == "emit":
            for p, program in zip(phases, fitting[0].programs, strict=True):
                _dump(dumps, f"{p.phase}.program", program.dump())
        return None
    say("route, and emulate the finalists")
    chosen = fastest(fitting, phases, chip, options)
    clock.seconds["partition"] += time.perf_counter() - start - chosen.seconds["route"]
    clock.seconds["route"] += chosen.seconds["route"]
    _dump_plans(dumps, chosen.plans)
    _dump(dumps, "placement", chosen.placement.dump())
    compiled: dict[str, CompiledPhase] = {}
    for p, program, routing in zip(phases, chosen.programs, chosen.routings, strict=True):
        m, w = wanted[p.phase]
        compiled[p.phase] = CompiledPhase(
            str(Path(m.path).resolve()),
            m.sha256,
            w,
            chosen.plans[p.phase],
            routing,
            program,
            predict(program, chip),
            p.in_form(chosen.plans[p.phase].form).graph,
        )
        _dump(dumps, f"{p.phase}.program", program.dump())
        _dump(dumps, f"{p.phase}.routing", routing.dump())
    graph = phases[0].graph
    from meshc import __version__

    return Compiled(
        {
            "name": graph.name,
            "sha256": graph.sha256,
            "ops": sum(1 for _ in graph.ops()),
            "parameters": graph.parameters,
            "nodes": graph.node_count,
        },
        chip,
        options,
        chosen.placement,
        compiled,
        chosen.memory,
        (*stats, *chosen.solves),
        clock.seconds,
        __version__,
    )


def _furthest(wanted: dict[str, Any], options: CompileOptions) -> tuple[dict[str, Any], Any]:
    """The workloads with what the decode graph's caches keep, and the decode graph at the longest
    context.

    Where they keep a number of entries, that is the longest context, and the one to compile for
    unless a shorter one is asked for.
    """
    m, w = wanted["decode"]
    w.verify()
    far = longest(w)
    full = _bind(m, far, options)
    kept = frontend.entries_after(full.kept, far)
    if kept == far.context + far.prompt:
        return wanted, full
    cut = replace(w, kept=kept)
    full = _bind(m, longest(cut), options)
    again = frontend.entries_after(full.kept, longest(cut))
    if again != kept:
        raise InputError(
            f"The caches of '{Path(m.path).name}' keep {kept} entries after {far.context} and one "
            f"new and {again} after {kept} and one new; meshc carries caches that keep all entries "
            f"or settle at a number of them; give a --max-context of at most {w.context + 1} "
            "tokens."
        )
    wanted = {p: (model, replace(v, kept=kept)) for p, (model, v) in wanted.items()}
    if options.context is None:
        wanted["decode"] = m, replace(cut, context=min(w.context, kept))
    return wanted, full


def _fit(
    phases: list[PhaseGraphs],
    chip: ChipSpec,
    options: CompileOptions,
    clock: _Clock,
    say: Callable[[str], None],
    plan_only: bool = False,
) -> tuple[list[Finalist], list[SolveStats]]:
    """The finalists whose memory layout fits, planned with less SRAM as long as none does.

    plan_only: the finalists of the first plan, laid out or not.   Raises DoesNotFitError.
    """
    reserve = 0
    for attempt in range(RETRIES + 1):
        say("partition")
        start = time.perf_counter()
        finalists, stats = STRATEGIES[options.strategy](
            phases,
            chip,
            Options(
                solver=options.solver,  # type: ignore[arg-type]
                gap=options.gap,
                time_limit=options.time_limit,
                seed=options.seed,
                grid=options.grid,
                reserve_bytes=reserve,
                settings=options.settings,
                progress=lambda text: say(f"partition {text}"),
            ),
        )
        clock("partition", start)
        if not plan_only:
            say("place and emit")
        laid = [lay_out(phases, plans, chip, options) for plans in finalists]
        if plan_only:
            return laid, stats
        clock.book(laid)
        fitting = [x for x in laid if x.memory.needed <= chip.core.usable_bytes]
        if fitting:
            return fitting, stats
        over = min(x.memory.needed for x in laid) - chip.core.usable_bytes
        reserve += over
        if attempt == RETRIES:
            break
    raise DoesNotFitError(
        f"Model '{phases[0].graph.name}' does not fit {chip.name}: the SRAM layout needs {over} "
        f"bytes per core more than the {chip.core.usable_bytes} that are usable",
        chip.core.sram_bytes + over,
    )


def _advised(
    error: DoesNotFitError,
    phases: list[PhaseGraphs],
    chip: ChipSpec,
    options: CompileOptions,
    spent: float,
) -> DoesNotFitError:
    """The error with advice that was tried, as far as trying takes bounded time."""
    if not error.sram_bytes:
        return error
    end = time.perf_counter() + max(ADVICE_SECONDS, 2 * spent)

    def first(guesses: Iterable[tuple[T, ChipSpec, CompileOptions]]) -> T | None:
        for value, c, o in guesses:
            if time.perf_counter() > end:
                return None
            try:
                _fit(phases, c, o, _Clock(), lambda text: None)
                return value
            except DoesNotFitError:
                continue
        return None

    def with_sram(size: int) -> ChipSpec:
        return replace(chip, core=replace(chip.core, sram_bytes=size))

    def with_cores(times: float) -> tuple[ChipSpec, CompileOptions]:
        if options.grid is None:
            return replace(chip, cols=ceil(chip.cols * times)), options
        # At least so many times as many, and on both axes where the grid is a line.
        rows, cols = options.grid[0], options.grid[1] * ceil(times)
        wider = replace(chip, rows=max(chip.rows, rows), cols=max(chip.cols, cols))
        return wider, replace(options, grid=(rows, cols))

    sizes = [int(error.sram_bytes * f) for f in MARGINS]
    sram = first((n, with_sram(n), options) for n in sizes)
    scales = [error.times * f for f in MARGINS] if error.times else []
    times = first((t, *with_cores(t)) for t in scales)
    if sram or times:
        return DoesNotFitError(error.text, sram or 0, times or 0.0, error.shorter)
    less = ", a shorter --max-context or a smaller --batch" if error.shorter else ""
    return DoesNotFitError(
        f"{error.text}; more SRAM per core, or more cores{less} may make it fit."
    )


def _note_absent(note: Callable[[str], None] | None, models: list[Any]) -> None:
    """Tell that a model's weights are not there."""
    for model in models if note else ():
        absent = frontend.absent_weights(model)
        if absent.count and note:
            note(
                f"Only timing is possible with '{model.path.name}': {absent.count} of its "
                f"{absent.weights} weights are absent. {absent.reason}"
            )


def _phase(
    w: Workload, bound: Any, full: Any, options: CompileOptions, one_file: bool
) -> PhaseGraphs:
    """A phase to plan, its kernels in every form that the options allow."""

    @cache
    def make(form: tuple[str, ...]) -> tuple[Graph, Graph]:
        graph = _fused(bound.graph, options, form)
        return graph, graph if full is bound else _fused(full.graph, options, form)

    form = _forms(options)
    return PhaseGraphs(
        w.phase,
        *make(form),
        w.reserved,
        float(max(1, w.max_context - w.context)) if w.phase == "decode" else 1.0,
        _digests(bound, one_file),
        form,
        make,
    )


def check_rates(graph: Graph, chip: ChipSpec) -> None:
    """InputError unless the chip has a rate for every type that the model computes in."""
    for _, op in graph.ops():
        operands = [graph.tensors[n] for n in (*op.inputs, op.output)]
        todo = work(
            op,
            [t.shape for t in operands[:-1]],
            operands[-1].shape,
            [t.dtype for t in operands[:-1]],
            operands[-1].dtype,
        )
        core = chip.core
        lacks = ""
        if todo.macs and core.array is None and timing.engine_dtype(core, todo) is None:
            lacks, dtype, table = "core.macs_per_cycle", todo.dtype, core.macs_per_cycle
        elif timing.vector_ops(core, todo) and not timing.vector_rate(core, todo.vector_dtype):
            lacks, dtype = "core.vector_ops_per_cycle", todo.vector_dtype
            table = core.vector_ops_per_cycle
        if lacks:
            raise InputError(
                f"Operation '{op.name}' of '{graph.name}' computes in {dtype}, for which chip "
                f"{chip.name} has no rate in {lacks} (it has {', '.join(table) or 'none'}); give "
                f"one with --override, or export the model in another type."
            )


def _digests(bound: Any, one_file: bool) -> dict[str, str]:
    """Identity of each weight's content: its name where all phases come from one file, so that
    nothing is read, else a hash of the content."""
    return {
        name: name if one_file else bound.data.digest(name)
        for t in bound.graph.tensors.values()
        if t.kind == "WEIGHT"
        for name in t.instances
    }


def _dump(dumps: dict[str, str] | None, name: str, text: str) -> None:
    if dumps is not None:
        dumps[name] = text


def _dump_plans(dumps: dict[str, str] | None, plans: Mapping[str, Plan]) -> None:
    for phase, plan in plans.items():
        _dump(dumps, f"{phase}.plan", plan.dump())


def step_program(
    compiled: Compiled, phase: str, model: Any, *, context: int, prompt: int | None = None
) -> tuple[Program, Any]:
    """The program of another step of the phase, and its bound graph.

    context: tokens cached before it.   prompt: new tokens, at most the compiled number.
    Weights, caches, divisions and routes are the compiled ones. model: the loaded ONNX model.
    """
    done = compiled.phases[phase]
    w = done.workload
    prompt = w.prompt if prompt is None else prompt
    if prompt > w.prompt:
        raise InputError(
            f"A prompt of {prompt} tokens exceeds the {w.prompt} that the {phase} was compiled "
            f"for; compile with --prompt {prompt}."
        )
    if context + prompt > w.max_context and w.kept is None:
        raise InputError(
            f"A {phase} step of {prompt} tokens at context {context} needs {context + prompt} "
            f"cached tokens where SRAM is reserved for {w.max_context}; compile with "
            f"--max-context {context + prompt} or more."
        )
    step = replace(w, context=context, prompt=prompt)
    form = done.plan.form
    bound = _bind(model, step, compiled.options, form)
    frontend.check_past(bound.kept, step)
    if step == w:
        return done.program, bound
    far = longest(step)
    full = bound if far == step else _bind(model, far, compiled.options, form)
    plan = done.plan if prompt == w.prompt else _resized(done.plan, full.graph)
    draft = emit(bound.graph, full.graph, plan, compiled.placement, compiled.chip, w.reserved)
    program = assign_like(draft, done.program, compiled.memory)
    # Weights and caches, the only buffers with several instances, lie where they fit before.
    top = max(b.offset + b.bytes for b in program.buffers.values() if not b.stride)
    if top > compiled.chip.core.usable_bytes:
        raise DoesNotFitError(
            f"A {phase} step of {prompt} tokens at context {context} needs {top} bytes of SRAM "
            f"per core where {compiled.chip.core.usable_bytes} are usable; compile with "
            f"--prompt {prompt}."
        )
    return attach(program, done.routing), bound


def _resized(plan: Plan, graph: Graph) -> Plan:
    """The same divisions for tensors of other sizes: each op keeps its assignment."""
    ops: dict[str, OpPlan] = {
        op.name: resize(graph, op, plan.ops[op.name], plan.rows, plan.cols) for _, op in graph.ops()
    }
    carried = {
        name: resize_layout(layout, graph.tensors[name].shape, plan.rows, plan.cols)
        for name, layout in plan.carried.items()
    }
    return replace(plan, ops=ops, carried=carried)


__all__ = ["CompileOptions", "Compiled", "CompiledPhase", "compile", "longest", "step_program"]
