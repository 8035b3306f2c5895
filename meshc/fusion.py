"""Fusion: primitives that one kernel can run without keeping what passes between them.

A group has one core op. Views (transpose, reshape, slice, expand, concat) in front of it become
the way it reads its operands, views behind it the way it writes its result; elementwise ops join
when the core is elementwise or a reduction, which take each element as it comes. A matmul also
takes what makes its operand from weights or a cache alone (unpacking and scaling of quantised
ones), so that they stay small in SRAM. What happens depends only on the graph's structure, never
on its sizes, so that a graph bound for another context fuses alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from meshc.ir.dtypes import size_bytes
from meshc.ir.graph import Graph, Op, Segment, Tensor

PRODUCTS = ("matmul", "experts")  # multiply by weights, which may be stored smaller
EACH = ("map", "unpack")  # take each element as it comes
VIEWS = frozenset(("transpose", "reshape", "slice", "expand", "concat"))
LARGEST = 24  # primitives in a group


def fuse(graph: Graph) -> Graph:
    """The graph with groups of ops as single ops of kind "fused"."""
    kept = _kept(graph)
    readers = Counter(name for _, op in graph.ops() for name in dict.fromkeys(op.inputs))
    replaced = _replaced(graph)
    segments = tuple(
        replace(s, ops=_fuse_segment(s, graph.tensors, kept, readers, replaced))
        for s in graph.segments
    )
    used = {n for s in segments for op in s.ops for n in (*op.inputs, op.output)}
    used |= {n for s in graph.segments for pair in s.carried for n in pair} | kept
    return replace(
        graph,
        segments=segments,
        tensors={n: t for n, t in graph.tensors.items() if n in used},
    )


def _kept(graph: Graph) -> set[str]:
    """Tensors that must exist: outputs, caches, and what passes between layers or segments."""
    kept = {tensor for _, tensor, _ in graph.outputs}
    kept |= {n for s in graph.segments for pair in s.carried for n in pair}
    kept |= {p.present for p in graph.caches}
    home = {op.output: s.name for s, op in graph.ops()}
    for s, op in graph.ops():
        kept |= {n for n in op.inputs if home.get(n, s.name) != s.name}
    return kept


def _replaced(graph: Graph) -> dict[str, str]:
    """Past → present of the caches that a step writes over: what reads the past must stay before
    what writes the present, so it runs where it stands or in the writer itself."""
    kinds = {op.output: op.kind for _, op in graph.ops()}
    return {
        p.past: p.present
        for p in graph.caches
        if p.past is not None and kinds.get(p.present) != "append"
    }


def _fuse_segment(
    segment: Segment,
    tensors: dict[str, Tensor],
    kept: set[str],
    readers: Counter[str],
    replaced: dict[str, str],
) -> tuple[Op, ...]:
    """Grow a group backwards from each op that is not yet in one, last op first; then let views
    that nothing took join the op whose result they show."""
    ops = list(segment.ops)
    stored = _stored(ops, tensors)
    made_at = {op.output: i for i, op in enumerate(ops)}
    group_of: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    for core in reversed(range(len(ops))):
        if core in group_of:
            continue
        group_of[core] = core
        groups[core] = [core]
        if ops[core].kind == "append":
            continue
        _absorb(core, ops, stored, made_at, group_of, groups, kept, readers, replaced)
    _write_through(ops, made_at, group_of, groups, kept, readers, set(replaced.values()))
    return tuple(
        ops[members[0]]
        if len(members) == 1
        else _fused([ops[i] for i in members], tensors, [ops[i] for i in members if i in stored])
        for members in sorted((sorted(m) for m in groups.values()), key=lambda m: m[-1])
    )


def _may_join(kind: str, core: str) -> bool:
    """Whether an op of `kind` can be computed while the core reads its result."""
    if core in (*EACH, "reduce") or core in VIEWS:
        return kind in VIEWS or (kind in EACH and core not in VIEWS)
    return kind in VIEWS and core in ("matmul", "gather") and kind != "concat"


def _stored(ops: list[Op], tensors: dict[str, Tensor]) -> set[int]:
    """Places of the ops that compute on weights, and on caches of small integers, alone."""
    made = {
        op.output for op in ops if op.kind == "append" and size_bytes(tensors[op.output].dtype) == 1
    }
    found = set()
    for i, op in enumerate(ops):
        if (op.kind in EACH or op.kind in VIEWS) and all(
            n in made or tensors[n].kind == "WEIGHT" for n in op.inputs
        ):
            found.add(i)
            made.add(op.output)
    return found


def _absorb(
    core: int,
    ops: list[Op],
    stored: set[int],
    made_at: dict[str, int],
    group_of: dict[int, int],
    groups: dict[int, list[int]],
    kept: set[str],
    readers: Counter[str],
    replaced: dict[str, str],
) -> None:
    """Take into the core's group every producer whose readers are all in it."""
    members = groups[core]
    changed = True
    while changed and len(members) < LARGEST:
        changed = False
        inside = {n for i in members for n in ops[i].inputs}
        for name in sorted(inside, key=lambda n: -made_at.get(n, -1)):
            at = made_at.get(name)
            if at is None or at in group_of or name in kept:
                continue
            reading = sum(name in ops[i].inputs for i in members)
            joins = _may_join(ops[at].kind, ops[core].kind)
            joins = joins or (ops[core].kind in PRODUCTS and at in stored)
            if reading != readers[name] or not joins:
                continue
            if any(replaced.get(n, ops[core].output) != ops[core].output for n in ops[at].inputs):
                continue
            group_of[at] = core
            members.append(at)
            changed = True
            break


def _write_through(
    ops: list[Op],
    made_at: dict[str, int],
    group_of: dict[int, int],
    groups: dict[int, list[int]],
    kept: set[str],
    readers: Counter[str],
    presents: set[str],
) -> None:
    """A group of nothing but views behind a matmul joins it: the matmul writes its result to the
    place where the views would put it."""
    for core in sorted(groups):
        members = sorted(groups[core])
        if ops[members[-1]].output in presents:
            continue
        if any(ops[i].kind not in VIEWS - {"concat"} for i in members):
            continue
        outside = {n for i in members for n in ops[i].inputs} - {ops[i].output for i in members}
        if len(outside) != 1:
            continue
        (name,) = outside
        at = made_at.get(name)
        if at is None or name in kept or ops[group_of[at]].kind != "matmul":
            continue
        target = group_of[at]
        if ops[target].output != name or readers[name] != sum(
            name in ops[i].inputs for i in members
        ):
            continue
        groups[target] += members
        for i in members:
            group_of[i] = target
        del groups[core]


def _weight_bits(stored: list[Op], tensors: dict[str, Tensor]) -> int:
    """Bits per element of the quantised weights that these ops restore; 0 where none are."""
    found = [
        op.attr("bits")
        for op in stored
        if op.kind == "unpack" and tensors[op.inputs[0]].kind == "WEIGHT"
    ]
    for op in stored:
        if op.kind == "map":
            found += [8 for n in op.inputs if tensors[n].kind == "WEIGHT" and size_bytes(
                tensors[n].dtype) == 1]  # fmt: skip
    return min(found, default=0)


def _fused(body: list[Op], tensors: dict[str, Tensor], stored: list[Op]) -> Op:
    made = {op.output for op in body}
    inputs = tuple(dict.fromkeys(n for op in body for n in op.inputs if n not in made))
    names = dict.fromkeys((*inputs, *(op.output for op in body)))
    shapes = tuple((n, tensors[n].shape, tensors[n].dtype) for n in names)
    core = next((op for op in reversed(body) if op.kind not in VIEWS), body[-1])
    attrs: tuple[tuple[str, Any], ...] = (("core", core.kind), ("shapes", shapes))
    bits = _weight_bits(stored, tensors)
    if core.kind in PRODUCTS and bits:
        attrs = (("core", core.kind), ("quantised", bits), ("shapes", shapes))
    source = tuple(dict.fromkeys(n for op in body for n in op.source))
    return Op(core.name, "fused", inputs, body[-1].output, attrs, source, tuple(body))
