"""Results of several ops that one all-reduce joins: they lie side by side in one buffer.

Every lane sends the whole buffer, whose parts have the sizes of the fullest lane's shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshc.ir.dtypes import size_bytes
from meshc.ir.graph import Op, Segment
from meshc.ir.layout import WHOLE, Layout
from meshc.ir.program import Buffer, lane_bytes

if TYPE_CHECKING:
    from meshc.emit.body import Emission

ALIGN = 8


def ordered(ops: Sequence[Op], joined: Sequence[tuple[str, ...]]) -> list[Op]:
    """The ops, each group behind its first member. Members read one tensor and weights, so that
    all can run where the first one does."""
    group_of = {name: group for group in joined for name in group}
    by_name = {op.name: op for op in ops}
    found: list[Op] = []
    for op in ops:
        group = group_of.get(op.name, (op.name,))
        if all(o.name != op.name for o in found):
            found += [by_name[n] for n in group]
    return found


def whole(group: tuple[str, ...]) -> str:
    """Name of the buffer of a group's results."""

    return f"joined {' '.join(group)}"


def part(e: Emission, segment: Segment, op: Op) -> str:
    """Declare the op's part of its group's buffer, and that buffer."""
    group = next(g for g in e.plan.joined if op.name in g)
    name = whole(group)
    ops = {o.name: o for o in segment.ops}
    at, shifts = 0, {}
    for member in group:
        t = e.full.tensors[ops[member].output]
        shifts[member] = at
        layout = e.plan.ops[member].output
        at += lane_bytes(t.shape, t.dtype, layout, e.plan.rows, e.plan.cols, ALIGN)
    dtype = e.graph.tensors[op.output].dtype
    if name not in e.buffers:
        _declare(e, segment, name, op.output, at // size_bytes(dtype), dtype)
    e.declare(op.output, op.output, "activation", e.plan.ops[op.name].output, segment.name)
    e.place(op.output, (name, shifts[op.name]))
    return op.output


def receive(e: Emission, segment: Segment, name: str, count: int) -> tuple[str, ...]:
    """Declare receive buffers for a group's buffer."""
    b = e.buffers[name]
    names = tuple(f"scratch{n} {name}" for n in range(count))
    for n in names:
        _declare(e, segment, n, b.tensor, b.shape[0], b.dtype)
    return names


def _declare(
    e: Emission, segment: Segment, name: str, tensor: str, elements: int, dtype: str
) -> None:
    shape = (elements,)
    size = elements * size_bytes(dtype)
    e.buffers[name] = Buffer(
        name, tensor, "scratch", shape, shape, dtype, Layout((WHOLE,)), size, segment=segment.name
    )
