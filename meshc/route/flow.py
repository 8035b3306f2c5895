"""Flows: what is routed, and its messages as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshc.errors import InvariantError
from meshc.ir.chip import ChipSpec, Coord

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Flow:
    """The messages of one communication instruction, which take one route together.

    pairs: (source, destinations, bytes) of each message; several destinations are a multicast.
    weight: how often the messages are sent in a step.
    """

    name: str
    pairs: tuple[tuple[Coord, tuple[Coord, ...], float], ...]
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Messages:
    """A flow's messages with equal ones joined, one entry per destination.

    message: number of the message that an entry belongs to.   source, destination: row and col of
    each entry, shape (n, 2).   size: bytes of the entry's message, over the whole step.
    """

    name: str
    message: Ints
    source: Ints
    destination: Ints
    size: Floats

    @property
    def straight(self) -> bool:
        """Every message stays within its row or its column."""
        return bool(np.all((self.source == self.destination).any(1)))

    def signature(self) -> bytes:
        """Equal for flows with the same pairs, whatever their bytes."""
        return b"".join(a.tobytes() for a in (self.message, self.source, self.destination))


def messages(flow: Flow, chip: ChipSpec) -> Messages:
    """The flow as arrays, in an order that does not depend on the order of its pairs."""
    pairs = flow.pairs
    if not chip.noc.multicast:
        pairs = tuple((s, (d,), b) for s, to, b in pairs for d in to)
    if all(len(to) == 1 for _, to, _ in pairs):
        flat = [(s.row, s.col, d[0].row, d[0].col) for s, d, _ in pairs]
        ends = np.array(flat, np.int64).reshape(-1, 4)
        size = np.array([b for _, _, b in pairs], float) * flow.weight
        _check(ends, flow, chip)
        code = ((ends[:, 0] * chip.cols + ends[:, 1]) * chip.rows + ends[:, 2]) * chip.cols + ends[
            :, 3
        ]
        _, first, number = np.unique(code, return_index=True, return_inverse=True)
        total = np.bincount(number.ravel(), size, len(first)).astype(float)
        ends = ends[first]
        return Messages(flow.name, np.arange(len(first)), ends[:, :2], ends[:, 2:], total)
    joined: dict[tuple[Coord, tuple[Coord, ...]], float] = {}
    for source, to, amount in pairs:
        key = (source, tuple(sorted(set(to))))
        joined[key] = joined.get(key, 0.0) + amount * flow.weight
    rows, number, total_of = [], [], []
    for index, (source, to) in enumerate(sorted(joined)):
        for d in to:
            rows.append((source.row, source.col, d.row, d.col))
            number.append(index)
            total_of.append(joined[source, to])
    ends = np.array(rows, np.int64).reshape(-1, 4)
    _check(ends, flow, chip)
    return Messages(
        flow.name, np.array(number, np.int64), ends[:, :2], ends[:, 2:], np.array(total_of, float)
    )


def _check(ends: Ints, flow: Flow, chip: ChipSpec) -> None:
    limit = np.array([chip.rows, chip.cols, chip.rows, chip.cols])
    if ((ends < 0) | (ends >= limit)).any():
        bad = ends[((ends < 0) | (ends >= limit)).any(1)][0].tolist()
        raise InvariantError(
            f"flow {flow.name} has a message from ({bad[0]}, {bad[1]}) to ({bad[2]}, {bad[3]}), "
            f"outside the {chip.rows}x{chip.cols} mesh of {chip.name}."
        )
