"""The order in which a list of nodes is walked, and cycles that have none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def needed(
    nodes: Sequence[Any], wanted: Iterable[str], env: Mapping[str, Any]
) -> list[tuple[int, tuple[bool, ...]]]:
    """Indices of the nodes that make `wanted`, in an order in which operands come first, with
    which of their outputs are used."""
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    reads = [_reads(node) for node in nodes]
    used: set[str] = set(wanted)
    seen: set[int] = set()
    stack = [maker[n] for n in used if n in maker]
    while stack:
        i = stack.pop()
        if i in seen:
            continue
        seen.add(i)
        for name in reads[i]:
            used.add(name)
            if name in maker and maker[name] not in seen:
                stack.append(maker[name])
    order: list[int] = sorted(seen)
    if any(maker.get(n, -1) >= i for i in order for n in reads[i]):
        order = _in_order(order, reads, maker)
    return [(i, tuple(n in used for n in nodes[i].output)) for i in order]


def _reads(node: Any) -> list[str]:
    names = [n for n in node.input if n]
    for attr in node.attribute:
        if attr.HasField("g"):
            inner = {t.name for t in (*attr.g.initializer, *attr.g.input)} | {
                n for x in attr.g.node for n in x.output
            }
            for x in attr.g.node:
                names += [n for n in _reads(x) if n not in inner]
            names += [o.name for o in attr.g.output if o.name not in inner]
    return names


def _in_order(order: list[int], reads: list[list[str]], maker: dict[str, int]) -> list[int]:
    """Topological order of nodes that are stored out of order."""
    done: list[int] = []
    state: dict[int, int] = {}
    for root in order:
        stack = [(root, False)]
        while stack:
            i, ready = stack.pop()
            if ready:
                done.append(i)
                continue
            if i in state:
                continue
            state[i] = 1
            stack.append((i, True))
            stack += [(maker[n], False) for n in reversed(reads[i]) if n in maker]
    return done


def cycle(proto: Any) -> str:
    """The nodes of a cycle in the graph, a subgraph or a function as text; "" where there is none.

    Names at most three of them.
    """
    stack = [proto.graph, *proto.functions]
    while stack:
        graph = stack.pop()
        nodes = list(graph.node)
        found = _circle(nodes)
        if found:
            listed = [f"'{nodes[i].name or next(iter(nodes[i].output))}'" for i in found]
            more = len(listed) - 3
            return ", ".join(listed[:3]) + (f" and {more} more nodes" if more > 0 else "")
        stack += [a.g for n in nodes for a in n.attribute if a.HasField("g")]
    return ""


def _circle(nodes: Sequence[Any]) -> list[int]:
    """Indices of nodes each of which reads what the one before it makes, around a cycle."""
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    before = [[maker[n] for n in _reads(node) if n in maker] for node in nodes]
    state = [0] * len(nodes)  # 1: on the path, 2: done
    for root in range(len(nodes)):
        path = [(root, iter(before[root]))] if not state[root] else []
        state[root] = state[root] or 1
        while path:
            at, rest = path[-1]
            after = next(rest, None)
            if after is None:
                state[at] = 2
                path.pop()
            elif state[after] == 1:
                own = [i for i, _ in path]
                return own[own.index(after) :][::-1]
            elif not state[after]:
                state[after] = 1
                path.append((after, iter(before[after])))
    return []
