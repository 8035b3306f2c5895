"""Quantised weights as run-time ops, carried through the compiler, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from meshc.frontend import Bound
from meshc.fusion import fuse
from meshc.ops.unpack import packed

from .harness import Step, check, f32, op, refuses, tensor

MS = "com.microsoft"
RNG = np.random.default_rng(11)
ONE = (Step(2, 3, (2, 2)),)
BOTH = (Step(2, 3, (2, 2)), Step(2, 3, (1, 3), fusion=False))


def real(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def scales(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (RNG.random(shape) * 0.2 + 0.05).astype(dtype)


def codes(low: int, high: int, *shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return RNG.integers(low, high + 1, shape).astype(dtype)


def fused_bits(bound: Bound) -> list[int]:
    """Bits of the weights that the matmuls of the fused graph take in."""
    ops = [o for _, o in fuse(bound.graph).ops()]
    return [o.attr("quantised", 0) for o in ops if o.attr("core", o.kind) == "matmul"]


def weight_bytes(bound: Bound) -> int:
    graph = fuse(bound.graph)
    return sum(t.bytes for t in graph.tensors.values() if t.kind == "WEIGHT")


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
def test_matmul_nbits(tmp_path: Path, bits: int, zeros: str) -> None:
    if bits == 8 and zeros == "float":
        pytest.skip("ONNX Runtime has no such kernel on the CPU")
    n, k, size = 6, 64, 16
    top = (1 << bits) - 1
    weights: dict[str, np.ndarray] = {
        "b": packed(codes(0, top, n, k // size, size), bits),
        "s": scales(n, k // size),
    }
    if zeros == "packed":
        weights["z"] = packed(codes(0, top, n, k // size), bits)
    if zeros == "float":
        weights["z"] = real(n, k // size)
    node = op("MatMulNBits", ",".join(["x", *weights]), domain=MS, K=k, N=n, bits=bits,
              block_size=size)  # fmt: skip
    for bound in check(tmp_path, [node], {"x": f32("batch", "sequence", k)}, weights, steps=BOTH):
        assert fused_bits(bound) == [bits]
        assert weight_bytes(bound) < n * k * bits // 8 + 9 * n * k // size


def test_matmul_nbits_with_a_bias_ragged_blocks_and_halves(tmp_path: Path) -> None:
    n, k, size = 5, 40, 16
    weights = {
        "b": packed(codes(0, 15, n, 3, size), 4),
        "s": scales(n, 3, dtype=np.float16),
        "bias": real(n, dtype=np.float16),
    }
    node = op("MatMulNBits", "x,b,s,,,bias", domain=MS, K=k, N=n, bits=4, block_size=size)
    check(tmp_path, [node], {"x": tensor("fp16", "batch", "sequence", k)}, weights, steps=ONE)


def test_matmul_nbits_with_group_indices(tmp_path: Path) -> None:
    n, k, size = 4, 64, 16
    weights = {
        "b": packed(codes(0, 15, n, 4, size), 4),
        "s": scales(n, 4),
        "g": RNG.permutation(np.repeat(np.arange(4, dtype=np.int32), size)),
    }
    node = op("MatMulNBits", "x,b,s,,g", domain=MS, K=k, N=n, bits=4, block_size=size)
    check(tmp_path, [node], {"x": f32("batch", "sequence", k)}, weights, steps=ONE)


@pytest.mark.parametrize("kind", [0, 1])
def test_matmul_bnb4(tmp_path: Path, kind: int) -> None:
    n, k, size = 6, 32, 16
    weights = {"b": codes(0, 255, n * k // 2), "s": scales(n * k // size)}
    node = op("MatMulBnb4", "x,b,s", domain=MS, K=k, N=n, block_size=size, quant_type=kind)
    (bound,) = check(tmp_path, [node], {"x": f32("batch", "sequence", k)}, weights, steps=ONE)
    assert fused_bits(bound) == [4]


IDS = tensor("int64", "batch", "sequence", make=lambda rng, shape: rng.integers(0, 7, shape))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("kind", "bits"), [("uint8", 4), ("uint8", 8), ("int4", 4), ("uint4", 4)])
def test_gather_block_quantized(tmp_path: Path, kind: str, bits: int, zeros: bool) -> None:
    rows, k, size = 7, 64, 16
    low, high = (-8, 7) if kind == "int4" else (0, (1 << bits) - 1)
    table = codes(low, high, rows, k, dtype=np.int16)
    zero = codes(low, high, rows, k // size, dtype=np.int16)
    if kind == "uint8":
        table, zero = (packed(a, 4) if bits == 4 else a.astype(np.uint8) for a in (table, zero))
    else:
        dtype = getattr(ml_dtypes, kind)
        table, zero = table.astype(dtype), zero.astype(dtype)
    weights = {"t": table, "s": scales(rows, k // size), "z": zero}
    if not zeros:
        del weights["z"]
    names = "t,ids,s,z" if zeros else "t,ids,s"
    node = op("GatherBlockQuantized", names, domain=MS, block_size=size, gather_axis=0,
              quantize_axis=1, bits=bits)  # fmt: skip
    (bound,) = check(tmp_path, [node], {"ids": IDS}, weights, opset=21, steps=ONE)
    assert weight_bytes(bound) <= rows * (k * bits // 8 + 5 * k // size)


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "uint2", "int8", "uint8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_dequantised_blocks_in_a_matmul(tmp_path: Path, kind: str, axis: int) -> None:
    k, n, size = 32, 6, 8
    signed, bits = kind.startswith("int"), int(kind[-1])
    low = -(1 << (bits - 1)) if signed else 0
    dtype = getattr(ml_dtypes, kind, None) or np.dtype(kind)
    shape = (k, n) if axis == 0 else (n, k)
    small = tuple(d // size if i == axis else d for i, d in enumerate(shape))
    weights = {
        "w": codes(low, low + (1 << bits) - 1, *shape, dtype=np.int16).astype(dtype),
        "s": scales(*small),
        "z": codes(low, low + (1 << bits) - 1, *small, dtype=np.int16).astype(dtype),
    }
    nodes = [op("DequantizeLinear", "w,s,z", "d", axis=axis, block_size=size)]
    if axis == 1:
        nodes.append(op("Transpose", "d", "t", perm=[1, 0]))
    nodes.append(op("MatMul", "x,d" if axis == 0 else "x,t"))
    inputs = {"x": f32("batch", "sequence", k)}
    two = bits == 2
    for bound in check(tmp_path, nodes, inputs, weights, opset=25 if two else 21, steps=BOTH,
                       oracle="reference"):  # fmt: skip
        assert fused_bits(bound) == [bits]
        assert weight_bytes(bound) <= k * n * bits // 8 + 8 * k * n // size


def test_an_odd_row_of_small_integers_is_packed_anew(tmp_path: Path) -> None:
    weights = {
        "w": codes(-8, 7, 32, 5, dtype=np.int8).astype(ml_dtypes.int4),
        "s": scales(5),
    }
    nodes = [op("DequantizeLinear", "w,s", "d", axis=1), op("MatMul", "x,d")]
    inputs = {"x": f32("batch", "sequence", 32)}
    for bound in check(tmp_path, nodes, inputs, weights, opset=21, steps=BOTH, oracle="reference"):
        assert fused_bits(bound) == [4]


@pytest.mark.parametrize("opset", [13, 19, 21, 23])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_quantise_and_back(tmp_path: Path, opset: int, kind: str) -> None:
    zero = codes(-20, 20, 6, dtype=np.int8) if kind == "int8" else codes(100, 150, 6)
    weights = {"s": scales(6) / 10, "z": zero, "one": np.float32(0.05), "mid": zero[0]}
    nodes = [
        op("QuantizeLinear", "x,s,z", "q", axis=2),
        op("DequantizeLinear", "q,s,z", "y1", axis=-1),
        op("QuantizeLinear", "x,one,mid", "p"),
        op("DequantizeLinear", "p,one,mid", "y2"),
        op("QuantizeLinear", "x,one", "y3"),
    ]
    ends = ["q", "y1", "p", "y2", "y3"]
    check(tmp_path, nodes, {"x": f32("batch", "sequence", 6)}, weights, opset, steps=BOTH,
          outputs=ends)  # fmt: skip


def test_quantised_ties_go_to_even_and_ends_saturate(tmp_path: Path) -> None:
    line = np.array([-np.inf, -2.5, -1.5, -0.5, 0.5, np.nan, 2.5, 300], np.float32)
    given = f32("batch", "sequence", 8, make=lambda _, shape: np.broadcast_to(line, shape))
    weights = {"s": np.float32(1), "z": np.int8(3), "w": np.uint16(7)}
    nodes = [op("QuantizeLinear", "x,s,z", "a"), op("QuantizeLinear", "x,s", "b"),
             op("QuantizeLinear", "x,s,w", "c")]  # fmt: skip
    check(tmp_path, nodes, {"x": given}, weights, opset=21, steps=ONE)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
def test_float8(tmp_path: Path, kind: str, saturate: int) -> None:
    dtype = getattr(ml_dtypes, kind)
    wide = f32("batch", "sequence", 6, make=lambda rng, shape: rng.standard_normal(shape) * 200)
    weights = {"s": np.float32(0.5), "z": np.zeros((), dtype),
               "w": real(6, 12).astype(dtype), "t": np.float32(0.1)}  # fmt: skip
    nodes = [
        op("QuantizeLinear", "x,s,z", "q", saturate=saturate),
        op("DequantizeLinear", "q,s", "d"),
        op("DequantizeLinear", "w,t", "e"),
        op("MatMul", "d,e"),
    ]
    (bound,) = check(tmp_path, nodes, {"x": wide}, weights, opset=19, steps=ONE, outputs=["y", "d"],
                     oracle="reference")  # fmt: skip
    assert fused_bits(bound) == [8]


def test_float4(tmp_path: Path) -> None:
    w = (np.arange(32 * 8) % 16).astype(np.uint8).reshape(32, 8)
    weights = {"w": w.view(ml_dtypes.float4_e2m1fn), "s": np.float32(0.3)}
    nodes = [op("DequantizeLinear", "w,s", "d"), op("MatMul", "x,d")]
    inputs = {"x": f32("batch", "sequence", 32)}
    (bound,) = check(tmp_path, nodes, inputs, weights, opset=23, steps=ONE, oracle="reference")
    assert fused_bits(bound) == [4]


def test_a_table_of_small_integers_is_looked_up_packed(tmp_path: Path) -> None:
    weights = {"w": codes(-8, 7, 7, 64, dtype=np.int8).astype(ml_dtypes.int4), "s": scales(7, 4)}
    nodes = [op("DequantizeLinear", "w,s", "d", axis=1, block_size=16), op("Gather", "d,ids")]
    for bound in check(tmp_path, nodes, {"ids": IDS}, weights, opset=21, steps=BOTH,
                       oracle="reference"):  # fmt: skip
        assert weight_bytes(bound) == 7 * 32 + 7 * 4 * 4


def test_what_is_refused(tmp_path: Path) -> None:
    weights = {"b": codes(0, 255, 4, 2, 12), "s": scales(4, 2)}
    node = op("MatMulNBits", "x,b,s", domain=MS, K=64, N=4, bits=3, block_size=32)
    refuses(tmp_path, [node], {"x": f32("batch", "sequence", 64)}, "with 3 bits", weights)
