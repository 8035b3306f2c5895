"""Elementwise expressions written one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshc.frontend.builder import Builder, Value
from meshc.ir.dtypes import FLOATS

Term = tuple[str, int] | float | int | bool


class Formula:
    """Collects the steps of a map. Calling it adds a step and returns a handle for its result.

    dtype: of every step that names no other.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.steps: list[tuple[Any, ...]] = []

    def __call__(self, fn: str, *args: Term, dtype: str = "") -> tuple[str, int]:
        self.steps.append((fn, args, dtype or self.dtype))
        return "step", len(self.steps) - 1

    def test(self, fn: str, *args: Term) -> tuple[str, int]:
        """A step whose result is a truth value."""
        return self(fn, *args, dtype="bool")


def inner_dtype(dtype: str) -> str:
    """Type that a fused operator computes in: halves in fp32, as ONNX Runtime does."""
    return "fp32" if dtype in ("fp16", "bf16") else dtype


def formula(
    b: Builder,
    inputs: Sequence[Value],
    write: Callable[..., object],
    dtype: str = "",
    inner: str = "",
    suffix: str = "",
) -> Value:
    """The map that `write(f, *handles of the inputs)` writes.

    dtype: of the result, by default that of the first input.   inner: of the steps before it.
    """
    dtype = dtype or inputs[0].dtype
    if not inner:
        inner = inner_dtype(dtype if dtype in FLOATS else inputs[0].dtype)
    f = Formula(inner)
    write(f, *(("in", i) for i in range(len(inputs))))
    f.steps[-1] = (*f.steps[-1][:2], dtype)
    return b.map(f.steps, inputs, suffix)
