"""The model as a graph of ops with every shape bound for one workload.

The graph is cut into segments that run one after the other. A segment whose ops repeat (the
decoder's layers) is stored once with its repeat count; its weights, caches and outputs then
have one instance per repetition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from meshc.errors import InvariantError
from meshc.ir.dtypes import NUMPY, size_bytes

TensorKind = Literal["INPUT", "WEIGHT", "CONSTANT", "CACHE", "ACTIVATION", "OUTPUT"]


@dataclass(frozen=True)
class Tensor:
    """One tensor.

    kind: INPUT is given at run time; WEIGHT comes from the model file; CONSTANT was folded from
        the workload (masks, rotary tables) and changes with the context; CACHE is a past key or
        value that stays on the chip; OUTPUT leaves the graph; ACTIVATION is the rest.
    shape: elements, all bound.   dtype: a name of `dtypes.NUMPY`.
    instances: names in the model, one per repetition of the segment (length 1 outside repeats);
        for ACTIVATION tensors just the name of the first.
    """

    name: str
    kind: TensorKind
    shape: tuple[int, ...]
    dtype: str
    instances: tuple[str, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * size_bytes(self.dtype)


@dataclass(frozen=True)
class Op:
    """One operation with one output.

    kind: a key of `meshc.ops.RECORDS`.   attrs: (name, value) pairs sorted by name; values are
    numbers, strings and tuples of them.   source: ONNX node names that it came from.
    body: for kind "fused", the primitive ops it runs in order; the last one makes the output.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    output: str
    attrs: tuple[tuple[str, Any], ...] = ()
    source: tuple[str, ...] = ()
    body: tuple[Op, ...] = ()

    @property
    def core(self) -> str:
        """What characterises the op: the name of the pattern that a fused op is, or the kind of its
        core; any other op's own kind."""
        return str(self.attr("pattern") or self.attr("core", self.kind))

    def attr(self, name: str, default: Any = None) -> Any:
        for key, value in self.attrs:
            if key == name:
                return value
        return default


@dataclass(frozen=True)
class Segment:
    """Ops that run `repeat` times in a row.

    carried: (tensor read by the body, tensor of the body that replaces it in the next
    repetition); the tensor read holds the value from before the segment the first time.
    """

    name: str
    ops: tuple[Op, ...]
    repeat: int = 1
    carried: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CachePair:
    """A KV-cache stream: the past tensor (None for a graph without past) and its present one.

    axis: the dimension that counts tokens; None where it never grows.
    """

    past: str | None
    present: str
    axis: int | None


@dataclass(frozen=True)
class Graph:
    """A bound model. `tensors` holds every tensor by name, `segments` the ops in order."""

    name: str
    tensors: dict[str, Tensor]
    segments: tuple[Segment, ...]
    inputs: tuple[str, ...]  # run-time INPUT tensors, as the model names them
    outputs: tuple[tuple[str, str, int], ...]  # (name in the model, tensor, repetition)
    caches: tuple[CachePair, ...] = ()
    parameters: int = 0
    sha256: str = ""
    node_count: int = 0
    folded_inputs: tuple[str, ...] = field(default=())

    def ops(self) -> Iterator[tuple[Segment, Op]]:
        for segment in self.segments:
            for op in segment.ops:
                yield segment, op

    def verify(self) -> None:
        """Raise InvariantError unless ops are ordered, names are known and shapes are bound."""
        known = {
            t.name
            for t in self.tensors.values()
            if t.kind in ("INPUT", "WEIGHT", "CONSTANT", "CACHE")
        }
        for segment in self.segments:
            known |= {a for a, _ in segment.carried}
            for op in segment.ops:
                for name in (*op.inputs, op.output):
                    if name not in self.tensors:
                        raise InvariantError(f"Op '{op.name}' names the unknown tensor '{name}'.")
                missing = [n for n in op.inputs if n not in known]
                if missing:
                    raise InvariantError(f"Op '{op.name}' reads '{missing[0]}' before it is made.")
                known.add(op.output)
            for _, out in segment.carried:
                if out not in known:
                    raise InvariantError(f"Segment '{segment.name}' carries unmade '{out}'.")
        for t in self.tensors.values():
            if any(n < 0 for n in t.shape) or t.dtype not in NUMPY:
                raise InvariantError(f"Tensor '{t.name}' has shape {t.shape} of '{t.dtype}'.")

    def dump(self) -> str:
        """Canonical text."""
        lines = [f"graph {self.name} sha256={self.sha256}"]
        for segment in self.segments:
            lines.append(f"segment {segment.name} × {segment.repeat}")
            lines += [f"  carried {a} <- {b}" for a, b in segment.carried]
            for op in segment.ops:
                lines.append("  " + op_text(op, self.tensors))
                lines += ["    " + op_text(inner, {}) for inner in op.body]
        lines += [f"output {a} = {b}#{i}" for a, b, i in self.outputs]
        return "\n".join(lines) + "\n"


def op_text(op: Op, tensors: dict[str, Tensor]) -> str:
    """One line for one op."""

    def text(name: str) -> str:
        t = tensors.get(name)
        return f"{name}:{t.kind[0]}{list(t.shape)}{t.dtype}" if t else name

    attrs = " ".join(f"{k}={v}" for k, v in op.attrs)
    operands = ", ".join(text(i) for i in op.inputs)
    return f"{text(op.output)} = {op.kind}({operands}) {attrs}".rstrip()
