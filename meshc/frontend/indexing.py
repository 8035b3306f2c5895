"""Building blocks for data that run-time indices pick or place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.facts import nonnegative
from meshc.frontend.folding import Const
from meshc.frontend.labels import FIXED, MIXED, Label, product


def topk(
    b: Builder,
    x: Value,
    axis: int,
    k: int,
    label: Label,
    result: str,
    largest: bool = True,
    last: bool = False,
) -> Value:
    """The k best along `axis`: "values", or "indices" in int64."""
    shape, labels = list(x.shape), list(x.labels)
    shape[axis], labels[axis] = k, label
    attrs = {"axis": axis, "largest": largest, "last": last, "result": result}
    dtype = x.dtype if result == "values" else "int64"
    return b.emit("topk", [x], attrs, shape, dtype, labels, result)


def scan(b: Builder, x: Value, axis: int, exclusive: bool, reverse: bool) -> Value:
    """Running sums along `axis`."""
    attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    return b.emit("scan", [x], attrs, x.shape, x.dtype, x.labels, "scan")


def pick(b: Builder, data: Value, indices: Value, axis: int, batch: int, suffix: str = "") -> Value:
    """A gather whose first `batch` dimensions are shared."""
    shape = (*data.shape[:axis], *indices.shape[batch:], *data.shape[axis + 1 :])
    labels = (*data.labels[:axis], *indices.labels[batch:], *data.labels[axis + 1 :])
    attrs = {"axis": axis, **({"batch": batch} if batch else {})}
    return b.emit("gather", [data, indices], attrs, shape, data.dtype, labels, suffix)


def scatter(
    b: Builder,
    data: Value,
    indices: Value,
    updates: Value,
    batch: int,
    reduction: str,
    suffix: str = "",
) -> Value:
    """data [B…, R, C…] with updates [B…, M, C…] at rows indices [B…, M]; indices outside are
    left out."""
    wanted = (*data.shape[:batch], indices.shape[batch], *data.shape[batch + 1 :])
    if updates.shape != wanted or indices.shape != wanted[: batch + 1]:
        raise Unsupported(
            f"with updates {list(updates.shape)} for indices {list(indices.shape)} of data "
            f"{list(data.shape)}"
        )
    attrs = {"batch": batch, "reduction": reduction}
    operands = [data, indices, updates]
    return b.emit("scatter", operands, attrs, data.shape, data.dtype, data.labels, suffix)


def experts(
    b: Builder,
    rows: Value,
    weights: Value,
    ids: Value,
    transpose_b: bool,
    suffix: str = "",
    dtype: str = "",
    members: tuple[int, ...] = (),
    among: int = 0,
) -> Value:
    """rows [S, K] times the weights [E, K, N] (or [E, N, K]) of each row's expert ids [S].

    members, among: the experts' numbers among how many, where the weights are not of all.
    """
    k, n = (2, 1) if transpose_b else (1, 2)
    if rows.shape[1] != weights.shape[k] or ids.shape != rows.shape[:1]:
        raise Unsupported(
            f"with rows {list(rows.shape)}, experts' weights {list(weights.shape)} and ids "
            f"{list(ids.shape)}"
        )
    shape, labels = (rows.shape[0], weights.shape[n]), (rows.labels[0], weights.labels[n])
    attrs: dict[str, Any] = {"transpose_b": transpose_b}
    if members:
        attrs |= {"members": members, "among": among}
    return b.emit(
        "experts", [rows, weights, ids], attrs, shape, dtype or rows.dtype, labels, suffix
    )


def iota(b: Builder, n: int, label: Label, dtype: str = "int64") -> Value:
    """0, 1, …, n - 1."""
    origin = FIXED if label == FIXED else MIXED
    array = np.arange(n).astype(np.int32 if dtype == "int32" else np.int64)
    return b.once(("iota", n, label, dtype), lambda: Const.of(array, dtype, origin), (label,))


def wrapped(b: Builder, indices: Value, size: int, label: Label, suffix: str = "") -> Value:
    """Indices with negative ones counted from the end of `size` elements."""
    if nonnegative(indices):
        return indices
    if label == FIXED:
        steps = [
            ("less", (("in", 0), 0), "bool"),
            ("add", (("in", 0), size), indices.dtype),
            ("where", (("step", 0), ("step", 1), ("in", 0)), indices.dtype),
        ]
        return b.map(steps, [indices], suffix or "wrapped")
    whole = b.ints([size], [label])
    whole = whole if indices.dtype == "int64" else b.cast(whole, indices.dtype)
    if not indices.rank:
        whole = b.reshape(whole, (), ())
    steps = [
        ("less", (("in", 0), 0), "bool"),
        ("add", (("in", 0), ("in", 1)), indices.dtype),
        ("where", (("step", 0), ("step", 1), ("in", 0)), indices.dtype),
    ]
    return b.map(steps, [indices, whole], suffix or "wrapped")


def linear(
    b: Builder, places: Value, sizes: Sequence[int], labels: Sequence[Label], wrap: bool
) -> Value:
    """Places [..., q] in dimensions of these sizes as row-major positions [...].

    wrap: negative coordinates become positive ones even where there is only one.
    """
    lead, depth = places.rank - 1, len(sizes)
    total: Value | None = None
    for i in range(depth):
        one = b.slice(places, lead, i, 1, FIXED, suffix=f"axis{i}") if depth > 1 else places
        at = b.reshape(one, places.shape[:-1], places.labels[:-1], f"place{i}")
        if wrap or depth > 1:
            at = wrapped(b, at, sizes[i], labels[i], f"place{i}.wrapped")
        stride, stride_label = prod(sizes[i + 1 :]), product(labels[i + 1 :], sizes[i + 1 :])
        if stride != 1 or stride_label != FIXED:
            if stride_label == FIXED:
                at = b.apply("mul", at, stride, suffix=f"stride{i}")
            else:
                factor = b.cast(b.ints([stride], [stride_label]), at.dtype)
                factor = factor if at.rank else b.reshape(factor, (), ())
                at = b.apply("mul", at, factor, suffix=f"stride{i}")
        total = at if total is None else b.apply("add", total, at, suffix=f"position{i}")
    assert total is not None
    return total


def merged(b: Builder, x: Value, start: int, stop: int, suffix: str = "") -> Value:
    """Dimensions start..stop - 1 as one (of size one where there are none)."""
    shape = (*x.shape[:start], prod(x.shape[start:stop]), *x.shape[stop:])
    inner = product(x.labels[start:stop], x.shape[start:stop])
    return b.reshape(x, shape, (*x.labels[:start], inner, *x.labels[stop:]), suffix)
