"""What the graph does with its cache inputs: which axis counts tokens, and whether a step makes
them longer, writes into them, or replaces them.

Told by the operators that read them, whatever the inputs and their dimensions are called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshc.frontend.dims import names_of
from meshc.frontend.reader import Model, Port, domain_of

Style = Literal["grows", "buffer", "window", "state", "cross"]
Dims = tuple[int | None, ...]  # per dimension of a value, the input's dimension that it is


@dataclass(frozen=True)
class Past:
    """How a cache input is laid out.

    style: "grows": its present is longer by the new tokens. "buffer": of fixed length, a step
        writes its tokens into it. "window": it holds the last tokens only. "state": without a
        token axis, replaced by every step. "cross": keys or values of the encoder's tokens.
    axis: the dimension that counts tokens.   batch: the one that counts sequences.
    stack: leading dimensions that number layers, or keys and values.
    window: tokens that a "window" holds at least.   present: the output that continues it.
    written: by operators of the graph, not inside an attention operator.
    """

    style: Style
    axis: int | None
    batch: int | None
    stack: int = 0
    window: int = 0
    present: str | None = None
    written: bool = False


# attention operators: (domain, type) → cache operands and their token axis
_SLOTS: dict[tuple[str, str], tuple[tuple[int, ...], int]] = {
    ("", "Attention"): ((4, 5), 2),
    ("com.microsoft", "GroupQueryAttention"): ((3, 4), 2),
    ("com.microsoft", "MultiHeadAttention"): ((6, 7), 2),
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): ((5, 6), 2),
    ("com.microsoft", "Attention"): ((4,), 3),
}
_SAME = ("Identity", "Cast", "Slice", "Split", "Dropout")
_HALVES = {"key": "k", "keys": "k", "k": "k", "value": "v", "values": "v", "v": "v"}


@dataclass
class _Seen:
    """What is known of one cache input so far."""

    style: Style | None = None
    axis: int | None = None
    window: int = 0
    written: bool = False
    stacked: bool = False
    attended: bool = False  # a cache operand of an attention operator


def nodes_within(nodes: Any) -> Iterator[Any]:
    """Nodes of a graph and of its subgraphs, in order."""
    for node in nodes:
        yield node
        for attr in node.attribute:
            if attr.HasField("g"):
                yield from nodes_within(attr.g.node)


class _Tracer:
    """Follows the cache inputs through views up to what reads them."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.found: dict[str, _Seen] = {}
        self.at: dict[str, tuple[str, Dims, bool]] = {}  # value → input, dims, whether sliced
        self.constants: dict[str, Any] = {}

    def run(self, ports: Mapping[str, Port]) -> dict[str, _Seen]:
        for name, port in ports.items():
            self.at[name] = (name, tuple(range(port.rank)), False)
            self.found[name] = _Seen()
        self._nodes(self.model.proto.graph.node, "")
        return self.found

    def _nodes(self, nodes: Any, prefix: str) -> None:
        for node in nodes_within(nodes):
            if node.op_type == "Constant" and len(node.attribute) == 1:
                self.constants[prefix + node.output[0]] = node.attribute[0]
                continue
            for slot, name in enumerate(node.input):
                if name and prefix + name in self.at:
                    self._read(node, slot, prefix)

    def _read(self, node: Any, slot: int, prefix: str) -> None:
        root, dims, sliced = self.at[prefix + node.input[slot]]
        seen = self.found[root]
        key = (domain_of(node), node.op_type)
        attrs = {a.name: a for a in node.attribute}
        if key in self.model.functions:
            function = self.model.functions[key]
            inner = f"{prefix}{node.name or node.output[0]}/"
            for given, name in zip(function.input, node.input, strict=False):
                if name and prefix + name in self.at:
                    self.at[inner + given] = self.at[prefix + name]
            self._nodes(function.node, inner)
            for made, name in zip(function.output, node.output, strict=False):
                if inner + made in self.at:
                    self.at[prefix + name] = self.at[inner + made]
            return
        if key in _SLOTS:
            slots, axis = _SLOTS[key]
            if slot in slots:
                seen.style, seen.axis = seen.style or "grows", dims[axis]
                seen.attended = True
                seen.stacked = seen.stacked or axis == 3
                if "past_present_share_buffer" in attrs and attrs["past_present_share_buffer"].i:
                    seen.style = "buffer"
                if "sliding_window_cache" in attrs and attrs["sliding_window_cache"].i:
                    seen.style, seen.window = "window", int(attrs["local_window_size"].i)
            elif key[1] == "MultiHeadAttention" and slot in (1, 2) and len(dims) == 4:
                seen.style, seen.axis, seen.attended = "cross", dims[2], True
            return
        if (key[1], slot) in (
            ("CausalConvWithState", 3),
            ("PagedAttention", 3),
            ("PagedAttention", 4),
        ):
            seen.style = "state"  # pages have no axis of tokens
        elif key[0]:
            return
        elif key[1] == "Concat":
            axis = dims[attrs["axis"].i % len(dims)]
            pieces = [n for n in node.input if self.at.get(prefix + n, ("",))[0] == root]
            if len(pieces) > 1:
                if sliced and len(node.input) > len(pieces):
                    seen.style, seen.axis, seen.written = "buffer", axis, True
            elif slot == 0 and axis is not None and seen.style is None:
                seen.style, seen.axis = "grows", axis
            elif slot > 0 and seen.style is None and len(node.input) == 2:
                seen.style = "state"  # something stands before it
        elif key[1] in ("ScatterND", "ScatterElements", "TensorScatter") and slot == 0:
            at = 0 if key[1] == "ScatterND" else -2 if key[1] == "TensorScatter" else 0
            at = attrs["axis"].i if "axis" in attrs else at
            seen.style, seen.written = "buffer", True
            seen.axis = dims[at % len(dims)] or seen.axis  # tuples of indices begin at the batch
        else:
            self._view(node, slot, dims, prefix, (root, sliced))

    def _view(
        self, node: Any, slot: int, dims: Dims, prefix: str, origin: tuple[str, bool]
    ) -> None:
        """Carry the dimensions through an operator that only moves elements."""
        if slot:
            return
        root, sliced = origin
        kind, attrs = node.op_type, {a.name: a for a in node.attribute}
        out: Dims | None = None
        if kind in _SAME:
            out = dims
            sliced = sliced or kind in ("Slice", "Split")
        elif kind == "Transpose" and "perm" in attrs:
            out = tuple(dims[p] for p in attrs["perm"].ints)
        elif kind in ("Squeeze", "Unsqueeze", "Gather"):
            axes = [attrs["axis"].i if "axis" in attrs else 0]
            if kind != "Gather":
                axes = list(attrs["axes"].ints) if "axes" in attrs else self._ints(prefix, node)
            elif self._rank(prefix + node.input[1]) != 0:
                axes = []
            out = _without(dims, axes) if kind != "Unsqueeze" else _with(dims, axes)
        elif kind == "Reshape":
            target = self._ints(prefix, node)
            kept = next((i for i, n in enumerate(target) if n != 0), 0)
            out = (*dims[:kept], *(None for _ in target[kept:])) if target else None
        if out is not None:
            for name in node.output:
                if name:
                    self.at[prefix + name] = (root, out, sliced)

    def _tensor(self, name: str) -> Any:
        attr = self.constants.get(name)
        if attr is not None:
            return attr.t if attr.name == "value" else attr
        return self.model.initializers.get(name)

    def _rank(self, name: str) -> int | None:
        tensor = self._tensor(name)
        if tensor is None:
            return None
        return len(tensor.dims) if hasattr(tensor, "dims") else int(tensor.name.endswith("s"))

    def _ints(self, prefix: str, node: Any) -> list[int]:
        """The integers of a node's second operand, where they are constant."""
        from onnx import numpy_helper

        if len(node.input) < 2:
            return []
        tensor = self._tensor(prefix + node.input[1])
        if tensor is None:
            tensor = self._tensor(node.input[1])
        if tensor is None or getattr(tensor, "data_location", 0) == 1:
            return []
        if not hasattr(tensor, "dims"):
            return [int(n) for n in tensor.ints] or [int(tensor.i)]
        return [int(n) for n in numpy_helper.to_array(tensor).reshape(-1)]


def _without(dims: Dims, axes: list[int]) -> Dims:
    gone = {a % len(dims) for a in axes}
    return tuple(d for i, d in enumerate(dims) if i not in gone)


def _with(dims: Dims, axes: list[int]) -> Dims:
    out: list[int | None] = list(dims)
    for a in sorted(a % (len(dims) + len(axes)) for a in axes):
        out.insert(a, None)
    return tuple(out)


def find_pasts(
    model: Model, ports: Mapping[str, Port], surely: set[str], batch: str | int | None
) -> dict[str, Past]:
    """The cache inputs among `ports`.

    surely: those whose name says so; others are caches if the graph treats them as such.
    batch: the first dimension of the token ids.
    """
    seen = _Tracer(model).run(ports)
    outputs = {o.name: o for o in model.outputs}
    found: dict[str, Past] = {}
    kept = {n: p for n, p in ports.items() if n in surely or seen[n].style is not None}
    partners = partners_of(model, tuple(kept))
    for name, port in kept.items():
        s = seen[name]
        present = partners.get(name)
        if name not in surely and present is None and not s.attended:
            continue  # it is joined to something, but nothing continues it
        stack = _stack(port, s, batch)
        axis = s.axis
        style = s.style
        if axis is None and style != "state":
            axis = _token_axis(port, stack)
        if of_encoder(name):
            style = "cross"
        other = outputs.get(present or "")
        if style in (None, "grows") and other is not None and axis is not None:
            same = other.rank == port.rank and _equal(other.dims[axis], port.dims[axis])
            moved = s.style == "grows" and not s.attended  # joined and cut to the same length
            style = "grows" if not same else "window" if moved else "buffer"
            if same and s.style is None and axis >= port.rank - 1:
                style = "state"
        if port.rank - stack < 3 or style is None:
            style = style or ("state" if port.rank - stack < 4 else "grows")
        if style == "state":
            axis = None
        at = _batch_axis(port, stack, axis, batch)
        found[name] = Past(style, axis, at, stack, s.window, present, s.written)
    return found


def _equal(a: int | str, b: int | str) -> bool:
    return a == b and a != ""


def _stack(port: Port, seen: _Seen, batch: str | int | None) -> int:
    """Leading dimensions in front of one layer's keys or values."""
    if seen.stacked:
        return 1
    if port.rank < 5:
        return 0
    if isinstance(batch, str) and batch in port.dims[: port.rank - 3]:
        return port.dims.index(batch)
    return port.rank - 4


def _token_axis(port: Port, stack: int) -> int | None:
    """By the name of the dimension, or the usual place."""
    for i, dim in enumerate(port.dims):
        low = str(dim).lower()
        if re.search(r"past|cache|kv|total|context|history", low) and not re.search(
            r"dim|batch|head", low
        ):
            return i
    return stack + 2 if port.rank - stack == 4 else None


def _batch_axis(port: Port, stack: int, axis: int | None, batch: str | int | None) -> int | None:
    if isinstance(batch, str) and batch in port.dims:
        return port.dims.index(batch)
    if stack >= port.rank or stack == axis:
        return None
    dim = port.dims[stack]
    if isinstance(dim, int):
        return stack if batch is None or dim == batch else None
    if names_of(dim) != (dim,) or "head" in dim.lower():
        return None  # batch and heads in one
    return stack if port.rank - stack > 3 or dim in ("", batch) or "batch" in dim.lower() else None


def of_encoder(name: str) -> bool:
    """Whether a cache holds the encoder's tokens, whose number no phase changes."""
    parts = re.split(r"[._/]", name.lower())
    return "encoder" in parts or "cross" in parts


def mark_of(name: str) -> tuple[Any, ...]:
    """What a past and its present have in common in their names: numbers, half, encoder or not."""
    low = name.lower()
    words = re.findall(r"[a-z]+|\d+", low)
    numbers = tuple(int(w) for w in words if w.isdigit())
    half = next((_HALVES[w] for w in reversed(words) if w in _HALVES), "")
    if not half:
        ends = ("past", "present", "in", "out", "input", "output", "state", "states", "new")
        half = next((w for w in reversed(words) if not w.isdigit() and w not in ends), "")
    return numbers, half, of_encoder(name)


def partners_of(model: Model, pasts: tuple[str, ...]) -> dict[str, str]:
    """Past input → the output that continues it, by what their names share, else by order."""
    if not pasts:
        return {}
    marks: dict[Any, list[str]] = {}
    for name in pasts:
        marks.setdefault(mark_of(name), []).append(name)
    presents: dict[Any, list[str]] = {}
    for port in model.outputs:
        presents.setdefault(mark_of(port.name), []).append(port.name)
    found = {
        names[0]: presents[mark][0]
        for mark, names in marks.items()
        if len(names) == 1 and len(presents.get(mark, ())) == 1
    }
    if len(found) == len(pasts):
        return found
    ports = {p.name: p for p in model.inputs}
    rest = [n for n in pasts if n not in found]
    ranks = [ports[n].rank for n in rest]
    taken = set(found.values())
    open_ = [p for p in model.outputs if p.name not in taken and p.dtype == ports[rest[0]].dtype]
    if len(open_) > len(rest) and open_[0] is model.outputs[0]:
        open_ = open_[1:]  # the first output is what the model is for
    if len(open_) == len(rest) and all(
        p.rank == r or not p.rank for p, r in zip(open_, ranks, strict=True)
    ):
        found.update({n: p.name for n, p in zip(rest, open_, strict=True)})
    return found
