"""What a kernel computes, in the words of the field."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.ir.graph import Op


def name(body: Sequence[Op]) -> str:
    """The pattern that the primitives of a kernel make, "" where they are nothing special."""
    kinds = [op.kind for op in body]
    functions = {s[0] for op in body if op.kind == "map" for s in op.attr("steps")}
    if "experts" in kinds:
        return "experts"
    if "attend" in kinds:
        return "attention"
    if kinds.count("matmul") > 1 and "map" in kinds:
        return "gated mlp"
    if "reduce" in kinds and kinds[-1] != "reduce":
        if "exp" in functions:
            return "softmax"
        if functions & {"sqrt", "reciprocal", "pow"}:
            return "norm"
    if _turns(body):
        return "rotary"
    return ""


def _turns(body: Sequence[Op]) -> bool:
    """Rotary embedding: halves or pairs change places, one of them negated or by a table, and the
    result is a sum of two products."""
    if "matmul" in {op.kind for op in body}:
        return False
    joined = {op.output for op in body if op.kind == "concat"}
    parts = {op.output for op in body if op.kind == "slice"}
    moved = set(joined)
    for op in body:
        if op.kind in ("reshape", "transpose") and op.inputs[0] in moved:
            moved.add(op.output)
    for op in body:
        if op.kind != "map":
            continue
        steps = [s[0] for s in op.attr("steps")]
        if steps.count("mul") >= 2 and {"add", "sub"} & set(steps) and parts and joined:
            return True
    return False
