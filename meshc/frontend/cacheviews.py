"""Caches seen through views: transposed, reshaped, or several stacked in one tensor.

A graph may turn its cache before it appends to it and turn it back for its output, or keep the
caches of all layers in one tensor. The cache itself is then neither turned nor stacked: tokens are
appended to the part at hand, in the order in which the model keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from meshc.frontend.labels import FIXED

if TYPE_CHECKING:
    from meshc.frontend.builder import Builder, Value

Stacks = Mapping[str, tuple[str, ...]]  # tensor of the model → its parts in order


def under(view: Value) -> Value | None:
    """The cache that a value is a view of."""
    while view.node is not None and view.node.kind in ("transpose", "reshape"):
        view = view.node.inputs[0]
    return view if view.source == "CACHE" else None


def cache_below(view: Value, kind: str) -> Value | None:
    """The cache, the longer one, or the stack of them that a transpose or reshape shows."""
    if view.node is None or view.node.kind != kind:
        return None
    inner = view.node.inputs[0]
    made = inner.node.kind if inner.node is not None else ""
    if made == "append" or (made == "concat" and _holds_cache(inner)):
        return inner
    return inner if inner.source == "CACHE" else None


def append_behind(b: Builder, view: Value, new: Value, axis: int, suffix: str) -> Value | None:
    """`new` appended to the cache that `view` shows, shown in the same way; None where the view
    mixes the tokens with something else."""
    if view.source == "CACHE":
        return b.append(view, new, axis, suffix)
    if under(view) is None or view.node is None or -1 in view.shape:
        return None
    inner = view.node.inputs[0]
    if view.node.kind == "transpose":
        perm = view.node.attrs["perm"]
        turned = b.transpose(new, tuple(int(i) for i in np.argsort(perm)), f"{suffix}.new")
        out = append_behind(b, inner, turned, perm[axis], suffix)
        return None if out is None else b.transpose(out, perm, f"{suffix}.turn")
    at = _axis_below(inner, view, axis)
    if at is None:
        return None
    shape = (*inner.shape[:at], new.shape[axis], *inner.shape[at + 1 :])
    labels = (*inner.labels[:at], new.labels[axis], *inner.labels[at + 1 :])
    if prod(shape) != prod(new.shape):
        return None
    out = append_behind(b, inner, b.reshape(new, shape, labels, f"{suffix}.new"), at, suffix)
    if out is None:
        return None
    whole = (*view.shape[:axis], out.shape[at], *view.shape[axis + 1 :])
    return b.reshape(
        out,
        whole,
        (*view.labels[:axis], out.labels[at], *view.labels[axis + 1 :]),
        f"{suffix}.view",
    )


def _axis_below(inner: Value, view: Value, axis: int) -> int | None:
    """The dimension of `inner` that its reshaped `view` has at `axis`."""
    if view.labels[axis] == FIXED:
        return None
    for at, (size, label) in enumerate(zip(inner.shape, inner.labels, strict=True)):
        if label == view.labels[axis] and size == view.shape[axis]:
            same = prod(inner.shape[:at]) == prod(view.shape[:axis])
            if same and prod(inner.shape[at + 1 :]) == prod(view.shape[axis + 1 :]):
                return at
    return None


def part_names(name: str, counts: Sequence[int]) -> tuple[str, ...]:
    """Names of the parts of a stacked tensor."""
    return tuple(f"{name}[{','.join(map(str, at))}]" for at in np.ndindex(*counts))


def stacked(b: Builder, parts: Sequence[Value], counts: Sequence[int]) -> Value:
    """The parts as one tensor with the leading dimensions `counts`."""
    if not counts:
        return parts[0]
    size = len(parts) // counts[0]
    groups = [stacked(b, parts[i * size :][:size], counts[1:]) for i in range(counts[0])]
    wide = [b.reshape(g, (1, *g.shape), (FIXED, *g.labels), "part") for g in groups]
    return wide[0] if len(wide) == 1 else b.concat(wide, 0, "stack")


def part_of_stack(x: Value, axis: int, start: int, length: int) -> Value | None:
    """The operand of a stack of caches that a slice of it is."""
    if x.node is None or x.node.kind != "concat" or x.node.attrs["axis"] != axis:
        return None
    at = 0
    for operand in x.node.inputs:
        if (at, operand.shape[axis]) == (start, length):
            return operand if _holds_cache(operand) else None
        at += operand.shape[axis]
    return None


def _holds_cache(x: Value) -> bool:
    while x.node is not None and x.node.kind in ("reshape", "concat"):
        x = x.node.inputs[0]
    return x.source == "CACHE"


def unstacked(b: Builder, x: Value, depth: int) -> list[Value] | None:
    """The parts of a stacked result, in order; None where it was not put together from them."""
    if depth == 0:
        return [x]
    operands = [x]
    while any(v.shape[0] > 1 for v in operands):
        opened: list[Value] = []
        for v in operands:
            if v.shape[0] == 1:
                opened.append(v)
            elif v.node is not None and v.node.kind == "concat" and v.node.attrs["axis"] == 0:
                opened += v.node.inputs
            else:
                return None
        operands = opened
    found: list[Value] = []
    for v in operands:
        shape, labels = v.shape[1:], v.labels[1:]
        one = v
        while one.node is not None and one.node.kind == "reshape" and one.shape != shape:
            one = one.node.inputs[0]
        if one.shape != shape:
            one = b.reshape(v, shape, labels, "part")
        inner = unstacked(b, one, depth - 1)
        if inner is None:
            return None
        found += inner
    return found


def split_arrays(arrays: Mapping[str, np.ndarray], stacks: Stacks) -> dict[str, np.ndarray]:
    """Stacked tensors by their parts, others as they are."""
    out: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        parts = stacks.get(name)
        if parts is None:
            out[name] = array
            continue
        depth = parts[0].count(",", parts[0].rindex("[")) + 1
        whole = array.reshape(-1, *array.shape[depth:]) if len(parts) else array
        out.update(zip(parts, whole, strict=True))
    return out


def join_arrays(arrays: Mapping[str, np.ndarray], stacks: Stacks) -> dict[str, np.ndarray]:
    """The opposite of `split_arrays`; the order of names is kept."""
    owner = {part: name for name, parts in stacks.items() for part in parts}
    out: dict[str, np.ndarray] = {}
    for name in arrays:
        whole = owner.get(name)
        if whole is None:
            out[name] = arrays[name]
        elif whole not in out:
            parts = stacks[whole]
            last = [int(n) + 1 for n in parts[-1][parts[-1].rindex("[") + 1 : -1].split(",")]
            array = np.stack([arrays[p] for p in parts])
            out[whole] = array.reshape(*last, *array.shape[1:])
    return out
