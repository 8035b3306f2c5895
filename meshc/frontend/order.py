"""The canonical order of ops: layers come out as equal runs whatever the exporter's order was.

Depth-first from the logits, operands in order. Ops that only other outputs need (a cache append
in a graph without a past) stand right behind the last operand that the order already has.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from meshc.frontend.builder import Node, Value
from meshc.frontend.simplify import Net, visit


def ordered(
    net: Net,
    main: str,
    moving: Collection[str] = (),
    after: Mapping[int, Sequence[Node]] | None = None,
) -> list[Node]:
    """All nodes; `main` names the output that the order starts from.

    What depends on run-time inputs other than the `moving` ones alone (a mask) comes first: all
    layers read it. after: nodes by id → nodes that they stand behind though they do not read them.
    """
    after = after or {}
    roots = sorted(net.roots, key=lambda r: r[0] != main)
    seen: set[int] = set()
    spine: list[Node] = []
    steady = steady_nodes(net, moving)
    for node in net.nodes():
        if id(node) not in steady:
            for v in node.inputs:
                if v.node is not None and id(v.node) in steady:
                    visit(v, seen, spine)
    visit(roots[0][1], seen, spine)
    place = {id(n): i for i, n in enumerate(spine)}
    behind: dict[int, list[Node]] = {}
    for _, value in roots[1:]:
        chain: list[Node] = []
        visit(value, seen, chain)
        if not chain:
            continue
        anchors = [
            place[id(v.node)] for n in chain for v in n.inputs if v.node and id(v.node) in place
        ]
        anchors += [place[id(m)] for n in chain for m in after.get(id(n), ()) if id(m) in place]
        anchor = max(anchors, default=len(spine) - 1)
        behind.setdefault(anchor, []).extend(chain)
        place.update((id(n), anchor) for n in chain)
    order: list[Node] = []
    for i, node in enumerate(spine):
        order.append(node)
        order.extend(behind.get(i, ()))
    for i, node in enumerate(order):
        node.order = i
    return order


def steady_nodes(net: Net, moving: Collection[str]) -> set[int]:
    """Ids of the nodes that read constants and run-time inputs other than `moving`, and at least
    one of the latter: what reads constants alone unpacks the weights of one layer."""
    steady: set[int] = set()
    stored: set[int] = set()
    for node in net.nodes():
        makers = [id(v.node) for v in node.inputs if v.node is not None]
        given = [v.name for v in node.inputs if v.node is None and v.const is None]
        if not given and stored.issuperset(makers):
            stored.add(id(node))
        elif all(
            v.const is not None
            or (v.source == "INPUT" and v.name not in moving)
            or (v.node is not None and id(v.node) in steady | stored)
            for v in node.inputs
        ):
            steady.add(id(node))
    return steady


def share_steady(net: Net, moving: Collection[str]) -> None:
    """Equal computations on masks and positions, which exporters repeat per layer, become one."""
    steady = steady_nodes(net, moving)
    kept: dict[Hashable, Value] = {}
    replaced: dict[int, Value] = {}
    for node in net.nodes():
        node.inputs = [replaced.get(id(v), v) for v in node.inputs]
        if id(node) not in steady or net.is_root(node.output):
            continue
        attrs = tuple(sorted(node.attrs.items()))
        out = node.output
        key = (node.kind, attrs, tuple(map(id, node.inputs)), out.shape, out.labels, out.dtype)
        replaced[id(out)] = kept.setdefault(key, out)


def main_output(names: list[str]) -> str:
    """The output that the layers lead to: the logits, or the first one."""
    for wanted in ("logits", "last_hidden_state"):
        if wanted in names:
            return wanted
    return next((n for n in names if "logit" in n.lower()), names[0])
