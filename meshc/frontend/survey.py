"""What becomes of every node of a model: noted while the graph is walked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from meshc.frontend.builder import Value
from meshc.frontend.reader import domain_of
from meshc.ir.graph import Graph

Fate = Literal["fused", "executed", "folded", "unsupported"]
FATES: tuple[Fate, ...] = ("fused", "executed", "folded", "unsupported")


def operator_name(node: Any) -> str:
    """An operator as messages name it: its domain in front where it is not the standard's."""
    domain = domain_of(node)
    return f"{domain}:{node.op_type}" if domain else str(node.op_type)


@dataclass
class Survey:
    """Notes of one walk.

    known: operator → nodes by fate, of those whose fate the walk itself decides.
    live: (operator, node) of those that leave work for run time.
    first: source of a primitive in a repeated layer → that of its twin in the first layer.
    """

    known: dict[str, Counter[Fate]] = field(default_factory=dict)
    live: list[tuple[str, str]] = field(default_factory=list)
    first: dict[str, str] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget a walk that is done again."""
        self.known, self.live, self.first = {}, [], {}

    def note(self, node: Any, prefix: str, fate: Fate | None, outputs: Sequence[Any]) -> None:
        """A node that was walked; fate None where its outputs tell it."""
        if fate is None:
            values = [v for v in outputs if v is not None]
            constant = all(isinstance(v, Value) and v.const is not None for v in values)
            if not constant or not values:
                name = prefix + (node.name or next((n for n in node.output if n), node.op_type))
                self.live.append((operator_name(node), name))
                return
            fate = "folded"
        self.known.setdefault(operator_name(node), Counter())[fate] += 1

    def spare(self, nodes: Sequence[Any], walked: Iterable[int]) -> None:
        """Nodes that nothing needs, all but those walked, subgraphs included."""
        kept = set(walked)
        for i, node in enumerate(nodes):
            if i not in kept:
                self.known.setdefault(operator_name(node), Counter())["folded"] += 1
                for a in node.attribute:
                    if a.HasField("g"):
                        self.spare(list(a.g.node), ())

    def table(self, graph: Graph | None) -> dict[str, Counter[Fate]]:
        """Operator → nodes by fate. graph: with its kernels; None where there is none, so that
        what is left for run time counts as executed."""
        found = {op: Counter(fates) for op, fates in self.known.items()}
        alone: set[str] = set()
        together: set[str] = set()
        for _, made in graph.ops() if graph is not None else ():
            (alone if len(set(made.source)) == 1 else together).update(made.source)
        for name, source in self.live:
            source = self.first.get(source, source)
            by_itself = graph is None or (source in alone and source not in together)
            found.setdefault(name, Counter())["executed" if by_itself else "fused"] += 1
        return found
