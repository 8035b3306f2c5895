"""The quantised graphs that exporters wrote, against ONNX Runtime on the graphs as written."""

from __future__ import annotations

import numpy as np
import pytest

from meshc.frontend import bind, load_model, rounding_spread, run_oracle, workloads
from meshc.fusion import fuse
from meshc.run import tolerance

from . import reference
from .models import random_feeds
from .test_decoders import topology
from .test_exported import FOLDER, cases, error, load, typed, workload_of

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs ../shared/onnx beside the repository"
)
FOUR_BITS = [
    "llama-genai-int4-cpu", "llama-genai-int4-cuda", "llama-genai-int4-qdq",
    "phi3-genai-int4-cpu", "extdata-llama-genai-int4/model",
]  # fmt: skip
NAMES = [*FOUR_BITS, "llama-genai-kvint8-cpu", "llama-ortquant-qdq-int8"]


@pytest.mark.parametrize("name", NAMES)
def test_graphs_as_written(name: str) -> None:
    model = load(name)
    for found, workload in workloads(model, batch=1, prompt=3, context=4).values():
        bound = bind(found, workload)
        feeds = random_feeds(model, bound)
        got = reference.interpret(bound.graph, bound.data, feeds)
        want, _ = run_oracle(found, feeds)
        spread = rounding_spread(found, feeds, want)
        for output, array in want.items():
            scale = max(float(np.abs(array.astype(np.float32)).max()), 1e-9)
            limit = tolerance(bound.graph) + spread.get(output, 0.0) / scale
            assert error(got[output], array) <= limit, output


@pytest.mark.parametrize("name", ["llama-genai-kvint8-cpu", "llama-ortquant-qdq-int8"])
def test_recorded_outputs(name: str) -> None:
    """Of graphs whose recording rounded nothing else than they do."""
    model = load(name)
    for feeds, recorded, _ in cases(name):
        feeds = typed(model, feeds)
        bound = bind(model, workload_of(model, feeds))
        got = reference.interpret(bound.graph, bound.data, feeds)
        for output, array in recorded.items():
            step = 0.02 if array.dtype == np.int8 or "qdq" in name else 1e-4
            assert error(got[output], array) <= step, output


@pytest.mark.parametrize("name", FOUR_BITS)
def test_weights_stay_packed(name: str) -> None:
    model = load_model(FOLDER / f"{name}.onnx")
    first = None
    for batch, prompt, context in ((1, 1, 0), (2, 4, 3)):
        (_, workload), *_ = workloads(
            model, phase="prefill", batch=batch, prompt=prompt, context=context
        ).values()
        bound = bind(model, workload)
        first = first or topology(bound)
        assert topology(bound) == first
    graph = fuse(bound.graph)
    bits = [o.attr("quantised", 0) for _, o in graph.ops()]
    assert bits.count(4) == 6  # five in the repeated layer, and the head
    assert [s.repeat for s in graph.segments] == [1, 2, 1]
    for t in graph.tensors.values():  # beside the packed ones only norms, scales and the embedding
        if t.kind == "WEIGHT" and t.dtype != "uint8" and "embed" not in t.name:
            assert t.elements <= 160 * 4, t
