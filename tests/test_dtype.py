"""`--dtype`: formats of stored weights, the parts that they belong to, and their proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from meshc import frontend
from meshc.chips import load_chip
from meshc.frontend.storage import parse, parts, rounded
from meshc.ir.compiled import Compiled
from meshc.ir.dtypes import BLOCK_FORMATS, size_bytes
from meshc.ops import timing
from meshc.ops.blocks import from_blocks, to_blocks
from meshc.ops.record import Work
from meshc.run import verify_phase


@pytest.mark.parametrize("form", sorted(BLOCK_FORMATS))
def test_a_block_format_is_as_near_as_its_bits_allow(form: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 70)).astype(np.float32) * 10.0 ** rng.integers(
        -3, 4, (5, 1)
    )  # within fp16's normal scales
    x = x.astype(np.float32)
    f = BLOCK_FORMATS[form]
    blocks = to_blocks(x, form)
    assert blocks.shape == (5, -(-70 // f.elements))
    assert blocks.nbytes == blocks.size * f.bytes == blocks.size * size_bytes(f.dtype)
    back = from_blocks(blocks, form)
    assert not back[:, 70:].any()
    error = np.abs(back[:, :70] - x)
    for start in range(0, 70, f.elements):
        part = x[:, start : start + f.elements]
        # Half a step of the largest element's grid, or a whole one where it is cut off at the top.
        step = np.abs(part).max(axis=1) / ((1 << (f.bits - 1)) - 1)
        if form.startswith("bfp"):
            step = 2.0 ** (np.floor(np.log2(np.abs(part).max(axis=1))) - f.bits + 2) * 2
        wrong = error[:, start : start + f.elements].max(axis=1)
        assert (wrong <= step * 0.502 + 1e-7).all()
    if form.startswith("bfp"):
        assert np.array_equal(from_blocks(to_blocks(back, form), form), back)


def test_zeros_and_plain_types() -> None:
    for form in BLOCK_FORMATS:
        assert not from_blocks(to_blocks(np.zeros((2, 33)), form), form).any()
    x = np.linspace(-2, 3, 40, dtype=np.float32)
    assert np.array_equal(rounded(x, "bf16"), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_how_the_flag_is_read() -> None:
    assert parse("keep") == {}
    assert parse("bfp8") == dict.fromkeys(("attention", "mlp", "head"), "bfp8")
    assert parse("mlp=bfp4,attention=bfp8") == {"attention": "bfp8", "mlp": "bfp4"}
    assert parse("bfp8,head=keep") == {"attention": "bfp8", "mlp": "bfp8"}


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        (
            "experts=bfp4",
            "--dtype names the part 'experts', which is not known; the parts are attention, mlp, "
            "head.",
        ),
        (
            "mlp=fp4",
            "--dtype names the type 'fp4', which is not known; the types are keep, fp32, fp16, "
            "bf16, int8, int4, bfp8, bfp4.",
        ),
    ],
)
def test_what_is_refused(
    meshc: Callable[..., Any], example: Path, tmp_path: Path, flag: str, sentence: str
) -> None:
    out = tmp_path / "out"
    done = meshc("compile", example, "--chip", "test4x4", "--dtype", flag, "-o", out)
    assert done.code == 2
    assert done.sentence == sentence
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("llama-optimum-with_past", {"attention": 4, "mlp": 3, "head": 1}),
        ("gpt2-optimum-with_past", {"attention": 2, "mlp": 2, "head": 1}),
        ("t5-optimum-encoder_model", {"attention": 4, "mlp": 3}),
        ("mixtral-hf-op20-decode", {"attention": 4, "mlp": 2, "head": 1}),  # its router stays
    ],
)
def test_parts_are_told_by_structure(
    exported: Callable[[str], Path], name: str, wanted: dict[str, int]
) -> None:
    model = frontend.load_model(exported(f"{name}.onnx"))
    m, workload = next(iter(frontend.workloads(model).values()))
    found = [part for part, _ in parts(frontend.bind(m, workload).graph).values()]
    assert {part: found.count(part) for part in found} == wanted


@pytest.mark.parametrize("dtype", ["bfp8", "mlp=bfp4,attention=bfp8,head=int8", "int4", "fp16"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_verified_against_weights_quantised_alike(
    build: Callable[..., Compiled], dtype: str, phase: str
) -> None:
    compiled = build(dtype=dtype, grid=(2, 2))
    kept = build(grid=(2, 2))
    assert compiled.memory.weight_bytes < kept.memory.weight_bytes
    found = verify_phase(compiled, phase).verify
    assert found is not None
    assert found["passed"] and found["oracle"] == "onnxruntime, weights quantised and dequantised"
    # What comes out differs from the model's own result by more than rounding does.
    a, b = (verify_phase(c, phase, check=False).trace.outputs for c in (compiled, kept))
    assert a is not None and b is not None
    assert np.abs(a["logits"] - b["logits"]).max() > 1e-4 * np.abs(b["logits"]).max()


def test_tied_and_fused_weights(build: Callable[..., Compiled]) -> None:
    """A table that is transposed into the head is stored twice: for rows, and for the product."""
    compiled = build("opt-optimum-with_past", dtype="bfp8", grid=(2, 2), phase="decode")
    program = compiled.phases["decode"].program
    stored = {b.tensor: b.dtype for b in program.buffers.values() if b.kind == "weight"}
    assert stored["model.decoder.embed_tokens.weight_transposed as bfp8"] == "bfp8x16"
    assert stored["model.decoder.embed_tokens.weight"] == "fp32"
    found = verify_phase(compiled, "decode").verify
    assert found is not None and found["passed"]


def test_an_engine_multiplies_block_floats_itself_where_it_can() -> None:
    n150, plain = load_chip("n150").core, load_chip("test4x4").core
    work = Work(((32, 64, 64, 1),), "fp16", stored="bfp4", restore_ops=2 * 64 * 64)
    assert timing.engine_dtype(n150, work) == "bfp4"
    assert timing.compute_cycles(n150, work) == timing.matmul_cycles(n150, work)
    bf16 = replace(work, stored="")
    assert timing.matmul_cycles(n150, work) < timing.matmul_cycles(n150, bf16)
    assert timing.engine_dtype(plain, work) == "fp16"
    restore = 2 * 64 * 64 / plain.vector_ops_per_cycle["fp32"]
    assert timing.compute_cycles(plain, work) == timing.matmul_cycles(plain, work) + restore
