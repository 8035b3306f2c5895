"""Operators that meshc only evaluates on values known when compiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, known
from meshc.frontend.folding import FIXED, MIXED, NEW, PAST, TOTAL, Const
from meshc.ir.dtypes import NAMES

Values = Sequence[Value | None]
Evaluator = Callable[[Call, list[np.ndarray]], list[Any]]


def constant_of_shape(b: Builder, call: Call, x: Values) -> list[Value | None]:
    sizes = known(x, 0)
    fill = call.attr("value")
    fill = np.zeros(1, np.float32) if fill is None else fill
    shape = tuple(int(n) for n in sizes.array().reshape(-1))
    labels = tuple(int(n) for n in sizes.origins().reshape(-1))
    array = np.broadcast_to(fill.reshape(()), shape)
    origin = MIXED if any(labels) else FIXED
    return [b.value(Const.of(array, NAMES[fill.dtype], origin), f"{b.scope}.fill", labels)]


def range_(b: Builder, call: Call, x: Values) -> list[Value | None]:
    start, limit, delta = (known(x, i) for i in range(3))
    numbers = [c.array().reshape(-1)[0] for c in (start, limit, delta)]
    array = np.arange(*numbers, dtype=start.array().dtype)
    fixed = start.fixed and limit.fixed and delta.fixed
    label = FIXED if fixed else MIXED
    if delta.fixed and numbers[2] == 1:
        ends = (int(start.origins().max(initial=0)), int(limit.origins().max(initial=0)))
        if start.fixed and numbers[0] == 0:
            label = ends[1]
        elif ends == (PAST, TOTAL):
            label = NEW
    const = Const.of(array, start.dtype, FIXED if fixed else MIXED)
    return [b.value(const, f"{b.scope}.range", (label,))]


def _eager(run: Evaluator) -> Lowering:
    """Evaluate at once; the result depends on the workload if an operand does."""

    def lower(b: Builder, call: Call, x: Values) -> list[Value | None]:
        if any(v is not None and v.const is None for v in x):
            raise Unsupported("on run-time data")
        consts = [v.const if v is not None else None for v in x]
        try:
            results = run(call, [c.array() if c is not None else None for c in consts])  # type: ignore[misc]
        except (IndexError, ValueError) as error:
            raise InputError(
                f"Node '{b.scope}' ({call.op}) cannot be evaluated: {error}; the graph is frozen to "
                "other sizes, so give the batch, prompt and context that it was exported with."
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


def _gather_elements(call: Call, x: list[np.ndarray]) -> list[Any]:
    return [np.take_along_axis(x[0], x[1], axis=int(call.attr("axis", 0)))]


def _scatter_nd(call: Call, x: list[np.ndarray]) -> list[Any]:
    if call.attr("reduction", "none") != "none":
        raise Unsupported("with a reduction")
    out = x[0].copy()
    out[tuple(np.moveaxis(x[1], -1, 0))] = x[2]
    return [out]


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


def reference(b: Builder, call: Call, x: Values) -> list[Value | None]:
    """Fold a node that has no lowering; raises Unsupported where that is impossible."""
    if call.domain or any(v is not None and v.const is None for v in x):
        raise Unsupported("")
    if call.op.startswith(("Random", "Bernoulli", "Multinomial")):
        raise Unsupported("")
    try:
        return _eager(_reference)(b, call, x)
    except (Unsupported, InputError):
        raise
    except Exception as error:
        raise Unsupported(f"on these constants ({type(error).__name__})") from None


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "ConstantOfShape"): constant_of_shape,
    ("", "Range"): range_,
    ("", "GatherND"): _eager(_gather_nd),
    ("", "GatherElements"): _eager(_gather_elements),
    ("", "ScatterND"): _eager(_scatter_nd),
    ("", "ScatterElements"): _eager(_scatter_elements),
    ("", "CumSum"): _eager(_cumsum),
    ("", "Trilu"): _eager(_trilu),
    ("", "NonZero"): _eager(_nonzero),
    ("", "ArgMax"): _eager(_arg("argmax")),
    ("", "ArgMin"): _eager(_arg("argmin")),
}
