"""Messages between cores: times in an empty network, contention, ports, multicast, topologies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.emulator.cores import run_streams
from meshc.emulator.paths import Paths
from meshc.errors import InvariantError
from meshc.ir.chip import ChipSpec, Coord, Seams
from meshc.ir.routing import Route
from meshc.ir.stream import Step
from meshc.ir.trace import Trace

from .handmade import XY, array, chip, recv, send, slow_sends, step, streams


def one_message(spec: ChipSpec, to: tuple[int, int], size: int, route: Route = XY) -> float:
    """Cycle at which a message from (0, 0) has arrived."""
    data = array(0, size)
    trace = run_streams(
        {
            Coord(0, 0): [step(send(1, [to], data, route))],
            Coord(*to): [step(recv(1, (0, 0), data))],
        },
        spec,
    )
    return trace.finish_cycles[to]


@pytest.mark.parametrize("to", [(0, 1), (1, 0), (2, 3), (3, 3)])
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_zero_load_latency_is_that_of_booksim(to: tuple[int, int], size: int) -> None:
    hops = sum(to)
    assert one_message(chip(), to, size) == 2 + 4 * (hops + 1) + size - 1


@pytest.mark.parametrize(("inject", "eject", "slowest"), [(0, 0, 8), (4, 0, 16), (16, 2, 32)])
def test_slowest_port_stretches_the_message(inject: float, eject: float, slowest: int) -> None:
    spec = chip(link_bytes_per_cycle=8, inject_bytes_per_cycle=inject, eject_bytes_per_cycle=eject)
    assert one_message(spec, (0, 2), 64) == 6 + 2 * 4 + slowest - 1


def test_message_cycles_are_paid_on_both_sides() -> None:
    assert one_message(chip(message_cycles=5), (0, 1), 4) == 5 + 10 + 3 + 5


def test_seam_has_its_own_rate_and_hop() -> None:
    spec = chip(4, 4, seams=Seams(4, 2, 0.25, 100), link_bytes_per_cycle=2)
    assert one_message(spec, (0, 1), 16) == 6 + 4 + 8 - 1
    assert one_message(spec, (0, 3), 16) == 6 + 4 + 100 + 4 + 64 - 1


def test_exchange_is_one_hop_from_all_to_all() -> None:
    spec = chip(4, 4, topology="exchange")
    assert one_message(spec, (0, 1), 16) == one_message(spec, (3, 3), 16) == 6 + 4 + 15


def test_torus_takes_the_short_way_round() -> None:
    paths = Paths(chip(4, 5, topology="torus"))
    assert paths.links(0, 4, Route()) == [0 * 4 + 1]
    assert paths.links(0, 10, Route()) == [0 * 4 + 2, 5 * 4 + 2]
    assert paths.links(0, 15, Route()) == [0 * 4 + 3]


def test_one_way_torus_goes_round_in_each_networks_own_order() -> None:
    paths = Paths(chip(3, 3, topology="torus", one_way=True, networks=2))
    assert paths.links(4, 0, Route()) == [4 * 4 + 0, 5 * 4 + 0, 3 * 4 + 2, 6 * 4 + 2]
    second = 9
    assert paths.links(4, 0, Route(network=1)) == [(second + 4) * 4 + 3, (second + 1) * 4 + 1]


def test_policies_differ_in_which_dimension_comes_first() -> None:
    paths = Paths(chip(3, 3))
    assert paths.links(0, 4, Route("xy")) == [0 * 4 + 0, 1 * 4 + 2]
    assert paths.links(0, 4, Route("yx")) == [0 * 4 + 2, 3 * 4 + 0]
    via = Route("via", waypoint=Coord(2, 0))
    assert paths.links(0, 4, via) == [0 * 4 + 2, 3 * 4 + 2, 6 * 4 + 0, 7 * 4 + 3]


def test_path_over_a_dead_core_is_refused() -> None:
    spec = chip(3, 3, dead_cores=(Coord(0, 1),))
    with pytest.raises(
        InvariantError,
        match=r"^The path from core \(0,0\) to core \(0,2\) uses core \(0,1\), which is dead on "
        r"chip 'handmade' and does not forward\.$",
    ):
        one_message(spec, (0, 2), 4)
    forwarding = chip(3, 3, dead_cores=(Coord(0, 1),), dead_cores_forward=True)
    assert one_message(forwarding, (0, 2), 4) == 6 + 8 + 3


def test_two_messages_share_a_link_one_after_the_other() -> None:
    """(0,0) and (1,1)… both need the link (0,1) → (0,2); the one that comes later waits."""
    data = array(0, 32)
    trace = run_streams(
        streams(
            c00=[step(send(1, [(0, 3)], data))],
            c01=[step(send(2, [(0, 2)], data))],
            c02=[step(recv(2, (0, 1), data))],
            c03=[step(recv(1, (0, 0), data))],
        ),
        chip(),
    )
    assert trace.finish_cycles[0, 2] == 6 + 4 + 31
    # The head from (0,0) is at router (0,1) at 3 + 4, but the link is taken until 3 + 32.
    assert trace.finish_cycles[0, 3] == 3 + 32 + 4 + 4 + 3 + 31
    assert trace.link_busy_cycles[0, 0, 1, 0] == 64
    assert trace.link_bytes[0, 0, 1, 0] == 64


def test_injection_port_is_serial() -> None:
    data = array(0, 32)
    trace = run_streams(
        streams(
            c00=[step(send(1, [(0, 1)], data), send(2, [(1, 0)], data))],
            c01=[step(recv(1, (0, 0), data))],
            c10=[step(recv(2, (0, 0), data))],
        ),
        chip(),
    )
    assert trace.finish_cycles[0, 1] == 10 + 31
    assert trace.finish_cycles[1, 0] == 32 + 10 + 31


def test_each_network_has_its_own_ports() -> None:
    data = array(0, 32)
    routes = [Route(network=0), Route(network=1)]
    trace = run_streams(
        streams(
            c00=[step(*(send(i, [(0, 1)], data, r) for i, r in enumerate(routes)))],
            c01=[step(*(recv(i, (0, 0), array(64 * i, 32)) for i in range(2)))],
        ),
        chip(networks=2),
    )
    assert trace.finish_cycles[0, 1] == 10 + 31
    assert list(trace.link_bytes[:, 0, 0, 0]) == [32, 32]


def test_ejection_port_is_serial() -> None:
    data, other = array(0, 32), array(64, 32)
    trace = run_streams(
        streams(
            c01=[step(send(1, [(0, 0)], data))],
            c10=[step(send(2, [(0, 0)], data))],
            c00=[step(recv(1, (0, 1), data), recv(2, (1, 0), other))],
        ),
        chip(),
    )
    assert trace.finish_cycles[0, 0] == 10 + 31 + 32


def broadcast(spec: ChipSpec, multicast: bool) -> Trace:
    """(0,0) sends 16 bytes to the rest of its row."""
    data = array(0, 16)
    to = [(0, 1), (0, 2), (0, 3)]
    sends = [send(0, to, data)] if multicast else [send(i, [c], data) for i, c in enumerate(to)]
    cores: dict[Coord, list[Step]] = {Coord(0, 0): [step(*sends)]}
    for i, c in enumerate(to):
        cores[Coord(*c)] = [step(recv(0 if multicast else i, (0, 0), data))]
    return run_streams(cores, spec)


def test_multicast_uses_every_link_once() -> None:
    trace = broadcast(chip(), True)
    assert list(trace.finish_cycles[0, 1:]) == [6 + 4 * h + 15 for h in (1, 2, 3)]
    assert list(trace.link_bytes[0, 0, :, 0]) == [16, 16, 16, 0]
    assert (trace.messages, trace.message_bytes, trace.byte_hops) == (1, 16, 48)
    apart = broadcast(chip(), False)
    assert list(apart.link_bytes[0, 0, :, 0]) == [48, 32, 16, 0]
    assert (apart.messages, apart.message_bytes, apart.byte_hops) == (3, 48, 96)
    assert apart.cycles > trace.cycles


def test_multicast_branches() -> None:
    paths = Paths(chip(3, 3))
    tree = paths.multicast(0, (2, 5, 8), Route())
    assert tree.links == (0, 4, 2 * 4 + 2, 5 * 4 + 2)
    assert tree.sinks == ((), (0,), (1,), (2,))
    assert tree.children == ((1,), (2,), (3,), ())


def test_multicast_needs_a_network_that_can() -> None:
    with pytest.raises(
        InvariantError,
        match=r"^Core \(0,0\) sends message \(0, 0, 0\) to 3 cores, but the chip's network has no "
        r"multicast\.$",
    ):
        broadcast(chip(multicast=False), True)


messages = st.lists(
    st.tuples(
        st.integers(0, 15),
        st.sets(st.integers(0, 15), min_size=1, max_size=3),
        st.integers(1, 200),
        st.sampled_from(["xy", "yx"]),
        st.integers(0, 3),
    ),
    max_size=30,
)


def random_streams(traffic: list[tuple[int, set[int], int, str, int]]) -> dict[Coord, list[Step]]:
    """Every core takes part in the messages in the same order, so nothing waits in a circle."""
    cores: dict[Coord, list[Step]] = {Coord(r, c): [] for r in range(4) for c in range(4)}
    for number, (source, to, size, policy, _) in enumerate(traffic):
        targets = sorted(to - {source})
        if not targets:
            continue
        places = [divmod(t, 4) for t in targets]
        route = Route(policy)  # type: ignore[arg-type]
        sent, got = array(0, size), array(512, size)
        act = send(number, places, sent, route)
        cores[Coord(*divmod(source, 4))].append(step(act, position=number))
        for place in places:
            act2 = recv(number, divmod(source, 4), got)
            cores[Coord(*place)].append(step(act2, position=number))
    return cores


SPECS = [
    chip(),
    chip(topology="torus", link_bytes_per_cycle=3, inject_bytes_per_cycle=2),
    chip(topology="exchange", sync_cycles=10, eject_bytes_per_cycle=0.5),
    chip(seams=Seams(2, 2, 0.5, 50), message_cycles=2),
    slow_sends(chip()),
]


@settings(max_examples=60, deadline=None)
@given(messages, st.sampled_from(SPECS))
def test_contention_only_ever_adds_time(
    traffic: list[tuple[int, set[int], int, str, int]], spec: ChipSpec
) -> None:
    loaded = run_streams(random_streams(traffic), spec)
    alone = run_streams(random_streams(traffic), spec, contention=False)
    assert (loaded.finish_cycles >= alone.finish_cycles).all()
    assert (loaded.link_busy_cycles <= max(loaded.cycles, 1)).all()
    assert (loaded.link_bytes == alone.link_bytes).all()
    assert loaded.byte_hops == alone.byte_hops
    total = loaded.compute_cycles + loaded.communication_cycles + loaded.wait_cycles
    assert (total == loaded.finish_cycles).all()
    again = run_streams(random_streams(traffic), spec)
    assert (again.finish_cycles == loaded.finish_cycles).all()
    assert again.spans == loaded.spans
    if spec.noc.topology != "exchange":
        assert loaded.link_bytes.sum() == loaded.byte_hops


@settings(max_examples=30, deadline=None)
@given(messages)
def test_bytes_into_a_router_are_bytes_out_of_it(
    traffic: list[tuple[int, set[int], int, str, int]],
) -> None:
    unicasts = [(s, {min(to)}, b, p, w) for s, to, b, p, w in traffic]
    trace = run_streams(random_streams(unicasts), chip())
    out = trace.link_bytes[0].sum(axis=-1)
    into = out * 0
    into[:, 1:] += trace.link_bytes[0, :, :-1, 0]
    into[:, :-1] += trace.link_bytes[0, :, 1:, 1]
    into[1:] += trace.link_bytes[0, :-1, :, 2]
    into[:-1] += trace.link_bytes[0, 1:, :, 3]
    sent, got = out * 0, out * 0
    for source, to, size, _, _ in unicasts:
        if source not in to:
            sent[divmod(source, 4)] += size
            got[divmod(min(to), 4)] += size
    assert (sent + into == got + out).all()
