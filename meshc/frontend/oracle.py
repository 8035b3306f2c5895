"""What ONNX Runtime says: the reference that programs are verified against."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend import rounding
from meshc.frontend.reader import Model, Port
from meshc.frontend.weights import external_bytes
from meshc.ir.dtypes import NUMPY

PLAIN = "onnxruntime"
WIDENED = "onnxruntime, graph widened to fp32"
_BF16, _FP32 = 16, 1
_LARGE = 1 << 28  # bytes of external weights from which ONNX Runtime must spare memory


def run_oracle(model: Model, feeds: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], str]:
    """Outputs by name and the oracle's name; results have the graph's own dtypes.

    A graph with bf16, for which ONNX Runtime has no CPU kernels, is run with all of it widened
    to fp32. Activations are rounded only where the graph says so (see `rounding`). Raises
    InputError where ONNX Runtime refuses the graph or the inputs.
    """
    if "runner" not in model.cache:
        model.cache["runner"] = _open(model)
    runner, name = model.cache["runner"]
    return _outputs(model, runner, feeds), name


def rounding_spread(
    model: Model, feeds: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """By how much each output of a graph that rounds to a quantised type may differ from what is
    expected, because a value lies between two steps; empty for other graphs."""
    if not rounding.rounds(model.proto):
        return {}
    if "moved" not in model.cache:
        model.cache["moved"] = [_open(model, sign)[0] for sign in (1, -1)]
    found = rounding.steps(model.proto, expected)
    for runner in model.cache["moved"]:
        for name, array in _outputs(model, runner, feeds).items():
            found[name] = max(found[name], 2 * rounding.distance(array, expected[name]))
    return found


def _outputs(model: Model, runner: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    given = {}
    for port in model.inputs:
        array = np.asarray(feeds[port.name]) if port.name in feeds else _zeros(model, port, feeds)
        given[port.name] = array.astype(np.float32) if array.dtype == NUMPY["bf16"] else array
    names = [p.name for p in model.outputs]
    try:
        results = runner.run(names, given)
    except Exception as error:
        raise InputError(
            f"ONNX Runtime refuses to run '{model.path.name}' on these inputs: {brief(error)}; "
            "change the workload or leave out --verify."
        ) from None
    out = {}
    for port, value in zip(model.outputs, results, strict=True):
        dtype = NUMPY.get(port.dtype)
        out[port.name] = np.asarray(value) if dtype is None else np.asarray(value).astype(dtype)
    return out


def _zeros(model: Model, port: Port, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """An input that nothing reads, in a shape that agrees with the others."""
    sizes: dict[str, int] = {}
    for other in model.inputs:
        if other.name in feeds:
            shape = feeds[other.name].shape
            named = zip(other.dims, shape, strict=False)
            sizes.update((d, n) for d, n in named if isinstance(d, str))
    shape = tuple(d if isinstance(d, int) else sizes.get(d, 1) for d in port.dims)
    return np.zeros(shape, NUMPY.get(port.dtype, np.dtype(np.float32)))


def _open(model: Model, sign: int = 0) -> tuple[Any, str]:
    """A session and the oracle's name. sign: of what is added to values that are rounded."""
    import onnxruntime as ort  # type: ignore[import-untyped]

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # External data of a graph that is given as bytes.
    folder = str(model.path.resolve().parent)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    if rounding.dequantises(model.proto):
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    if sum(map(external_bytes, model.proto.graph.initializer)) >= _LARGE:
        # Weights are mapped from their files and widened when used, not all at the beginning.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.disable_prepacking", "1")
    proto, name = model.proto, PLAIN
    if _has_bf16(model):
        proto, name = widened(proto), WIDENED
    written = rounding.as_written(proto)
    if rounding.packs(proto):
        options.add_session_config_entry("session.disable_prepacking", "1")
    if written is not None or rounding.packs(proto):
        proto, name = written or proto, f"{name}, activations not rounded"
    if sign:
        proto = rounding.moved(proto, sign)
    same = proto is model.proto and not model.renamed
    source = str(model.path) if same else proto.SerializeToString()
    try:
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]), name
    except Exception as error:
        raise InputError(
            f"ONNX Runtime cannot load '{model.path.name}': {brief(error)}; leave out --verify."
        ) from None


_NOISE = (  # of ONNX Runtime's messages → what stays of it
    (r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", ""),
    (r"Load model from .*? failed:\s*", ""),
    (r"Non-zero status code returned while running (\w+) node\. Name:'(.*?)' Status Message: ",
     r"node '\2' (\1): "),
    # place in its source, and function
    (r"\S+\.(?:cc|h|cpp):\d+ (?:[^()']*::[^()']*\([^()]*\)(?: const)? |[A-Z][a-z]+[A-Z]\w* )?", ""),
    (r'In Node, \("(.*?)", (\w+), .*, Error ', r"node '\1' (\2): "),
    (r"^This is an invalid model\. (?:Error: )?(?=.)", ""),
)  # fmt: skip


def brief(error: Exception) -> str:
    """What ONNX Runtime says, without places in its own source; at most 200 characters."""
    text = " ".join(str(error).split())
    for pattern, kept in _NOISE:
        text = re.sub(pattern, kept, text)
    return textwrap.shorten(text, 200, placeholder=" ...").rstrip(".")


def _has_bf16(model: Model) -> bool:
    """Whether anything but casts computes in bf16, for which ONNX Runtime has no kernels."""
    ports = (*model.inputs, *model.outputs)
    if any(p.dtype == "bf16" for p in ports) or any(
        t.data_type == _BF16 for t in model.proto.graph.initializer
    ):
        return True
    made: set[str] = set()
    for node in model.nodes():
        if node.op_type != "Cast" and not made.isdisjoint(node.input):
            return True
        if node.op_type in ("Cast", "Constant") and any(
            (a.name == "to" and a.i == _BF16) or (a.HasField("t") and a.t.data_type == _BF16)
            for a in node.attribute
        ):
            made.update(node.output)
    return False


def widened(given: Any) -> Any:
    """A ModelProto with every bf16 replaced by fp32. Weights stay what and where they are, and a
    Cast widens each: a copy could exceed the 2 GiB that a protobuf may have."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(given)
    _widen_graph(proto.graph)
    for function in proto.functions:
        _widen_nodes(function.node)
    return proto


def _widen_graph(graph: Any) -> None:
    from onnx import helper

    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == _BF16:
            info.type.tensor_type.elem_type = _FP32
    _widen_nodes(graph.node)
    casts = []
    for tensor in graph.initializer:
        if tensor.data_type == _BF16:
            name, tensor.name = tensor.name, f"{tensor.name}::bf16"
            casts.append(helper.make_node("Cast", [tensor.name], [name], f"{name}::widen", to=1))
    if casts:
        own = {cast.output[0] for cast in casts}
        inputs = [v for v in graph.input if v.name not in own]
        del graph.input[:]
        graph.input.extend(inputs)
        nodes = list(graph.node)
        del graph.node[:]
        graph.node.extend((*casts, *nodes))


def _widen_nodes(nodes: Any) -> None:
    for node in nodes:
        for attr in node.attribute:
            if attr.name in ("to", "dtype") and attr.i == _BF16:
                attr.i = _FP32
            if attr.HasField("t"):
                _widen_tensor(attr.t)
            if attr.HasField("g"):
                _widen_graph(attr.g)


def _widen_tensor(tensor: Any) -> None:
    if tensor.data_type != _BF16:
        return
    shape = list(tensor.dims)
    if tensor.raw_data:
        bits = np.frombuffer(tensor.raw_data, np.uint16)
    else:
        bits = np.asarray(tensor.int32_data, np.int64).astype(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    name = tensor.name
    tensor.Clear()
    tensor.name, tensor.data_type = name, _FP32
    tensor.dims.extend(shape)
    tensor.raw_data = wide.tobytes()
