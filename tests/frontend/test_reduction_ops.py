"""Reductions, softmax and normalisations at run time, through the compiler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .harness import STEPS, check, f32, op, refuses, tensor

X = f32("batch", "sequence", 8)
MS = "com.microsoft"
REDUCERS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
            "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def w(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.abs(rng.standard_normal(shape)) + 0.1


@pytest.mark.parametrize("kind", REDUCERS)
def test_reductions_of_every_version(tmp_path: Path, kind: str) -> None:
    x = f32("batch", "sequence", 8, make=positive)
    last, more, none = {"a": i64(-1)}, {"a": i64(0, 2)}, {"a": i64()}
    check(tmp_path, [op(kind, "x,a", "y"), op(kind, "x,a", "z", keepdims=0)], {"x": x}, last)
    check(tmp_path, [op(kind, "x,a", "y"), op(kind, "x", "z", keepdims=0)], {"x": x}, more,
          steps=STEPS[1:])  # fmt: skip
    check(tmp_path, [op(kind, "x,a", "y")], {"x": x}, none, steps=STEPS[:1])
    noop = [op(kind, "x,a", "y", noop_with_empty_axes=1)]
    check(tmp_path, noop, {"x": x}, none, steps=STEPS[:1])
    if kind == "ReduceSum":
        check(tmp_path, [op(kind, "x,a", "y")], {"x": x}, more, 13, steps=STEPS[:1])
        check(tmp_path, [op(kind, "x", "y", axes=[1])], {"x": x}, opset=11, steps=STEPS[:1])
    else:
        check(tmp_path, [op(kind, "x", "y", axes=[-2, 0])], {"x": x}, opset=13, steps=STEPS[:1])


def test_reductions_of_whole_numbers_and_truth_values(tmp_path: Path) -> None:
    axes = {"a": i64(1)}
    for kind in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
                 "ReduceSumSquare"):  # fmt: skip
        x = tensor("int32", "batch", "sequence", 6)
        check(tmp_path, [op(kind, "x,a")], {"x": x}, axes, steps=STEPS[::2])
    truth = tensor("bool", "batch", "sequence", 6)
    nodes = [op("ReduceMax", "x,a", "y"), op("ReduceMin", "x,a", "z")]
    check(tmp_path, nodes, {"x": truth}, axes, 20, steps=STEPS[::2])


def test_sums_of_halves_do_not_overflow_inside(tmp_path: Path) -> None:
    x = tensor("fp16", "batch", "sequence", 8, make=lambda r, s: r.uniform(100, 200, s))
    for kind in ("ReduceL2", "ReduceLogSumExp", "ReduceMean"):
        check(tmp_path, [op(kind, "x,a")], {"x": x}, {"a": i64(-1)}, limit=2e-3, steps=STEPS[:2])


def test_reductions_of_nothing_and_of_scalars(tmp_path: Path) -> None:
    x = f32("batch", 0, 4)
    check(tmp_path, [op("ReduceSum", "x,a", "y"), op("ReduceProd", "x,a", "z")], {"x": x},
          {"a": i64(1)}, oracle="reference")  # fmt: skip
    nodes = [op(k, "x", f"y{k}", keepdims=0) for k in ("ReduceSum", "ReduceMax", "ReduceL2")]
    check(tmp_path, nodes, {"x": f32()}, opset=18, steps=STEPS[:1])
    refuses(tmp_path, [op("ReduceSum", "x,a")], {"x": X}, "axis 3 where there are 3",
            {"a": i64(3)})  # fmt: skip


def test_log_sum_exp_of_infinities(tmp_path: Path) -> None:
    def some(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        x = rng.standard_normal(shape)
        x[..., :2] = -np.inf
        return np.where(rng.random(shape) < 0.1, -np.inf, x)

    x = f32("batch", "sequence", 2, make=some)
    check(tmp_path, [op("ReduceLogSumExp", "x,a")], {"x": x}, {"a": i64(-1)}, steps=STEPS[:1])


def test_softmax_of_every_version(tmp_path: Path) -> None:
    for kind in ("Softmax", "LogSoftmax", "Hardmax"):
        for opset, attrs in ((13, {}), (18, {"axis": 1}), (13, {"axis": 0}), (11, {}),
                             (11, {"axis": 2}), (9, {"axis": 1})):  # fmt: skip
            check(tmp_path, [op(kind, "x", **attrs)], {"x": X}, opset=opset, steps=STEPS[::2])
    half = tensor("fp16", "batch", "sequence", 8)
    check(tmp_path, [op("Softmax", "x")], {"x": half}, limit=2e-3, steps=STEPS[:1])
    refuses(tmp_path, [op("Softmax", "x", axis=3)], {"x": X}, "axis 3 where there are 3")


def test_hardmax_takes_the_first_of_equals(tmp_path: Path) -> None:
    x = f32("batch", "sequence", 8, make=lambda r, s: r.integers(0, 2, s))
    check(tmp_path, [op("Hardmax", "x")], {"x": x}, exact=True)


def test_layer_norm(tmp_path: Path) -> None:
    given = {"g": w(8), "b": w(8, seed=2), "g2": w(5, 8)}
    nodes = [op("LayerNormalization", "x,g,b", "y,m,i", epsilon=1e-3)]
    check(tmp_path, nodes, {"x": X}, given, 17)
    check(tmp_path, [op("LayerNormalization", "x,g", "y")], {"x": X}, given, 17, steps=STEPS[:1])
    whole = f32("batch", 5, 8)
    nodes = [op("LayerNormalization", "x,g2", "y,,i", axis=-2)]
    check(tmp_path, nodes, {"x": whole}, given, 17, steps=STEPS[1:])
    half = {n: a.astype(np.float16) for n, a in given.items()}
    x = tensor("fp16", "batch", "sequence", 8)
    check(tmp_path, [op("LayerNormalization", "x,g,b", "y,m")], {"x": x}, half, 17,
          limit=2e-3, steps=STEPS[:1])  # fmt: skip
    wide = {n: a.astype(np.float64) for n, a in given.items()}  # its statistics are in fp32
    x = tensor("fp64", "batch", "sequence", 8)
    nodes = [op("LayerNormalization", "x,g,b", "y,m,i")]
    check(tmp_path, nodes, {"x": x}, wide, 17, limit=1e-6, steps=STEPS[:1])
    refuses(tmp_path, [op("LayerNormalization", "x,g", stash_type=7)], {"x": X},
            "with stash_type int64", given, 17)  # fmt: skip


def test_rms_norm(tmp_path: Path) -> None:
    given = {"g": w(8)}
    check(tmp_path, [op("RMSNormalization", "x,g", epsilon=1e-3)], {"x": X}, given, 23)
    check(tmp_path, [op("SimplifiedLayerNormalization", "x,g", "y,i", stash_type=1)], {"x": X},
          given, 17, steps=STEPS[:1])  # fmt: skip


def test_skip_norms(tmp_path: Path) -> None:
    given = {"g": w(8), "b": w(8, seed=2), "c": w(8, seed=3)}
    for skip in (X, f32(1, "sequence", 8), f32("sequence", 8)):
        nodes = [op("SkipLayerNormalization", "x,s,g,b,c", "y,,,t", MS, epsilon=1e-4)]
        check(tmp_path, nodes, {"x": X, "s": skip}, given, steps=STEPS[::2])
        nodes = [op("SkipSimplifiedLayerNormalization", "x,s,g,c", "y,,,t", MS)]
        check(tmp_path, nodes, {"x": X, "s": skip}, given, steps=STEPS[::2])
    tiny = f32("batch", "sequence", 8, make=lambda r, s: r.standard_normal(s) * 1e-4)
    nodes = [op("SkipLayerNormalization", "x,s,g", "y", MS)]  # the default ε is far below 1e-5
    check(tmp_path, nodes, {"x": tiny, "s": tiny}, given, steps=STEPS[:1])


def test_embedding_norm(tmp_path: Path) -> None:
    ids = tensor("int32", "batch", "sequence", make=lambda r, s: r.integers(0, 9, s))
    kinds = tensor("int32", "batch", "sequence", make=lambda r, s: r.integers(0, 2, s))
    given = {"w": w(9, 8), "p": w(6, 8), "s": w(2, 8), "g": w(8), "b": w(8)}
    inputs = {"input_ids": ids, "token_type_ids": kinds}
    nodes = [op("EmbedLayerNormalization", "input_ids,token_type_ids,w,p,s,g,b", "y,,t", MS)]
    check(tmp_path, nodes, inputs, given, steps=STEPS[:2])
    nodes = [op("EmbedLayerNormalization", "input_ids,,w,p,,g,b", "y,n", MS, epsilon=1e-5)]
    check(tmp_path, nodes, {"input_ids": ids}, given, steps=STEPS[1:])


def test_channel_norms(tmp_path: Path) -> None:
    x = f32("batch", 6, "sequence", 4)
    names = {"g": w(6), "b": w(6, seed=2), "m": w(6, seed=3), "v": np.abs(w(6, seed=4))}
    check(tmp_path, [op("InstanceNormalization", "x,g,b", epsilon=1e-3)], {"x": x}, names)
    for opset in (9, 15):
        nodes = [op("BatchNormalization", "x,g,b,m,v", momentum=0.5)]
        check(tmp_path, nodes, {"x": x}, names, opset, steps=STEPS[:1])
    nodes = [op("BatchNormalization", "x,g,b,m,v")]
    check(tmp_path, nodes, {"x": f32("batch", 6)}, names, 15, steps=STEPS[:1])
    nodes = [op("BatchNormalization", "x,g,b,m,v", training_mode=1)]
    refuses(tmp_path, nodes, {"x": x}, "in training mode", names)


def test_group_norm_of_both_versions(tmp_path: Path) -> None:
    x = f32("batch", 6, "sequence", 4)
    nodes = [op("GroupNormalization", "x,g,b", num_groups=3, epsilon=1e-3)]
    check(tmp_path, nodes, {"x": x}, {"g": w(3), "b": w(3)}, 18, oracle="reference", limit=1e-4)
    check(tmp_path, nodes, {"x": x}, {"g": w(6), "b": w(6)}, 21)


def test_norms_over_axes(tmp_path: Path) -> None:
    x = f32("batch", 3, "sequence", 4)
    for attrs in ({}, {"axes": [2, 3]}, {"axes": [-1]}):
        check(tmp_path, [op("MeanVarianceNormalization", "x", **attrs)], {"x": x}, opset=13,
              steps=STEPS[2:], limit=1e-4)  # fmt: skip
    for attrs in ({}, {"p": 1}, {"axis": 1, "p": 2}):
        some = f32(
            "batch",
            "sequence",
            4,
            make=lambda r, s: r.standard_normal(s) * (r.random((*s[:2], 1)) > 0.5),
        )
        check(tmp_path, [op("LpNormalization", "x", **attrs)], {"x": some}, steps=STEPS[:2])
