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
    root: where everything ends.
    """

    parent: tuple[tuple[int, ...], ...]
    children: tuple[tuple[tuple[int, ...], ...], ...]
    root: int


def _chain(members: list[int], parent: list[int], children: list[list[int]]) -> int:
    """Chain `members` towards their middle one, which is returned."""
    middle = len(members) // 2
    for i, lane in enumerate(members):
        if i == middle:
            continue
        target = members[i + 1] if i < middle else members[i - 1]
        parent[lane] = target
        children[target].append(lane)
    return members[middle]


@lru_cache(maxsize=4096)
def tree(lanes: int, groups: int) -> Tree:
    """The tree for `lanes` lanes in `groups` groups (at most one per lane)."""
    groups = max(1, min(groups, lanes))
    size = -(-lanes // groups)
    levels_parent, levels_children = [], []
    roots = []
    parent = [-1] * lanes
    children: list[list[int]] = [[] for _ in range(lanes)]
    for start in range(0, lanes, size):
        members = list(range(start, min(start + size, lanes)))
        roots.append(_chain(members, parent, children))
    if any(p >= 0 for p in parent):
        levels_parent.append(tuple(parent))
        levels_children.append(tuple(tuple(c) for c in children))
    root = roots[0]
    if len(roots) > 1:
        parent, children = [-1] * lanes, [[] for _ in range(lanes)]
        root = _chain(roots, parent, children)
        levels_parent.append(tuple(parent))
        levels_children.append(tuple(tuple(c) for c in children))
    return Tree(tuple(levels_parent), tuple(levels_children), root)
