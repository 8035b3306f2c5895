"""Random cases of the ops that move data by run-time indices, with what loops say about them."""

from __future__ import annotations

import numpy as np

from .lanes import Case, make_op


def _shape(rng: np.random.Generator, rank: int) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.choice([1, 2, 3, 4, 5, 7], rank))


def _small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(np.float32)


def _best(x: np.ndarray, axis: int, k: int, largest: bool, last: bool) -> np.ndarray:
    """Indices by a plain sort of each line: best first, of equal ones the first (or last)."""
    lines = np.moveaxis(x, axis, -1)
    out = np.zeros((*lines.shape[:-1], k), np.int64)
    for at in np.ndindex(*lines.shape[:-1]):
        sign = -1 if largest else 1
        tie = -1 if last else 1
        order = sorted(range(lines.shape[-1]), key=lambda i: (sign * lines[at][i], tie * i))
        out[at] = order[:k]
    return np.moveaxis(out, -1, axis)


def topk_random(rng: np.random.Generator, tokens: int) -> Case:
    """Few distinct numbers, so that ties decide."""
    rank = int(rng.integers(1, 4))
    x, axis = _small(rng, _shape(rng, rank)), int(rng.integers(rank))
    k = int(rng.integers(1, x.shape[axis] + 1))
    largest, last, values = (bool(rng.integers(2)) for _ in range(3))
    found = _best(x, axis, k, largest, last)
    result = "values" if values else "indices"
    op = make_op("topk", 1, axis=axis, largest=largest, last=last, result=result)
    return Case(op, (x,), np.take_along_axis(x, found, axis) if values else found)


def scan_random(rng: np.random.Generator, tokens: int) -> Case:
    rank = int(rng.integers(1, 4))
    x, axis = _small(rng, _shape(rng, rank)), int(rng.integers(rank))
    exclusive, reverse = bool(rng.integers(2)), bool(rng.integers(2))
    y = np.flip(x, axis) if reverse else x
    sums = np.cumsum(y, axis) - (y if exclusive else 0)
    op = make_op("scan", 1, axis=axis, exclusive=exclusive, reverse=reverse)
    return Case(op, (x,), np.flip(sums, axis) if reverse else sums)


def gather_tables(rng: np.random.Generator, tokens: int) -> Case:
    """Every leading row looks up in a table of its own."""
    lead, rows, width, count = _shape(rng, 4)
    data, index = _small(rng, (lead, rows, width)), rng.integers(-rows, rows, (lead, count))
    expected = np.stack([data[i][index[i]] for i in range(lead)])
    return Case(make_op("gather", 2, axis=1, batch=1), (data, index), expected)


def gather_elements(rng: np.random.Generator, tokens: int) -> Case:
    a, b, rows, count = _shape(rng, 4)
    data, index = _small(rng, (a, b, rows)), rng.integers(0, rows, (a, b, count))
    op = make_op("gather", 2, axis=2, batch=2)
    return Case(op, (data, index), np.take_along_axis(data, index, 2))


def scatter_random(rng: np.random.Generator, tokens: int) -> Case:
    """Rows that are hit several times or not at all, and indices that hit nothing."""
    lead, rows, width, count = _shape(rng, 4)
    how = str(rng.choice(["none", "add", "mul", "max", "min"]))
    data, new = _small(rng, (lead, rows, width)), _small(rng, (lead, count, width))
    index = rng.integers(-1, rows + 1, (lead, count))
    expected = data.copy()
    combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    for b in range(lead):
        for m in range(count):
            r = index[b, m]
            if 0 <= r < rows:
                old = expected[b, r]
                expected[b, r] = new[b, m] if how == "none" else combine[how](old, new[b, m])
    op = make_op("scatter", 3, batch=1, reduction=how)
    return Case(op, (data, index, new), expected)


def experts_random(rng: np.random.Generator, tokens: int) -> Case:
    """Some rows belong to no expert, some experts get no rows."""
    rows, depth, width, count = (int(n) for n in rng.integers(1, 8, 4))
    turned = bool(rng.integers(2))
    x, w = _small(rng, (rows, depth)), _small(rng, (count, depth, width))
    ids = rng.integers(-1, count + 1, rows)
    expected = np.zeros((rows, width), np.float32)
    for s in range(rows):
        if 0 <= ids[s] < count:
            expected[s] = x[s] @ w[ids[s]]
    held = np.ascontiguousarray(np.swapaxes(w, 1, 2)) if turned else w
    return Case(make_op("experts", 3, transpose_b=turned), (x, held, ids), expected)
