"""Tensors made longer or shorter at their ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.folding import Const
from meshc.frontend.labels import FIXED, MIXED, Label, add

MODES = ("constant", "edge", "reflect", "wrap")


def padded(
    b: Builder,
    x: Value,
    pads: Sequence[tuple[int, int]],
    labels: Sequence[tuple[Label, Label]] = (),
    mode: str = "constant",
    fill: Value | float = 0.0,
) -> Value:
    """`x` with (before, after) elements more at the ends of each axis, negative ones cut off.

    labels: origins of the numbers.   fill: a number, or a value of one element.
    """
    if mode not in MODES:
        raise Unsupported(f"with mode '{mode}'")
    given = list(labels) or [(FIXED, FIXED)] * x.rank
    for axis, ((before, after), origin) in enumerate(zip(pads, given, strict=True)):
        x = _cut(b, x, axis, (before, after), origin)
    # every end is padded from the axis as it was cut
    for axis, ((before, after), origin) in enumerate(zip(pads, given, strict=True)):
        sizes = max(before, 0), max(after, 0)
        if sizes == (0, 0) and origin == (FIXED, FIXED):
            continue
        if mode == "constant":
            ends = [_filled(b, x, axis, n, o, fill) for n, o in zip(sizes, origin, strict=True)]
        else:
            ends = [_mirrored(b, x, axis, sizes[i], origin[i], mode, i) for i in (0, 1)]
        parts = [ends[0], x, ends[1]]
        keep = [i for i in (0, 2) if sizes[i // 2] or origin[i // 2] != FIXED]
        x = b.concat([p for i, p in enumerate(parts) if i == 1 or i in keep], axis, f"pad{axis}")
    return x


def _cut(
    b: Builder, x: Value, axis: int, pads: tuple[int, int], origin: tuple[Label, Label]
) -> Value:
    before, after = (max(-n, 0) for n in pads)
    if not before and not after:
        return x
    size, label = x.shape[axis], x.labels[axis]
    for n, o in ((before, origin[0]), (after, origin[1])):
        if n:
            label = add(label, o, x.shape[axis], n, -1)
    length = max(size - before - after, 0)
    return b.slice(x, axis, before, length, label, suffix=f"cut{axis}", exact=origin[0] == FIXED)


def _filled(
    b: Builder, x: Value, axis: int, size: int, origin: Label, fill: Value | float
) -> Value:
    shape, labels = list(x.shape), list(x.labels)
    shape[axis], labels[axis] = size, origin
    if not isinstance(fill, Value):
        fill = b.constant(np.asarray(fill), f"{b.scope}.fill")
    return b.expand(b.reshape(b.cast(fill, x.dtype), (), ()), shape, labels, f"fill{axis}")


def _mirrored(
    b: Builder, x: Value, axis: int, size: int, origin: Label, mode: str, behind: int
) -> Value:
    """The elements that continue `x` before its first (behind 0) or after its last one."""
    n = x.shape[axis]
    if size and not n:
        raise Unsupported(f"with mode '{mode}' of no elements")
    steps = np.arange(n, n + size) if behind else np.arange(-size, 0)
    if mode == "edge":
        at = np.clip(steps, 0, max(n - 1, 0))
    elif mode == "wrap":
        at = steps % max(n, 1)
    else:
        period = max(2 * (n - 1), 1)
        at = steps % period
        at = np.where(at >= n, period - at, at)
    loose = MIXED if origin != FIXED or x.labels[axis] != FIXED else FIXED
    places = b.value(Const.of(at.astype(np.int64), "int64", loose), f"{b.scope}.places", (origin,))
    return b.gather(x, places, axis, f"{mode}{axis}")
