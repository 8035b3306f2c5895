"""The engine "lanes" against the engine "cores": the same programs on many chips."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontend.decoders import Sizes, standard

from meshc.emulator import emulate
from meshc.emulator.lanes import run_lanes
from meshc.errors import InvariantError
from meshc.expand import Expander
from meshc.ir.chip import ChipSpec, Seams
from meshc.ir.compiled import Compiled
from meshc.ir.layout import AXES, Layout, split
from meshc.ir.placement import Region
from meshc.ir.program import Buffer, Program, Reduce, Transfer
from meshc.ir.trace import Trace

Build = Callable[..., Compiled]
FEW = 8  # programs without -m slow
FOURTH = 4
LATENCY_TOLERANCE = 0.02  # where messages wait for each other
# Links that are nearly always busy: there the order between instructions matters more.
BUSY_TOLERANCE = 0.08


def chips(base: ChipSpec) -> Iterator[tuple[str, ChipSpec]]:
    """Variants of a chip that the same program can run on."""

    def noc(**changes: Any) -> ChipSpec:
        return replace(base, noc=replace(base.noc, **changes))

    yield "plain", base
    yield "torus", noc(topology="torus")
    yield "one way", noc(topology="torus", one_way=True, networks=2)
    yield "exchange", noc(topology="exchange")
    yield "exchange, seams", replace(noc(topology="exchange"), seams=Seams(2, 2, 16.0, 50))
    yield "seams", replace(base, seams=Seams(2, 3, 16.0, 50))
    yield "bulk synchronous", noc(sync_cycles=100)
    yield "costly messages", noc(message_cycles=7)
    blocking = replace(base.core, overlap=False)
    yield "no overlap", replace(base, core=blocking)
    slow = noc(message_cycles=3, inject_bytes_per_cycle=16, eject_bytes_per_cycle=8)
    yield "no overlap, slow ports", replace(slow, core=blocking)
    yield "streaming", noc(streaming_reduce=True, collective_cycles=40, step_cycles=3)
    yield "streaming by bytes", noc(streaming_reduce=True, link_bytes_per_cycle=1, flit_bytes=1)
    yield "busy links", noc(link_bytes_per_cycle=2, hop_cycles=3)
    yield "wide links", noc(link_bytes_per_cycle=4096, hop_cycles=3, ramp_cycles=(1, 4))


def draws(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Options of compilations."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        chip, most = rng.choice([("test4x4", 4), ("test4x4", 4), ("test8x8", 6)])
        overrides = ["core.sram_bytes=2000000"]
        if rng.random() < 0.4:
            overrides.append("noc.multicast=false")
        options: dict[str, Any] = {
            "chip": chip,
            "grid": (rng.randint(1, most), rng.randint(1, most)),
            "overrides": tuple(overrides),
            "phase": rng.choice(["prefill", "decode"]),
            "batch": rng.choice([1, 1, 2, 3]),
        }
        if options["phase"] == "prefill":
            options["prompt"] = rng.choice([1, 5, 8, 17])
        else:
            options["context"] = rng.choice([0, 3, 16, 31])
        if rng.random() < 0.2:
            options["strategy"] = "pipeline"
            del options["grid"]
        found.append(options)
    return found


def differences(a: Trace, b: Trace) -> list[str]:
    """Names of what two traces do not have in common."""
    found = []
    for f in fields(Trace):
        x, y = getattr(a, f.name), getattr(b, f.name)
        if f.name in ("outputs", "state", "spans", "core_spans"):
            continue
        same = np.allclose(x, y, rtol=1e-9) if isinstance(x, np.ndarray) else x == y
        if not same:
            found.append(f.name)
    if len(a.spans) != len(b.spans):
        return [*found, "spans"]
    for s, t in zip(a.spans, b.spans, strict=True):
        for f in fields(s):
            x, y = getattr(s, f.name), getattr(t, f.name)
            if x != (pytest.approx(y, abs=1e-6) if isinstance(y, float) else y):
                found.append(f"{s.name}.{f.name}")
    return found


def emitted_for(program: Program, chip: ChipSpec) -> Program:
    """The program as the emitter would make it for a chip with other collectives."""
    flags = {"set_up": chip.noc.collective_cycles > 0, "streams": chip.noc.streaming_reduce}
    bodies = {
        name: tuple(replace(i, **flags) if isinstance(i, Reduce) else i for i in body)
        for name, body in program.bodies.items()
    }
    return replace(program, bodies=bodies)


def check(program: Program, chip: ChipSpec, tolerance: float) -> bool:
    """Compare both engines; returns whether they were exactly equal with contention."""
    program = emitted_for(program, chip)
    free = emulate(program, chip, contention=False, engine="cores")
    assert not differences(free, emulate(program, chip, contention=False, engine="lanes"))
    slow = emulate(program, chip, engine="cores")
    fast = emulate(program, chip, engine="lanes")
    assert fast.cycles == pytest.approx(slow.cycles, rel=tolerance)
    different = differences(slow, fast)
    quiet = not differences(slow, free)
    assert not (quiet and different)
    for name in ("macs", "mac_cycles", "sram_bytes", "link_bytes", "link_busy_cycles"):
        assert np.allclose(getattr(slow, name), getattr(fast, name), rtol=1e-9), name
    return not different


@pytest.mark.parametrize(("number", "options"), list(enumerate(draws(FEW))))
def test_engines_agree(number: int, options: dict[str, Any], build: Build) -> None:
    """Exactly without contention; within 2 % in latency with it. Three chips per program."""
    agree(build(**options), lambda k: k % FOURTH == number % FOURTH)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "options"), list(enumerate(draws(40))))
def test_engines_agree_on_all_chips(number: int, options: dict[str, Any], build: Build) -> None:
    agree(build(**options), lambda k: True)


def agree(done: Compiled, wanted: Callable[[int], bool]) -> None:
    for phase in done.phases.values():
        for number, (name, chip) in enumerate(chips(done.chip)):
            if wanted(number):
                limit = BUSY_TOLERANCE if name == "busy links" else LATENCY_TOLERANCE
                check(phase.program, chip, limit)


def test_dead_cores_agree(build: Build, tmp_path: Path) -> None:
    done = build(chip="test8x8", grid=(3, 4), phase="decode", context=5)
    dead = replace(done.chip, dead_rows=(5,), dead_cores_forward=True)
    check(done.phases["decode"].program, dead, LATENCY_TOLERANCE)
    blocked = replace(done.chip, dead_rows=(0, 1, 2))
    with pytest.raises(InvariantError, match=r"^Core \(0,0\) has instructions but is dead\.$"):
        emulate(done.phases["decode"].program, blocked)


def test_multicast_is_refused_where_there_is_none(build: Build) -> None:
    done = build(phase="decode", context=5, grid=(3, 4))
    without = replace(done.chip, noc=replace(done.chip.noc, multicast=False))
    with pytest.raises(InvariantError, match="but the chip's network has no multicast"):
        emulate(done.phases["decode"].program, without)


@pytest.mark.parametrize("overrides", [(), ("noc.multicast=false",)])
def test_repeated_layers_are_shortened_exactly(
    overrides: tuple[str, ...], build: Build, tmp_path: Path
) -> None:
    model = standard(tmp_path / "deep.onnx", Sizes(layers=9))
    for chip, grid in (("test4x4", (4, 4)), ("test8x8", (8, 5))):
        done = build(model, chip=chip, grid=grid, overrides=overrides)
        for phase in done.phases.values():
            for contention in (True, False):
                short, whole = (
                    run_lanes(phase.program, done.chip, contention=contention, shorten=s)
                    for s in (True, False)
                )
                assert not differences(short, whole)


def test_shortening_is_what_makes_depth_cheap(build: Build, tmp_path: Path) -> None:
    from meshc.emulator.lanes import engine

    worked: list[int] = []
    layer = engine.Lanes._layer

    def spy(self: Any, index: int, entry: Any, region: Any, turn: int) -> None:
        worked.append(turn)
        layer(self, index, entry, region, turn)

    done = build(standard(tmp_path / "deep.onnx", Sizes(layers=9)), grid=(4, 4), phase="decode")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.Lanes, "_layer", spy)
        trace = run_lanes(done.phases["decode"].program, done.chip)
    assert max(worked) < 8, "layers that repeat are not worked out"
    assert {s.layer for s in trace.spans} == {-1, *range(9)}


def test_lines_in_one_state_take_one_course(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshc.emulator.lanes import engine

    for phase in ("decode", "prefill"):
        done = build(chip="test8x8", grid=(8, 8), phase=phase)
        program = done.phases[phase].program
        for _, chip in chips(done.chip):
            monkeypatch.setattr(engine, "LEAST_LANES", 1)
            by_lines = run_lanes(program, chip)
            monkeypatch.setattr(engine, "LEAST_LANES", 1 << 30)
            assert not differences(by_lines, run_lanes(program, chip))


def test_core_spans_are_those_of_cores(build: Build) -> None:
    done = build(phase="decode", context=5, grid=(3, 4))
    program = done.phases["decode"].program
    slow, fast = (
        emulate(program, done.chip, engine=e, contention=False, core_spans=True)
        for e in ("cores", "lanes")
    )
    assert sorted(slow.core_spans) == sorted(fast.core_spans)


# -- who sends what to whom ------------------------------------------------------------------------


def random_layout(rng: random.Random, shape: tuple[int, ...], rows: int, cols: int) -> Layout:
    axes = [a for a in AXES if rng.random() < 0.7]
    rng.shuffle(axes)
    parts: list[tuple[Any, ...]] = [()] * len(shape)
    if len(axes) == 2 and rng.random() < 0.3:
        parts[rng.randrange(len(shape))] = tuple(axes)
    else:
        for d, a in zip(rng.sample(range(len(shape)), len(axes)), axes, strict=True):
            parts[d] = (a,)
    return Layout(
        tuple(
            split(n, p, rows, cols, 1, cyclic=bool(p) and rng.random() < 0.3)
            for n, p in zip(shape, parts, strict=True)
        )
    )


def test_messages_of_transfers_are_those_of_the_streams() -> None:
    from meshc.emulator.lanes.deliveries import deliveries

    rng = random.Random(0)
    for _ in range(600):
        shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(2, 3)))
        a = Region("a", 1, 0, rng.randint(1, 5), rng.randint(1, 5))
        b = a if rng.random() < 0.7 else Region("b", 7, 1, rng.randint(1, 4), rng.randint(1, 4))
        source, target = (
            Buffer(
                n,
                "t",
                "activation",
                shape,
                shape,
                "fp32",
                random_layout(rng, shape, r.rows, r.cols),
                0,
            )
            for n, r in (("s", a), ("d", b))
        )
        multicast = rng.random() < 0.6
        transfer = Transfer("x", "", "s", "d", multicast)
        program = Program(
            "p",
            "c",
            12,
            8,
            {"a": a, "b": b},
            {"s": source, "d": target},
            {},
            {},
            (),
            (),
            (),
            {},
            {},
        )
        streams = Expander(program)._transfer(transfer, a, b, (0, 0))
        found = deliveries(source, target, a, b, multicast, (12, 8))
        sends, copies = [], []
        for (r, c), own in streams.source.items():
            core = a.core(r, c).row * 8 + a.core(r, c).col
            for s in own.sends:
                to = tuple(k.row * 8 + k.col for k in s.to)  # type: ignore[union-attr]
                sends.append((core, s.part.at(0).bytes, to))  # type: ignore[union-attr]
        for (r, c), own in streams.target.items():
            core = b.core(r, c).row * 8 + b.core(r, c).col
            copies += [(core, x.source.at(0).bytes) for x in own.copies]  # type: ignore[union-attr]
        assert sends == [
            (int(g), int(n), tuple(found.taker[i:j].tolist()))
            for g, n, i, j in zip(
                found.giver, found.size, found.first[:-1], found.first[1:], strict=True
            )
        ]
        both = zip(found.copier.tolist(), found.copied.tolist(), strict=True)
        assert sorted(both) == sorted(copies)
