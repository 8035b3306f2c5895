"""Operators that move data or make shapes: reshape, slice, gather, concat, split and so on."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from meshc.errors import InputError
from meshc.frontend.builder import FROZEN, Builder, Unsupported, Value
from meshc.frontend.cacheviews import under
from meshc.frontend.call import Call, Lowering, known, need, optional
from meshc.frontend.folding import Const
from meshc.frontend.labels import FIXED, MIXED, Label, add, array_of, multiply, product, remainder

Values = Sequence[Value | None]
_FAR = 1 << 31  # slice ends beyond this mean "to the end"


def sizes_of(x: Values, i: int) -> tuple[list[int], list[Label]]:
    """A vector of sizes that must be known, with the origin of each."""
    const = known(x, i)
    return const.array().reshape(-1).tolist(), list(const.origins().reshape(-1))


def shape(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    start, end = int(call.attr("start", 0)), int(call.attr("end", v.rank))
    part = slice(*slice(start, end).indices(v.rank))
    if -1 in v.shape[part]:
        raise Unsupported(f"of '{v.name}', whose dimensions are not known")
    return [b.ints(v.shape[part], v.labels[part])]


def size(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    label = array_of([product(v.labels, v.shape)]).reshape(())
    return [b.constant(np.asarray(prod(v.shape), np.int64), f"{b.scope}.size", label)]


def reshape(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    if len(x) > 1:
        target, labels = sizes_of(x, 1)
    else:
        target = [int(n) for n in call.attr("shape", ())]
        labels = [FIXED] * len(target)
    if not call.attr("allowzero", 0):
        for i, n in enumerate(target):
            if n == 0 and i < v.rank:
                target[i], labels[i] = v.shape[i], v.labels[i]
    if target.count(-1) == 1:
        at = target.index(-1)
        rest = prod(n for n in target if n != -1)
        whole = prod(v.shape)
        missing = whole // rest if rest else v.shape[at] if at < v.rank else 0
        target[at] = missing
        others = [i for i in range(len(target)) if i != at]
        labels[at] = remainder(
            v.labels, v.shape, [labels[i] for i in others], [target[i] for i in others]
        )
    return [b.reshape(v, target, labels)]


def axes_of(call: Call, x: Values, i: int) -> list[int] | None:
    """Axes, an operand since opset 13 or 18 and an attribute before."""
    if optional(x, i) is not None:
        return [int(n) for n in known(x, i).array().reshape(-1)]
    axes = call.attr("axes")
    return None if axes is None else [int(n) for n in axes]


def unsqueeze(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v, axes = need(x, 0), axes_of(call, x, 1) or []
    rank = v.rank + len(axes)
    new = {a % rank for a in axes}
    sizes, labels = list(v.shape), list(v.labels)
    for axis in sorted(new):
        sizes.insert(axis, 1)
        labels.insert(axis, FIXED)
    return [b.reshape(v, sizes, labels)]


def squeeze(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v, axes = need(x, 0), axes_of(call, x, 1)
    if axes is None:
        gone = {i for i, n in enumerate(v.shape) if n == 1}
    else:
        gone = {a % v.rank for a in axes}
        for a in gone:
            if v.shape[a] != 1:
                raise Unsupported(f"of axis {a}, which has {v.shape[a]} elements and not one")
    kept = [i for i in range(v.rank) if i not in gone]
    return [b.reshape(v, [v.shape[i] for i in kept], [v.labels[i] for i in kept])]


def flatten(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    axis = int(call.attr("axis", 1))
    axis = axis + v.rank if axis < 0 else axis
    groups = (range(axis), range(axis, v.rank))
    sizes = [prod(v.shape[i] for i in g) for g in groups]
    labels = [product([v.labels[i] for i in g], [v.shape[i] for i in g]) for g in groups]
    return [b.reshape(v, sizes, labels)]


def transpose(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    return [b.transpose(v, call.attr("perm", tuple(reversed(range(v.rank)))))]


def expand(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    target, labels = sizes_of(x, 1)
    shape, merged = b.broadcast(
        [v, Value("", tuple(target), v.dtype, tuple(labels), "CONST", None, None)]
    )
    if shape == v.shape and merged == v.labels and MIXED not in merged:
        return [v]
    return [b.expand(v, shape, merged)]


def tile(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Repetition as reshape, expand, reshape."""
    v = need(x, 0)
    repeats, origins = sizes_of(x, 1)
    one: list[int] = []
    many: list[int] = []
    out: list[int] = []
    labels_one: list[Label] = []
    labels_many: list[Label] = []
    labels_out: list[Label] = []
    for n, label, r, origin in zip(v.shape, v.labels, repeats, origins, strict=True):
        one += [1, n]
        many += [r, n]
        out.append(n * r)
        labels_one += [FIXED, label]
        labels_many += [origin, label]
        labels_out.append(multiply(label, origin, n, r))
    a = b.reshape(v, one, labels_one, "split")
    a = b.expand(a, many, labels_many, "expand")
    return [b.reshape(a, out, labels_out)]


def concat(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Concatenation; of a past input and one more tensor it is an append."""
    parts = [need(x, i) for i in range(len(x))]
    axis = int(call.attr("axis", 0))
    if len(parts) == 1:
        return [parts[0]]
    if len(parts) == 2 and under(parts[0]) is not None:
        return [b.append(parts[0], parts[1], axis)]
    if any(v.rank != parts[0].rank for v in parts):
        raise Unsupported("of tensors of different rank")
    axis %= parts[0].rank
    sizes = {v.shape[:axis] + v.shape[axis + 1 :] for v in parts}
    if len(sizes) > 1:
        shapes = " and ".join(str(list(v.shape)) for v in parts)
        raise InputError(
            f"Node '{b.scope}' concatenates tensors of shapes {shapes} along axis {axis}, which "
            f"differ elsewhere; {FROZEN}"
        )
    return [b.concat(parts, axis)]


def split(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    axis = int(call.attr("axis", 0)) % v.rank
    count = int(call.attr("num_outputs", call.outputs))
    if count != call.outputs:
        raise Unsupported(f"with num_outputs {count} and {call.outputs} outputs")
    if optional(x, 1) is not None:
        parts, labels = sizes_of(x, 1)
    elif call.attr("split") is not None:
        parts = [int(n) for n in call.attr("split")]
        labels = [FIXED] * len(parts)
    else:
        chunk = -(-v.shape[axis] // count)
        parts = [min(chunk, max(v.shape[axis] - i * chunk, 0)) for i in range(count)]
        labels = [MIXED if v.labels[axis] else FIXED] * count
    if sum(parts) != v.shape[axis] or len(parts) != call.outputs:
        raise Unsupported(
            f"into {call.outputs} parts of {parts}, which sum to {sum(parts)} and not to the "
            f"{v.shape[axis]} elements of axis {axis}"
        )
    results: list[Value | None] = []
    start = 0
    for i, n in enumerate(parts):
        label = MIXED if v.labels[axis] or labels[i] else FIXED
        wanted = call.wants(i)
        results.append(b.slice(v, axis, start, n, label, suffix=f"part{i}") if wanted else None)
        start += n
    return results


def slice_(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    v = need(x, 0)
    if len(x) == 1:
        starts, ends = list(call.attr("starts")), list(call.attr("ends"))
        axes = list(call.attr("axes", range(len(starts))))
        steps = [1] * len(starts)
        loose_start, loose_end = [FIXED] * len(starts), [FIXED] * len(starts)
    else:
        starts, loose_start = sizes_of(x, 1)
        ends, loose_end = sizes_of(x, 2)
        axes = list(range(len(starts))) if optional(x, 3) is None else sizes_of(x, 3)[0]
        steps = [1] * len(starts) if optional(x, 4) is None else sizes_of(x, 4)[0]
    for i, axis in enumerate(axes):
        axis, step = int(axis) % v.rank, int(steps[i])
        size, label = v.shape[axis], v.labels[axis]
        part = slice(int(starts[i]), int(ends[i]), step)
        if step < 0 and ends[i] < -size:
            part = slice(int(starts[i]), None, step)
        indices = range(*part.indices(size))
        fixed = not (loose_start[i] or loose_end[i] or label)
        open_end = ends[i] >= _FAR and not loose_end[i]
        if step == 1 and starts[i] == 0 and not loose_start[i]:
            if open_end or (fixed and len(indices) == size):
                continue
            if loose_end[i] and loose_end[i] == label != MIXED:
                continue
        start = indices.start if len(indices) else 0
        new_label = _slice_label(
            (int(starts[i]), int(ends[i]), step), (loose_start[i], loose_end[i]), size, label
        )
        suffix = "" if len(axes) == 1 else f"axis{axis}"
        exact = loose_start[i] == FIXED
        v = b.slice(v, axis, start, len(indices), new_label, step, suffix, exact)
    return [v]


def _slice_label(
    part: tuple[int, int, int], ends: tuple[Label, Label], size: int, label: Label
) -> Label:
    """Label of the length of a slice whose bounds are within the dimension."""
    start, stop, step = part
    low, high = ends
    if FIXED == low == high == label:
        return FIXED
    if step != 1:
        return MIXED
    if stop >= _FAR and high == FIXED:
        stop, high = size, label
    elif stop < 0:
        high, stop = add(label, high, size, stop), size + stop
    if start < 0:
        low, start = add(label, low, size, start), size + start
    if not 0 <= start <= stop <= size:
        return MIXED
    return add(high, low, stop, start, -1)


def gather(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """With one known index a slice, otherwise a gather."""
    data, indices = need(x, 0), need(x, 1)
    axis = int(call.attr("axis", 0)) % data.rank
    if indices.const is None:
        return [b.gather(data, indices, axis)]
    numbers = indices.const.array()
    size = data.shape[axis]
    low, high = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    if numbers.size and (low < -size or high >= size):
        raise InputError(
            f"Node '{b.scope}' looks up row {high if high >= size else low} of '{data.name}', "
            f"which has {size} rows; lower --context, --prompt or --max-context."
        )
    if data.const is None and indices.rank == 0:
        one = b.slice(data, axis, int(numbers) % size, 1, FIXED, suffix="row")
        kept = [i for i in range(data.rank) if i != axis]
        return [b.reshape(one, [one.shape[i] for i in kept], [one.labels[i] for i in kept])]
    if data.const is None and numbers.shape == (1,) and indices.const.fixed:
        return [b.slice(data, axis, low % size, 1, FIXED, suffix="row")]
    if low < 0:
        indices = b.value(_positive(indices, size), f"{b.scope}.indices", indices.labels)
    return [b.gather(data, indices, axis)]


def _positive(indices: Value, size: int):  # type: ignore[no-untyped-def]

    const = indices.const
    assert const is not None
    return Const.of(const.array() % size, const.dtype, const.origin)


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "Shape"): shape,
    ("", "Size"): size,
    ("", "Reshape"): reshape,
    ("", "Unsqueeze"): unsqueeze,
    ("", "Squeeze"): squeeze,
    ("", "Flatten"): flatten,
    ("", "Transpose"): transpose,
    ("", "Expand"): expand,
    ("", "Tile"): tile,
    ("", "Concat"): concat,
    ("", "Split"): split,
    ("", "Slice"): slice_,
    ("", "Gather"): gather,
}
