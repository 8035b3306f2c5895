"""Operators that meshc only evaluates on values known when compiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend.builder import FROZEN, Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, known, need
from meshc.frontend.folding import Const
from meshc.frontend.labels import FIXED, MIXED, Label, add, product
from meshc.frontend.standard import REASONS, exists
from meshc.ir.dtypes import NAMES

Values = Sequence[Value | None]
Evaluator = Callable[[Call, list[np.ndarray]], list[Any]]


def constant_of_shape(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    sizes = known(x, 0)
    fill = call.attr("value")
    if fill is None and "value" in call.attrs:
        raise Unsupported("with a value of an element type that is not supported")
    fill = np.zeros(1, np.float32) if fill is None else fill
    shape = tuple(int(n) for n in sizes.array().reshape(-1))
    labels = tuple(sizes.origins().reshape(-1))
    array = np.broadcast_to(fill.reshape(()), shape)
    origin = MIXED if any(labels) else FIXED
    return [b.value(Const.of(array, NAMES[fill.dtype], origin), f"{b.scope}.fill", labels)]


def range_(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    start, limit, delta = (known(x, i) for i in range(3))
    numbers = [c.array().reshape(-1)[0] for c in (start, limit, delta)]
    array = np.arange(*numbers, dtype=start.array().dtype)
    fixed = start.fixed and limit.fixed and delta.fixed
    label: Label = FIXED if fixed else MIXED
    if delta.fixed and numbers[2] == 1 and start.dtype == "int64" and numbers[1] >= numbers[0]:
        low, high = start.origins().reshape(-1)[0], limit.origins().reshape(-1)[0]
        label = add(high, low, int(numbers[1]), int(numbers[0]), -1)
    const = Const.of(array, start.dtype, FIXED if fixed else MIXED)
    return [b.value(const, f"{b.scope}.range", (label,))]


def _eager(run: Evaluator) -> Lowering:
    """Evaluate at once; the result depends on the workload if an operand does."""

    def lower(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
        if any(v is not None and v.const is None for v in x):
            raise Unsupported("on run-time data")
        consts = [v.const if v is not None else None for v in x]
        try:
            results = run(call, [c.array() if c is not None else None for c in consts])  # type: ignore[misc]
        except (IndexError, ValueError) as error:
            raise InputError(
                f"Node '{b.scope}' ({call.op}) cannot be evaluated ({error}); {FROZEN}"
            ) from None
        fixed = all(c is None or c.fixed for c in consts)
        loose = any(any(v.labels) for v in x if v is not None)
        origin = FIXED if fixed and not loose else MIXED
        out: list[Value | None] = []
        for i, r in enumerate(results):
            array = np.asarray(r)
            const = Const.of(array, NAMES[array.dtype], origin)
            out.append(b.value(const, f"{b.scope}.out{i}"))
        return out

    return lower


def _gather_nd(call: Call, x: list[np.ndarray]) -> list[Any]:
    data, indices = x
    batch = int(call.attr("batch_dims", 0))
    if batch:
        raise Unsupported("with batch_dims")
    return [data[tuple(np.moveaxis(indices, -1, 0))]]


def gather_nd(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """On run-time data at known places: one gather from the flattened dimensions."""
    data = need(x, 0)
    if data.const is not None:
        return _eager(_gather_nd)(b, call, x)
    places = known(x, 1)
    if call.attr("batch_dims", 0):
        raise Unsupported("with batch_dims")
    indices = places.array()
    depth = indices.shape[-1]
    sizes, labels = data.shape[:depth], data.labels[:depth]
    flat = np.ravel_multi_index(
        tuple(np.moveaxis(indices % np.asarray(sizes), -1, 0)), sizes
    ).astype(np.int64)
    rows = b.reshape(
        data,
        (int(np.prod(sizes)), *data.shape[depth:]),
        (product(labels, sizes), *data.labels[depth:]),
        "rows",
    )
    where = b.value(
        Const.of(flat, "int64", FIXED if places.fixed else MIXED),
        f"{b.scope}.places",
        need(x, 1).labels[:-1],
    )
    return [b.gather(rows, where, 0)]


def _gather_elements(call: Call, x: list[np.ndarray]) -> list[Any]:
    return [np.take_along_axis(x[0], x[1], axis=int(call.attr("axis", 0)))]


def _scatter_nd(call: Call, x: list[np.ndarray]) -> list[Any]:
    if call.attr("reduction", "none") != "none":
        raise Unsupported("with a reduction")
    out = x[0].copy()
    out[tuple(np.moveaxis(x[1], -1, 0))] = x[2]
    return [out]


def scatter_nd(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """On run-time data only as a write of neighbouring rows (a cache of fixed length)."""
    data, updates = need(x, 0), need(x, 2)
    if data.const is not None and updates.const is not None:
        return _eager(_scatter_nd)(b, call, x)
    if call.attr("reduction", "none") != "none":
        raise Unsupported("with a reduction")
    indices = known(x, 1).array()
    rows = indices.reshape(-1)
    first = int(rows[0]) if rows.size else 0
    if indices.ndim != 2 or indices.shape[1] != 1 or (rows != first + np.arange(rows.size)).any():
        raise Unsupported("on run-time data at rows that are not neighbours")
    return [write_rows(b, data, updates, 0, first)]


def write_rows(b: Builder, data: Value, new: Value, axis: int, start: int) -> Value:
    """`data` with `new` written over it from `start` on along `axis`."""
    data = b.sized(data, new)
    end = start + new.shape[axis]
    size = data.shape[axis]
    if end > size:
        raise InputError(
            f"Node '{b.scope}' writes tokens {start} to {end - 1} into a cache of {size}; lower "
            "--context or --prompt, or raise --max-context."
        )
    before = b.slice(data, axis, 0, start, MIXED, suffix="before", exact=False)
    after = b.slice(data, axis, end, size - end, MIXED, suffix="behind", exact=False)
    out = b.concat([before, new, after], axis)
    out.labels = data.labels
    return out


def _scatter_elements(call: Call, x: list[np.ndarray]) -> list[Any]:
    if call.attr("reduction", "none") != "none":
        raise Unsupported("with a reduction")
    out = x[0].copy()
    np.put_along_axis(out, x[1], x[2], axis=int(call.attr("axis", 0)))
    return [out]


def _cumsum(call: Call, x: list[np.ndarray]) -> list[Any]:
    if call.attr("exclusive", 0) or call.attr("reverse", 0):
        raise Unsupported("exclusive or reverse")
    return [np.cumsum(x[0], axis=int(x[1].reshape(-1)[0])).astype(x[0].dtype)]


def _trilu(call: Call, x: list[np.ndarray]) -> list[Any]:
    k = int(x[1].reshape(-1)[0]) if len(x) > 1 and x[1] is not None else 0
    return [np.triu(x[0], k) if call.attr("upper", 1) else np.tril(x[0], k)]


def _nonzero(call: Call, x: list[np.ndarray]) -> list[Any]:
    return [np.stack(np.nonzero(x[0])).astype(np.int64)]


def _arg(fn: str) -> Evaluator:
    def run(call: Call, x: list[np.ndarray]) -> list[Any]:
        axis, keep = int(call.attr("axis", 0)), bool(call.attr("keepdims", 1))
        return [getattr(np, fn)(x[0], axis=axis, keepdims=keep).astype(np.int64)]

    return run


def _reference(call: Call, x: list[np.ndarray]) -> list[Any]:
    """Any other standard operator, by ONNX's own reference implementation."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    names = [f"i{i}" if v is not None else "" for i, v in enumerate(x)]
    outputs = [f"o{i}" if used else "" for i, used in enumerate(call.used)]
    node = helper.make_node(call.op, names, outputs, domain=call.domain)
    node.attribute.extend(call.extra.get("protos", ()))
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), list(v.shape))
        for n, v in zip(names, x, strict=True)
        if v is not None
    ]
    graph = helper.make_graph(
        [node], "fold", infos, [helper.make_empty_tensor_value_info(o) for o in outputs if o]
    )
    opsets = [helper.make_opsetid(call.domain, call.opset)]
    model = helper.make_model(graph, opset_imports=opsets)
    feeds = {n: v for n, v in zip(names, x, strict=True) if v is not None}
    values = iter(ReferenceEvaluator(model).run(None, feeds))
    return [next(values) if o else np.zeros(0, np.float32) for o in outputs]


def reference(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Fold a node that has no lowering; raises Unsupported where that is impossible."""
    if call.domain or any(v is not None and v.const is None for v in x):
        raise Unsupported("")
    if call.op.startswith(("Random", "Bernoulli", "Multinomial")):
        raise Unsupported(REASONS[call.domain, call.op])
    if not exists(call.op, call.opset):
        raise Unsupported(f"in operator set {call.opset}" if exists(call.op) else "")
    call.ignore(*call.attrs)
    try:
        return _eager(_reference)(b, call, x)
    except (Unsupported, InputError):
        raise
    except Exception as error:
        raise Unsupported(f"on these constants ({type(error).__name__})") from None


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "ConstantOfShape"): constant_of_shape,
    ("", "Range"): range_,
    ("", "GatherND"): gather_nd,
    ("", "GatherElements"): _eager(_gather_elements),
    ("", "ScatterND"): scatter_nd,
    ("", "ScatterElements"): _eager(_scatter_elements),
    ("", "CumSum"): _eager(_cumsum),
    ("", "Trilu"): _eager(_trilu),
    ("", "NonZero"): _eager(_nonzero),
    ("", "ArgMax"): _eager(_arg("argmax")),
    ("", "ArgMin"): _eager(_arg("argmin")),
}
