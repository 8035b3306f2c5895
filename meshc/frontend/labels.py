"""Where a size comes from: the model file, or which numbers of the workload.

Decisions about the graph's structure look at labels and never at the sizes, so that a graph has
the same ops for every batch, prompt and context. A label is FIXED (the model file alone), a
polynomial in the workload's numbers, or MIXED (the workload, in a way that is not followed).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np

Monomial = tuple[int, int, int, int]  # exponents of batch, new, past, buffer
Label = int | tuple[tuple[Monomial, int], ...]

FIXED: Label = 0
MIXED: Label = -1
BATCH: Label = (((1, 0, 0, 0), 1),)
NEW: Label = (((0, 1, 0, 0), 1),)
PAST: Label = (((0, 0, 1, 0), 1),)
BUFFER: Label = (((0, 0, 0, 1), 1),)
TOTAL: Label = (((0, 0, 1, 0), 1), ((0, 1, 0, 0), 1))

_ONE: Monomial = (0, 0, 0, 0)


def _poly(label: Label, size: int) -> dict[Monomial, int]:
    return {_ONE: size} if isinstance(label, int) else dict(label)


def _label(poly: dict[Monomial, int]) -> Label:
    terms = tuple(sorted((m, c) for m, c in poly.items() if c))
    return terms if any(m != _ONE for m, _ in terms) else FIXED


def add(a: Label, b: Label, size_a: int, size_b: int, sign: int = 1) -> Label:
    """Label of size_a ± size_b."""
    if MIXED in (a, b):
        return MIXED
    if FIXED == a == b:
        return FIXED
    total = _poly(a, size_a)
    for m, c in _poly(b, size_b).items():
        total[m] = total.get(m, 0) + sign * c
    return _label(total)


def multiply(a: Label, b: Label, size_a: int, size_b: int) -> Label:
    """Label of size_a · size_b."""
    if MIXED in (a, b):
        return MIXED
    if FIXED == a == b:
        return FIXED
    product: dict[Monomial, int] = {}
    for m, c in _poly(a, size_a).items():
        for n, d in _poly(b, size_b).items():
            key = (m[0] + n[0], m[1] + n[1], m[2] + n[2], m[3] + n[3])
            product[key] = product.get(key, 0) + c * d
    return _label(product)


def divide(a: Label, b: Label, size_b: int) -> Label:
    """Label of a size divided by a fixed one that divides each of its terms."""
    if FIXED == a == b:
        return FIXED
    if isinstance(a, int) or b != FIXED or size_b == 0:
        return MIXED
    if any(c % size_b for _, c in a):
        return MIXED
    return _label({m: c // size_b for m, c in a})


def product(labels: Sequence[Label], sizes: Sequence[int]) -> Label:
    """Label of a product of sizes."""
    out, size = FIXED, 1
    for label, n in zip(labels, sizes, strict=True):
        out = multiply(out, label, size, n)
        size *= n
    return out


def total(labels: Sequence[Label], sizes: Sequence[int]) -> Label:
    """Label of a sum of sizes."""
    out, size = FIXED, 0
    for label, n in zip(labels, sizes, strict=True):
        out = add(out, label, size, n)
        size += n
    return out


def remainder(
    labels: Sequence[Label],
    sizes: Sequence[int],
    others: Sequence[Label],
    other_sizes: Sequence[int],
) -> Label:
    """Label of the dimension that a reshape infers: all dimensions over the others."""
    whole = product([n for n in labels if n != FIXED], [1] * _loose(labels))
    known = product([n for n in others if n != FIXED], [1] * _loose(others))
    if MIXED in (whole, known):
        return MIXED
    fixed = Fraction(_fixed_size(labels, sizes), _fixed_size(others, other_sizes) or 1)
    top, bottom = _poly(whole, 1), _poly(known, 1)
    terms: dict[Monomial, Fraction] = {}
    if set(top) == set(bottom) and len({Fraction(top[m], bottom[m]) for m in top}) == 1:
        return FIXED
    if len(bottom) > 1:
        return MIXED
    ((divisor, count),) = bottom.items()
    for m, c in top.items():
        rest = (m[0] - divisor[0], m[1] - divisor[1], m[2] - divisor[2], m[3] - divisor[3])
        terms[rest] = fixed * c / count
    if any(min(m) < 0 or c.denominator != 1 for m, c in terms.items()):
        return MIXED
    return _label({m: int(c) for m, c in terms.items()})


def _loose(labels: Sequence[Label]) -> int:
    return sum(n != FIXED for n in labels)


def _fixed_size(labels: Sequence[Label], sizes: Sequence[int]) -> int:
    return prod(s for n, s in zip(labels, sizes, strict=True) if n == FIXED)


def grows(label: Label) -> bool:
    """Whether a size may change with the cached tokens."""
    return label == MIXED or (not isinstance(label, int) and any(m[2] for m, _ in label))


def loose_dims(
    before: Sequence[Label], after: Sequence[Label]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dimensions of a reshape's input and output that grow and that the other side has not."""
    return (
        tuple(i for i, x in enumerate(before) if grows(x) and x not in after),
        tuple(j for j, x in enumerate(after) if grows(x) and x not in before),
    )


def array_of(labels: Iterable[Label]) -> np.ndarray:
    """A vector of labels."""
    items = list(labels)
    out = np.empty(len(items), object)
    for i, item in enumerate(items):
        out[i] = item
    return out


def loose(labels: Any) -> bool:
    """Whether any label of an array or of one is not FIXED."""
    if isinstance(labels, np.ndarray):
        return any(x != FIXED for x in labels.flat)
    return bool(labels != FIXED)


def map_label(fn: str, labels: Sequence[Label], values: Sequence[Any]) -> Label:
    """Label of one element that an elementwise step makes of integers."""
    if all(x == FIXED for x in labels):
        return FIXED
    if fn == "cast":
        return labels[0]
    if fn in ("add", "sub") and len(labels) == 2:
        return add(labels[0], labels[1], int(values[0]), int(values[1]), 1 if fn == "add" else -1)
    if fn == "mul":
        return multiply(labels[0], labels[1], int(values[0]), int(values[1]))
    if fn == "div":
        return divide(labels[0], labels[1], int(values[1]))
    if fn == "where":
        picked = labels[1] if values[0] else labels[2]
        return MIXED if picked == FIXED and labels[0] != FIXED else picked
    return MIXED
