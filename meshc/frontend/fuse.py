"""Merge chains of elementwise ops: one `map` with several steps instead of several maps.

Every step keeps its own dtype, so the result is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from meshc.frontend.builder import Node, Value
from meshc.frontend.simplify import Net

LIMIT = 32  # steps in one map


def fuse(net: Net, layer: Mapping[int, int], kept: Collection[int]) -> None:
    """Pull every map that is read by one map of the same shape into its reader.

    layer: number of the layer that a node (by id) belongs to; nothing is merged across layers,
    nor are the values in `kept` (by id), which leave a layer, so that layers stay equal.
    """
    counts: dict[int, set[int]] = {}
    nodes = net.nodes()
    for node in nodes:
        for v in node.inputs:
            counts.setdefault(id(v), set()).add(id(node))
    fixed = {id(v) for _, v in net.roots} | set(kept)
    for node in reversed(nodes):
        if node.kind != "map":
            continue
        while True:
            own = layer.get(id(node))
            near = [v for v in node.inputs if v.node and layer.get(id(v.node)) == own]
            found = next((v for v in near if _fits(v, node, counts, fixed)), None)
            if found is None or found.node is None:
                break
            for v in found.node.inputs:
                readers = counts[id(v)]
                readers.discard(id(found.node))
                readers.add(id(node))
            _merge(found.node, node)


def _fits(v: Value, reader: Node, counts: dict[int, set[int]], fixed: set[int]) -> bool:
    maker = v.node
    if maker is None or maker.kind != "map" or id(v) in fixed:
        return False
    if v.shape != reader.output.shape or v.labels != reader.output.labels:
        return False
    if counts[id(v)] != {id(reader)}:
        return False
    return len(maker.attrs["steps"]) + len(reader.attrs["steps"]) <= LIMIT


def _merge(maker: Node, reader: Node) -> None:
    """The maker's steps run first; its inputs take the place of its output."""
    at = next(i for i, v in enumerate(reader.inputs) if v is maker.output)
    operands: list[Value] = []

    def place(v: Value) -> int:
        for i, known in enumerate(operands):
            if known is v:
                return i
        operands.append(v)
        return len(operands) - 1

    first: dict[int, tuple[str, Any]] = {}
    second: dict[int, tuple[str, Any]] = {}
    count = len(maker.attrs["steps"])
    for i, v in enumerate(reader.inputs):
        if i == at:
            for j, w in enumerate(maker.inputs):
                first[j] = ("in", place(w))
        elif v is not maker.output:
            second[i] = ("in", place(v))
    for i, v in enumerate(reader.inputs):
        if v is maker.output:
            second[i] = ("step", count - 1)

    def shift(arg: tuple[str, Any], inputs: dict[int, tuple[str, Any]], by: int) -> tuple[str, Any]:
        if arg[0] == "in":
            return inputs[arg[1]]
        return ("step", arg[1] + by) if arg[0] == "step" else arg

    steps = [
        (fn, tuple(shift(a, first, 0) for a in args), dtype)
        for fn, args, dtype in maker.attrs["steps"]
    ]
    steps += [
        (fn, tuple(shift(a, second, count) for a in args), dtype)
        for fn, args, dtype in reader.attrs["steps"]
    ]
    reader.inputs = operands
    reader.attrs = {"steps": tuple(steps)}
