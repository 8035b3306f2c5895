"""Region shapes worth trying on a chip."""

from __future__ import annotations

import numpy as np

from meshc.ir.chip import ChipSpec

SLIMMEST = 8  # of a region's sides, unless the mesh itself is slimmer


def free_rectangle(chip: ChipSpec, rows: int, cols: int) -> bool:
    """Whether some rows × cols rectangle of the mesh has no dead core."""
    return _free(_dead_before(chip), rows, cols)


def _dead_before(chip: ChipSpec) -> np.ndarray:
    """Dead cores above and left of each corner, shape (rows + 1, cols + 1)."""
    dead = np.zeros((chip.rows + 1, chip.cols + 1), dtype=np.int64)
    for core in chip.dead():
        dead[core.row + 1, core.col + 1] = 1
    return np.asarray(dead.cumsum(axis=0).cumsum(axis=1))


def _free(total: np.ndarray, rows: int, cols: int) -> bool:
    if rows >= total.shape[0] or cols >= total.shape[1]:
        return False
    inside = (
        total[rows:, cols:] - total[:-rows, cols:] - total[rows:, :-cols] + total[:-rows, :-cols]
    )
    return bool((inside == 0).any())


def shapes(chip: ChipSpec) -> list[tuple[int, int]]:
    """Powers of two and the full mesh along each axis, as far as healthy rectangles exist, and
    the widest healthy rectangle of each such height; smallest area first, squarest first.

    Of two shapes that are each other's transpose only the wide one is kept where it fits: every
    plan of one is a plan of the other with the axes exchanged, at the same price.
    """
    total = _dead_before(chip)
    slim = max(SLIMMEST, max(chip.rows, chip.cols) // min(chip.rows, chip.cols))
    fitting: dict[tuple[int, int], None] = {}
    for r in _sides(chip.rows):
        widths = [c for c in _sides(chip.cols) if _free(total, r, c)]
        if widths:
            fitting.update(dict.fromkeys((r, c) for c in (*widths, _widest(total, r, widths[-1]))))
    kept = [(r, c) for r, c in fitting if max(r, c) <= slim * min(r, c)]
    # Where the mesh has room, both axes divide something: a line or a single core would hold the
    # whole model, or cut it along one dimension only, for a per cent of time at best.
    kept = [(r, c) for r, c in kept if min(r, c) > 1] or kept
    found = [(r, c) for r, c in kept if r <= c or (c, r) not in kept]
    return sorted(found, key=lambda s: (s[0] * s[1], abs(s[0] - s[1]), s))


def _sides(n: int) -> list[int]:
    """Powers of two below n, and n."""
    return [*(1 << i for i in range(n.bit_length()) if 1 << i < n), n]


def _widest(total: np.ndarray, rows: int, known: int) -> int:
    """The largest width of a healthy rectangle of so many rows, at least `known`."""
    low, high = known, total.shape[1]  # free at low, not at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _free(total, rows, middle) else (low, middle)
    return low
