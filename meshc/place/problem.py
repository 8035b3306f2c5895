"""Placement as a choice problem: one position per block, no core twice, least bytes × hops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshc.choice import Choice, ChoiceProblem, Floats, Limit, Pair
from meshc.ir.chip import ChipSpec
from meshc.place.blocks import Anchors, Block, Net, apart, axis_hops, centres

FULL_ENTRIES = 15_000  # pairs of positions up to which distances are not split into rows and cols


def placement_problem(
    blocks: Sequence[Block],
    nets: Sequence[Net],
    anchors: Sequence[Anchors],
    fixed: Mapping[str, tuple[float, float]],
    chip: ChipSpec,
    share: bool,
    scope: str,
) -> ChoiceProblem:
    """blocks, anchors: what is placed and where it may stand.

    fixed: middle (row, col) of everything else that a net may name.   share: blocks may overlap.
    The objective is the sum of bytes × hops between middles, plus up to a millionth of it that
    prefers low rows and cols among equals.
    """
    index = {b.name: i for i, b in enumerate(blocks)}
    middles = [centres(a, b) for a, b in zip(anchors, blocks, strict=True)]
    joined: dict[tuple[int, int], float] = {}
    pull: list[Floats] = [np.zeros(len(a)) for a in anchors]
    for net in nets:
        ends = [index.get(net.first), index.get(net.second)]
        if ends[0] is not None and ends[1] is not None:
            if ends[0] != ends[1]:
                key = (min(ends[0], ends[1]), max(ends[0], ends[1]))
                joined[key] = joined.get(key, 0.0) + net.bytes
        elif ends[0] is not None or ends[1] is not None:
            own = ends[0] if ends[0] is not None else ends[1]
            other = net.second if ends[0] is not None else net.first
            assert own is not None
            for axis in (0, 1):
                there = np.array([fixed[other][axis]])
                hops = axis_hops(chip, axis, middles[own][:, axis], there)[:, 0]
                pull[own] = pull[own] + net.bytes * hops
    total = sum(n.bytes for n in nets) or 1.0
    tie = 1e-6 * total / (len(blocks) * (chip.rows + chip.cols))
    choices = tuple(
        Choice(b.name, tuple((p + tie * a.sum(1)).tolist()))
        for b, a, p in zip(blocks, anchors, pull, strict=True)
    )
    pairs: list[Pair] = []
    limits: list[Limit] = []
    bound = sum(min(c.costs, default=0.0) for c in choices)
    entries = sum(len(anchors[i]) * len(anchors[j]) for i, j in joined)
    for (i, j), size in sorted(joined.items()):
        rows, cols = (
            size * axis_hops(chip, axis, middles[i][:, axis], middles[j][:, axis])
            for axis in (0, 1)
        )
        least = size * apart(chip, blocks[i], blocks[j])
        bound += least
        if entries <= FULL_ENTRIES:
            both = rows + cols
            if not share:
                both[_overlap(blocks[i], anchors[i], blocks[j], anchors[j])] = np.inf
            pairs.append(Pair(i, j, both))
            continue
        # Rows and cols apart are far fewer classes; then the relaxation must be told that blocks
        # which do not overlap have a distance.
        pairs += [Pair(i, j, rows), Pair(i, j, cols)]
        if not share:
            terms = ((len(pairs) - 2, -rows), (len(pairs) - 1, -cols))
            limits.append(Limit(f"{blocks[i].name} beside {blocks[j].name}", (), -least, terms))
    if not share:
        limits += _no_core_twice(blocks, anchors)
    return ChoiceProblem(
        "place",
        scope,
        choices,
        tuple(pairs),
        tuple(limits),
        known_bound=bound if not share else -math.inf,
    )


def _overlap(
    first: Block, at: Anchors, second: Block, there: Anchors
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For every two anchors, whether the blocks would share a core."""
    out = np.ones((len(at), len(there)), bool)
    for axis, size, other in ((0, first.rows, second.rows), (1, first.cols, second.cols)):
        low, high = at[:, None, axis], there[None, :, axis]
        out &= (low < high + other) & (high < low + size)
    return out


def _no_core_twice(blocks: Sequence[Block], anchors: Sequence[Anchors]) -> list[Limit]:
    """Each core at most once.

    Two rectangles overlap just when they share the core at (larger of their first rows, larger of
    their first cols), so that only cores at a first row and a first col of some candidate matter.
    """
    if len(blocks) < 2:
        return []
    rows = np.unique(np.concatenate([a[:, 0] for a in anchors]))
    cols = np.unique(np.concatenate([a[:, 1] for a in anchors]))
    covers = []
    for block, a in zip(blocks, anchors, strict=True):
        in_row = (a[:, :1] <= rows) & (rows < a[:, :1] + block.rows)
        in_col = (a[:, 1:] <= cols) & (cols < a[:, 1:] + block.cols)
        cover = in_row[:, :, None] & in_col[:, None, :]
        covers.append(cover.reshape(len(a), -1))
    signatures = np.concatenate(covers).T
    _, first = np.unique(np.packbits(signatures, axis=1), axis=0, return_index=True)
    limits = []
    for cell in sorted(first.tolist()):
        terms = tuple(
            (i, c[:, cell].astype(float)) for i, c in enumerate(covers) if c[:, cell].any()
        )
        if len(terms) > 1:
            row, col = rows[cell // len(cols)], cols[cell % len(cols)]
            limits.append(Limit(f"core ({row}, {col})", terms, 1.0))
    return limits
