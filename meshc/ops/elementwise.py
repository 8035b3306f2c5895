"""map: a small elementwise expression over broadcast operands.

The attribute `steps` is a tuple of (fn, args, dtype). An argument is ("in", i), ("step", j) or
("const", number). Each step's result is rounded to its dtype; the last one is the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf, prod
from typing import Any

import numpy as np

from meshc.errors import InvariantError
from meshc.ir.dtypes import FLOATS, NARROW, NUMPY, size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.record import IterDim, OpRecord, Ranges, Space, Use, Work

_ERF = np.vectorize(erf, otypes=[np.float64])


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(_ERF(x)).astype(x.dtype) if x.size else x


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # The two branches keep exp from overflowing.
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dtype = np.result_type(a, b)  # either may be a plain number, which adapts to the other
    if np.issubdtype(dtype, np.integer):  # towards zero, the smallest number included
        a, b = np.asarray(a, dtype), np.asarray(b, dtype)
        down = np.floor_divide(a, b)
        inexact = (down * b != a) & ((a < 0) != (b < 0))
        return np.asarray(down + inexact, dtype)
    return np.asarray(np.divide(a, b))


def _pow(a: Any, b: Any) -> np.ndarray:
    whole = np.asarray(a).dtype.kind in "iu" and np.asarray(b).dtype.kind in "iu"
    if whole and (np.asarray(b) < 0).any():  # numpy refuses these; in C a fraction becomes zero
        return np.trunc(np.power(np.asarray(a, np.float64), np.asarray(b, np.float64)))
    return np.asarray(np.power(a, b))


def _gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + _erf(x / np.float32(np.sqrt(2)))))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + 0.044715 * x * x * x)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


# Values of 4-bit codes: float4 e2m1 (OCP Microscaling Formats 1.0, section 5.3.3), and the two
# tables of bitsandbytes (Dettmers et al., QLoRA, 2023, appendix E).
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FP4 = np.array([0, 0.0625 / 12, 8 / 12, 1, 4 / 12, 0.5, 2 / 12, 0.25], np.float32)
_NF4 = np.array(
    [
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ],
    np.float32,
)


def _table(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: values[np.asarray(x) & 15]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "e2m1": _table(np.concatenate([_E2M1, -_E2M1])),
    "fp4": _table(np.concatenate([_FP4, -_FP4])),
    "nf4": _table(_NF4),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "pow": _pow,
    "sqrt": np.sqrt,
    "reciprocal": lambda x: 1 / x,
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quickgelu": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "softplus": lambda x: np.logaddexp(0, x),
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "min": np.minimum,
    "max": np.maximum,
    "mod": np.mod,
    "fmod": np.fmod,
    "equal": np.equal,
    "less": np.less,
    "lessorequal": np.less_equal,
    "greater": np.greater,
    "greaterorequal": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "bitnot": np.bitwise_not,
    "shiftleft": np.left_shift,
    "shiftright": np.right_shift,
    "where": np.where,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "cast": lambda x: x,
    "clip": np.clip,
    # As ONNX Runtime rounds to integers: what is no number becomes the smallest one.
    "saturate": lambda x, low, high: np.fmin(np.fmax(x, low), high),
}


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    rank = len(output.shape)
    dims = tuple(IterDim(f"d{i}", n, "parallel") for i, n in enumerate(output.shape))

    def uses(t: Tensor) -> tuple[Use, ...]:
        lead = rank - len(t.shape)
        return tuple(
            Use(lead + i) if n == output.shape[lead + i] else Use(None)
            for i, n in enumerate(t.shape)
        )

    return Space(dims, tuple(uses(t) for t in inputs), tuple(Use(i) for i in range(rank)))


def _wide(x: np.ndarray) -> np.ndarray:
    """Floats compute in float32 (float64 stays), other types as they are."""
    if x.dtype in NARROW:
        return x.astype(np.float32)
    return x


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    del inputs
    results: list[np.ndarray] = []
    with np.errstate(all="ignore"):
        for fn, args, dtype in op.attr("steps"):
            values: list[Any] = []
            for kind, value in args:
                if kind == "in":
                    values.append(_wide(np.asarray(arrays[value])))
                elif kind == "step":
                    values.append(_wide(results[value]))
                else:
                    values.append(value)
            if fn not in FUNCTIONS:
                raise InvariantError(f"Op '{op.name}' uses the unknown function '{fn}'.")
            results.append(np.asarray(FUNCTIONS[fn](*values)).astype(NUMPY[dtype]))
    return np.broadcast_to(results[-1], tuple(len(r) for r in output))


def vector_dtype(dtypes: Sequence[str]) -> str:
    """Type whose vector rate applies: the widest float, fp32 for integers and booleans."""
    floats = [d for d in dtypes if d in FLOATS]
    if len(floats) < len(dtypes) or not floats:
        return "fp32"
    return max(floats, key=FLOATS.index)


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    steps = op.attr("steps")
    elements = prod(output)
    traffic = sum(prod(s) * size_bytes(d) for s, d in zip(shapes, dtypes, strict=True))
    return Work(
        vector_ops=elements * len(steps),
        vector_dtype=vector_dtype([s[2] for s in steps if s[2] in FLOATS] or ["fp32"]),
        sram_bytes=traffic + elements * size_bytes(output_dtype),
    )


RECORD = OpRecord("map", _space, _evaluate, _work)
