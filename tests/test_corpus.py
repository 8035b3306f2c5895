"""Every graph of ../shared/onnx as a user meets it: compiled without flags, run, verified, with
recognition and without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "onnx"
REFUSED = {  # by name, with the reason
    "mamba-hf-op20-prefill": "is a state-space model",
    "mamba-hf-op20-decode": "is a state-space model",
    "llama-genai-paged-fp16-cuda": "PagedAttention",
}
UNCHECKED = {"mixtral-hf-ortcuda-decode"}  # ONNX Runtime has no kernel on the CPU
QUICK = (
    "qwen3_moe-mobius-std",
    "llama-genai-int4-qdq",
    "t5-optimum-decoder_model_merged",
    "bert-ortoptimizer-fused",
    "mamba-hf-op20-decode",
)


def names() -> list[Any]:
    if not (CORPUS / "manifest.json").exists():
        reason = "../shared/onnx is not here"
        return [pytest.param("", marks=pytest.mark.skip(reason=reason), id="absent")]
    found = json.loads((CORPUS / "manifest.json").read_text())
    return [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in found]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("recognition", [True, False], ids=["recognised", "as written"])
def test_a_graph_without_flags(
    name: str, recognition: bool, meshc: Callable[..., Any], tmp_path: Path
) -> None:
    model, out = CORPUS / f"{name}.onnx", tmp_path / "out"
    flags = ["--chip", "test4x4", "--solver", "greedy", "--quiet"]
    done = meshc(
        "compile", model, "-o", out, *flags, *([] if recognition else ["--no-recognition"])
    )
    if name in REFUSED:
        assert done.code == 2 and REFUSED[name] in done.sentence
        assert not out.exists()
        return
    assert done.code == 0, done.err
    if name in UNCHECKED:
        assert meshc("run", out, "--quiet").code == 0
        return
    run = meshc("run", out, "--verify", "--json")
    assert run.code == 0, run.err
    assert json.loads(run.out)["verify"]["passed"] is True


@pytest.mark.parametrize("name", names())
def test_operators_of_a_graph(name: str, meshc: Callable[..., Any]) -> None:
    done = meshc("ops", CORPUS / f"{name}.onnx", "--json")
    found = json.loads(done.out)
    unsupported = [r["op"] for r in found["ops"] if r["status"] == "unsupported"]
    assert all(r["count"] == sum(r[f] for f in ("fused", "executed", "folded", "unsupported"))
               for r in found["ops"])  # fmt: skip
    assert done.code == (2 if name in REFUSED else 0)
    assert not unsupported or name in REFUSED
