"""Convolutions and pools: shifted copies of the data, and a matmul or a sum of them.

The encoders of speech and vision models begin with a few of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as every
from math import inf, prod
from typing import Any

import numpy as np

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.formula import Formula, Term, formula, inner_dtype
from meshc.frontend.labels import FIXED, MIXED, Label, add, product
from meshc.frontend.lower_activation import activated
from meshc.frontend.padding import padded
from meshc.ir.dtypes import FLOATS, NUMPY

Values = Sequence[Value | None]


@dataclass(frozen=True)
class Window:
    """How a kernel moves over the spatial axes; pads are (before, after) of each, `beyond` what
    rounding up adds behind them."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    origins: tuple[tuple[Label, Label], ...]
    beyond: tuple[int, ...]
    out: tuple[int, ...]
    labels: tuple[Label, ...]

    def tiles(self, sizes: Sequence[int], labels: Sequence[Label]) -> bool:
        """Whether the windows lie side by side and cover everything."""
        return (
            self.kernel == self.strides
            and all(d == 1 for d in self.dilations)
            and not any(labels)
            and all(p == (0, 0) for p in self.pads)
            and not any(self.beyond)
            and all(n % k == 0 for n, k in zip(sizes, self.kernel, strict=True))
        )


def window(call: Call, v: Value, kernel: Sequence[int]) -> Window:
    """The window of a convolution or pool on [N, C, …]."""
    rank = v.rank - 2
    if len(kernel) != rank or rank < 1:
        raise Unsupported(f"with a kernel of {len(kernel)} dimensions on {v.rank} dimensions")
    strides = tuple(int(n) for n in call.attr("strides", [1] * rank))
    dilations = tuple(int(n) for n in call.attr("dilations", [1] * rank))
    numbers = [int(n) for n in call.attr("pads", [0] * (2 * rank))]
    kind, up = call.attr("auto_pad", "NOTSET"), bool(call.attr("ceil_mode", 0))
    if kind not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise Unsupported(f"with auto_pad '{kind}'")
    pads, origins, beyond, out, labels = [], [], [], [], []
    for i in range(rank):
        size, label, s = v.shape[i + 2], v.labels[i + 2], strides[i]
        reach = (kernel[i] - 1) * dilations[i] + 1
        loose = label if s == 1 else MIXED if label else FIXED
        pad, origin = (numbers[i], numbers[i + rank]), FIXED
        if kind == "VALID":
            pad = (0, 0)
        elif kind != "NOTSET":
            whole = max((-(-size // s) - 1) * s + reach - size, 0)
            small, large = whole // 2, whole - whole // 2
            pad = (small, large) if kind == "SAME_UPPER" else (large, small)
            origin = MIXED if label and s > 1 else FIXED
        room = size + sum(pad) - reach
        if room < 0:
            raise Unsupported(f"with a kernel that reaches over {reach} of {size + sum(pad)}")
        steps = room // s + 1
        if up and room % s and steps * s < size + pad[0]:
            steps += 1
        beyond.append(max((steps - 1) * s - room, 0))
        label = add(label, FIXED, size, steps - size) if s == 1 else loose
        pads.append(pad)
        origins.append((origin, MIXED if up and v.labels[i + 2] and s > 1 else origin))
        out.append(steps)
        labels.append(label)
    return Window(tuple(kernel), strides, dilations, tuple(pads), tuple(origins), tuple(beyond),
                  tuple(out), tuple(labels))  # fmt: skip


def surrounded(b: Builder, v: Value, w: Window, fill: float) -> Value:
    """`v` with the window's padding."""
    pads = [(0, 0), (0, 0)]
    pads += [(p, q + more) for (p, q), more in zip(w.pads, w.beyond, strict=True)]
    return padded(b, v, pads, [(FIXED, FIXED)] * 2 + list(w.origins), "constant", fill)


def taps(b: Builder, v: Value, w: Window) -> list[Value]:
    """What each position of the kernel sees: strided slices, in row-major order."""
    found = []
    for at in every(*(range(k) for k in w.kernel)):
        part = v
        for i, k in enumerate(at):
            axis, start, length = i + 2, k * w.dilations[i], w.out[i]
            same = start == 0 and w.strides[i] == 1 and v.shape[axis] == length
            if same and v.labels[axis] == w.labels[i] != MIXED:
                continue
            part = b.slice(
                part, axis, start, length, w.labels[i], w.strides[i], f"tap{k}axis{axis}"
            )
        found.append(part)
    return found


def tiled(b: Builder, v: Value, w: Window) -> Value:
    """[N, C, o₁·k₁, …] → [N, C, o₁, k₁, …]."""
    shape, labels = list(v.shape[:2]), list(v.labels[:2])
    for o, k in zip(w.out, w.kernel, strict=True):
        shape += [o, k]
        labels += [FIXED, FIXED]
    return b.reshape(v, shape, labels, "tiles")


def convolved(b: Builder, call: Call, v: Value, kernel: Value, bias: Value | None) -> Value:
    """[N, C, …] with kernels [M, C/groups, …]: one matmul per group."""
    groups = int(call.attr("group", 1))
    given = call.attr("kernel_shape")
    if given is not None and tuple(given) != kernel.shape[2:]:
        raise Unsupported(f"with kernel_shape {list(given)} and a kernel {list(kernel.shape)}")
    w = window(call, v, kernel.shape[2:])
    count, channels, (m, each) = v.shape[0], v.shape[1], kernel.shape[:2]
    if channels != each * groups or m % groups:
        raise Unsupported(f"with {channels} channels and {groups} groups of {each}")
    points, label = prod(w.out), product(w.labels, w.out)
    rank, depth = v.rank - 2, each * prod(w.kernel)
    if w.tiles(v.shape[2:], v.labels[2:]):
        cells = tiled(b, v, w)
        order = (0, 1, *(3 + 2 * i for i in range(rank)), *(2 + 2 * i for i in range(rank)))
        seen = b.transpose(cells, order, "patches")
        rows = kernel
    else:
        parts = taps(b, surrounded(b, v, w, 0.0), w)
        if groups > 1:
            parts = [
                b.reshape(p, (count, groups, each, *w.out),
                          (v.labels[0], FIXED, FIXED, *w.labels), "group")
                for p in parts
            ]  # fmt: skip
        seen = b.concat(parts, 2 if groups > 1 else 1, "taps") if len(parts) > 1 else parts[0]
        rows = b.transpose(kernel, (0, *range(2, 2 + rank), 1), "kernel.turn")
    if groups == 1:
        seen = b.reshape(seen, (count, depth, points), (v.labels[0], FIXED, label), "columns")
        rows = b.reshape(rows, (m, depth), (FIXED, FIXED), "kernel")
    else:
        split = (count, groups, depth, points), (v.labels[0], FIXED, FIXED, label)
        seen = b.reshape(seen, *split, "columns")
        rows = b.reshape(rows, (groups, m // groups, depth), (FIXED,) * 3, "kernel")
    out = b.matmul(rows, seen, suffix="product")
    flat = b.reshape(out, (count, m, points), (v.labels[0], FIXED, label), "channels")
    if bias is not None:
        flat = b.apply("add", flat, b.reshape(bias, (m, 1), (FIXED, FIXED), "bias"), suffix="sum")
    return b.reshape(flat, (count, m, *w.out), (v.labels[0], FIXED, *w.labels), "image")


def conv(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    return [convolved(b, call, need(x, 0), need(x, 1), optional(x, 2))]


def fused_conv(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """com.microsoft: a convolution, a sum and an activation."""
    out = convolved(b, call, need(x, 0), need(x, 1), optional(x, 2))
    other = optional(x, 3)
    if other is not None:
        out = b.apply("add", out, other, suffix="added")
    name, numbers = call.attr("activation", ""), call.attr("activation_params", ())
    return [activated(b, out, name, [float(n) for n in numbers]) if name else out]


def _kernel(call: Call) -> list[int]:
    return [int(n) for n in call.attr("kernel_shape")]


def max_pool(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    if call.wants(1):
        raise Unsupported("with indices as an output")
    call.ignore("storage_order")  # of the indices
    v = need(x, 0)
    w = window(call, v, _kernel(call))
    if w.tiles(v.shape[2:], v.labels[2:]):
        axes = [3 + 2 * i for i in range(v.rank - 2)]
        return [b.reduce("max", tiled(b, v, w), axes, keepdims=False)]
    least: Any = -inf if v.dtype in FLOATS else int(np.iinfo(NUMPY[v.dtype]).min)
    top, *others = taps(b, surrounded(b, v, w, least), w)
    for part in others:
        top = b.apply("max", top, part)
    return [top]


def average_pool(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """The sum of a window over its number of elements, padding counted or not."""
    v = need(x, 0)
    w, counted = window(call, v, _kernel(call)), bool(call.attr("count_include_pad", 0))
    inner = inner_dtype(v.dtype)
    wide = b.cast(v, inner)
    if w.tiles(v.shape[2:], v.labels[2:]):
        axes = [3 + 2 * i for i in range(v.rank - 2)]
        return [b.cast(b.reduce("mean", tiled(b, wide, w), axes, keepdims=False), v.dtype)]
    total, *others = taps(b, surrounded(b, wide, w, 0.0), w)
    for part in others:
        total = b.apply("add", total, part)
    counts = np.ones((1, 1), np.int64)
    for i, size in enumerate(v.shape[2:]):
        (before, after), ends = w.pads[i], float(counted)
        real = np.concatenate([np.full(before, ends), np.ones(size), np.full(after, ends),
                               np.zeros(w.beyond[i])])  # fmt: skip
        at = np.arange(w.out[i])[:, None] * w.strides[i]
        seen = real[at + np.arange(w.kernel[i]) * w.dilations[i]].sum(axis=1)
        counts = counts[..., None] * seen
    origin = MIXED if any(w.labels) else FIXED
    labels = (FIXED, FIXED, *w.labels)
    number = b.value(Const.of(counts.astype(NUMPY[inner]), inner, origin),
                     f"{b.scope}.counts", labels)  # fmt: skip
    return [b.apply("div", total, number, dtype=v.dtype)]


def lp_pool(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v, p = need(x, 0), int(call.attr("p", 2))
    w = window(call, v, _kernel(call))
    total, *others = taps(b, surrounded(b, _power(b, v, p), w, 0.0), w)
    for part in others:
        total = b.apply("add", total, part)
    return [_root(b, total, p, v.dtype)]


def _power(b: Builder, v: Value, p: int) -> Value:
    return formula(b, [v], lambda f, a: f("pow", f("abs", a), p), inner_dtype(v.dtype))


def _root(b: Builder, v: Value, p: int, dtype: str) -> Value:
    return formula(b, [v], lambda f, a: f("pow", a, 1.0 / p), dtype)


def global_pool(fn: str) -> Lowering:
    def lower(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
        v = need(x, 0)
        axes = list(range(2, v.rank))
        if fn != "lp":
            return [b.reduce(fn, v, axes)]
        p = int(call.attr("p", 2))
        return [_root(b, b.reduce("sum", _power(b, v, p), axes), p, v.dtype)]

    return lower


def lrn(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """x / (bias + α/size · Σ x²) ^ β, the sum over `size` neighbouring channels."""
    v, size = need(x, 0), int(call.attr("size"))
    alpha, beta = float(call.attr("alpha", 1e-4)), float(call.attr("beta", 0.75))
    bias, inner = float(call.attr("bias", 1.0)), inner_dtype(v.dtype)
    squares = formula(b, [v], lambda f, a: f("mul", a, a), inner, suffix="squares")
    before = (size - 1) // 2
    pads = [(before, size - 1 - before) if i == 1 else (0, 0) for i in range(v.rank)]
    around = padded(b, squares, pads)
    parts = [b.slice(around, 1, k, v.shape[1], v.labels[1], suffix=f"tap{k}") for k in range(size)]
    total = parts[0]
    for part in parts[1:]:
        total = b.apply("add", total, part)

    def write(f: Formula, a: Term, s: Term) -> None:
        f("div", a, f("pow", f("add", f("mul", s, alpha / size), bias), beta))

    return [formula(b, [v, total], write, v.dtype, inner)]


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "Conv"): conv,
    ("com.microsoft", "FusedConv"): fused_conv,
    ("", "MaxPool"): max_pool,
    ("", "AveragePool"): average_pool,
    ("", "LpPool"): lp_pool,
    ("", "GlobalAveragePool"): global_pool("mean"),
    ("", "GlobalMaxPool"): global_pool("max"),
    ("", "GlobalLpPool"): global_pool("lp"),
    ("", "LRN"): lrn,
}
