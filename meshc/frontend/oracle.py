"""What ONNX Runtime says: the reference that programs are verified against."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend.reader import Model, Port
from meshc.ir.dtypes import NUMPY

PLAIN = "onnxruntime"
WIDENED = "onnxruntime, graph widened to fp32"
_BF16, _FP32 = 16, 1


def run_oracle(model: Model, feeds: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], str]:
    """Outputs by name and the oracle's name; results have the graph's own dtypes.

    A graph with bf16, for which ONNX Runtime has no CPU kernels, is run with all of it widened
    to fp32. Raises InputError where ONNX Runtime refuses the graph or the inputs.
    """
    runner, name = _runner(model)
    given = {}
    for port in model.inputs:
        array = np.asarray(feeds[port.name]) if port.name in feeds else _zeros(model, port, feeds)
        given[port.name] = array.astype(np.float32) if array.dtype == NUMPY["bf16"] else array
    names = [p.name for p in model.outputs]
    try:
        results = runner.run(names, given)
    except Exception as error:
        raise InputError(
            f"ONNX Runtime refuses to run '{model.path.name}' on these inputs: {_brief(error)}; "
            "change the workload or leave out --verify."
        ) from None
    out = {}
    for port, value in zip(model.outputs, results, strict=True):
        dtype = NUMPY.get(port.dtype)
        out[port.name] = np.asarray(value) if dtype is None else np.asarray(value).astype(dtype)
    return out, name


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


def _runner(model: Model) -> tuple[Any, str]:
    if "runner" not in model.cache:
        model.cache["runner"] = _open(model)
    found: tuple[Any, str] = model.cache["runner"]
    return found


def _open(model: Model) -> tuple[Any, str]:
    import onnxruntime as ort  # type: ignore[import-untyped]

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    try:
        if _has_bf16(model):
            wide = widened(model.proto, model.path.parent)
            return ort.InferenceSession(wide, options, providers=providers), WIDENED
        return ort.InferenceSession(str(model.path), options, providers=providers), PLAIN
    except Exception as error:
        raise InputError(
            f"ONNX Runtime cannot load '{model.path.name}': {_brief(error)}; leave out --verify."
        ) from None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")


def _has_bf16(model: Model) -> bool:
    ports = (*model.inputs, *model.outputs)
    return any(p.dtype == "bf16" for p in ports) or any(
        t.data_type == _BF16 for t in model.proto.graph.initializer
    )


def widened(given: Any, folder: Path) -> bytes:
    """A serialised ModelProto with every bf16 replaced by fp32. folder: of its external data."""
    import onnx
    from onnx.external_data_helper import load_external_data_for_model

    proto = onnx.ModelProto()
    proto.CopyFrom(given)
    load_external_data_for_model(proto, str(folder))
    _widen_graph(proto.graph)
    for function in proto.functions:
        _widen_nodes(function.node)
    data: bytes = proto.SerializeToString()
    return data


def _widen_graph(graph: Any) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == _BF16:
            info.type.tensor_type.elem_type = _FP32
    _widen_nodes(graph.node)


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
