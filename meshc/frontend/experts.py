"""Sums over experts of f(rows) · weights, however exporters write them, as a few `experts` ops.

Three forms are found, all after lowering: every expert's results under its mask are scattered and
added; every expert's results are added, each times a token's weights for it; and every row takes
the results of one expert. What they have in common is a choice by ids (see `choices`); what every
expert computes is merged (see `merging`). A sum that does not fit stays as it is: then every expert
works on all rows, which means the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from meshc.frontend.builder import Builder, Node, Value
from meshc.frontend.choices import Choice, choice, choices_made, rows_of, seen
from meshc.frontend.facts import nonnegative, step_of
from meshc.frontend.folding import Const
from meshc.frontend.indexing import scatter
from meshc.frontend.labels import FIXED, MIXED, product
from meshc.frontend.merging import Merger, Unlike
from meshc.frontend.simplify import Net

_FEWEST = 2  # experts


@dataclass(frozen=True)
class Term:
    """What one expert adds.

    form: "scattered" (rows under the mask are added to the rows `target` of zeros) or "weighted"
    (all rows times the sum of `weights` [..., k] where it was chosen).
    """

    form: str
    chosen: Choice
    result: Value
    target: Value | None = None
    weights: Value | None = None

    @property
    def same(self) -> Hashable:
        known = self.target.const if self.target is not None else None
        places = (known.shape, known.array().tobytes()) if known is not None else None
        return self.form, self.chosen.same, places, id(self.weights)


Sum = tuple["Term | Sum", ...]


def recognise_experts(net: Net, b: Builder) -> int:
    """Rewrite every sum over experts; gives how many there were."""
    if not any(node.kind == "topk" for node in net.nodes()):
        return 0  # nothing chooses
    share_equal(net)
    found = 0
    readers = net.consumers()
    sums: dict[int, Sum | None] = {}
    selected: set[int] = set()
    for node in net.nodes():
        sums[id(node.output)] = _sum_of(node, sums)
    for node in net.nodes():
        if id(node) in selected:
            continue
        over = [r for r in readers.get(id(node.output), []) if sums.get(id(r.output))]
        whole = sums[id(node.output)]
        if whole and not over:
            found += _rewrite(b, node, list(_flat(whole)))
    for node in reversed(net.nodes()):
        if id(node) not in selected:
            chain = _chain(node, selected)
            if len(chain) >= _FEWEST - 1:
                found += _rewrite_selection(b, node, chain)
    _name(b)
    if found:
        share_equal(net)  # the ids of one layer's products are the same
    return found


def share_equal(net: Net) -> None:
    """Equal computations become one, except on weights, which every reader makes for itself."""
    kept: dict[Hashable, Value] = {}
    replaced: dict[int, Value] = {}
    roots = net.root_ids
    for node in net.nodes():
        node.inputs = [replaced.get(id(v), v) for v in node.inputs]
        out = node.output
        if node.kind == "append" or all(v.const is not None for v in node.inputs):
            continue
        attrs = tuple(sorted(node.attrs.items()))
        key = (node.kind, attrs, tuple(map(id, node.inputs)), out.shape, out.labels, out.dtype)
        other = kept.setdefault(key, out)
        if other is not out and id(out) not in roots:
            replaced[id(out)] = other


# -- sums -----------------------------------------------------------------------------------------


def _zeros(v: Value) -> bool:
    c = v.const
    return c is not None and not c.outside and not c.array().any()


def _sum_of(node: Node, sums: dict[int, Sum | None]) -> Sum | None:
    """The experts' terms that a value is the sum of, () for zeros; None where it is anything
    else."""
    if step_of(node, "add") is not None and len(node.inputs) == 2:
        parts: list[Term | Sum] = []
        for v in node.inputs:
            own: Sum | None = () if _zeros(v) else sums.get(id(v))
            if own is None or (own and v.shape != node.output.shape):
                return None
            if own:
                parts.append(own)
        return tuple(parts) or None
    if node.kind == "scatter":
        term, before = _scattered(node), node.inputs[0]
        base: Sum | None = () if _zeros(before) else sums.get(id(before))
        if term is None or base is None or (base and node.attrs["reduction"] != "add"):
            return None
        return (base, term) if base else (term,)
    weighted = _weighted(node)
    return None if weighted is None else (weighted,)


def _flat(parts: Sum) -> Iterator[Term]:
    stack: list[Term | Sum] = [parts]
    while stack:
        at = stack.pop()
        if isinstance(at, Term):
            yield at
        else:
            stack += reversed(at)


def _scattered(node: Node) -> Term | None:
    """scatter(…, where(mask, known places, nowhere), results)"""
    if node.attrs["batch"]:
        return None
    if node.attrs["reduction"] not in ("none", "add") or node.output.rank != 2:
        return None
    _, places, result = node.inputs
    args = step_of(places.node, "where")
    if args is None or places.node is None or args[0] != ("in", 0) or args[2] != ("const", -1):
        return None
    target = places.node.inputs[1] if args[1] == ("in", 1) else None
    if target is None or target.const is None:
        return None
    chosen = choice(places.node.inputs[0])
    if chosen is None:
        return None
    if node.attrs["reduction"] == "none" and not _distinct(chosen, target):
        return None
    return Term("scattered", chosen, result, target)


def _distinct(chosen: Choice, target: Value) -> bool:
    """Whether no two rows of one expert have the same target: then to set is to add."""
    lines = rows_of(chosen.ids, chosen.views)
    if lines is None or target.const is None or lines.size != target.const.size:
        return False
    pairs = np.stack([target.const.array().reshape(-1), lines.reshape(-1)])
    return len(np.unique(pairs, axis=1).T) == len(np.unique(pairs[0]))


def _weighted(node: Node) -> Term | None:
    """results · sum over the last axis of weights · chosen"""
    if step_of(node, "mul") is None or len(node.inputs) != 2 or node.output.rank < 2:
        return None
    for result, factor in (node.inputs, node.inputs[::-1]):
        if factor.rank != result.rank or factor.shape[-1] != 1 or result.shape != node.output.shape:
            continue
        total = factor.node
        while total is not None and total.kind == "reshape":
            total = total.inputs[0].node
        if total is None or total.kind != "reduce" or total.attrs["fn"] != "sum":
            continue
        masked = total.inputs[0]
        if total.attrs["axes"] != (masked.rank - 1,) or masked.shape[:-1] != result.shape[:-1]:
            continue
        inner = masked.node
        if inner is None or len(inner.inputs) != 2:
            continue
        if step_of(inner, "mul") is not None:
            pairs = [(inner.inputs[0], inner.inputs[1]), (inner.inputs[1], inner.inputs[0])]
        elif (args := step_of(inner, "where")) is not None and args[2] == ("const", 0):
            pairs = [(inner.inputs[1], inner.inputs[0])]
        else:
            continue
        for weights, mask in pairs:
            chosen = choice(mask)
            if chosen is not None and weights.shape == masked.shape == mask.shape:
                return Term("weighted", chosen, result, weights=weights)
    return None


def _rewrite(b: Builder, node: Node, terms: list[Term]) -> int:
    """Make `node` the sum over all experts at once, where the terms allow it."""
    first = terms[0]
    if len(terms) < _FEWEST or any(t.same != first.same for t in terms):
        return 0
    terms = sorted(terms, key=lambda t: t.chosen.expert)
    numbers = [t.chosen.expert for t in terms]
    among = choices_made(first.chosen.ids)
    if len(set(numbers)) < len(numbers) or among is None or numbers[-1] >= among:
        return 0
    b.scope, b.source = node.name, node.source
    ids = seen(b, first.chosen.ids, first.chosen.views)
    flat = b.reshape(ids, (prod(ids.shape),), (product(ids.labels, ids.shape),), "slots")
    some = numbers != list(range(among))
    if some:  # the graph has no term for the others
        table = np.full(among, -1, np.int64)
        table[numbers] = np.arange(len(numbers))
        flat = b.gather(b.constant(table, b.unique(f"{b.scope}.members")), flat, 0, "positions")
    result = first.result
    each = 1
    if first.form == "weighted":
        assert first.weights is not None
        each = first.weights.shape[-1]
    others = (tuple(numbers), among) if some else ((), 0)
    merger = Merger(b, flat, result.shape[:-1], result.labels[:-1], each, *others)
    try:
        rows = merger.rows([t.result for t in terms])
    except Unlike:
        return 0
    b.scope, b.source = node.name, node.source
    if some:
        here = b.apply("greaterorequal", flat, 0, suffix="here")
        column = b.reshape(here, (flat.shape[0], 1), (flat.labels[0], FIXED), "column")
        rows = b.apply("where", column, rows, 0.0, dtype=rows.dtype, suffix="known")
    if first.form == "weighted":
        _put(node, _mixed(b, rows, first, node.output))
    else:
        _put(node, _gathered_in(b, rows, ids, first, node.output))
    return 1


def _mixed(b: Builder, rows: Value, term: Term, out: Value) -> Value:
    """Rows [T · k, N] times their weights, added up for every token."""
    weights = term.weights
    assert weights is not None
    shape = (*weights.shape, rows.shape[1])
    split = b.reshape(rows, shape, (*weights.labels, rows.labels[1]), "by_token")
    share = b.insert_axis(weights, weights.rank, "shares")
    mixed = b.apply("mul", split, share, dtype=rows.dtype, suffix="weighted")
    total = b.reduce("sum", mixed, [weights.rank - 1], keepdims=False, suffix="mixed")
    return b.reshape(total, out.shape, out.labels, "tokens")


def _gathered_in(b: Builder, rows: Value, ids: Value, term: Term, out: Value) -> Value:
    """Rows [M, N] added up where their targets are the same."""
    target = term.target
    assert target is not None and target.const is not None
    mask = term.chosen.views[-1] if term.chosen.views else None
    shape = term.chosen.views[-2][2] if mask and len(term.chosen.views) > 1 else ids.shape
    labels = term.chosen.views[-2][3] if mask and len(term.chosen.views) > 1 else ids.labels
    at = target.const.array().reshape(-1)
    if len(shape) == 2 and prod(shape) == at.size:
        for axis in (1, 0):
            if not np.array_equal(at, np.indices(shape)[axis].reshape(-1)):
                continue
            if (shape[axis], labels[axis]) != (out.shape[0], out.labels[0]):
                continue
            split = b.reshape(rows, (*shape, rows.shape[1]), (*labels, rows.labels[1]), "slots")
            total = b.reduce("sum", split, [1 - axis], keepdims=False, suffix="mixed")
            return b.reshape(total, out.shape, out.labels, "tokens")
    zeros = Const.of(np.zeros(out.shape, np.float32), "fp32", MIXED if any(out.labels) else FIXED)
    base = b.cast(b.value(zeros, f"{b.scope}.zeros", out.labels), out.dtype)
    flat = b.reshape(target, (at.size,), (rows.labels[0],), "targets")
    return scatter(b, base, flat, rows, 0, "add", "mixed")


def _put(node: Node, made: Value) -> None:
    """Let the node's output be `made` under its own name."""
    node.kind, node.inputs, node.attrs = "reshape", [made], {}


# -- selections -----------------------------------------------------------------------------------


def _chain(node: Node, selected: set[int]) -> list[tuple[Choice, Value, Value]]:
    """where(ids = e, results of e, where(…)): (choice, results, otherwise) from the outside in."""
    found: list[tuple[Choice, Value, Value]] = []
    at: Node | None = node
    while at is not None:
        args = step_of(at, "where")
        if args is None or list(args) != [("in", 0), ("in", 1), ("in", 2)] or len(at.inputs) != 3:
            break
        mask, then, other = at.inputs
        if then.shape != node.output.shape or other.shape != node.output.shape:
            break
        chosen = choice(mask)
        if chosen is None or (found and chosen.same != found[0][0].same):
            break
        found.append((chosen, then, other))
        selected.add(id(at))
        at = other.node
    return found


def _rewrite_selection(b: Builder, node: Node, chain: Sequence[tuple[Choice, Value, Value]]) -> int:
    """Make `node` the rows of all experts at once."""
    out = node.output
    numbers = [c.expert for c, _, _ in chain]
    first = chain[0][0]
    if out.rank != 2 or numbers != list(range(len(numbers))) or not nonnegative(first.ids):
        return 0
    b.scope, b.source = node.name, node.source
    ids = seen(b, first.ids, first.views)
    if prod(ids.shape) != out.shape[0]:
        return 0
    flat = b.reshape(ids, out.shape[:1], out.labels[:1], "slots")
    last = len(numbers)
    if choices_made(first.ids) != last + 1:  # all others belong to the last one
        flat = b.apply("min", flat, last, dtype=flat.dtype, suffix="slots.known")
    merger = Merger(b, flat, out.shape[:-1], out.labels[:-1])
    try:
        rows = merger.rows([*(then for _, then, _ in chain), chain[-1][2]])
    except Unlike:
        return 0
    _put(node, rows)
    return 1


def _name(b: Builder) -> None:
    """Unique names for all that was made."""
    for v in b.made:
        v.name = b.unique(v.name)
        if v.node is not None:
            v.node.name = v.name
    b.made = []
