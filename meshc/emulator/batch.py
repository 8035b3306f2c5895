"""Many messages as arrays: what the network engines take and return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.ir.chip import ChipSpec

Ints = NDArray[np.int64]
Shorts = NDArray[np.int32]


def _none() -> Shorts:
    return np.zeros(0, np.int32)


@dataclass(frozen=True)
class Batch:
    """Messages in the order of their numbers; every array but the last two is of shape (messages,).

    ready: cycle from which a message may leave.   source, target: row · cols + col.
    network: which physical network.
    later, earlier: message `later[k]` waits until message `earlier[k]` has arrived.
    """

    ready: Ints
    source: Shorts
    target: Shorts
    bytes: Ints
    network: Shorts
    later: Shorts = field(default_factory=_none)
    earlier: Shorts = field(default_factory=_none)

    def __len__(self) -> int:
        return len(self.ready)


@dataclass(frozen=True)
class Times:
    """What became of a batch.

    inject, arrive: of each message, the cycle in which its port took it and in which its tail
    arrived; -1 for one that never left.
    link_busy, inject_busy, eject_busy: busy cycles, of shape (networks, rows, cols, 4) with
    directions as in `meshc.emulator.paths`, and (networks, rows, cols).
    alone: cycles of each message in an empty network.
    stuck: messages that were injected and cannot arrive, because buffers wait in a circle.
    """

    inject: NDArray[Any]
    arrive: NDArray[Any]
    link_busy: NDArray[np.float64]
    inject_busy: NDArray[np.float64]
    eject_busy: NDArray[np.float64]
    alone: NDArray[np.float64]
    stuck: int = 0

    @property
    def makespan_cycles(self) -> float:
        return float(self.arrive.max(initial=0))


def flit_bytes(chip: ChipSpec) -> float:
    """Bytes that cross a link together; flits narrower than a link cross it side by side."""
    noc = chip.noc
    return max(noc.flit_bytes or noc.link_bytes_per_cycle, noc.link_bytes_per_cycle)


def flits_of(chip: ChipSpec, sizes: Ints) -> Shorts:
    """Flits of messages of so many bytes."""
    return np.maximum(1, np.ceil(sizes / flit_bytes(chip))).astype(np.int32)


def links_between(chip: ChipSpec, source: NDArray[Any], target: NDArray[Any]) -> Shorts:
    """Links between routers (network · cores + core) that messages take; one, and those between
    chips, where all cores are one hop apart."""
    noc = chip.noc
    plane = chip.rows * chip.cols
    odd = source // plane % 2 == 1
    row, col = (x.astype(np.int32) for x in np.divmod(source % plane, chip.cols))
    to_row, to_col = (x.astype(np.int32) for x in np.divmod(target % plane, chip.cols))
    total = np.zeros(len(source), np.int32)
    for here, there, size in ((row, to_row, chip.rows), (col, to_col, chip.cols)):
        if noc.topology != "torus":
            total += np.abs(there - here)
            continue
        ahead = (there - here) % size
        if noc.one_way:
            total += np.where(odd, (here - there) % size, ahead)
        else:
            total += np.where(2 * ahead <= size, ahead, size - ahead)
    if noc.topology == "exchange":
        total[:] = 1
        if chip.seams is not None:
            total += np.abs(to_row // chip.seams.rows - row // chip.seams.rows)
            total += np.abs(to_col // chip.seams.cols - col // chip.seams.cols)
    return total
