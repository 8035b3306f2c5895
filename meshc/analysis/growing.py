"""Which dimensions count cached tokens.

They are divided cyclically (token t on lane t mod lanes), so that a growing cache stays balanced
and no token ever moves. The property spreads from the caches through every op that runs along
such a dimension.
"""

from __future__ import annotations

from meshc.ir.graph import Graph
from meshc.ops import space


def growing_dims(graph: Graph) -> dict[str, frozenset[int]]:
    """Tensor name → dimensions that run along cached tokens."""
    grows: dict[str, set[int]] = {}
    for pair in graph.caches:
        for name in (pair.past, pair.present):
            if name is not None and pair.axis is not None:
                grows.setdefault(name, set()).add(pair.axis)
    changed = True
    while changed:
        changed = False
        for _, op in graph.ops():
            s = space(op, [graph.tensors[i] for i in op.inputs], graph.tensors[op.output])
            operands = list(zip((*op.inputs, op.output), (*s.inputs, s.output), strict=True))
            marked = {
                use.dim
                for name, uses in operands
                for d, use in enumerate(uses)
                if use.dim is not None and d in grows.get(name, ())
            }
            for name, uses in operands:
                for d, use in enumerate(uses):
                    if use.dim in marked and use.dim is not None:
                        known = grows.setdefault(name, set())
                        if d not in known:
                            known.add(d)
                            changed = True
    return {name: frozenset(dims) for name, dims in grows.items()}
