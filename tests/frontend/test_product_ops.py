"""Products, einsum, convolutions and pools at run time, through the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .harness import STEPS, check, f32, op, refuses, tensor

X = f32("batch", "sequence", 8)
MS = "com.microsoft"


def w(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_matmul(tmp_path: Path) -> None:
    given = {"w": w(8, 6), "v": w(8), "t": w(2, 1, 8, 3)}
    nodes = [op("MatMul", f"x,{n}", f"y{n}") for n in given] + [op("MatMul", "x,z", "yz")]
    check(tmp_path, nodes, {"x": X, "z": f32("batch", 8, "sequence")}, given)
    check(tmp_path, [op("MatMul", "u,v")], {"u": f32(8)}, given, steps=STEPS[:1])
    check(tmp_path, [op("MatMul", "u,z")], {"u": f32(8), "z": f32("batch", 8, 3)}, steps=STEPS[:1])


def test_matmul_of_doubles_and_whole_numbers(tmp_path: Path) -> None:
    for dtype in ("fp64", "int32", "int64", "uint32"):
        a, b = tensor(dtype, "batch", "sequence", 6), tensor(dtype, "batch", 6, 4)
        check(tmp_path, [op("MatMul", "a,b")], {"a": a, "b": b}, steps=STEPS[::2])


def test_matmul_of_large_whole_numbers_is_exact(tmp_path: Path) -> None:
    def large(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(2**40, 2**41, shape)

    x = tensor("int64", "batch", 3, make=large)
    check(tmp_path, [op("MatMul", "x,w")], {"x": x}, {"w": np.arange(12).reshape(3, 4)})


def test_gemm(tmp_path: Path) -> None:
    given = {"w": w(8, 6), "u": w(6, 8), "c": w(6), "d": w(6, 8), "s": w(1, seed=3)}
    nodes = [op("Gemm", "x,w,c", "p", alpha=0.5, beta=2.0), op("Gemm", "x,u,s", "q", transB=1),
             op("Gemm", "x,w", "r"), op("Gemm", "x,u,c", "s2", transB=1, beta=0.0),
             op("Gemm", "d,x", "t", transB=1)]  # fmt: skip
    check(tmp_path, nodes, {"x": f32("sequence", 8)}, given, 13)
    nodes = [op("Gemm", "x,w,z", "p", transA=1)]
    check(tmp_path, nodes, {"x": f32(8, "sequence"), "z": f32("sequence", 1)}, given, 11)
    half = {n: a.astype(np.float16) for n, a in given.items()}
    check(tmp_path, [op("Gemm", "x,w,c", alpha=0.5)], {"x": tensor("fp16", "sequence", 8)}, half,
          limit=2e-3, steps=STEPS[:1])  # fmt: skip


def test_fused_products(tmp_path: Path) -> None:
    flat = {"z": f32("batch", 6, 8)}
    for kind in ("FusedMatMul", "TransposeMatMul"):
        nodes = [op(kind, "x,z", "y", MS, transB=1, alpha=0.3)]
        check(tmp_path, nodes, {"x": X, **flat}, steps=STEPS[::2])
    turned = {"x": f32("sequence", "batch", 8), "z": f32(6, "batch", 8)}
    nodes = [op("FusedMatMul", "x,z", "y", MS, transBatchA=1, transBatchB=1, transB=1)]
    check(tmp_path, nodes, turned)
    nodes = [op("FusedMatMul", "x,z", "y", MS, transBatchA=1, transA=1)]
    check(tmp_path, nodes, {"x": f32(8, "batch", "sequence"), "z": f32("batch", 8, 3)})
    given = {"w": w(8, 6), "c": w(6)}
    for name, more in (("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.2}), ("Tanh", {})):
        nodes = [op("FusedGemm", "x,w,c", "y", MS, activation=name, alpha=0.5, **more)]
        check(tmp_path, nodes, {"x": f32("sequence", 8)}, given, steps=STEPS[:1])
    nodes = [op("FusedGemm", "x,w", "y", MS, activation="Cube")]
    refuses(tmp_path, nodes, {"x": f32("sequence", 8)}, "with activation 'Cube'", given)


def test_fused_sums_without_kernels(tmp_path: Path) -> None:
    given: dict[str, Any] = {"w": w(8, 6), "c": w(6), "b": w(8), "i": np.array([4, 4], np.int64),
                             "k": np.float32(0.3)}  # fmt: skip
    sizes = STEPS[::2]
    add = op("Add", "x,b", "a")
    check(tmp_path, [op("BiasAdd", "x,b,z", "y", MS)], {"x": X, "z": X}, given, steps=sizes,
          twin=[add, op("Add", "a,z", "y")])  # fmt: skip
    check(tmp_path, [op("BiasDropout", "x,b,z", "y", MS, seed=1)], {"x": X, "z": X}, given,
          steps=sizes, twin=[add, op("Add", "a,z", "y")])  # fmt: skip
    check(tmp_path, [op("BiasSplitGelu", "x,b", "y", MS)], {"x": X}, given, 20, steps=sizes,
          twin=[add, op("Split", "a,i", "l,r", axis=-1), op("Gelu", "r", "g"),
                op("Mul", "l,g", "y")])  # fmt: skip
    check(tmp_path, [op("GemmFastGelu", "x,w,c", "y", MS)], {"x": X}, given, 20, steps=sizes,
          twin=[op("MatMul", "x,w", "m"), op("Add", "m,c", "s"),
                op("Gelu", "s", "y", approximate="tanh")])  # fmt: skip
    check(tmp_path, [op("BiasSoftmax", "x,b", "y", MS, axis=2, is_inner_broadcast=0)], {"x": X},
          given, steps=sizes, twin=[add, op("Softmax", "a", "y")])  # fmt: skip
    nodes = [op("FusedMatMulActivation", "x,w", "y", MS, activation="Relu", alpha=0.3)]
    check(tmp_path, nodes, {"x": X}, given, steps=sizes,
          twin=[op("MatMul", "x,w", "m"), op("Mul", "m,k", "s"), op("Relu", "s", "y")])  # fmt: skip


EQUATIONS = [
    ("bsh,ho->bso", ("w",)), ("bsh,ho", ("w",)), ("...h,ho->...o", ("w",)), ("bsh->bhs", ()),
    ("bsh->b", ()), ("bsh->", ()), ("bsh,bth->bst", ("x",)), ("bsh,h->bs", ("v",)),
    ("bsh,ho,o->bs", ("w", "u")), ("bsh,ko->bskoh", ("k",)), ("bsh,hh->bs", ("d",)),
    ("hh->h", "d"), ("...ij->...ji", ()), ("bsh, bsh -> bsh", ("x",)), ("bsh,bsh->hb", ("x",)),
    ("bsh,osh->bo", ("o",)), ("...,...->...", ("x",)),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "others"), EQUATIONS)
def test_einsum(tmp_path: Path, equation: str, others: Any) -> None:
    given = {"w": w(8, 6), "v": w(8), "u": w(6), "k": w(2, 3), "d": w(8, 8), "o": w(4, 1, 8)}
    names = ",".join(others) if isinstance(others, str) else ",".join(("x", *others))
    steps = STEPS[::2] if "bso" in equation else STEPS[:1]
    nodes = [op("Einsum", names, "y", equation=equation), op("Neg", "x", "n")]
    check(tmp_path, nodes, {"x": X}, given, 12, steps=steps)


def test_einsum_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    refuses(tmp_path, [op("Einsum", "x", equation="bs->b")], {"x": X}, "on 3 dimensions")
    refuses(tmp_path, [op("Einsum", "x", equation="bsh->q")], {"x": X}, "with the equation")


def test_convolutions_over_time(tmp_path: Path) -> None:
    """The stem of a speech encoder: kernels of three, with strides of one and two."""
    given = {"k": w(6, 4, 3), "b": w(6), "d": w(4, 1, 3), "g": w(6, 2, 2), "p": w(6, 4, 1)}
    x = {"x": f32("batch", 4, 10)}
    nodes = [op("Conv", "x,k,b", "p1", pads=[1, 1]),
             op("Conv", "x,k", "s2", pads=[1, 1], strides=[2]),
             op("Conv", "x,d", "dw", group=4, pads=[2, 0]), op("Conv", "x,p,b", "one"),
             op("Conv", "x,g", "gr", group=2, dilations=[3], kernel_shape=[2])]  # fmt: skip
    check(tmp_path, nodes, x, given, 11)
    free = {"x": f32("batch", 4, "sequence")}
    nodes = [op("Conv", "x,k,b", "p1", pads=[1, 1]), op("Conv", "x,d", "p2", group=4, pads=[2, 0])]
    check(tmp_path, nodes, free, given, 22)
    for kind in ("SAME_UPPER", "SAME_LOWER"):
        nodes = [op("Conv", "x,g", "y", group=2, auto_pad=kind, strides=[2])]
        check(tmp_path, nodes, x, given, 11, steps=STEPS[:1])
    refuses(tmp_path, [op("Conv", "x,k", kernel_shape=[2])], x, "with kernel_shape [2]", given)


def test_convolutions_of_images(tmp_path: Path) -> None:
    """Patches of a vision encoder, and kernels that overlap."""
    given = {"k": w(5, 3, 4, 4), "o": w(2, 3, 3, 2), "b": w(5)}
    seen = {"pixel_values": f32("batch", 3, 8, 12)}
    check(tmp_path, [op("Conv", "pixel_values,k,b", strides=[4, 4])], seen, given, steps=STEPS[:1])
    x = {"x": f32("batch", 3, 8, 12)}
    nodes = [op("Conv", "x,k,b", "patch", strides=[4, 4]),
             op("Conv", "x,o", "over", pads=[1, 0, 1, 1], strides=[2, 1],
                dilations=[1, 2])]  # fmt: skip
    check(tmp_path, nodes, x, given, 11)
    nodes = [op("FusedConv", "x,o", "y", MS, activation="Relu", pads=[1, 1, 1, 1])]
    check(tmp_path, nodes, x, given, steps=STEPS[:1])


def test_pools(tmp_path: Path) -> None:
    x = {"x": f32("batch", 3, 8, 6)}
    nodes = [op("MaxPool", "x", "a", kernel_shape=[2, 2], strides=[2, 2]),
             op("MaxPool", "x", "b", kernel_shape=[3, 2], pads=[1, 0, 1, 1], dilations=[2, 1]),
             op("AveragePool", "x", "c", kernel_shape=[2, 2], strides=[2, 2]),
             op("AveragePool", "x", "d", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
             op("AveragePool", "x", "e", kernel_shape=[3, 3], pads=[1, 1, 1, 1],
                count_include_pad=1),
             op("MaxPool", "x", "f", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
             op("AveragePool", "x", "g", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
             op("LpPool", "x", "h", kernel_shape=[2, 2], p=3),
             op("GlobalAveragePool", "x", "i"), op("GlobalMaxPool", "x", "j"),
             op("GlobalLpPool", "x", "k"), op("LRN", "x", "l", size=3, alpha=0.1)]  # fmt: skip
    check(tmp_path, nodes, x, opset=12, steps=STEPS[:2])
    refuses(tmp_path, [op("MaxPool", "x", "y,i", kernel_shape=[2, 2])], x, "with indices",
            outputs=("y", "i"))  # fmt: skip
