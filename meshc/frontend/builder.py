"""The graph under construction: values, nodes, and a builder that folds as it goes.

Every ONNX operator is lowered by calling the builder's primitive operations. Where all operands
are known the result is a constant and no node appears, so folding and lowering are one thing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend.cacheviews import append_behind, cache_below, part_of_stack
from meshc.frontend.folding import Const, Origin, Steps, fold
from meshc.frontend.labels import FIXED, MIXED, Label, array_of, total
from meshc.frontend.stored import Recipe, gathered, recipe, restored, written_in
from meshc.ir.dtypes import NAMES

UNKNOWN = -1  # a dimension of a past input that only its consumer tells
FROZEN = (
    "the graph is frozen to other sizes, so give the batch, prompt and context that it was "
    "exported with."
)
COMPARISONS = frozenset(
    (
        *("equal", "less", "lessorequal", "greater", "greaterorequal"),
        *("and", "or", "not", "xor", "isnan", "isinf"),
    )
)
Scalar = int | float | bool


class Unsupported(Exception):
    """This node cannot be lowered; the text is the reason, "" when the operator is unknown."""


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of the graph under construction.

    labels: where each dimension's size comes from (see `labels`).
    source: "INPUT", "CACHE", "CONST" or "OP".
    recipe: how a constant is computed from a smaller one (see `stored`).
    small: name of an element type smaller than a byte, held in a larger one.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    labels: tuple[Label, ...]
    source: str = "OP"
    const: Const | None = None
    node: Node | None = None
    recipe: Recipe | None = None
    small: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(eq=False, slots=True)
class Node:
    """A primitive op under construction."""

    name: str
    kind: str
    inputs: list[Value]
    attrs: dict[str, Any]
    output: Value
    source: str
    order: int = 0


@dataclass
class Builder:
    """Makes values; `scope` and `source` name what is being lowered."""

    scope: str = ""
    source: str = ""
    made: list[Value] = field(default_factory=list)
    interned: dict[tuple[str, tuple[int, ...], bytes], Value] = field(default_factory=dict)
    shared: dict[Hashable, Value] = field(default_factory=dict)
    folded: dict[Hashable, tuple[Value, Sequence[Value]]] = field(default_factory=dict)
    # results of which only the first elements of an axis mean something: (axis, count) by id
    defined: dict[int, tuple[int, int]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)

    # -- names and constants ------------------------------------------------------------------

    def unique(self, name: str) -> str:
        """`name`, or with a number behind it where it is taken."""
        if name not in self.names:
            self.names.add(name)
            return name
        n = self.counts.get(name, 1)
        while f"{name}#{n}" in self.names:
            n += 1
        self.counts[name] = n + 1
        self.names.add(f"{name}#{n}")
        return f"{name}#{n}"

    def settle(self) -> None:
        """Unique names for what was made outside of any node of the model."""
        for v in self.made:
            v.name = self.unique(v.name)
            if v.node is not None:
                v.node.name = v.name
        self.made = []

    def value(self, const: Const, name: str, labels: tuple[Label, ...] | None = None) -> Value:
        """A constant as a value."""
        if labels is None:
            labels = (FIXED if const.fixed else MIXED,) * len(const.shape)
        return Value(name, const.shape, const.dtype, labels, "CONST", const)

    def derived(self, const: Const, name: str) -> Value:
        """A constant of this node's own, which gets a unique name."""
        value = self.value(const, name)
        self.made.append(value)
        return value

    def constant(self, array: Any, name: str, origin: Origin = FIXED) -> Value:
        """A constant array; small fixed integers with equal content are one value."""
        array = np.asarray(array)
        const = Const.of(array, NAMES[array.dtype], origin)
        if array.size <= 64 and const.fixed and (array.size <= 1 or array.dtype.kind in "iub"):
            key = (const.dtype, const.shape, array.tobytes())
            if key not in self.interned:
                self.interned[key] = self.value(const, name)
            return self.interned[key]
        return self.value(const, name)

    def ints(self, numbers: Sequence[int], labels: Sequence[Label] = ()) -> Value:
        """A vector of int64, with the origin of each element."""
        array = np.asarray(list(numbers), np.int64)
        if not any(labels):
            return self.constant(array, f"{self.scope}.ints")
        const = Const.of(array, "int64", array_of(labels))
        return self.value(const, f"{self.scope}.ints", (FIXED,))

    def once(self, key: Hashable, make: Callable[[], Const], labels: Sequence[Label]) -> Value:
        """A constant that is the same wherever it is asked for, named after its first use."""
        if key not in self.shared:
            name = self.unique(f"{self.scope}.{key[0] if isinstance(key, tuple) else key}")
            self.shared[key] = self.value(make(), name, tuple(labels))
        return self.shared[key]

    # -- emission -----------------------------------------------------------------------------

    def emit(
        self,
        kind: str,
        inputs: Sequence[Value],
        attrs: dict[str, Any],
        shape: Sequence[int],
        dtype: str,
        labels: Sequence[Label],
        suffix: str = "",
        exact: bool = True,
    ) -> Value:
        """One primitive op, or a constant where every operand is one.

        exact: two constants with equal arguments are equal for every workload.
        """
        for v in inputs:
            if UNKNOWN in v.shape:
                raise Unsupported(f"the dimensions of '{v.name}' are not known")
        name = f"{self.scope}.{suffix or kind}"
        shape, labels = tuple(int(n) for n in shape), tuple(labels)
        if all(v.const is not None for v in inputs):
            key = (kind, tuple(sorted(attrs.items())), tuple(map(id, inputs)), shape, labels, dtype)
            if kind == "slice":  # the operands do not say the sizes, so the labels must
                exact = exact and labels[attrs["axis"]] != MIXED
            elif kind in ("reshape", "expand"):
                exact = MIXED not in labels
            if exact and key in self.folded:
                return self.folded[key][0]
            consts = [v.const for v in inputs if v.const is not None]
            folded = fold(kind, attrs, consts, shape, dtype, any(labels))
            value = Value(name, shape, dtype, labels, "CONST", folded)
            value.recipe = recipe(kind, attrs, inputs, value)
            if exact:
                self.folded[key] = value, inputs  # their ids stay taken
        else:
            if kind in ("matmul", "experts"):
                inputs = [restored(self, v) for v in inputs]
            value = self.node(kind, inputs, attrs, shape, dtype, labels, name)
        self.made.append(value)
        return value

    def node(
        self,
        kind: str,
        inputs: Sequence[Value],
        attrs: dict[str, Any],
        shape: tuple[int, ...],
        dtype: str,
        labels: tuple[Label, ...],
        name: str,
    ) -> Value:
        """One primitive op, even where every operand is a constant."""
        value = Value(name, shape, dtype, labels)
        value.node = Node(name, kind, list(inputs), attrs, value, self.source)
        return value

    # -- primitives ---------------------------------------------------------------------------

    def map(
        self, steps: Sequence[tuple[Any, ...]], inputs: Sequence[Value], suffix: str = ""
    ) -> Value:
        """An elementwise expression. steps: (fn, args, dtype) with args indices ("in", i),
        ("step", j) or plain numbers."""
        form: Steps = tuple(
            (fn, tuple(a if isinstance(a, tuple) else ("const", a) for a in args), dtype)
            for fn, args, dtype in steps
        )
        shape, labels = self.broadcast(inputs)
        if not all(v.const is not None for v in inputs):
            form, inputs = written_in(form, inputs)
        kept_shape, kept = self.broadcast(inputs)
        label = suffix or form[-1][0]
        if len(kept_shape) < len(shape):  # a constant of one element has more dimensions
            low = self.emit("map", inputs, {"steps": form}, kept_shape, form[-1][2], kept, label)
            return self.reshape(low, shape, labels, f"{label}.rank")
        return self.emit("map", inputs, {"steps": form}, shape, form[-1][2], labels, label)

    def apply(self, fn: str, *args: Value | Scalar, dtype: str = "", suffix: str = "") -> Value:
        """A map of one step over values and numbers."""
        values = [a for a in args if isinstance(a, Value)]
        index = iter(range(len(values)))
        form = tuple(("in", next(index)) if isinstance(a, Value) else a for a in args)
        if not dtype:
            dtype = "bool" if fn in COMPARISONS else values[-1].dtype
        return self.map([(fn, form, dtype)], values, suffix)

    def cast(self, x: Value, dtype: str) -> Value:
        return x if x.dtype == dtype else self.apply("cast", x, dtype=dtype)

    def broadcast(self, inputs: Sequence[Value]) -> tuple[tuple[int, ...], tuple[Label, ...]]:
        """Shape and labels of the inputs broadcast together."""
        rank = max(v.rank for v in inputs)
        shape = [1] * rank
        labels: list[Label] = [FIXED] * rank
        solid = [False] * rank  # some operand has a fixed size above one
        for v in inputs:
            for i, (size, label) in enumerate(
                zip(v.shape, v.labels, strict=True), start=rank - v.rank
            ):
                if size != shape[i] and size != 1:
                    if shape[i] != 1:
                        shapes = " and ".join(str(list(v.shape)) for v in inputs)
                        raise InputError(
                            f"Node '{self.scope}' combines tensors of shapes {shapes}, which do "
                            f"not broadcast; {FROZEN}"
                        )
                    shape[i] = size
                if label == FIXED and size != 1:
                    solid[i] = True
                elif label != FIXED and labels[i] != label:
                    # what is not followed must be one or the other operand's size
                    known = [x for x in (label, labels[i]) if x not in (FIXED, MIXED)]
                    labels[i] = known[0] if len(known) == 1 else MIXED
        found = (FIXED if fixed else label for fixed, label in zip(solid, labels, strict=True))
        return tuple(shape), tuple(found)

    def matmul(
        self,
        a: Value,
        b: Value,
        transpose_a: bool = False,
        transpose_b: bool = False,
        dtype: str = "",
        suffix: str = "",
    ) -> Value:
        """a [..., M, K] · b [..., K, N]; both of rank 2 or more."""
        m, k = (-1, -2) if transpose_a else (-2, -1)
        kb, n = (-1, -2) if transpose_b else (-2, -1)
        if a.shape[k] != b.shape[kb]:
            raise InputError(
                f"Node '{self.scope}' multiplies shapes {list(a.shape)} and {list(b.shape)}, whose "
                f"inner sizes {a.shape[k]} and {b.shape[kb]} differ; {FROZEN}"
            )
        lead = [Value("", v.shape[:-2], v.dtype, v.labels[:-2]) for v in (a, b)]
        shape, labels = self.broadcast(lead)
        attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        return self.emit(
            "matmul",
            [a, b],
            attrs,
            (*shape, a.shape[m], b.shape[n]),
            dtype or a.dtype,
            (*labels, a.labels[m], b.labels[n]),
            suffix,
        )

    def reduce(
        self, fn: str, x: Value, axes: Sequence[int], keepdims: bool = True, suffix: str = ""
    ) -> Value:
        axes = tuple(sorted(a % x.rank for a in axes))
        kept = [i for i in range(x.rank) if keepdims or i not in axes]
        shape = [1 if i in axes else x.shape[i] for i in kept]
        labels = [FIXED if i in axes else x.labels[i] for i in kept]
        attrs = {"fn": fn, "axes": axes, "keepdims": bool(keepdims)}
        return self.emit("reduce", [x], attrs, shape, x.dtype, labels, suffix or fn)

    def transpose(self, x: Value, perm: Sequence[int], suffix: str = "") -> Value:
        perm = tuple(int(p) % x.rank for p in perm)
        if perm == tuple(range(x.rank)):
            return x
        back = cache_below(x, "transpose")
        turned = x.node.attrs["perm"] if back is not None and x.node is not None else perm
        if back is not None and tuple(turned[p] for p in perm) == tuple(range(x.rank)):
            return back
        shape, labels = [x.shape[p] for p in perm], [x.labels[p] for p in perm]
        return self.emit("transpose", [x], {"perm": perm}, shape, x.dtype, labels, suffix)

    def reshape(
        self, x: Value, shape: Sequence[int], labels: Sequence[Label], suffix: str = ""
    ) -> Value:
        if prod(shape) != prod(x.shape):
            raise InputError(
                f"Node '{self.scope}' reshapes {list(x.shape)} to {list(shape)}, which has another "
                f"number of elements; {FROZEN}"
            )
        if tuple(shape) == x.shape and tuple(labels) == x.labels and MIXED not in labels:
            return x
        back = cache_below(x, "reshape")
        if back is not None and (tuple(shape), tuple(labels)) == (back.shape, back.labels):
            return back
        return self.emit("reshape", [x], {}, shape, x.dtype, labels, suffix)

    def expand(
        self, x: Value, shape: Sequence[int], labels: Sequence[Label], suffix: str = ""
    ) -> Value:
        return self.emit("expand", [x], {}, shape, x.dtype, labels, suffix)

    def slice(
        self,
        x: Value,
        axis: int,
        start: int,
        length: int,
        label: Label,
        step: int = 1,
        suffix: str = "",
        exact: bool = True,
    ) -> Value:
        """`length` elements along `axis`; exact: `start` is the same for every workload."""
        axis %= x.rank
        if step == 1 and exact and (part := part_of_stack(x, axis, start, length)) is not None:
            return part
        shape, labels = list(x.shape), list(x.labels)
        shape[axis], labels[axis] = length, label
        attrs = {"axis": axis, "start": start, "step": step}
        return self.emit("slice", [x], attrs, shape, x.dtype, labels, suffix, exact)

    def concat(self, parts: Sequence[Value], axis: int, suffix: str = "") -> Value:
        first = parts[0]
        axis %= first.rank
        shape, labels = list(first.shape), list(first.labels)
        shape[axis] = sum(p.shape[axis] for p in parts)
        labels[axis] = total([p.labels[axis] for p in parts], [p.shape[axis] for p in parts])
        return self.emit("concat", parts, {"axis": axis}, shape, first.dtype, labels, suffix)

    def gather(self, data: Value, indices: Value, axis: int, suffix: str = "") -> Value:
        axis %= data.rank
        if data.recipe is not None and indices.const is None:
            return gathered(self, data, indices, axis, suffix)
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        labels = (*data.labels[:axis], *indices.labels, *data.labels[axis + 1 :])
        return self.emit(
            "gather", [data, indices], {"axis": axis}, shape, data.dtype, labels, suffix
        )

    def unpack(self, x: Value, bits: int, signed: bool = False, suffix: str = "") -> Value:
        """Bytes [..., n] → int8 or uint8 [..., n · 8 / bits], low bits first."""
        shape = (*x.shape[:-1], x.shape[-1] * (8 // bits))
        attrs = {"bits": bits, "signed": signed}
        dtype = "int8" if signed else "uint8"
        return self.emit("unpack", [x], attrs, shape, dtype, x.labels, suffix)

    def sized(self, past: Value, new: Value) -> Value:
        """A cache input whose unknown dimensions are those of the new tokens."""
        if UNKNOWN in past.shape:
            pairs = zip(past.shape, new.shape, strict=True)
            past.shape = tuple(p if n == UNKNOWN else n for n, p in pairs)
        return past

    def append(self, past: Value | None, new: Value, axis: int, suffix: str = "") -> Value:
        """`new` behind `past` in past's own memory; fills in past's unknown dimensions.

        A past that is no cache input is an ordinary operand.
        """
        axis %= new.rank
        if past is not None and past.source != "CACHE":
            behind = append_behind(self, past, new, axis, suffix or "append")
            return self.concat([past, new], axis, suffix) if behind is None else behind
        shape, labels = list(new.shape), list(new.labels)
        inputs = [new]
        if past is not None:
            sizes = self.sized(past, new).shape
            if [s for i, s in enumerate(sizes) if i != axis] != [
                s for i, s in enumerate(new.shape) if i != axis
            ]:
                raise InputError(
                    f"Node '{self.scope}' appends {list(new.shape)} to the cache '{past.name}' of "
                    f"shape {list(past.shape)}, which differs beside the token axis {axis}; "
                    f"{FROZEN}"
                )
            pair = (past, new)
            labels[axis] = total([v.labels[axis] for v in pair], [v.shape[axis] for v in pair])
            shape[axis] += past.shape[axis]
            inputs = [past, new]
        return self.emit("append", inputs, {"axis": axis}, shape, new.dtype, labels, suffix)

    # -- common sequences ---------------------------------------------------------------------

    def insert_axis(self, x: Value, axis: int, suffix: str = "") -> Value:
        """A new dimension of size one before `axis` of the result."""
        shape, labels = list(x.shape), list(x.labels)
        shape.insert(axis, 1)
        labels.insert(axis, FIXED)
        return self.reshape(x, shape, labels, suffix)

    def softmax(self, x: Value, axes: int | Sequence[int], dtype: str, inner: str) -> Value:
        """Softmax over `axes`, computed and stored in `inner`, delivered in `dtype`."""
        axes = [axes] if isinstance(axes, int) else axes
        top = self.reduce("max", x, axes, suffix="max")
        steps = [("sub", (("in", 0), ("in", 1)), inner), ("exp", (("step", 0),), inner)]
        weights = self.map(steps, [x, top], "exp")
        total = self.reduce("sum", weights, axes, suffix="sum")
        return self.apply("div", weights, total, dtype=dtype, suffix="div")
