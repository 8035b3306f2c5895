"""Every spelling of a cache through the whole compiler: verified, and generating what ONNX Runtime
generates when the caches are handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from meshc import frontend
from meshc.frontend.binding import bound_shape
from meshc.generation import generate
from meshc.ir.compiled import CompileOptions
from meshc.ir.workload import Workload
from meshc.pipeline import compile as compile_model
from meshc.run import verify_phase

from .caches import SPELLINGS, WINDOW, spelled

QUICK = ("keys bhds", "turned", "model stack", "scatter nd", "one-hot")
ROOM = 12
PROMPT, NEW = [7, 30, 2, 19, 5], 4


def loop(path: Path, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding with ONNX Runtime, every present handed to its past."""
    model = frontend.load_model(path)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in model.outputs]
    pasts = model.roles.pasts
    held: dict[str, np.ndarray] = {}
    found: list[int] = []
    fed, context = prompt, 0
    for _ in range(count):
        window = {"window": WINDOW}.items() & {(d, WINDOW) for p in model.inputs for d in p.dims}
        step = Workload("prefill", 1, len(fed), context, ROOM, tuple(window))
        feeds: dict[str, Any] = dict(frontend.bind(model, step).folded)
        feeds["input_ids"] = np.array([fed], np.int64)
        for name in pasts:
            shape, _ = bound_shape(model, model.roles.ports[name], step, [])
            feeds[name] = held.get(name, np.zeros(shape, np.float32))
        results = dict(zip(names, session.run(names, feeds), strict=True))
        held = {n: results[p.present] for n, p in pasts.items() if p.present is not None}
        context += len(fed)
        found.append(int(results["logits"][0, -1].argmax()))
        fed = found[-1:]
    return found


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SPELLINGS]
)
@pytest.mark.parametrize("fusion", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_verified_and_generating(tmp_path: Path, name: str, fusion: bool) -> None:
    path = spelled(tmp_path / "m.onnx", SPELLINGS[name])
    options = CompileOptions(
        chip="test4x4", phase="both", prompt=len(PROMPT), max_context=ROOM, solver="greedy",
        grid=(2, 3), fusion=fusion,
        dims=(("window", WINDOW),) if name == "window" else (),
    )  # fmt: skip
    done = compile_model(path, options)
    assert done is not None
    for phase in done.phases:
        verify = verify_phase(done, phase).verify
        assert verify is not None and verify["passed"], verify
    kinds = {b.kind for p in done.phases.values() for b in p.program.buffers.values()}
    assert "kv" in kinds
    assert [g.token for g in generate(done, PROMPT, NEW)] == loop(path, PROMPT, NEW)


@pytest.mark.parametrize("fusion", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_several_sequences_below_the_longest_context(example: Path, fusion: bool) -> None:
    """The mask's sequences and tokens are flattened into one dimension, whose parts would be of
    another size at every context."""
    done = compile_model(
        example,
        CompileOptions(
            "test4x4", solver="greedy", phase="decode", batch=2, context=5, max_context=7,
            dynamic_mask=True, fusion=fusion,
        ),
    )  # fmt: skip
    assert done is not None
    found = verify_phase(done, "decode").verify
    assert found is not None and found["passed"], found
    flat = [
        op
        for _, outer in done.phases["decode"].graph.ops()  # type: ignore[union-attr]
        for op in outer.body or (outer,)
        if op.attr("loose") == ((1,), (0,))
    ]
    assert flat
