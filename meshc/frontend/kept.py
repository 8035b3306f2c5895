"""How many tokens' entries a cache holds after a step.

Most graphs put out all that was cached and the new tokens. Some keep the last ones only (a sliding
window, with or without the first tokens), and some put out the new tokens' entries alone, which
whoever runs the steps appends. Told by the sizes that the present outputs get.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshc.errors import InputError
from meshc.frontend.labels import NEW
from meshc.frontend.reader import Model
from meshc.frontend.streams import Ends
from meshc.ir.graph import Graph
from meshc.ir.workload import Workload


@dataclass(frozen=True)
class Kept:
    """A growing cache after the step.

    past, present: names of the input and the output.   axis: that counts tokens.   parts: the past
    as the graph's tensors, several where a stack of caches is kept in parts.
    entries: that the present has.   fresh: the present is the new tokens' entries alone.
    """

    past: str
    present: str
    axis: int
    parts: tuple[str, ...]
    entries: int
    fresh: bool


def kept_entries(model: Model, ends: Ends) -> tuple[Kept, ...]:
    """What every growing cache holds after the step that `ends` ends.

    InputError for a window whose present has another length than its past.
    """
    outputs = {name: value for name, value in ends.roots if name}
    found = []
    for name, past in model.roles.pasts.items():
        if past.style == "window":
            _check_window(model, ends, name)
        if past.style != "grows" or past.axis is None or past.present is None:
            continue
        parts = ends.stacks.get(name, (name,))
        target = ends.stacks.get(past.present, (past.present,))[0]
        value = outputs.get(target)
        axis = past.axis - (past.stack if parts != (name,) else 0)
        if value is None or not 0 <= axis < value.rank:
            continue
        fresh = parts[0] in ends.carried and value.labels[axis] == NEW
        found.append(Kept(name, past.present, axis, parts, value.shape[axis], fresh))
    return tuple(found)


def _check_window(model: Model, ends: Ends, name: str) -> None:
    axis = model.roles.pasts[name].axis
    for s in ends.streams:
        if axis is None or s.past is None or s.past.name != name:
            continue
        length, entries = s.past.shape[axis], s.present.shape[axis]
        if length != entries:
            dim = model.roles.ports[name].dims[axis]
            raise InputError(
                f"Cache input '{name}' has {length} entries along '{dim}', which its output "
                f"'{s.name}' has too by its name but not by what the graph computes, {entries}; "
                f"bind it with --dim {dim}={entries}."
            )


def entries_after(kept: Sequence[Kept], workload: Workload) -> int:
    """Entries that the caches hold after the step; InputError where they differ among caches."""
    total = workload.context + workload.prompt
    counts = {total if k.fresh else k.entries: k for k in kept}
    if len(counts) < 2:
        return next(iter(counts), total)
    (a, x), (b, y), *_ = sorted(counts.items(), key=lambda pair: pair[0])
    raise InputError(
        f"After {total} tokens cache output '{x.present}' keeps {a} entries and '{y.present}' "
        f"{b}; meshc carries caches that keep equally many, so give a --max-context of at most "
        f"{a} tokens."
    )


def check_past(kept: Sequence[Kept], workload: Workload) -> None:
    """InputError where the past is longer than the present that takes its place."""
    for k in kept:
        if not k.fresh and k.entries < workload.context:
            raise InputError(
                f"--context {workload.context} is more than the {k.entries} entries that cache "
                f"output '{k.present}' keeps, however many tokens came before; give --context "
                f"{k.entries}."
            )


def check_room(graph: Graph, workload: Workload) -> None:
    """InputError where a step puts out more entries than the caches have room for."""
    for pair in graph.caches:
        if pair.axis is None:
            continue
        entries = graph.tensors[pair.present].shape[pair.axis]
        if entries > workload.reserved:
            raise InputError(
                f"The {workload.phase} puts out {entries} entries of cache '{pair.present}', of "
                f"which the decode keeps {workload.reserved}; compile with --prompt "
                f"{workload.reserved} or --phase decode."
            )


def appended_to(kept: Sequence[Kept], past: str) -> Kept | None:
    """The cache whose new entries the host appends to input `past`."""
    return next((k for k in kept if k.fresh and past in k.parts), None)


def counting(roles: Mapping[str, str]) -> list[str]:
    """Inputs whose values follow from how many tokens there were."""
    counted = ("mask", "positions", "context", "total", "last")
    return [name for name, role in roles.items() if role in counted]
