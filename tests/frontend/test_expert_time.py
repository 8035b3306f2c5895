"""Time depends on how tokens spread over experts, and on nothing that only tensors tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc import ops
from meshc.cli import main
from meshc.ir.graph import Op
from meshc.ops.experts import even

from . import mixtures
from .harness import _answers, _declare, f32, write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    g = mixtures.masked(4, 2, "gated", range(4))
    path = tmp_path_factory.mktemp("moe") / "moe.onnx"
    x = {"x": f32("batch", "sequence", mixtures.HIDDEN)}
    write(path, g.nodes, x, g.constants, outputs=["y"])
    feeds = [{"x": np.zeros((2, 3, mixtures.HIDDEN), np.float32)}]
    _declare(path, _answers(path, feeds, "onnxruntime")[0], ["y"])
    return path


def latency(model: Path, out: Path, experts: str, *run: str) -> tuple[int, Any]:
    flags = ["--chip", "test4x4", "--solver", "greedy", "--prompt", "16", "--grid", "1x1"]
    slow = ["--override", "core.macs_per_cycle.fp32=0.5"]
    assert main(["compile", str(model), "-o", str(out), *flags, *slow, "--experts", experts,
                 "--quiet"]) == 0  # fmt: skip
    assert main(["run", str(out), "--quiet", *run]) == 0
    report = json.loads((out / "report.json").read_text())
    return report["phases"]["prefill"]["latency_cycles"], report["verify"]


def test_latency_is_that_of_the_workload_with_tensors_and_without(
    model: Path, tmp_path: Path
) -> None:
    load = tmp_path / "load.json"
    load.write_text("[5, 3, 0, 0]")
    plain, _ = latency(model, tmp_path / "out", str(load))
    carried, verify = latency(model, tmp_path / "out", str(load), "--verify")
    assert plain == carried and verify["passed"]


def test_a_run_with_tensors_records_the_load(model: Path, tmp_path: Path) -> None:
    """In the form that --experts takes; divided lanes and a single one count the same."""
    found = []
    for grid in ("1x1", "2x3"):
        out = tmp_path / grid
        flags = ["--chip", "test4x4", "--solver", "greedy", "--prompt", "16", "--grid", grid]
        assert main(["compile", str(model), "-o", str(out), *flags, "--quiet"]) == 0
        assert main(["run", str(out), "--quiet"]) == 0
        assert not (out / "experts.json").exists()
        assert main(["run", str(out), "--verify", "--quiet"]) == 0
        found.append(json.loads((out / "experts.json").read_text()))
    assert found[0] == found[1]
    ((counts,),) = (found[0],)
    assert len(counts) == 4 and sum(counts) == 16 * 2
    latency(model, tmp_path / "again", str(tmp_path / "2x3" / "experts.json"))


def test_recognition_changes_the_time_and_not_the_result(model: Path, tmp_path: Path) -> None:
    flags = ["--chip", "test4x4", "--solver", "greedy", "--prompt", "3", "--no-recognition"]
    assert main(["compile", str(model), "-o", str(tmp_path / "out"), *flags, "--quiet"]) == 0
    assert main(["run", str(tmp_path / "out"), "--verify", "--quiet"]) == 0


def test_a_load_that_does_not_fit_is_exit_2(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = tmp_path / "load.json"
    load.write_text("[1, 2]")
    code = main(["compile", str(model), "--chip", "test4x4", "-o", str(tmp_path / "out"),
                 "--experts", str(load)])  # fmt: skip
    assert code == 2 and not (tmp_path / "out").exists()
    assert "has 2 numbers for mixture-of-experts layer 0" in capsys.readouterr().err


def _work(counts: Any, held: range, rows: range = range(16), layer: int = -1) -> ops.Work:
    attrs = (("counts", counts), ("rows", 16), ("transpose_b", False))
    op = Op("o", "experts", ("x", "w", "i"), "y", attrs)
    parts = ((rows, range(8)), (held, range(8), range(6)), (rows,))
    return ops.share(op, parts, (rows, range(6)), ("fp32", "fp32", "int64"), "fp32", layer)


def test_a_lane_multiplies_the_rows_of_its_experts() -> None:
    counts = ((9, 0, 4, 3),)
    assert _work(counts, range(4)).macs == 16 * 8 * 6
    assert _work(counts, range(0, 2)).matmuls == ((9, 8, 6, 1),)
    assert _work(counts, range(2, 4)).matmuls == ((3, 8, 6, 1), (4, 8, 6, 1))
    idle, busy = _work(counts, range(1, 2)), _work(counts, range(2, 3))
    assert not idle.macs  # nor are its weights read
    assert busy.sram_bytes - idle.sram_bytes == 4 * (4 * 8 + 8 * 6)


def test_rows_divided_over_lanes_add_up() -> None:
    counts = (even(16, 3),)
    parts = [_work(counts, range(3), range(s, s + 4)).macs for s in range(0, 16, 4)]
    assert sum(parts) == 16 * 8 * 6


def test_layers_may_differ() -> None:
    counts = ((16, 0), (8, 8))
    assert [len(_work(counts, range(2), layer=n).matmuls) for n in (0, 1)] == [1, 1]
    assert _work(counts, range(1), layer=0).macs == 2 * _work(counts, range(1), layer=1).macs
