"""Messages that wait on disk and come into memory a few at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshc.emulator import spool
from meshc.emulator.batch import Batch
from meshc.emulator.flits import run_flits
from meshc.emulator.queues import Unlimited, run_queues
from meshc.emulator.sinks import run_batch
from meshc.emulator.spool import RECORD, Sorter, Spool, records_of

from .handmade import chip
from .network_cases import random_batch, router_chip


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("sources", [1, 3, 40])
def test_runs_on_disk_are_merged_as_in_memory(
    monkeypatch: pytest.MonkeyPatch, sources: int, ascending: bool
) -> None:
    rng = np.random.default_rng(sources)
    records = np.zeros(1000, RECORD)
    records["number"] = np.arange(1000)
    records["ready"] = rng.integers(0, 50, 1000)
    if ascending:
        records["ready"].sort()
    records["source"] = rng.integers(0, sources, 1000) * 7
    expected = Spool.of(records)
    monkeypatch.setattr(spool, "RUN", 90)
    sorter = Sorter()
    for start in range(0, 1000, 60):
        sorter.add(records[start : start + 60])
    made = sorter.spool()
    assert made.sources.tolist() == expected.sources.tolist()
    assert made.starts.tolist() == expected.starts.tolist()
    assert np.concatenate(list(made.chunks())).tolist() == expected.read(0, 1000).tolist()


def waiting(seed: int) -> Batch:
    """Messages of a 4 × 4 mesh, of which some wait for earlier ones."""
    messages = random_batch(seed, 16, 400, span=900)
    pairs = np.random.default_rng(seed).integers(0, 400, (150, 2))
    pairs = pairs[pairs[:, 0] > pairs[:, 1]].astype(np.int32)
    return replace(messages, later=pairs[:, 0].copy(), earlier=pairs[:, 1].copy())


@pytest.mark.parametrize("slots", [16, 40, 150])
def test_few_slots_change_nothing(monkeypatch: pytest.MonkeyPatch, slots: int) -> None:
    for messages in (random_batch(slots, 16, 400, span=900), waiting(slots)):
        for spec, run in ((chip(4, 4), run_queues), (router_chip("wh1", 4), run_flits)):
            monkeypatch.setattr(spool, "SLOTS", 1 << 18)
            expected = run(spec, messages)
            monkeypatch.setattr(spool, "SLOTS", slots)
            monkeypatch.setattr(spool, "LEAST_SLOTS", 1)
            times = run(spec, messages)
            assert times.inject.tolist() == expected.inject.tolist()
            assert times.arrive.tolist() == expected.arrive.tolist()
            assert times.link_busy.tolist() == expected.link_busy.tolist()


def test_a_circle_is_counted_where_messages_are_still_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spool, "SLOTS", 16)
    monkeypatch.setattr(spool, "LEAST_SLOTS", 1)
    messages = random_batch(1, 4, 100)
    last = np.array([99], np.int32)
    first = np.flatnonzero(messages.source == messages.source[99])[:1].astype(np.int32)
    spec = chip(2, 2)
    network = Unlimited(spec)
    run_batch(network, replace(messages, later=first, earlier=last))
    stays = np.flatnonzero(messages.source == messages.source[99])
    assert network.unsent == (len(stays), int(stays[0]))


def test_records_keep_their_numbers() -> None:
    records = records_of(chip(2, 3), random_batch(2, 6, 10), 5)
    assert records["number"].tolist() == list(range(5, 15))
