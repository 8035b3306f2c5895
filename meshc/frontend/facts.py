"""What can be proven about integers that are only known at run time."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from meshc.frontend.builder import Node, Value
from meshc.frontend.labels import Label, product

SAME = ("reshape", "transpose", "slice", "expand")
_DEEP = 24  # ops that a proof looks through


def step_of(node: Node | None, *names: str) -> tuple[tuple[str, object], ...] | None:
    """Arguments of a map's only step if it is one of these functions."""
    if node is None or node.kind != "map" or len(node.attrs["steps"]) != 1:
        return None
    fn, args, _ = node.attrs["steps"][0]
    return tuple(args) if fn in names else None


def nonnegative(v: Value, depth: int = _DEEP) -> bool:
    """Whether no element can be below zero."""
    if v.const is not None:
        return not v.const.outside and bool((v.const.array() >= 0).all())
    node = v.node
    if v.dtype in ("bool", "uint8", "uint16", "uint32", "uint64"):
        return True
    if node is None or depth == 0:
        return False
    if node.kind == "topk" and node.attrs["result"] == "indices":
        return True
    if node.kind in (*SAME, "concat", "scan", "topk"):
        return all(nonnegative(i, depth - 1) for i in node.inputs)
    if node.kind == "reduce":
        return node.attrs["fn"] in ("sum", "max", "min", "mean", "prod") and nonnegative(
            node.inputs[0], depth - 1
        )
    if node.kind == "gather":  # a lane without the row contributes zero
        return nonnegative(node.inputs[0], depth - 1)
    if node.kind == "scatter":
        return nonnegative(node.inputs[0], depth - 1) and nonnegative(node.inputs[2], depth - 1)
    if node.kind == "map":
        return _map_nonnegative(node, depth)
    return False


def _map_nonnegative(node: Node, depth: int) -> bool:
    done: list[bool] = []
    for fn, args, dtype in node.attrs["steps"]:
        known = []
        for kind, a in args:
            if kind == "in":
                known.append(nonnegative(node.inputs[a], depth - 1))
            else:
                known.append(done[a] if kind == "step" else a >= 0)
        if dtype == "bool":
            done.append(True)
        elif fn == "max":
            done.append(any(known))
        elif fn == "where":
            done.append(all(known[1:]))
        else:
            fine = ("add", "mul", "div", "cast", "min", "floor", "ceil", "round", "abs")
            done.append(fn == "abs" or (fn in fine and all(known)))
    return done[-1]


@dataclass(frozen=True)
class Prefix:
    """The sum of the first `count` elements of `source` [n]; source None: of nothing."""

    source: Value | None
    count: int

    def same(self, other: Prefix) -> bool:
        return self.count == other.count and (self.count == 0 or self.source is other.source)


def prefix(v: Value) -> Prefix | None:
    """The prefix sum that an integer is, if it is known to be one."""
    if v.const is not None:
        zero = v.const.size == 1 and v.const.fixed and int(v.const.array().reshape(-1)[0]) == 0
        return Prefix(None, 0) if zero else None
    at, length = 0, 1
    for _ in range(_DEEP):
        node = v.node
        if node is None:
            return None
        if node.kind == "reshape" or step_of(node, "cast") is not None:
            if node.kind == "map" and v.dtype not in ("int32", "int64", "fp32", "fp64"):
                return None
            v = node.inputs[0]
            continue
        if node.kind == "slice" and node.attrs["axis"] == 0 and v.rank == 1:
            at, length = at * node.attrs["step"] + node.attrs["start"], length
            v = node.inputs[0]
            continue
        break
    node = v.node
    if node is None or node.kind != "scan" or v.rank != 1 or node.attrs["reverse"]:
        return None
    source = node.inputs[0]
    while step_of(source.node, "cast") is not None and source.node is not None:
        source = source.node.inputs[0]
    return Prefix(source, at if node.attrs["exclusive"] else at + 1)


def total(v: Value, depth: int = _DEEP) -> tuple[int, Label] | None:
    """The sum of all elements, where it is the same whatever the data are, and its label."""
    if v.const is not None:
        if v.const.size and v.const.array().any():
            return None
        return 0, 0
    node = v.node
    if node is None or depth == 0:
        return None
    if node.kind == "reshape" or step_of(node, "cast") is not None:
        if node.kind == "map" and (v.dtype == "bool" or node.inputs[0].dtype == "bool"):
            return None
        return total(node.inputs[0], depth - 1)
    if node.kind == "scatter" and node.attrs["reduction"] == "add":
        return _scattered_total(node, depth)
    if node.kind == "reduce" and node.attrs["fn"] == "sum":
        return _counted(node)
    return None


def _scattered_total(node: Node, depth: int) -> tuple[int, Label] | None:
    """Ones added up: as many as there are. ONNX allows no index out of range."""
    data, indices, updates = node.inputs
    old, ones = total(data, depth - 1), updates.const
    if old != (0, 0) or ones is None or not (ones.array() == 1).all():
        return None
    if not _within(indices, data.shape[node.attrs["batch"]]):
        return None
    return prod(updates.shape), product(updates.labels, updates.shape)


def _within(v: Value, size: int) -> bool:
    """Whether all indices are 0..size - 1: chosen by a topk over as many, or clipped."""
    for _ in range(_DEEP):
        node = v.node
        if node is None:
            return False
        if node.kind == "topk" and node.attrs["result"] == "indices":
            return bool(node.inputs[0].shape[node.attrs["axis"]] <= size)
        if node.kind == "map":
            return _clipped(node, size)
        if node.kind not in SAME:
            return False
        v = node.inputs[0]
    return False


def _clipped(node: Node, size: int) -> bool:
    """Wrapped indices are as good as what they wrap; a clip into the range decides."""
    steps = node.attrs["steps"]
    if [s[0] for s in steps] == ["less", "add", "where"]:
        return _within(node.inputs[0], size)
    args = step_of(node, "min")
    if args is not None:
        bounds = [a for kind, a in args if kind == "const"]
        inner = node.inputs[0]
        return len(bounds) == 1 and 0 <= bounds[0] < size and nonnegative(inner)  # type: ignore[operator]
    if step_of(node, "cast") is not None:
        return _within(node.inputs[0], size)
    return False


def _counted(node: Node) -> tuple[int, Label] | None:
    """How often each number occurs among indices: one count for every index."""
    v = node.inputs[0]
    while step_of(v.node, "cast") is not None and v.node is not None:
        v = v.node.inputs[0]
    maker = v.node
    if step_of(maker, "where") == (("in", 0), ("const", 1), ("const", 0)) and maker is not None:
        maker = maker.inputs[0].node
    args = step_of(maker, "equal")
    if maker is None or args is None:
        return None
    if [a[0] for a in args] != ["in", "in"]:
        return None
    pair = [maker.inputs[int(str(a))] for _, a in args]
    numbers = next((p for p in pair if p.const is not None), None)
    places = next((p for p in pair if p.const is None), None)
    if numbers is None or places is None or numbers.const is None:
        return None
    size = prod(numbers.shape)
    if not np.array_equal(numbers.const.array().reshape(-1), np.arange(size)):
        return None
    if prod(places.shape) * size != prod(v.shape) or not _within(places, size):
        return None
    return prod(places.shape), product(places.labels, places.shape)
