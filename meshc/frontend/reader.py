"""Reading an ONNX file: the one place that opens it and complains about it.

A Model keeps the parsed file; weights stay where they are until someone reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshc.errors import InputError
from meshc.frontend.checks import check_versions, readable

if TYPE_CHECKING:
    from meshc.frontend.roles import Roles

# TensorProto.DataType → name in meshc
DTYPES: dict[int, str] = {
    1: "fp32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    9: "bool",
    10: "fp16",
    11: "fp64",
    12: "uint32",
    13: "uint64",
    16: "bf16",
    17: "fp8e4m3fn",
    18: "fp8e4m3fnuz",
    19: "fp8e5m2",
    20: "fp8e5m2fnuz",
}
# TensorProto.DataType of elements smaller than a byte → name, bits
SMALL: dict[int, tuple[str, int]] = {
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("fp4e2m1", 4),
    25: ("uint2", 2),
    26: ("int2", 2),
}
ONNX_TYPES: dict[str, int] = {name: number for number, name in DTYPES.items()}
DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class Port:
    """A graph input or output: dims are ints, symbol names, or "" where nothing is known."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclass(eq=False)
class Model:
    """A parsed ONNX model.

    name: the file's stem.   sha256: of the model file (external data not included).
    inputs: those that initializers do not already define.   opsets: version by domain.
    renamed: the file has names that are not text, and `proto` others in their place.
    """

    path: Path
    sha256: str
    proto: Any = field(repr=False)
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    opsets: dict[str, int] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict, repr=False)
    renamed: bool = False

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def node_count(self) -> int:
        return len(self.proto.graph.node)

    @cached_property
    def initializers(self) -> dict[str, Any]:
        """TensorProto by name."""
        return {t.name: t for t in self.proto.graph.initializer}

    @cached_property
    def dangling(self) -> dict[str, Any]:
        """Weights that no initializer defines: names that nodes read and nothing makes, as a
        TensorProto with the dimensions and type that value_info gives them. Where it gives no
        fixed dimensions the name is not among them."""
        from meshc.frontend.weights import dangling_weights

        return dangling_weights(self)

    def values(self) -> set[str]:
        """Names of the weights and of what the nodes of the main graph make."""
        made = {name for node in self.proto.graph.node for name in node.output}
        return made | self.initializers.keys() | self.dangling.keys()

    def weight(self, name: str) -> Any:
        """TensorProto of an initializer or a dangling weight; None where the name is neither."""
        found = self.initializers.get(name)
        return self.dangling.get(name) if found is None else found

    @cached_property
    def functions(self) -> dict[tuple[str, str], Any]:
        """Functions local to the model, by domain and name."""
        return {(domain_of(f), f.name): f for f in self.proto.functions}

    @cached_property
    def overloads(self) -> dict[tuple[str, str, str], Any]:
        """Functions local to the model, by domain, name and overload."""
        named = ((domain_of(f), f.name, getattr(f, "overload", "")) for f in self.proto.functions)
        return dict(zip(named, self.proto.functions, strict=True))

    @cached_property
    def roles(self) -> Roles:
        from meshc.frontend.roles import find_roles

        try:
            return find_roles(self)
        except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
            raise InputError(
                f"Nodes around the cache of '{self.path.name}' have operands or attributes that do "
                f"not fit together ({error}); export the model again."
            ) from error

    @property
    def has_past(self) -> bool:
        """Whether the graph reads a cache."""
        return bool(self.roles.past)

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases that this graph can compute."""
        if not self.has_past:
            return ("prefill",)
        tokens = self.roles.frozen("new")
        if tokens is None:
            return ("prefill", "decode")
        return ("decode",) if tokens == 1 else ("prefill",)

    @property
    def default_phase(self) -> str:
        """What is compiled when no phase is asked for: "both", "prefill" or "decode"."""
        return "both" if len(self.phases) == 2 else self.phases[0]

    def nodes(self) -> Iterator[Any]:
        return iter(self.proto.graph.node)


def domain_of(item: Any) -> str:
    """Operator domain with the default one written as the empty string."""
    return "" if item.domain in DEFAULT_DOMAINS else str(item.domain)


def load_model(path: str | Path) -> Model:
    """Parse the ONNX file at `path`; weights in external files stay there.

    Weights may be absent: no more than timing needs is read, and a file without them is as good.
    Raises InputError for a missing, empty, truncated or foreign file, and for external data
    that is too short or outside the model's directory.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"Model '{path}' is a directory; give the path of an .onnx file.")
    if not path.exists():
        raise InputError(f"Model '{path}' does not exist; give the path of an .onnx file.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"Model '{path}' cannot be read ({error.strerror}); check its permissions."
        ) from None
    if not data:
        raise InputError(f"Model '{path}' is empty (0 bytes); export or copy it again.")
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise InputError(
            f"Model '{path}' ({len(data)} bytes) cannot be parsed: it is truncated or not an ONNX "
            "file; export or copy it again."
        ) from None
    if not proto.graph.output or not proto.opset_import:
        raise InputError(
            f"Model '{path}' is not an ONNX model: it has no graph with outputs and operator sets; "
            "give the path of an .onnx file."
        )
    check_versions(path, proto)
    renamed = readable(proto)
    model = Model(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        proto=proto,
        opsets={domain_of(o): int(o.version) for o in proto.opset_import},
        renamed=renamed,
    )
    given = model.initializers
    sparse = len(proto.graph.sparse_initializer)
    if sparse:
        raise InputError(
            f"Model '{path}' has {sparse} sparse initializers, which are not supported; "
            "export it with dense weights."
        )
    model.inputs = tuple(_port(model, v) for v in proto.graph.input if v.name not in given)
    model.outputs = tuple(_port(model, v) for v in proto.graph.output)
    from meshc.frontend.weights import check_weights

    check_weights(model)
    return model


def _port(model: Model, info: Any) -> Port:
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        raise InputError(
            f"'{info.name}' of model '{model.path}' is a {kind or 'value without a type'}, not a "
            "tensor; export the model with tensors as inputs and outputs."
        )
    tensor = info.type.tensor_type
    number = tensor.elem_type
    dims = tuple(_dim(d) for d in tensor.shape.dim)
    return Port(info.name, DTYPES.get(number, f"onnx type {number}"), dims)


def _dim(d: Any) -> int | str:
    """A dimension; some exporters write numbers as symbols."""
    if d.WhichOneof("value") == "dim_value":
        return int(d.dim_value)
    name = str(d.dim_param)
    return int(name) if name.isdecimal() else name
