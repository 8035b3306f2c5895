"""Reduction trees: every lane's partial result reaches the root, once, in the depth expected."""

from __future__ import annotations

import pytest

from meshc.collectives import Tree, tree

SIZES = range(1, 71)


def leaves_at_root(t: Tree, lanes: int) -> list[int]:
    """Carry out the tree on sets of contributions; the root's in the end."""
    held = [[lane] for lane in range(lanes)]
    for parent, children in zip(t.parent, t.children, strict=True):
        level = [list(h) for h in held]
        for lane in by_depth(parent):
            if parent[lane] >= 0:
                level[parent[lane]] += level[lane]
        held = level
        for lane, found in enumerate(children):
            assert all(parent[child] == lane for child in found)
    return held[t.root]


def by_depth(parent: tuple[int, ...]) -> list[int]:
    """Lanes with the farthest from the end of their chain first."""
    return sorted(range(len(parent)), key=lambda lane: -depth(parent, lane))


def depth(parent: tuple[int, ...], lane: int) -> int:
    steps = 0
    while parent[lane] >= 0:
        lane, steps = parent[lane], steps + 1
        assert steps <= len(parent), "the tree has a circle"
    return steps


@pytest.mark.parametrize("lanes", SIZES)
def test_every_lane_reaches_the_root_once(lanes: int) -> None:
    for groups in range(1, lanes + 2):
        t = tree(lanes, groups)
        assert sorted(leaves_at_root(t, lanes)) == list(range(lanes))


@pytest.mark.parametrize("lanes", SIZES)
def test_shape_of_the_levels(lanes: int) -> None:
    for groups in range(1, lanes + 1):
        t = tree(lanes, groups)
        assert len(t.parent) == len(t.children) <= 2
        senders = [lane for parent in t.parent for lane, p in enumerate(parent) if p >= 0]
        assert len(senders) == lanes - 1, "every lane but the root sends exactly once"
        assert t.root not in senders
        for parent, children in zip(t.parent, t.children, strict=True):
            assert all(len(found) <= 2 for found in children), "two receive buffers are enough"
            pairs = {(child, lane) for lane, found in enumerate(children) for child in found}
            assert pairs == {(lane, p) for lane, p in enumerate(parent) if p >= 0}


@pytest.mark.parametrize("lanes", SIZES)
def test_depth(lanes: int) -> None:
    """Chains towards the middle: half a group deep, then half the number of groups."""
    for groups in range(1, lanes + 1):
        t = tree(lanes, groups)
        size = -(-lanes // groups)
        count = -(-lanes // size)
        levels = [n for n in (min(size, lanes) // 2, count // 2) if n]
        deepest = [max(depth(p, lane) for lane in range(lanes)) for p in t.parent]
        assert deepest == levels
        assert sum(deepest) <= lanes // 2 + 1


def test_two_levels_are_shallow() -> None:
    """About √n groups make depth about √n: the point of two levels (WaferLLM, section 5)."""
    t = tree(64, 8)
    assert sum(max(depth(p, lane) for lane in range(64)) for p in t.parent) == 8
    chain = tree(64, 1)
    assert [max(depth(p, lane) for lane in range(64)) for p in chain.parent] == [32]


def test_the_root_is_in_the_middle() -> None:
    for lanes in SIZES:
        assert tree(lanes, 1).root == lanes // 2


def test_one_lane_is_alone() -> None:
    assert tree(1, 1) == Tree(parent=(), children=(), order=(), root=0) == tree(1, 5)


@pytest.mark.parametrize("lanes", SIZES)
def test_the_order_has_children_before_their_parents(lanes: int) -> None:
    for groups in range(1, lanes + 1):
        t = tree(lanes, groups)
        for parent, order in zip(t.parent, t.order, strict=True):
            assert len(set(order)) == len(order)
            place = {lane: i for i, lane in enumerate(order)}
            assert all(p < 0 or place[lane] < place[p] for lane, p in enumerate(parent))


def test_more_groups_than_lanes_are_as_many_as_lanes() -> None:
    assert tree(5, 9) == tree(5, 5)
