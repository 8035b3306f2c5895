"""One operator call as lowerings see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.folding import Const
from meshc.frontend.reader import DTYPES


@dataclass
class Call:
    """An ONNX node: its type, attributes, number of outputs and which of them are used.

    opset: version of the node's domain.   phase: of the workload that is bound.
    read: the attributes that the lowering has looked at; others must have their defaults.
    """

    domain: str
    op: str
    name: str
    attrs: dict[str, Any]
    opset: int
    used: tuple[bool, ...] = (True,)
    phase: str = "prefill"
    extra: dict[str, Any] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    @property
    def outputs(self) -> int:
        return len(self.used)

    def attr(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def ignore(self, *names: str) -> None:
        """Attributes that change nothing here."""
        self.read.update(names)

    def wants(self, i: int) -> bool:
        """Whether anything reads output `i`."""
        return i < len(self.used) and self.used[i]


Lowering = Callable[[Builder, Call, Sequence[Value | None]], Sequence[Value | None]]


def need(x: Sequence[Value | None], i: int) -> Value:
    """Operand `i`, which must be there."""
    value = x[i] if i < len(x) else None
    if value is None:
        raise Unsupported(f"without its input {i}")
    return value


def optional(x: Sequence[Value | None], i: int) -> Value | None:
    return x[i] if i < len(x) else None


def known(x: Sequence[Value | None], i: int) -> Const:
    """Operand `i`, whose value must be known when compiling."""
    const = need(x, i).const
    if const is None:
        raise Unsupported("with sizes or indices that depend on run-time data")
    return const


def onnx_dtype(number: int) -> str:
    if number not in DTYPES:
        raise Unsupported(f"of ONNX element type {number}")
    return DTYPES[number]
