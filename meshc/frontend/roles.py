"""What each graph input means, told by its name, type and rank.

Dimensions follow from the role by position: axes 0 and 1 of the ids are batch and new tokens,
axis 2 of a past input is the cached ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from meshc.errors import InputError
from meshc.frontend.dims import names_of
from meshc.frontend.pasts import Past, find_pasts, nodes_within
from meshc.frontend.reader import Model, Port, domain_of
from meshc.frontend.weights import absence, is_external
from meshc.ir.dtypes import FLOATS

Role = Literal[
    "tokens", "mask", "positions", "past", "flag", "context", "total", "last", "encoder_mask",
    "encoder", "types", "other",
]  # fmt: skip
Kind = Literal["batch", "new", "past", "total", "buffer"]

_STATE = re.compile(r"ssm|recurrent|rwkv|mamba|wkv|(^|[._])(scan|delta|linear_attn)_?state")
_PAST = re.compile(r"past|cache|key|value|present|(^|[._])[kv]([._\d]|$)|kv|conv|state")
_DATA = re.compile(r"hidden|pixel|image|input_(values|features)")  # what no cache is called
# operators that carry a recurrent state from token to token
_RECURRENT = (
    ("com.microsoft", "LinearAttention"), ("com.microsoft", "GatedDeltaNet"),
    ("com.microsoft", "SelectiveScan"), ("com.microsoft", "MambaSSM"), ("", "LSTM"), ("", "GRU"),
    ("", "RNN"),
)  # fmt: skip
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
_CACHED = (*FLOATS, "int8", "uint8")


@dataclass(frozen=True)
class Roles:
    """roles: by input name.   tokens: the input that carries the new tokens, None if unnamed.
    past: cache inputs in model order.   pasts: how each of them is laid out.   static: the past is
    a buffer of fixed length.   limit: rows of the position tables, the longest cache they allow."""

    model: str
    ports: dict[str, Port]
    roles: dict[str, Role]
    tokens: str | None
    past: tuple[str, ...]
    pasts: dict[str, Past]
    limit: int | None

    @cached_property
    def static(self) -> bool:
        return any(p.style == "buffer" for p in self.pasts.values())

    def kinds(self, name: str) -> tuple[Kind | None, ...]:
        """The quantity that each dimension of an input stands for."""
        port = self.ports[name]
        if name in self.pasts:
            return _past_kinds(self.pasts[name], port)
        return _kinds(self.roles[name], port, self._whole(port))

    def _whole(self, port: Port) -> Kind:
        """What the last dimension of a mask counts: a buffer's places, or the tokens so far."""
        buffers = [(n, p) for n, p in self.pasts.items() if p.style == "buffer"]
        dims = {self.ports[n].dims[p.axis] for n, p in buffers if p.axis is not None}
        if not port.rank or not buffers:
            return "total"
        if port.dims[-1] in dims - {""}:
            return "buffer"
        return "buffer" if any(p.written for _, p in buffers) else "total"

    def frozen(self, kind: Kind) -> int | None:
        """The number that the graph fixes for a quantity, if it does."""
        for name, port in self.ports.items():
            for k, dim in zip(self.kinds(name), port.dims, strict=True):
                if k == kind and isinstance(dim, int):
                    return dim
        return None

    @cached_property
    def apart(self) -> frozenset[str]:
        """Symbols that stand for something else than the decoder's tokens: the encoder's, the
        places of a window."""
        found = set()
        for name, past in self.pasts.items():
            if past.style in ("cross", "window") and past.axis is not None:
                found.add(str(self.ports[name].dims[past.axis]))
        for name, role in self.roles.items():
            if role in ("encoder_mask", "encoder"):
                found |= {str(d) for d in self.ports[name].dims[1:2]}
        return frozenset(found - {""})

    def symbols(self) -> dict[str, Kind | None]:
        """Symbolic dimensions of the inputs and the quantity each stands for, if known."""
        return dict(self._symbols)

    @cached_property
    def _symbols(self) -> dict[str, Kind | None]:
        found: dict[str, Kind | None] = {}
        for name, port in self.ports.items():
            for k, dim in zip(self.kinds(name), port.dims, strict=True):
                if isinstance(dim, str) and dim and found.get(dim) is None:
                    found[dim] = k or (None if dim in self.apart else _by_name(dim))
        for dim in [d for d in found if found[d] is None or names_of(d) != (d,)]:
            for name in names_of(dim):
                found.setdefault(name, None if name in self.apart else _by_name(name))
        return found


def _by_name(symbol: str) -> Kind | None:
    """A dimension of an input that has no role of its own."""
    low = symbol.lower()
    if "encoder" in low and "decoder" not in low:
        return None
    if names_of(symbol) != (symbol,):
        return "total" if "past" in low and re.search(r"\+\s*\w*seq|\+\s*past", low) else None
    if "batch" in low:
        return "batch"
    if "total" in low or low in ("kv_len", "kv_length", "kv_seq_len"):
        return "total"
    if "past" in low:
        return "past"
    words = r"(decoder_|target_|input_|query_|q_)?(seq(uence)?(_?len(gth)?)?|tokens)"
    return "new" if re.fullmatch(words, low) else None


def _past_kinds(past: Past, port: Port) -> tuple[Kind | None, ...]:
    kinds: list[Kind | None] = [None] * port.rank
    if past.batch is not None:
        kinds[past.batch] = "batch"
    if past.axis is not None and past.style in ("grows", "buffer"):
        kinds[past.axis] = "buffer" if past.style == "buffer" else "past"
    return tuple(kinds)


def _kinds(role: Role, port: Port, whole: Kind) -> tuple[Kind | None, ...]:
    rank = port.rank
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
        ("last", 1): ("batch",),
        ("last", 2): ("batch", None),
        ("encoder_mask", 2): ("batch", None),
        ("encoder", 3): ("batch", None, None),
        ("types", 2): ("batch", "new"),
    }
    return table.get((role, rank), (None,) * rank)


def find_roles(model: Model) -> Roles:
    """Give every graph input its role; refuses state-space models by name."""
    ports = {p.name: p for p in model.inputs}
    states = sorted(
        {
            m.group(0).strip("._")
            for p in (*model.inputs, *model.outputs)
            if (m := _STATE.search(p.name.lower())) and p.rank >= 3
        }
    )
    if states:
        raise InputError(
            f"Model '{model.path.name}' is a state-space model (it carries "
            f"{' and '.join(repr(s) for s in states)} states from token to token), which meshc "
            "does not compile; give a transformer."
        )
    recurrent = sorted(
        {f"{d}:{op}" if d else op
         for d, op in {(domain_of(n), n.op_type) for n in nodes_within(model.proto.graph.node)}
         if (d, op) in _RECURRENT}
    )  # fmt: skip
    if recurrent:
        raise InputError(
            f"Model '{model.path.name}' is a recurrent or state-space model (its operator"
            f"{'s' if len(recurrent) > 1 else ''} {', '.join(repr(r) for r in recurrent)} "
            f"carr{'y' if len(recurrent) > 1 else 'ies'} a state from token to token), which meshc "
            "does not compile; give a transformer."
        )
    roles = {p.name: _role(p) for p in model.inputs}
    ids = [n for n, r in roles.items() if r == "tokens"]
    tokens = next(iter(ids), None) or _looked_up(model, ports, roles)
    if tokens is not None:
        roles[tokens] = "tokens"
    batch = ports[tokens].dims[0] if tokens is not None and ports[tokens].rank > 1 else None
    open_ = {
        n: p for n, p in ports.items()
        if p.rank >= 3 and p.dtype in _CACHED
        and (roles[n] == "past" or (roles[n] == "other" and tokens is not None))
    }  # fmt: skip
    surely = {n for n, r in roles.items() if r == "past"}
    pasts = find_pasts(model, open_, surely, batch)
    roles.update(dict.fromkeys(pasts, "past"))
    past = tuple(n for n in ports if n in pasts)
    return Roles(model.path.name, ports, roles, tokens, past, pasts, _limit(model, roles))


def _looked_up(model: Model, ports: dict[str, Port], roles: dict[str, Role]) -> str | None:
    """The only integer input that rows of a weight are looked up by."""
    found: dict[str, None] = {}
    ends = {o.name for o in model.outputs}
    for node in model.nodes():
        names = list(node.input)
        if ends & set(node.output):
            continue
        if node.op_type == "Gather" and len(names) > 1 and names[0] in model.initializers:
            port = ports.get(names[1])
            if port is None or port.dtype not in ("int64", "int32") or port.rank != 2:
                continue
            if roles[port.name] == "other":
                found[port.name] = None
    return next(iter(found)) if len(found) == 1 else None


def _role(port: Port) -> Role:
    name = port.name.lower()
    integer = port.dtype in _INTEGERS
    if port.rank <= 2:
        for pattern, role in _SCALARS:
            if pattern.search(name) and integer:
                return role
    floats = port.dtype in FLOATS
    if "mask" in name and port.rank in (2, 3, 4):
        return "encoder_mask" if "encoder" in name and "decoder" not in name else "mask"
    if "position" in name and integer and 1 <= port.rank <= 3:
        return "positions"
    if integer and re.search(r"token_?type|segment", name) and port.rank == 2:
        return "types"
    if integer and re.search(r"ids|tokens?|^inputs?$|(^|[._])idx", name) and port.rank in (1, 2):
        return "tokens"
    if floats and "embeds" in name and port.rank == 3:
        return "tokens"
    if floats and re.search(r"encoder.*(hidden|output|state)|^memory$", name) and port.rank == 3:
        return "encoder"
    if port.rank >= 3 and port.dtype in _CACHED and _PAST.search(name) and not _DATA.search(name):
        return "past"
    return "other"


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
