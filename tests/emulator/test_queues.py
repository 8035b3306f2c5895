"""Unlimited buffers: the compiled engine against the plain one, and work conservation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshc.emulator.batch import Batch
from meshc.emulator.messages import send_messages
from meshc.emulator.queues import run_queues
from meshc.emulator.traffic import Traffic, simulate_messages
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec, Coord, Ports, Seams
from meshc.ir.routing import Route

from .handmade import chip
from .network_cases import batch, random_batch

PORTS = (Ports((Coord(0, 0), Coord(1, 2)), 11.5, 7), Ports((Coord(2, 1),), eject_bytes_per_cycle=3))
CHIPS = {
    "mesh": chip(4, 4),
    "torus": chip(4, 5, topology="torus"),
    "one way": chip(
        4, 5, topology="torus", one_way=True, networks=2, link_bytes_per_cycle=3,
        inject_bytes_per_cycle=2.5, eject_bytes_per_cycle=2,
    ),
    "exchange": chip(4, 4, topology="exchange"),
    "seams": chip(4, 4, seams=Seams(2, 2, 0.5, 20)),
    "exchange with seams": chip(4, 4, topology="exchange", seams=Seams(2, 2, 0.5, 20)),
}  # fmt: skip


def plainly(spec: ChipSpec, messages: Batch) -> tuple[list[float], list[float], dict[int, float]]:
    """Injection, arrival and busy cycles by the plain engine."""
    routes = [Route(network=n) for n in range(spec.noc.networks)]
    result = simulate_messages(
        [
            Traffic(
                k,
                float(messages.ready[k]),
                Coord(*divmod(int(messages.source[k]), spec.cols)),
                Coord(*divmod(int(messages.target[k]), spec.cols)),
                int(messages.bytes[k]),
                tuple(messages.earlier[messages.later == k].tolist()),
                routes[int(messages.network[k])],
            )
            for k in range(len(messages))
        ],
        spec,
    )
    inject = [a.inject_cycle for a in result.arrivals]
    return inject, [a.arrive_cycle for a in result.arrivals], result.link_busy_cycles


@pytest.mark.parametrize("ports", [(), PORTS], ids=["", "own ports"])
@pytest.mark.parametrize("name", CHIPS)
def test_the_plain_engine_finds_the_same(name: str, ports: tuple[Ports, ...]) -> None:
    spec = replace(CHIPS[name], ports=ports)
    for seed in range(2):
        messages = random_batch(
            seed, spec.rows * spec.cols, 150, most=40, networks=spec.noc.networks
        )
        if seed:
            pairs = np.random.default_rng(seed).integers(0, 150, (40, 2))
            pairs = pairs[pairs[:, 0] > pairs[:, 1]].astype(np.int32)
            messages = replace(messages, later=pairs[:, 0].copy(), earlier=pairs[:, 1].copy())
        inject, arrive, busy = plainly(spec, messages)
        times = run_queues(spec, messages)
        assert times.inject.tolist() == inject
        assert times.arrive.tolist() == arrive
        assert (
            dict(enumerate(times.link_busy.ravel()))
            == dict.fromkeys(range(times.link_busy.size), 0) | busy
        )


def test_alone_is_the_time_in_an_empty_network() -> None:
    spec = CHIPS["seams"]
    messages = batch([(k * 1000, 0, k, 7) for k in range(16)])
    times = run_queues(spec, messages)
    assert (times.arrive - messages.ready).tolist() == times.alone.tolist()


@pytest.mark.parametrize("seed", range(30))
def test_a_later_start_does_not_end_sooner(seed: int) -> None:
    """Messages that start later, in the same order, may meet others in another order, which can
    save a few per cent; a network that is not work-conserving saves a third."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 8))
    size = int(rng.choice([4, 16, 64]))
    together = random_batch(seed, k * k, 200, most=size, span=1)
    late = np.sort(rng.integers(0, 4 * size, 200)) if seed % 2 else np.arange(200) // 25 * size
    staggered = Batch(
        together.ready + late, together.source, together.target, together.bytes, together.network
    )
    spec = chip(k, k)
    first = send_messages(spec, together).makespan_cycles
    assert send_messages(spec, staggered).makespan_cycles >= 0.94 * first


def test_nothing_idles_while_a_message_waits() -> None:
    """All send to one core, whose port is busy from the first arrival to the last."""
    spec = chip(4, 4)
    messages = batch([(0, k, 5, 20) for k in range(16) for _ in range(4)])
    times = send_messages(spec, messages)
    assert times.makespan_cycles == 6 + 64 * 20 - 1
    assert times.eject_busy.max() == 64 * 20


def test_circles_and_dead_cores_are_refused() -> None:
    with pytest.raises(InputError, match=r"^Message '0' and 1 others never leave, because"):
        send_messages(chip(), batch([(0, 0, 1, 1), (0, 1, 0, 1)], after=[(0, 1), (1, 0)]))
    dead = chip(1, 3, dead_cores=(Coord(0, 1),))
    sentence = (
        r"^The way from core \(0,0\) to core \(0,2\) uses core \(0,1\), which is dead on chip "
        r"'handmade'; send it elsewhere, or set dead_cores_forward = true if dead cores forward\.$"
    )
    with pytest.raises(InputError, match=sentence):
        send_messages(dead, batch([(0, 0, 2, 1)]))
