"""The instructions of one segment's body, and the buffers they use."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from meshc.analysis.growing import growing_dims
from meshc.emit import joint
from meshc.ir.graph import Graph, Op, Segment
from meshc.ir.layout import WHOLE, Layout
from meshc.ir.plan import OpPlan, Plan
from meshc.ir.program import (
    Broadcast,
    Buffer,
    BufferKind,
    Compute,
    Instruction,
    Reduce,
    Transfer,
    buffers_of,
    lane_bytes,
    reads_of,
    writes_of,
)
from meshc.ir.shards import covers
from meshc.ops import scratch as scratch_bytes
from meshc.ops import space
from meshc.ops.record import PARTIAL

_HELD: dict[str, BufferKind] = {"WEIGHT": "weight", "CONSTANT": "constant", "INPUT": "input"}
ALIGN = 8


def carried_buffer(read: str) -> str:
    """Name of the buffer of a tensor that passes from layer to layer."""
    return f"carried {read}"


@dataclass
class Emission:
    """Work in progress: what has been emitted so far and where each tensor lies.

    homes: tensor → its own buffer.   kept: output of a repeated segment → the buffer that keeps
    every layer's.   copies: tensor → buffers with it re-sharded, of the segment at hand.
    clock: instructions emitted so far.   uses: buffer → first and last clock at which it must
    hold its value.
    """

    graph: Graph
    full: Graph
    plan: Plan
    multicast: bool
    max_context: int
    set_up: bool
    streams: bool
    buffers: dict[str, Buffer] = field(default_factory=dict)
    bodies: dict[str, list[Instruction]] = field(default_factory=dict)
    ops: dict[str, Op] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    copies: dict[str, list[str]] = field(default_factory=dict)
    clock: int = 0
    uses: dict[str, tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def token_dims(self) -> dict[str, frozenset[int]]:
        return growing_dims(self.full)

    @cached_property
    def full_ops(self) -> dict[str, Op]:
        return {op.name: op for _, op in self.full.ops()}

    def put(self, segment: Segment, instruction: Instruction) -> None:
        """Emit an instruction; its buffers are in use at this clock."""
        for name in buffers_of(instruction):
            self.hold(name)
        self.bodies[segment.name].append(instruction)
        self.clock += 1

    def hold(self, name: str) -> None:
        """The buffer holds its value now, and what it is part of with it."""
        within = self.buffers[name].within if name in self.buffers else None
        if within is not None:
            self.hold(within[0])
        first, _ = self.uses.get(name, (self.clock, self.clock))
        self.uses[name] = (first, self.clock)

    def declare(
        self,
        name: str,
        tensor: str,
        kind: BufferKind,
        layout: Layout,
        segment: str,
        growing: int | None = None,
    ) -> str:
        """Declare a buffer for a tensor in a layout; the same name again is the same buffer."""
        if name in self.buffers:
            return name
        t = self.graph.tensors[tensor]
        # What lies behind the new tokens in a static cache is shorter at the longest context.
        capacity = tuple(
            self.max_context if d == growing else max(now, n)
            for d, (now, n) in enumerate(zip(t.shape, self.full.tensors[tensor].shape, strict=True))
        )
        size = lane_bytes(capacity, t.dtype, layout, self.plan.rows, self.plan.cols, ALIGN)
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
            growing=growing,
            token_dims=tuple(sorted(self.token_dims.get(tensor, ()))),
        )
        return name

    def place(self, name: str, within: tuple[str, int]) -> None:
        """A buffer is part of another one."""
        self.buffers[name] = replace(self.buffers[name], within=within)

    def missing(self, group: tuple[str, ...]) -> bool:
        """Whether some of these ops have not been emitted yet."""
        return any(name not in self.ops for name in group)

    def keep_outputs(self) -> None:
        """The model's outputs stay until the end."""
        for _, tensor, _ in self.graph.outputs:
            if tensor not in self.kept:
                self.hold(self.homes[tensor])


def cache_buffer(present: str) -> str:
    """Name of the buffer that a cache's past and present share."""
    return f"kv {present}"


def declare_caches(e: Emission) -> None:
    """Declare the caches' buffers, in the layouts of the ops that make the presents."""
    pairs = {p.present: p for p in e.graph.caches}
    for segment, op in e.graph.ops():
        pair = pairs.get(op.output)
        if pair is None:
            continue
        layout = e.plan.ops[op.name].output
        name = e.declare(
            cache_buffer(op.output), op.output, "kv", layout, segment.name, growing=pair.axis
        )
        if pair.past is not None:
            e.homes[pair.past] = name


def emit_segment(e: Emission, segment: Segment) -> None:
    """Emit the body of a segment."""
    e.bodies[segment.name] = []
    e.copies = {}
    begin = e.clock
    for read, _ in segment.carried:
        e.homes[read] = _declare_carried(e, read)
        if e.graph.tensors[read].kind in _HELD:  # it is there before the step begins
            e.uses[e.homes[read]] = (0, e.clock)
        e.hold(e.homes[read])
    for op in joint.ordered(segment.ops, e.plan.joined):
        _emit_op(e, segment, op)
    for read, made in segment.carried:
        _hand_on(e, segment, made, read)
    for later in e.graph.segments:
        for read, _ in later.carried:
            if later is not segment and any(op.output == read for op in segment.ops):
                _hand_on(e, segment, read, read)
    if segment.repeat > 1:
        _last_until_end(e, segment, begin)
    for read, made in segment.carried:
        e.homes[made] = carried_buffer(read)


def _declare_carried(e: Emission, read: str) -> str:
    return e.declare(carried_buffer(read), read, "activation", e.plan.carried[read], "")


def _last_until_end(e: Emission, segment: Segment, begin: int) -> None:
    """What a repeated body reads before writing it must last until the body's end."""
    own: set[str] = set()
    for i in e.bodies[segment.name]:
        for b in reads_of(i):
            if b not in own and e.uses[b][0] <= begin:
                e.hold(b)
        own.update(writes_of(i))
    for read, _ in segment.carried:
        e.hold(carried_buffer(read))


def _emit_op(e: Emission, segment: Segment, op: Op) -> None:
    plan = e.plan.ops[op.name]
    pair = next((p for p in e.graph.caches if p.present == op.output), None)
    out = cache_buffer(op.output) if pair is not None else _output_buffer(e, segment, op, plan)
    inputs, layouts = [], []
    for slot, (name, wanted) in enumerate(zip(op.inputs, plan.inputs, strict=True)):
        own = pair is not None and name == pair.past
        if own and ((op.kind == "append" and slot == 0) or wanted == plan.output):
            inputs.append(out)  # read where it lies, before the result is written there
            layouts.append(plan.output)
        else:
            inputs.append(_operand(e, segment, op, name, wanted))
            layouts.append(wanted)
    scratch = _temporaries(e, segment, op, plan)
    e.put(segment, Compute(op.name, op.name, tuple(inputs), out, tuple(layouts), scratch))
    bound = bind_attributes(op, [e.graph.tensors[n].shape for n in op.inputs])
    planned = e.full_ops[op.name].attr("shapes") if op.name in e.full_ops else None
    if planned != op.attr("shapes"):
        bound = replace(bound, attrs=tuple(sorted((*bound.attrs, ("planned", planned)))))
    e.ops[op.name] = bound
    e.homes[op.output] = out
    _join(e, segment, op, plan, out)
    if pair is None and _wanted_of_every_layer(e, segment, op.output):
        e.kept[op.output] = e.declare(
            f"every {op.output}", op.output, "output", plan.output, segment.name
        )
        keep = Transfer(f"keep {op.output}", op.name, out, e.kept[op.output], e.multicast)
        e.put(segment, keep)


def _temporaries(e: Emission, segment: Segment, op: Op, plan: OpPlan) -> tuple[str, ...]:
    """The buffer of what the op's kernel needs beside its operands, at the longest context."""
    tensors = [e.full.tensors[n] for n in (*op.inputs, op.output)]
    local = [
        layout.largest(t.shape, e.plan.rows, e.plan.cols)
        for t, layout in zip(tensors, (*plan.inputs, plan.output), strict=True)
    ]
    dtypes = [t.dtype for t in tensors]
    size = (
        -(
            -scratch_bytes(e.full_ops[op.name], local[:-1], local[-1], dtypes[:-1], dtypes[-1])
            // ALIGN
        )
        * ALIGN
    )
    if not size:
        return ()
    name = f"temporaries of {op.name}"
    layout = Layout((WHOLE,))
    e.buffers[name] = Buffer(
        name, op.output, "scratch", (size,), (size,), "uint8", layout, size, segment=segment.name
    )
    return (name,)


def _wanted_of_every_layer(e: Emission, segment: Segment, tensor: str) -> bool:
    """Whether the model puts out what an earlier layer than the last made."""
    return any(name == tensor and turn < segment.repeat - 1 for _, name, turn in e.graph.outputs)


def bind_attributes(op: Op, shapes: list[tuple[int, ...]]) -> Op:
    """Add what a lane must know of the whole tensors, whose shapes these are: a mean's count, a
    table's size, the past's length."""
    if op.body:
        known = {name: shape for name, shape, _ in op.attr("shapes")}
        body = tuple(bind_attributes(o, [known[n] for n in o.inputs]) for o in op.body)
        return replace(op, body=body)
    extra: tuple[tuple[str, int], ...] = ()
    if op.kind == "reduce" and op.attr("fn") == "mean":
        extra = (("count", prod(shapes[0][a] for a in op.attr("axes"))),)
    elif op.kind == "gather":
        extra = (("size", shapes[0][op.attr("axis", 0)]),)
    elif op.kind == "append" and len(shapes) == 2:
        extra = (("past", shapes[0][op.attr("axis")]),)
    return replace(op, attrs=tuple(sorted((*op.attrs, *extra)))) if extra else op


def _output_buffer(e: Emission, segment: Segment, op: Op, plan: OpPlan) -> str:
    """The op's own buffer, or a carried one that may be written already."""
    if any(op.name in group for group in e.plan.joined):
        return joint.part(e, segment, op)
    for s in e.graph.segments:
        for read, made in s.carried:
            if e.plan.carried[read] != plan.output:
                continue
            if s is segment and made == op.output and not _read_from(segment, op, read):
                return carried_buffer(read)
            if s is not segment and read == op.output:
                return _declare_carried(e, read)
    return e.declare(op.output, op.output, "activation", plan.output, segment.name)


def _read_from(segment: Segment, op: Op, tensor: str) -> bool:
    """Whether this op or one behind it in the body reads the tensor."""
    at = next(i for i, o in enumerate(segment.ops) if o.name == op.name)
    return any(tensor in o.inputs for o in segment.ops[at:])


def _operand(e: Emission, segment: Segment, op: Op, name: str, wanted: Layout) -> str:
    """The buffer from which `op` reads `name` in layout `wanted`; re-shards if need be."""
    t = e.graph.tensors[name]
    if t.kind in _HELD and name not in e.homes:
        owner = segment.name if len(t.instances) > 1 else ""
        return e.declare(f"{name} {wanted}", name, _HELD[t.kind], wanted, owner)
    shape = e.full.tensors[name].shape
    home: str = e.homes[name]
    for buffer in (home, *e.copies.get(name, ())):
        if covers(e.buffers[buffer].layout, wanted, shape, e.plan.rows, e.plan.cols):
            return str(buffer)
    copy = e.declare(
        f"{name} as {wanted} in {segment.name}", name, "activation", wanted, segment.name
    )
    e.put(segment, Transfer(f"reshard {name} for {op.name}", op.name, home, copy, e.multicast))
    e.copies.setdefault(name, []).append(copy)
    return copy


def _join(e: Emission, segment: Segment, op: Op, plan: OpPlan, out: str) -> None:
    """Reduce and Broadcast along every axis that left partial results."""
    s = space(op, [e.full.tensors[n] for n in op.inputs], e.full.tensors[op.output])
    combine = next((d.kind for d in s.dims if d.kind in PARTIAL), "sum")
    group = next((g for g in e.plan.joined if op.name in g), ())
    if group and e.missing(group):
        return
    for axis, groups in zip(plan.reduce, plan.groups, strict=True):
        lanes = e.plan.rows if axis == "row" else e.plan.cols
        count = min(2, lanes - 1)
        if group:
            out = joint.whole(group)
            receive = joint.receive(e, segment, out, count)
        else:
            receive = tuple(
                e.declare(
                    f"scratch{n} {op.output}", op.output, "scratch", plan.output, segment.name
                )
                for n in range(count)
            )
        name = f"{op.name} over {axis}"
        e.put(
            segment,
            Reduce(
                f"reduce {name}",
                op.name,
                out,
                axis,
                combine,
                groups,
                receive,
                set_up=e.set_up,
                streams=e.streams,
            ),
        )
        e.put(
            segment,
            Broadcast(f"broadcast {name}", op.name, out, axis, groups, e.multicast),
        )


def _hand_on(e: Emission, segment: Segment, tensor: str, read: str) -> None:
    """Copy a tensor to the carried buffer of `read`, unless it was made there."""
    home, target = e.homes[tensor], _declare_carried(e, read)
    if home != target:
        e.put(segment, Transfer(f"carry {tensor}", "", home, target, e.multicast))
