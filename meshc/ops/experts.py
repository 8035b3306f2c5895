"""experts: every row is multiplied by the weights of its own expert.

rows [S, K], weights [E, K, N] (or [E, N, K] with attribute `transpose_b`), ids [S] → [S, N]:
row s of the result is rows[s] · weights[ids[s]], and zero where the id is no expert's number.
A lane that holds some of the experts multiplies only the rows that belong to them and leaves
zeros for the others, so dividing the experts leaves partial sums.

How long that takes depends on how many rows each expert gets, which is part of the workload:
attribute `counts` has them per layer (one entry for all layers, or one for each), each a tuple of
the rows of every expert, and attribute `rows` the rows of all, of which some may belong to no
expert. Without them all rows are spread evenly. Weights of an expert without rows are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from meshc.ir.dtypes import NUMPY, size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.matmul import stored_type
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work


def even(rows: int, experts: int) -> tuple[int, ...]:
    """Rows of each expert where they are spread evenly: the first ones get the remainder."""
    share, rest = divmod(rows, max(1, experts))
    return tuple(share + (e < rest) for e in range(experts))


def multiplied(
    rows: np.ndarray, weights: np.ndarray, ids: np.ndarray, transpose_b: bool, first: int
) -> np.ndarray:
    """The products in float32 (float64 stays), where `weights` are those of the experts from
    number `first` on."""
    if rows.dtype != NUMPY["fp64"]:
        rows = rows.astype(np.float32)
    width = weights.shape[1] if transpose_b else weights.shape[2]
    out = np.zeros((rows.shape[0], width), rows.dtype)
    for e in np.unique(ids):
        at = int(e) - first
        if 0 <= at < weights.shape[0]:
            w = weights[at].astype(rows.dtype)
            mine = ids == e
            with np.errstate(all="ignore"):
                out[mine] = rows[mine] @ (w.T if transpose_b else w)
    return out


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    rows, weights, _ = inputs
    dims = (
        IterDim("s", rows.shape[0], "parallel"),
        IterDim("n", output.shape[1], "parallel"),
        IterDim("k", rows.shape[1], "sum"),
        IterDim("e", weights.shape[0], "sum"),
    )
    s, n, k, e = map(Use, range(4))
    w = (e, n, k) if op.attr("transpose_b", False) else (e, k, n)
    return Space(dims, ((s, k), w, (s,)), (s, n))


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del output
    rows, weights, ids = arrays
    return multiplied(rows, weights, ids, bool(op.attr("transpose_b", False)), inputs[1][0].start)


def counts_of(op: Op, rows: int, experts: int, layer: int = -1) -> tuple[int, ...]:
    """Rows of every expert in a layer (by its number in the repeated segment)."""
    found: tuple[tuple[int, ...], ...] = op.attr("counts", ())
    if not found:
        return even(rows, experts)
    return found[layer] if len(found) > 1 and layer >= 0 else found[0]


def _cost(
    counts: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """What a lane does whose experts get `counts` rows."""
    k, n = shapes[0][1], output[1]
    groups = Counter(c for c in counts if c)
    total, busy = sum(c * times for c, times in groups.items()), sum(groups.values())
    traffic = total * k * size_bytes(dtypes[0]) + busy * k * n * size_bytes(dtypes[1])
    traffic += shapes[2][0] * size_bytes(dtypes[2]) + output[0] * n * size_bytes(output_dtype)
    matmuls = tuple((c, k, n, times) for c, times in sorted(groups.items()) if c * k * n)
    stored = stored_type(dtypes)
    return Work(matmuls=matmuls, dtype=dtypes[0], sram_bytes=traffic, stored=stored)


def _mine(counts: Sequence[int], rows: range, total: int) -> list[int]:
    """Of each expert's rows, those among `rows` of `total`: they are spread over the tensor."""
    if not total:
        return [0] * len(counts)
    return [c * rows.stop // total - c * rows.start // total for c in counts]


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """The work of the busiest lane with shards of these shapes."""
    rows, experts = shapes[0][0], shapes[1][0]
    if not experts:
        return _cost((), shapes, output, dtypes, output_dtype)
    every = op.attr("counts", ()) or (even(rows, experts),)
    worst, most = _cost((), shapes, output, dtypes, output_dtype), -1.0
    for counts in every:
        total = op.attr("rows", sum(counts)) or 1
        for start in range(0, len(counts), experts):
            part = [-(-c * min(rows, total) // total) for c in counts[start : start + experts]]
            found = _cost(part, shapes, output, dtypes, output_dtype)
            if found.macs + found.sram_bytes > most:
                worst, most = found, found.macs + found.sram_bytes
    return worst


def _share(
    op: Op, inputs: Sequence[Ranges], output: Ranges, dtypes: Sequence[str], out: str, layer: int
) -> Work:
    """The work of the lane that holds these parts."""
    rows, held = inputs[0][0], inputs[1][0]
    shapes = [tuple(map(len, r)) for r in inputs]
    total = op.attr("rows", rows.stop)
    counts = counts_of(op, total, held.stop, layer)
    mine = _mine([counts[e] for e in held], rows, total)
    return _cost(mine, shapes, tuple(map(len, output)), dtypes, out)


RECORD = OpRecord("experts", _space, _evaluate, _work, _share)
