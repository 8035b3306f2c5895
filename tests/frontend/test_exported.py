"""The graphs that exporters wrote, against the outputs recorded with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc.errors import InputError
from meshc.frontend import Bound, Model, bind, load_model, run_oracle, workloads
from meshc.ir.dtypes import NUMPY
from meshc.ir.workload import Workload

from . import reference
from .models import error, random_feeds, step
from .test_decoders import topology

FOLDER = Path(__file__).parents[3] / "shared" / "onnx"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs ../shared/onnx beside the repository"
)
FP32 = [
    "llama-ptdynamo-op18-decode", "llama-ptdynamo-op18-prefill",
    "llama-ptdynamo-op18-noopt-prefill", "llama-ptdynamo-op18-static-prefill",
    "llama-ptdynamo-op23-decode", "llama-ptscript-op17-decode", "llama-optimum-with_past",
    "llama-hf-op20-prefill", "llama-hf-op20-decode", "llama-hf-mtd-decode",
    "llama-hf-ortcpu-decode", "llama-hf-staticcache-decode", "llama-mobius-std",
    "llama-mobius-default", "llama-genai-fp32-cpu", "mistral-genai-fp32-cpu",
    "qwen3-genai-fp32-cpu", "qwen3-optimum-with_past", "gpt2-mobius-std", "gpt2-optimum-with_past",
    "gpt2-ptscript-op14-decode", "opt-optimum-with_past", "phi-genai-fp32-cpu",
    "gemma2-optimum-with_past", "gemma3-hf-op20-prefill", "gemma3-mobius-std", "bert-optimum",
    "bert-ortoptimizer-fused",
]  # fmt: skip
HALF = [
    "llama-ptdynamo-op18-fp16-decode", "llama-genai-fp16-cuda", "llama-genai-bf16-cuda",
    "llama-mobius-bf16-std",
]  # fmt: skip


def load(name: str) -> Model:
    return load_model(FOLDER / f"{name}.onnx")


def cases(name: str) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray], Any]]:
    """(inputs, outputs, the framework's logits or None) of each recorded case."""
    data = np.load(FOLDER / f"{name}.npz")
    found = []
    for i in range(4):
        parts: list[dict[str, np.ndarray]] = []
        for side in ("in", "out"):
            start = f"case{i}/{side}/"
            parts.append({k[len(start) :]: data[k] for k in data if k.startswith(start)})
        logits = data.get(f"case{i}/torch_logits")
        if parts[0]:
            found.append((parts[0], parts[1], logits))
    return found


def typed(model: Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """bf16 is recorded as its bits or as fp32."""
    out = {}
    for name, array in feeds.items():
        dtype = NUMPY[model.roles.ports[name].dtype]
        bits = array.dtype == np.uint16
        out[name] = array.view(dtype) if bits else array.astype(dtype)
    return out


def workload_of(model: Model, feeds: dict[str, np.ndarray]) -> Workload:
    batch, prompt = feeds[model.roles.tokens or ""].shape
    context = feeds[model.roles.past[0]].shape[2] if model.has_past else 0
    phase: Any = "decode" if prompt == 1 and model.has_past else "prefill"
    if model.roles.static:
        position = int(feeds["input.cache.layers.0.cumulative_length"])
        return Workload(phase, batch, prompt, position, context)
    return Workload(phase, batch, prompt, context, context + prompt)


@pytest.mark.parametrize("name", [*FP32, *HALF])
def test_recorded_outputs(name: str) -> None:
    model = load(name)
    tolerance = 1e-4 if name in FP32 else 2e-2
    compared = 0
    for feeds, want, logits in cases(name):
        feeds = typed(model, feeds)
        bound = bind(model, workload_of(model, feeds))
        assert all(np.array_equal(a, feeds[n]) for n, a in bound.folded.items() if n in feeds)
        got = reference.interpret(bound.graph, bound.data, feeds)
        for output, array in want.items():
            bits = array.dtype == np.uint16
            wide = array.view(NUMPY["bf16"]) if bits else array
            wide = wide.astype(got[output].dtype)
            assert error(got[output], wide) <= tolerance, output
            compared += 1
        if logits is not None and not name.startswith(("mistral", "phi-")):
            wide = got["logits"].astype(np.float32)
            assert error(wide, logits.astype(np.float32)) <= tolerance
            compared += 1
    assert compared


@pytest.mark.parametrize("name", [*FP32, *HALF])
def test_layers_are_found(name: str) -> None:
    model = load(name)
    for found, workload in workloads(model).values():
        bound = bind(found, workload)
        assert [(s.name, s.repeat) for s in bound.graph.segments] == [
            ("prologue", 1), ("body", 2), ("epilogue", 1),
        ]  # fmt: skip
        bound.graph.verify()
        names = [o.name for _, o in bound.graph.ops()]
        assert len(names) == len(set(names))
        assert bound.graph.parameters > 0
        assert bound.graph.node_count == len(model.proto.graph.node)


@pytest.mark.parametrize("name", [*FP32, *HALF])
def test_topology_is_the_same_for_every_workload(name: str) -> None:
    model = load(name)
    for phase in model.phases:
        first = None
        frozen = model.roles.frozen("batch"), model.roles.frozen("new")
        for batch in (1, 3) if frozen[0] is None else (frozen[0],):
            for prompt in (1, 4) if phase == "prefill" and frozen[1] is None else (frozen[1] or 1,):
                for context in (0, 1, 16) if model.has_past else (0,):
                    spare = 5 if model.roles.static else 0
                    workload = Workload(
                        phase, batch, prompt, context, context + prompt + spare  # type: ignore[arg-type]
                    )  # fmt: skip
                    found = topology(bind(model, workload))
                    first = first or found
                    assert found == first, (batch, prompt, context)


@pytest.mark.parametrize("name", ["llama-genai-bf16-cuda", "llama-mobius-bf16-std"])
def test_oracle_widens_bf16(name: str) -> None:
    model = load(name)
    bound = bind(model, step(1, 4))
    feeds = random_feeds(model, bound)
    want, oracle = run_oracle(model, feeds)
    assert oracle == "onnxruntime, graph widened to fp32"
    assert {str(a.dtype) for a in want.values()} <= {"bfloat16", "float32"}
    got = reference.interpret(bound.graph, bound.data, feeds)
    assert max(error(got[n], a) for n, a in want.items()) < 2e-2


def test_oracle_is_named_and_refuses_in_one_sentence() -> None:
    model = load("llama-genai-fp32-cpu")
    bound = bind(model, step(1, 4))
    assert run_oracle(model, random_feeds(model, bound))[1] == "onnxruntime"
    bound = bind(model, step(2, 3, 5))
    with pytest.raises(
        InputError, match=r"^ONNX Runtime refuses to run 'llama-genai-fp32-cpu\.onnx'"
    ):
        run_oracle(model, random_feeds(model, bound))


def test_prefill_and_decode_from_two_files_share_their_weights() -> None:
    prefill, decode = load("llama-hf-op20-prefill"), load("llama-hf-op20-decode")
    found = workloads(prefill, decode_model=decode, batch=2)
    assert {p: m.name for p, (m, _) in found.items()} == {
        "prefill": "llama-hf-op20-prefill", "decode": "llama-hf-op20-decode",
    }  # fmt: skip
    assert found["prefill"][1] == Workload("prefill", 2, 16, 0, 80)
    assert found["decode"][1] == Workload("decode", 2, 1, 16, 80)

    def digests(bound: Bound) -> list[set[str]]:
        weights = [t for t in bound.graph.tensors.values() if t.kind == "WEIGHT"]
        return [{bound.data.digest(i) for i in t.instances} for t in weights]

    first, second = (digests(bind(m, w)) for m, w in found.values())
    shared = set().union(*second)
    assert sum(d <= shared for d in first) >= 9 and len(first) >= 9


def test_mixed_axes_of_one_decoder_are_folded() -> None:
    bound = bind(load("llama-optimum-with_past"), step(2, 3, 5))
    assert bound.graph.inputs == ("input_ids",)
    assert set(bound.folded) == {"attention_mask", "position_ids"} == set(bound.graph.folded_inputs)
    assert bound.folded["position_ids"].tolist() == [[5, 6, 7]] * 2
    assert bound.folded["attention_mask"].shape == (2, 8)
    assert bound.inputs == {"input_ids": ((2, 3), "int64")}
    kinds = {t.kind for t in bound.graph.tensors.values()}
    assert kinds == {"INPUT", "WEIGHT", "CONSTANT", "CACHE", "ACTIVATION", "OUTPUT"}
    assert bound.caches[0] == (
        "past_key_values.0.key", "present.0.key", (2, 2, 5, 16), "fp32",
    )  # fmt: skip
    outputs = bound.graph.outputs
    assert [o[0] for o in outputs] == [
        "logits", "present.0.key", "present.0.value", "present.1.key", "present.1.value",
    ]  # fmt: skip
    assert outputs[1][1] == outputs[3][1] and (outputs[1][2], outputs[3][2]) == (0, 1)


def test_constants_of_equal_sequences_keep_one_row() -> None:
    graph = bind(load("llama-optimum-with_past"), step(4, 3, 5)).graph
    constants = [t for t in graph.tensors.values() if t.kind == "CONSTANT"]
    assert constants and all(t.shape[0] == 1 for t in constants)


def test_static_cache_is_a_buffer_of_max_context() -> None:
    model = load("llama-hf-staticcache-decode")
    assert model.default_phase == "decode" and model.roles.static
    ((found, workload),) = workloads(model, context=6, max_context=20).values()
    bound = bind(found, workload)
    assert [c[2] for c in bound.caches] == [(1, 2, 20, 16)] * 4
    assert bound.folded["attention_mask"].sum() == 7
    assert bound.folded["input.cache.layers.0.cumulative_length"] == 6
    assert len(bound.graph.caches) == 2
    assert {bound.graph.tensors[c.past or ""].kind for c in bound.graph.caches} == {"CACHE"}


REFUSED = {
    "llama-genai-paged-fp16-cuda": (
        "Model 'llama-genai-paged-fp16-cuda.onnx' has operators in a form that is not supported: "
        "'com.microsoft:PagedAttention' because its cache lies in pages placed at run time; export "
        "with a contiguous cache (2 nodes); export it without them ('meshc ops' lists what is "
        "supported)."
    ),
    "mamba-hf-op20-decode": (
        "Model 'mamba-hf-op20-decode.onnx' is a state-space model (it carries 'recurrent' states "
        "from token to token), which meshc does not compile; give a transformer."
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    model = load(name)
    with pytest.raises(InputError) as caught:
        for found, workload in workloads(model).values():
            bind(found, workload)
    assert str(caught.value) == REFUSED[name]


def test_masks_at_run_time_where_lengths_are_needed() -> None:
    """GroupQueryAttention reads lengths; padding on the right of a prompt, and what is not in use
    of a cache."""
    model = load("llama-genai-fp32-cpu")
    for workload, mask in (
        (step(2, 4), [[1, 1, 1, 1], [1, 1, 0, 0]]),
        (step(2, 1, 5, "decode"), [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
    ):
        bound = bind(model, workload, dynamic_mask=True)
        assert bound.graph.inputs == ("input_ids", "attention_mask")
        feeds = {**random_feeds(model, bound), "attention_mask": np.array(mask, np.int64)}
        got = reference.interpret(bound.graph, bound.data, feeds)
        want, _ = run_oracle(model, feeds)
        assert error(got["logits"], want["logits"]) < 1e-4
