"""Region shapes worth trying on a chip."""

from __future__ import annotations

import numpy as np

from meshc.ir.chip import ChipSpec

SLIMMEST = 8  # of a region's sides, unless the mesh itself is slimmer


def free_rectangle(chip: ChipSpec, rows: int, cols: int) -> bool:
    """Whether some rows × cols rectangle of the mesh has no dead core."""
    if rows > chip.rows or cols > chip.cols:
        return False
    dead = np.zeros((chip.rows + 1, chip.cols + 1), dtype=np.int64)
    for core in chip.dead():
        dead[core.row + 1, core.col + 1] = 1
    total = dead.cumsum(axis=0).cumsum(axis=1)
    inside = (
        total[rows:, cols:] - total[:-rows, cols:] - total[rows:, :-cols] + total[:-rows, :-cols]
    )
    return bool((inside == 0).any())


def shapes(chip: ChipSpec) -> list[tuple[int, int]]:
    """Powers of two and the full mesh along each axis, as far as healthy rectangles exist;
    smallest area first, squarest first. Of two shapes that are each other's transpose only the
    wide one is kept where it fits: every plan of one is a plan of the other with the axes
    exchanged, at the same price."""

    def sides(n: int) -> list[int]:
        found = {n}
        side = 1
        while side < n:
            found.add(side)
            side *= 2
        return sorted(found)

    slim = max(SLIMMEST, max(chip.rows, chip.cols) // min(chip.rows, chip.cols))
    fitting = [
        (r, c)
        for r in sides(chip.rows)
        for c in sides(chip.cols)
        if max(r, c) <= slim * min(r, c) and free_rectangle(chip, r, c)
    ]
    found = [(r, c) for r, c in fitting if r <= c or (c, r) not in fitting]
    return sorted(found, key=lambda s: (s[0] * s[1], abs(s[0] - s[1]), s))
