"""Small ONNX graphs for tests, and the comparison with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

from meshc.frontend import Bound, Model, bind, load_model, run_oracle
from meshc.ir.dtypes import NUMPY
from meshc.ir.workload import Workload

from . import reference

ONNX = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "bool": TensorProto.BOOL,
}


def info(name: str, dtype: str, dims: Any) -> Any:
    return helper.make_tensor_value_info(name, ONNX[dtype], dims)


def weight(name: str, array: np.ndarray) -> Any:
    return numpy_helper.from_array(array, name)


def write(
    path: Path,
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: list[Any] | None = None,
    opsets: dict[str, int] | None = None,
    functions: list[Any] | None = None,
) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights or [])
    ids = [helper.make_opsetid(d, v) for d, v in (opsets or {"": 18}).items()]
    model = helper.make_model(graph, opset_imports=ids, functions=functions or [], ir_version=10)
    save(model, path)
    return path


def step(batch: int = 1, prompt: int = 1, context: int = 0, phase: Any = "prefill") -> Workload:
    return Workload(phase, batch, prompt, context, context + prompt)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference relative to the largest magnitude."""
    assert got.shape == want.shape, (got.shape, want.shape)
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    if want.size == 0:
        return 0.0
    a, b = got.astype(np.float64), want.astype(np.float64)
    apart = np.abs(np.where(a == b, 0.0, a) - np.where(a == b, 0.0, b))
    return float(apart.max() / max(np.abs(b[np.isfinite(b)]).max(initial=0.0), 1e-9))


def random_feeds(model: Model, bound: Bound, seed: int = 0, ids: int = 40) -> dict[str, np.ndarray]:
    """Random run-time inputs and caches of a bound model, and what was folded."""
    rng = np.random.default_rng(seed)
    feeds = dict(bound.folded)
    for name, (shape, dtype) in bound.inputs.items():
        if dtype in ("int64", "int32"):
            feeds[name] = rng.integers(0, 2 if "type" in name else ids, shape).astype(NUMPY[dtype])
        else:
            feeds[name] = rng.standard_normal(shape).astype(NUMPY[dtype])
    for past, _, shape, dtype in bound.caches:
        if past is not None:
            feeds[past] = rng.standard_normal(shape).astype(NUMPY[dtype])
    return feeds


def check(model: Model, workload: Workload, tolerance: float = 1e-5, **options: Any) -> Bound:
    """Bind, interpret, and compare every output with ONNX Runtime."""
    bound = bind(model, workload, **options)
    feeds = random_feeds(model, bound)
    got = bound.whole(reference.interpret(bound.graph, bound.data, feeds))
    want, _ = run_oracle(model, bound.whole(feeds))
    assert list(got) == [p.name for p in model.outputs]
    for name, array in want.items():
        assert error(got[name], array) <= tolerance, (name, error(got[name], array))
    return bound


def check_node(
    path: Path,
    op: str,
    inputs: dict[str, np.ndarray | None],
    outputs: int = 1,
    opset: int = 18,
    domain: str = "",
    fixed: tuple[str, ...] = (),
    tolerance: float = 1e-5,
    used: tuple[bool, ...] | None = None,
    **attrs: Any,
) -> None:
    """One operator with the given operands, those in `fixed` as initializers, against ORT."""
    used = used or (True,) * outputs
    fixed = tuple(f"x{i}" for i, n in enumerate(inputs) if n in fixed)
    inputs = {f"x{i}": v for i, v in enumerate(inputs.values())}  # names without a meaning
    names = [n if v is not None else "" for n, v in inputs.items()]
    results = [f"y{i}" if u else "" for i, u in enumerate(used)]
    node = helper.make_node(op, names, results, domain=domain, name="node", **attrs)
    given = {n: v for n, v in inputs.items() if v is not None and n not in fixed}
    weights = [weight(n, v) for n, v in inputs.items() if v is not None and n in fixed]
    opsets = {"": opset} | ({domain: 1} if domain else {})
    write(
        path,
        [node],
        [info(n, str(v.dtype), v.shape) for n, v in given.items()],
        [helper.make_empty_tensor_value_info(r) for r in results if r],
        weights,
        opsets,
    )
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    runner = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    want = runner.run(None, given)
    import onnx

    proto = onnx.load(path)
    for port, array in zip(proto.graph.output, want, strict=True):
        port.CopyFrom(info(port.name, str(array.dtype), array.shape))
    save(proto, path)
    bound = bind(load_model(path), step())
    got = reference.interpret(bound.graph, bound.data, given)
    for port, array in zip(proto.graph.output, want, strict=True):
        y = got[port.name]
        if port.name in bound.defined:
            axis, count = bound.defined[port.name]
            y, array = (np.take(a, range(count), axis=axis) for a in (y, array))
        assert error(y, array) <= tolerance, (port.name, error(y, array))
