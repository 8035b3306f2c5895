"""A plan on the chip: placed, emitted, with addresses and routes; and which of several is best."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshc.emit import emit
from meshc.emulator import emulate
from meshc.errors import DoesNotFitError
from meshc.flows import attach, flows, once
from meshc.ir.chip import ChipSpec
from meshc.ir.compiled import CompileOptions, MemoryMap
from meshc.ir.graph import Graph
from meshc.ir.placement import Placement
from meshc.ir.plan import Plan, SolveStats
from meshc.ir.program import Program
from meshc.ir.routing import Routing
from meshc.memory import assign
from meshc.partition import PhaseGraphs
from meshc.place import Block, Net, place
from meshc.route import route

MOST_CORES = 256  # of a region whose finalists are emulated before deciding


@dataclass(frozen=True)
class Finalist:
    """One plan per phase carried through to programs. seconds: by stage.

    programs: in the order of the phases, without routes until `routed`.
    """

    plans: dict[str, Plan]
    placement: Placement
    programs: tuple[Program, ...]
    memory: MemoryMap
    solves: tuple[SolveStats, ...]
    seconds: Mapping[str, float]
    routings: tuple[Routing, ...] = ()


def lay_out(
    phases: Sequence[PhaseGraphs], plans: dict[str, Plan], chip: ChipSpec, options: CompileOptions
) -> Finalist:
    """Place the plan's regions, emit its programs and give their buffers addresses.

    The memory may exceed the chip's: see `Finalist.memory`.
    """
    began = time.perf_counter()
    phases = [p.in_form(plans[p.phase].form) for p in phases]
    first = plans[phases[0].phase]
    placement, solves = place(
        [Block(s.name, first.rows, first.cols) for s in first.stages],
        _nets(first, phases[0].graph),
        chip,
        solver=options.solver,
        gap=options.gap,
        time_limit=options.time_limit,
        seed=options.seed,
    )
    placed = time.perf_counter()
    drafts = [emit(p.graph, p.full, plans[p.phase], placement, chip, p.max_context) for p in phases]
    programs, memory = assign(drafts, [_keys(p, d) for p, d in zip(phases, drafts, strict=True)])
    seconds = {"place": placed - began, "emit": time.perf_counter() - placed}
    return Finalist(plans, placement, tuple(programs), memory, tuple(solves), seconds)


def routed(
    found: Finalist, phases: Sequence[PhaseGraphs], chip: ChipSpec, options: CompileOptions
) -> Finalist:
    """The finalist with a route for every message."""
    began = time.perf_counter()
    programs, routings, solves = [], [], list(found.solves)
    for p, program in zip(phases, found.programs, strict=True):
        routing, stats, _ = route(
            flows(program),
            chip,
            solver=options.solver,
            gap=options.gap,
            time_limit=options.time_limit,
            seed=options.seed,
        )
        solves += [replace(s, scope=f"{p.phase}, {s.scope}") for s in stats]
        programs.append(attach(program, routing))
        routings.append(routing)
    seconds = {**found.seconds, "route": time.perf_counter() - began}
    return replace(
        found,
        programs=tuple(programs),
        routings=tuple(routings),
        solves=tuple(solves),
        seconds=seconds,
    )


def fastest(
    found: Sequence[Finalist],
    phases: Sequence[PhaseGraphs],
    chip: ChipSpec,
    options: CompileOptions,
) -> Finalist:
    """The finalist that the emulator finds fastest: one layer of each repeated run, phases
    weighed by how often they run. Where regions are too large for that, the best prediction,
    which is the first. Finalists that cannot be routed drop out; DoesNotFitError if all do."""
    cores = max(r.rows * r.cols for x in found for r in x.placement.regions.values())
    several = len(found) > 1 and cores <= MOST_CORES
    failure: DoesNotFitError | None = None
    best: Finalist | None = None
    least = float("inf")
    for x in found:
        try:
            done = routed(x, phases, chip, options)
        except DoesNotFitError as error:
            failure = failure or error
            continue
        if not several:
            return done
        cycles = sum(
            p.weight * emulate(once(program), chip).cycles
            for p, program in zip(phases, done.programs, strict=True)
        )
        if cycles < least:
            best, least = done, cycles
    if best is None:
        assert failure is not None
        raise failure
    return best


def _nets(plan: Plan, graph: Graph) -> list[Net]:
    """Bytes that pass from each stage to the next: the carried tensors."""
    size = sum(graph.tensors[n].bytes for n in plan.carried)
    return [Net(a.name, b.name, size) for a, b in zip(plan.stages, plan.stages[1:], strict=False)]


def _keys(p: PhaseGraphs, program: Program) -> dict[str, Hashable]:
    """Identity of what each persistent buffer holds, the same in every phase."""
    order = {pair.present: i for i, pair in enumerate(p.graph.caches)}
    repeats = {s.name: s.repeat for s in p.graph.segments}
    found: dict[str, Hashable] = {}
    for b in program.buffers.values():
        t = p.graph.tensors[b.tensor]
        if b.kind == "weight":
            content = tuple(p.digests[n] for n in t.instances)
            found[b.name] = ("weight", content, b.dtype, str(b.layout))
        elif b.kind == "kv":
            found[b.name] = ("kv", order[b.tensor], repeats[b.segment], b.bytes, str(b.layout))
    return found
