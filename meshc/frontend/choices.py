"""Truth values that say whether a row belongs to a given expert, and sums over experts.

Exporters write the choice of experts as comparisons with each expert's number, behind a one-hot
encoding, its transposes, slices and casts, or behind sums of weights under such a mask. `choice`
finds the ids and the number again, and only where the value means exactly that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshc.frontend.builder import Builder, Node, Value
from meshc.frontend.facts import step_of
from meshc.frontend.labels import FIXED, Label

_DEEP = 24
View = tuple[str, tuple[tuple[str, Any], ...], tuple[int, ...], tuple[Label, ...]]


@dataclass(frozen=True)
class Choice:
    """One where ids, seen through the views, equal `expert`, and zero elsewhere.

    views: (kind, attributes, shape, labels) from the ids to the truth value.
    """

    ids: Value
    expert: int
    views: tuple[View, ...]

    @property
    def same(self) -> tuple[int, tuple[View, ...]]:
        """Equal for choices of different experts by the same ids."""
        return id(self.ids), self.views


def choice(v: Value) -> Choice | None:
    """What a truth value, or 0 and 1, says about experts; None where it is something else."""
    chain: list[Node] = []
    at = v
    for _ in range(_DEEP):
        node = at.node
        if node is None:
            return None
        inner = _not_zero(node)
        if inner is not None:
            at = inner
            continue
        if step_of(node, "equal") is not None:
            return _compared(node, chain)
        if node.kind not in ("reshape", "transpose", "slice") and not _indicates(node):
            return None
        chain.append(node)
        at = node.inputs[0]
    return None


def _not_zero(node: Node) -> Value | None:
    """x of not(x = 0)."""
    below = node.inputs[0].node if step_of(node, "not") is not None else None
    args = step_of(below, "equal")
    if below is None or args is None or args[1] != ("const", 0):
        return None
    return below.inputs[0]


def _indicates(node: Node) -> bool:
    """A map that keeps zero and one as they are."""
    if step_of(node, "cast") is not None:
        return True
    args = step_of(node, "where")
    return args is not None and [*args] == [("in", 0), ("const", 1), ("const", 0)]


def _compared(node: Node, chain: list[Node]) -> Choice | None:
    """The choice from its comparison; chain: what was done to the result, last thing first."""
    steps = node.attrs["steps"]
    if len(steps) != 1:
        return None
    args = steps[0][1]
    done = [n for n in reversed(chain) if n.kind != "map"]
    number = next((a for kind, a in args if kind == "const"), None)
    if number is not None:
        if node.inputs[0].dtype not in ("int32", "int64") or int(number) != number:
            return None
        views = tuple(_view(n, n.output.shape, n.output.labels) for n in done)
        return Choice(node.inputs[0], int(number), views)
    pair = [node.inputs[a] for _, a in args]
    numbers = next((p for p in pair if p.const is not None), None)
    ids = next((p for p in pair if p.const is None), None)
    if numbers is None or ids is None or numbers.const is None or numbers.rank != ids.rank:
        return None
    own = [i for i, n in enumerate(numbers.shape) if n != 1]
    if len(own) != 1 or ids.shape[own[0]] != 1 or not numbers.const.fixed:
        return None
    if not np.array_equal(numbers.const.array().reshape(-1), np.arange(numbers.shape[own[0]])):
        return None
    return _sliced(ids, own[0], done)


def _sliced(ids: Value, axis: int, done: Sequence[Node]) -> Choice | None:
    """One of a one-hot encoding's numbers along `axis`, cut out by what was done to it."""
    expert: int | None = None
    views: list[View] = []
    for node in done:
        shape, labels = list(node.output.shape), list(node.output.labels)
        if node.kind == "transpose":
            axis = node.attrs["perm"].index(axis)
        elif expert is None and node.kind == "slice" and node.attrs["axis"] == axis:
            if shape[axis] != 1:
                return None
            expert = int(node.attrs["start"])
            continue
        elif expert is None and node.kind == "reshape":
            return None
        if expert is None:
            shape[axis], labels[axis] = 1, FIXED
        views.append(_view(node, tuple(shape), tuple(labels)))
    return None if expert is None else Choice(ids, expert, tuple(views))


def _view(node: Node, shape: tuple[int, ...], labels: tuple[Label, ...]) -> View:
    return node.kind, tuple(sorted(node.attrs.items())), shape, labels


def seen(b: Builder, v: Value, views: Sequence[View]) -> Value:
    """`v` through the views."""
    for kind, attrs, shape, labels in views:
        v = b.emit(kind, [v], dict(attrs), shape, v.dtype, labels, "ids")
    return v


def rows_of(ids: Value, views: Sequence[View]) -> np.ndarray | None:
    """For every element of the ids behind the views, which line of a topk it comes from.

    Within a line all ids differ. None where they are no topk's.
    """
    chain: list[Node] = []
    at = ids
    for _ in range(_DEEP):
        node = at.node
        if node is None:
            return None
        if node.kind == "topk":
            break
        if node.kind not in ("reshape", "transpose") and step_of(node, "cast") is None:
            return None
        chain.append(node)
        at = node.inputs[0]
    node = at.node
    if node is None or node.kind != "topk" or node.attrs["result"] != "indices":
        return None
    axis, shape = node.attrs["axis"], node.output.shape
    lines = [n for i, n in enumerate(shape) if i != axis]
    marks = np.arange(prod(lines)).reshape([1 if i == axis else n for i, n in enumerate(shape)])
    marks = np.broadcast_to(marks, shape)
    for n in reversed(chain):
        marks = _viewed(marks, n.kind, n.attrs, n.output.shape)
    for kind, attrs, out, _ in views:
        marks = _viewed(marks, kind, dict(attrs), out)
    return marks


def _viewed(x: np.ndarray, kind: str, attrs: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    if kind == "transpose":
        return x.transpose(attrs["perm"])
    if kind == "slice":
        axis, start, step = attrs["axis"], attrs["start"], attrs["step"]
        return np.asarray(np.take(x, start + step * np.arange(shape[axis]), axis=axis))
    return x.reshape(shape) if kind == "reshape" else x


def choices_made(ids: Value) -> int | None:
    """How many experts a topk chose the ids from."""
    at = ids
    for _ in range(_DEEP):
        node = at.node
        if node is None:
            return None
        if node.kind == "topk" and node.attrs["result"] == "indices":
            return int(node.inputs[0].shape[node.attrs["axis"]])
        if node.kind not in ("reshape", "transpose", "slice") and step_of(node, "cast") is None:
            return None
        at = node.inputs[0]
    return None
