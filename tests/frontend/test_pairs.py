"""A decode graph of another model is refused, whatever makes it another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from meshc.errors import InputError
from meshc.ir.compiled import CompileOptions
from meshc.pipeline import compile as compile_model


def changed(path: Path, example: Path, change: Any) -> Path:
    """The example with its weights changed."""
    model = onnx.load(str(example))
    for tensor in model.graph.initializer:
        array = change(tensor.name, numpy_helper.to_array(tensor))
        if array is not None:
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    onnx.save(model, path)
    return path


def paired(prefill: Path, decode: Path) -> None:
    options = CompileOptions(
        "test4x4", solver="greedy", prompt=3, max_context=6, decode_model=str(decode)
    )
    compile_model(prefill, options, until="partition")


def refusal(prefill: Path, decode: Path) -> str:
    with pytest.raises(InputError) as error:
        paired(prefill, decode)
    begin = (
        f"The prefill graph '{prefill.name}' and the decode graph '{decode.name}' are not of one "
        "model: "
    )
    end = "; give the decode graph of the same model with --decode-model."
    assert str(error.value).startswith(begin) and str(error.value).endswith(end), error.value
    return str(error.value)[len(begin) : -len(end)]


def test_one_model_in_two_files(tmp_path: Path, example: Path) -> None:
    same = changed(tmp_path / "decode.onnx", example, lambda name, array: None)
    paired(example, same)


def test_a_weight_of_one_name_and_other_values(tmp_path: Path, example: Path) -> None:
    def tuned(name: str, array: np.ndarray) -> Any:
        return array + np.float32(1) if name == "model.norm.weight" else None

    other = changed(tmp_path / "decode.onnx", example, tuned)
    assert refusal(example, other) == (
        "weight 'model.norm.weight' has other values in the one than in the other"
    )


def test_matrices_without_names_of_their_own(tmp_path: Path, example: Path) -> None:
    def tuned(name: str, array: np.ndarray) -> Any:
        return array * np.float32(1.5) if name.startswith("onnx::MatMul") else None

    other = changed(tmp_path / "decode.onnx", example, tuned)
    assert " elements of the decode graph's weights, those of 'onnx::MatMul_" in refusal(
        example, other
    )


def test_other_caches(exported: Any, example: Path) -> None:
    assert refusal(example, exported("gpt2-optimum-with_past.onnx")) == (
        "the one puts out a cache of [1, 2, 16] per token in fp32, the other reads one of "
        "[1, 4, 16] in fp32"
    )


def test_a_relative_with_equal_shapes(exported: Any, example: Path) -> None:
    found = refusal(example, exported("gemma2-optimum-with_past.onnx"))
    assert found.endswith("are not in the prefill graph")


def test_another_exporter_of_the_same_model(exported: Any) -> None:
    paired(exported("llama-hf-op20-prefill.onnx"), exported("llama-ptscript-op17-decode.onnx"))
