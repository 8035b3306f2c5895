"""Strategy `auto`: the region shapes and plans with the least predicted time.

Shapes are tried from small to large, each with a solve of its own; exploring stops when larger
regions gain nothing any more (all-reduces grow with the region's sides, work shrinks with its
area, so the time has one valley). The best few are handed on as finalists, of which the pipeline
keeps the one that is fastest on the emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from meshc.errors import DoesNotFitError
from meshc.ir.chip import ChipSpec
from meshc.ir.graph import Graph
from meshc.ir.layout import Layout
from meshc.ir.plan import Plan, SolveStats, Stage
from meshc.partition.candidates import Rule
from meshc.partition.cost import CostModel
from meshc.partition.select import Fixed, Selection, Solver, Space, build, choose
from meshc.partition.shapes import shapes
from meshc.patterns import PRIMITIVES

Form = tuple[str, ...]
LESS: tuple[Form, ...] = ((), PRIMITIVES)  # what is tried where kernels in all forms do not fit

FINALISTS = 3
QUICK_SECONDS = 2.0  # for the solve of a shape that may not become a finalist
PATIENCE = 5  # shapes in a row that gain too little before the search stops
PAY = 0.08  # twice the cores must save at least 1 - 2 ** -PAY, 5.4 %, of the time
GAIN = 0.99  # a larger shape must bring at least this factor to count as a gain


@dataclass(frozen=True)
class PhaseGraphs:
    """One phase to plan.

    graph: bound for the step.   full: bound for the longest context.   weight: how often the step
    runs, relative to the other phases.   digests: weight instance → identity of its content.
    form: the forms (see `meshc.patterns`) of the graphs' kernels.   make: the two graphs in another
    form; None where there is no other.
    """

    phase: str
    graph: Graph
    full: Graph
    max_context: int
    weight: float
    digests: Mapping[str, str]
    form: Form = ()
    make: Callable[[Form], tuple[Graph, Graph]] | None = None

    def in_form(self, form: Form) -> PhaseGraphs:
        """The phase with its kernels in these forms."""
        if self.make is None or form == self.form:
            return self
        graph, full = self.make(form)
        return replace(self, graph=graph, full=full, form=form)


@dataclass(frozen=True)
class Options:
    """Flags of the planner.

    grid: only this region shape.   least_stages: cut the layers into at least so many stages (on
    a given grid, into as many of them as have room).
    reserve_bytes: SRAM per lane that the memory layout needs beyond the planner's own count.
    settings: the strategy's own options.   shapes: of regions, instead of the chip's.   rule: how
    ops may be divided.
    """

    solver: Solver = "ilp"
    gap: float = 0.01
    time_limit: float = 10.0
    seed: int = 0
    grid: tuple[int, int] | None = None
    least_stages: int = 1
    reserve_bytes: int = 0
    progress: Callable[[str], None] | None = None
    settings: tuple[tuple[str, str], ...] = ()
    shapes: tuple[tuple[int, int], ...] = ()
    rule: Rule | None = None


@dataclass(frozen=True)
class _Trial:
    """A region shape with a plan for every phase.

    phases: in the order of planning, in the forms that were planned.
    """

    phases: tuple[PhaseGraphs, ...]
    rows: int
    cols: int
    stages: int
    spaces: tuple[Space, ...]
    selections: tuple[Selection, ...]
    cycles: float
    stats: tuple[SolveStats, ...]


def plan_auto(
    phases: list[PhaseGraphs], chip: ChipSpec, options: Options
) -> tuple[list[dict[str, Plan]], list[SolveStats]]:
    """The finalists, best prediction first: each has a plan for every phase, all on regions of
    one shape with weights and caches in the same layouts.

    Raises DoesNotFitError when no shape holds the model.
    """
    # The phase that runs most decides the layouts of weights and caches.
    order = sorted(phases, key=lambda p: (p.phase != "decode", p.phase))
    model = CostModel(chip)
    shortage: list[tuple[float, int, int, int]] = []
    tried = _explore(order, model, options, shortage)
    for form in LESS:
        less = [p.in_form(form) for p in order]
        if tried or all(p.full is q.full for p, q in zip(less, order, strict=True)):
            continue
        # Kernels that span reductions keep whole rows, and what is divided by heads has few parts;
        # without them less memory may do.
        order, shortage = less, []
        tried = _explore(order, model, options, shortage)
    if not tried:
        raise _does_not_fit(order, model, options, shortage)
    tried.sort(key=lambda t: (_worth(t), t.rows))
    tried[0] = _better_form(tried[0], model, options)
    final: list[_Trial] = []
    for trial in tried[:FINALISTS]:
        if final and trial.cycles > 1.5 * final[0].cycles:
            break
        if options.progress:
            options.progress(f"region {trial.rows}x{trial.cols}")
        timed_out = any(s.status == "time-limit" for s in trial.stats)
        forms = [p.form for p in tried[0].phases]
        if timed_out or [p.form for p in trial.phases] != forms:
            known = [p.in_form(f) for p, f in zip(trial.phases, forms, strict=True)]
            again = _solve(
                known, model, trial.rows, trial.cols, trial.stages, options, options.solver
            )
            if again is not None and again.cycles < trial.cycles:
                trial = again
        final.append(trial)
    final.sort(key=lambda t: (_worth(t), t.rows))
    finalists = [
        {p.phase: _as_plan(p, s, t) for p, s in zip(t.phases, t.selections, strict=True)}
        for t in final
    ]
    others = tried[len(final) :]
    return finalists, [s for t in (*final, *others) for s in t.stats]


def _explore(
    order: list[PhaseGraphs],
    model: CostModel,
    options: Options,
    shortage: list[tuple[float, int, int, int]],
) -> list[_Trial]:
    """Plans on region shapes from small to large, until larger ones gain nothing."""
    tried: list[_Trial] = []
    worse = 0
    best = float("inf")
    wanted = [options.grid] if options.grid else list(options.shapes) or shapes(model.chip)
    for rows, cols in wanted:
        last = (rows, cols) == wanted[-1]
        trial = _first_fit(order, model, rows, cols, options, shortage, last)
        if trial is None:
            continue
        tried.append(trial)
        if trial.cycles < GAIN * best:
            worse = 0
        else:
            worse += 1
            if worse >= PATIENCE:
                break
        best = min(best, trial.cycles)
    return tried


def _better_form(trial: _Trial, model: CostModel, options: Options) -> _Trial:
    """The trial with each phase's forms left out where the plan without them is faster."""
    best = trial
    quick = replace(options, time_limit=min(options.time_limit, QUICK_SECONDS))
    for at, p in enumerate(trial.phases):
        for form in p.form:
            phases = list(best.phases)
            less = tuple(f for f in phases[at].form if f != form)
            phases[at] = phases[at].in_form(less)
            if phases[at].full.segments == best.phases[at].full.segments:
                continue  # nothing in this graph takes the form
            found = _solve(
                phases, model, trial.rows, trial.cols, trial.stages, quick, options.solver
            )
            if found is not None and found.cycles < best.cycles:
                best = found
    return best


def _worth(t: _Trial) -> float:
    """Predicted cycles, with a price on cores that are only just worth having."""
    return float(t.cycles * (t.rows * t.cols * t.stages) ** PAY)


def _weight_bytes(graph: Graph) -> int:
    return sum(t.bytes * len(t.instances) for t in graph.tensors.values() if t.kind == "WEIGHT")


def _layers(phases: list[PhaseGraphs]) -> int:
    return max(s.repeat for p in phases for s in p.full.segments)


def _first_fit(
    order: list[PhaseGraphs],
    model: CostModel,
    rows: int,
    cols: int,
    options: Options,
    shortage: list[tuple[float, int, int, int]],
    last: bool,
) -> _Trial | None:
    """A plan, solved within a short time limit, with the fewest stages that hold the model; on a
    given grid, with as many as were asked for and have room.

    last: of the shapes, which is looked at even where the weights alone exceed it.
    """
    chip = model.chip
    quick = replace(options, time_limit=min(options.time_limit, QUICK_SECONDS))
    layers = _layers(order)
    most = min(layers, chip.cores // (rows * cols))
    usable = max(1, chip.core.usable_bytes - options.reserve_bytes)
    # Weights that are divided evenly and nothing else need so many stages.
    least = -(-max(_weight_bytes(p.full) for p in order) // (rows * cols * usable))
    if least > most and not last:
        return None
    stages = min(options.least_stages, layers)
    if options.grid is not None:
        stages = max(1, min(stages, most))
        stages = most = -(-layers // -(-layers // stages))
    else:
        stages = max(stages, min(least, most))
    while stages <= most:
        per_stage = -(-layers // stages)
        if -(-layers // per_stage) == stages:
            trial = _solve(order, model, rows, cols, stages, quick, options.solver, shortage)
            if trial is None and len(order) > 1 and shortage and shortage[-1][1:3] == (rows, cols):
                # The other phase may leave room where this one's layouts do not.
                trial = _solve(order[::-1], model, rows, cols, stages, quick, options.solver)
                if trial is not None:
                    trial = replace(
                        trial,
                        phases=trial.phases[::-1],
                        spaces=trial.spaces[::-1],
                        selections=trial.selections[::-1],
                    )
            if trial is not None:
                return trial
        stages += 1
    return None


def _solve(
    order: list[PhaseGraphs],
    model: CostModel,
    rows: int,
    cols: int,
    stages: int,
    options: Options,
    solver: Solver,
    shortage: list[tuple[float, int, int, int]] | None = None,
    capacity: int | None = None,
) -> _Trial | None:
    """A plan for every phase, in this order, on regions of this shape; later phases keep the
    layouts that earlier ones gave to weights and caches. None when one has no plan.

    capacity: bytes of a lane, instead of the chip's.
    """
    if capacity is None:
        capacity = model.chip.core.usable_bytes - options.reserve_bytes
    if len({len(stages_of(p.graph, stages)) for p in order}) > 1:
        return None  # the phases' graphs do not repeat alike
    fixed = Fixed()
    spaces, selections, stats = [], [], []
    total = 0.0
    for p in order:
        space = build(
            p.graph,
            p.full,
            model,
            rows,
            cols,
            stages,
            p.max_context,
            capacity,
            fixed=fixed,
            digests=p.digests,
            rule=options.rule,
        )
        if space is None:
            return None
        if space.least_bytes > capacity:
            if shortage is not None:
                shortage.append((space.least_bytes, rows, cols, stages))
            return None
        selection, solve_stats = choose(
            space,
            solver=solver,
            gap=options.gap,
            time_limit=options.time_limit,
            seed=options.seed,
        )
        stats.append(replace(solve_stats, scope=f"{p.phase}, {solve_stats.scope}"))
        if selection is None:
            if shortage is not None:
                shortage.append((_least_peak(space), rows, cols, stages))
            return None
        spaces.append(space)
        selections.append(selection)
        total += p.weight * selection.cycles
        fixed = _fix(p, selection, fixed)
    return _Trial(
        tuple(order), rows, cols, stages, tuple(spaces), tuple(selections), total, tuple(stats)
    )


def _least_peak(space: Space) -> float:
    """A lower bound of the fullest position's bytes, over all choices."""
    peak = space.least_bytes
    for limit in space.problem.limits:
        peak = max(peak, sum(float(amounts.min()) for _, amounts in limit.terms))
    return peak


def _fix(p: PhaseGraphs, selection: Selection, before: Fixed) -> Fixed:
    """The weights' and caches' layouts that later phases must keep."""
    weights: dict[str, Layout] = dict(before.weights)
    caches: dict[int, Layout] = dict(before.caches)
    for _, op in p.full.ops():
        plan = selection.ops[op.name]
        for name, layout in zip(op.inputs, plan.inputs, strict=True):
            t = p.full.tensors[name]
            if t.kind == "WEIGHT":
                weights.setdefault(p.digests.get(t.instances[0], t.instances[0]), layout)
        for i, pair in enumerate(p.full.caches):
            if pair.present == op.output:
                caches[i] = plan.output
    return Fixed(weights, caches)


def _as_plan(p: PhaseGraphs, selection: Selection, trial: _Trial) -> Plan:
    return Plan(
        p.phase,
        "auto",
        trial.rows,
        trial.cols,
        stages_of(p.graph, trial.stages),
        selection.ops,
        selection.carried,
        selection.cycles,
        p.form,
    )


def stages_of(graph: Graph, count: int) -> tuple[Stage, ...]:
    """Cut the layers evenly: what comes before them joins the first stage, the rest the last."""
    runs: list[list[tuple[str, int, int]]] = [[] for _ in range(count)]
    repeated = [s.name for s in graph.segments if s.repeat > 1]
    at = 0
    for segment in graph.segments:
        if segment.name in repeated and count > 1:
            size = -(-segment.repeat // count)
            for i in range(count):
                first, last = i * size, min((i + 1) * size, segment.repeat)
                if first < last:
                    runs[i].append((segment.name, first, last))
            at = count - 1
        else:
            runs[at].append((segment.name, 0, segment.repeat))
    return tuple(Stage(f"stage{i}", tuple(r)) for i, r in enumerate(runs) if r)


def _least_capacity(
    order: list[PhaseGraphs],
    model: CostModel,
    rows: int,
    cols: int,
    stages: int,
    options: Options,
) -> int:
    """Bytes per lane with which regions of this shape hold the model, to about 1 %: the least
    capacity for which a plan was found, and a little for the memory layout."""
    quick = replace(options, gap=1.0)

    def fits(capacity: int) -> bool:
        for phases in [order, order[::-1]][: len(order)]:
            if _solve(phases, model, rows, cols, stages, quick, "ilp", None, capacity):
                return True
        return False

    low = max(1, model.chip.core.usable_bytes - options.reserve_bytes)
    high = 2 * low
    while not fits(high):
        low, high = high, 2 * high
    while high - low > max(64, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high + high // 50


def _does_not_fit(
    order: list[PhaseGraphs],
    model: CostModel,
    options: Options,
    shortage: list[tuple[float, int, int, int]],
) -> DoesNotFitError:
    """What is too large, by how much, and what would make it fit."""
    chip = model.chip
    graph = order[0].full
    usable = chip.core.usable_bytes
    room = usable - options.reserve_bytes
    weights = _weight_bytes(graph)
    where = f"the {options.grid[0]}x{options.grid[1]} grid" if options.grid else chip.name
    if not shortage:
        return DoesNotFitError(
            f"Model '{graph.name}' does not fit {where}: no rectangle of working cores can run "
            "all of its operations; use a chip with fewer dead cores."
        )
    _, rows, cols, stages = min(shortage, key=lambda s: (max(0.0, s[0] - room), s[1] * s[2]))
    need = _least_capacity(order, model, rows, cols, stages, options) + options.reserve_bytes
    scale = need / usable if usable > 0 else float("inf")
    context = order[0].max_context
    kv = sum(
        graph.tensors[p.present].bytes * len(graph.tensors[p.present].instances)
        for p in graph.caches
    )
    hint = f" (its weights take {weights} bytes and its KV cache of {context} tokens {kv})"
    return DoesNotFitError(
        f"Model '{graph.name}' does not fit {where}: the best mapping found, on "
        f"{stages} region{'s' if stages > 1 else ''} of {rows}x{cols} cores, needs {int(need)} "
        f"bytes of SRAM per core where {usable} are usable, {int(need - usable)} too many"
        f"{hint}",
        int(need) + chip.core.reserved_bytes,
        scale,
        weights <= usable * (rows * cols * stages if options.grid else chip.cores),
    )
