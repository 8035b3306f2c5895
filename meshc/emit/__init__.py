"""From graph, plan and placement to the program, its buffers still without addresses.

Each op becomes a Compute, preceded by the Transfers that bring its operands into the layouts the
plan wants and followed by the Reduce and Broadcast that join partial results. An operand that
every lane already holds as a part of its own shard is read in place.
"""

from __future__ import annotations

from dataclasses import replace

from meshc.emit.body import Emission, carried_buffer, declare_caches, emit_segment
from meshc.ir.chip import ChipSpec
from meshc.ir.graph import Graph
from meshc.ir.placement import Placement
from meshc.ir.plan import Plan, Stage
from meshc.ir.program import (
    Buffer,
    Move,
    Program,
    Run,
    Transfer,
    buffers_of,
    reads_of,
    writes_of,
)

__all__ = ["emit"]


def emit(
    graph: Graph,
    full: Graph,
    plan: Plan,
    placement: Placement,
    chip: ChipSpec,
    max_context: int,
) -> Program:
    """The program of one step.

    graph: bound for the step.   full: bound at the longest context; sizes buffers.
    max_context: tokens that caches are reserved for.
    """
    e = Emission(
        graph,
        full,
        plan,
        chip.noc.multicast,
        max_context,
        chip.noc.collective_cycles > 0,
        chip.noc.streaming_reduce,
    )
    declare_caches(e)
    for segment in graph.segments:
        emit_segment(e, segment)
    e.keep_outputs()
    names = {n for op in e.ops.values() for n in (*op.inputs, op.output)}
    return Program(
        plan.phase,
        chip.name,
        chip.rows,
        chip.cols,
        dict(placement.regions),
        {n: _with_live(b, e) for n, b in e.buffers.items() if n in e.uses},
        e.ops,
        {n: tuple(b) for n, b in e.bodies.items()},
        _schedule(e),
        _load(e),
        tuple(_output(e, name, tensor, turn) for name, tensor, turn in graph.outputs),
        {n: graph.tensors[n].shape for n in sorted(names)},
        {n: graph.tensors[n].dtype for n in sorted(names)},
    )


def _with_live(b: Buffer, e: Emission) -> Buffer:
    return replace(b, live=e.uses[b.name]) if b.kind in ("activation", "scratch") else b


def _schedule(e: Emission) -> tuple[Run | Move, ...]:
    """The stages' runs in order, with what each hands to the next between them."""
    schedule: list[Run | Move] = []
    done: list[str] = []
    for number, stage in enumerate(e.plan.stages):
        if number:
            before = e.plan.stages[number - 1]
            for b in _handed_on(e, done, e.plan.stages[number:]):
                transfer = Transfer(f"hand over {b}", "", b, b, e.multicast)
                schedule.append(Move(transfer, before.name, stage.name))
        for segment, first, last in stage.segments:
            schedule.append(Run(segment, segment, stage.name, first, last))
            done.append(segment)
    return tuple(schedule)


def _handed_on(e: Emission, done: list[str], later: tuple[Stage, ...]) -> list[str]:
    """Buffers that segments already run have written and that a later stage reads first."""
    written = {b for s in done for i in e.bodies[s] for b in writes_of(i)}
    needed: dict[str, None] = {}
    for segment in dict.fromkeys(s for stage in later for s, _, _ in stage.segments):
        own: set[str] = set()
        for i in e.bodies[segment]:
            for b in reads_of(i):
                if b in written and b not in own and e.buffers[b].kind == "activation":
                    needed[b] = None
            own.update(writes_of(i))
    return list(needed)


def _load(e: Emission) -> tuple[tuple[str, str, str, int], ...]:
    """What the host puts into SRAM before the step, in every region that uses it."""
    load: dict[tuple[str, str, str, int], None] = {}
    for stage in e.plan.stages:
        for segment, first, last in stage.segments:
            used = dict.fromkeys(b for i in e.bodies[segment] for b in buffers_of(i))
            for name in used:
                for data, layer in _data_of(e, e.buffers[name], first, last):
                    load[data, name, stage.name, layer] = None
    return tuple(load)


def _data_of(e: Emission, b: Buffer, first: int, last: int) -> list[tuple[str, int]]:
    """The model's tensors that a buffer starts with: (name, layer of the region)."""
    tensor = e.graph.tensors[b.tensor]
    if b.kind == "kv":
        past = next(p.past for p in e.graph.caches if p.present == b.tensor)
        if past is None:
            return []
        tensor = e.graph.tensors[past]
    elif b.kind in ("scratch", "output") or (b.kind == "activation" and tensor.kind != "INPUT"):
        return []
    if len(tensor.instances) == 1:
        return [(tensor.instances[0], 0)]
    return [(tensor.instances[i], i - first) for i in range(first, last)]


def _output(e: Emission, name: str, tensor: str, turn: int) -> tuple[str, str, str, int]:
    """Where a model output lies in the end: (name, buffer, region, layer of the region)."""
    home = e.kept.get(tensor, e.homes[tensor])
    last = e.plan.stages[-1].name
    if any(home == carried_buffer(read) for s in e.graph.segments for read, _ in s.carried):
        return name, home, last, 0
    maker = next((s.name for s in e.graph.segments for op in s.ops if op.output == tensor), None)
    several = len(e.graph.tensors[tensor].instances) > 1
    for stage in e.plan.stages:
        for segment, first, stop in stage.segments:
            if segment == maker and (not several or first <= turn < stop):
                return name, home, stage.name, turn - first if several else 0
    return name, home, last, 0
