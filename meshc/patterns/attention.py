"""Softmax over scores followed by its product with values becomes the op kind attend.

Found by structure: max, exp(x - max), sum, division and a matrix product, however an exporter
spelt them; what stands between scores and maximum (scale, mask, soft cap) is not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshc.ir.dtypes import FLOATS
from meshc.ir.graph import Graph, Op, Segment, Tensor

Steps = tuple[tuple[str, tuple[tuple[str, Any], ...], str], ...]


@dataclass(frozen=True)
class _Match:
    """One softmax and the product behind it.

    guarded: rows without any visible score give zeros.   factor: a tensor with one number per row
    that scales the weights, if any.
    """

    scores: str
    values: str
    product: Op
    members: tuple[Op, ...]
    guarded: bool
    factor: str | None


def rewrite(graph: Graph) -> Graph:
    """The graph with every softmax-weighted sum as one attend and the division behind it."""
    readers = Counter(n for _, op in graph.ops() for n in dict.fromkeys(op.inputs))
    kept = {t for _, t, _ in graph.outputs} | {
        n for s in graph.segments for p in s.carried for n in p
    }
    tensors = dict(graph.tensors)
    segments = tuple(
        replace(s, ops=_rewrite_segment(s, tensors, readers, kept)) for s in graph.segments
    )
    used = {n for s in segments for op in s.ops for n in (*op.inputs, op.output)} | kept
    used |= {p.present for p in graph.caches} | {p.past for p in graph.caches if p.past}
    return replace(
        graph, segments=segments, tensors={n: t for n, t in tensors.items() if n in used}
    )


def _rewrite_segment(
    segment: Segment, tensors: dict[str, Tensor], readers: Counter[str], kept: set[str]
) -> tuple[Op, ...]:
    made = {op.output: op for op in segment.ops}
    gone: set[str] = set()
    new: dict[str, tuple[Op, ...]] = {}
    for op in segment.ops:
        if op.kind == "matmul" and (m := _match(op, made, tensors, readers, kept)) is not None:
            gone.update(o.name for o in m.members)
            new[op.name] = _replacement(m, tensors)
    return tuple(x for op in segment.ops if op.name not in gone for x in new.get(op.name, (op,)))


def _match(
    product: Op,
    made: Mapping[str, Op],
    tensors: Mapping[str, Tensor],
    readers: Counter[str],
    kept: set[str],
) -> _Match | None:
    """The softmax that makes the left operand of a product, if one does."""
    if product.attr("transpose_a", False) or product.inputs[0] == product.inputs[1]:
        return None
    divide = made.get(product.inputs[0])
    if divide is None or divide.kind != "map":
        return None
    form = _weights(divide.attr("steps"))
    if form is None:
        return None
    top_slot, sum_slot, factor_slot, guarded = form
    exp, total = (made.get(divide.inputs[i]) for i in (top_slot, sum_slot))
    if exp is None or total is None or exp.kind != "map":
        return None
    rank = len(tensors[product.inputs[0]].shape)
    if not _over_last(total, "sum", rank) or total.inputs != (exp.output,):
        return None
    if (
        len(exp.inputs) != 2
        or exp.attr("steps")[:2] != _exponential(exp)
        or len(exp.attr("steps")) != 2
    ):
        return None
    scores, top = exp.inputs
    biggest = made.get(top)
    if biggest is None or not _over_last(biggest, "max", rank) or biggest.inputs != (scores,):
        return None
    members = (biggest, exp, total, divide)
    inner = {biggest.output: 1, exp.output: 2, total.output: 1, divide.output: 1}
    if any(readers[n] != k or n in kept for n, k in inner.items()):
        return None
    factor = divide.inputs[factor_slot] if factor_slot is not None else None
    if factor is not None and tensors[factor].shape[-1:] != (1,):
        return None
    if tensors[scores].dtype not in FLOATS or len(tensors[scores].shape) != rank:
        return None
    return _Match(scores, product.inputs[1], product, members, guarded, factor)


def _exponential(exp: Op) -> Steps:
    dtype = exp.attr("steps")[0][2]
    return (("sub", (("in", 0), ("in", 1)), dtype), ("exp", (("step", 0),), dtype))


def _over_last(op: Op, fn: str, rank: int) -> bool:
    return (
        op.kind == "reduce"
        and op.attr("fn") == fn
        and op.attr("axes") == (rank - 1,)
        and bool(op.attr("keepdims", True))
    )


def _weights(steps: Steps) -> tuple[int, int, int | None, bool] | None:
    """Slots of the exponentials, their sum and a factor, and whether NaN becomes zero, of a map
    that divides one by the other; None for any other map."""
    fn, args, _ = steps[0]
    if fn != "div" or [a[0] for a in args] != ["in", "in"]:
        return None
    at, guarded = 0, False
    factor: int | None = None
    for i, (fn, args, _) in enumerate(steps[1:], 1):
        here = ("step", at)
        if fn == "cast" and args == (here,):
            at = i
        elif fn == "isnan" and args == (here,):
            after = steps[i + 1] if i + 1 < len(steps) else None
            if after is None or after[0] != "where":
                return None
            if after[1] not in (
                (("step", i), ("const", 0.0), here), (("step", i), ("const", 0), here),
            ):  # fmt: skip
                return None
            guarded = True
        elif fn == "where" and guarded and args[0] == ("step", i - 1):
            at = i
        elif fn == "mul" and factor is None and here in args:
            others = [a for a in args if a != here]
            if len(others) != 1 or others[0][0] != "in":
                return None
            factor, at = int(others[0][1]), i
        else:
            return None
    if at != len(steps) - 1:
        return None
    (_, a), (_, b) = steps[0][1]
    return a, b, factor, guarded


def _replacement(m: _Match, tensors: dict[str, Tensor]) -> tuple[Op, ...]:
    """attend, its two parts, and the division of one by the other."""
    out = tensors[m.product.output]
    wide = "fp64" if tensors[m.scores].dtype == "fp64" else "fp32"
    source = tuple(dict.fromkeys(n for o in (*m.members, m.product) for n in o.source))
    width = out.shape[-1]
    name = m.product.name

    def tensor(suffix: str, last: int) -> str:
        key = f"{out.name}.{suffix}"
        tensors[key] = Tensor(key, "ACTIVATION", (*out.shape[:-1], last), wide, (key,))
        return key

    rows, mixed, total = tensor("rows", width + 2), tensor("mixed", width), tensor("weight", 1)
    attend = Op(
        f"{name}.attend", "attend", (m.scores, m.values), rows,
        (("transpose_v", bool(m.product.attr("transpose_b", False))),), source,
    )  # fmt: skip
    parts = tuple(
        Op(
            f"{t}",
            "slice",
            (rows,),
            t,
            (("axis", len(out.shape) - 1), ("start", s), ("step", 1)),
            source,
        )
        for t, s in ((mixed, 0), (total, width))
    )
    steps: list[Any] = [("div", (("in", 0), ("in", 1)), wide)]
    if m.guarded:
        steps += [
            ("equal", (("in", 1), ("const", 0.0)), "bool"),
            ("isnan", (("step", 0),), "bool"),
            ("or", (("step", 1), ("step", 2)), "bool"),
            ("where", (("step", 3), ("const", 0.0), ("step", 0)), wide),
        ]
    inputs: tuple[str, ...] = (mixed, total)
    if m.factor is not None:
        inputs = (*inputs, m.factor)
        steps.append(("mul", (("step", len(steps) - 1), ("in", 2)), wide))
    fn, args, _ = steps[-1]
    steps[-1] = (fn, args, out.dtype)
    divide = Op(name, "map", inputs, out.name, (("steps", tuple(steps)),), source)
    return (attend, *parts, divide)
