"""Weights that are stored smaller than they are used: packed, quantised, blockwise scaled.

A constant that is computed from a smaller one keeps its recipe, the primitive op and operands that
make it. What only needs its value folds it as ever; a matmul reads it through its recipe instead,
as ops of its own that fusion takes into the kernel, so that the weight stays small in SRAM; and a
table lookup picks rows of the small constants first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from meshc.frontend.folding import Const, Steps, python_scalar
from meshc.frontend.labels import FIXED, array_of, loose
from meshc.frontend.reader import SMALL
from meshc.frontend.weights import absence, is_external, read_packed
from meshc.ir.dtypes import size_bytes
from meshc.ops.unpack import unpacked

if TYPE_CHECKING:
    from meshc.frontend.builder import Builder, Value
    from meshc.frontend.reader import Model

VIEWS = ("transpose", "reshape", "slice", "expand")
_FEW = 64  # elements: constants up to this size are read at once


@dataclass(eq=False, frozen=True, slots=True)
class Recipe:
    """The primitive op that makes a constant. bytes: of the constants that it begins with."""

    kind: str
    inputs: tuple[Value, ...]
    attrs: dict[str, Any]
    bytes: int


def recipe(kind: str, attrs: dict[str, Any], inputs: Sequence[Value], made: Value) -> Recipe | None:
    """How the folded constant `made` comes from smaller ones; None where it does not."""
    if made.const is None or not made.const.fixed or any(made.labels) or made.rank < 2:
        return None
    if kind == "map":
        size = prod(made.shape)
        narrow = [v for v in inputs if size_bytes(v.dtype) == 1 and v.dtype != "bool"]
        begins = any(prod(v.shape) == size for v in narrow)
    else:
        begins = kind == "unpack"
        if not begins and kind not in VIEWS:
            return None
    if not begins and all(v.recipe is None for v in inputs):
        return None
    total = sum(
        v.recipe.bytes if v.recipe is not None else prod(v.shape) * size_bytes(v.dtype)
        for v in inputs
    )
    return Recipe(kind, tuple(inputs), attrs, total)


def restored(b: Builder, v: Value) -> Value:
    """`v`, or ops that make it from smaller constants.

    The ops are new ones at each call: whoever reads them can take them into its own kernel.
    """
    r = v.recipe
    if r is None or r.bytes >= prod(v.shape) * size_bytes(v.dtype):
        return v
    return _made(b, v)


def written_in(form: Steps, inputs: Sequence[Value]) -> tuple[Steps, list[Value]]:
    """Write fixed one-element constants into the steps."""
    kept: list[Value] = []
    new: list[tuple[str, Any]] = []
    for v in inputs:
        c = v.const
        known = c is not None and c.fixed and c.size == 1 and not c.outside
        if c is not None and known and not loose(array_of(v.labels)):
            new.append(("const", python_scalar(c)))
        elif any(v is k for k in kept):
            new.append(("in", next(i for i, k in enumerate(kept) if k is v)))
        else:
            new.append(("in", len(kept)))
            kept.append(v)
    steps = tuple(
        (fn, tuple(new[a[1]] if a[0] == "in" else a for a in args), dtype)
        for fn, args, dtype in form
    )
    return steps, kept


def _made(b: Builder, v: Value) -> Value:
    r = v.recipe
    if r is None:
        return v
    if r.kind == "slice":
        part = (r.attrs["start"], v.shape[r.attrs["axis"]], r.attrs["step"])
        cut = _cut(b, r.inputs[0], r.attrs["axis"], part)
        if cut is not None:
            return cut
    return _op(b, v, r, [_made(b, i) for i in r.inputs], v.shape)


def _op(b: Builder, v: Value, r: Recipe, inputs: list[Value], shape: tuple[int, ...]) -> Value:
    """The op of a recipe on these operands."""
    name = f"{b.scope}.{v.name.rsplit('.', 1)[-1]}.stored"
    attrs = r.attrs
    if r.kind == "map":
        steps, inputs = written_in(attrs["steps"], inputs)
        attrs = {"steps": steps}
    value = b.node(r.kind, inputs, attrs, shape, v.dtype, v.labels, name)
    b.made.append(value)
    return value


def _cut(b: Builder, v: Value, axis: int, part: tuple[int, int, int]) -> Value | None:
    """Start, length and step of an axis of `v`, cut out of the constants that it is made of, so
    that the axis can be divided; None where they do not have it."""
    start, length, step = part
    r = v.recipe
    if r is None:
        return b.slice(v, axis, start, length, FIXED, step, "cut")
    shape = (*v.shape[:axis], length, *v.shape[axis + 1 :])
    inner, found = r.inputs[0], None
    if r.kind == "map":
        parts = []
        for i in r.inputs:
            at = axis - (v.rank - i.rank)
            whole = at < 0 or i.shape[at] != v.shape[axis]
            parts.append(_made(b, i) if whole else _cut(b, i, at, part))
        known = [p for p in parts if p is not None]
        return _op(b, v, r, known, shape) if len(known) == len(parts) else None
    if r.kind == "unpack" and axis != v.rank - 1:
        found = _cut(b, inner, axis, part)
    elif r.kind == "transpose":
        found = _cut(b, inner, r.attrs["perm"][axis], part)
    elif r.kind == "reshape" and inner.shape[: axis + 1] == v.shape[: axis + 1]:
        found = _cut(b, inner, axis, part)
    return None if found is None else _op(b, v, r, [found], shape)


def gathered(b: Builder, data: Value, indices: Value, axis: int, suffix: str = "") -> Value:
    """gather(data, indices) by picking from the constants that `data` is made of."""
    r = data.recipe
    rank, more = data.rank, indices.rank - 1
    if r is not None and r.kind == "map":
        parts = [_picked(b, v, indices, axis - (rank - v.rank), data.shape[axis]) for v in r.inputs]
        return b.map(r.attrs["steps"], parts, suffix or "picked")
    inner = r.inputs[0] if r is not None else data
    if r is not None and r.kind == "unpack" and axis != rank - 1:
        rows = b.gather(inner, indices, axis)
        return b.unpack(rows, r.attrs["bits"], r.attrs["signed"], suffix)
    if r is not None and r.kind == "transpose":
        perm = r.attrs["perm"]
        at = perm[axis]
        rows = b.gather(inner, indices, at)
        place = [p if p < at else p + more for p in perm]
        place[axis : axis + 1] = range(at, at + indices.rank)
        return b.transpose(rows, place, suffix)
    if r is not None and r.kind == "reshape" and inner.shape[: axis + 1] == data.shape[: axis + 1]:
        rows = b.gather(inner, indices, axis)
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        labels = (*data.labels[:axis], *indices.labels, *data.labels[axis + 1 :])
        return b.reshape(rows, shape, labels, suffix)
    if r is not None and r.kind == "slice" and r.attrs["axis"] != axis:
        cut = r.attrs["axis"]
        rows = b.gather(inner, indices, axis)
        to = cut if cut < axis else cut + more
        start, step = r.attrs["start"], r.attrs["step"]
        return b.slice(rows, to, start, data.shape[cut], FIXED, step, suffix)
    assert data.const is not None  # what is left needs all of the value
    return b.gather(b.derived(data.const, data.name), indices, axis, suffix)


def _picked(b: Builder, v: Value, indices: Value, axis: int, size: int) -> Value:
    """The part of a map's operand that broadcasts against the picked rows."""
    if axis < 0:
        return v
    if v.shape[axis] == size != 1:
        return b.gather(v, indices, axis)
    ones = (1,) * indices.rank
    shape = (*v.shape[:axis], *ones, *v.shape[axis + 1 :])
    return b.reshape(v, shape, (FIXED,) * len(shape), "row")


def small_tensor(b: Builder, model: Model, tensor: Any, name: str) -> Value:
    """A TensorProto of elements smaller than a byte: integers as int8 or uint8, floats as fp32."""
    kind, bits = SMALL[tensor.data_type]
    shape = tuple(int(d) for d in tensor.dims)
    rows = (*shape[:-1], -(-shape[-1] * bits // 8)) if shape else (1,)
    signed = kind.startswith("int")
    lacks = absence(model, tensor)
    outside = is_external(tensor) or bool(lacks)
    if prod(shape) <= _FEW and not outside:
        bytes_ = read_packed(model, tensor)
        codes = unpacked(bytes_, bits, signed)[..., : shape[-1] if shape else 1].reshape(shape)
        dtype = "int8" if signed else "uint8"
        value = b.value(Const.of(codes, dtype), name)
    else:
        const = Const(
            rows, "uint8", FIXED, lambda: read_packed(model, tensor), outside=outside, lacks=lacks
        )
        value = b.unpack(b.value(const, name), bits, signed, "unpack")
        if value.shape[-1] != (shape or (1,))[-1]:
            value = b.slice(value, -1, 0, (shape or (1,))[-1], FIXED, suffix="row")
        if not shape:
            value = b.reshape(value, (), (), "number")
    if kind == "fp4e2m1":
        value = b.apply("e2m1", value, dtype="fp32", suffix="value")
    value.small = kind
    return value
