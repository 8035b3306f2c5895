"""The ONNX graph with weights as `--dtype` stores them, for the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend.bind import Bound
from meshc.frontend.reader import DTYPES, Model
from meshc.frontend.storage import rounded

MOST_BYTES = 1 << 31  # of a protobuf
LOOKUPS = ("Gather", "GatherND", "GatherElements")  # read tables as the model has them


def as_stored(model: Model, bound: Bound) -> Model:
    """The model with the weights that `bound` stores in other types rounded to these, but for
    lookups of their rows.

    Raises InputError where the graph becomes too large for ONNX Runtime.
    """
    key = f"stored {sorted(bound.stored.items())}"
    if key not in model.cache:
        model.cache[key] = _as_stored(model, bound)
    found: Model = model.cache[key]
    return found


def _as_stored(model: Model, bound: Bound) -> Model:
    import onnx

    types, numbers = bound.stored, {name: number for number, name in DTYPES.items()}
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    new = {name: f"{name}::{form}" for name, form in types.items()}
    _redirect(proto.graph, new)
    total = 0
    for name, form in types.items():
        array = np.ascontiguousarray(rounded(bound.data.read(name), form))
        kind = numbers[bound.data.consts[name].dtype]
        total += array.nbytes
        if total >= MOST_BYTES:
            raise InputError(
                f"The weights of '{model.path.name}' that --dtype changes have more than "
                f"{MOST_BYTES} bytes, which a graph for ONNX Runtime cannot hold; verify a model "
                "with fewer layers, or leave out --verify."
            )
        proto.graph.initializer.append(
            onnx.TensorProto(
                name=new[name], dims=array.shape, data_type=kind, raw_data=array.tobytes()
            )
        )
    _drop_unread(proto.graph, set(types))
    return replace(model, proto=proto, cache={}, renamed=True)


def _redirect(graph: Any, new: Mapping[str, str]) -> None:
    for node in graph.node:
        if node.op_type not in LOOKUPS:
            for slot, name in enumerate(node.input):
                if name in new:
                    node.input[slot] = new[name]
        for attr in node.attribute:
            if attr.HasField("g"):
                _redirect(attr.g, new)


def _drop_unread(graph: Any, names: set[str]) -> None:
    """Leave out the initializers that nothing reads any more."""
    read = _read(graph) | {o.name for o in graph.output}
    kept = [t for t in graph.initializer if t.name not in names or t.name in read]
    dropped = names - {t.name for t in kept}
    del graph.initializer[:]
    graph.initializer.extend(kept)
    inputs = [v for v in graph.input if v.name not in dropped]
    del graph.input[:]
    graph.input.extend(inputs)


def _read(graph: Any) -> set[str]:
    found: set[str] = set()
    for node in graph.node:
        found.update(node.input)
        for attr in node.attribute:
            if attr.HasField("g"):
                found |= _read(attr.g)
    return found
