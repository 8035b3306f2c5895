"""Graphs that round numbers to a few bits, and how far their outputs may differ.

Two computers that add in different orders differ by some units in the last place; where a value
lies between two steps of a quantised type, they then round it to different steps, and the outputs
differ by as much as that step is worth to them. How much that is, the graph itself tells: it is run
again by ONNX Runtime with every value that it rounds moved by a thousandth of a step, which is more
than the noise of fp32 sums, once up and once down. Twice what the outputs move by is added to
the tolerance where the plain one is exceeded; graphs that round nothing are not affected.

ONNX Runtime also rounds where the graph does not: for MatMulNBits with accuracy_level 4, which is
a hint, for a DequantizeLinear before a MatMul, and for a QMoE with 8-bit weights in blocks, which
it packs for an integer product, it rounds activations to 8 bits. Graphs are run as they are
written instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

STEP = 1e-3  # by which values are moved, in steps of the type that they are rounded to
RELATIVE = 2.0**-18  # the same where only a scale can be moved: of the largest of 255 steps
_HALF = 100  # times as much for halves, whose noise is that much larger
_HALF_RELATIVE = 2.0**-9

_BY_STEP = {"QuantizeLinear": (0, 1)}  # operator → place of the value and of its scale
_BY_RANGE = {"DynamicQuantizeLinear": 0, "DynamicQuantizeMatMul": 0}
_BY_ONE = {"Round": 0}
_BY_SCALE = {  # operator → places of scales, of which a thousandth of a step is a share
    "QLinearMatMul": (6,), "QGemm": (7,), "QLinearAdd": (6,), "QLinearMul": (6,),
    "QLinearSigmoid": (3,), "QLinearLeakyRelu": (3,), "QLinearSoftmax": (3,),
    "QLinearConcat": (0,), "QLinearWhere": (7,), "GroupQueryAttention": (12, 13),
}  # fmt: skip


def as_written(proto: Any) -> Any | None:
    """The model without the hint that activations may be rounded; None where it has none."""
    if not any(a.i > 1 for a in _levels(proto)):
        return None
    copy = type(proto)()
    copy.CopyFrom(proto)
    for level in _levels(copy):
        level.i = 1  # fp32
    return copy


def _levels(proto: Any) -> Iterator[Any]:
    for node in _nodes(proto):
        if node.domain == "com.microsoft":
            yield from (a for a in node.attribute if a.name == "accuracy_level")


def dequantises(proto: Any) -> bool:
    """Whether ONNX Runtime may round activations for the sake of a DequantizeLinear."""
    return any(node.op_type == "DequantizeLinear" for node in _nodes(proto))


def packs(proto: Any) -> bool:
    """Whether ONNX Runtime may round activations for the sake of weights that it has packed."""
    return any(
        a.name.endswith("expert_weight_bits") and a.i == 8
        for node in _nodes(proto)
        if node.op_type == "QMoE"
        for a in node.attribute
    )


def rounds(proto: Any) -> bool:
    """Whether the graph rounds run-time values to a quantised type."""
    return any(_moves(node) for node in _nodes(proto))


def moved(proto: Any, sign: int) -> Any:
    """The model with every value that it rounds moved up (sign 1) or down (-1) a little."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    edit = _Edit(copy, sign)
    for graph in _graphs(copy.graph):
        edit.graph(graph)
    for function in copy.functions:
        edit.graph(function)
    return copy


def _moves(node: Any) -> bool:
    op = node.op_type
    if op in _BY_SCALE:
        return any(i < len(node.input) and node.input[i] for i in _BY_SCALE[op])
    return op in _BY_STEP or op in _BY_RANGE or op in _BY_ONE


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and those inside its nodes."""
    stack = [graph]
    while stack:
        top = stack.pop()
        yield top
        stack += [a.g for node in top.node for a in node.attribute if a.HasField("g")]


def _nodes(proto: Any) -> Iterator[Any]:
    for graph in _graphs(proto.graph):
        yield from graph.node
    for function in proto.functions:
        yield from function.node


class _Edit:
    """Puts an addition in front of what rounds."""

    def __init__(self, proto: Any, sign: int) -> None:
        self.sign, self.count = sign, 0
        self.types = {t.name: t.data_type for t in proto.graph.initializer}
        self.shapes = {t.name: tuple(t.dims) for t in proto.graph.initializer}
        for graph in _graphs(proto.graph):
            for node in graph.node:
                if node.op_type == "Constant":
                    for attr in node.attribute:
                        if attr.HasField("t"):
                            self.types[node.output[0]] = attr.t.data_type
                            self.shapes[node.output[0]] = tuple(attr.t.dims)
            for info in (*graph.input, *graph.value_info):
                self.types.setdefault(info.name, info.type.tensor_type.elem_type)

    def graph(self, graph: Any) -> None:
        nodes = []
        for node in graph.node:
            if _moves(node):
                nodes += self._before(node)
            nodes.append(node)
        kept = [type(n)() for n in nodes]
        for copy, node in zip(kept, nodes, strict=True):
            copy.CopyFrom(node)
        del graph.node[:]
        graph.node.extend(kept)

    def _before(self, node: Any) -> list[Any]:
        """Nodes that make the moved operands, which the node then reads."""
        op = node.op_type
        made: list[Any] = []
        if op in _BY_STEP:
            value, scale = (node.input[i] for i in _BY_STEP[op])
            if self.shapes.get(scale, ()) in ((), (1,)):
                part = self._times(made, scale, STEP)
                node.input[0] = self._node(made, "Add", value, part)
            else:  # a scale per element of an axis: its share of the largest number
                node.input[1] = self._times(made, scale, 1 + STEP / 127, raw=True)
        elif op in _BY_RANGE:
            value = node.input[0]
            codes, scale, zero = (self._name() for _ in range(3))
            made.append(_make("DynamicQuantizeLinear", [value], [codes, scale, zero]))
            node.input[0] = self._node(made, "Add", value, self._times(made, scale, STEP))
        elif op in _BY_ONE:
            one = self._constant(made, STEP * self.sign, self.types.get(node.input[0], 1))
            node.input[0] = self._node(made, "Add", node.input[0], one)
        else:
            for i in _BY_SCALE[op]:
                if i < len(node.input) and node.input[i]:
                    node.input[i] = self._times(made, node.input[i], 1 + RELATIVE, raw=True)
        return made

    def _times(self, made: list[Any], scale: str, factor: float, raw: bool = False) -> str:
        """scale · factor with the sign; raw: the sign is that of the factor's distance from 1."""
        dtype = self.types.get(scale, 1)
        half = dtype in (10, 16)
        if raw:
            number = 1 + (_HALF_RELATIVE if half else factor - 1) * self.sign
        else:
            number = factor * (_HALF if half else 1) * self.sign
        return self._node(made, "Mul", scale, self._constant(made, number, dtype))

    def _constant(self, made: list[Any], number: float, dtype: int) -> str:
        from onnx import helper

        value = helper.make_tensor("", dtype, (), [number])
        name = self._name()
        made.append(helper.make_node("Constant", [], [name], value=value))
        return name

    def _node(self, made: list[Any], op: str, *inputs: str) -> str:
        name = self._name()
        made.append(_make(op, inputs, [name]))
        return name

    def _name(self) -> str:
        self.count += 1
        return f"moved value {self.count}"


def _make(op: str, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    from onnx import helper

    return helper.make_node(op, list(inputs), list(outputs))


def steps(proto: Any, expected: Mapping[str, np.ndarray]) -> dict[str, float]:
    """One step of each output that is quantised itself: 1, or one in each half of a byte that
    holds two numbers; 0 for floats."""
    halves = set()
    for node in _nodes(proto):
        if node.op_type == "GroupQueryAttention" and any(
            a.name == "kv_cache_bit_width" and a.i == 4 for a in node.attribute
        ):
            halves |= set(node.output[1:])
    return {
        name: (17.0 if name in halves else 1.0) if array.dtype.itemsize == 1 else 0.0
        for name, array in expected.items()
    }


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Largest finite difference between two results."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    finite = apart[np.isfinite(apart)]
    return float(finite.max()) if finite.size else 0.0
