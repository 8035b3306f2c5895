"""Einsum: products of named dimensions, as matmuls between transposes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshc.errors import InputError
from meshc.frontend.builder import FROZEN, Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need
from meshc.frontend.labels import FIXED, product
from meshc.frontend.lower_matmul import multiplied

Values = Sequence[Value | None]


def _terms(equation: str, x: Sequence[Value]) -> tuple[list[list[str]], list[str]]:
    """The names of every operand's dimensions and of the result's; those under an ellipsis are
    "0", "1", … counted from the last."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(x):
        raise Unsupported(f"with the equation '{equation}' on {len(x)} operands")
    widest = 0
    names: list[list[str]] = []
    for part, v in zip(parts, x, strict=True):
        letters = part.replace("...", "")
        hidden = v.rank - len(letters) if "..." in part else 0
        if hidden < 0 or (hidden == 0 and "..." not in part and len(letters) != v.rank):
            raise Unsupported(f"with the equation '{equation}' on {v.rank} dimensions")
        widest = max(widest, hidden)
        before, _, after = part.partition("...") if "..." in part else (part, "", "")
        names.append([*before, *(str(i) for i in reversed(range(hidden))), *after])
    dots = [str(i) for i in reversed(range(widest))]
    if not arrow:
        seen = [n for term in names for n in term]
        return names, dots + sorted(n for n in set(seen) - set(dots) if seen.count(n) == 1)
    if "..." not in right:
        return names, list(right)
    before, _, after = right.partition("...")
    return names, [*before, *dots, *after]


def _diagonal(b: Builder, v: Value, names: list[str]) -> tuple[Value, list[str]]:
    """A name that an operand has twice is its diagonal: a strided slice of the merged two."""
    while len(set(names)) < len(names):
        name = next(n for n in names if names.count(n) > 1)
        i = names.index(name)
        j = names.index(name, i + 1)
        size = v.shape[i]
        if size != v.shape[j] or v.labels[i] != FIXED or v.labels[j] != FIXED:
            raise Unsupported("with a diagonal of dimensions that the workload decides")
        rest = [k for k in range(v.rank) if k not in (i, j)]
        v = b.transpose(v, (*rest, i, j), "diagonal.turn")
        shape, labels = (*v.shape[:-2], size * size), (*v.labels[:-2], FIXED)
        flat = b.reshape(v, shape, labels, "diagonal.flat")
        v = b.slice(flat, -1, 0, size, FIXED, size + 1, "diagonal")
        names = [names[k] for k in rest] + [name]
    return v, names


def _arranged(b: Builder, v: Value, names: list[str], groups: Sequence[list[str]]) -> Value:
    """`v` with its dimensions in the order of the groups, each group but the first merged."""
    order = [n for g in groups for n in g]
    v = b.transpose(v, [names.index(n) for n in order], "turn")
    lead = len(groups[0])
    shape, labels = list(v.shape[:lead]), list(v.labels[:lead])
    at = lead
    for group in groups[1:]:
        end = at + len(group)
        shape.append(prod(v.shape[at:end]))
        labels.append(product(v.labels[at:end], v.shape[at:end]))
        at = end
    return b.reshape(v, shape, labels, "merge")


def einsum(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Operands are combined from left to right; a name is summed as soon as nothing else has it."""
    operands = [need(x, i) for i in range(len(x))]
    names, result = _terms(str(call.attr("equation")), operands)
    sizes: dict[str, int] = {}
    for v, term in zip(operands, names, strict=True):
        for name, n in zip(term, v.shape, strict=True):
            if sizes.setdefault(name, n) != n and 1 not in (n, sizes[name]):
                raise InputError(
                    f"Node '{b.scope}' gives '{name}' the sizes {sizes[name]} and {n}; {FROZEN}"
                )
            sizes[name] = max(sizes[name], n)
    if not set(result) <= set(sizes) or len(set(result)) < len(result):
        raise Unsupported(f"with the equation '{call.attr('equation')}'")
    left, left_names = _reduced(
        b, operands[0], names[0], {*result, *(n for t in names[1:] for n in t)}
    )
    for i in range(1, len(operands)):
        later = {*result, *(n for t in names[i + 1 :] for n in t)}
        right, right_names = _reduced(b, operands[i], names[i], later | set(left_names))
        left, left_names = _product(b, left, left_names, right, right_names, later)
    gone = [i for i, n in enumerate(left_names) if n not in result]
    if gone:
        left = b.reduce("sum", left, gone, keepdims=False)
        left_names = [n for n in left_names if n in result]
    return [b.transpose(left, [left_names.index(n) for n in result], "order")]


def _reduced(b: Builder, v: Value, names: list[str], kept: set[str]) -> tuple[Value, list[str]]:
    """Diagonals taken, and dimensions summed that nobody else has."""
    v, names = _diagonal(b, v, names)
    alone = [i for i, n in enumerate(names) if n not in kept]
    if alone:
        v = b.reduce("sum", v, alone, keepdims=False, suffix="alone")
        names = [n for n in names if n in kept]
    return v, names


def _product(
    b: Builder, p: Value, a: list[str], q: Value, c: list[str], later: set[str]
) -> tuple[Value, list[str]]:
    """One matmul: names of both that are needed later are its batch, names of both that are not
    are summed. A dimension of one element broadcasts, so it is dropped from its operand."""
    p, a = _without_ones(b, p, a, q, c)
    q, c = _without_ones(b, q, c, p, a)
    both = [n for n in a if n in c]
    batch = [n for n in both if n in later]
    summed = [n for n in both if n not in later]
    rows, cols = [n for n in a if n not in c], [n for n in c if n not in a]
    m = _arranged(b, p, a, (batch, rows, summed))
    n = _arranged(b, q, c, (batch, summed, cols))
    out = multiplied(b, m, n)
    of_p, of_q = (dict(zip(t, zip(v.shape, v.labels, strict=True), strict=True))
                  for t, v in ((a, p), (c, q)))  # fmt: skip
    known = {**of_q, **of_p}
    order = [*batch, *rows, *cols]
    return b.reshape(
        out, [known[k][0] for k in order], [known[k][1] for k in order], "split"
    ), order


def _without_ones(
    b: Builder, v: Value, names: list[str], other: Value, theirs: list[str]
) -> tuple[Value, list[str]]:
    kept = [
        i for i, n in enumerate(names)
        if not (n in theirs and v.shape[i] == 1 and v.labels[i] == FIXED)
    ]  # fmt: skip
    if len(kept) == len(names):
        return v, names
    shape, labels = [v.shape[i] for i in kept], [v.labels[i] for i in kept]
    return b.reshape(v, shape, labels, "ones"), [names[i] for i in kept]


TABLE: dict[tuple[str, str], Lowering] = {("", "Einsum"): einsum}
