"""What meshc knows about an op kind.

An op is described by an iteration space: named dimensions, and for every operand dimension the
iteration dimension (and unit) that it runs along. Dividing an iteration dimension over a mesh
axis divides every operand dimension that uses it; dividing one of kind "sum" or "max" leaves a
partial result in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshc.ir.graph import Op, Tensor

DimKind = Literal["parallel", "sum", "max", "min", "prod", "attend", "whole"]
PARTIAL = ("sum", "max", "min", "prod", "attend")  # kinds that leave partial results when divided
ROW_BLOCK = 32  # rows that a kernel with temporaries works on at a time
Ranges = tuple[range, ...]


@dataclass(frozen=True)
class IterDim:
    """An iteration dimension: its size in units and what dividing it means."""

    name: str
    size: int
    kind: DimKind


@dataclass(frozen=True)
class Use:
    """An operand dimension runs along iteration dimension `dim` in units of `unit` elements;
    dim None: every lane needs the whole dimension."""

    dim: int | None = None
    unit: int = 1


@dataclass(frozen=True)
class Space:
    """Iteration space of one op; `inputs` and `output` have one Use per operand dimension."""

    dims: tuple[IterDim, ...]
    inputs: tuple[tuple[Use, ...], ...]
    output: tuple[Use, ...]


@dataclass(frozen=True)
class Work:
    """What one lane does for an op: multiply-accumulates (as m, k, n, count of matmuls),
    vector operations, and SRAM bytes read and written, each for the dtype computed in.

    inner_bytes: those of sram_bytes that are temporaries of the op itself.
    stored: the type that weights are stored in where it is not `dtype`, "" else; an engine with a
    rate for it multiplies at that rate.   restore_ops: vector operations that make `dtype` of it
    where the engine has none.
    """

    matmuls: tuple[tuple[int, int, int, int], ...] = ()
    dtype: str = "fp32"
    vector_ops: float = 0
    vector_dtype: str = "fp32"
    sram_bytes: int = 0
    inner_bytes: int = 0
    stored: str = ""
    restore_ops: float = 0

    @property
    def macs(self) -> int:
        return sum(m * k * n * c for m, k, n, c in self.matmuls)


def _none(*_: object) -> int:
    return 0


@dataclass(frozen=True)
class OpRecord:
    """Everything meshc knows about one op kind.

    space: (op, input tensors, output tensor) → Space.
    evaluate: (op, local inputs, ranges of the inputs, ranges of the output) → local output as
        float32 or its own dtype; the caller rounds it to the output's dtype.
    work: (op, local input shapes, local output shape, input dtypes, output dtype) → Work; of the
        busiest lane where lanes with equal shapes differ.
    share: where they do: (op, ranges of the inputs, ranges of the output, input dtypes, output
        dtype, layer or -1) → Work of the lane that holds these parts.
    scratch: with the arguments of work, bytes of SRAM that the kernel needs beside its operands.
    passes: (operand, times that it is read from beginning to end) where more than once.
    """

    kind: str
    space: Callable[[Op, Sequence[Tensor], Tensor], Space]
    evaluate: Callable[[Op, Sequence[np.ndarray], Sequence[Ranges], Ranges], np.ndarray]
    work: Callable[[Op, Sequence[tuple[int, ...]], tuple[int, ...], Sequence[str], str], Work]
    share: Callable[[Op, Sequence[Ranges], Ranges, Sequence[str], str, int], Work] | None = None
    scratch: Callable[[Op, Sequence[tuple[int, ...]], tuple[int, ...], Sequence[str], str], int] = (
        _none
    )
    passes: tuple[tuple[int, int], ...] = ()


def blocked(m: int, k: int, n: int, count: int) -> tuple[tuple[int, int, int, int], ...]:
    """Matmuls of m rows done ROW_BLOCK rows at a time."""
    if not m * k * n * count:
        return ()
    whole, rest = divmod(m, ROW_BLOCK)
    parts = ((ROW_BLOCK, k, n, count * whole), (rest, k, n, count))
    return tuple(p for p in parts if p[0] and p[3])


def along_one_axis(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    """Space of an op whose attribute `axis` every lane needs whole; the others are parallel."""
    (t,) = inputs
    del output
    axis = op.attr("axis")
    dims = tuple(
        IterDim(f"d{i}", n, "whole" if i == axis else "parallel") for i, n in enumerate(t.shape)
    )
    uses = tuple(Use(None) if i == axis else Use(i) for i in range(len(t.shape)))
    return Space(dims, (uses,), uses)
