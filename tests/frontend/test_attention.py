"""The fused attention operators against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .models import check_node

RNG = np.random.default_rng(11)
B, H, S, T, D = 2, 4, 3, 5, 16


def r(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def qkv(tokens: int = T, groups: int = 2) -> dict[str, np.ndarray | None]:
    return {"q": r(B, H, S, D), "k": r(B, groups, tokens, D), "v": r(B, groups, tokens, D)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.onnx"


OPSETS = pytest.mark.parametrize("opset", [23, 24])


@OPSETS
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("options", [
    {}, {"is_causal": 1}, {"scale": 0.3}, {"softcap": 2.0}, {"softcap": 2.0, "is_causal": 1},
])  # fmt: skip
def test_attention(path: Path, opset: int, groups: int, options: Any) -> None:
    check_node(path, "Attention", qkv(groups=groups), opset=opset, **options)
    half: dict[str, Any] = {n: v.astype(np.float16) for n, v in qkv(groups=groups).items()}  # type: ignore[union-attr]
    check_node(path, "Attention", half, opset=opset, tolerance=5e-3, **options)


SEEN = np.array(RNG.random((S, T)) > 0.4) | (np.arange(T) == 0)


@OPSETS
@pytest.mark.parametrize("mask", [
    SEEN, r(S, T), r(H, S, T), r(B, H, S, T), r(B, 1, S, T), np.broadcast_to(SEEN, (B, 1, S, T)),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention_mask(path: Path, opset: int, mask: np.ndarray, is_causal: int) -> None:
    operands = {**qkv(), "m": mask}
    check_node(path, "Attention", operands, opset=opset, is_causal=is_causal)
    check_node(path, "Attention", operands, opset=opset, is_causal=is_causal, fixed=("m",))


@OPSETS
@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("mask", [None, r(S, S + 2)], ids=["plain", "mask"])
def test_attention_past(path: Path, opset: int, is_causal: int, mask: Any) -> None:
    operands = {**qkv(tokens=S), "m": mask, "pk": r(B, 2, 2, D), "pv": r(B, 2, 2, D)}
    check_node(path, "Attention", operands, opset=opset, outputs=3, is_causal=is_causal)


@OPSETS
def test_attention_flat(path: Path, opset: int) -> None:
    operands = {"q": r(B, S, H * D), "k": r(B, T, 2 * D), "v": r(B, T, 2 * 6)}
    check_node(path, "Attention", operands, opset=opset, q_num_heads=H, kv_num_heads=2)


@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention_valid_lengths(path: Path, is_causal: int) -> None:
    lengths = np.array([5, 4], np.int64)
    operands = {**qkv(), "m": None, "pk": None, "pv": None, "n": lengths}
    check_node(path, "Attention", operands, opset=24, fixed=("n",), is_causal=is_causal)


def grouped(
    batch: int, new: int, past: int, packed: bool, groups: int = 2
) -> dict[str, np.ndarray | None]:
    width = (H + 2 * groups) * D if packed else H * D
    return {
        "q": r(batch, new, width),
        "k": None if packed else r(batch, new, groups * D),
        "v": None if packed else r(batch, new, groups * D),
        "pk": r(batch, groups, past, D),
        "pv": r(batch, groups, past, D),
        "last": np.full(batch, past + new - 1, np.int32),
        "total": np.array(past + new, np.int32),
        "cos": r(16, D // 2),
        "sin": r(16, D // 2),
    }


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sizes", [(2, 3, 0), (2, 1, 5), (1, 3, 4)])
@pytest.mark.parametrize("options", [
    {}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}, {"local_window_size": 2},
    {"softcap": 3.0}, {"scale": 0.2},
])  # fmt: skip
def test_group_query_attention(path: Path, packed: bool, sizes: Any, options: Any) -> None:
    operands = grouped(*sizes, packed)
    if not options.get("do_rotary"):
        del operands["cos"], operands["sin"]
    check_node(
        path, "GroupQueryAttention", operands, outputs=3, domain="com.microsoft",
        fixed=("last", "total", "cos", "sin"), num_heads=H, kv_num_heads=2, **options,
    )  # fmt: skip


@pytest.mark.parametrize("groups", [1, 4])
def test_group_query_attention_other_groups(path: Path, groups: int) -> None:
    check_node(
        path, "GroupQueryAttention", grouped(1, 3, 4, True, groups), outputs=3,
        domain="com.microsoft", fixed=("last", "total", "cos", "sin"), num_heads=H,
        kv_num_heads=groups, do_rotary=1,
    )  # fmt: skip


def test_group_query_attention_bias_and_positions(path: Path) -> None:
    operands = grouped(2, 1, 5, True)
    operands["p"] = np.array([[7], [7]], np.int64)
    operands["bias"] = r(2, 1, 1, 6)
    check_node(
        path, "GroupQueryAttention", operands, outputs=3, domain="com.microsoft",
        fixed=("last", "total", "cos", "sin", "p"), num_heads=H, kv_num_heads=2, do_rotary=1,
    )  # fmt: skip


MS: Any = {"domain": "com.microsoft", "num_heads": H}


@pytest.mark.parametrize("options", [{}, {"unidirectional": 1}, {"scale": 0.4}])
def test_multi_head_attention(path: Path, options: Any) -> None:
    flat = {"q": r(B, S, H * D), "k": r(B, S, H * D), "v": r(B, S, H * D)}
    check_node(path, "MultiHeadAttention", flat, **MS, **options)
    biased = {**flat, "b": r(3 * H * D)}
    check_node(path, "MultiHeadAttention", biased, **MS, **options)
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    check_node(path, "MultiHeadAttention", {**biased, "m": mask}, **MS, **options)
    past = {**flat, "b": None, "m": None, "a": r(1, H, S, S + 2)}
    past |= {"pk": r(B, H, 2, D), "pv": r(B, H, 2, D)}
    check_node(path, "MultiHeadAttention", past, outputs=3, **MS, **options)


@pytest.mark.parametrize("options", [{}, {"unidirectional": 1}])
def test_packed_attention(path: Path, options: Any) -> None:
    operands = {"x": r(B, S, 24), "w": r(24, 3 * H * D) / 5, "b": r(3 * H * D)}
    check_node(path, "Attention", operands, **MS, **options)
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    check_node(path, "Attention", {**operands, "m": mask}, **MS, **options)
