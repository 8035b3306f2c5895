"""What actions do to a core's SRAM when tensors are carried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshc import ops as op_records
from meshc.emulator.sram import Memory
from meshc.errors import InvariantError
from meshc.ir.graph import Op
from meshc.ir.stream import Combine, Copy, Kernel, Recv, View
from meshc.ops.combine import combine

# (op, layer) → row → expert
Routed = dict[tuple[str, int], dict[int, int]]


def prepare(memory: Memory, posts: Sequence[Recv]) -> None:
    """From here on the posted views may be overwritten at any time: forget what they hold.

    Raises InvariantError where two of them share bytes.
    """
    for i, recv in enumerate(posts):
        for other in posts[:i]:
            if _overlap(recv.view, other.view):
                raise InvariantError(
                    f"Core {memory.name} posts messages {other.key} and {recv.key} to the same "
                    "bytes of its SRAM."
                )
        memory.poison(recv.view)


def execute(
    memory: Memory, ops: Mapping[str, Op], action: Kernel | Copy | Combine, routed: Routed
) -> None:
    """Run a local action on the memory.   routed: receives the expert of each row."""
    memory.begin()
    if isinstance(action, Kernel):
        if action.output.elements:
            arrays = [memory.read(v) for v in action.inputs]
            op, ranges = ops[action.op], action.ranges
            slot = _expert_ids(op)
            if slot is not None:
                rows = routed.setdefault((op.name, action.layer), {})
                rows.update(zip(ranges[slot][0], arrays[slot].tolist(), strict=True))
            memory.write(action.output, op_records.evaluate(op, arrays, ranges[:-1], ranges[-1]))
    elif isinstance(action, Copy):
        memory.write(action.destination, memory.read(action.source))
    else:
        a, b = memory.read(action.destination), memory.read(action.source)
        memory.write(action.destination, combine(action.combine, a, b))


def _expert_ids(op: Op) -> int | None:
    """The operand with the expert of each row, of a grouped product."""
    inner = next((o for o in (op, *op.body) if o.kind == "experts"), None)
    if inner is None or inner.inputs[2] not in op.inputs:
        return None
    return op.inputs.index(inner.inputs[2])


def _overlap(a: View, b: View) -> bool:
    """Whether two views share bytes; views of the same array by their ranges."""
    if a.address == b.address and a.extent == b.extent:
        pairs = zip(a.ranges, b.ranges, strict=True)
        return all(_meet(r, s) for r, s in pairs)
    (a0, a1), (b0, b1) = a.span, b.span
    return a0 < b1 and b0 < a1 and a.elements > 0 and b.elements > 0


def _meet(r: range, s: range) -> bool:
    if r.step == s.step == 1:
        return r.start < s.stop and s.start < r.stop
    return not set(r).isdisjoint(s)
