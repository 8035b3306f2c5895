"""The network alone against a flit-level simulator, and the rules of open-loop traffic."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path

import pytest

from meshc.emulator.traffic import Traffic, TrafficResult, simulate_messages
from meshc.errors import InputError
from meshc.ir.chip import Coord
from meshc.ir.routing import Route

from .handmade import chip

TRACES = Path(__file__).parents[3] / "shared" / "groundtruth" / "network"
WORMHOLE = TRACES.parent / "wormhole"
NAMES = [
    "single_4x4",
    "gather_to_0_8x8_16f",
    "scatter_from_0_8x8_16f",
    "shift_east_8x8_64x16f",
    "col_reduce_4x4_8x16f",
    "row_bcast_unicast_8x8_4x16f",
    "transpose_4x4_16x16f",
    "merge3_staggered_8x8",
    "hol_4x4",
    "rand_mixed_8x8_r0.25",
    "gemv_tp_4x4",
]


def message(number: int, ready: float, source: int, to: int, size: int, *after: int) -> Traffic:
    return Traffic(
        number, ready, Coord(*divmod(source, 4)), Coord(*divmod(to, 4)), size, tuple(after)
    )


@pytest.mark.parametrize("name", NAMES)
def test_makespans_are_near_booksims(name: str) -> None:
    file = TRACES / f"{name}.trace.gz"
    if not file.exists():
        pytest.skip(f"{file} is not there: BookSim's makespans cannot be compared")
    index = json.loads((TRACES / "index.json").read_text())
    truth = next(e for e in index if e["trace"] == name and e["router"] == "vc8")
    k = truth["k"]
    messages = []
    for line in gzip.decompress(file.read_bytes()).decode().splitlines():
        if not line.startswith("#"):
            ready, source, to, flits = map(int, line.split())
            ends = Coord(*divmod(source, k)), Coord(*divmod(to, k))
            messages.append(Traffic(len(messages), ready, *ends, flits))
    result = simulate_messages(messages, chip(k, k))
    assert result.makespan_cycles == pytest.approx(truth["makespan"], rel=0.015)
    alone = simulate_messages(messages, chip(k, k), contention=False)
    assert alone.makespan_cycles <= result.makespan_cycles


def test_transfers_on_wormhole_are_near_silicon() -> None:
    """Two one-way torus networks; tt-npe's mean error on these traces is 3.04 %."""
    if not (WORMHOLE / "index.json").exists():
        pytest.skip(f"{WORMHOLE} is not there: measured transfers cannot be compared")
    spec = chip(
        12,
        10,
        topology="torus",
        one_way=True,
        networks=2,
        link_bytes_per_cycle=30,
        inject_bytes_per_cycle=28.1,
        eject_bytes_per_cycle=28.1,
        hop_cycles=9,
        ramp_cycles=(5, 5),
    )
    networks = [Route(network=0), Route(network=1)]
    errors = []
    for truth in json.loads((WORMHOLE / "index.json").read_text())["traces"]:
        text = gzip.decompress((WORMHOLE / f"{truth['trace']}.csv.gz").read_bytes()).decode()
        messages = [
            Traffic(
                number,
                float(r["start_cycle"]),
                Coord(int(r["src_y"]), int(r["src_x"])),
                Coord(int(r["dst_y"]), int(r["dst_x"])),
                int(r["bytes"]),
                route=networks[int(r["noc"])],
            )
            for number, r in enumerate(csv.DictReader(text.splitlines()))
        ]
        result = simulate_messages(messages, spec)
        errors.append(abs(result.makespan_cycles / truth["golden_cycles"] - 1))
    assert len(errors) == 40
    assert sum(errors) / len(errors) < 0.0305
    assert max(errors) < 0.15


def times(result: TrafficResult) -> list[tuple[float, float]]:
    return [(a.inject_cycle, a.arrive_cycle) for a in result.arrivals]


def test_source_injects_in_order_of_ready_time_then_of_lines() -> None:
    result = simulate_messages(
        [message(0, 5, 0, 1, 10), message(1, 0, 0, 1, 10), message(2, 5, 0, 1, 10)], chip()
    )
    assert [a.inject_cycle for a in result.arrivals] == [10, 0, 20]


def test_after_waits_for_arrivals_and_holds_the_source_back() -> None:
    result = simulate_messages(
        [message(0, 0, 0, 1, 10), message(1, 0, 1, 2, 10, 0), message(2, 0, 1, 5, 10)], chip()
    )
    first = 10 + 9
    assert times(result) == [(0, first), (first, first + 19), (first + 10, first + 10 + 19)]
    assert result.makespan_cycles == first + 29
    assert [a.hops for a in result.arrivals] == [1, 1, 1]


def test_link_busy_cycles_count_what_each_link_carried() -> None:
    result = simulate_messages([message(0, 0, 0, 2, 10), message(1, 0, 1, 2, 7)], chip())
    assert result.link_busy_cycles == {0 * 4: 10, 1 * 4: 17}


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (
            [message(0, 0, 0, 1, 1), message(0, 0, 0, 1, 1)],
            "Two messages have the id '0'; give each its own.",
        ),
        (
            [message(0, 0, 0, 1, 1, 9)],
            "Message '0' comes after '9', but there is no such message; name one of the messages "
            "in the file.",
        ),
        (
            [message(0, 0, 0, 1, 1, 1), message(1, 0, 1, 0, 1, 0)],
            "Message '0' and 1 others never leave, because the messages in their `after` wait for "
            "them in turn; remove the circle.",
        ),
    ],
)
def test_impossible_traffic_is_refused(messages: list[Traffic], sentence: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        simulate_messages(messages, chip())


def test_staggered_start_is_not_faster_than_a_start_together() -> None:
    """The network is work-conserving."""
    together = [message(i, 0, i % 16, (i * 7 + 3) % 16, 64) for i in range(96)]
    staggered = [message(i, i // 16 * 64, i % 16, (i * 7 + 3) % 16, 64) for i in range(96)]
    assert (
        simulate_messages(together, chip()).makespan_cycles
        <= simulate_messages(staggered, chip()).makespan_cycles
    )
