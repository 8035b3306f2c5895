"""What each graph input means, told by its name, type and rank.

Dimensions follow from the role by position: axes 0 and 1 of the ids are batch and new tokens,
axis 2 of a past input is the cached ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from meshc.errors import InputError
from meshc.frontend.reader import Model, Port
from meshc.frontend.weights import absence, is_external
from meshc.ir.dtypes import FLOATS

Role = Literal[
    "tokens", "mask", "positions", "past", "flag", "context", "total", "last", "encoder_mask",
    "other",
]  # fmt: skip
Kind = Literal["batch", "new", "past", "total", "buffer"]

_STATE = re.compile(r"conv|ssm|recurrent|rwkv|mamba")
_PAST = re.compile(r"past|cache|key|value|present|(^|[._])[kv]([._]|$)|kv")
_SCALARS: tuple[tuple[re.Pattern[str], Role], ...] = (
    (re.compile(r"use_cache"), "flag"),
    (re.compile(r"seqlens_k"), "last"),
    (re.compile(r"total_seq"), "total"),
    (
        re.compile(r"cumulative_length|past_(seq|len)|past_key_values_length|cache_length"),
        "context",
    ),
)
_INTEGERS = ("int64", "int32", "bool", "int8", "uint8")


@dataclass(frozen=True)
class Roles:
    """roles: by input name.   tokens: the input that carries the new tokens, None if unnamed.
    past: cache inputs in model order.   static: the past is a buffer of fixed length that the
    graph writes into.   limit: rows of the position tables, the longest cache they allow."""

    model: str
    ports: dict[str, Port]
    roles: dict[str, Role]
    tokens: str | None
    past: tuple[str, ...]
    static: bool
    limit: int | None

    def kinds(self, name: str) -> tuple[Kind | None, ...]:
        """The quantity that each dimension of an input stands for."""
        return _kinds(self.roles[name], self.ports[name], self.static)

    def frozen(self, kind: Kind) -> int | None:
        """The number that the graph fixes for a quantity, if it does."""
        for name, port in self.ports.items():
            for k, dim in zip(self.kinds(name), port.dims, strict=True):
                if k == kind and isinstance(dim, int):
                    return dim
        return None

    def symbols(self) -> dict[str, Kind | None]:
        """Symbolic dimensions of the inputs and the quantity each stands for, if known."""
        found: dict[str, Kind | None] = {}
        for name, port in self.ports.items():
            for k, dim in zip(self.kinds(name), port.dims, strict=True):
                if isinstance(dim, str) and dim and found.get(dim) is None:
                    found[dim] = k or _by_name(dim)
        return found


def _by_name(symbol: str) -> Kind | None:
    """A dimension of an input that has no role of its own."""
    low = symbol.lower()
    if "encoder" in low and "decoder" not in low:
        return None
    if "batch" in low:
        return "batch"
    if "+" in low or "total" in low:
        return "total"
    if "past" in low:
        return "past"
    return (
        "new"
        if re.fullmatch(r"(decoder_)?(seq|sequence|seq_len|sequence_len(gth)?)", low)
        else None
    )


def _kinds(role: Role, port: Port, static: bool) -> tuple[Kind | None, ...]:
    rank = port.rank
    if role == "past" and rank == 4 and _of_encoder(port.name):
        return ("batch", None, None, None)
    whole: Kind = "buffer" if static else "total"
    table: dict[tuple[Role, int], tuple[Kind | None, ...]] = {
        ("tokens", 1): ("new",),
        ("tokens", 2): ("batch", "new"),
        ("tokens", 3): ("batch", "new", None),
        ("mask", 2): ("batch", whole),
        ("mask", 3): ("batch", "new", whole),
        ("mask", 4): ("batch", None, "new", whole),
        ("positions", 1): ("new",),
        ("positions", 2): ("batch", "new"),
        ("positions", 3): (None, "batch", "new"),
        ("past", 4): ("batch", None, "buffer" if static else "past", None),
        ("last", 1): ("batch",),
        ("last", 2): ("batch", None),
        ("encoder_mask", 2): ("batch", None),
    }
    return table.get((role, rank), (None,) * rank)


def _of_encoder(name: str) -> bool:
    """Whether a cache holds the encoder's tokens, whose number no phase changes."""
    parts = re.split(r"[._/]", name.lower())
    return "encoder" in parts or "cross" in parts


def find_roles(model: Model) -> Roles:
    """Give every graph input its role; refuses state-space models by name."""
    ports = {p.name: p for p in model.inputs}
    states = sorted(
        {
            m.group(0)
            for p in (*model.inputs, *model.outputs)
            if (m := _STATE.search(p.name.lower())) and p.rank >= 3
        }
    )
    if states:
        raise InputError(
            f"Model '{model.path.name}' is a state-space or convolution model (it carries "
            f"{' and '.join(repr(s) for s in states)} states from token to token), which meshc "
            "does not compile; give a transformer."
        )
    roles = {p.name: _role(p) for p in model.inputs}
    ids = [n for n, r in roles.items() if r == "tokens"]
    tokens = next((n for n in ids if "type" not in n.lower()), None)
    past = tuple(n for n, r in roles.items() if r == "past")
    static = bool(past) and _is_static(model, set(past))
    return Roles(model.path.name, ports, roles, tokens, past, static, _limit(model, roles))


def _role(port: Port) -> Role:
    name = port.name.lower()
    integer = port.dtype in _INTEGERS
    if port.rank <= 2:
        for pattern, role in _SCALARS:
            if pattern.search(name) and integer:
                return role
    if "mask" in name and port.rank in (2, 3, 4):
        return "encoder_mask" if "encoder" in name and "decoder" not in name else "mask"
    if "position" in name and integer and 1 <= port.rank <= 3:
        return "positions"
    if integer and ("ids" in name or "tokens" in name) and port.rank in (1, 2):
        return "tokens"
    if port.dtype in FLOATS and "embeds" in name and port.rank == 3:
        return "tokens"
    if port.rank == 4 and _PAST.search(name):
        return "past"
    return "other"


def _is_static(model: Model, past: set[str]) -> bool:
    """Whether the caches are written in place by a scatter."""
    seen = set(past)
    for node in model.nodes():
        if node.input and node.input[0] in seen:
            if "Scatter" in node.op_type:
                return True
            if node.op_type in ("Transpose", "Identity", "Cast", "Reshape"):
                seen.update(node.output)
    return False


_THROUGH = ("Unsqueeze", "Squeeze", "Cast", "Reshape", "Expand", "Identity", "Slice", "Flatten")
# operator → (input that is a position table)
_TABLES = {"GroupQueryAttention": 7, "RotaryEmbedding": 2}


def _limit(model: Model, roles: dict[str, Role]) -> int | None:
    """Rows of the smallest table that positions look up."""
    positions = {n for n, r in roles.items() if r == "positions"}
    offset = dict.fromkeys(positions, 0)
    limits: list[int] = []

    def rows(name: str) -> list[int]:
        tensor = model.initializers.get(name)
        return [int(tensor.dims[0])] if tensor is not None and len(tensor.dims) == 2 else []

    for node in model.nodes():
        names = list(node.input)
        if node.op_type == "Gather" and len(names) > 1 and names[1] in offset:
            limits += [n - offset[names[1]] for n in rows(names[0])]
        elif node.op_type in _TABLES and node.domain == "com.microsoft":
            at = _TABLES[node.op_type]
            if len(names) > at:
                limits += rows(names[at])
        elif names and names[0] in offset and node.op_type in _THROUGH:
            offset[node.output[0]] = offset[names[0]]
        elif node.op_type == "Add" and any(n in offset for n in names):
            side = 0 if names[0] in offset else 1
            shift = _scalar(model, names[1 - side])
            if shift is not None:
                offset[node.output[0]] = offset[names[side]] + shift
    return min(limits) if limits else None


def _scalar(model: Model, name: str) -> int | None:
    from onnx import numpy_helper

    tensor: Any = model.initializers.get(name)
    if tensor is None:
        for node in model.nodes():
            if node.op_type == "Constant" and node.output[0] == name:
                tensor = next((a.t for a in node.attribute if a.name == "value"), None)
                break
    if tensor is None or is_external(tensor) or absence(model, tensor):
        return None
    array = numpy_helper.to_array(tensor)
    return int(array.reshape(-1)[0]) if array.size == 1 else None
