"""In which order a fused kernel must see its tensors: what waits for a reduction inside it, what it
keeps until then, and what it reads again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from meshc.ir.graph import Op

VIEWS = frozenset(("transpose", "reshape", "slice", "expand", "concat"))
# wait for all of a dimension
JOINS = frozenset(("reduce", "matmul", "attend", "experts", "topk", "scan", "scatter"))


def completed(body: Sequence[Op]) -> list[int]:
    """Places of the ops whose result must be complete, because more than views lies between it and
    the output; lanes cannot leave it as partial results."""
    plain = {body[-1].output}  # what the output shows unchanged
    for o in reversed(body):
        if o.output in plain and o.kind in VIEWS and o.kind != "concat":
            plain.update(o.inputs)
    return [i for i, o in enumerate(body) if o.output not in plain]


@lru_cache(maxsize=4096)
def passes(op: Op) -> tuple[tuple[str, ...], tuple[tuple[str, int], ...]]:
    """Inner tensors that a kernel must keep because it needs them again after a reduction that
    they went into, and operands that it reads more than once for that reason, with how often."""
    from meshc.ops.registry import record

    level: dict[str, int] = dict.fromkeys(op.inputs, 0)
    began: list[int] = []
    for o in op.body:
        began.append(max((level[n] for n in o.inputs), default=0))
        level[o.output] = began[-1] + (1 if o.kind in JOINS else 0)
    # Levels at which a tensor is wanted; views show their operand whenever they are looked at.
    wanted: dict[str, set[int]] = {op.output: {level[op.output]}}
    kept: set[str] = set()
    for o, at in zip(reversed(op.body), reversed(began), strict=True):
        when = wanted.get(o.output, set())
        if len(when) > 1 and o.kind not in VIEWS:
            kept.add(o.output)
            when = {min(when)}
        twice = dict(record(o.kind).passes)
        for slot, n in enumerate(o.inputs):
            wanted.setdefault(n, set()).update({at} if o.kind in JOINS else when)
            if slot in twice and n not in op.inputs:
                kept.add(n)
    again = [(n, len(wanted[n])) for n in op.inputs if len(wanted.get(n, ())) > 1]
    return tuple(sorted(kept)), tuple(again)
