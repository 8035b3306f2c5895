"""How many rows each expert gets: part of the workload, so that timing needs no tensors.

A file for --experts is JSON: a list with one number per expert, for all layers, or a list of such
lists, one per mixture-of-experts layer from the first to the last. Numbers are counts or shares:
only their ratio matters, and a step's rows (tokens · experts per token) are split in that ratio,
the largest remainders first. Without a file all experts get the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshc.errors import InputError
from meshc.ir.graph import Graph, Op
from meshc.ir.workload import Workload

Load = tuple[tuple[float, ...], ...]
UNIFORM = "uniform"
_LARGE = 1e100
_FORM = (
    "write a list with one number per expert, or a list of such lists with one per "
    "mixture-of-experts layer"
)


def read_load(value: str) -> Load:
    """The lists of an --experts argument, () for "uniform"; InputError where it is neither that
    nor a file of the form."""
    if value == UNIFORM:
        return ()
    try:
        data = json.loads(Path(value).read_text())
    except OSError as error:
        reason = (error.strerror or "error").lower()
        raise InputError(
            f"--experts {value} cannot be read ({reason}); give 'uniform' or a JSON file."
        ) from None
    except (ValueError, UnicodeDecodeError):
        raise InputError(f"--experts {value} is not JSON; {_FORM}.") from None
    lists = data if isinstance(data, list) and data and isinstance(data[0], list) else [data]
    return tuple(_numbers(value, one) for one in lists)


def _numbers(name: str, one: Any) -> tuple[float, ...]:
    if not isinstance(one, list) or not one:
        raise InputError(f"--experts {name} holds {type(one).__name__} data; {_FORM}.")
    for n in one:
        if isinstance(n, bool) or not isinstance(n, int | float) or not _finite(n) or n < 0:
            raise InputError(
                f"--experts {name} has {json.dumps(n)[:40]} among its numbers; give counts or "
                "shares of at least 0 that a float can hold."
            )
    if not any(one):
        raise InputError(f"--experts {name} gives no expert any rows; give one of them a share.")
    return tuple(one)


def _finite(n: int | float) -> bool:
    """Whether it is a number that a float can hold."""
    try:
        return math.isfinite(n)
    except OverflowError:
        return False


def split(rows: int, shares: Sequence[float]) -> tuple[int, ...]:
    """`rows` in the ratio of the shares; what is left goes to the largest remainders, of equal
    ones the first."""
    largest = max(shares)
    if largest > _LARGE:  # their sum, or its product with the rows, may not be a float
        shares = [s / largest for s in shares]
    total = math.fsum(shares)
    exact = [rows * s / total for s in shares]
    counts = [math.floor(x) for x in exact]
    order = sorted(range(len(exact)), key=lambda e: (counts[e] - exact[e], e))
    for e in order[: rows - sum(counts)]:
        counts[e] += 1
    return tuple(counts)


def loaded(graph: Graph, workload: Workload) -> Graph:
    """The graph with the rows of every expert in its `experts` ops."""
    places = _layers(graph)
    load = workload.experts
    if load and not places:
        raise InputError(
            f"--experts says how tokens spread over experts, but '{graph.name}' has no "
            "mixture-of-experts layer; leave it out."
        )
    layers = sum(segment.repeat * len(own) for segment, own in places)
    if len(load) > 1 and len(load) != layers:
        raise InputError(
            f"--experts has {len(load)} lists, but '{graph.name}' has {layers} mixture-of-experts "
            "layers; give one list for all, or one for each."
        )
    changed: dict[str, Op] = {}
    first = 0
    for segment, own in places:
        for at, ops in enumerate(own):
            numbers = [first + turn * len(own) + at for turn in range(segment.repeat)]
            for op in ops:
                changed[op.name] = _counted(graph, op, load, numbers)
        first += segment.repeat * len(own)
    segments = tuple(
        replace(s, ops=tuple(changed.get(op.name, op) for op in s.ops)) for s in graph.segments
    )
    return replace(graph, segments=segments)


def observed(
    graph: Graph, routed: Mapping[tuple[str, int], Mapping[int, int]]
) -> tuple[tuple[int, ...], ...]:
    """Rows that each expert got in a run with tensors, per mixture-of-experts layer; () without.

    graph: with its kernels.   routed: (kernel, layer) → row → the expert that it went to.
    """
    found = []
    for segment, own in _layers(graph):
        for turn in range(segment.repeat):
            layer = turn if segment.repeat > 1 else -1
            for ops in own:
                op = next(o for o in (ops[0], *ops[0].body) if o.kind == "experts")
                members = op.attr("members")
                counts = [0] * (op.attr("among") or len(op.attr("counts")[0]))
                rows = routed.get((ops[0].name, layer)) or routed.get((ops[0].name, 0), {})
                for e in rows.values():
                    if 0 <= e < len(members or counts):
                        counts[members[e] if members else e] += 1
                found.append(tuple(counts))
    return tuple(found)


def _layers(graph: Graph) -> list[tuple[Any, list[list[Op]]]]:
    """The segments with experts, and in each its layers: the ops whose rows go by the same ids."""
    found = []
    for segment in graph.segments:
        own: dict[str, list[Op]] = {}
        for op in segment.ops:
            inner = next((o for o in (op, *op.body) if o.kind == "experts"), None)
            if inner is not None:
                own.setdefault(inner.inputs[2], []).append(op)
        if own:
            found.append((segment, list(own.values())))
    return found


def _counted(graph: Graph, op: Op, load: Load, numbers: Sequence[int]) -> Op:
    """The op with its experts' rows in the layers of these numbers."""
    rows, held = graph.tensors[op.inputs[0]].shape[0], graph.tensors[op.inputs[1]].shape[0]
    members: tuple[int, ...] = op.attr("members") or tuple(range(held))
    among: int = op.attr("among") or held
    every = []
    for number in numbers:
        shares = load[number if len(load) > 1 else 0] if load else (1.0,) * among
        if len(shares) != among:
            raise InputError(
                f"--experts has {len(shares)} numbers for mixture-of-experts layer {number} of "
                f"'{graph.name}', which has {among} experts; give one number for each."
            )
        counts = split(rows, shares)
        every.append(tuple(counts[e] for e in members))
    kept = every[:1] if len(set(every)) == 1 else every
    left = [(k, v) for k, v in op.attrs if k not in ("counts", "rows")]
    return replace(op, attrs=tuple(sorted([*left, ("counts", tuple(kept)), ("rows", rows)])))
