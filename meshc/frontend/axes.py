"""Whether the axes that a node names are among the dimensions of its operand.

Lowerings count axes modulo the rank, which would hide one that is too large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshc.frontend.call import Call

# Operator → place of the operand that holds the axes; reductions keep theirs at place 1.
_OPERAND = {
    "Squeeze": 1, "Unsqueeze": 1, "CumSum": 1, "Slice": 3, "Pad": 3, "DFT": 2,
}  # fmt: skip
_SCALED = ("QuantizeLinear", "DequantizeLinear")  # their axis is that of the scale


def check_axes(call: Call, inputs: Sequence[Any]) -> None:
    """ValueError for an axis of a standard operator that is not -rank to rank - 1."""
    op = call.op
    rank = getattr(inputs[0], "rank", None) if inputs else None
    if call.domain or rank is None or not (named := _named(call, inputs)):
        return
    if op in _SCALED and (len(inputs) < 2 or not getattr(inputs[1], "rank", 0)):
        return
    if op == "Unsqueeze":
        rank += len(named)
    elif op == "OneHot":
        rank += 1
    rank = max(rank, 1)  # scalars count as vectors
    for axis in named:
        if not -rank <= axis < rank + (op == "Flatten"):
            raise ValueError(f"axis {axis} where there are {rank} dimensions")


def _named(call: Call, inputs: Sequence[Any]) -> list[int]:
    """The axes of a call as far as they are known."""
    found = []
    for name in ("axis", "axes"):
        value = call.attrs.get(name)
        if isinstance(value, int):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [int(v) for v in value]
    at = _OPERAND.get(call.op, 1 if call.op.startswith("Reduce") else 0)
    const = getattr(inputs[at], "const", None) if 0 < at < len(inputs) else None
    if const is not None and const.size <= 64 and not const.outside:
        found += [int(v) for v in const.array().reshape(-1)]
    return found
