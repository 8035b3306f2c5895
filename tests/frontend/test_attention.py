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


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_attention_scores_as_an_output(path: Path, mode: int) -> None:
    operands = {**qkv(), "m": r(S, T) if mode == 2 else SEEN}
    check_node(path, "Attention", operands, opset=24, outputs=4, used=(True, False, False, True),
               softcap=1.5, qk_matmul_output_mode=mode)  # fmt: skip
    check_node(path, "Attention", qkv(), opset=23, outputs=4, used=(True, False, False, True),
               is_causal=1, qk_matmul_output_mode=mode)  # fmt: skip
    half = {n: v.astype(np.float16) for n, v in qkv().items()}
    check_node(path, "Attention", half, opset=23, outputs=4, used=(True, False, False, True),
               is_causal=1, qk_matmul_output_mode=mode, tolerance=2e-2)  # fmt: skip
    hidden = {**qkv(), "m": SEEN & (np.arange(S) > 0)[:, None]}
    check_node(path, "Attention", hidden, opset=24, outputs=4, used=(True, False, False, True),
               is_causal=1, qk_matmul_output_mode=mode)  # fmt: skip


@OPSETS
@pytest.mark.parametrize("fixed", [(), ("m",)])
def test_a_row_that_sees_nothing_is_zero(path: Path, opset: int, fixed: tuple[str, ...]) -> None:
    mask = np.array([[0, 0, 0, 0, 0], [1, 0, 0, 1, 0], [0, 1, 1, 1, 1]], bool)
    check_node(path, "Attention", {**qkv(), "m": mask}, opset=opset, fixed=fixed)
    floats = np.where(mask, 0.5, -np.inf).astype(np.float32)
    check_node(path, "Attention", {**qkv(), "m": floats}, opset=opset, fixed=fixed)


@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("fixed", [(), ("n",)])
def test_attention_lengths_at_run_time(path: Path, is_causal: int, fixed: Any) -> None:
    lengths = np.array([2, 4], np.int64)
    operands = {**qkv(), "m": None, "pk": None, "pv": None, "n": lengths}
    check_node(path, "Attention", operands, opset=24, fixed=fixed, is_causal=is_causal)


GROUPED: Any = {"domain": "com.microsoft", "num_heads": H, "kv_num_heads": 2}
SIZES = ("last", "total", "cos", "sin")


def plain(batch: int, new: int, past: int, size: int | None = None) -> dict[str, Any]:
    """Operands without rotary tables; `size`: of the cache, where it is a buffer."""
    operands: dict[str, Any] = grouped(batch, new, past, True)
    operands |= {"cos": None, "sin": None}
    if size is not None:
        operands |= {"pk": r(batch, 2, size, D), "pv": r(batch, 2, size, D)}
    return operands


@pytest.mark.parametrize("options", [{}, {"local_window_size": 2}, {"softcap": 2.0}])
@pytest.mark.parametrize("sizes", [(2, 1, 5, 9), (1, 3, 4, 8), (2, 1, 5, 6)])
def test_grouped_attention_over_a_shared_buffer(path: Path, sizes: Any, options: Any) -> None:
    check_node(path, "GroupQueryAttention", plain(*sizes), outputs=3, fixed=SIZES, **GROUPED,
               **options)  # fmt: skip


@pytest.mark.parametrize("fixed", [("total", "cos", "sin"), SIZES])
@pytest.mark.parametrize("options", [{}, {"local_window_size": 3}, {"do_rotary": 1}])
def test_grouped_attention_of_sequences_of_different_lengths(
    path: Path, fixed: Any, options: Any
) -> None:
    operands = plain(2, 1, 5) | {"last": np.array([5, 3], np.int32)}
    if options.get("do_rotary"):
        operands |= {"cos": r(16, D // 2), "sin": r(16, D // 2)}
    check_node(path, "GroupQueryAttention", operands, outputs=3, fixed=fixed, **GROUPED,
               **options)  # fmt: skip
    prompt = plain(2, 4, 0) | {"last": np.array([3, 1], np.int32)}
    check_node(path, "GroupQueryAttention", prompt, outputs=3, fixed=fixed, **GROUPED)


@pytest.mark.parametrize("options", [
    {"smooth_softmax": 1}, {"causal": 0}, {"qk_output": 1}, {"qk_output": 2},
    {"qk_output": 1, "softcap": 2.0},
])  # fmt: skip
@pytest.mark.parametrize("sizes", [(1, 3, 0), (2, 1, 5)])
def test_grouped_attention_options(path: Path, sizes: Any, options: Any) -> None:
    outputs = 4 if "qk_output" in options else 3
    check_node(path, "GroupQueryAttention", plain(*sizes), outputs=outputs, fixed=SIZES, **GROUPED,
               **options)  # fmt: skip


@pytest.mark.parametrize("groups", [2, 4])
def test_grouped_attention_with_sinks(path: Path, groups: int) -> None:
    operands = grouped(1, 3, 4, True, groups) | {"cos": None, "sin": None}
    operands |= {"p": None, "bias": r(1, 1, 3, 7), "sink": r(H)}
    check_node(path, "GroupQueryAttention", operands, outputs=3, fixed=SIZES,
               **{**GROUPED, "kv_num_heads": groups})  # fmt: skip


def test_positions_of_a_prompt_count_from_the_first(path: Path) -> None:
    operands = grouped(2, 3, 0, True) | {"p": np.array([[4, 9, 1], [7, 7, 7]], np.int64)}
    for fixed in (SIZES, (*SIZES, "p")):
        check_node(path, "GroupQueryAttention", operands, outputs=3, fixed=fixed, do_rotary=1,
                   **GROUPED)  # fmt: skip


@pytest.mark.parametrize("size", [4, 7])
@pytest.mark.parametrize("step", [(0, 3), (0, 12), (3, 1), (7, 1), (9, 1), (11, 2)])
def test_grouped_attention_over_a_window(path: Path, size: int, step: tuple[int, int]) -> None:
    past, new = step
    operands = plain(1, new, past, size)
    check_node(path, "GroupQueryAttention", operands, outputs=3, fixed=SIZES,
               local_window_size=4, sliding_window_cache=1, **GROUPED)  # fmt: skip
    from meshc.frontend.lower_grouped import rows_held

    assert min(past + new, 4) <= rows_held(past + new, 4, size) <= min(past + new, size)


PADDING = [
    np.array([3, 2], np.int32), np.array([3, 2, 0, 3, 6, 0, 3, 6], np.int32),
    np.array([[1, 1, 0], [0, 1, 1]], np.int32),
    np.array([[[1, 0, 1], [1, 1, 0], [0, 0, 1]]] * 2, np.int32),
]  # fmt: skip


@pytest.mark.parametrize("mask", PADDING, ids=lambda m: f"{m.ndim}d{m.size}")
@pytest.mark.parametrize("fixed", [(), ("m",)])
def test_padding_masks(path: Path, mask: np.ndarray, fixed: Any) -> None:
    flat = {"q": r(B, S, H * D), "k": r(B, S, H * D), "v": r(B, S, H * D), "b": None, "m": mask}
    check_node(path, "MultiHeadAttention", flat, fixed=fixed, **MS)
    operands = {"x": r(B, S, 24), "w": r(24, 3 * H * D) / 5, "b": r(3 * H * D), "m": mask}
    check_node(path, "Attention", operands, fixed=fixed, unidirectional=1, **MS)


def test_padding_by_ends_and_begins(path: Path) -> None:
    operands = {"x": r(B, S, 24), "w": r(24, 3 * H * D) / 5, "b": None}
    operands["m"] = np.array([3, 2, 0, 1], np.int32)
    check_node(path, "Attention", operands, **MS)


def test_cross_attention_on_cached_keys(path: Path) -> None:
    operands = {"q": r(B, S, H * D), "k": r(B, H, 5, D), "v": r(B, H, 5, D)}
    check_node(path, "MultiHeadAttention", operands, **MS)
    check_node(path, "MultiHeadAttention", {**operands, "b": r(3 * H * D)}, **MS)
    one = {**operands, "q": r(B, 1, H * D)}
    check_node(path, "DecoderMaskedMultiHeadAttention", one, **MS)


@pytest.mark.parametrize("op", ["MultiHeadAttention", "DecoderMaskedMultiHeadAttention"])
def test_attention_over_a_shared_buffer(path: Path, op: str) -> None:
    operands: dict[str, Any] = {n: r(B, 1, H * D) for n in "qkv"}
    between = {"b": None, "m": None, "a": None} if op[0] == "M" else {"m": None, "a": None}
    operands |= {**between, "pk": r(B, H, 9, D), "pv": r(B, H, 9, D), "n": np.array([4], np.int32)}
    more = {} if op[0] == "M" else {"past_present_share_buffer": 1}
    check_node(path, op, operands, outputs=3, fixed=("n",), **MS, **more)


@pytest.mark.parametrize("unidirectional", [0, 1])
def test_packed_attention_with_a_past(path: Path, unidirectional: int) -> None:
    operands = {"x": r(B, S, 24), "w": r(24, 3 * H * D) / 5, "b": r(3 * H * D), "m": None}
    check_node(path, "Attention", operands, outputs=2, unidirectional=unidirectional, **MS)
    operands |= {"p": r(2, B, H, 4, D)}
    check_node(path, "Attention", operands, outputs=2, unidirectional=unidirectional, **MS)


def test_values_of_another_width(path: Path) -> None:
    operands = {"x": r(B, S, 24), "w": r(24, 2 * H * D + H * 6) / 5, "b": r(2 * H * D + H * 6)}
    sizes = [H * D, H * D, H * 6]
    check_node(path, "Attention", operands, qkv_hidden_sizes=sizes, **MS)
    flat = {"q": r(B, S, H * D), "k": r(B, S, H * D), "v": r(B, S, H * 6)}
    check_node(path, "MultiHeadAttention", flat, **MS)


@pytest.mark.parametrize("options", [{}, {"activation": "silu"}, {"dilation": 2}])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_causal_convolution_with_state(path: Path, options: Any, length: int) -> None:
    state = 2 * options.get("dilation", 1)
    operands = {"x": r(B, 6, length), "w": r(6, 1, 3), "b": r(6), "s": r(B, 6, state)}
    check_node(path, "CausalConvWithState", operands, outputs=2, domain="com.microsoft", **options)
    bare = {"x": r(B, 6, length), "w": r(6, 1, 3)}
    check_node(path, "CausalConvWithState", bare, outputs=2, domain="com.microsoft", **options)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("fixed", [(), ("n",)])
def test_tensor_scatter(path: Path, mode: str, fixed: Any) -> None:
    for start in ([3, 3], [1, 4]) if mode == "linear" else ([3, 3], [6, 5], [12, 0]):
        operands = {"c": r(B, H, 7, D), "u": r(B, H, S, D), "n": np.array(start, np.int64)}
        check_node(path, "TensorScatter", operands, opset=24, fixed=fixed, mode=mode)
    flat = {"c": r(B, 7, 5), "u": r(B, S, 5)}
    check_node(path, "TensorScatter", flat, opset=24, mode=mode, axis=1)


def test_packed_batching_rotates_alike(path: Path) -> None:
    operands = {"x": r(B, S, H * D), "p": np.array([[0, 1, 2], [3, 4, 5]], np.int64)}
    operands |= {"c": r(16, D // 2), "s": r(16, D // 2)}
    check_node(path, "RotaryEmbedding", operands, domain="com.microsoft", is_packed_batching=1)
