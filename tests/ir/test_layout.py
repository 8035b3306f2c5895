"""Layouts and shards against brute force: sets of elements instead of arithmetic on ranges."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.errors import InvariantError
from meshc.ir.layout import AXES, WHOLE, Axis, Layout, Split, replicated, split
from meshc.ir.shards import contains, covers, intersect, local, pieces

COMMON = settings(max_examples=150, deadline=None)


@st.composite
def ranges(draw: st.DrawFn) -> range:
    start, step = draw(st.integers(0, 12)), draw(st.integers(1, 9))
    return range(start, start + draw(st.integers(0, 40)), step)


@st.composite
def divided(draw: st.DrawFn, rank: int | None = None) -> tuple[Layout, tuple[int, ...], int, int]:
    """A legal layout, a shape, and the sides of a region, more lanes than elements included."""
    rows, cols = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    rank = draw(st.integers(1, 3)) if rank is None else rank
    shape = tuple(draw(st.integers(0, 13)) for _ in range(rank))
    return draw(layouts(shape, rows, cols)), shape, rows, cols


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...], rows: int, cols: int) -> Layout:
    axes: list[list[Axis]] = [[] for _ in shape]
    for axis in draw(st.permutations(AXES)):
        dim = draw(st.integers(-1, len(shape) - 1))
        if dim >= 0:
            axes[dim].append(axis)
    splits = []
    for n, own in zip(shape, axes, strict=True):
        cyclic = draw(st.booleans())
        unit = 1 if cyclic else draw(st.sampled_from([1, 1, 2, 3]))
        splits.append(split(n, tuple(own), rows, cols, unit, cyclic))
    return Layout(tuple(splits))


def lanes(rows: int, cols: int) -> list[tuple[int, int]]:
    return list(product(range(rows), range(cols)))


def elements(shard: tuple[range, ...]) -> set[tuple[int, ...]]:
    return set(product(*shard))


@COMMON
@given(ranges(), ranges())
def test_intersect(a: range, b: range) -> None:
    common = intersect(a, b)
    assert list(common) == sorted(set(a) & set(b))
    assert intersect(b, a) == common or list(intersect(b, a)) == list(common)


@COMMON
@given(ranges(), ranges())
def test_local(shard: range, other: range) -> None:
    common = intersect(shard, other)
    assert contains(shard, common)
    assert [shard[i] for i in local(common, shard)] == list(common)


@COMMON
@given(ranges(), ranges())
def test_contains(shard: range, part: range) -> None:
    assert contains(shard, part) == (set(part) <= set(shard))


@COMMON
@given(divided())
def test_shards_cover_every_element_once_per_replica(
    case: tuple[Layout, tuple[int, ...], int, int],
) -> None:
    layout, shape, rows, cols = case
    layout.verify()
    dividing = [a for a in AXES if a in layout.axes]
    replicas = (rows * cols) // (
        (rows if "row" in dividing else 1) * (cols if "col" in dividing else 1)
    )
    count: dict[tuple[int, ...], int] = {}
    for r, c in lanes(rows, cols):
        for e in elements(layout.shard(shape, r, c, rows, cols)):
            count[e] = count.get(e, 0) + 1
    assert set(count) == elements(tuple(map(range, shape)))
    assert set(count.values()) <= {replicas}


@COMMON
@given(divided())
def test_largest_is_the_fullest_lane(case: tuple[Layout, tuple[int, ...], int, int]) -> None:
    layout, shape, rows, cols = case
    largest = layout.largest(shape, rows, cols)
    held = [tuple(map(len, layout.shard(shape, r, c, rows, cols))) for r, c in lanes(rows, cols)]
    assert largest == tuple(max(h[d] for h in held) for d in range(len(shape)))
    assert held[0] == largest


@COMMON
@given(st.data())
def test_covers(data: st.DataObject) -> None:
    source, shape, rows, cols = data.draw(divided())
    wanted = data.draw(layouts(shape, rows, cols))
    pairs = [
        (source.shard(shape, r, c, rows, cols), wanted.shard(shape, r, c, rows, cols))
        for r, c in lanes(rows, cols)
    ]
    truth = all(elements(w) <= elements(s) for s, w in pairs)
    answer = covers(source, wanted, shape, rows, cols)
    if answer:
        assert truth
    elif truth:  # it looks at one dimension at a time: a lane that wants nothing may mislead it
        assert any(not elements(w) for _, w in pairs)


@COMMON
@given(st.data())
def test_covers_at_the_longest_size_holds_at_every_shorter_one(data: st.DataObject) -> None:
    """Programs read in place what covers at the longest context."""
    source, shape, rows, cols = data.draw(divided())
    wanted = data.draw(layouts(shape, rows, cols))
    if not covers(source, wanted, shape, rows, cols):
        return
    shorter = tuple(data.draw(st.integers(0, n)) for n in shape)
    for r, c in lanes(rows, cols):
        held = source.shard(shorter, r, c, rows, cols)
        assert elements(wanted.shard(shorter, r, c, rows, cols)) <= elements(held)


@COMMON
@given(st.data())
def test_pieces_are_the_wanted_elements_from_lanes_that_hold_them(data: st.DataObject) -> None:
    source, shape, rows, cols = data.draw(divided())
    target_rows, target_cols = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    target = data.draw(layouts(shape, target_rows, target_cols))
    for home in lanes(target_rows, target_cols):
        wanted = target.shard(shape, *home, target_rows, target_cols)
        found = pieces(source, wanted, shape, rows, cols, home)
        seen: set[tuple[int, ...]] = set()
        for (r, c), part in found:
            assert 0 <= r < rows and 0 <= c < cols
            mine = elements(part)
            assert mine, "an empty piece is no message"
            assert mine <= elements(source.shard(shape, r, c, rows, cols))
            assert not mine & seen, "an element arrives twice"
            seen |= mine
        assert seen == elements(wanted)
        free = [a for a in AXES if a not in source.axes]
        for (r, c), _ in found:  # replicas: the nearest gives
            assert "row" not in free or r == home[0] % rows
            assert "col" not in free or c == home[1] % cols


def test_nothing_moves_where_the_layout_stays() -> None:
    layout = Layout((split(7, ("row",), 2, 3), split(9, ("col",), 2, 3)))
    for lane in lanes(2, 3):
        wanted = layout.shard((7, 9), *lane, 2, 3)
        assert [giver for giver, _ in pieces(layout, wanted, (7, 9), 2, 3, lane)] == [lane]


def test_both_axes_count_the_first_outermost() -> None:
    s = split(12, ("row", "col"), 2, 3)
    assert [s.shard(12, r, c, 2, 3) for r, c in lanes(2, 3)] == [
        range(2 * i, 2 * i + 2) for i in range(6)
    ]
    s = split(12, ("col", "row"), 2, 3)
    assert s.shard(12, 1, 0, 2, 3) == range(2, 4)


def test_axes_with_one_lane_are_dropped_so_that_equal_layouts_are_equal() -> None:
    assert split(8, ("row",), 1, 4) == WHOLE
    assert split(8, ("row", "col"), 1, 4) == split(8, ("col",), 1, 4)
    assert replicated(2) == Layout((WHOLE, WHOLE))
    assert hash(replicated(2)) == hash(Layout((Split(), Split())))


def test_units_stay_together() -> None:
    s = split(30, ("row",), 4, 1, unit=5)  # six heads of five on four lanes
    assert [len(s.shard(30, r, 0, 4, 1)) for r in range(4)] == [10, 10, 10, 0]


def test_refusals() -> None:
    twice = Layout((Split(("row",), 2), Split(("row",), 2)))
    with pytest.raises(InvariantError, match=r"^Layout \[r:2, r:2\] divides two dimensions over"):
        twice.verify()
    with pytest.raises(InvariantError, match=r"^A cyclic split keeps single elements, not units"):
        split(8, ("row",), 2, 2, unit=2, cyclic=True)


def test_text_is_readable_and_tells_layouts_apart() -> None:
    found = {str(Layout((s,))) for s in (
        WHOLE, Split(("row",), 2), Split(("col",), 2), Split(("row", "col"), 2),
        Split(("col", "row"), 2), Split(("row",), 3), Split(("row",), 1, True),
    )}  # fmt: skip
    assert len(found) == 7
