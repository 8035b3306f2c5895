"""The canonical order of ops: layers come out as equal runs whatever the exporter's order was.

Depth-first from the logits, operands in order. Ops that only other outputs need (a cache append
in a graph without a past) stand right behind the last operand that the order already has.
"""

from __future__ import annotations

from meshc.frontend.builder import Node
from meshc.frontend.simplify import Net, visit


def ordered(net: Net, main: str) -> list[Node]:
    """All nodes; `main` names the output that the order starts from."""
    roots = sorted(net.roots, key=lambda r: r[0] != main)
    seen: set[int] = set()
    spine: list[Node] = []
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


def main_output(names: list[str]) -> str:
    """The output that the layers lead to: the logits, or the first one."""
    for wanted in ("logits", "last_hidden_state"):
        if wanted in names:
            return wanted
    return next((n for n in names if "logit" in n.lower()), names[0])
