"""Operators that find, pick and place elements by run-time indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshc.errors import InputError
from meshc.frontend import lower_fold
from meshc.frontend.builder import FROZEN, Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, known, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.indexing import iota, linear, merged, pick, scan, scatter, topk, wrapped
from meshc.frontend.labels import FIXED, MIXED, Label

Values = Sequence[Value | None]


def _constant(x: Values) -> bool:
    return all(v is None or v.const is not None for v in x)


def top_k(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Values and indices; of equal elements the first ones, which ONNX Runtime takes too."""
    v = need(x, 0)
    axis = int(call.attr("axis", -1)) % v.rank
    label: Label = FIXED
    if call.opset < 10:
        k = int(call.attr("k"))
    else:
        count = known(x, 1)
        k, label = int(count.array().reshape(-1)[0]), count.origins().reshape(-1)[0]
    if not 0 <= k <= v.shape[axis]:
        raise InputError(
            f"Node '{b.scope}' takes the best {k} of {v.shape[axis]} elements; {FROZEN}"
        )
    largest = bool(call.attr("largest", 1))
    call.ignore("sorted")  # an order is one of those that sorted=0 allows
    names = ("values", "indices")
    return [
        topk(b, v, axis, k, label, name, largest) if call.wants(i) else None
        for i, name in enumerate(names)
    ]


def _best(largest: bool) -> Lowering:
    def lower(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
        v = need(x, 0)
        axis = int(call.attr("axis", 0)) % v.rank
        last = bool(call.attr("select_last_index", 0))
        found = topk(b, v, axis, 1, FIXED, "indices", largest, last)
        if not call.attr("keepdims", 1):
            kept = [i for i in range(v.rank) if i != axis]
            found = b.reshape(found, [v.shape[i] for i in kept], [v.labels[i] for i in kept])
        return [found]

    return lower


def one_hot(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Indices compared with 0, 1, …; those out of range are nowhere."""
    indices, values = need(x, 0), need(x, 2)
    depth = known(x, 1)
    n, label = int(depth.array().reshape(-1)[0]), depth.origins().reshape(-1)[0]
    axis = int(call.attr("axis", -1))
    axis = axis + indices.rank + 1 if axis < 0 else axis
    places = indices if indices.dtype in ("int32", "int64") else b.cast(indices, "int64")
    places = b.insert_axis(wrapped(b, places, n, label), axis, "places")
    own = [1] * places.rank
    own[axis] = n
    labels: list[Label] = [FIXED] * places.rank
    labels[axis] = label
    numbers = b.reshape(iota(b, n, label, places.dtype), own, labels, "numbers")
    here = b.apply("equal", places, numbers, suffix="here")
    if values.const is not None and values.const.fixed:
        off, on = values.const.array().reshape(-1).tolist()
        return [b.apply("where", here, on, off, dtype=values.dtype)]
    off_on = [b.reshape(b.slice(values, 0, i, 1, FIXED), [1] * here.rank, [FIXED] * here.rank)
              for i in range(2)]  # fmt: skip
    return [b.apply("where", here, off_on[1], off_on[0], dtype=values.dtype)]


def cum_sum(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    axis = int(known(x, 1).array().reshape(-1)[0]) % v.rank
    return [scan(b, v, axis, bool(call.attr("exclusive", 0)), bool(call.attr("reverse", 0)))]


def _same(a: Value, c: Value, i: int) -> bool:
    """Whether two values have the same size along dimension i whatever the workload is."""
    return a.shape[i] == c.shape[i] and a.labels[i] == c.labels[i] != MIXED


def _line(b: Builder, v: Value, axis: int) -> Value | None:
    """Indices [M] of a tensor of indices that differ along `axis` alone."""
    others = [i for i in range(v.rank) if i != axis]
    source = v
    while source.node is not None and source.node.kind == "expand":
        source = source.node.inputs[0]
    if (
        source.rank == v.rank
        and source.shape[axis] == v.shape[axis]
        and all(source.shape[i] == 1 and source.labels[i] == FIXED for i in others)
    ):
        return b.reshape(source, (v.shape[axis],), (v.labels[axis],), "rows")
    if v.const is not None and v.const.size and all(v.labels[i] == FIXED for i in others):
        array = np.moveaxis(v.const.array(), axis, 0).reshape(v.shape[axis], -1)
        if (array == array[:, :1]).all():
            origin = FIXED if v.const.fixed else MIXED
            const = Const.of(array[:, 0], v.dtype, origin)
            return b.value(const, f"{b.scope}.rows", (v.labels[axis],))
    return None


def gather_elements(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """A lookup of every line in its own table, along the last dimension."""
    data, indices = need(x, 0), need(x, 1)
    axis = int(call.attr("axis", 0)) % data.rank
    for i in range(data.rank):
        if i != axis and not _same(data, indices, i):
            length, label = indices.shape[i], indices.labels[i]
            data = b.slice(data, i, 0, length, label, suffix=f"part{i}")
    turn = (*(i for i in range(data.rank) if i != axis), axis)
    data, indices = b.transpose(data, turn, "lines"), b.transpose(indices, turn, "places")
    found = pick(b, data, indices, data.rank - 1, data.rank - 1, "picked")
    return [b.transpose(found, np.argsort(turn).tolist(), "turned")]


def gather_nd(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """A lookup in the table of the dimensions that the indices address, made one."""
    data, indices = need(x, 0), need(x, 1)
    batch = int(call.attr("batch_dims", 0))
    depth = indices.shape[-1]
    if indices.labels[-1] != FIXED:
        raise Unsupported("with coordinates whose number depends on the workload")
    inner = slice(batch, batch + depth)
    at = linear(b, indices, data.shape[inner], data.labels[inner], wrap=False)
    table = merged(b, data, batch, batch + depth, "table")
    return [pick(b, table, at, batch, batch)]


def scatter_elements(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Rows at once where the indices are the same along a row, otherwise line by line."""
    how = str(call.attr("reduction", "none"))
    if _constant(x) and how == "none":
        return lower_fold.TABLE["", "ScatterElements"](b, call, x)
    data = need(x, 0)
    axis = int(call.attr("axis", 0)) % data.rank
    return [placed_elements(b, data, need(x, 1), need(x, 2), axis, how)]


def placed_elements(
    b: Builder,
    data: Value,
    indices: Value,
    updates: Value,
    axis: int,
    how: str,
    mask: Value | None = None,
) -> Value:
    """data with updates at indices along `axis`; mask [M]: which of the M along it take part."""
    if indices.shape != updates.shape:
        raise Unsupported(f"with indices {list(indices.shape)} for updates {list(updates.shape)}")
    others = [i for i in range(data.rank) if i != axis and not _same(data, indices, i)]
    return _elements(b, data, indices, updates, axis, how, mask, others)


def _elements(
    b: Builder,
    data: Value,
    indices: Value,
    updates: Value,
    axis: int,
    how: str,
    mask: Value | None,
    shorter: Sequence[int],
) -> Value:
    """shorter: the dimensions along which the indices do not reach the end of the data."""
    if shorter:
        i, n = shorter[0], indices.shape[shorter[0]]
        rest = data.shape[i] - n
        near = b.slice(data, i, 0, n, indices.labels[i], suffix=f"near{i}")
        done = _elements(b, near, indices, updates, axis, how, mask, shorter[1:])
        loose = data.labels[i] != FIXED or indices.labels[i] != FIXED
        far = b.slice(data, i, n, rest, MIXED if loose else FIXED, suffix=f"far{i}")
        return b.concat([done, far], i, f"joined{i}")
    size, label = data.shape[axis], data.labels[axis]
    line = _line(b, indices, axis) if data.rank > 1 else None
    turn = (axis, *(i for i in range(data.rank) if i != axis))
    batch = 0
    if line is None:
        turn = (*turn[1:], axis)
        batch = data.rank - 1
        line = b.transpose(indices, turn, "places")
    at = _counting(b, wrapped(b, line, size, label), mask)
    rows, new = b.transpose(data, turn, "lines"), b.transpose(updates, turn, "updates")
    out = scatter(b, rows, at, new, batch, how, "placed")
    return b.transpose(out, np.argsort(turn).tolist(), "turned")


def _counting(b: Builder, places: Value, mask: Value | None) -> Value:
    """Places [..., M] with -1, which is nowhere, where the mask [M] is false."""
    if mask is None:
        return places
    return b.apply("where", mask, places, -1, dtype=places.dtype, suffix="counting")


def scatter_nd(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Rows of a cache where that is what they are, otherwise rows of the dimensions addressed."""
    indices = need(x, 1)
    how = str(call.attr("reduction", "none"))
    if indices.const is not None and how == "none":
        try:
            return lower_fold.scatter_nd(b, call, x)
        except Unsupported:
            pass
    return [placed_rows(b, need(x, 0), indices, need(x, 2), how)]


def placed_rows(
    b: Builder, data: Value, indices: Value, updates: Value, how: str, mask: Value | None = None
) -> Value:
    """data with updates [..., C…] at coordinates [..., q] of its first dimensions.

    mask [M]: which of the first of the dimensions ... take part.
    """
    depth = indices.shape[-1]
    if indices.labels[-1] != FIXED:
        raise Unsupported("with coordinates whose number depends on the workload")
    if mask is not None and indices.rank != 2:
        raise Unsupported(
            "of rows that run-time data picks, with coordinates of several dimensions"
        )
    at = linear(b, indices, data.shape[:depth], data.labels[:depth], wrap=True)
    table = merged(b, data, 0, depth, "table")
    rows = _counting(b, merged(b, at, 0, at.rank, "rows"), mask)
    new = merged(b, updates, 0, at.rank, "updates")
    done = scatter(b, table, rows, new, 0, how, "placed")
    return b.reshape(done, data.shape, data.labels)


def trilu(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """On run-time data a selection by a constant triangle."""
    if _constant(x):
        return lower_fold.TABLE["", "Trilu"](b, call, x)
    v = need(x, 0)
    k = int(known(x, 1).array().reshape(-1)[0]) if optional(x, 1) is not None else 0
    upper = bool(call.attr("upper", 1))
    rows, cols = v.shape[-2:]
    labels = v.labels[-2:]
    keep = (np.triu if upper else np.tril)(np.ones((rows, cols), bool), k)
    origin = MIXED if any(labels) or not (optional(x, 1) is None or known(x, 1).fixed) else FIXED
    key = ("triangle", rows, cols, k, upper, labels)
    mask = b.once(key, lambda: Const.of(keep, "bool", origin), labels)
    zero = False if v.dtype == "bool" else 0
    return [b.apply("where", mask, v, zero, dtype=v.dtype)]


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "TopK"): top_k,
    ("", "ArgMax"): _best(True),
    ("", "ArgMin"): _best(False),
    ("", "OneHot"): one_hot,
    ("", "CumSum"): cum_sum,
    ("", "GatherElements"): gather_elements,
    ("", "GatherND"): gather_nd,
    ("", "ScatterElements"): scatter_elements,
    ("", "ScatterND"): scatter_nd,
    ("", "Trilu"): trilu,
}
