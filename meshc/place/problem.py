"""Placement as a choice problem: one position per block, no core twice, least bytes × hops."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from meshc.choice import Choice, ChoiceProblem, Floats, Limit, Pair
from meshc.ir.chip import ChipSpec
from meshc.place.blocks import Anchors, Block, Net, apart, axis_hops, centres


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
    constant = 0.0
    for net in nets:
        ends = [index.get(net.first), index.get(net.second)]
        if ends[0] is not None and ends[1] is not None:
            if ends[0] != ends[1]:
                key = (min(ends[0], ends[1]), max(ends[0], ends[1]))
                joined[key] = joined.get(key, 0.0) + net.bytes
                constant += net.bytes
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
    for (i, j), size in sorted(joined.items()):
        parts = [
            size * axis_hops(chip, axis, middles[i][:, axis], middles[j][:, axis])
            for axis in (0, 1)
        ]
        pairs += [Pair(i, j, parts[0]), Pair(i, j, parts[1])]
        if not share:
            # Blocks that do not overlap are at least this far apart; the relaxation must know.
            least = size * apart(chip, blocks[i], blocks[j])
            bound += least
            terms = ((len(pairs) - 2, -parts[0]), (len(pairs) - 1, -parts[1]))
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
