"""What a model file must fulfil before anything is read from it: versions that are known, names
that are text, and embedded weights that have as many bytes as their dimensions say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from meshc.errors import InputError

_STRING, _MESSAGE = 9, 11  # descriptor types
_CHECKED_AS_IS = 1 << 16  # bytes up to which a weight's raw_data is copied to be measured
_TYPED = {  # TensorProto.DataType → the field that holds its elements where raw_data does not
    1: "float_data", 6: "int32_data", 7: "int64_data", 11: "double_data", 12: "uint64_data",
    13: "uint64_data", 8: "string_data",
}  # fmt: skip


def check_versions(path: Path, proto: Any) -> None:
    """InputError for versions of the format or of the standard's operators that nobody knows."""
    import onnx

    if proto.ir_version > onnx.IR_VERSION:
        raise InputError(
            f"Model '{path}' has the ONNX IR version {proto.ir_version}, and {onnx.IR_VERSION} is "
            "the highest that exists here; export it with an older IR version or update onnx."
        )
    highest = onnx.defs.onnx_opset_version()
    for owner in (proto, *proto.functions):
        for entry in owner.opset_import:
            if entry.domain in ("", "ai.onnx") and not 1 <= entry.version <= highest:
                raise InputError(
                    f"Model '{path}' asks for operator set {entry.version} of the ONNX standard, "
                    f"where 1 to {highest} exist; export it with one of those or update onnx."
                )


# -- names ----------------------------------------------------------------------------------------


def readable(proto: Any) -> bool:
    """Replace bytes that are not UTF-8 in all names by escapes; whether there were any.

    protobuf gives such a string as bytes. ONNX Runtime, which compares bytes, accepts them.
    """
    found = False
    stack = [proto]
    while stack:
        top = stack.pop()
        strings, messages = _fields(top.DESCRIPTOR)
        for name, many in strings:
            value = getattr(top, name)
            if many:
                for i, item in enumerate(value):
                    if isinstance(item, bytes):
                        value[i], found = _text(item), True
            elif isinstance(value, bytes):
                setattr(top, name, _text(value))
                found = True
        for name, many in messages:
            if many:
                stack += getattr(top, name)
            elif top.HasField(name):
                stack.append(getattr(top, name))
    return found


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


@cache
def _fields(kind: Any) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """The names of a message's strings and of its messages, and whether they are lists."""
    return tuple(  # type: ignore[return-value]
        [(f.name, f.is_repeated) for f in kind.fields if f.type == wanted]
        for wanted in (_STRING, _MESSAGE)
    )


# -- embedded tensors -----------------------------------------------------------------------------


def check_embedded(path: Path, tensor: Any, size: int, bits: int) -> None:
    """InputError where a tensor's own data do not have as many elements as its dimensions say; one
    without any data is a weight that is absent.

    size: bytes of its elements.   bits: of one, 0 for types that are not known.
    """
    if any(d < 0 for d in tensor.dims):
        raise InputError(
            f"Weight '{tensor.name}' of model '{path}' has a negative number among its "
            f"dimensions {list(tensor.dims)}; export the model again."
        )
    if tensor.HasField("raw_data"):
        there = size if bits == 0 or _raw_is(tensor, size) else len(tensor.raw_data)
        wanted, what = size, "bytes"
    else:
        name = _TYPED.get(tensor.data_type, "int32_data")
        there = len(getattr(tensor, name))
        wanted, what = size if 0 < bits < 8 else prod(tensor.dims), "elements"
        others = any(len(getattr(tensor, f)) for f in {*_TYPED.values(), "int32_data"} - {name})
        if bits == 0 or (not there and not others):
            return
    if there != wanted:
        raise InputError(
            f"Weight '{tensor.name}' of model '{path}' has {there} {what} of data where its "
            f"dimensions {list(tensor.dims)} need {wanted}; export the model again."
        )


def _raw_is(tensor: Any, size: int) -> bool:
    """Whether raw_data has this many bytes; tells it of large data without a copy of them."""
    if tensor.ByteSize() <= _CHECKED_AS_IS:
        return len(tensor.raw_data) == size
    rest = type(tensor)()
    rest.dims.extend(tensor.dims)
    for name in ("data_type", "name", "doc_string", "data_location"):
        if tensor.HasField(name):
            setattr(rest, name, getattr(tensor, name))
    rest.external_data.extend(tensor.external_data)
    rest.metadata_props.extend(tensor.metadata_props)
    length = max(1, -(-size.bit_length() // 7))
    whole = rest.ByteSize() + 1 + length + size
    return bool(tensor.ByteSize() == whole) or len(tensor.raw_data) == size


def tensors(proto: Any) -> Iterator[Any]:
    """Every tensor of a model: initializers and attributes, in subgraphs and functions too."""
    stack = [proto.graph, *proto.functions]
    while stack:
        top = stack.pop()
        yield from getattr(top, "initializer", ())
        for node in top.node:
            for attr in node.attribute:
                if attr.HasField("t"):
                    yield attr.t
                elif attr.HasField("g"):
                    stack.append(attr.g)
