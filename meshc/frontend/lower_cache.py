"""Operators that write into a cache of fixed length, and the state of a causal convolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshc.frontend import lower_index
from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.cacheviews import under
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.formula import formula
from meshc.frontend.indexing import iota, pick
from meshc.frontend.labels import FIXED, MIXED
from meshc.frontend.lower_fold import write_rows

Values = Sequence[Value | None]


def tensor_scatter(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """ai.onnx TensorScatter (opset 24): cache, update, and where each sequence's begins."""
    data, new, start = need(x, 0), need(x, 1), optional(x, 2)
    mode = str(call.attr("mode", "linear"))
    axis = int(call.attr("axis", -2)) % data.rank
    if mode not in ("linear", "circular"):
        raise Unsupported(f"in mode {mode}")
    if start is None:
        return [write_rows(b, data, new, axis, 0)]
    if start.const is not None and mode == "linear":
        rows = set(start.const.array().reshape(-1).tolist())
        if len(rows) == 1:
            return [write_rows(b, data, new, axis, int(rows.pop()))]
    return [_placed(b, data, new, axis, start, mode == "circular")]


def _placed(b: Builder, data: Value, new: Value, axis: int, start: Value, circular: bool) -> Value:
    """Every place of the cache takes the new token that falls on it, or keeps what it has."""
    size, tokens, count = data.shape[axis], new.shape[axis], data.shape[0]
    label, batch = data.labels[axis], data.labels[0]
    places = b.reshape(iota(b, size, label, start.dtype), (1, size), (FIXED, label), "places")
    first = b.reshape(start, (count, 1), (batch, FIXED), "first")
    offset = b.apply("sub", places, first, suffix="offset")
    if circular:
        whole = b.cast(b.ints([size], [label]), offset.dtype)
        offset = b.apply("mod", offset, whole, suffix="offset.round")
    near = b.apply("clip", offset, 0, tokens - 1, dtype="int64", suffix="near")
    inside = b.apply("equal", offset, b.cast(near, offset.dtype), suffix="inside")
    turn = (0, axis, *(i for i in range(1, data.rank) if i != axis))
    back = [turn.index(i) for i in range(data.rank)]
    rows = pick(b, b.transpose(new, turn, "rows"), near, 1, 1, "picked")
    rows = b.transpose(rows, back, "placed")
    shape = [count if i == 0 else size if i == axis else 1 for i in range(data.rank)]
    labels = [batch if i == 0 else label if i == axis else FIXED for i in range(data.rank)]
    here = b.reshape(inside, shape, labels, "here")
    return b.apply("where", here, rows, data, dtype=data.dtype)


def scatter_elements(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Neighbouring tokens of a cache at once; otherwise as any scatter."""
    data, indices, new = need(x, 0), need(x, 1), need(x, 2)
    axis = int(call.attr("axis", 0)) % data.rank
    if under(data) is not None and indices.const is not None and indices.const.size:
        array = np.moveaxis(indices.const.array(), axis, 0).reshape(indices.shape[axis], -1)
        first = int(array[0, 0])
        whole = [n for i, n in enumerate(new.shape) if i != axis] == [
            n for i, n in enumerate(data.shape) if i != axis
        ]
        run = first + np.arange(array.shape[0])[:, None]
        plain = call.attr("reduction", "none") == "none" and indices.shape == new.shape
        if whole and plain and first >= 0 and (array == run).all():
            return [write_rows(b, data, new, axis, first)]
    return lower_index.scatter_elements(b, call, x)


def causal_conv(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """com.microsoft CausalConvWithState, 1-D: X [B, C, L], W [C, 1, K], bias [C], state.

    A depthwise convolution over what the state holds and the new tokens: one product and sum per
    tap. The new state is the end of that.
    """
    if int(call.attr("ndim", 1)) != 1:
        raise Unsupported("in more than one dimension")
    for name in ("state_window", "channels_last", "state_update_capacity", "input_channel_offset"):
        if call.attr(name, 0):
            raise Unsupported(f"with {name}")
    for name, usual in (("state_channels_last", -1), ("state_length", 0), ("input_channels", 0)):
        if call.attr(name, usual) not in (usual, 0):
            raise Unsupported(f"with {name}")
    activation = str(call.attr("activation", "none")) or "none"
    if activation not in ("none", "silu", "swish"):
        raise Unsupported(f"with activation {activation}")
    v, w, bias, past = need(x, 0), need(x, 1), optional(x, 2), optional(x, 3)
    taps, apart = w.shape[2], int(call.attr("dilation", 1))
    length = (taps - 1) * apart
    if past is None:
        shape = (*v.shape[:2], length)
        zeros = Const.of(np.zeros(shape, np.float32), "fp32", MIXED)
        past = b.cast(b.once(("zeros", shape), lambda: zeros, (*v.labels[:2], FIXED)), v.dtype)
    if past.shape[2] != length:
        raise Unsupported(f"with a state of {past.shape[2]} instead of {length} positions")
    both = b.concat([past, v], 2, "both")
    tokens = v.shape[2]
    parts, factors = [], []
    for j in range(taps):
        parts.append(b.slice(both, 2, j * apart, tokens, v.labels[2], suffix=f"tap{j}"))
        one = b.slice(w, 2, j, 1, FIXED, suffix=f"weight{j}")
        factors.append(b.reshape(one, (1, w.shape[0], 1), (FIXED, w.labels[0], FIXED)))
    operands = [*parts, *factors]
    if bias is not None:
        operands.append(b.reshape(bias, (1, bias.shape[0], 1), (FIXED,) * 3, "bias"))

    def write(f, *t):  # type: ignore[no-untyped-def]
        total = f("mul", t[0], t[taps])
        for j in range(1, taps):
            total = f("add", total, f("mul", t[j], t[taps + j]))
        if bias is not None:
            total = f("add", total, t[-1])
        if activation != "none":
            total = f("silu", total)
        return f("cast", total)

    out = formula(b, operands, write)
    present = b.slice(both, 2, tokens, length, FIXED, suffix="state", exact=False)
    return [out, present][: call.outputs]


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "TensorScatter"): tensor_scatter,
    ("", "ScatterElements"): scatter_elements,
    ("com.microsoft", "CausalConvWithState"): causal_conv,
}
