"""From graph, plan and placement to the program, its buffers still without addresses.

Each op becomes a Compute, preceded by the Transfers that bring its operands into the layouts the
plan wants and followed by the Reduce and Broadcast that join partial results. An operand that
every lane already holds as a part of its own shard is read in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meshc.ir.chip import ChipSpec
from meshc.ir.graph import Graph, Op, Segment, Tensor
from meshc.ir.layout import Layout
from meshc.ir.placement import Placement
from meshc.ir.plan import OpPlan, Plan, Stage
from meshc.ir.program import (
    Broadcast,
    Buffer,
    BufferKind,
    Compute,
    Instruction,
    Move,
    Program,
    Reduce,
    Run,
    Transfer,
    buffers_of,
    lane_bytes,
)
from meshc.ir.shards import covers
from meshc.partition.liveness import carried_names

_HELD: dict[str, BufferKind] = {"WEIGHT": "weight", "CONSTANT": "constant", "INPUT": "input"}


def bind_attributes(op: Op, inputs: list[Tensor]) -> Op:
    """Add what a lane must know of the whole tensor: a mean's count, a table's size, the past's
    length."""
    extra: tuple[tuple[str, int], ...] = ()
    if op.kind == "reduce" and op.attr("fn") == "mean":
        count = 1
        for a in op.attr("axes"):
            count *= inputs[0].shape[a]
        extra = (("count", count),)
    elif op.kind == "gather":
        extra = (("size", inputs[0].shape[op.attr("axis", 0)]),)
    elif op.kind == "append" and len(op.inputs) == 2:
        extra = (("past", inputs[0].shape[op.attr("axis")]),)
    return replace(op, attrs=tuple(sorted((*op.attrs, *extra)))) if extra else op


@dataclass
class _Emission:
    """Work in progress: what has been made so far and where each tensor lies."""

    graph: Graph
    full: Graph
    plan: Plan
    chip: ChipSpec
    max_context: int
    buffers: dict[str, Buffer] = field(default_factory=dict)
    bodies: dict[str, list[Instruction]] = field(default_factory=dict)
    ops: dict[str, Op] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)  # tensor -> its own buffer
    copies: dict[str, list[str]] = field(default_factory=dict)  # tensor -> re-sharded buffers
    copied_in: dict[str, str] = field(default_factory=dict)  # re-sharded buffer -> segment
    clock: int = 0
    uses: dict[str, tuple[int, int]] = field(default_factory=dict)  # buffer -> first, last

    def touch(self, name: str) -> None:
        """The buffer holds a value now."""
        first, _ = self.uses.get(name, (self.clock, self.clock))
        self.uses[name] = (first, self.clock)

    def add(
        self,
        name: str,
        tensor: str,
        kind: BufferKind,
        layout: Layout,
        segment: str,
        grows: int | None = None,
    ) -> str:
        """Declare a buffer for a tensor in a layout; the same name again is the same buffer."""
        if name in self.buffers:
            return name
        t, big = self.graph.tensors[tensor], self.full.tensors[tensor]
        capacity = big.shape
        if grows is not None:
            capacity = tuple(self.max_context if d == grows else n for d, n in enumerate(big.shape))
        size = lane_bytes(capacity, t.dtype, layout, self.plan.rows, self.plan.cols, 8)
        self.buffers[name] = Buffer(
            name,
            tensor,
            kind,
            t.shape,
            capacity,
            t.dtype,
            layout,
            size,
            segment=segment,
            growing=grows,
        )
        return name


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
    """
    e = _Emission(graph, full, plan, chip, max_context)
    past_of = {p.past: p for p in graph.caches if p.past is not None}
    present_of = {p.present: p for p in graph.caches}
    renamed = carried_names(graph)
    for segment in graph.segments:
        for read, _ in segment.carried:
            e.add(f"carried {read}", read, "activation", plan.carried[read], "")
    for segment in graph.segments:
        e.bodies[segment.name] = []
        reads = {read for read, _ in segment.carried}
        e.homes.update({read: f"carried {read}" for read in reads})
        for read in reads:
            if graph.tensors[read].kind == "INPUT" or _made_before(graph, segment, read):
                e.touch(f"carried {read}")
        for op in segment.ops:
            _emit_op(e, segment, op, past_of, present_of)
        for read, made in segment.carried:
            home = e.homes.get(made)
            target = f"carried {read}"
            if home is not None and home != target:
                _hand_on(e, segment, made, target)
        _enter_next(e, segment)
        e.clock += 1
        if segment.repeat > 1 or segment.carried:
            _stretch(e, segment)
        for made, read in renamed.items():
            if any(m == made for _, m in segment.carried):
                e.homes[made] = f"carried {read}"
                e.copies.pop(made, None)
        e.copies = {}
    _keep_outputs(e)
    return _assemble(e, placement, past_of, present_of)


def _made_before(graph: Graph, segment: Segment, name: str) -> bool:
    for s in graph.segments:
        if s.name == segment.name:
            return False
        if any(op.output == name for op in s.ops):
            return True
    return False


def _operand(e: _Emission, segment: Segment, op: Op, name: str, wanted: Layout) -> str:
    """The buffer from which `op` reads `name` in layout `wanted`; re-shards if need be."""
    t = e.graph.tensors[name]
    if t.kind in _HELD and name not in e.homes:
        several = len(t.instances) > 1
        buffer = e.add(
            f"{name} {wanted}", name, _HELD[t.kind], wanted, segment.name if several else ""
        )
        e.touch(buffer)
        return buffer
    rows, cols = e.plan.rows, e.plan.cols
    big = e.full.tensors[name].shape
    home = e.homes[name]
    for candidate in (home, *e.copies.get(name, ())):
        if covers(e.buffers[candidate].layout, wanted, big, rows, cols):
            e.touch(candidate)
            return candidate
    copy = e.add(f"{name} as {wanted} in {segment.name}", name, "activation", wanted, segment.name)
    e.bodies[segment.name].append(
        Transfer(f"reshard {name}", op.name, home, copy, e.chip.noc.multicast)
    )
    e.touch(home)
    e.touch(copy)
    e.copies.setdefault(name, []).append(copy)
    e.clock += 1
    e.touch(copy)
    return copy


def _emit_op(
    e: _Emission,
    segment: Segment,
    op: Op,
    past_of: dict,
    present_of: dict,  # type: ignore[type-arg]
) -> None:
    plan = e.plan.ops[op.name]
    body = e.bodies[segment.name]
    if op.output in present_of:
        pair = present_of[op.output]
        out = e.add(f"kv {op.output}", op.output, "kv", plan.output, segment.name, grows=pair.axis)
        e.homes[op.output] = out
        if pair.past is not None:
            e.homes[pair.past] = out
    else:
        out = _output_buffer(e, segment, op, plan)
    inputs = []
    layouts = []
    for slot, name in enumerate(op.inputs):
        if name in past_of and op.output in present_of and slot == 0:
            inputs.append(out)
            layouts.append(plan.output)
        else:
            inputs.append(_operand(e, segment, op, name, plan.inputs[slot]))
            layouts.append(plan.inputs[slot])
    for name in inputs:
        e.touch(name)
    e.touch(out)
    body.append(Compute(op.name, op.name, tuple(inputs), out, tuple(layouts)))
    e.ops[op.name] = bind_attributes(op, [e.graph.tensors[n] for n in op.inputs])
    e.homes[op.output] = out
    e.clock += 1
    _join(e, segment, op, plan, out)


def _output_buffer(e: _Emission, segment: Segment, op: Op, plan: OpPlan) -> str:
    """The op's own buffer, or the carried one when it may be written already."""
    for read, made in segment.carried:
        target = f"carried {read}"
        # The value from the layer before must not be read any more by this op or a later one.
        later = segment.ops[[o.name for o in segment.ops].index(op.name) :]
        if (
            made == op.output
            and e.buffers[target].layout == plan.output
            and not any(read in o.inputs for o in later)
        ):
            return target
    for s in e.graph.segments:
        for read, _ in s.carried:
            target = f"carried {read}"
            if read == op.output and e.buffers[target].layout == plan.output:
                return target
    return e.add(op.output, op.output, "activation", plan.output, segment.name)


def _join(e: _Emission, segment: Segment, op: Op, plan: OpPlan, out: str) -> None:
    """Reduce and Broadcast along every axis that left partial results."""
    body = e.bodies[segment.name]
    combine = {"max": "max", "min": "min"}.get(op.attr("fn", ""), "sum")
    for axis, groups in zip(plan.reduce, plan.groups, strict=True):
        lanes = e.plan.rows if axis == "row" else e.plan.cols
        scratch = []
        for number in range(min(2, lanes - 1)):
            name = e.add(
                f"scratch{number} {op.output}", op.output, "scratch", plan.output, segment.name
            )
            e.touch(name)
            scratch.append(name)
        e.touch(out)
        body.append(
            Reduce(
                f"reduce {op.name} over {axis}", op.name, out, axis, combine, groups, tuple(scratch)
            )
        )
        e.clock += 1
        e.touch(out)
        body.append(
            Broadcast(
                f"broadcast {op.name} over {axis}",
                op.name,
                out,
                axis,
                groups,
                e.chip.noc.multicast,
            )
        )
        e.clock += 1


def _hand_on(e: _Emission, segment: Segment, tensor: str, target: str) -> None:
    """Copy a tensor from its own buffer to a carried one."""
    home = e.homes[tensor]
    e.touch(home)
    e.touch(target)
    e.bodies[segment.name].append(
        Transfer(f"carry {tensor}", "", home, target, e.chip.noc.multicast)
    )
    e.clock += 1


def _enter_next(e: _Emission, segment: Segment) -> None:
    """Put tensors made here into the carried buffers of segments to come."""
    for s in e.graph.segments:
        for read, _ in s.carried:
            target = f"carried {read}"
            made_here = any(op.output == read for op in segment.ops)
            if s.name != segment.name and made_here and e.homes[read] != target:
                _hand_on(e, segment, read, target)


def _stretch(e: _Emission, segment: Segment) -> None:
    """What a repeated body reads from before it must last until its end."""
    end = e.clock - 1
    begin = min((e.uses[b][0] for i in e.bodies[segment.name] for b in buffers_of(i)), default=end)
    inside = {i.output for i in e.bodies[segment.name] if isinstance(i, Compute)}
    inside |= {i.destination for i in e.bodies[segment.name] if isinstance(i, Transfer)}
    carried = {f"carried {read}" for read, _ in segment.carried}
    for i in e.bodies[segment.name]:
        for b in buffers_of(i):
            if (b not in inside and e.buffers[b].kind == "activation") or b in carried:
                first, last = e.uses[b]
                e.uses[b] = (first, max(last, end))
    del begin


def _keep_outputs(e: _Emission) -> None:
    for _, tensor, _ in e.graph.outputs:
        home = e.homes[tensor]
        first, _ = e.uses[home]
        e.uses[home] = (first, e.clock)


def _assemble(
    e: _Emission,
    placement: Placement,
    past_of: dict,
    present_of: dict,  # type: ignore[type-arg]
) -> Program:
    graph, plan = e.graph, e.plan
    schedule: list[Run | Move] = []
    bases: dict[tuple[str, str], int] = {}
    for number, stage in enumerate(plan.stages):
        if number:
            schedule += _moves(e, plan.stages[number - 1], stage, number)
        for segment, first, last in stage.segments:
            schedule.append(Run(segment, segment, stage.name, first, last, 0))
            bases[stage.name, segment] = first
    users: dict[str, set[str]] = {}
    for segment, body in e.bodies.items():
        for i in body:
            for b in buffers_of(i):
                users.setdefault(b, set()).add(segment)
    load: list[tuple[str, str, str, int]] = []
    for b in e.buffers.values():
        for stage in plan.stages:
            for segment, first, last in stage.segments:
                if segment in users.get(b.name, ()):
                    load += _loads(graph, b, stage.name, segment, first, last, past_of)
    outputs = []
    for name, tensor, repetition in graph.outputs:
        home = e.homes[tensor]
        stage, base = _holder(graph, plan, e, tensor, repetition)
        outputs.append((name, home, stage, base))
    buffers = {
        n: replace(
            b,
            live=e.uses[n] if b.kind in ("activation", "scratch") else (0, -1),
        )
        for n, b in e.buffers.items()
        if n in e.uses
    }
    names = {n for op in e.ops.values() for n in (*op.inputs, op.output)}
    return Program(
        plan.phase,
        e.chip.name,
        e.chip.rows,
        e.chip.cols,
        dict(placement.regions),
        buffers,
        e.ops,
        {n: tuple(b) for n, b in e.bodies.items()},
        tuple(schedule),
        tuple(dict.fromkeys(load)),
        tuple(outputs),
        {n: graph.tensors[n].shape for n in sorted(names)},
        {n: graph.tensors[n].dtype for n in sorted(names)},
    )


def _loads(
    graph: Graph,
    b: Buffer,
    region: str,
    segment: str,
    first: int,
    last: int,
    past_of: dict,  # type: ignore[type-arg]
) -> list[tuple[str, str, str, int]]:
    """What the host puts into a buffer before the step: data name per layer of the region."""
    tensor = graph.tensors[b.tensor]
    if b.kind == "kv":
        pasts = [p.past for p in past_of.values() if p.present == b.tensor]
        if not pasts:
            return []
        tensor = graph.tensors[pasts[0]]
    elif (b.kind == "activation" and tensor.kind != "INPUT") or b.kind == "scratch":
        return []
    if len(tensor.instances) == 1:
        return [(tensor.instances[0], b.name, region, 0)]
    return [(tensor.instances[i], b.name, region, i - first) for i in range(first, last)]


def _holder(
    graph: Graph, plan: Plan, e: _Emission, tensor: str, repetition: int
) -> tuple[str, int]:
    """Region, and layer among the region's own, where an output lies in the end."""
    producer = next((s.name for s in graph.segments for op in s.ops if op.output == tensor), None)
    several = len(graph.tensors[tensor].instances) > 1 or e.buffers[e.homes[tensor]].kind == "kv"
    if e.homes[tensor].startswith("carried "):
        return plan.stages[-1].name, 0
    for stage in plan.stages:
        for segment, first, last in stage.segments:
            if segment == producer and (first <= repetition < last or not several):
                return stage.name, repetition - first if several else 0
    return plan.stages[-1].name, 0


def _moves(e: _Emission, before: Stage, after: Stage, number: int) -> list[Move]:
    """Hand to the next region every tensor that it or a later one reads."""
    needed: dict[str, None] = {}
    order = [s.name for s in e.graph.segments]
    later = {seg for stage in e.plan.stages[number:] for seg, _, _ in stage.segments}
    started = {seg for stage in e.plan.stages[:number] for seg, _, _ in stage.segments}
    written: set[str] = set()
    for segment in order:
        if segment in started:
            for i in e.bodies[segment]:
                if isinstance(i, Compute):
                    written.add(i.output)
                elif isinstance(i, Transfer):
                    written.add(i.destination)
    for segment in order:
        if segment not in later:
            continue
        fresh: set[str] = set()
        carried = {f"carried {r}" for s in e.graph.segments for r, _ in s.carried}
        for i in e.bodies[segment]:
            reads = {
                Compute: lambda i: i.inputs,
                Transfer: lambda i: (i.source,),
                Reduce: lambda i: (),
                Broadcast: lambda i: (),
            }[type(i)](i)
            for b in reads:
                kind = e.buffers[b].kind
                if kind == "activation" and b in written and (b not in fresh):
                    inside = any(
                        isinstance(j, Compute) and j.output == b for j in e.bodies[segment]
                    ) or any(
                        isinstance(j, Transfer) and j.destination == b for j in e.bodies[segment]
                    )
                    if not inside or b in carried:
                        needed[b] = None
            if isinstance(i, Compute):
                fresh.add(i.output)
    return [
        Move(Transfer(f"hand over {b}", "", b, b, e.chip.noc.multicast), before.name, after.name)
        for b in needed
    ]
