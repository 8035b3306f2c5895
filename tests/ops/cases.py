"""Random cases of every op kind, with what plain numpy says about them.

A generator takes a random source and a number of cached tokens; called twice with equal seeds and
different tokens it gives the same op at two contexts. Floats are small whole numbers where sums
are compared, so that every order of adding gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from meshc.ir.dtypes import BLOCK_FORMATS, NAMES, NUMPY
from meshc.ir.graph import Op

from . import index_cases
from .lanes import Case, make_op

Generator = Callable[[np.random.Generator, int], Case]
NONE: frozenset[int] = frozenset()


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "fp32") -> np.ndarray:
    """Small whole numbers."""
    return rng.integers(-4, 5, shape).astype(NUMPY[dtype])


def real(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "fp32") -> np.ndarray:
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def some_shape(rng: np.random.Generator, rank: int, empty: float = 0.05) -> tuple[int, ...]:
    """Sizes around the grids' sides: ones, uneven ones, now and then none at all."""
    sizes = [int(n) for n in rng.choice([1, 1, 2, 3, 4, 5, 6, 7, 8, 12], rank)]
    if rank and rng.random() < empty:
        sizes[int(rng.integers(rank))] = 0
    return tuple(sizes)


def broadcastable(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`: ones here and there, leading dims left out."""
    lead = int(rng.integers(len(shape) + 1)) if rng.random() < 0.4 else 0
    return tuple(1 if rng.random() < 0.3 else n for n in shape[lead:])


def map_affine(rng: np.random.Generator, tokens: int) -> Case:
    shape = some_shape(rng, int(rng.integers(1, 5)))
    dtype = str(rng.choice(["fp32", "fp16", "bf16"]))
    arrays = [
        whole(rng, shape, dtype),
        whole(rng, broadcastable(rng, shape), dtype),
        whole(rng, broadcastable(rng, shape), dtype),
    ]
    a, b, c = (x.astype(np.float32) for x in arrays)
    steps = (
        ("mul", (("in", 0), ("in", 1)), dtype),
        ("sub", (("step", 0), ("in", 2)), dtype),
        ("add", (("step", 1), ("const", 0.5)), dtype),
    )
    expected = (a * b - c + np.float32(0.5)).astype(NUMPY[dtype])
    return Case(make_op("map", 3, steps=steps), tuple(arrays), expected)


def map_masked(rng: np.random.Generator, tokens: int) -> Case:
    """A mask over cached tokens on scores of one head per lane."""
    heads, new = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    scores = real(rng, (1, heads, new, tokens))
    mask = np.ones((1, 1, 1, tokens), bool)
    mask[..., : tokens // 2] = False
    steps = (("where", (("in", 1), ("in", 0), ("const", -1e9)), "fp32"),)
    expected = np.where(mask, scores, np.float32(-1e9)).astype(np.float32)
    last = frozenset({3})
    return Case(make_op("map", 2, steps=steps), (scores, mask), expected, (last, last, last))


def map_integers(rng: np.random.Generator, tokens: int) -> Case:
    shape = some_shape(rng, int(rng.integers(1, 4)))
    a, b = whole(rng, shape, "int64"), whole(rng, broadcastable(rng, shape), "int64")
    steps = (("less", (("in", 0), ("in", 1)), "bool"), ("not", (("step", 0),), "bool"))
    return Case(make_op("map", 2, steps=steps), (a, b), ~(a < b))


def matmul_random(rng: np.random.Generator, tokens: int) -> Case:
    """Batches that broadcast, either operand transposed, any size from 0 up."""
    batch = some_shape(rng, int(rng.integers(0, 3)))
    m, n, k = some_shape(rng, 3)
    ta, tb = bool(rng.integers(2)), bool(rng.integers(2))
    dtype = str(rng.choice(["fp32", "fp16", "bf16"]))
    keep_a = rng.random() < 0.5
    other = broadcastable(rng, batch)
    lead_a, lead_b = (batch, other) if keep_a else (other, batch)
    a = whole(rng, (*lead_a, *((k, m) if ta else (m, k))), dtype)
    b = whole(rng, (*lead_b, *((n, k) if tb else (k, n))), dtype)
    x, y = a.astype(np.float32), b.astype(np.float32)
    expected = (np.swapaxes(x, -1, -2) if ta else x) @ (np.swapaxes(y, -1, -2) if tb else y)
    op = make_op("matmul", 2, transpose_a=ta, transpose_b=tb)
    return Case(op, (a, b), expected.astype(NUMPY[dtype]))


def matmul_scores(rng: np.random.Generator, tokens: int) -> Case:
    """Queries against cached keys: N counts tokens."""
    batch, heads, new, width = 2, int(rng.integers(1, 4)), int(rng.integers(1, 3)), 4
    q, k = whole(rng, (batch, heads, new, width)), whole(rng, (batch, heads, tokens, width))
    expected = q @ np.swapaxes(k, -1, -2)
    op = make_op("matmul", 2, transpose_b=True)
    return Case(op, (q, k), expected, (NONE, frozenset({2}), frozenset({3})))


def matmul_values(rng: np.random.Generator, tokens: int) -> Case:
    """Probabilities times cached values: K counts tokens, so lanes hold partial sums."""
    heads, new, width = int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(1, 5))
    p, v = whole(rng, (1, heads, new, tokens)), whole(rng, (1, heads, tokens, width))
    op = make_op("matmul", 2)
    return Case(op, (p, v), p @ v, (frozenset({3}), frozenset({2}), NONE))


def _reduced(
    x: np.ndarray, fn: str, axes: tuple[int, ...], keep: bool, growing: frozenset[int] = NONE
) -> Case:
    wide = x.astype(np.float32) if x.dtype in (NUMPY["fp16"], NUMPY["bf16"]) else x
    functions: dict[str, Callable[..., np.ndarray]] = {
        "sum": np.sum,
        "mean": np.mean,
        "max": np.max,
        "min": np.min,
        "prod": np.prod,
        "l2": lambda y, **how: np.sqrt(np.sum(y * y, **how)),
        "sumsquare": lambda y, **how: np.sum(y * y, **how),
    }
    expected = np.asarray(functions[fn](wide, axis=axes, keepdims=keep)).astype(x.dtype)
    op = make_op("reduce", 1, fn=fn, axes=axes, keepdims=keep)
    left = [d for d in range(x.ndim) if keep or d not in axes]
    out = frozenset(i for i, d in enumerate(left) if d in growing and d not in axes)
    return Case(op, (x,), expected, (growing, out), 1e-6 if fn in ("mean", "l2") else 0.0)


def reduce_random(rng: np.random.Generator, tokens: int) -> Case:
    rank = int(rng.integers(1, 5))
    shape = some_shape(rng, rank, empty=0)
    count = int(rng.integers(1, rank + 1))
    axes = tuple(sorted(int(a) for a in rng.choice(rank, count, replace=False)))
    fn = str(rng.choice(["sum", "mean", "max", "min", "prod", "l2", "sumsquare"]))
    x = whole(rng, shape, str(rng.choice(["fp32", "fp16", "bf16"])))
    if fn == "prod":
        x = np.sign(x.astype(np.float32)).astype(x.dtype)
    return _reduced(x, fn, axes, bool(rng.integers(2)))


def reduce_integers(rng: np.random.Generator, tokens: int) -> Case:
    shape = some_shape(rng, 3, empty=0)
    fn = str(rng.choice(["sum", "max", "min"]))
    return _reduced(whole(rng, shape, "int64"), fn, (int(rng.integers(3)),), True)


def reduce_tokens(rng: np.random.Generator, tokens: int) -> Case:
    """Softmax statistics over cached tokens."""
    fn = str(rng.choice(["sum", "max", "mean"]))
    return _reduced(whole(rng, (1, 3, 2, tokens)), fn, (3,), True, frozenset({3}))


def transpose_random(rng: np.random.Generator, tokens: int) -> Case:
    rank = int(rng.integers(1, 5))
    x = real(rng, some_shape(rng, rank))
    perm = tuple(int(p) for p in rng.permutation(rank))
    return Case(make_op("transpose", 1, perm=perm), (x,), np.transpose(x, perm))


def transpose_cache(rng: np.random.Generator, tokens: int) -> Case:
    x = real(rng, (1, 2, tokens, 3))
    grows = (frozenset({2}), frozenset({3}))
    op = make_op("transpose", 1, perm=(0, 1, 3, 2))
    return Case(op, (x,), np.transpose(x, (0, 1, 3, 2)), grows)


def _reshaped(x: np.ndarray, shape: tuple[int, ...], *growing: frozenset[int]) -> Case:
    return Case(make_op("reshape", 1), (x,), x.reshape(shape), growing)


def reshape_heads(rng: np.random.Generator, tokens: int) -> Case:
    """Hidden size to heads and back."""
    batch, new = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    heads, width = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    flat, cut = (batch, new, heads * width), (batch, new, heads, width)
    a, b = (flat, cut) if rng.integers(2) else (cut, flat)
    return _reshaped(real(rng, a), b)


def reshape_random(rng: np.random.Generator, tokens: int) -> Case:
    """Any two shapes of the same elements, made from the factors of one number."""
    factors = [int(f) for f in rng.choice([1, 2, 2, 3, 4, 5], int(rng.integers(1, 6)))]

    def grouped() -> tuple[int, ...]:
        dims = [1]
        for f in factors:
            if rng.random() < 0.6:
                dims.append(f)
            else:
                dims[-1] *= f
        if rng.random() < 0.5 and len(dims) > 1 and dims[0] == 1:
            dims = dims[1:]
        if rng.random() < 0.3:
            dims.insert(int(rng.integers(len(dims) + 1)), 1)
        return tuple(dims)

    a, b = grouped(), grouped()
    assert prod(a) == prod(b)
    return _reshaped(real(rng, a), b)


def reshape_odd(rng: np.random.Generator, tokens: int) -> Case:
    """Shapes whose outermost dims share only some or no parts, and empty ones."""
    pairs = [
        ((6, 4), (4, 6)),
        ((4, 6), (8, 3)),
        ((2, 12), (6, 4)),
        ((0, 4), (0, 2, 2)),
        ((2, 0, 3), (0, 6)),
        ((), (1, 1)),
        ((1,), ()),
        ((5, 1, 4), (1, 5, 2, 1, 2)),
    ]
    a, b = pairs[int(rng.integers(len(pairs)))]
    return _reshaped(real(rng, a), b)


def reshape_tokens(rng: np.random.Generator, tokens: int) -> Case:
    """Cached tokens between new unit dims and heads that split."""
    last = 6
    x = real(rng, (1, 2, tokens, last))
    return _reshaped(x, (1, 2, 1, tokens, 2, 3), frozenset({2}), frozenset({3}))


def expand_random(rng: np.random.Generator, tokens: int) -> Case:
    shape = some_shape(rng, int(rng.integers(1, 5)))
    x = real(rng, broadcastable(rng, shape))
    return Case(make_op("expand", 1), (x,), np.ascontiguousarray(np.broadcast_to(x, shape)))


def expand_heads(rng: np.random.Generator, tokens: int) -> Case:
    """Grouped queries: cached keys repeated for each query head."""
    x = real(rng, (1, 2, 1, tokens, 3))
    y = np.ascontiguousarray(np.broadcast_to(x, (1, 2, 3, tokens, 3)))
    return Case(make_op("expand", 1), (x,), y, (frozenset({3}), frozenset({3})))


def slice_random(rng: np.random.Generator, tokens: int) -> Case:
    rank = int(rng.integers(1, 4))
    x = real(rng, some_shape(rng, rank, empty=0))
    axis = int(rng.integers(rank))
    n = x.shape[axis]
    step = int(rng.choice([1, 1, 2, 3, -1]))
    start = int(rng.integers(n))
    most = (n - start + step - 1) // step if step > 0 else start + 1
    length = int(rng.integers(0, most + 1))
    index = start + step * np.arange(length)
    op = make_op("slice", 1, axis=axis, start=start, step=step)
    return Case(op, (x,), np.take(x, index, axis))


def slice_whole(rng: np.random.Generator, tokens: int) -> Case:
    """All of an axis, which stays divisible."""
    x = real(rng, some_shape(rng, 3))
    return Case(make_op("slice", 1, axis=int(rng.integers(3)), start=0, step=1), (x,), x)


def slice_beside_tokens(rng: np.random.Generator, tokens: int) -> Case:
    x = real(rng, (2, tokens, 6))
    grows = (frozenset({1}), frozenset({1}))
    return Case(make_op("slice", 1, axis=2, start=1, step=2), (x,), x[:, :, 1:6:2], grows)


def concat_random(rng: np.random.Generator, tokens: int) -> Case:
    rank = int(rng.integers(1, 4))
    shape = some_shape(rng, rank)
    axis = int(rng.integers(rank))
    arrays = tuple(
        real(rng, (*shape[:axis], int(rng.integers(0, 5)), *shape[axis + 1 :]))
        for _ in range(int(rng.integers(1, 4)))
    )
    op = make_op("concat", len(arrays), axis=axis)
    return Case(op, arrays, np.concatenate(arrays, axis))


def concat_beside_tokens(rng: np.random.Generator, tokens: int) -> Case:
    arrays = (real(rng, (1, 2, tokens, 4)), real(rng, (1, 2, tokens, 3)))
    grows = (frozenset({2}),) * 3
    return Case(make_op("concat", 2, axis=3), arrays, np.concatenate(arrays, 3), grows)


def gather_random(rng: np.random.Generator, tokens: int) -> Case:
    """Tables of any rank, indices of rank 0 to 2, some of them negative."""
    rank = int(rng.integers(1, 4))
    axis = int(rng.integers(rank))
    data = real(rng, some_shape(rng, rank, empty=0), str(rng.choice(["fp32", "bf16"])))
    if rng.random() < 0.3:
        data = whole(rng, data.shape, "int64")
    n = data.shape[axis]
    dtype = str(rng.choice(["int64", "int32"]))
    index = rng.integers(-n, n, some_shape(rng, int(rng.integers(0, 3)))).astype(NUMPY[dtype])
    expected = np.take(data, index, axis)
    return Case(make_op("gather", 2, axis=axis), (data, np.asarray(index)), np.asarray(expected))


def gather_beside_tokens(rng: np.random.Generator, tokens: int) -> Case:
    """Rows of a table that grows along another axis."""
    data = real(rng, (5, tokens))
    index = np.array([4, -5, 0, 2])
    grows = (frozenset({1}), NONE, frozenset({1}))
    return Case(make_op("gather", 2, axis=0), (data, index), data[index], grows)


def gather_tokens(rng: np.random.Generator, tokens: int) -> Case:
    """Picked among cached tokens: each lane looks up those that it holds."""
    data = real(rng, (2, max(1, tokens), 3))
    index = rng.integers(-data.shape[1], data.shape[1], 5)
    grows = (frozenset({1}), NONE, NONE)
    return Case(make_op("gather", 2, axis=1), (data, index), data[:, index], grows)


def append_growing(rng: np.random.Generator, tokens: int) -> Case:
    """A cache of `tokens` in all, the last few of them new."""
    new = int(rng.integers(1, 3))
    past = max(0, tokens - new)
    shape = (2, int(rng.integers(1, 4)), past, 3)
    old, fresh = real(rng, shape), real(rng, (*shape[:2], tokens - past, 3))
    both = np.concatenate([old, fresh], 2)
    grows = frozenset({2})
    return Case(make_op("append", 2, axis=2), (old, fresh), both, (grows, NONE, grows))


def append_blocked(rng: np.random.Generator, tokens: int) -> Case:
    """An axis that no cache grows along: only blocks that agree may divide it."""
    old, fresh = real(rng, (int(rng.integers(0, 9)), 2)), real(rng, (int(rng.integers(1, 4)), 2))
    return Case(make_op("append", 2, axis=0), (old, fresh), np.concatenate([old, fresh]))


def append_first(rng: np.random.Generator, tokens: int) -> Case:
    """A graph without a past: every token is new."""
    x = real(rng, (2, 2, tokens, 3))
    return Case(make_op("append", 1, axis=2), (x,), x, (NONE, frozenset({2})))


def _softmax_rows(scores: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[weighted sum of values …, sum of weights, largest score] of each row."""
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    seen = top > -np.inf
    weights = np.where(seen, np.exp(scores - np.where(seen, top, 0)), 0)
    return np.concatenate([weights @ values, weights.sum(-1, keepdims=True), top], -1).astype(
        np.float32
    )


def attend_tokens(rng: np.random.Generator, tokens: int) -> Case:
    """Scores of cached tokens, some hidden from every query or from one."""
    heads, new, width = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 5))
    s, v = real(rng, (2, heads, new, tokens)), real(rng, (2, heads, tokens, width))
    s[..., : tokens // 3] = -np.inf
    s[0, 0, 0] = -np.inf
    turned = bool(rng.integers(2))
    op = make_op("attend", 2, transpose_v=turned)
    arrays = (s, np.ascontiguousarray(v.swapaxes(-1, -2)) if turned else v)
    grows = (frozenset({3}), frozenset({3 if turned else 2}), NONE)
    return Case(op, arrays, _softmax_rows(s, v), grows, 1e-5)


def attend_shared(rng: np.random.Generator, tokens: int) -> Case:
    """One key and value head for several query heads."""
    groups, members, new, width = 2, int(rng.integers(1, 4)), int(rng.integers(1, 3)), 3
    s, v = real(rng, (1, groups, members, new, tokens)), real(rng, (1, groups, 1, tokens, width))
    grows = (frozenset({4}), frozenset({3}), NONE)
    return Case(make_op("attend", 2, transpose_v=False), (s, v), _softmax_rows(s, v), grows, 1e-5)


def _fused(
    operands: dict[str, np.ndarray],
    body: tuple[tuple[str, tuple[str, ...], str, tuple[int, ...], dict[str, object]], ...],
    expected: np.ndarray,
    *growing: frozenset[int],
) -> Case:
    """A fused op; body: kind, inputs, output, shape, attributes of each primitive."""
    names = {name: f"in{i}" for i, name in enumerate(operands)} | {body[-1][2]: "out"}
    inner = tuple(
        Op(f"inner {out}", kind, tuple(names.get(n, n) for n in inputs), names.get(out, out),
           tuple(sorted(attrs.items())))
        for kind, inputs, out, _, attrs in body
    )  # fmt: skip
    shapes = [(names[n], a.shape, NAMES[a.dtype]) for n, a in operands.items()]
    shapes += [(names.get(out, out), shape, "fp32") for _, _, out, shape, _ in body]
    inputs = tuple(names[n] for n in operands)
    op = Op("op", "fused", inputs, "out", (("shapes", tuple(shapes)),), (), inner)
    return Case(op, tuple(operands.values()), expected, growing, 1e-6)


def fused_heads(rng: np.random.Generator, tokens: int) -> Case:
    """Hidden size cut to heads and turned, in front of a product with cached keys."""
    new, heads, width = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    x = whole(rng, (1, new, heads * width))
    k = whole(rng, (1, heads, tokens, width))
    q = x.reshape(1, new, heads, width).transpose(0, 2, 1, 3)
    body = (
        ("reshape", ("x",), "cut", (1, new, heads, width), {}),
        ("transpose", ("cut",), "q", q.shape, {"perm": (0, 2, 1, 3)}),
        ("matmul", ("q", "k"), "s", (1, heads, new, tokens), {"transpose_b": True}),
    )
    expected = q @ np.swapaxes(k, -1, -2)
    return _fused({"x": x, "k": k}, body, expected, NONE, frozenset({2}), frozenset({3}))


def fused_groups(rng: np.random.Generator, tokens: int) -> Case:
    """Cached values, each head repeated for its queries, summed over tokens."""
    heads, group, new, width = 2, int(rng.integers(1, 4)), int(rng.integers(1, 3)), 3
    p, v = whole(rng, (1, heads * group, new, tokens)), whole(rng, (1, heads, tokens, width))
    body = (
        ("reshape", ("v",), "one", (1, heads, 1, tokens, width), {}),
        ("expand", ("one",), "many", (1, heads, group, tokens, width), {}),
        ("reshape", ("many",), "all", (1, heads * group, tokens, width), {}),
        ("matmul", ("p", "all"), "y", (1, heads * group, new, width), {}),
    )
    expected = p @ np.repeat(v, group, 1)
    return _fused({"p": p, "v": v}, body, expected, frozenset({3}), frozenset({2}), NONE)


def fused_written_through(rng: np.random.Generator, tokens: int) -> Case:
    """A product whose result is cut and turned as it is written; K leaves partial sums."""
    new, heads, width, depth = (int(n) for n in rng.integers(1, 5, 4))
    a, b = whole(rng, (1, new, depth)), whole(rng, (depth, heads * width))
    body = (
        ("matmul", ("a", "b"), "c", (1, new, heads * width), {}),
        ("reshape", ("c",), "cut", (1, new, heads, width), {}),
        ("transpose", ("cut",), "y", (1, heads, new, width), {"perm": (0, 2, 1, 3)}),
    )
    expected = (a @ b).reshape(1, new, heads, width).transpose(0, 2, 1, 3)
    return _fused({"a": a, "b": b}, body, np.ascontiguousarray(expected))


def fused_statistics(rng: np.random.Generator, tokens: int) -> Case:
    """Elementwise ops in front of a reduction over cached tokens."""
    heads, new = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    fn = str(rng.choice(["sum", "max", "mean"]))
    x, m = whole(rng, (1, heads, new, tokens)), whole(rng, (1, 1, new, 1))
    reduced = {"sum": np.sum, "max": np.max, "mean": np.mean}[fn]
    steps = (("sub", (("in", 0), ("in", 1)), "fp32"), ("abs", (("step", 0),), "fp32"))
    body = (
        ("map", ("x", "m"), "d", x.shape, {"steps": steps}),
        ("reduce", ("d",), "y", (1, heads, new, 1), {"fn": fn, "axes": (3,), "keepdims": True}),
    )
    if tokens == 0:
        x = whole(rng, (1, heads, new, 1))
        body = tuple((*b[:3], x.shape if b[2] == "d" else b[3], b[4]) for b in body)  # type: ignore[assignment]
    expected = np.asarray(reduced(np.abs(x - m), axis=3, keepdims=True), np.float32)
    return _fused({"x": x, "m": m}, body, expected, frozenset({3}), NONE, NONE)


def fused_rotary(rng: np.random.Generator, tokens: int) -> Case:
    """Halves exchanged and joined again: the last axis must stay whole."""
    new, heads, half = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    x = whole(rng, (1, heads, new, 2 * half))
    c, s = whole(rng, (1, 1, new, 2 * half)), whole(rng, (1, 1, new, 2 * half))
    part, neg = (1, heads, new, half), (("neg", (("in", 0),), "fp32"),)
    turn = (
        ("mul", (("in", 0), ("in", 1)), "fp32"),
        ("mul", (("in", 2), ("in", 3)), "fp32"),
        ("add", (("step", 0), ("step", 1)), "fp32"),
    )
    body = (
        ("slice", ("x",), "low", part, {"axis": 3, "start": 0, "step": 1}),
        ("slice", ("x",), "high", part, {"axis": 3, "start": half, "step": 1}),
        ("map", ("high",), "less", part, {"steps": neg}),
        ("concat", ("less", "low"), "r", x.shape, {"axis": 3}),
        ("map", ("x", "c", "r", "s"), "y", x.shape, {"steps": turn}),
    )
    rotated = np.concatenate([-x[..., half:], x[..., :half]], 3)
    return _fused({"x": x, "c": c, "s": s}, body, x * c + rotated * s)


def fused_gather(rng: np.random.Generator, tokens: int) -> Case:
    """Rows picked from a turned table."""
    rows, width, count = int(rng.integers(1, 6)), int(rng.integers(1, 6)), int(rng.integers(1, 5))
    table, index = whole(rng, (width, rows)), rng.integers(-rows, rows, (2, count))
    body = (
        ("transpose", ("t",), "rows", (rows, width), {"perm": (1, 0)}),
        ("gather", ("rows", "i"), "y", (2, count, width), {"axis": 0}),
    )
    return _fused({"t": table, "i": index}, body, table.T[index])


def unpack_random(rng: np.random.Generator, tokens: int) -> Case:
    """Integers of two and four bits, the first of a byte in its low bits."""
    bits, signed = int(rng.choice([2, 4])), bool(rng.integers(2))
    shape = some_shape(rng, int(rng.integers(1, 4)))
    x = rng.integers(0, 256, shape).astype(np.uint8)
    expected = np.stack([x >> s & (1 << bits) - 1 for s in range(0, 8, bits)], -1)
    expected = expected.reshape((*shape[:-1], shape[-1] * 8 // bits)).astype(np.int64)
    if signed:
        expected = np.where(expected >= 1 << (bits - 1), expected - (1 << bits), expected)
    dtype = np.int8 if signed else np.uint8
    return Case(make_op("unpack", 1, bits=bits, signed=signed), (x,), expected.astype(dtype))


def restore_random(rng: np.random.Generator, tokens: int) -> Case:
    """Blocks of every format, each value told from its bits one by one."""
    form = str(rng.choice(sorted(BLOCK_FORMATS)))
    f = BLOCK_FORMATS[form]
    shape = some_shape(rng, int(rng.integers(1, 4)))
    raw = rng.integers(0, 256, (*shape, f.bytes)).astype(np.uint8)
    if form.startswith("bfp"):
        raw[..., 0] = rng.integers(120, 134, shape)
    else:
        raw[..., :2] = np.asarray(whole(rng, shape), np.float16)[..., None].view(np.uint8)
    head = 1 if form.startswith("bfp") else 2
    expected = np.empty((*shape, f.elements), np.float32)
    for at in np.ndindex(shape):
        whole_number = int.from_bytes(raw[at][head:].tobytes(), "little")
        for i in range(f.elements):
            code = whole_number >> (f.bits * i) & ((1 << f.bits) - 1)
            high, low = code >> (f.bits - 1), code & ((1 << (f.bits - 1)) - 1)
            if head == 1:
                value = (-1) ** high * low * 2.0 ** (int(raw[at][0]) - 127 - f.bits + 2)
            else:
                value = (code - (high << f.bits)) * float(raw[at][:2].view(np.float16)[0])
            expected[(*at, i)] = value
    x = raw.view(NUMPY[f.dtype])[..., 0]
    op = make_op("restore", 1, bits=f.bits, format=form, to="fp32")
    return Case(op, (x,), expected.reshape((*shape[:-1], shape[-1] * f.elements)))


def matmul_bytes(rng: np.random.Generator, tokens: int) -> Case:
    """8-bit integers are multiplied exactly."""
    m, n, k = some_shape(rng, 3, empty=0)
    a = rng.integers(0, 256, (m, k)).astype(np.uint8)
    b = rng.integers(-128, 128, (k, n)).astype(np.int8)
    return Case(make_op("matmul", 2), (a, b), a.astype(np.int32) @ b.astype(np.int32))


def fused_blocks(rng: np.random.Generator, tokens: int) -> Case:
    """4-bit weights with a scale per block, unpacked where they are multiplied."""
    m, n, blocks = (int(v) for v in rng.integers(1, 7, 3))
    size = int(rng.choice([2, 4, 8]))
    packed = rng.integers(0, 256, (n, blocks, size // 2)).astype(np.uint8)
    scale, a = whole(rng, (n, blocks, 1)), whole(rng, (m, blocks * size))
    steps = (
        ("cast", (("in", 0),), "fp32"),
        ("sub", (("step", 0), ("const", 8.0)), "fp32"),
        ("mul", (("step", 1), ("in", 1)), "fp32"),
    )
    cut, flat = (n, blocks, size), (n, blocks * size)
    body = (
        ("unpack", ("w",), "codes", cut, {"bits": 4, "signed": False}),
        ("map", ("codes", "s"), "values", cut, {"steps": steps}),
        ("reshape", ("values",), "rows", flat, {}),
        ("matmul", ("a", "rows"), "y", (m, n), {"transpose_b": True}),
    )
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(cut).astype(np.float32)
    weights = ((codes - 8) * scale).reshape(flat)
    case = _fused({"w": packed, "s": scale, "a": a}, body, a @ weights.T)
    shapes = tuple((n, s, "uint8" if n == "codes" else d) for n, s, d in case.op.attr("shapes"))
    return replace(case, op=replace(case.op, attrs=tuple(
        (k, shapes if k == "shapes" else v) for k, v in case.op.attrs)))  # fmt: skip


def fused_experts(rng: np.random.Generator, tokens: int) -> Case:
    """8-bit weights of every expert, scaled where they are multiplied."""
    s, k, n, e = (int(v) for v in rng.integers(1, 6, 4))
    rows, scale = whole(rng, (s, k)), whole(rng, (e, n, 1))
    codes = rng.integers(-128, 128, (e, n, k)).astype(np.int8)
    ids = rng.integers(0, e, s)
    steps = (("cast", (("in", 0),), "fp32"), ("mul", (("step", 0), ("in", 1)), "fp32"))
    body = (
        ("map", ("w", "s"), "values", (e, n, k), {"steps": steps}),
        ("experts", ("x", "values", "ids"), "y", (s, n), {"transpose_b": True}),
    )
    weights = codes.astype(np.float32) * scale
    expected = np.stack([weights[i] @ row for i, row in zip(ids, rows, strict=True)])
    return _fused({"w": codes, "s": scale, "x": rows, "ids": ids}, body, expected)


def fused_norm(rng: np.random.Generator, tokens: int) -> Case:
    """Statistics of a row and what they scale in one kernel: the row must stay whole."""
    new, width = int(rng.integers(1, 6)), int(rng.integers(1, 9))
    x, w = real(rng, (2, new, width)), real(rng, (width,))
    square = (("mul", (("in", 0), ("in", 0)), "fp32"),)
    apply = (
        ("add", (("in", 1), ("const", 1e-3)), "fp32"),
        ("sqrt", (("step", 0),), "fp32"),
        ("div", (("in", 0), ("step", 1)), "fp32"),
        ("mul", (("step", 2), ("in", 2)), "fp32"),
    )
    body = (
        ("map", ("x",), "s", x.shape, {"steps": square}),
        ("reduce", ("s",), "m", (2, new, 1), {"fn": "mean", "axes": (2,), "keepdims": True}),
        ("map", ("x", "m", "w"), "y", x.shape, {"steps": apply}),
    )
    expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-3)) * w
    return _fused({"x": x, "w": w}, body, expected)


def fused_gated(rng: np.random.Generator, tokens: int) -> Case:
    """Two products joined elementwise: their depth must stay whole."""
    new, depth, width = (int(n) for n in rng.integers(1, 7, 3))
    x, g, u = whole(rng, (1, new, depth)), whole(rng, (depth, width)), whole(rng, (depth, width))
    steps = (("relu", (("in", 0),), "fp32"), ("mul", (("step", 0), ("in", 1)), "fp32"))
    body = (
        ("matmul", ("x", "g"), "a", (1, new, width), {}),
        ("matmul", ("x", "u"), "b", (1, new, width), {}),
        ("map", ("a", "b"), "y", (1, new, width), {"steps": steps}),
    )
    return _fused({"x": x, "g": g, "u": u}, body, np.maximum(x @ g, 0) * (x @ u))


def fused_attention(rng: np.random.Generator, tokens: int) -> Case:
    """Scores, mask and weighted sum in one kernel: tokens may be divided, the head's width not."""
    heads, new, width = int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(1, 5))
    q, k = real(rng, (1, heads, new, width)), real(rng, (1, heads, tokens, width))
    v = real(rng, (1, heads, tokens, width))
    m = np.where(rng.random((1, 1, new, tokens)) < 0.3, -np.inf, 0).astype(np.float32)
    steps = (("add", (("in", 0), ("in", 1)), "fp32"),)
    body = (
        ("matmul", ("q", "k"), "a", (1, heads, new, tokens), {"transpose_b": True}),
        ("map", ("a", "m"), "s", (1, heads, new, tokens), {"steps": steps}),
        ("attend", ("s", "v"), "y", (1, heads, new, width + 2), {"transpose_v": False}),
    )
    expected = _softmax_rows(q @ k.swapaxes(-1, -2) + m, v)
    grows = (NONE, frozenset({2}), frozenset({3}), frozenset({2}), NONE)
    case = _fused({"q": q, "k": k, "m": m, "v": v}, body, expected, *grows)
    return replace(case, rtol=1e-5)


CASES: dict[str, tuple[Generator, ...]] = {
    "map": (map_affine, map_masked, map_integers),
    "matmul": (matmul_random, matmul_scores, matmul_values, matmul_bytes),
    "reduce": (reduce_random, reduce_integers, reduce_tokens),
    "transpose": (transpose_random, transpose_cache),
    "reshape": (reshape_heads, reshape_random, reshape_odd, reshape_tokens),
    "expand": (expand_random, expand_heads),
    "slice": (slice_random, slice_whole, slice_beside_tokens),
    "concat": (concat_random, concat_beside_tokens),
    "gather": (
        gather_random,
        gather_beside_tokens,
        gather_tokens,
        index_cases.gather_tables,
        index_cases.gather_elements,
    ),
    "topk": (index_cases.topk_random,),
    "scan": (index_cases.scan_random,),
    "scatter": (index_cases.scatter_random,),
    "experts": (index_cases.experts_random,),
    "append": (append_growing, append_blocked, append_first),
    "unpack": (unpack_random,),
    "restore": (restore_random,),
    "attend": (attend_tokens, attend_shared),
    "fused": (
        fused_blocks,
        fused_experts,
        fused_heads,
        fused_groups,
        fused_written_through,
        fused_statistics,
        fused_rotary,
        fused_gather,
        fused_norm,
        fused_gated,
        fused_attention,
    ),
}
