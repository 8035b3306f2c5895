"""Weights that are read when something looks at them: the same bytes, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshc.emulator import resident
from meshc.emulator.resident import Budget, Shards, Sources
from meshc.emulator.sram import Memory
from meshc.ir.stream import View

SIZE = 1 << 14


def view(address: int, count: int, first: int = 0) -> View:
    return View(address, (count,), (range(first, count),), "int32")


def memory(budget: Budget, *spans: tuple[int, int]) -> Memory:
    return Memory("(0,0)", 1 << 20, SIZE * 4, Shards(budget), spans)


def counted(value: int, count: int, log: list[int]) -> Callable[[], np.ndarray]:
    def part() -> np.ndarray:
        log.append(value)
        return np.full(count, value, np.int32)

    return part


def test_read_once_and_again_after_it_was_forgotten() -> None:
    log: list[int] = []
    m = memory(Budget(SIZE + 100), (0, SIZE), (SIZE, 2 * SIZE))
    m.defer(view(0, SIZE // 4), counted(7, SIZE // 4, log))
    m.defer(view(SIZE, SIZE // 4), counted(9, SIZE // 4, log))
    assert log == []
    for expected in ([7], [7], [7, 9], [7, 9, 7]):
        m.begin()
        at = 0 if expected[-1] == 7 else SIZE
        assert (m.read(view(at, SIZE // 4)) == expected[-1]).all()
        assert log == expected
    m.begin()
    assert (m.read(view(2 * SIZE, 8)) < -(2**15)).all()  # never written


def test_what_one_action_looks_at_stays() -> None:
    m = memory(Budget(1), (0, SIZE), (SIZE, 2 * SIZE))
    m.defer(view(0, SIZE // 4), counted(7, SIZE // 4, []))
    m.defer(view(SIZE, SIZE // 4), counted(9, SIZE // 4, []))
    m.begin()
    a, b = m.read(view(0, SIZE // 4)), m.read(view(SIZE, SIZE // 4))
    assert (a == 7).all() and (b == 9).all()


def test_what_is_written_stays_written() -> None:
    log: list[int] = []
    m = memory(Budget(1), (0, SIZE), (SIZE, 2 * SIZE))
    m.defer(view(0, SIZE // 4), counted(7, SIZE // 4, log))
    m.defer(view(SIZE, SIZE // 4), counted(9, SIZE // 4, log))
    m.write(view(16, 2), np.array([1, 2], np.int32))
    for at in (SIZE, 0, SIZE, 0):
        m.begin()
        m.read(view(at, 1))
    assert list(m.read(view(8, 6))) == [7, 7, 1, 2, 7, 7]
    assert log.count(7) == 1


@pytest.mark.parametrize("later", [64, SIZE - 64])
def test_shards_that_overlap_are_loaded_in_order(later: int) -> None:
    """A wrong address shows as if all had been loaded at the beginning."""
    m = memory(Budget(1), (0, 2 * SIZE))
    m.defer(view(0, SIZE // 4), counted(7, SIZE // 4, []))
    m.defer(view(later, SIZE // 4), counted(9, SIZE // 4, []))
    m.begin()
    assert list(m.read(view(later - 4, 2))) == [7, 9]


def test_padding_of_a_shard_is_never_written() -> None:
    m = memory(Budget(1), (0, 40))
    m.defer(view(0, 10, first=4), counted(7, 6, []))
    m.begin()
    found = m.read(view(0, 10))
    assert (found[:4] < 0).all() and (found[4:] == 7).all()


def test_sources_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "SOURCE_BYTES", 100)
    asked: list[str] = []

    class Data(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            asked.append(name)
            return np.zeros(10)

    sources = Sources(Data())
    for name in "aabba":
        sources[name]
    assert asked == ["a", "b", "a"]


@pytest.mark.parametrize("budget", [1, 5000])
def test_a_model_whose_weights_come_and_go(
    build: Any, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    from meshc.run import verify_phase

    compiled = build(grid=(2, 3), phase="decode")
    whole = verify_phase(compiled, "decode")
    monkeypatch.setattr(resident, "LEAST_BYTES", 1)
    monkeypatch.setattr(resident, "BUDGET_BYTES", budget)
    spare = verify_phase(compiled, "decode")
    assert spare.verify is not None and spare.verify["passed"]
    assert whole.trace.outputs is not None and spare.trace.outputs is not None
    for name, array in whole.trace.outputs.items():
        assert np.array_equal(array, spare.trace.outputs[name])
