"""What must hold for every program, whatever the model, the chip and the flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from meshc.emulator import emulate
from meshc.flows import flows
from meshc.ir import codec
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.compiled import Compiled
from meshc.ir.program import Program
from meshc.ir.routing import Route
from meshc.ir.stream import Recv, Send
from meshc.ir.trace import Trace
from meshc.memory import region_buffers
from meshc.report import measure
from meshc.route import channel_cycle
from meshc.run import run_phase, verify_phase

DECODER = "llama-ptdynamo-op18-decode"
HALF = "llama-ptdynamo-op18-fp16-decode"
DEFAULT: dict[str, dict[str, Any]] = {
    "decode": {"phase": "decode", "context": 9},
    "both": {
        "phase": "both", "prompt": 5, "grid": (2, 3), "overrides": ("energy.mac_pj.fp32=2.0",),
    },
    "line": {"phase": "prefill", "batch": 2, "prompt": 3, "context": 5, "grid": (1, 4)},
    "column": {"phase": "decode", "context": 33, "grid": (4, 1), "seed": 3},
    "one core": {"phase": "prefill", "prompt": 2, "grid": (1, 1)},
    "ilp": {"phase": "decode", "batch": 3, "solver": "ilp", "grid": (3, 4)},
    "anneal": {"phase": "decode", "batch": 2, "context": 0, "solver": "anneal", "grid": (2, 2)},
    "pipeline": {"phase": "prefill", "prompt": 4, "strategy": "pipeline"},
    "test8x8": {"chip": "test8x8", "phase": "decode", "batch": 2, "grid": (4, 8)},
    "unicast": {
        "phase": "prefill", "prompt": 6, "grid": (3, 3), "overrides": ("noc.multicast=false",),
    },
    "torus": {
        "phase": "decode", "grid": (4, 4),
        "overrides": ("noc.topology=torus", "noc.virtual_channels=2"),
    },
    "bulk": {
        "phase": "decode", "grid": (2, 4),
        "overrides": ("noc.sync_cycles=118", "core.overlap=false", "noc.message_cycles=3"),
    },
    "dead cores": {"phase": "decode", "overrides": ("dead_cores=[[0,0],[2,3]]",), "seed": 1},
    "dynamic mask": {"phase": "decode", "dynamic_mask": True, "grid": (2, 2)},
    "half": {"model": HALF, "phase": "both", "prompt": 3, "grid": (2, 4)},
}  # fmt: skip
SLOW: dict[str, dict[str, Any]] = {
    f"{model} {chip} {phase} {solver} {seed}": {
        "model": model, "chip": chip, "phase": phase, "batch": 1 + seed, "context": context,
        "prompt": 7, "solver": solver, "seed": seed,
    }
    for model in (DECODER, HALF, "llama-mobius-std", "llama-genai-fp32-cpu")
    for chip in ("test4x4", "test8x8", "test16x16", "n150", "gc200", "p150")
    for phase, context in (("prefill", 0), ("decode", 21))
    for solver, seed in (("greedy", 0), ("greedy", 5), ("ilp", 2), ("anneal", 1))
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One compiled phase, emulated with and without tensors."""

    compiled: Compiled
    phase: str
    trace: Trace
    free: Trace
    carried: Trace

    @property
    def program(self) -> Program:
        return self.compiled.phases[self.phase].program

    @property
    def chip(self) -> ChipSpec:
        return self.compiled.chip

    def report(self) -> dict[str, Any]:
        whole = measure(
            {self.phase: (self.trace, self.free)},
            self.compiled,
            emulate_seconds=0.5,
            peak_rss_bytes=1,
        )
        return whole["phases"][self.phase]


@pytest.fixture(
    scope="module",
    params=[*DEFAULT, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def cases(request: pytest.FixtureRequest, build: Callable[..., Compiled]) -> list[Case]:
    """Every phase of one compiled model."""
    compiled = build(**{**DEFAULT, **SLOW}[request.param])
    found = []
    for phase in compiled.phases:
        trace, free = run_phase(compiled, phase)
        result = verify_phase(compiled, phase)
        assert result.verify is not None and result.verify["passed"], result.verify
        found.append(Case(compiled, phase, trace, free, result.trace))
    return found


# -- time and use ------------------------------------------------------------------------------


def test_no_program_is_faster_than_its_bounds(cases: list[Case]) -> None:
    for case in cases:
        report = case.report()
        bounds = report["bounds"]
        assert (
            report["latency_cycles"]
            >= bounds["no_contention_cycles"]
            >= bounds["roofline_cycles"]
            >= bounds["lower_bound_cycles"]
            > 0
        )


def test_shares_lie_between_zero_and_one(cases: list[Case]) -> None:
    for case in cases:
        report = case.report()
        shares = {**report["utilization"], "bottleneck": report["bottleneck"]["share"]}
        assert all(0 <= share <= 1 for share in shares.values()), shares
        # and not because a larger one was cut off
        cycles, core = case.trace.cycles, case.chip.core
        assert case.trace.link_busy_cycles.max() <= cycles
        assert case.trace.mac_cycles.max() <= cycles
        assert case.trace.sram_bytes.max() <= cycles * core.sram_bytes_per_cycle
        busy = case.trace.compute_cycles + case.trace.communication_cycles + case.trace.wait_cycles
        assert np.allclose(busy, case.trace.finish_cycles)
        assert case.trace.finish_cycles.max() == cycles


def test_time_is_the_same_with_and_without_tensors(cases: list[Case]) -> None:
    for case in cases:
        with_tensors = replace(case.carried, outputs=None, state=None)
        for name, value in vars(case.trace).items():
            other = getattr(with_tensors, name)
            same = np.array_equal(value, other) if isinstance(value, np.ndarray) else value == other
            assert same, name


def test_spans_of_a_run_lie_within_it(cases: list[Case]) -> None:
    for case in cases:
        for span in case.trace.spans:
            assert 0 <= span.start_cycle <= span.end_cycle <= case.trace.cycles, span.name
            parts = span.compute_cycles + span.communication_cycles + span.wait_cycles
            assert parts <= span.end_cycle - span.start_cycle + 1e-6, span.name


# -- messages ----------------------------------------------------------------------------------


def test_every_send_has_its_receives_of_equal_bytes(cases: list[Case], anatomy: Any) -> None:
    for case in cases:
        sent: dict[Any, tuple[Coord, Send]] = {}
        received: dict[Any, list[tuple[Coord, Recv]]] = defaultdict(list)
        for core, steps in anatomy.streams(case.program).items():
            for a in (a for s in steps for a in s.actions):
                if isinstance(a, Send):
                    assert a.key not in sent, f"two sends of {a.key}"
                    sent[a.key] = (core, a)
                elif isinstance(a, Recv):
                    received[a.key].append((core, a))
        assert sent.keys() == received.keys()
        for key, (source, send) in sent.items():
            assert sorted(core for core, _ in received[key]) == sorted(send.to)
            assert source not in send.to
            for _, recv in received[key]:
                assert recv.source == source
                assert recv.view.bytes == send.view.bytes > 0
                assert recv.view.dtype == send.view.dtype
        assert case.trace.messages == len(sent)
        assert case.trace.message_bytes == sum(s.view.bytes for _, s in sent.values())


def test_waiting_for_each_other_has_no_circle(cases: list[Case], anatomy: Any) -> None:
    """Even where a core waits for each of its messages to leave before it goes on."""
    for case in cases:
        graph: nx.DiGraph[Any] = nx.DiGraph()
        for core, steps in anatomy.streams(case.program).items():
            before: Any = (core, "start")
            for number, step in enumerate(steps):
                entered = (core, number)
                graph.add_edge(before, entered)
                before = entered
                for a in step.actions:
                    if isinstance(a, Recv):
                        graph.add_edge(entered, ("leaves", a.key))  # posted on entering
                for place, a in enumerate(step.actions):
                    after = (core, number, place)
                    graph.add_edge(before, after)
                    if isinstance(a, Send):
                        graph.add_edge(before, ("leaves", a.key))
                        graph.add_edge(("leaves", a.key), after)
                    elif isinstance(a, Recv):
                        graph.add_edge(("leaves", a.key), after)
                    before = after
        assert nx.is_directed_acyclic_graph(graph)


def test_channels_have_no_circle(cases: list[Case]) -> None:
    for case in cases:
        done = case.compiled.phases[case.phase]
        assert channel_cycle(flows(done.program), done.routing, case.chip) is None
        if case.chip.noc.topology != "mesh":
            continue
        graph: nx.DiGraph[Any] = nx.DiGraph()
        for flow in flows(done.program):
            route = done.routing.routes[flow.name]
            for source, to, _ in flow.pairs:
                for target in to:
                    nx.add_path(graph, path(source, target, route))
        assert nx.is_directed_acyclic_graph(graph)


def path(source: Coord, target: Coord, route: Route) -> list[tuple[int, Coord, Coord]]:
    """Links of a message on a mesh: (network, from, to)."""
    legs = {
        "xy": [(source, target, True)],
        "yx": [(source, target, False)],
        "via": [(source, route.waypoint, True), (route.waypoint, target, True)],
    }[route.policy]
    links = []
    for start, end, row_first in legs:
        assert start is not None and end is not None
        row, col = start.row, start.col
        for along_row in (row_first, not row_first):
            while (col != end.col) if along_row else (row != end.row):
                here = Coord(row, col)
                if along_row:
                    col += 1 if end.col > col else -1
                else:
                    row += 1 if end.row > row else -1
                links.append((route.network, here, Coord(row, col)))
    return links


def test_bytes_on_every_link_are_those_of_its_messages(cases: list[Case], anatomy: Any) -> None:
    for case in cases:
        if case.chip.noc.topology != "mesh":
            continue
        expected = np.zeros_like(case.trace.link_bytes)
        for core, steps in anatomy.streams(case.program).items():
            for send in (a for s in steps for a in s.actions if isinstance(a, Send)):
                branches = {
                    tuple(links[: n + 1])
                    for target in send.to
                    for links in [path(core, target, send.route)]
                    for n in range(len(links))
                }
                for branch in branches:  # a multicast uses a shared link once
                    network, here, there = branch[-1]
                    expected[network, here.row, here.col, direction(here, there)] += send.view.bytes
        assert np.array_equal(case.trace.link_bytes, expected)
        assert case.trace.byte_hops == expected.sum()
        assert np.array_equal(case.free.link_bytes, expected)


def direction(here: Coord, there: Coord) -> int:
    """Index of a link's direction: east, west, south, north."""
    if here.row == there.row:
        return 0 if there.col > here.col else 1
    return 2 if there.row > here.row else 3


def test_bytes_into_every_router_come_out_of_it(cases: list[Case], anatomy: Any) -> None:
    """Of programs without multicast, whose bytes are never copied."""
    for case in cases:
        if case.chip.noc.multicast:
            continue
        rows, cols = case.chip.rows, case.chip.cols
        balance = np.zeros((rows, cols), np.int64)
        for core, steps in anatomy.streams(case.program).items():
            for a in (a for s in steps for a in s.actions):
                if isinstance(a, Send):
                    assert len(a.to) == 1
                    balance[core.row, core.col] += a.view.bytes
                elif isinstance(a, Recv):
                    balance[core.row, core.col] -= a.view.bytes
        assert balance.any() or case.trace.messages == 0
        links = case.trace.link_bytes.sum(0)
        for d, (down, right) in enumerate(((0, 1), (0, -1), (1, 0), (-1, 0))):
            balance -= links[:, :, d]
            balance += np.roll(links[:, :, d], (down, right), (0, 1))
        assert not balance.any()


# -- memory ------------------------------------------------------------------------------------


def test_no_address_holds_two_live_buffers(cases: list[Case], anatomy: Any) -> None:
    """Sharing addresses changes nothing that any core reads."""
    for case in cases:
        assert anatomy.histories(case.program) == anatomy.histories(anatomy.apart(case.program))


def test_every_view_lies_within_one_buffer(cases: list[Case], anatomy: Any) -> None:
    for case in cases:
        lone = anatomy.apart(case.program)
        layers = anatomy.layers_of(lone)
        spans = {}
        for b in lone.buffers.values():
            for layer in range(layers if b.stride else 1):
                spans[b.address(layer)] = b.bytes
        for steps in anatomy.streams(lone).values():
            for view in (v for s in steps for v in anatomy.views_of(s)):
                start, end = view.span
                assert start in spans and end - start <= spans[start], view


def test_no_core_needs_more_than_its_sram(cases: list[Case], anatomy: Any) -> None:
    for case in cases:
        peaks = {
            core: max((v.span[1] for s in steps for v in anatomy.views_of(s)), default=0)
            for core, steps in anatomy.streams(case.program).items()
        }
        memory = case.report()["memory"]
        assert max(peaks.values()) <= memory["peak_bytes"] <= case.chip.core.usable_bytes
        assert not case.chip.dead() & {core for core, peak in peaks.items() if peak}
        for name, region in case.program.regions.items():
            for b, count in region_buffers(case.program, name):
                assert b.offset % 4 == 0 and b.offset >= 0
                assert b.address(count - 1) + b.bytes <= memory["sram_bytes_per_core"]
                assert region.row + region.rows <= case.chip.rows


def test_memory_parts_add_up(cases: list[Case]) -> None:
    for case in cases:
        memory = case.report()["memory"]
        parts = ("weight_bytes", "kv_bytes", "activation_bytes")
        assert all(memory[p] >= 0 for p in parts)
        assert sum(memory[p] for p in parts) == memory["peak_bytes"]
        assert 0 < memory["mean_bytes"] <= memory["peak_bytes"]
        reserved = case.compiled.phases[case.phase].workload.max_context
        assert memory["max_context_tokens"] >= reserved


# -- the report --------------------------------------------------------------------------------

NUMBER: Any = (int, float)
SHAPE: dict[str, Any] = {
    "meshc_version": str,
    "model": {"name": str, "sha256": str, "ops": int, "parameters": int},
    "chip": {"name": str, "rows": int, "cols": int, "cores": int, "clock_hz": NUMBER},
    "workload": {"phase": str, "batch": int, "prompt": int, "context": int, "max_context": int},
    "strategy": str,
    "solver": str,
    "seed": int,
    "phases": dict,
    "ttft_s": (float, type(None)),
    "tpot_s": (float, type(None)),
    "energy": (dict, type(None)),
    "solves": [
        {
            "stage": str, "scope": str, "solver": str, "status": str, "objective": NUMBER,
            "bound": NUMBER, "gap": NUMBER, "seconds": NUMBER, "variables": int,
            "constraints": int, "heuristic_objective": NUMBER,
        }
    ],
    "verify": (dict, type(None)),
    "seconds": {
        "import": NUMBER, "partition": NUMBER, "place": NUMBER, "route": NUMBER, "emit": NUMBER,
        "emulate": NUMBER,
    },
    "peak_rss_bytes": int,
}  # fmt: skip
PHASE: dict[str, Any] = {
    "latency_cycles": NUMBER,
    "latency_s": float,
    "tokens_per_s": float,
    "tokens_per_s_per_user": float,
    "layer_cycles": NUMBER,
    "predicted_cycles": NUMBER,
    "bounds": {
        "roofline_cycles": NUMBER, "no_contention_cycles": NUMBER, "lower_bound_cycles": NUMBER,
    },
    "utilization": {
        "compute": NUMBER, "sram_bandwidth": NUMBER, "links_mean": NUMBER, "links_max": NUMBER,
        "dram": NUMBER, "cores_used": NUMBER,
    },
    "memory": {
        "sram_bytes_per_core": int, "peak_bytes": int, "mean_bytes": NUMBER, "weight_bytes": int,
        "kv_bytes": int, "activation_bytes": int, "max_context_tokens": int,
        "max_context_by_policy": dict,
    },
    "ops": [
        {
            "name": str, "kind": str, "layer": int, "region": list, "start_cycle": NUMBER,
            "end_cycle": NUMBER, "compute_cycles": NUMBER, "communication_cycles": NUMBER,
            "wait_cycles": NUMBER, "bound_by": str,
        }
    ],
    "bottleneck": {"what": str, "share": NUMBER, "advice": str},
}  # fmt: skip
VERIFY: dict[str, Any] = {
    "oracle": str,
    "outputs": [{"name": str, "max_abs_error": float, "max_rel_error": float}],
    "tolerance": float,
    "passed": bool,
}


def departures(value: Any, shape: Any, where: str) -> Iterator[str]:
    """Every place where a value has not the fields and types that its shape asks for."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            yield f"{where} is no object"
            return
        for key, inner in shape.items():
            if key in value:
                yield from departures(value[key], inner, f"{where}.{key}")
            else:
                yield f"{where}.{key} is missing"
    elif isinstance(shape, list):
        if not isinstance(value, list) or not value:
            yield f"{where} is no list with entries"
            return
        for i, item in enumerate(value):
            yield from departures(item, shape[0], f"{where}[{i}]")
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        yield f"{where} is {value!r}"


@pytest.fixture(scope="module")
def reported(build: Callable[..., Compiled], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report of both phases, verified, from the command line."""
    from meshc import cli, store

    out = tmp_path_factory.mktemp("report") / "out"
    with store.whole_folder(out) as fresh:
        store.mark(fresh)
        store.save_compiled(build(**DEFAULT["both"]), fresh)
    assert cli.main(["run", str(out), "--verify", "--quiet"]) == 0
    return out


def test_report_has_every_field_with_its_type(reported: Path) -> None:
    report = json.loads((reported / "report.json").read_text())
    problems = list(departures(report, SHAPE, "report"))
    for name, phase in report["phases"].items():
        problems += departures(phase, PHASE, f"phases.{name}")
    problems += departures(report["verify"], VERIFY, "verify")
    assert not problems


def test_report_agrees_with_itself(reported: Path, build: Callable[..., Compiled]) -> None:
    report = json.loads((reported / "report.json").read_text())
    assert list(report["phases"]) == ["prefill", "decode"]
    assert report["workload"] == {
        "phase": "both", "batch": 1, "prompt": 5, "context": 5, "max_context": 69,
    }  # fmt: skip
    assert (report["solver"], report["seed"], report["strategy"]) == ("greedy", 0, "auto")
    clock = report["chip"]["clock_hz"]
    assert report["chip"]["cores"] == report["chip"]["rows"] * report["chip"]["cols"] == 16
    for name, phase in report["phases"].items():
        tokens = 5 if name == "prefill" else 1
        assert phase["latency_s"] == pytest.approx(phase["latency_cycles"] / clock)
        assert phase["tokens_per_s"] == pytest.approx(tokens / phase["latency_s"])
        assert phase["tokens_per_s_per_user"] == pytest.approx(phase["tokens_per_s"])
        assert 0 < phase["layer_cycles"] < phase["latency_cycles"]
        assert phase["utilization"]["cores_used"] == pytest.approx(6 / 16)
        assert {row["layer"] for row in phase["ops"]} == {-1, 0, 1}
        assert {tuple(row["region"]) for row in phase["ops"]} == {(0, 0, 2, 3)}
        assert all(row["bound_by"] in ("compute", "communication", "wait") for row in phase["ops"])
        last = max(row["end_cycle"] for row in phase["ops"])
        assert last == phase["latency_cycles"]
    assert report["ttft_s"] == report["phases"]["prefill"]["latency_s"]
    assert report["tpot_s"] == report["phases"]["decode"]["latency_s"]
    parts = report["energy"]["by_part"]
    assert all(joules >= 0 for joules in parts.values()) and parts["compute"] > 0
    assert report["energy"]["joules_per_token"] == pytest.approx(sum(parts.values()))
    assert {s["stage"] for s in report["solves"]} == {"plan", "place", "route"}
    for solve in report["solves"]:
        assert solve["bound"] <= solve["objective"] + 1e-6
        assert solve["objective"] <= solve["heuristic_objective"] * (1 + 1e-9) + 1e-6
        assert 0 <= solve["gap"] <= 1
    outputs = Counter(o["name"] for o in report["verify"]["outputs"])
    assert outputs == {
        n: 2 for n in ("logits", *(f"present.{i}.{k}" for i in range(2) for k in ("key", "value")))
    }


@pytest.mark.parametrize("solver", ["greedy", "ilp"])
def test_no_solve_is_worse_than_its_heuristic(solver: str, build: Callable[..., Compiled]) -> None:
    compiled = build(phase="decode", solver=solver, grid=(2, 4), batch=2)
    for s in compiled.solves:
        assert s.bound <= s.objective * (1 + 1e-6) + 1e-6, s
        assert s.objective <= s.heuristic_objective * (1 + 1e-9) + 1e-6, s
        if s.status == "optimal":
            assert s.gap <= 0.011, s


# -- the same inputs give the same bytes -------------------------------------------------------

UNSTEADY = ("seconds", "peak_rss_bytes")


def steady(report: dict[str, Any]) -> dict[str, Any]:
    """A report without what a clock says."""
    kept = {k: v for k, v in report.items() if k not in UNSTEADY}
    kept["solves"] = [{k: v for k, v in s.items() if k != "seconds"} for s in report["solves"]]
    return kept


DETERMINISM = [
    pytest.param("greedy", ("--phase", "prefill", "--prompt", "3"), marks=pytest.mark.slow),
    ("ilp", ("--phase", "prefill", "--prompt", "4", "--grid", "2x4")),
    pytest.param("greedy", ("--prompt", "4", "--grid", "2x3"), marks=pytest.mark.slow),
    pytest.param("ilp", ("--chip", "test8x8", "--batch", "2"), marks=pytest.mark.slow),
    pytest.param("greedy", ("--chip", "test16x16"), marks=pytest.mark.slow),
    pytest.param("anneal", ("--seed", "7"), marks=pytest.mark.slow),
    pytest.param(
        "ilp",
        (
            "--strategy",
            "pipeline",
        ),
        marks=pytest.mark.slow,
    ),
    pytest.param("greedy", ("--dynamic-mask",), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("solver", "flags"), DETERMINISM)
def test_every_process_writes_the_same_bytes(
    solver: str, flags: tuple[str, ...], example: Path, tmp_path: Path
) -> None:
    """Processes that hash strings differently agree in every file but for the times taken."""
    script = "import sys; from meshc.cli import main; sys.exit(main(sys.argv[1:]))"
    inputs = tmp_path / "inputs.npz"
    chip = () if "--chip" in flags else ("--chip", "test4x4")
    kept = []
    for seed in ("0", "4242"):
        out = tmp_path / "out"  # the report must not depend on the folder either
        common = {"env": {**os.environ, "PYTHONHASHSEED": seed}, "check": True}
        command = [sys.executable, "-c", script]
        flag = ["--solver", solver, *chip, *flags, "--quiet", "-o", str(out)]
        subprocess.run([*command, "compile", str(example), *flag], **common)
        if not inputs.exists():
            random = np.random.default_rng(0)
            batch = 2 if "--batch" in flags else 1
            tokens = int(flags[flags.index("--prompt") + 1]) if "--prompt" in flags else 16
            empty = np.zeros((batch, 2, 0, 16), np.float32)
            caches = {f"past_key_values.{i}.{k}": empty for i in range(2) for k in ("key", "value")}
            extra = {}
            if "--dynamic-mask" in flags:
                ones = np.ones((batch, tokens), np.int64)
                extra = {"attention_mask": ones, "position_ids": np.cumsum(ones, 1) - 1}
            ids = random.integers(0, 160, (batch, tokens))
            np.savez(inputs, input_ids=ids, **caches, **extra)
        run = ["run", str(out), "--verify", "--inputs", str(inputs), "--quiet"]
        subprocess.run([*command, *run], **common)
        files = {p.name: p.read_bytes() for p in out.iterdir() if p.name != "seconds.json"}
        files["report.json"] = json.dumps(steady(json.loads(files["report.json"]))).encode()
        kept.append(files)
        out.rename(tmp_path / f"out{seed}")
    assert {"compiled.json", "report.json", "outputs.npz"} <= set(kept[0])
    for other in kept[1:]:
        assert other.keys() == kept[0].keys()
        assert [n for n in other if other[n] != kept[0][n]] == []


def test_a_seed_gives_one_program(build: Callable[..., Compiled]) -> None:
    """Compiling again in the same process changes nothing; the seed is kept with the program."""
    from meshc.ir.compiled import CompileOptions
    from meshc.pipeline import compile as compile_model

    first = build(**DEFAULT["anneal"])
    options = {k: v for k, v in DEFAULT["anneal"].items()}
    for seed in (0, 9):
        again = compile_model(
            Path(first.phases["decode"].model_path),
            CompileOptions(chip="test4x4", seed=seed, **options),
        )
        assert again is not None
        assert again.options.seed == seed
        same = codec.dumps(again.phases["decode"].program) == codec.dumps(
            first.phases["decode"].program
        )
        assert same or seed != 0


# -- size --------------------------------------------------------------------------------------


def bare(program: Program) -> int:
    """Characters of a program without the lists of the model's own names."""
    return len(codec.dumps(replace(program, load=(), outputs=())))


def test_program_size_depends_on_no_core_count(build: Callable[..., Compiled]) -> None:
    grids = ((2, 2), (4, 4), (4, 16), (16, 16))
    programs = [
        build(chip="test16x16", phase="decode", grid=grid).phases["decode"].program
        for grid in grids
    ]
    counts = [sum(map(len, p.bodies.values())) for p in programs]
    assert max(counts) <= 1.5 * min(counts)
    sizes = [bare(p) for p in programs]
    assert max(sizes) <= 1.5 * min(sizes)
    assert all(len(p.load) == len(programs[0].load) for p in programs)


def test_program_size_depends_on_no_layer_count(
    build: Callable[..., Compiled], tmp_path: Path
) -> None:
    from frontend.decoders import Sizes, standard

    programs = []
    for layers in (4, 8, 12):
        model = standard(tmp_path / f"{layers}.onnx", Sizes(layers=layers))
        options: dict[str, Any] = {"phase": "decode", "grid": (2, 2), "context": 7}
        compiled = build(model=model, **options)
        assert verify_phase(compiled, "decode").verify["passed"]  # type: ignore[index]
        programs.append(compiled.phases["decode"].program)
    few, some, many = programs
    # The plan may weigh the layers against the rest, so bodies may differ a little.
    counts = [len(p.bodies["body"]) for p in programs]
    assert max(counts) - min(counts) <= 4
    assert len(few.schedule) == len(some.schedule) == len(many.schedule)
    assert max(map(bare, programs)) <= 1.15 * min(map(bare, programs))
    cycles = [emulate(p, build().chip).cycles for p in programs]
    layer = (cycles[2] - cycles[1]) / 4
    assert cycles[1] - cycles[0] == pytest.approx(4 * layer, rel=0.1)
