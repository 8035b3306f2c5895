"""Where a model's weights lie, whether they are there, and reading one.

Nothing is read before its values are needed: timing takes shapes alone. So a weight may be
absent: a data file that does not exist, an initializer with dimensions and no data, or a name that
only value_info knows. The reason is then a sentence, which becomes the error of whoever needs the
values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend.checks import check_embedded, tensors
from meshc.frontend.reader import DTYPES, SMALL, Model
from meshc.ir.dtypes import NUMPY
from meshc.ops.unpack import packed, unpacked

EXTERNAL = 1  # TensorProto.DataLocation
TIMING = "timing alone needs no values"


def is_external(tensor: Any) -> bool:
    """Whether a TensorProto's data lie in another file."""
    return bool(tensor.data_location == EXTERNAL)


def external_entries(tensor: Any) -> dict[str, str]:
    """location, offset and length of a tensor in an external file."""
    return {e.key: e.value for e in tensor.external_data}


def external_path(model: Model, tensor: Any) -> Path:
    """File that holds an external tensor; refuses those outside the model's directory.

    Links count by where they lead: data may lie in the model's directory or beside the file that
    the model itself is a link to, as in a hub's cache.
    """
    location = external_entries(tensor).get("location", "")
    known: dict[str, Path] = model.cache.setdefault("external", {})
    if location in known:
        return known[location]
    folder = model.path.parent
    file = folder / location
    inside = location and not Path(location).is_absolute() and ".." not in Path(location).parts
    if inside:
        real, homes = file.resolve(), (folder.resolve(), model.path.resolve().parent)
        inside = any(real.is_relative_to(home) for home in homes)
    if not inside:
        raise InputError(
            f"Weight '{tensor.name}' of model '{model.path}' is stored in '{location}', outside "
            "the model's directory; put the data file beside the model."
        )
    if file.is_dir():
        raise InputError(
            f"Weight '{tensor.name}' of model '{model.path}' is stored in '{location}', which is a "
            "directory; name the data file, or export the model again."
        )
    known[location] = file
    return file


def _size(model: Model, file: Path) -> int | None:
    """Bytes of a data file, None where there is none."""
    sizes: dict[Path, int | None] = model.cache.setdefault("sizes", {})
    if file not in sizes:
        sizes[file] = file.stat().st_size if file.is_file() else None
    return sizes[file]


def absence(model: Model, tensor: Any) -> str:
    """Why a tensor has no values, as a sentence; "" where it has."""
    if is_external(tensor):
        file = external_path(model, tensor)
        if _size(model, file) is not None:
            return ""
        return (
            f"Weight '{tensor.name}' of model '{model.path}' is kept in '{file.name}', which does "
            f"not exist in '{file.parent}'; put the data file beside the model ({TIMING})."
        )
    if _has_data(tensor):
        return ""
    if tensor.name in model.initializers:
        return (
            f"Weight '{tensor.name}' of model '{model.path}' has dimensions {list(tensor.dims)} "
            f"but not their data; export the model with its weights ({TIMING})."
        )
    return (
        f"Weight '{tensor.name}' of model '{model.path}' has no initializer, only dimensions "
        f"{list(tensor.dims)} in value_info; export the model with its weights ({TIMING})."
    )


def _has_data(tensor: Any) -> bool:
    if tensor.HasField("raw_data") or 0 in tensor.dims:
        return True
    return any(
        len(field)
        for field in (
            *(tensor.float_data, tensor.int32_data, tensor.int64_data),
            *(tensor.double_data, tensor.uint64_data, tensor.string_data),
        )
    )


def check_weights(model: Model) -> None:
    """InputError for weights that are partly there: a data file or a field that is too short, or
    data outside the model's directory. Looks at sizes only."""
    for tensor in tensors(model.proto):
        size = tensor_bytes(tensor)
        if not is_external(tensor):
            check_embedded(model.path, tensor, size, _bits(tensor))
            continue
        file = external_path(model, tensor)
        there = _size(model, file)
        length = _entry(model, tensor, "length") or size
        if size and length != size:
            raise InputError(
                f"Weight '{tensor.name}' of model '{model.path}' has {length} bytes in "
                f"'{file.name}' where its dimensions {list(tensor.dims)} need {size}; export the "
                "model again."
            )
        end = _start(model, tensor) + length
        if there is not None and end > there:
            raise InputError(
                f"Weight '{tensor.name}' of model '{model.path}' ends at byte {end} of "
                f"'{file.name}', which has {there} bytes; copy the data file again."
            )


def _start(model: Model, tensor: Any) -> int:
    return _entry(model, tensor, "offset")


def _entry(model: Model, tensor: Any, key: str) -> int:
    """A number among the external entries; 0 where it is missing."""
    text = external_entries(tensor).get(key, "") or "0"
    if not text.isdecimal():
        raise InputError(
            f"Weight '{tensor.name}' of model '{model.path}' has the external {key} '{text}', "
            "which is not a number of bytes; export the model again."
        )
    return int(text)


def dangling_weights(model: Model) -> dict[str, Any]:
    """Names that nodes read and nothing makes, with what value_info says of them."""
    graph = model.proto.graph
    made = {v.name for v in graph.input} | model.initializers.keys()
    read: set[str] = set()
    for nodes in _scopes(graph):
        for node in nodes:
            read.update(node.input)
            made.update(node.output)
    missing = read - made - {""}
    found: dict[str, Any] = {}
    if not missing:
        return found
    from onnx import TensorProto

    for info in graph.value_info:
        if info.name not in missing:
            continue
        kind = info.type.tensor_type
        sizes = [d.dim_value for d in kind.shape.dim if d.WhichOneof("value") == "dim_value"]
        if kind.HasField("shape") and len(sizes) == len(kind.shape.dim) and kind.elem_type:
            found[info.name] = TensorProto(name=info.name, dims=sizes, data_type=kind.elem_type)
    return found


def _scopes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph and of those inside its nodes."""
    stack = [graph]
    while stack:
        top = stack.pop()
        yield top.node
        for node in top.node:
            for attr in node.attribute:
                if attr.HasField("g"):
                    stack.append(attr.g)


@dataclass(frozen=True)
class Absent:
    """Weights of a model without values: how many of how many, and the reason of the first."""

    count: int
    weights: int
    reason: str


def absent_weights(model: Model) -> Absent:
    """Counts the initializers and dangling weights that have no values."""
    tensors = [*model.proto.graph.initializer, *model.dangling.values()]
    reasons = [r for t in tensors if (r := absence(model, t))]
    return Absent(len(reasons), len(tensors), reasons[0] if reasons else "")


def tensor_bytes(tensor: Any) -> int:
    """Bytes of a tensor's elements, 0 for types that meshc does not know."""
    bits: int = prod(tensor.dims) * _bits(tensor)
    return -(-bits // 8)


def _bits(tensor: Any) -> int:
    """Bits of an element, 0 for types that meshc does not know."""
    if tensor.data_type in SMALL:
        return SMALL[tensor.data_type][1]
    name = DTYPES.get(tensor.data_type)
    return 0 if name is None else 8 * NUMPY[name].itemsize


def read_packed(model: Model, tensor: Any) -> np.ndarray:
    """A tensor of elements smaller than a byte as uint8 [..., ⌈last dimension · bits / 8⌉], low
    bits first; in the file the elements of all rows follow each other without a gap. InputError
    where it is absent."""
    lacks = absence(model, tensor)
    if lacks:
        raise InputError(lacks)
    bits = SMALL[tensor.data_type][1]
    shape = tuple(int(d) for d in tensor.dims) or (1,)
    size = tensor_bytes(tensor)
    if is_external(tensor):
        file = external_path(model, tensor)
        start = _start(model, tensor)
        flat: np.ndarray = np.memmap(file, dtype=np.uint8, mode="r", offset=start, shape=(size,))
    elif tensor.raw_data:
        flat = np.frombuffer(tensor.raw_data, np.uint8, count=size)
    else:
        flat = np.asarray(tensor.int32_data, np.int64).astype(np.uint8)[:size]
    if shape[-1] * bits % 8 == 0:
        return flat.reshape((*shape[:-1], shape[-1] * bits // 8))
    return packed(unpacked(flat, bits, False)[: prod(shape)].reshape(shape), bits)


def external_bytes(tensor: Any) -> int:
    """Bytes of a tensor in another file."""
    return tensor_bytes(tensor) if is_external(tensor) else 0


def read_tensor(model: Model, tensor: Any) -> np.ndarray:
    """A TensorProto's elements; external data is memory-mapped. InputError where it is absent."""
    dtype = NUMPY[DTYPES[tensor.data_type]]
    shape = tuple(int(d) for d in tensor.dims)
    count = prod(shape)
    if count == 0:
        return np.zeros(shape, dtype)
    lacks = absence(model, tensor)
    if lacks:
        raise InputError(lacks)
    if is_external(tensor):
        file = external_path(model, tensor)
        whole = shape or (1,)
        start = _start(model, tensor)
        return np.memmap(file, dtype=dtype, mode="r", offset=start, shape=whole).reshape(shape)
    if tensor.raw_data:
        return np.frombuffer(tensor.raw_data, dtype=dtype, count=count).reshape(shape)
    from onnx import numpy_helper

    array = numpy_helper.to_array(tensor)
    if array.size != count:
        raise InputError(
            f"Weight '{tensor.name}' of model '{model.path}' has {array.size} of its {count} "
            "elements; export the model with its weights."
        )
    return np.asarray(array, dtype=dtype).reshape(shape)
