"""One product whose columns are cut apart and joined again elementwise becomes a product per part.

Exporters put gate and up projection of a gated MLP side by side in one weight. A lane would then
hold columns whose partners lie on another one; as products of their own the parts are divided
alike.
"""

from __future__ import annotations

from meshc.frontend.builder import Builder, Node
from meshc.frontend.labels import FIXED
from meshc.frontend.simplify import Net


def split_gates(net: Net, b: Builder) -> None:
    """Cut the weights of every such product instead of its result."""
    readers = net.consumers()
    for node in net.nodes():
        if node.kind != "matmul" or net.is_root(node.output):
            continue
        weight = node.inputs[1]
        if weight.const is None or len(readers.get(id(weight), ())) != 1 or weight.rank != 2:
            continue
        cuts = readers.get(id(node.output), [])
        if len(cuts) < 2 or not all(_is_gate(cut, node, readers, net) for cut in cuts):
            continue
        axis = 0 if node.attrs["transpose_b"] else 1
        for cut in cuts:
            start, size = cut.attrs["start"], cut.output.shape[-1]
            b.scope, b.source, b.made = weight.name, node.source, []
            part = b.slice(weight, axis, start, size, FIXED)
            part.name = b.unique(f"{weight.name}.{start}")
            b.made = []
            cut.kind, cut.inputs, cut.attrs = "matmul", [node.inputs[0], part], dict(node.attrs)


def _is_gate(cut: Node, node: Node, readers: dict[int, list[Node]], net: Net) -> bool:
    """Whether a reader of the product takes neighbouring columns that only elementwise ops read."""
    if cut.kind != "slice" or cut.attrs["axis"] != node.output.rank - 1:
        return False
    if cut.attrs["step"] != 1 or cut.output.labels[-1] != FIXED or net.is_root(cut.output):
        return False
    after = readers.get(id(cut.output), [])
    return bool(after) and all(r.kind == "map" for r in after)
