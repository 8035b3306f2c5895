"""Sizes of views, as the hot loops ask for them: without properties and generators."""

from __future__ import annotations

from math import ceil

from meshc.ir.dtypes import NUMPY
from meshc.ir.stream import View

ITEM_BYTES = {name: dtype.itemsize for name, dtype in NUMPY.items()}


def view_bytes(view: View) -> int:
    """Bytes of the view's elements."""
    size = ITEM_BYTES[view.dtype]
    for r in view.ranges:
        size *= len(r)
    return size


def array_bytes(view: View) -> int:
    """Bytes of the whole array that the view is a part of."""
    size = ITEM_BYTES[view.dtype]
    for n in view.extent:
        size *= n
    return size


def serial_cycles(size: int, rate: float) -> int:
    """Whole cycles of `size` bytes on a link or port of `rate` bytes per cycle, at least one."""
    return max(1, ceil(size / rate))
