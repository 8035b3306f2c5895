"""The text form of every noun: what is written is read back equal, and equal values are equal
text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshc.ir.codec import _CLASSES, decode, dumps, encode, loads
from meshc.ir.graph import Graph, Op
from meshc.ir.program import Program

FAST = settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


@pytest.fixture(autouse=True, scope="module")
def strategies() -> Iterator[None]:
    """Values of the nouns' field types: no NaN (it equals nothing), small bodies, plain
    attributes."""
    scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
    tuples = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple))
    st.register_type_strategy(float, st.floats(allow_nan=False))
    st.register_type_strategy(int, st.integers(-(2**60), 2**60))
    st.register_type_strategy(str, st.text(max_size=5) | st.just("@"))
    words = st.text(max_size=4)
    attrs = st.lists(st.tuples(words, tuples), max_size=2).map(tuple)
    names = st.lists(words, max_size=2).map(tuple)
    plain = st.builds(Op, words, words, names, words, attrs, names, st.just(()))
    fused = st.builds(
        Op, words, words, names, words, attrs, names, st.lists(plain, max_size=2).map(tuple)
    )
    st.register_type_strategy(Op, plain | fused)
    yield


@pytest.mark.parametrize("name", sorted(_CLASSES))
def test_every_noun_comes_back_equal(name: str) -> None:
    fields = _any_fields(_CLASSES[name])

    @FAST
    @given(st.builds(_CLASSES[name], **fields))
    def check(value: Any) -> None:
        text = dumps(value)
        back = loads(text)
        assert back == value
        assert type(back) is type(value)
        assert dumps(back) == text
        json.loads(text)

    check()


def _any_fields(cls: type) -> dict[str, st.SearchStrategy[Any]]:
    """Strategies for the fields that hold anything."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    if "model" in cls.__dataclass_fields__ and cls.__name__ == "Compiled":  # type: ignore[attr-defined]
        fields["model"] = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3))
        fields["phases"] = st.just({})
    if cls.__name__ == "CompiledPhase":
        fields["graph"] = st.none()
    return fields


def test_the_nouns_are_known() -> None:
    """A noun that codec forgot would fail when a compiled model is written, not before."""
    assert {"Program", "Graph", "Plan", "Layout", "ChipSpec", "Routing", "Workload"} <= set(
        _CLASSES
    )


@pytest.mark.parametrize(
    "value",
    [
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        1e-300,
        2**70,
        True,
        None,
        "",
        'ü\n"',
        (),
        ((),),
        range(0, 9, 2),
    ],
    ids=repr,
)
def test_plain_values(value: Any) -> None:
    back = loads(dumps(value))
    assert back == value and type(back) is type(value)
    assert str(back) == str(value)  # the sign of zero too


def test_not_a_number() -> None:
    assert math.isnan(loads(dumps(math.nan)))


def test_keys_of_any_kind() -> None:
    for value in ({1: 2}, {(1, "a"): {}}, {"@": 1, "b": 2}, {"@": "range"}, {}, {"a": {"@": {}}}):
        assert loads(dumps(value)) == value


def test_lists_come_back_as_tuples() -> None:
    assert loads(dumps([1, [2]])) == (1, (2,))


def test_what_has_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^ndarray has no JSON form\.$"):
        dumps(np.zeros(2))
    with pytest.raises(TypeError, match=r"^int64 has no JSON form\.$"):
        encode((np.int64(3),))


def test_numbers_keep_their_kind() -> None:
    assert type(decode(json.loads(dumps(2.0)))) is float
    assert type(decode(json.loads(dumps(2)))) is int


def test_empty_program_and_graph() -> None:
    program = Program("decode", "chip", 1, 1, {}, {}, {}, {}, (), (), (), {}, {})
    graph = Graph("g", {}, (), (), ())
    assert loads(dumps(program)) == program
    assert loads(dumps(graph)) == graph
