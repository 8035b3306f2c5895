"""Patterns are found in every spelling, and nothing depends on their being found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontend.decoders import Sizes, genai, standard, traced
from frontend.models import step

from meshc import pipeline
from meshc.frontend import bind, load_model
from meshc.fusion import fuse
from meshc.ir.compiled import Compiled, CompileOptions
from meshc.ir.graph import Graph
from meshc.partition import auto
from meshc.patterns import FORMS
from meshc.run import verify_phase

LLAMA = {"norm": 5, "rotary": 4, "attention": 2, "gated mlp": 2}
QK_NORM = {"attention": 2, "gated mlp": 2}  # norm and rotation of a head are one kernel
FOUND: dict[str, dict[str, int]] = {
    "llama-optimum-with_past": LLAMA,
    "llama-ptdynamo-op18-decode": LLAMA,
    "llama-ptdynamo-op18-fp16-decode": LLAMA,
    "llama-ptdynamo-op23-decode": LLAMA,
    "llama-ptscript-op17-decode": LLAMA,
    "llama-hf-op20-decode": LLAMA,
    "llama-hf-ortcpu-decode": LLAMA,
    "phi3-genai-int4-cpu": LLAMA,
    "llama-mobius-std": LLAMA,
    "llama-mobius-default": LLAMA,
    "llama-genai-fp32-cpu": LLAMA,
    "llama-genai-fp16-cuda": LLAMA,
    "mistral-genai-fp32-cpu": LLAMA,
    "qwen3-optimum-with_past": QK_NORM,
    "qwen3-genai-fp32-cpu": QK_NORM,
    "gemma2-optimum-with_past": QK_NORM | {"rotary": 4},
    "gemma3-mobius-std": QK_NORM,
    "gpt2-optimum-with_past": {"norm": 5, "attention": 2},
    "gpt2-ptscript-op14-decode": {"norm": 5, "attention": 2},
    "opt-optimum-with_past": {"norm": 5, "attention": 2},
    "phi-genai-fp32-cpu": {"rotary": 4, "attention": 2},
    "bert-optimum": {"norm": 5, "attention": 2},
}


def patterns(graph: Graph) -> Counter[str]:
    """Kernels of each pattern, repeated layers counted."""
    found: Counter[str] = Counter()
    for segment, op in graph.ops():
        if op.attr("pattern"):
            found[op.attr("pattern")] += segment.repeat
    return found


@pytest.mark.parametrize("name", FOUND)
def test_found_in_real_graphs(name: str, exported: Callable[[str], Path]) -> None:
    model = load_model(exported(f"{name}.onnx"))
    phase = "decode" if model.has_past else "prefill"
    graph = bind(
        model, step(1, 1 if model.has_past else 5, 7 if model.has_past else 0, phase)
    ).graph
    found = patterns(fuse(graph, FORMS))
    assert {k: found[k] for k in FOUND[name]} == FOUND[name]
    assert not any(patterns(fuse(graph))[k] for k in ("attention", "norm", "gated mlp"))


@pytest.mark.parametrize("spell", [genai, standard, traced])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_found_in_every_spelling(tmp_path: Path, spell: Callable[..., Path], dtype: Any) -> None:
    model = load_model(spell(tmp_path / "m.onnx", Sizes(), dtype))
    for work in (step(2, 4, 0), step(1, 1, 7, "decode")):
        found = patterns(fuse(bind(model, work).graph, FORMS))
        assert found["norm"] == 7 and found["attention"] == found["gated mlp"] == 3
        assert found["rotary"] == 6


def test_forms_are_independent(tmp_path: Path) -> None:
    graph = bind(load_model(standard(tmp_path / "m.onnx", Sizes())), step(1, 4, 0)).graph
    sizes = [sum(len(s.ops) for s in fuse(graph, forms).segments) for forms in ((), FORMS)]
    assert sizes[1] < sizes[0]
    for form, pattern in (("attention", "attention"), ("norm", "norm"), ("gated", "gated mlp")):
        found = patterns(fuse(graph, (form,)))
        assert found[pattern] and not set(found) - {pattern, "rotary", "softmax"}


ON_AND_OFF = (
    "llama-genai-fp32-cpu",
    "gemma2-optimum-with_past",
    "gpt2-mobius-std",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in ON_AND_OFF else pytest.mark.slow)
     for n in dict.fromkeys((*ON_AND_OFF, *FOUND))],
)  # fmt: skip
@pytest.mark.parametrize("recognition", [True, False], ids=["on", "off"])
def test_right_with_and_without(
    name: str, recognition: bool, build: Callable[..., Compiled]
) -> None:
    """On a true 2-D grid, tokens divided as well as heads."""
    compiled = build(model=name, grid=(2, 3), batch=2, recognition=recognition)
    for phase, done in compiled.phases.items():
        assert bool(done.plan.form) <= recognition
        result = verify_phase(compiled, phase)
        assert result.verify is not None and result.verify["passed"], result.verify


@pytest.mark.parametrize("forms", [("attention",), ("norm",), ("gated",), FORMS])
def test_each_form_is_right(
    forms: tuple[str, ...], example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form forced, whatever the planner would choose."""
    monkeypatch.setattr(pipeline, "FORMS", forms)
    monkeypatch.setattr(auto, "_better_form", lambda trial, *_: trial)
    options = CompileOptions(chip="test4x4", grid=(2, 3), prompt=5, solver="greedy")
    compiled = pipeline.compile(example, options)
    assert compiled is not None
    for phase, done in compiled.phases.items():
        assert done.plan.form == forms
        result = verify_phase(compiled, phase)
        assert result.verify is not None and result.verify["passed"], result.verify
