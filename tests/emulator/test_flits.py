"""Routers with finite buffers: against BookSim2, and what holds for all traffic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshc.emulator.flits import run_flits
from meshc.emulator.messages import links_used, send_messages
from meshc.errors import InputError

from .handmade import chip
from .network_cases import (
    HERE,
    ROUTERS,
    SHARED,
    batch,
    index,
    random_batch,
    router_chip,
    tails,
    trace,
)

SMALL = {
    "hol_4x4": 4,
    "merge3_staggered_8x8": 8,
    "gather_to_0_4x4_16f": 4,
    "rand_mixed_4x4_r0.15": 4,
}


@pytest.mark.parametrize("router", ["vc8", "wh1", "fast1"])
@pytest.mark.parametrize("name", SMALL)
def test_every_packet_arrives_in_booksims_cycle(name: str, router: str) -> None:
    times = run_flits(router_chip(router, SMALL[name]), trace(HERE, name))
    assert times.arrive.tolist() == tails(HERE, name, router).tolist()


def test_all_recorded_traffic_arrives_in_booksims_cycles() -> None:
    recorded = index()
    if not recorded:
        pytest.skip(f"{SHARED} is not there: only the traffic in tests/data was compared")
    for entry in recorded:
        name, router = entry["trace"], entry["router"]
        times = run_flits(router_chip(router, entry["k"]), trace(SHARED / "network", name))
        expected = tails(SHARED / "network", name, router)
        assert np.array_equal(times.arrive, expected), (name, router)
        assert times.makespan_cycles == entry["makespan"]


@pytest.mark.parametrize("router", ROUTERS)
def test_zero_load_latency_is_exact(router: str) -> None:
    """2 + c·(h + 1) + n − 1, and the credit's round trip where the buffer is smaller."""
    spec = router_chip(router, 6)
    hop = int(spec.noc.hop_cycles)
    rows = []
    for number, (target, flits) in enumerate((t, n) for t in (0, 5, 31, 35) for n in (1, 4, 9, 33)):
        rows.append((number * 500, 0, target, flits))
    messages = batch(rows)
    times = run_flits(spec, messages)
    behind = messages.bytes - 1
    expected = 2 + hop * (links_used(spec, messages) + 1) + behind
    if router == "wh1d4":
        expected += 2 * (behind // 4)
    assert (times.arrive - messages.ready).tolist() == expected.tolist()
    assert times.alone.tolist() == expected.tolist()


@pytest.mark.parametrize("hop", [0, 1, 2, 7])
def test_other_hops_are_exact_too(hop: int) -> None:
    spec = chip(4, 4, hop_cycles=hop, ramp_cycles=(2, 1), virtual_channels=2, buffer_flits=32)
    messages = batch([(0, 0, 15, 5), (200, 3, 3, 1), (400, 12, 13, 20)])
    times = run_flits(spec, messages)
    expected = 3 + hop * np.array([6, 0, 1]) + messages.bytes - 1
    assert (times.arrive - messages.ready).tolist() == expected.tolist()


def test_long_ramps_delay_and_do_not_throttle() -> None:
    spec = chip(2, 2, ramp_cycles=(40, 30), virtual_channels=1, buffer_flits=6)
    messages = batch([(7, 0, 1, 100), (0, 1, 3, 5)], after=[(1, 0)])
    times = run_flits(spec, messages)
    assert times.inject.tolist() == [7, 7 + 74 + 99]
    assert times.arrive.tolist() == [7 + 74 + 99, 7 + 74 + 99 + 74 + 4]
    assert times.alone.tolist() == [74 + 99, 74 + 4]


@pytest.mark.parametrize("router", ROUTERS)
def test_what_goes_in_comes_out_and_nothing_is_overloaded(router: str) -> None:
    spec = router_chip(router, 4)
    messages = random_batch(3, 16, 300)
    times = run_flits(spec, messages)
    assert (times.inject >= messages.ready).all()
    assert (times.arrive - times.inject >= times.alone).all()
    assert times.inject_busy.sum() == times.eject_busy.sum() == messages.bytes.sum()
    assert times.link_busy.sum() == (messages.bytes * links_used(spec, messages)).sum()
    for busy in (times.link_busy, times.inject_busy, times.eject_busy):
        assert busy.max() <= times.makespan_cycles
    assert (messages.ready + times.alone).max() <= times.makespan_cycles
    again = run_flits(spec, messages)
    assert again.arrive.tolist() == times.arrive.tolist()


def test_slow_ports_and_links_are_not_overloaded() -> None:
    spec = chip(
        3,
        3,
        flit_bytes=4,
        link_bytes_per_cycle=3,
        inject_bytes_per_cycle=2.5,
        virtual_channels=2,
        buffer_flits=4,
    )
    messages = random_batch(5, 9, 200, most=40)
    times = run_flits(spec, messages)
    flits = -(-messages.bytes // 4)
    assert times.inject_busy.sum() == pytest.approx(flits.sum() * 1.6)
    for busy in (times.link_busy, times.inject_busy, times.eject_busy):
        assert busy.max() <= times.makespan_cycles
    alone = run_flits(spec, batch([(0, 0, 8, 40)]))
    assert alone.arrive[0] == alone.alone[0]
    assert alone.inject_busy.sum() == pytest.approx(16)


def test_single_channels_block_behind_their_head() -> None:
    """Core 0 sends to 3 and then to 1; the way to 3 is taken by core 2's long message."""
    messages = batch([(0, 2, 3, 200), (5, 0, 3, 40), (6, 0, 1, 4)])
    one, many = (
        run_flits(chip(4, 4, virtual_channels=v, buffer_flits=8), messages).arrive[2]
        for v in (1, 4)
    )
    assert one > 150 and many < 100


def test_after_waits_for_arrivals() -> None:
    spec = router_chip("vc8", 4)
    messages = batch([(0, 0, 1, 10), (0, 1, 2, 10), (0, 1, 5, 10)], after=[(1, 0)])
    times = run_flits(spec, messages)
    assert times.inject.tolist() == [0, 19, 29]
    assert times.arrive.tolist() == [19, 38, 48]


def test_rings_need_two_channels() -> None:
    """Every core of a ring sends half way round: without a dateline they block each other."""
    ring = chip(1, 8, topology="torus", virtual_channels=1, buffer_flits=2)
    messages = batch([(0, k, (k + 4) % 8, 40) for k in range(8)])
    with pytest.raises(
        InputError,
        match=r"^8 messages block each other's buffers in a circle on chip 'handmade', a torus "
        r"with 1 virtual channel\(s\); give it two or more, or buffer_flits = 0\.$",
    ):
        send_messages(ring, messages)
    two = send_messages(replace(ring, noc=replace(ring.noc, virtual_channels=2)), messages)
    assert (two.arrive > 0).all()


def test_fractions_of_cycles_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"^Chip 'handmade' has noc.hop_cycles = 1.5, but a network"
    ):
        send_messages(chip(2, 2, hop_cycles=1.5, buffer_flits=4), batch([(0, 0, 1, 1)]))


@pytest.mark.slow
@pytest.mark.parametrize("router", ["vc8", "wh1", "fast1"])
@pytest.mark.parametrize("flits", [1, 4, 16])
def test_latency_and_saturation_under_uniform_traffic(router: str, flits: int) -> None:
    file = SHARED / "network" / "uniform_8x8.csv"
    if not file.exists():
        pytest.skip(f"{file} is not there: BookSim's curves cannot be compared")
    table = np.genfromtxt(file, delimiter=",", names=True, dtype=None, encoding=None)
    table = table[(table["router"] == router) & (table["packet_flits"] == flits)]
    most = float(table["accepted_flit_rate"][table["kind"] == "saturation"][0])
    for row in table[table["kind"] == "latency"]:
        if row["offered_flit_rate"] <= 0.8 * most:
            latency, _ = uniform(router, row["offered_flit_rate"], flits)
            assert latency == pytest.approx(row["avg_packet_latency"], rel=0.05)
    _, accepted = uniform(router, 1.0, flits)
    assert accepted == pytest.approx(most, rel=0.1)


def uniform(router: str, rate: float, flits: int) -> tuple[float, float]:
    """Mean latency and accepted rate of Bernoulli traffic to random cores of 8 × 8."""
    rng = np.random.default_rng(1)
    ready, source = np.nonzero(rng.random((15_000, 64)) < rate / flits)
    rows = [ready, source, rng.integers(0, 64, len(ready)), np.full(len(ready), flits)]
    messages = batch(np.stack(rows, axis=1))
    times = run_flits(router_chip(router, 8), messages)
    steady = messages.ready >= 3000
    counted = (times.arrive >= 3000) & (times.arrive < 15_000)
    latency = float((times.arrive - messages.ready)[steady].mean())
    return latency, counted.sum() * flits / 64 / 12_000
