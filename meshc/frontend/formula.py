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


def overflown(at: Term, kind: str, place: int) -> list[tuple[Any, ...]]:
    """Steps from number `place` on that leave of the fp32 value at `at` what ONNX Runtime makes of
    it beyond the largest 8-bit float where a cast does not saturate; none where that is the cast's
    own rule.

    Its e4m3fn takes 480 up to 496 for the largest number, and its e5m2 has no number from the
    middle between the largest one and the next power of two up to that.
    """
    rules = {"fp8e4m3fn": (480.0, 496.0), "fp8e5m2": (61440.0, 65536.0)}
    if kind not in rules:
        return []
    low, high = rules[kind]

    def step(i: int) -> Term:
        return "step", place + i

    if kind == "fp8e4m3fn":
        instead = [("sign", (at,), "fp32"), ("mul", (step(4), 448.0), "fp32")]
    else:
        instead = [("mul", (at, 0.0), "fp32"), ("div", (step(4), step(4)), "fp32")]
    return [
        ("abs", (at,), "fp32"),
        ("greaterorequal", (step(0), low), "bool"),
        ("less", (step(0), high), "bool"),
        ("and", (step(1), step(2)), "bool"),
        *instead,
        ("where", (step(3), step(5), at), "fp32"),
    ]


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
