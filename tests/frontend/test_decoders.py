"""Whole decoders of many sizes: right against ONNX Runtime, layers found, topology steady."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc.frontend import Bound, bind, load_model

from .decoders import Sizes, genai, standard, traced
from .models import check, step

SPELLINGS = pytest.mark.parametrize("spell", [genai, standard, traced])
SIZES = {
    "grouped": Sizes(),
    "multi-head": Sizes(groups=4),
    "multi-query": Sizes(groups=1, layers=2),
    "odd": Sizes(layers=5, heads=6, groups=3, hidden=37, inner=29, vocab=41),
    "one layer": Sizes(layers=1),
    "hidden is head": Sizes(hidden=16, heads=1, groups=1, layers=4, inner=16),
}
STEPS = [step(1, 3, 0), step(2, 4, 0), step(1, 1, 0), step(3, 1, 7, "decode"), step(1, 2, 5)]


@SPELLINGS
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_outputs_and_layers(tmp_path: Path, spell: Callable[..., Path], sizes: Sizes) -> None:
    model = load_model(spell(tmp_path / "m.onnx", sizes))
    for workload in STEPS:
        bound = check(model, workload)
        repeats = [s.repeat for s in bound.graph.segments]
        assert max(repeats) == sizes.layers
        assert len(bound.caches) == 2 * sizes.layers
        pairs = [(f"past_key_values.{i}.{p}", f"present.{i}.{p}")
                 for i in range(sizes.layers) for p in ("key", "value")]  # fmt: skip
        assert [c[:2] for c in bound.caches] == pairs
        if sizes.layers > 1:
            assert len(bound.graph.caches) == 2
            for pair in bound.graph.caches:
                assert pair.past is not None
                assert bound.graph.tensors[pair.past].instances[1].startswith("past_key_values.1")
                assert pair.axis == 2


@SPELLINGS
def test_half_precision(tmp_path: Path, spell: Callable[..., Path]) -> None:
    model = load_model(spell(tmp_path / "m.onnx", Sizes(), np.float16))
    for workload in STEPS:
        check(model, workload, tolerance=1e-2)


@SPELLINGS
def test_without_fusion_the_result_is_the_same(tmp_path: Path, spell: Callable[..., Path]) -> None:
    model = load_model(spell(tmp_path / "m.onnx", Sizes()))
    few, many = (check(model, STEPS[1], fuse=f).graph for f in (True, False))
    assert sum(len(s.ops) for s in few.segments) < sum(len(s.ops) for s in many.segments)


def topology(bound: Bound) -> Any:
    """Everything that must not depend on batch, prompt and context."""
    graph = bound.graph
    keep = ("steps", "perm", "fn", "axes", "axis", "transpose_a", "transpose_b")
    ops = [
        (
            s.name,
            s.repeat,
            s.carried,
            o.name,
            o.kind,
            o.inputs,
            o.output,
            *(a for a in o.attrs if a[0] in keep),
        )
        for s, o in graph.ops()
    ]
    tensors = [(t.name, t.kind, t.dtype, t.instances) for t in graph.tensors.values()]
    return ops, tensors, graph.outputs, graph.caches, tuple(bound.folded)


@SPELLINGS
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["grouped", "multi-query", "hidden is head"])
def test_topology_is_the_same_for_every_workload(
    tmp_path: Path, spell: Callable[..., Path], phase: Any, name: str
) -> None:
    model = load_model(spell(tmp_path / "m.onnx", SIZES[name]))
    prompts = (1,) if phase == "decode" else (1, 4, 16)
    first = topology(bind(model, step(2, prompts[-1], 3, phase)))
    for batch in (1, 4, 16):
        for prompt in prompts:
            for context in (0, 1, 4, 16):
                assert topology(bind(model, step(batch, prompt, context, phase))) == first


def test_prefill_without_past_appends_what_it_puts_out(tmp_path: Path) -> None:
    model = load_model(traced(tmp_path / "m.onnx", Sizes(), past=False))
    assert model.phases == ("prefill",)
    bound = check(model, step(2, 5))
    assert [c[:3] for c in bound.caches][:2] == [
        (None, "present.0.key", (2, 2, 0, 16)),
        (None, "present.0.value", (2, 2, 0, 16)),
    ]
    body = next(s for s in bound.graph.segments if s.name == "body")
    assert body.repeat == 3
    assert sum(o.kind == "append" and len(o.inputs) == 1 for o in body.ops) == 2


def test_nothing_copies_the_cache(tmp_path: Path) -> None:
    """Appended keys go through views only, repeated heads and factors are moved away."""
    for spell in (genai, standard, traced):
        model = load_model(spell(tmp_path / "m.onnx", Sizes()))
        graph = bind(model, step(1, 1, 9, "decode")).graph
        made = {o.output: o for _, o in graph.ops()}
        for _, op in graph.ops():
            if op.kind != "matmul":
                continue
            source = made.get(op.inputs[1])
            while source is not None and source.kind == "reshape":
                source = made.get(source.inputs[0])
            assert source is None or source.kind == "append"
        assert not any(o.kind == "expand" for _, o in graph.ops())


def test_masks_and_positions_at_run_time(tmp_path: Path) -> None:
    for spell in (standard, traced):
        model = load_model(spell(tmp_path / "m.onnx", Sizes()))
        bound = bind(model, step(2, 3, 4), dynamic_mask=True)
        assert bound.graph.inputs == ("input_ids", "attention_mask", "position_ids")
        assert [(s.name, s.repeat) for s in bound.graph.segments][1] == ("body", 3)
        from . import reference
        from .models import error, random_feeds, run_oracle

        feeds = random_feeds(model, bound)
        feeds["attention_mask"] = np.array([[0, 0, 1, 1, 1, 1, 1], [1] * 7], np.int64)
        feeds["position_ids"] = np.array([[2, 3, 4], [4, 5, 6]], np.int64)
        got = reference.interpret(bound.graph, bound.data, feeds)
        want, _ = run_oracle(model, feeds)
        assert max(error(got[n], want[n]) for n in want) < 1e-5
