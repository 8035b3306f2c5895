"""Tiny ONNX graphs carried through the whole compiler and compared with ONNX Runtime.

    check(tmp_path, [op("Celu", "x", "y", alpha=0.5)], {"x": f32("batch", "sequence", 8)})

compiles for two-dimensional regions of test4x4 at several workloads, with fusion and without,
emulates with tensors, and compares every output that no node reads. `refuses` is its opposite.
The chip is slow at arithmetic and quick at messages, so that plans divide whatever can be divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from meshc.emulator import emulate
from meshc.errors import InputError
from meshc.frontend import Bound, bind, load_model
from meshc.frontend.oracle import widened
from meshc.ir.compiled import CompileOptions
from meshc.ir.dtypes import BLOCK_FORMATS, NUMPY
from meshc.pipeline import compile as compile_model
from meshc.pipeline import step_program
from meshc.run import Tensors, tolerance

from .models import step

Make = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Dim = int | str
SLOW_CORES = tuple(
    f"core.{name}=0.01"
    for name in (
        "sram_bytes_per_cycle",
        "vector_ops_per_cycle.fp32",
        "macs_per_cycle.fp32",
        "vector_ops_per_cycle.fp64",
        "macs_per_cycle.fp64",
    )
)
BLOCKS = {f.dtype for f in BLOCK_FORMATS.values()}
TYPES = {
    **{n: helper.np_dtype_to_tensor_dtype(d) for n, d in NUMPY.items() if n not in BLOCKS},
    "bf16": onnx.TensorProto.BFLOAT16,
}


@dataclass(frozen=True)
class Input:
    """A run-time input; `make` draws its values, by default by type."""

    dtype: str
    dims: tuple[Dim, ...]
    make: Make | None = None

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        if self.make is not None:
            return np.asarray(self.make(rng, shape)).astype(NUMPY[self.dtype]).reshape(shape)
        if self.dtype == "bool":
            return np.asarray(rng.random(shape) > 0.5)
        if NUMPY[self.dtype].kind in "iu":
            low = 0 if NUMPY[self.dtype].kind == "u" else -9
            return rng.integers(low, 10, shape).astype(NUMPY[self.dtype])
        return np.asarray(rng.standard_normal(shape)).astype(NUMPY[self.dtype])


@dataclass(frozen=True)
class Step:
    """A workload, the region it is compiled for, and whether kernels are fused."""

    batch: int
    prompt: int
    grid: tuple[int, int]
    fusion: bool = True


STEPS = (Step(1, 5, (2, 3)), Step(3, 1, (2, 2)), Step(3, 5, (2, 2), fusion=False))


def tensor(dtype: str, *dims: Dim, make: Make | None = None) -> Input:
    return Input(dtype, dims, make)


def f32(*dims: Dim, make: Make | None = None) -> Input:
    return Input("fp32", dims, make)


def op(kind: str, inputs: str, outputs: str = "y", domain: str = "", **attrs: Any) -> Any:
    """A node; the names are separated by commas, an absent one is empty."""
    ins = inputs.split(",") if inputs else []
    return helper.make_node(kind, ins, outputs.split(","), name=f"{kind}_{outputs}",
                            domain=domain, **attrs)  # fmt: skip


def write(
    path: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Input],
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
    outputs: Iterable[str] | None = None,
    functions: Sequence[Any] = (),
) -> Path:
    """The graph as a file; types and shapes of its outputs are left open."""
    read = {n for node in nodes for n in node.input}
    ends = outputs or [n for node in nodes for n in node.output if n and n not in read]
    weights = []
    for name, value in (constants or {}).items():
        array = np.asarray(value)
        given = numpy_helper.from_array(array, name)
        if array.dtype == ml_dtypes.bfloat16:
            bits = array.view(np.uint16).astype("<u2")
            given = helper.make_tensor(name, TYPES["bf16"], array.shape, bits.tobytes(), raw=True)
        weights.append(given)
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(n, TYPES[i.dtype], i.dims) for n, i in inputs.items()],
        [helper.make_empty_tensor_value_info(n) for n in ends],
        weights,
    )
    domains = {n.domain for n in nodes} - {""}
    ids = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
    proto = helper.make_model(graph, opset_imports=ids, ir_version=10, functions=list(functions))
    onnx.save(proto, path)
    return path


def check(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Input],
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
    *,
    oracle: str = "onnxruntime",
    twin: Sequence[Any] = (),
    limit: float | None = None,
    steps: Sequence[Step] = STEPS,
    outputs: Iterable[str] | None = None,
    exact: bool = False,
    least: float = 1e-9,
    seed: int = 0,
) -> list[Bound]:
    """Compile, emulate and compare at every step; returns the bound graphs.

    oracle: "onnxruntime" or "reference" (onnx.reference).   twin: nodes that mean the same, for
    the oracle to run in place of operators that it has no kernel for.   limit: of the error
    relative to the largest magnitude, by default that of --verify.   exact: the last bit and the
    sign of zero count too.   least: magnitude below which errors are absolute.
    """
    path = write(folder / "tiny.onnx", nodes, inputs, constants, opset, outputs)
    names = [o.name for o in onnx.load(path).graph.output]
    rng = np.random.default_rng(seed)
    feeds = []
    for s in steps:
        sizes = {"batch": s.batch, "sequence": s.prompt}
        feeds.append({
            n: i.draw(rng, tuple(sizes[d] if isinstance(d, str) else d for d in i.dims))
            for n, i in inputs.items()
        })  # fmt: skip
    asked = path
    if twin:
        asked = write(folder / "twin.onnx", twin, inputs, constants, opset, names)
    answers = _answers(asked, feeds, oracle)
    _declare(path, answers[0], names)
    model = load_model(path)
    found = []
    for s, given, want in zip(steps, feeds, answers, strict=True):
        options = CompileOptions(
            chip="test4x4", overrides=SLOW_CORES, phase="prefill", batch=s.batch, prompt=s.prompt,
            solver="greedy", grid=s.grid, fusion=s.fusion,
        )  # fmt: skip
        done = compile_model(path, options)
        assert done is not None
        program, bound = step_program(done, "prefill", model, context=0)
        own = {n: a for n, a in given.items() if n in bound.inputs}
        trace = emulate(program, done.chip, tensors=Tensors(own, bound.data), contention=False)
        assert trace.outputs is not None
        for name, array in zip(names, want, strict=True):
            bar = tolerance(bound.graph) if limit is None else limit
            _compare(f"{name} at {s}", trace.outputs[name], array, bar, exact, least)
        found.append(bound)
    kinds = [[o.kind for _, o in bind(model, step(s.batch, s.prompt)).graph.ops()] for s in steps]
    assert all(k == kinds[0] for k in kinds), f"the ops depend on the workload: {kinds}"
    return found


def _compare(
    what: str, got: np.ndarray, want: np.ndarray, limit: float, exact: bool, least: float
) -> None:
    assert got.shape == want.shape, f"{what}: shape {got.shape} instead of {want.shape}"
    assert got.dtype == want.dtype, f"{what}: {got.dtype} instead of {want.dtype}"
    if exact or got.dtype.kind in "iub":
        same = np.asarray((got == want) & (np.signbit(got) == np.signbit(want))
                          if got.dtype.kind == "f" else got == want)  # fmt: skip
        if got.dtype.kind == "f":
            same |= np.isnan(got) & np.isnan(want)
        assert same.all(), f"{what}: {got[~same][:8]} instead of {want[~same][:8]}"
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(a - b))
    scale = max(float(np.abs(b[np.isfinite(b)]).max(initial=0.0)), least)
    worst = float(error.max(initial=0.0)) / scale
    at = np.unravel_index(int(error.argmax()), error.shape) if error.size else ()
    assert worst <= limit, f"{what}: error {worst:.2e} at {at}, {a[at]} instead of {b[at]}"


def _answers(path: Path, feeds: list[dict[str, np.ndarray]], oracle: str) -> list[list[np.ndarray]]:
    if oracle == "reference":
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(onnx.load(path))
        with np.errstate(all="ignore"):
            return [[np.asarray(y) for y in evaluator.run(None, f)] for f in feeds]
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    proto = onnx.load(path)
    bf16 = {i.name for i in (*proto.graph.input, *proto.graph.initializer)
            if TYPES["bf16"] in (getattr(i, "data_type", 0), _elem(i))}  # fmt: skip
    data = widened(proto).SerializeToString() if bf16 else path.read_bytes()
    runner = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    results = []
    for f in feeds:
        wide = {n: a.astype(np.float32) if a.dtype == NUMPY["bf16"] else a for n, a in f.items()}
        got = [np.asarray(y) for y in runner.run(None, wide)]
        results.append([y.astype(NUMPY["bf16"]) if bf16 and y.dtype == np.float32 else y
                        for y in got])  # fmt: skip
    return results


def _elem(item: Any) -> int:
    return int(item.type.tensor_type.elem_type) if hasattr(item, "type") else 0


def _declare(path: Path, results: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Write the outputs' types and ranks into the file, as exporters do."""
    proto = onnx.load(path)
    types = {v: k for k, v in NUMPY.items()}
    for port, y in zip(proto.graph.output, results, strict=True):
        dims = [None] * y.ndim
        port.CopyFrom(helper.make_tensor_value_info(port.name, TYPES[types[y.dtype]], dims))
    onnx.save(proto, path)


def refuses(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Input],
    reason: str,
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
    outputs: Iterable[str] | None = None,
) -> str:
    """The sentence that refuses the graph: it names the last node's operator and has `reason`."""
    path = write(folder / "refused.onnx", nodes, inputs, constants, opset, outputs)
    proto = onnx.load(path)
    for port in proto.graph.output:
        port.CopyFrom(helper.make_tensor_value_info(port.name, TYPES["fp32"], None))
    onnx.save(proto, path)
    try:
        bind(load_model(path), step(2, 3))
    except InputError as error:
        text = str(error)
        assert nodes[-1].op_type in text, text
        assert reason in text, text
        return text
    raise AssertionError(f"{nodes[-1].op_type} is accepted")
