"""Reduction trees on a line of lanes.

A line of n lanes is cut into `groups` runs. In each run the lanes pass their partial results
towards the middle lane, from both ends; then the runs' middles pass theirs towards the middle
run's. One group is the plain two-sided chain; about √n groups make the tree shallow (the
two-level tree of WaferLLM, OSDI'25, section 5, and of HPDC'24, arXiv 2404.15888).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Tree:
    """A two-level reduction tree.

    parent: at each level, the lane that lane i sends to (-1: none).
    children: at each level, the lanes that lane i receives from.
    order: at each level, the lanes with every child before its parent.
    root: where everything ends.
    """

    parent: tuple[tuple[int, ...], ...]
    children: tuple[tuple[tuple[int, ...], ...], ...]
    order: tuple[tuple[int, ...], ...]
    root: int


@dataclass
class _Level:
    """One level of a tree while it is built."""

    parent: list[int]
    children: list[list[int]]
    order: list[int]

    def chain(self, members: list[int]) -> int:
        """Chain `members` towards their middle one, which is returned."""
        middle = len(members) // 2
        for i, lane in enumerate(members):
            if i == middle:
                continue
            target = members[i + 1] if i < middle else members[i - 1]
            self.parent[lane] = target
            self.children[target].append(lane)
        self.order += [*members[:middle], *reversed(members[middle + 1 :]), members[middle]]
        return members[middle]


@lru_cache(maxsize=4096)
def tree(lanes: int, groups: int) -> Tree:
    """The tree for `lanes` lanes in `groups` groups (at most one per lane)."""
    groups = max(1, min(groups, lanes))
    size = -(-lanes // groups)

    def level() -> _Level:
        return _Level([-1] * lanes, [[] for _ in range(lanes)], [])

    first = level()
    starts = range(0, lanes, size)
    roots = [first.chain(list(range(s, min(s + size, lanes)))) for s in starts]
    levels = [first] if size > 1 else []
    root = roots[0]
    if len(roots) > 1:
        levels.append(level())
        root = levels[-1].chain(roots)
    return Tree(
        tuple(tuple(x.parent) for x in levels),
        tuple(tuple(tuple(c) for c in x.children) for x in levels),
        tuple(tuple(x.order) for x in levels),
        root,
    )


@lru_cache(maxsize=256)
def ring(lanes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A line of lanes as a ring: every other lane on the way out, the rest on the way back, so that
    neighbours on the ring are at most two lanes apart (the interleaving of MeshGEMM, OSDI'25).

    Returns the lane at each position of the ring, and the position of each lane.
    """
    order = (*range(0, lanes, 2), *range(lanes - 1 - lanes % 2, 0, -2))
    position = [0] * lanes
    for at, lane in enumerate(order):
        position[lane] = at
    return order, tuple(position)
