"""Control flow that is decided when compiling: branches taken, loops unrolled, sequences of
tensors whose length is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import known
from meshc.frontend.labels import FIXED, MIXED

if TYPE_CHECKING:
    from meshc.frontend.importer import Importer

MOST = 4096  # turns that a loop is unrolled for


@dataclass(frozen=True)
class Items:
    """A sequence of tensors."""

    values: tuple[Value, ...]


@dataclass(frozen=True)
class Scope:
    """Where a node with subgraphs stands: the names it sees, opset versions by domain, the prefix
    of names, and the attributes of the function around it."""

    env: dict[str, Any]
    opsets: dict[str, int]
    prefix: str
    attrs: dict[str, Any]


def _body(imp: Importer, graph: Any, scope: Scope, given: dict[str, Any], tag: str) -> list[Any]:
    """Results of a subgraph, which sees all names around it."""
    inner = dict(scope.env)
    prefix = f"{scope.prefix}{tag}/"
    for tensor in graph.initializer:
        inner[tensor.name] = imp.tensor(tensor, prefix + tensor.name)
    inner.update(given)
    wanted = [o.name for o in graph.output]
    for name in wanted:  # what another turn, or the graph around it, calls by the same name
        if any(name in node.output for node in graph.node):
            inner.pop(name, None)
    imp.nodes(list(graph.node), inner, wanted, scope.opsets, prefix, scope.attrs)
    return [imp.look(inner, n) for n in wanted]


def branch(imp: Importer, node: Any, attrs: dict[str, Any], x: Sequence[Any], scope: Scope) -> Any:
    """An If whose condition is known is replaced by its branch."""
    condition = x[0]
    if not isinstance(condition, Value) or condition.const is None:
        raise Unsupported("with a condition that depends on run-time data")
    taken = "then_branch" if condition.const.array().reshape(-1)[0] else "else_branch"
    return _body(imp, attrs[taken], scope, {}, node.name or taken)


def loop(imp: Importer, node: Any, attrs: dict[str, Any], x: Sequence[Any], scope: Scope) -> Any:
    """A Loop whose number of turns is known is unrolled."""
    b, body = imp.builder, attrs["body"]
    limit, go = (x[0] if x else None), (x[1] if len(x) > 1 else None)
    for value, what in ((limit, "trip count"), (go, "condition")):
        if value is not None and value.const is None:
            raise Unsupported(f"with a {what} that depends on run-time data")
    turns = None if limit is None else int(limit.const.array().reshape(-1)[0])
    carried = list(x[2:])
    names = [i.name for i in body.input]
    scans: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    turn, loose = 0, limit is not None and not limit.const.fixed
    keep = go is None or bool(go.const.array().reshape(-1)[0])
    while keep and (turns is None or turn < turns):
        if turn >= MOST:
            raise Unsupported(f"of more than {MOST} turns")
        number = b.constant(np.asarray(turn, np.int64), f"{scope.prefix}turn{turn}")
        flag = b.constant(np.asarray(True), f"{scope.prefix}go")
        given = dict(zip(names, [number, flag, *carried], strict=False))
        out = _body(imp, body, scope, given, f"{node.name or node.output[0]}/{turn}")
        if any(not isinstance(v, Value | Items) for v in out):
            return [imp.poison] * len(node.output)
        if out[0].const is None:
            raise Unsupported("with a condition that depends on run-time data")
        keep, loose = bool(out[0].const.array().reshape(-1)[0]), loose or not out[0].const.fixed
        carried = out[1 : 1 + len(carried)]
        for kept, value in zip(scans, out[1 + len(carried) :], strict=True):
            kept.append(value)
        turn += 1
    stacked = [_stacked(b, kept, MIXED if loose else FIXED) for kept in scans]
    results = [*carried, *stacked]
    if loose and any(isinstance(v, Value) and v.const is None for v in results):
        raise Unsupported("whose number of turns depends on the number of tokens, a recurrence")
    return results


def scan(imp: Importer, node: Any, attrs: dict[str, Any], x: Sequence[Any], scope: Scope) -> Any:
    """A Scan over a dimension that the model file fixes is unrolled."""
    b, body, count = imp.builder, attrs["body"], int(attrs["num_scan_inputs"])
    if scope.opsets.get("", 1) < 9:
        raise Unsupported("of an opset before 9")
    state, given = list(x[: len(x) - count]), list(x[len(x) - count :])
    outs = len(body.output) - len(state)
    axes = list(attrs.get("scan_input_axes", [0] * count))
    back = list(attrs.get("scan_input_directions", [0] * count))
    out_axes = list(attrs.get("scan_output_axes", [0] * outs))
    out_back = list(attrs.get("scan_output_directions", [0] * outs))
    first = _counted(axes[0], given[0].rank)
    turns = given[0].shape[first]
    if given[0].labels[first] != FIXED and any(v.const is None for v in x):
        raise Unsupported("over tokens, a recurrence")
    names = [i.name for i in body.input]
    scans: list[list[Any]] = [[] for _ in range(outs)]
    for turn in range(turns):
        slices = []
        for v, axis, reverse in zip(given, axes, back, strict=True):
            b.scope = b.source = f"{scope.prefix}{node.name or node.output[0]}/{turn}"
            axis = _counted(axis, v.rank)
            at = turns - 1 - turn if reverse else turn
            one = b.slice(v, axis, at, 1, FIXED, suffix="item")
            kept = [i for i in range(v.rank) if i != axis]
            flat = b.reshape(one, [v.shape[i] for i in kept], [v.labels[i] for i in kept])
            b.settle()
            slices.append(flat)
        out = _body(imp, body, scope, dict(zip(names, [*state, *slices], strict=True)),
                    f"{node.name or node.output[0]}/{turn}")  # fmt: skip
        if any(not isinstance(v, Value) for v in out):
            return [imp.poison] * len(node.output)
        state = out[: len(state)]
        for kept_values, value in zip(scans, out[len(state) :], strict=True):
            kept_values.append(value)
    ordered = [s[::-1] if r else s for s, r in zip(scans, out_back, strict=True)]
    return [*state, *(_stacked(b, s, FIXED, a) for s, a in zip(ordered, out_axes, strict=True))]


def _counted(axis: int, rank: int) -> int:
    """An axis counted from the first dimension on."""
    if not -rank <= axis < rank:
        raise Unsupported(f"with axis {axis} where there are {rank} dimensions")
    return axis % rank


def _stacked(b: Builder, values: list[Any], label: Any, axis: int = 0) -> Value:
    """The results of all turns along a new axis, counted among those of the whole."""
    if not values:
        raise Unsupported("of no turns with results of every turn")
    b.made = []
    rank = values[0].rank + 1
    axis = _counted(axis, rank)
    wide = [b.insert_axis(v, axis, "turn") for v in values]
    out = wide[0] if len(wide) == 1 else b.concat(wide, axis, "turns")
    if label != FIXED:
        out.labels = (label, *out.labels[1:])
    return out


CONTROL: dict[str, Callable[..., Any]] = {"If": branch, "Loop": loop, "Scan": scan}


# -- sequences and optionals --------------------------------------------------------------------


def _index(x: Sequence[Any], i: int, size: int, default: int) -> int:
    if i >= len(x) or x[i] is None:
        return default
    at = int(known(x, i).array().reshape(-1)[0])
    if not -size <= at <= size:
        raise Unsupported(f"at position {at} of {size} tensors")
    return at + size if at < 0 else at


def _items(x: Sequence[Any]) -> tuple[Value, ...]:
    if not isinstance(x[0], Items):
        raise Unsupported("on what is no sequence")
    return x[0].values


def _at(b: Builder, a: dict[str, Any], x: Sequence[Any]) -> Any:
    items = _items(x)
    at = _index(x, 1, len(items), 0)
    if at >= len(items):
        raise Unsupported(f"at position {at} of {len(items)} tensors")
    return items[at]


def _insert(b: Builder, a: dict[str, Any], x: Sequence[Any]) -> Any:
    items = _items(x)
    at = _index(x, 2, len(items), len(items))
    return Items((*items[:at], x[1], *items[at:]))


def _erase(b: Builder, a: dict[str, Any], x: Sequence[Any]) -> Any:
    items = _items(x)
    at = _index(x, 1, len(items), len(items) - 1)
    return Items((*items[:at], *items[at + 1 :]))


def _joined(b: Builder, a: dict[str, Any], x: Sequence[Any]) -> Any:
    items, axis = list(_items(x)), int(a["axis"])
    if not items:
        raise Unsupported("of no tensors")
    if a.get("new_axis", 0):
        axis = _counted(axis, items[0].rank + 1)
        items = [b.insert_axis(v, axis, "item") for v in items]
    return items[0] if len(items) == 1 else b.concat(items, _counted(axis, items[0].rank), "joined")


def _split(b: Builder, a: dict[str, Any], x: Sequence[Any]) -> Any:
    v = x[0]
    axis = _counted(int(a.get("axis", 0)), v.rank)
    size, label = v.shape[axis], v.labels[axis]
    drop = False
    if len(x) < 2 or x[1] is None:
        parts, drop = [1] * size, not a.get("keepdims", 1)
        fixed = label == FIXED
    else:
        const = known(x, 1)
        array = const.array()
        fixed = label == FIXED and const.fixed
        n = int(array.reshape(-1)[0])
        parts = [int(p) for p in array] if array.ndim else [
            min(n, size - i) for i in range(0, size, n)]  # fmt: skip
    if not fixed and v.const is None:
        raise Unsupported("into a number of tensors that depends on the workload")
    found, start = [], 0
    for i, n in enumerate(parts):
        one = b.slice(v, axis, start, n, FIXED if fixed else MIXED, suffix=f"part{i}")
        if drop:
            kept = [d for d in range(v.rank) if d != axis]
            one = b.reshape(one, [v.shape[d] for d in kept], [v.labels[d] for d in kept])
        found.append(one)
        start += n
    return Items(tuple(found))


def _count(b: Builder, a: dict[str, Any], x: Sequence[Any]) -> Any:
    return b.constant(np.asarray(len(_items(x)), np.int64), f"{b.scope}.count")


def _has(b: Builder, a: dict[str, Any], x: Sequence[Any]) -> Any:
    return b.constant(np.asarray(bool(x) and x[0] is not None), f"{b.scope}.there")


def _there(b: Builder, a: dict[str, Any], x: Sequence[Any]) -> Any:
    if not x or x[0] is None:
        raise Unsupported("of an optional without a value")
    return x[0]


SEQUENCES: dict[str, Callable[..., Any]] = {
    "SequenceConstruct": lambda b, a, x: Items(tuple(x)),
    "SequenceEmpty": lambda b, a, x: Items(()),
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": _count,
    "ConcatFromSequence": _joined,
    "SplitToSequence": _split,
    "Optional": lambda b, a, x: x[0] if x else None,
    "OptionalHasElement": _has,
    "OptionalGetElement": _there,
}
