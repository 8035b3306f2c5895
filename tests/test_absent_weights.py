"""From the command line: a model without its weights is timed, and refused where values matter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from meshc import cli


@pytest.fixture
def bare(tmp_path: Path, example: Path) -> Path:
    """The example, its weights in a file that does not exist."""
    proto = onnx.load(example)
    at = 0
    for t in proto.graph.initializer:
        if t.data_type == TensorProto.FLOAT and len(t.dims) > 0:
            size = len(t.raw_data)
            t.ClearField("raw_data")
            t.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "w.data"), ("offset", at), ("length", size)):
                t.external_data.add(key=key, value=str(value))
            at += size
    path = tmp_path / "bare.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_timing_only(
    bare: Path, meshc: Callable[..., Any], example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bare.parent)
    flags = ("--chip", "test4x4", "--grid", "2x2", "--solver", "greedy", "--phase", "decode")
    done = meshc("compile", "bare.onnx", *flags, "-o", "out")
    assert done.code == 0
    assert done.sentence.startswith("Only timing is possible with 'bare.onnx': ")
    assert "is kept in 'w.data', which does not exist in '.'" in done.sentence
    assert meshc("compile", "bare.onnx", *flags, "-o", "out", "--quiet").err == ""
    assert meshc("run", "out", "--quiet").code == 0
    timed = json.loads(Path("out/report.json").read_text())["phases"]["decode"]["latency_cycles"]
    for command in (("run", "out", "--verify"), ("generate", "out", "--ids", "1")):
        refused = meshc(*command)
        assert refused.code == 2
        assert "put the data file beside the model" in refused.sentence
    assert meshc("compile", example, *flags, "-o", "whole", "--quiet").code == 0
    assert meshc("run", "whole", "--quiet").code == 0
    whole = json.loads(Path("whole/report.json").read_text())["phases"]["decode"]["latency_cycles"]
    assert timed == whole
    assert cli.main(["run", "whole", "--verify", "--quiet"]) == 0
