"""The graphs of every exporter, compiled for many chips, verified against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc import frontend
from meshc.errors import InputError
from meshc.ir.compiled import Compiled
from meshc.run import verify_phase

EXAMPLE = "llama-optimum-with_past"
PAIR = "llama-hf-op20-pair"
FREE = (  # past and free token axis: prefill, decode, both
    "llama-ptdynamo-op18-decode", "llama-ptdynamo-op18-fp16-decode", "llama-ptdynamo-op23-decode",
    "llama-ptscript-op17-decode", EXAMPLE, "llama-mobius-std", "llama-mobius-bf16-std",
    "llama-genai-fp32-cpu", "llama-genai-fp16-cuda",
)  # fmt: skip
PREFILL = (
    "llama-ptdynamo-op18-prefill",
    "llama-ptdynamo-op18-noopt-prefill",
    "llama-hf-op20-prefill",
)
STATIC = "llama-ptdynamo-op18-static-prefill"  # batch 2, 4 tokens, nothing else
DECODE = "llama-hf-op20-decode"  # one token
GENAI = ("llama-genai-fp32-cpu", "llama-genai-fp16-cuda")  # a chunk after a past has batch 1
HALF = ("llama-ptdynamo-op18-fp16-decode", "llama-mobius-bf16-std", "llama-genai-fp16-cuda")

Work = dict[str, Any]
PREFILLS: list[Work] = [
    {"phase": "prefill", "batch": 3, "prompt": 5, "context": 0},
    {"phase": "prefill", "batch": 1, "prompt": 17, "context": 0},
    {"phase": "prefill", "batch": 2, "prompt": 1, "context": 0},
]
CHUNKS: list[Work] = [
    {"phase": "prefill", "batch": 2, "prompt": 3, "context": 5},
    {"phase": "prefill", "batch": 1, "prompt": 1, "context": 7},
    {"phase": "prefill", "batch": 1, "prompt": 9, "context": 33},
]
DECODES: list[Work] = [
    {"phase": "decode", "batch": 1, "context": 7},
    {"phase": "decode", "batch": 5, "context": 33},
    {"phase": "decode", "batch": 3, "context": 0},
    {"phase": "decode", "batch": 1, "context": 16, "max_context": 61},
]
BOTH: list[Work] = [{}, {"phase": "both", "batch": 3, "prompt": 7, "max_context": 11}]


def works(name: str) -> list[Work]:
    """The workloads that a graph can have."""
    if name == STATIC:
        return [{}]
    if name in PREFILL:
        return [{}, *PREFILLS]
    if name == DECODE:
        return [{}, *DECODES]
    if name == PAIR:
        return [*PREFILLS[:1], *DECODES[:1], *BOTH]
    chunks = [w for w in CHUNKS if name not in GENAI or w["batch"] == 1]
    return [*PREFILLS, *chunks, *DECODES, *BOTH]


EVERY = (*FREE, *PREFILL, STATIC, DECODE, PAIR)
# Small and diverse: every graph, every kind of workload, every solver and strategy.
FEW: list[tuple[str, str, Work]] = [
    ("llama-ptdynamo-op18-decode", "test4x4", {**CHUNKS[0], "grid": (4, 3)}),
    ("llama-ptdynamo-op18-fp16-decode", "test4x4", DECODES[3]),
    ("llama-ptdynamo-op18-fp16-decode", "test8x8", {**PREFILLS[2], "grid": (5, 3)}),
    ("llama-ptdynamo-op18-prefill", "test4x4", {**PREFILLS[1], "grid": (4, 4)}),
    ("llama-ptdynamo-op18-noopt-prefill", "test8x8", {**PREFILLS[0], "grid": (4, 4)}),
    (STATIC, "test4x4", {"grid": (3, 4)}),
    ("llama-ptdynamo-op23-decode", "test4x4", {**DECODES[1], "grid": (4, 4)}),
    ("llama-ptscript-op17-decode", "test4x4", {**CHUNKS[2], "grid": (2, 2)}),
    (EXAMPLE, "test8x8", {**DECODES[2], "grid": (4, 8), "solver": "ilp"}),
    (EXAMPLE, "test4x4", {**CHUNKS[1], "strategy": "pipeline"}),
    (EXAMPLE, "test4x4", {**CHUNKS[0], "dynamic_mask": True, "grid": (3, 3)}),
    ("llama-hf-op20-prefill", "test4x4", {**PREFILLS[0], "grid": (2, 3)}),
    (DECODE, "test4x4", {**DECODES[0], "grid": (4, 2)}),
    (PAIR, "test4x4", {**BOTH[1], "grid": (4, 4)}),
    ("llama-mobius-std", "test8x8", {**DECODES[2], "grid": (2, 8)}),
    ("llama-mobius-bf16-std", "test4x4", {**CHUNKS[2], "grid": (2, 4)}),
    ("llama-genai-fp32-cpu", "test4x4", {**CHUNKS[1], "grid": (1, 3)}),
    ("llama-genai-fp16-cuda", "test4x4", {**BOTH[0], "grid": (4, 4)}),
]  # fmt: skip
SLOW: list[tuple[str, str, Work]] = [
    (name, chip, {**work, "solver": solver})
    for name in EVERY
    for chip, solver in (
        ("test4x4", "greedy"), ("test4x4", "ilp"), ("test8x8", "greedy"),
        ("test16x16", "greedy"), ("n150", "greedy"), ("wse2", "greedy"),
    )
    for work in (works(name) if chip != "wse2" else works(name)[1:3])
]  # fmt: skip


def label(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items()) or "defaults"
    return str(value).removeprefix("llama-")


@pytest.mark.parametrize(
    ("name", "chip", "work"),
    [*FEW, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
    ids=label,
)
def test_graph_is_right_on_chip(
    name: str, chip: str, work: Work, build: Callable[..., Compiled]
) -> None:
    compiled = build(model=name, chip=chip, **work)
    wanted = work.get("phase", "prefill" if name == STATIC or name in PREFILL else "both")
    if name == DECODE:
        wanted = "decode"
    assert list(compiled.phases) == (["prefill", "decode"] if wanted == "both" else [wanted])
    for phase in compiled.phases:
        result = verify_phase(compiled, phase)
        assert result.verify is not None
        assert result.verify["passed"], result.verify
        assert result.verify["tolerance"] == (0.02 if name in HALF else 1e-4)
        assert result.verify["oracle"].startswith("onnxruntime")
        assert len(result.verify["outputs"]) == 5


@pytest.mark.parametrize("name", GENAI)
def test_what_onnx_runtime_refuses_is_not_verified(
    name: str, build: Callable[..., Compiled]
) -> None:
    """Its GroupQueryAttention runs a chunk after a past only at batch 1."""
    compiled = build(model=name, grid=(2, 2), **CHUNKS[0])
    with pytest.raises(InputError) as caught:
        verify_phase(compiled, "prefill")
    text = str(caught.value)
    assert text.startswith(f"ONNX Runtime refuses to run '{name}.onnx' on these inputs: ")
    assert text.endswith("; change the workload or leave out --verify.")
    result = verify_phase(compiled, "prefill", check=False)
    assert result.verify is None and result.trace.cycles > 0


# -- the cases recorded with the graphs --------------------------------------------------------

RECORDED = {
    **dict.fromkeys((*FREE,), 4), **dict.fromkeys(PREFILL[:2], 2), STATIC: 1,
    "llama-hf-op20-prefill": 2, DECODE: 2,
}  # fmt: skip
QUICK = {(name, 1 % count) for name, count in RECORDED.items()} | {(EXAMPLE, 0), (EXAMPLE, 2)}


def recorded(file: Path, case: int) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Inputs, outputs and the framework's logits of one case of a graph's .npz."""
    with np.load(file) as data:
        sides: list[dict[str, Any]] = []
        for side in ("in", "out"):
            start = f"case{case}/{side}/"
            sides.append({k.removeprefix(start): data[k] for k in data if k.startswith(start)})
        logits = f"case{case}/torch_logits"
        return sides[0], sides[1], data.get(logits)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, marks=[] if (name, case) in QUICK else [pytest.mark.slow])
        for name, count in RECORDED.items()
        for case in range(count)
    ],
)
def test_recorded_case_from_the_command_line(
    name: str,
    case: int,
    meshc: Callable[..., Any],
    exported: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    feeds, expected, logits = recorded(exported(f"{name}.npz"), case)
    model = exported(f"{name}.onnx")
    roles = frontend.load_model(model).roles
    assert roles.tokens is not None
    batch, prompt = feeds[roles.tokens].shape
    context = feeds[roles.past[0]].shape[2] if roles.past else 0
    flags = ["--batch", batch, "--solver", "greedy", "--grid", "2x3", "--quiet"]
    if prompt == 1 and roles.past:
        flags += ["--phase", "decode", "--context", context]
    else:
        flags += ["--phase", "prefill", "--prompt", prompt, "--context", context]
    out, inputs = tmp_path / "out", tmp_path / "inputs.npz"
    assert meshc("compile", model, "--chip", "test4x4", "-o", out, *flags).code == 0
    np.savez(inputs, **feeds)
    result = meshc("run", out, "--inputs", inputs, "--quiet")
    assert result.code == 0, result.err
    with np.load(out / "outputs.npz") as file:
        got = {n: file[n] for n in file.files}
    limit = 2e-2 if name in HALF else 1e-4
    assert expected or logits is not None
    assert set(expected) <= set(got)
    for n, array in expected.items():
        assert got[n].shape == array.shape and got[n].dtype == array.dtype, n
        assert off(got[n], array) <= limit, n
    if logits is not None:
        assert got["logits"].dtype.kind == "f", "outputs.npz must hold numbers"
        assert off(got["logits"], logits) <= (3e-2 if name in HALF else 1e-3)


def off(got: Any, expected: Any) -> float:
    """Largest error, relative to the largest magnitude."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    return float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-30))
