"""Cores: order, rendezvous, hazards, accounting, and what is refused."""

from __future__ import annotations

import re

import pytest

from meshc.emulator.cores import run_streams
from meshc.errors import InputError, InvariantError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.stream import Combine

from .handmade import array, busy, chip, recv, send, slow_sends, step, streams

A, B = array(0, 16), array(64, 16)
SENT = 10 + 15  # 16 bytes over one hop


def test_local_actions_take_their_time_in_order() -> None:
    trace = run_streams(streams(c00=[step(busy(3), busy(4)), step(busy(5), position=1)]), chip())
    assert trace.cycles == 12
    assert [(s.start_cycle, s.end_cycle) for s in trace.spans] == [(0, 7), (7, 12)]
    assert trace.compute_cycles[0, 0] == 12
    assert trace.instructions == 3
    assert trace.sram_bytes[0, 0] == 12 * 64


def test_combine_is_bound_by_vectors_or_memory() -> None:
    x, y = array(0, 256, "fp32"), array(2048, 256, "fp32")
    trace = run_streams(streams(c00=[step(Combine("sum", x, y))]), chip())
    assert trace.cycles == max(256 / 16, 3 * 1024 / 64)
    slow = chip(core={"vector_ops_per_cycle": {"fp32": 1}})
    assert run_streams(streams(c00=[step(Combine("sum", x, y))]), slow).cycles == 256


def test_message_waits_for_the_receiver_to_be_ready() -> None:
    trace = run_streams(
        streams(c00=[step(send(1, [(0, 1)], A))], c01=[step(busy(16)), step(recv(1, (0, 0), A))]),
        chip(),
    )
    assert trace.finish_cycles[0, 0] == 0, "an asynchronous send takes no time of the core"
    assert trace.finish_cycles[0, 1] == 16 + SENT
    assert trace.communication_cycles[0, 1] == SENT
    assert trace.wait_cycles[0, 1] == 0


def test_receiver_waits_for_the_sender() -> None:
    trace = run_streams(
        streams(
            c00=[step(busy(10), send(1, [(0, 1)], A), position=0)],
            c01=[step(recv(1, (0, 0), A), position=1)],
        ),
        chip(),
    )
    assert trace.finish_cycles[0, 1] == 10 + SENT
    assert trace.wait_cycles[0, 1] == 10
    assert trace.communication_cycles[0, 1] == SENT
    span = trace.spans[1]
    assert (span.wait_cycles, span.communication_cycles, span.messages) == (10, SENT, 0)
    assert (trace.spans[0].messages, trace.spans[0].message_bytes) == (1, 16)


def test_receives_are_posted_when_the_step_is_entered() -> None:
    """The message travels while the core computes."""
    trace = run_streams(
        streams(c00=[step(send(1, [(0, 1)], A))], c01=[step(busy(16), recv(1, (0, 0), A))]), chip()
    )
    assert trace.finish_cycles[0, 1] == max(16, SENT)


def test_without_overlap_a_send_takes_the_core_until_it_has_left() -> None:
    trace = run_streams(
        streams(
            c00=[step(send(1, [(0, 1)], A), busy(2))], c01=[step(busy(7)), step(recv(1, (0, 0), A))]
        ),
        slow_sends(chip()),
    )
    assert trace.finish_cycles[0, 0] == 7 + 16 + 2
    assert trace.wait_cycles[0, 0] == 7
    assert trace.communication_cycles[0, 0] == 16


def test_multicast_waits_for_all_receivers() -> None:
    trace = run_streams(
        streams(
            c00=[step(send(1, [(0, 1), (1, 0)], A))],
            c01=[step(recv(1, (0, 0), A))],
            c10=[step(busy(9)), step(recv(1, (0, 0), A))],
        ),
        chip(),
    )
    assert trace.finish_cycles[0, 1] == trace.finish_cycles[1, 0] == 9 + SENT


@pytest.mark.parametrize("place", ["copy", "post"])
def test_writing_waits_until_a_send_has_read(place: str) -> None:
    """The receiver is ready at 8, the data leaves until 24; only then may it be overwritten."""
    overlapping = array(8, 32)
    write = busy(1, address=8) if place == "copy" else recv(2, (1, 0), overlapping)
    trace = run_streams(
        streams(
            c00=[step(send(1, [(0, 1)], A)), step(write, position=1)],
            c01=[step(busy(8)), step(recv(1, (0, 0), A))],
            c10=[step(send(2, [(0, 0)], array(0, 32)))] if place == "post" else [],
        ),
        chip(),
    )
    late = 8 + 16
    assert trace.finish_cycles[0, 0] == late + (1 if place == "copy" else 10 + 31)
    assert trace.wait_cycles[0, 0] == 8


def test_writing_elsewhere_does_not_wait() -> None:
    trace = run_streams(
        streams(
            c00=[step(send(1, [(0, 1)], A)), step(busy(1, address=16))],
            c01=[step(busy(8)), step(recv(1, (0, 0), A))],
        ),
        chip(),
    )
    assert trace.finish_cycles[0, 0] == 1


def test_bulk_synchronous_messages_pay_for_the_sync() -> None:
    cores = streams(c00=[step(send(1, [(0, 1)], A))], c01=[step(recv(1, (0, 0), A))])
    assert run_streams(cores, chip(sync_cycles=100)).cycles == 100 + SENT


def test_core_spans_on_request() -> None:
    cores = streams(c00=[step(busy(3))], c11=[step(busy(4))])
    trace = run_streams(cores, chip(), core_spans=True)
    assert sorted(trace.core_spans) == [(0, 0, 0, 0, 3), (1, 1, 0, 0, 4)]
    assert run_streams(cores, chip()).core_spans == ()


REFUSED = [
    (
        streams(c00=[step(send(1, [(0, 1)], A))], c01=[step(recv(1, (0, 0), array(0, 8)))]),
        "Core (0,1) expects 8 bytes of message (0, 0, 1), but core (0,0) sends 16.",
    ),
    (
        streams(c00=[step(send(1, [(0, 1)], A))], c01=[step(recv(1, (1, 0), A))]),
        "Core (0,1) expects message (0, 0, 1) from core (1,0), but core (0,0) sends it.",
    ),
    (
        streams(c00=[step(send(1, [(0, 1)], A))], c10=[step(recv(1, (0, 0), A))]),
        "Core (1,0) expects message (0, 0, 1) from core (0,0), which does not send it there.",
    ),
    (
        streams(c00=[step(send(1, [(0, 1)], A))], c01=[]),
        "Core (0,0) sends message (0, 0, 1), but core (0,1) never receives it; 1 messages are "
        "left over.",
    ),
    (
        streams(c00=[], c01=[step(recv(1, (0, 0), A), name="take", layer=3)]),
        "The program is stuck: core (0,1) in step 'take' of layer 3 waits to receive message "
        "(0, 0, 1), but its partner core (0,0) has finished without it.",
    ),
    (
        streams(
            c00=[step(recv(1, (0, 1), A), send(2, [(0, 1)], A), name="x")],
            c01=[step(recv(2, (0, 0), A), send(1, [(0, 0)], A), name="y")],
        ),
        "The program is in a deadlock: 2 cores wait for each other in a circle: core (0,0) in "
        "step 'x' waits to receive message (0, 0, 1); core (0,1) in step 'y' waits to receive "
        "message (0, 0, 2).",
    ),
    (
        streams(c00=[step(send(1, [(0, 0)], A), recv(1, (0, 0), B))]),
        "Core (0,0) sends message (0, 0, 1) to itself.",
    ),
    (
        streams(c00=[step(send(1, [(0, 1)], A), send(1, [(0, 1)], A))]),
        "Core (0,0) sends a second message with key (0, 0, 1).",
    ),
    (
        streams(c00=[step(busy(16, address=3900), name="far")]),
        "Core (0,0) uses bytes [3900, 4412) of its SRAM in step 'far', but it has 4096.",
    ),
    (
        {Coord(4, 0): []},
        "Core (4,0) lies outside of the 4x4 mesh.",
    ),
]


@pytest.mark.parametrize(("cores", "sentence"), REFUSED)
def test_broken_programs_are_refused(cores: dict, sentence: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvariantError, match=f"^{re.escape(sentence)}$"):
        run_streams(cores, chip())


def test_senders_without_overlap_can_block_each_other() -> None:
    cores = streams(
        c00=[step(send(1, [(0, 1)], A), name="x"), step(recv(2, (0, 1), B))],
        c01=[step(send(2, [(0, 0)], A), name="y"), step(recv(1, (0, 0), B))],
    )
    assert run_streams(cores, chip()).cycles == SENT
    with pytest.raises(InvariantError, match="waits to have sent message"):
        run_streams(cores, slow_sends(chip()))


def test_instructions_on_a_dead_core_are_refused() -> None:
    spec = chip(dead_cores=(Coord(1, 1),))
    with pytest.raises(InvariantError, match=r"^Core \(1,1\) has instructions but is dead\.$"):
        run_streams(streams(c11=[step(busy(1))]), spec)


@pytest.mark.parametrize("limit", [20, 24])
def test_cycle_limit(limit: int) -> None:
    cores = streams(c00=[step(busy(12)), step(busy(13))])
    with pytest.raises(
        InputError,
        match=f"^The emulation is not finished after {limit} cycles, which is its cycle limit; "
        "raise the limit or emulate a smaller step\\.$",
    ):
        run_streams(cores, chip(), cycle_limit=limit)
    assert run_streams(cores, chip(), cycle_limit=25).cycles == 25


def test_progress_is_reported() -> None:
    heard = []
    spec: ChipSpec = chip(rows=1, cols=4)
    cores = streams(
        c00=[step(send(i, [(0, 3)], A), position=i) for i in range(20_000)],
        c03=[step(recv(i, (0, 0), A), position=i) for i in range(20_000)],
    )
    run_streams(cores, spec, progress=lambda *now: heard.append(now))
    assert heard
    assert all(total == 2 for _, _, total in heard)
