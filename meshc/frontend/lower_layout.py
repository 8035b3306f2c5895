"""Operators that pad, reorder or pick elements at places known when compiling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, known, need, onnx_dtype, optional
from meshc.frontend.folding import Const
from meshc.frontend.labels import FIXED, MIXED, Label, divide, multiply, product
from meshc.frontend.lower_shape import sizes_of
from meshc.frontend.padding import padded
from meshc.ir.dtypes import NUMPY

Values = Sequence[Value | None]


def pad(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Pads are an operand since opset 11, axes since 18."""
    v = need(x, 0)
    mode = call.attr("mode", "constant")
    fill: Value | float = 0.0
    if len(x) > 1:
        numbers, origins = sizes_of(x, 1)
        fill = optional(x, 2) or 0.0
        axes = list(range(v.rank)) if optional(x, 3) is None else sizes_of(x, 3)[0]
    else:
        numbers = [int(n) for n in call.attr("pads")]
        origins = [FIXED] * len(numbers)
        fill, axes = float(call.attr("value", 0.0)), list(range(v.rank))
    count = len(axes)
    if len(numbers) != 2 * count:
        raise Unsupported(f"with {len(numbers)} pads for {count} axes")
    pads, labels = [(0, 0)] * v.rank, [(FIXED, FIXED)] * v.rank
    for i, axis in enumerate(axes):
        pads[axis % v.rank] = numbers[i], numbers[i + count]
        labels[axis % v.rank] = origins[i], origins[i + count]
    return [padded(b, v, pads, labels, mode, fill)]


def depth_to_space(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """[N, C·s², H, W] → [N, C, H·s, W·s]."""
    v, s, mode = need(x, 0), int(call.attr("blocksize")), call.attr("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise Unsupported(f"with mode '{mode}'")
    (n, c, h, w), (ln, lc, lh, lw) = v.shape, v.labels
    each, label = c // (s * s), divide(lc, FIXED, s * s)
    if mode == "DCR":
        shape, labels = (n, s, s, each, h, w), (ln, FIXED, FIXED, label, lh, lw)
        perm = (0, 3, 4, 1, 5, 2)
    else:
        shape, labels = (n, each, s, s, h, w), (ln, label, FIXED, FIXED, lh, lw)
        perm = (0, 1, 4, 2, 5, 3)
    turned = b.transpose(b.reshape(v, shape, labels, "blocks"), perm, "turn")
    tall, wide = (multiply(label_, FIXED, size, s) for label_, size in ((lh, h), (lw, w)))
    return [b.reshape(turned, (n, each, h * s, w * s), (ln, label, tall, wide))]


def space_to_depth(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """[N, C, H·s, W·s] → [N, s²·C, H, W]."""
    v, s = need(x, 0), int(call.attr("blocksize"))
    (n, c, h, w), (ln, lc, lh, lw) = v.shape, v.labels
    low, left = divide(lh, FIXED, s), divide(lw, FIXED, s)
    shape, labels = (n, c, h // s, s, w // s, s), (ln, lc, low, FIXED, left, FIXED)
    turned = b.transpose(b.reshape(v, shape, labels, "blocks"), (0, 3, 5, 1, 2, 4), "turn")
    deep = multiply(lc, FIXED, c, s * s)
    return [b.reshape(turned, (n, c * s * s, h // s, w // s), (ln, deep, low, left))]


def reverse_sequence(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """The first lengths[i] elements of sequence i turned round; lengths known when compiling."""
    v, lengths = need(x, 0), known(x, 1)
    time, batch = int(call.attr("time_axis", 0)), int(call.attr("batch_axis", 1))
    if sorted((time, batch)) != [0, 1]:
        raise Unsupported(f"with time_axis {time} and batch_axis {batch}")
    steps, rows = v.shape[time], v.shape[batch]
    at = np.arange(steps)[:, None]
    ends = lengths.array().reshape(1, -1)
    at = np.where(at < ends, ends - 1 - at, at)  # [time, batch]
    flat = at * rows + np.arange(rows) if time == 0 else (np.arange(rows) * steps + at).T
    whole = product(v.labels[:2], v.shape[:2])
    origin = MIXED if whole != FIXED or not lengths.fixed else FIXED
    places = b.value(Const.of(flat.reshape(-1).astype(np.int64), "int64", origin),
                     f"{b.scope}.places", (whole,))  # fmt: skip
    merged = b.reshape(v, (steps * rows, *v.shape[2:]), (whole, *v.labels[2:]), "merge")
    return [b.reshape(b.gather(merged, places, 0, "turn"), v.shape, v.labels)]


def compress(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """The elements where a condition known when compiling holds."""
    v, chosen = need(x, 0), known(x, 1)
    axis = call.attr("axis")
    if axis is None:
        v = b.reshape(v, (int(np.prod(v.shape)),), (product(v.labels, v.shape),), "flat")
        axis = 0
    at = np.nonzero(chosen.array().reshape(-1))[0].astype(np.int64)
    origin: Label = FIXED if chosen.fixed else MIXED
    places = b.value(Const.of(at, "int64", origin), f"{b.scope}.places", (origin,))
    return [b.gather(v, places, int(axis))]


def eye_like(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """The identity matrix of an operand's shape; its values do not matter."""
    v = need(x, 0)
    dtype = call.attr("dtype")
    kind = v.dtype if dtype is None else onnx_dtype(int(dtype))
    rows, cols = v.shape
    array = np.eye(rows, cols, int(call.attr("k", 0))).astype(NUMPY[kind])
    origin = MIXED if any(v.labels) else FIXED
    return [b.value(Const.of(array, kind, origin), f"{b.scope}.eye", v.labels)]


def expand_dims(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """com.microsoft ExpandDims: one new axis, which is an operand."""
    axis = int(known(x, 1).array().reshape(-1)[0])
    v = need(x, 0)
    return [b.insert_axis(v, axis % (v.rank + 1))]


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "Pad"): pad,
    ("com.microsoft", "Pad"): pad,
    ("", "DepthToSpace"): depth_to_space,
    ("", "SpaceToDepth"): space_to_depth,
    ("", "ReverseSequence"): reverse_sequence,
    ("", "Compress"): compress,
    ("", "EyeLike"): eye_like,
    ("com.microsoft", "ExpandDims"): expand_dims,
}
