"""Many messages as arrays: what the network engines take and return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    def queues(self, cores: int) -> tuple[Shorts, Ints]:
        """Messages by (network, source), each in order of ready time, then of number; and where in
        them each source's part starts, of shape (networks · cores + 1,)."""
        port = self.network.astype(np.int64) * cores + self.source
        order = np.lexsort((self.ready, port)).astype(np.int32)
        networks = int(self.network.max(initial=0)) + 1
        starts = np.searchsorted(port[order], np.arange(networks * cores + 1))
        return order, starts.astype(np.int64)

    def wakes(self) -> tuple[Shorts, Ints, Shorts]:
        """Messages that wait, by the message that they wait for; where each one's part starts, of
        shape (messages + 1,), or (1,) if none waits; and for how many each message waits."""
        if not len(self.later):
            return _none(), np.zeros(1, np.int64), np.zeros(len(self), np.int32)
        order = np.argsort(self.earlier, kind="stable")
        starts = np.searchsorted(self.earlier[order], np.arange(len(self) + 1))
        waits = np.bincount(self.later, minlength=len(self)).astype(np.int32)
        return self.later[order], starts.astype(np.int64), waits


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
