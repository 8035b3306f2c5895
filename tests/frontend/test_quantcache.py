"""GroupQueryAttention with a cache of small integers, carried through the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from meshc.errors import InputError
from meshc.frontend import bind, load_model
from meshc.ir.compiled import CompileOptions
from meshc.pipeline import compile as compile_model
from meshc.run import verify_phase

from .models import step

HEADS, GROUPS, SIZE, WORDS = 2, 1, 16, 20
RNG = np.random.default_rng(9)


def graph(path: Path, bits: int, kind: str, scales: int | None = None, **extra: Any) -> Path:
    """One attention between an embedding and the logits."""
    width, both = HEADS * SIZE, (HEADS + 2 * GROUPS) * SIZE
    count = GROUPS * SIZE if kind == "PER_CHANNEL" else 1
    weights = {
        "table": RNG.standard_normal((WORDS, 32)),
        "w": RNG.standard_normal((32, both)) / 6,
        "out": RNG.standard_normal((width, WORDS)) / 6,
        "cos": np.cos(RNG.random((32, SIZE // 2))),
        "sin": np.sin(RNG.random((32, SIZE // 2))),
        "ks": RNG.random(scales or count) * 0.02 + (0.02 if bits == 8 else 0.2),
        "vs": RNG.random(scales or count) * 0.02 + (0.02 if bits == 8 else 0.2),
    }
    node = helper.make_node
    attention = ["packed", "", "", "past_key_values.0.key", "past_key_values.0.value", "last",
                 "total", "cos", "sin", "", "", "", "ks", "vs"]  # fmt: skip
    nodes = [
        node("Gather", ["table", "input_ids"], ["x"]),
        node("MatMul", ["x", "w"], ["packed"]),
        node("ReduceSum", ["attention_mask", "one"], ["count"], keepdims=0),
        node("Sub", ["count", "one"], ["before"]),
        node("Cast", ["before"], ["last"], to=TensorProto.INT32),
        node("Shape", ["attention_mask"], ["shape"]),
        node("Gather", ["shape", "place"], ["length"]),
        node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        node("GroupQueryAttention", attention, ["a", "present.0.key", "present.0.value"],
             domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1,
             k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits, **extra),
        node("MatMul", ["a", "out"], ["logits"]),
    ]  # fmt: skip
    cache = TensorProto.INT8 if bits == 8 else TensorProto.UINT8
    depth = SIZE if bits == 8 else SIZE // 2

    def port(name: str, dtype: int, *dims: Any) -> Any:
        return helper.make_tensor_value_info(name, dtype, dims)

    made = helper.make_graph(
        nodes,
        "cached",
        [
            port("input_ids", TensorProto.INT64, "batch_size", "sequence_length"),
            port("attention_mask", TensorProto.INT64, "batch_size", "total_sequence_length"),
            *(port(f"past_key_values.0.{n}", cache, "batch_size", GROUPS, "past_sequence_length",
                   depth) for n in ("key", "value")),
        ],
        [
            port("logits", TensorProto.FLOAT, "batch_size", "sequence_length", WORDS),
            *(port(f"present.0.{n}", cache, "batch_size", GROUPS, "total_sequence_length", depth)
              for n in ("key", "value")),
        ],
        [
            *(numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()),
            numpy_helper.from_array(np.array([1], np.int64), "one"),
            numpy_helper.from_array(np.array(1, np.int64), "place"),
        ],
    )  # fmt: skip
    ids = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(made, opset_imports=ids, ir_version=10), path)
    return path


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("bits", [4, 8])
def test_small_caches(tmp_path: Path, bits: int, kind: str, fusion: bool) -> None:
    path = graph(tmp_path / "cached.onnx", bits, kind)
    options = CompileOptions(
        chip="test4x4", phase="both", batch=2, prompt=3, context=0, max_context=9, solver="greedy",
        grid=(2, 2), fusion=fusion,
    )  # fmt: skip
    done = compile_model(path, options)
    assert done is not None
    for phase, compiled in done.phases.items():
        for b in compiled.program.buffers.values():
            if b.kind == "kv":
                assert b.dtype == ("int8" if bits == 8 else "uint8")
                assert b.capacity[2:] == (9, SIZE * bits // 8)
        result = verify_phase(done, phase)
        assert result.verify is not None and result.verify["passed"], result.verify
        if fusion:  # no copy of the cache in floats
            assert compiled.graph is not None
            made = [o.output for _, o in compiled.graph.ops() if o.core in ("map", "unpack")]
            assert not any("numbers" in n or "unpacked" in n for n in made)


@pytest.mark.parametrize(("options", "reason"), [
    ({"bits": 8, "kind": "PER_TENSOR", "scales": 3}, "with 3 scales of its keys"),
    ({"bits": 8, "kind": "NONE"}, "with scales of its cache and no k_quant_type"),
])  # fmt: skip
def test_what_is_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    path = graph(tmp_path / "cached.onnx", **options)
    with pytest.raises(InputError, match=reason):
        bind(load_model(path), step(2, 3))
