"""Models as onnxruntime.quantization writes them, made from the example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from test_generate import Loop

from meshc.emulator import emulate
from meshc.generation import generate
from meshc.ir.compiled import Compiled
from meshc.run import verify_phase

Build = Callable[..., Compiled]
Make = Callable[[Path, Path], None]


class Random(CalibrationDataReader):  # type: ignore[misc]
    """Two calls of the example with random ids and an empty or random past."""

    def __init__(self) -> None:
        self.feeds: Iterator[dict[str, np.ndarray]] = iter([_feeds(5, 0), _feeds(3, 4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def _feeds(new: int, past: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(new)
    caches = {
        f"past_key_values.{i}.{n}": rng.standard_normal((1, 2, past, 16), np.float32)
        for i in range(2)
        for n in ("key", "value")
    }
    return {
        "input_ids": rng.integers(0, 160, (1, new)),
        "attention_mask": np.ones((1, past + new), np.int64),
        "position_ids": np.arange(past, past + new)[None],
        **caches,
    }


def _nbits(bits: int, symmetric: bool, qdq: bool = False) -> Make:
    def make(source: Path, target: Path) -> None:
        ops = ("MatMul", "Gather") if bits == 4 and not qdq else ("MatMul",)
        quantiser = MatMulNBitsQuantizer(
            onnx.load(source), bits=bits, block_size=32, is_symmetric=symmetric,
            quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
            op_types_to_quantize=ops,
        )  # fmt: skip
        quantiser.process()
        quantiser.model.save_model_to_file(str(target), False)

    return make


def _dynamic(**options: Any) -> Make:
    return lambda source, target: quantize_dynamic(str(source), str(target), **options)


def _static(**options: Any) -> Make:
    return lambda source, target: quantize_static(str(source), str(target), Random(), **options)


INT8, UINT8, UINT16 = QuantType.QInt8, QuantType.QUInt8, QuantType.QUInt16
KINDS: dict[str, Make] = {
    "nbits4": _nbits(4, True),
    "nbits4-zeros": _nbits(4, False),
    "nbits8": _nbits(8, False),
    "nbits4-qdq": _nbits(4, False, qdq=True),
    "dynamic": _dynamic(weight_type=INT8),
    "dynamic-columns": _dynamic(weight_type=UINT8, per_channel=True),
    "qdq": _static(quant_format=QuantFormat.QDQ, activation_type=UINT8, weight_type=INT8),
    "qdq-columns": _static(quant_format=QuantFormat.QDQ, activation_type=INT8, weight_type=INT8,
                           per_channel=True),
    "qdq16": _static(quant_format=QuantFormat.QDQ, activation_type=UINT16, weight_type=UINT8,
                     extra_options={"UseQDQContribOps": True}),
    "qoperator": _static(quant_format=QuantFormat.QOperator, activation_type=UINT8,
                         weight_type=UINT8),
}  # fmt: skip
QUICK = ("nbits4", "dynamic")


@pytest.fixture(scope="session")
def quantised(example: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a kind → the example quantised that way."""
    folder = tmp_path_factory.mktemp("quantised")

    def path(kind: str) -> Path:
        target = folder / f"{kind}.onnx"
        if not target.exists():
            KINDS[kind](example, target)
        return target

    return path


@pytest.mark.parametrize(
    "kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_quantised_models_verify(quantised: Callable[[str], Path], build: Build, kind: str) -> None:
    for options in ({"phase": "decode", "context": 5}, {"phase": "prefill", "batch": 2,
                                                        "prompt": 3}):  # fmt: skip
        if kind in QUICK and options["phase"] == "prefill":
            continue
        compiled = build(quantised(kind), "test8x8", grid=(2, 3), **options)
        assert compiled.phases[str(options["phase"])].graph.segments[1].repeat == 2  # the layers
        result = verify_phase(compiled, str(options["phase"]))
        assert result.verify is not None and result.verify["passed"], result.verify


def _weights(compiled: Compiled) -> int:
    return compiled.memory.weight_bytes


def test_four_bit_weights_take_an_eighth(
    quantised: Callable[[str], Path], build: Build, example: Path
) -> None:
    """And a scale of four bytes for each block of 32."""
    options: dict[str, Any] = {"grid": (1, 1), "phase": "decode", "context": 5,
                               "overrides": ("core.sram_bytes=4000000",)}  # fmt: skip
    small = build(quantised("nbits4"), "test8x8", **options)
    assert _weights(small) < (1 / 8 + 1 / 32 + 0.01) * _weights(
        build(example, "test8x8", **options)
    )


def test_timing_is_the_same_with_tensors_and_without(
    quantised: Callable[[str], Path], build: Build
) -> None:
    compiled = build(quantised("nbits4"), "test8x8", grid=(2, 3), phase="decode", context=5)
    alone = emulate(compiled.phases["decode"].program, compiled.chip)
    assert verify_phase(compiled, "decode").trace.cycles == alone.cycles


def test_prefill_and_decode_share_packed_weights(
    quantised: Callable[[str], Path], build: Build
) -> None:
    """And generate the tokens that ONNX Runtime does."""
    path = quantised("nbits4")
    compiled = build(path, "test8x8", grid=(2, 3), phase="both", prompt=4, max_context=8)
    places = [
        {(b.tensor, b.offset) for b in p.program.buffers.values() if b.kind == "weight"}
        for p in compiled.phases.values()
    ]
    packed = {t for t, _ in places[0] & places[1] if "Q4" in t}
    assert len(packed) >= 7  # of one layer, which is stored once
    ids = [3, 77, 12, 140]
    tokens = [g.token for g in generate(compiled, ids, 2)]
    assert tokens == Loop(path, path).ids(ids, 2)
