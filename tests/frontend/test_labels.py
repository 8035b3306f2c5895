"""Labels follow sizes through arithmetic and through the dimension that a reshape infers."""

from __future__ import annotations

from meshc.frontend.labels import (
    BATCH,
    FIXED,
    MIXED,
    NEW,
    PAST,
    TOTAL,
    add,
    divide,
    loose_dims,
    map_label,
    multiply,
    product,
    remainder,
)


def test_sums_and_differences() -> None:
    assert add(PAST, NEW, 5, 3) == TOTAL == add(NEW, PAST, 3, 5)
    assert add(TOTAL, PAST, 8, 5, -1) == NEW
    assert add(TOTAL, TOTAL, 8, 8, -1) == FIXED
    assert add(FIXED, FIXED, 1, 2) == FIXED
    assert add(PAST, FIXED, 5, 1) == add(PAST, FIXED, 9, 1) != TOTAL
    assert add(MIXED, NEW, 1, 1) == MIXED


def test_products_and_quotients() -> None:
    four = multiply(BATCH, FIXED, 2, 4)
    assert four != BATCH and divide(four, FIXED, 4) == BATCH
    assert divide(four, FIXED, 3) == MIXED == divide(four, BATCH, 2)
    assert multiply(BATCH, NEW, 2, 3) == multiply(NEW, BATCH, 3, 2) == product((BATCH, NEW), (2, 3))


def test_remainder_does_not_look_at_loose_sizes() -> None:
    for batch, new in ((2, 3), (1, 1), (1, 64), (0, 5)):
        both = product((BATCH, NEW), (batch, new))
        labels, sizes = (BATCH, NEW, FIXED), (batch, new, 64)
        assert remainder(labels, sizes, (BATCH, NEW, FIXED), (batch, new, 16)) == FIXED
        assert remainder(labels, sizes, (FIXED,), (64,)) == both
        assert remainder(labels, sizes, (BATCH, FIXED), (batch, 64)) == NEW
        assert remainder((both, FIXED), (batch * new, 8), (BATCH, NEW), (batch, new)) == FIXED
        heads = multiply(BATCH, FIXED, batch, 4)
        left = (BATCH, FIXED, NEW, FIXED), (batch, 4, new, 8)
        assert remainder(*left, (NEW, FIXED), (new, 8)) == heads
        assert remainder(labels, sizes, (PAST,), (3,)) == MIXED


def test_choices() -> None:
    assert map_label("where", (MIXED, FIXED, NEW), (False, 1, 5)) == NEW
    assert map_label("where", (NEW, FIXED, PAST), (True, 1, 5)) == MIXED
    assert map_label("where", (FIXED, FIXED, PAST), (True, 1, 5)) == FIXED
    assert map_label("cast", (TOTAL,), (4,)) == TOTAL
    assert map_label("max", (NEW, FIXED), (4, 1)) == MIXED


def test_dimensions_that_only_one_side_of_a_reshape_has() -> None:
    tokens = multiply(BATCH, TOTAL, 2, 7)
    assert loose_dims((BATCH, TOTAL), (tokens, FIXED)) == ((1,), (0,))
    assert loose_dims((BATCH, FIXED, TOTAL, FIXED), (BATCH, TOTAL, FIXED)) == ((), ())
    assert loose_dims((BATCH, NEW), (multiply(BATCH, NEW, 2, 3),)) == ((), ())
