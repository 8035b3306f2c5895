"""`meshc ops`: which operators a model has, what becomes of each, and which patterns are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshc import frontend
from meshc.errors import InputError
from meshc.fusion import fuse
from meshc.patterns import FORMS


@dataclass(frozen=True)
class Row:
    """One operator: nodes, how many of them have each fate, and the status of all together, which
    is "unsupported" where any node is, else the most frequent fate."""

    operator: str
    nodes: int
    fates: Mapping[frontend.Fate, int]

    @property
    def status(self) -> frontend.Fate:
        if self.fates.get("unsupported"):
            return "unsupported"
        return max(frontend.FATES, key=lambda f: self.fates.get(f, 0))


@dataclass(frozen=True)
class Operators:
    """rows: by falling number of nodes.   patterns: kernels of each, repeated layers counted.
    reason: why the model cannot be compiled, "" where it can."""

    rows: tuple[Row, ...]
    patterns: Mapping[str, int]
    reason: str


def operators(path: str | Path, **flags: Any) -> Operators:
    """Survey a model for the workload that the flags (those of `meshc.frontend.workloads`) ask for.

    Raises InputError for a file that cannot be read.
    """
    model = frontend.load_model(path)
    tables: list[dict[str, Counter[frontend.Fate]]] = []
    patterns: Counter[str] = Counter()
    reason = ""
    try:
        for m, workload in frontend.workloads(model, **flags).values():
            survey = frontend.Survey()
            try:
                graph = fuse(frontend.bind(m, workload, survey=survey).graph, FORMS)
            except InputError:
                if survey.known or survey.live:
                    tables = [survey.table(None)]
                raise
            tables.append(survey.table(graph))
            found: Counter[str] = Counter()
            for segment, op in graph.ops():
                if op.attr("pattern") or op.kind == "experts":
                    found[op.core] += segment.repeat
            patterns |= found
    except InputError as error:
        reason = str(error)
    rows = _rows(tables) if tables else _unbound(model)
    return Operators(tuple(rows), dict(patterns.most_common()), reason)


def _rows(tables: list[dict[str, Counter[frontend.Fate]]]) -> list[Row]:
    """The phases' tables as one: of each operator the phase that leaves it most to do."""
    rows = []
    for name in {n: None for t in tables for n in t}:
        fates = min((t[name] for t in tables if name in t), key=lambda f: f["folded"])
        rows.append(Row(name, fates.total(), dict(fates)))
    return sorted(rows, key=lambda r: (-r.nodes, r.operator))


def _unbound(model: frontend.Model) -> list[Row]:
    """Of a model that cannot be bound: only whether an operator is known."""
    counts: Counter[tuple[str, str]] = Counter()
    for node in model.nodes():
        name = frontend.operator_name(node)
        domain, _, op = name.rpartition(":")
        known = frontend.supported(domain, op, model.opsets.get(domain, 1))
        known = known or (domain, op) in model.functions
        counts[name, "executed" if known else "unsupported"] += 1
    return sorted(
        (Row(name, n, {fate: n}) for (name, fate), n in counts.items()),  # type: ignore[dict-item]
        key=lambda r: (-r.nodes, r.operator),
    )
