"""Strategy waferllm: the published mapping, on grids where tensors can be carried."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc import store
from meshc.emulator import emulate
from meshc.frontend.sketch import Layers
from meshc.ir.program import Reduce, Transfer

Run = Callable[..., Any]


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    path = tmp_path / "layers.onnx"
    Layers(3, 44, 78).write(path, np.random.default_rng(0))
    return path


def body(out: Path, phase: str = "decode") -> list[Any]:
    program = store.open_compiled(out).phases[phase].program
    (found,) = [program.bodies[e.body] for e in program.schedule if getattr(e, "last", 0) > 1]
    return list(found)


@pytest.mark.parametrize("grid", [1, 5, 6])
def test_decode_verifies_with_ten_all_reduces(
    grid: int, layers: Path, meshc: Run, tmp_path: Path
) -> None:
    flags = ("--strategy", "waferllm", "--set", "groups=2", "--grid", f"{grid}x{grid}")
    out = tmp_path / "out"
    flags = (*flags, "--chip", "wse2", "--phase", "decode", "--context", "21", "--quiet")
    big = ("--override", "core.sram_bytes=200000")
    assert meshc("compile", layers, *flags, *big, "-o", out).code == 0
    assert meshc("run", out, "--verify", "--quiet").code == 0
    report = json.loads((out / "report.json").read_text())
    assert report["verify"]["passed"]
    assert report["strategy"] == "waferllm"
    found = body(out)
    reduces = [i for i in found if isinstance(i, Reduce)]
    assert len(reduces) == (10 if grid > 1 else 0)
    assert all(i.groups == 2 for i in reduces)
    assert all(i.name.startswith("carry") for i in found if isinstance(i, Transfer))


def test_both_engines_agree(layers: Path, meshc: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ("--strategy", "waferllm", "--grid", "5x5", "--chip", "wse2", "--phase", "decode")
    big = ("--override", "core.sram_bytes=200000")
    assert meshc("compile", layers, *flags, *big, "--quiet", "-o", out).code == 0
    done = store.open_compiled(out)
    program = done.phases["decode"].program
    free = [emulate(program, done.chip, engine=e, contention=False) for e in ("lanes", "cores")]
    assert free[0].cycles == free[1].cycles
    both = [emulate(program, done.chip, engine=e) for e in ("lanes", "cores")]
    assert both[0].cycles == pytest.approx(both[1].cycles, rel=0.02)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ("--grid", "4x5"),
            "Strategy 'waferllm' maps onto square grids, but --grid is 4x5; give one such as 4x4.",
        ),
        (
            ("--grid", "4x4", "--set", "groups=two"),
            "Setting 'groups' of strategy 'waferllm' is 'two', but it must be a whole number of at "
            "least 1; give one such as --set groups=20.",
        ),
        (
            ("--grid", "4x4", "--set", "group=2"),
            "--set group is not an option of strategy 'waferllm' (it has groups); leave it out.",
        ),
    ],
)
def test_refusals(
    flags: tuple[str, ...], sentence: str, layers: Path, meshc: Run, tmp_path: Path
) -> None:
    done = meshc(
        "compile", layers, "--chip", "test8x8", "--strategy", "waferllm", *flags,
        "-o", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 2
    assert done.sentence == sentence
