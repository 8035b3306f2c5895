"""Operators with run-time indices, whole and divided, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .harness import Make, check, f32, op, refuses, tensor

INT = np.int64


def below(n: int, low: int = 0) -> Make:
    """Integers from low to n - 1."""
    return lambda rng, shape: rng.integers(low, n, shape)


def ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.integers(-2, 3, shape)


def distinct(n: int) -> Make:
    """Rows of different numbers below n."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        lines = int(np.prod(shape[:-1]))
        rows = [rng.permutation(n)[: shape[-1]] for _ in range(lines)]
        return np.stack(rows).reshape(shape)

    return make


@pytest.mark.parametrize("attrs", [{}, {"largest": 0}, {"axis": 1, "largest": 0}, {"axis": 0}])
def test_topk_resolves_ties_like_onnx_runtime(tmp_path: Path, attrs: dict[str, Any]) -> None:
    k = np.array([1 if attrs.get("axis") in (0, 1) else 3], INT)
    check(tmp_path, [op("TopK", "x,k", "v,i", **attrs)],
          {"x": f32("batch", "sequence", 8, make=ties)}, {"k": k}, exact=True)  # fmt: skip


def test_topk_of_integers_is_a_sort(tmp_path: Path) -> None:
    check(tmp_path, [op("TopK", "x,k", "v,i", largest=0)],
          {"x": tensor("int64", "batch", "sequence", 6, make=ties)}, {"k": np.array([6], INT)},
          exact=True)  # fmt: skip


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("attrs", [{"axis": -1}, {"axis": 1, "keepdims": 0},
                                   {"axis": 2, "select_last_index": 1}])  # fmt: skip
def test_argmax_argmin(tmp_path: Path, kind: str, attrs: dict[str, Any]) -> None:
    check(tmp_path, [op(kind, "x", **attrs)], {"x": f32("batch", "sequence", 7, make=ties)},
          exact=True)  # fmt: skip


@pytest.mark.parametrize("axis", [-1, 1])
def test_one_hot_counts_negatives_from_the_end(tmp_path: Path, axis: int) -> None:
    check(tmp_path, [op("OneHot", "x,depth,values", axis=axis)],
          {"x": tensor("int64", "batch", "sequence", make=below(7, -7))},
          {"depth": np.array(5, INT), "values": np.array([-1, 2], np.float32)},
          exact=True)  # fmt: skip


@pytest.mark.parametrize("attrs", [{}, {"exclusive": 1}, {"reverse": 1},
                                   {"exclusive": 1, "reverse": 1}])  # fmt: skip
@pytest.mark.parametrize("axis", [1, -1])
def test_cumsum(tmp_path: Path, attrs: dict[str, Any], axis: int) -> None:
    check(tmp_path, [op("CumSum", "x,axis", **attrs)],
          {"x": tensor("int64", "batch", "sequence", 6)}, {"axis": np.array(axis, INT)},
          exact=True)  # fmt: skip


def test_gather_elements(tmp_path: Path) -> None:
    check(tmp_path, [op("GatherElements", "x,i", axis=2)],
          {"x": f32("batch", "sequence", 8),
           "i": tensor("int64", "batch", "sequence", 3, make=below(8, -8))})  # fmt: skip
    check(tmp_path, [op("GatherElements", "x,i", axis=1)],
          {"x": f32("batch", 6, 8),
           "i": tensor("int64", "batch", "sequence", 5, make=below(6))})  # fmt: skip


def test_gather_nd(tmp_path: Path) -> None:
    check(
        tmp_path,
        [op("GatherND", "x,i")],
        {"x": f32(4, 6, 8), "i": tensor("int64", "batch", "sequence", 2, make=below(4, -4))},
    )
    check(
        tmp_path,
        [op("GatherND", "x,i")],
        {"x": f32(4, 8), "i": tensor("int64", "batch", "sequence", 1, make=below(4, -4))},
    )
    check(
        tmp_path,
        [op("GatherND", "x,i", batch_dims=1)],
        {"x": f32("batch", 4, 6), "i": tensor("int64", "batch", "sequence", 1, make=below(4))},
    )


@pytest.mark.parametrize("how", ["none", "add", "mul", "max", "min"])
def test_scatter_elements(tmp_path: Path, how: str) -> None:
    index = distinct(8) if how == "none" else below(8, -8)
    check(tmp_path, [op("ScatterElements", "x,i,u", axis=2, reduction=how)],
          {"x": f32("batch", "sequence", 8), "i": tensor("int64", "batch", "sequence", 3,
           make=index), "u": f32("batch", "sequence", 3)})  # fmt: skip


def test_scatter_elements_shorter_than_the_data(tmp_path: Path) -> None:
    check(tmp_path, [op("ScatterElements", "x,i,u", axis=1, reduction="add")],
          {"x": f32("batch", 6, 8), "i": tensor("int64", "batch", "sequence", 5, make=below(6)),
           "u": f32("batch", "sequence", 5)})  # fmt: skip


@pytest.mark.parametrize("how", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(tmp_path: Path, how: str) -> None:
    """Rows addressed by two coordinates; with none every row at most once."""

    def places(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        flat = rng.permutation(24)[: shape[0]] if how == "none" else rng.integers(0, 24, shape[0])
        return np.stack(np.unravel_index(flat, (4, 6)), -1)

    check(tmp_path, [op("ScatterND", "x,i,u", reduction=how)],
          {"x": f32(4, 6, 8), "i": tensor("int64", "sequence", 2, make=places),
           "u": f32("sequence", 8)})  # fmt: skip


def test_scatter_nd_of_positions_inverts_a_permutation(tmp_path: Path) -> None:
    nodes = [
        op("TopK", "x,k", "v,order", largest=0),
        op("Unsqueeze", "order,last", "places"),
        op("ScatterND", "zeros,places,numbers", "y"),
    ]
    constants = {
        "k": np.array([6], INT), "last": np.array([-1], INT),
        "zeros": np.zeros(6, INT), "numbers": np.arange(6),
    }  # fmt: skip
    check(tmp_path, nodes, {"x": f32(6)}, constants, exact=True, outputs=["y"])


@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(tmp_path: Path, upper: int) -> None:
    check(tmp_path, [op("Trilu", "x,k", upper=upper)], {"x": f32("batch", "sequence", 6)},
          {"k": np.array(1, INT)})  # fmt: skip


def test_integer_arithmetic_of_indices(tmp_path: Path) -> None:
    nodes = [
        op("Mod", "x,two", "m"),
        op("Equal", "m,one", "odd"),
        op("Where", "odd,x,m", "y"),
    ]
    constants = {"two": np.array(3, INT), "one": np.array(1, INT)}
    check(tmp_path, nodes, {"x": tensor("int64", "batch", "sequence")}, constants, exact=True)


def test_topk_of_run_time_length_is_refused(tmp_path: Path) -> None:
    refuses(tmp_path, [op("TopK", "x,k", "v,i")],
            {"x": f32("batch", 6), "k": tensor("int64", 1)},
            "with sizes or indices that depend on run-time data")  # fmt: skip
