"""The slow meaning of a Graph: whole tensors in numpy, one op after the other.

Accumulation is float32; every op's result, and every step of a map, is rounded to its dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf
from typing import Any

import numpy as np

from meshc.ir.dtypes import NUMPY
from meshc.ir.graph import Graph, Op

_HALF = tuple(NUMPY[n] for n in ("fp16", "bf16", "fp8e4m3fn", "fp8e4m3fnuz", "fp8e5m2",
                                "fp8e5m2fnuz"))  # fmt: skip


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) if x.dtype in _HALF else x


def interpret(graph: Graph, data: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs by the model's names. feeds: run-time inputs and caches by the model's names."""
    values: dict[str, np.ndarray] = {}
    kept: dict[tuple[str, int], np.ndarray] = {}
    for segment in graph.segments:
        for layer in range(segment.repeat):
            for op in segment.ops:
                inputs = [_read(graph, values, data, feeds, n, layer) for n in op.inputs]
                out = graph.tensors[op.output]
                result = run(op, inputs, out.shape).astype(NUMPY[out.dtype])
                assert result.shape == out.shape, (op.name, result.shape, out.shape)
                values[op.output] = result
                kept[op.output, layer] = result
            fresh = {a: values[b] for a, b in segment.carried}
            values.update(fresh)
    return {name: kept[tensor, layer] for name, tensor, layer in graph.outputs}


def _read(
    graph: Graph,
    values: Mapping[str, np.ndarray],
    data: Any,
    feeds: Mapping[str, np.ndarray],
    name: str,
    layer: int,
) -> np.ndarray:
    if name in values:
        return values[name]
    tensor = graph.tensors[name]
    instance = tensor.instances[layer if len(tensor.instances) > 1 else 0]
    array = feeds[instance] if tensor.kind in ("INPUT", "CACHE") else data.read(instance)
    assert array.shape == tensor.shape, (name, array.shape, tensor.shape)
    assert array.dtype == NUMPY[tensor.dtype], (name, array.dtype, tensor.dtype)
    return array


def run(op: Op, x: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """One primitive op."""
    if op.kind == "map":
        return np.broadcast_to(_steps(op.attr("steps"), x), shape)
    if op.kind == "matmul":
        a, b = wide(x[0]), wide(x[1])
        if a.dtype.kind in "iu":
            a, b = a.astype(np.int64), b.astype(np.int64)
        a = np.swapaxes(a, -1, -2) if op.attr("transpose_a") else a
        b = np.swapaxes(b, -1, -2) if op.attr("transpose_b") else b
        return a @ b
    if op.kind == "reduce":
        axes, keep, a = op.attr("axes"), op.attr("keepdims"), wide(x[0])
        fn = op.attr("fn")
        if fn in ("l2", "sumsquare"):
            total = (a * a).sum(axis=axes, keepdims=keep)
            return np.sqrt(total) if fn == "l2" else total
        return getattr(a, fn)(axis=axes, keepdims=keep)
    if op.kind == "transpose":
        return x[0].transpose(op.attr("perm"))
    if op.kind == "reshape":
        return x[0].reshape(shape)
    if op.kind == "expand":
        return np.broadcast_to(x[0], shape)
    if op.kind == "slice":
        axis, start, step = op.attr("axis"), op.attr("start"), op.attr("step")
        return np.take(x[0], [start + i * step for i in range(shape[axis])], axis=axis)
    if op.kind in ("concat", "append"):
        return np.concatenate(x, axis=op.attr("axis"))
    if op.kind == "gather" and op.attr("batch", 0):
        lead = x[1].shape[: op.attr("batch")]
        axis = op.attr("axis") - len(lead)
        rows = [np.take(x[0][at], x[1][at], axis=axis) for at in np.ndindex(lead)]
        return np.stack(rows).reshape(shape)
    if op.kind == "gather":
        return np.take(x[0], x[1], axis=op.attr("axis"))
    if op.kind == "unpack":
        bits = op.attr("bits")
        parts = [x[0] >> s & (1 << bits) - 1 for s in range(0, 8, bits)]
        codes = np.stack(parts, -1).reshape(shape).astype(np.int64)
        top = 1 << (bits - 1)
        return np.where(codes >= top, codes - 2 * top, codes) if op.attr("signed") else codes
    raise AssertionError(f"'{op.kind}' is no primitive op")


def _steps(steps: Any, inputs: list[np.ndarray]) -> np.ndarray:
    done: list[np.ndarray] = []
    with np.errstate(all="ignore"):
        for fn, args, dtype in steps:
            given = [
                wide(inputs[a]) if where == "in" else wide(done[a]) if where == "step" else a
                for where, a in args
            ]
            done.append(np.asarray(_call(fn, given)).astype(NUMPY[dtype]))
    return done[-1]


def _call(fn: str, v: list[Any]) -> Any:
    names = {
        "sub": "subtract", "mul": "multiply", "pow": "power", "neg": "negative", "div": "divide",
        "round": "rint", "lessorequal": "less_equal", "greaterorequal": "greater_equal",
        "and": "logical_and", "or": "logical_or", "not": "logical_not", "xor": "logical_xor",
        "min": "minimum", "max": "maximum",
    }  # fmt: skip
    if fn == "cast":
        return v[0]
    if fn == "saturate":
        return np.where(np.isnan(v[0]), v[1], np.clip(v[0], v[1], v[2]))
    if fn == "reciprocal":
        return 1 / v[0]
    if fn == "silu":
        return v[0] / (1 + np.exp(-v[0]))
    if fn == "sigmoid":
        return 1 / (1 + np.exp(-v[0]))
    if fn == "relu":
        return np.maximum(v[0], 0)
    if fn == "erf":
        return np.vectorize(erf)(v[0])
    if fn == "gelu":
        return v[0] * 0.5 * (1 + np.vectorize(erf)(v[0] / np.sqrt(2)))
    if fn == "gelu_tanh":
        return v[0] * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v[0] + 0.044715 * v[0] ** 3)))
    if fn == "softplus":
        return np.log1p(np.exp(-np.abs(v[0]))) + np.maximum(v[0], 0)
    if fn == "hardswish":
        return v[0] * np.clip(v[0] / 6 + 0.5, 0, 1)
    return getattr(np, names.get(fn, fn))(*v)
