"""Which operators a model has, and what meshc does with each."""

from __future__ import annotations

from collections import Counter

from meshc.frontend import lower_fold
from meshc.frontend.operators import CONTROL, LOWERINGS
from meshc.frontend.reader import Model, domain_of
from meshc.frontend.standard import defined


def operator_table(model: Model) -> list[tuple[str, int, str]]:
    """(operator, nodes, status) by falling count; status is "lowered", "folded", "inlined",
    or "unsupported unless constant"."""
    counts = Counter((domain_of(n), n.op_type) for n in model.nodes())
    rows = []
    for (domain, op), n in sorted(counts.items(), key=lambda c: (-c[1], c[0])):
        name = f"{domain}:{op}" if domain else op
        rows.append((name, n, _status(model, (domain, op))))
    return rows


def _status(model: Model, key: tuple[str, str]) -> str:
    if key in model.functions:
        return "inlined"
    if key in lower_fold.TABLE or key in CONTROL:
        return "folded"
    if key in LOWERINGS:
        return "lowered"
    if defined(*key, model.opsets.get(key[0], 1)):
        return "inlined"
    return "unsupported unless constant" if not key[0] else "unsupported"
