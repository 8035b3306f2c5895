"""A network's engine, what is told of messages that have arrived, and batches sent through it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.batch import Batch, Times
from meshc.emulator.spool import Records, Spool, records_of
from meshc.emulator.waits import Waits, make_waits
from meshc.ir.chip import ChipSpec

Floats = NDArray[np.float64]


class Sink(Protocol):
    """Takes records with ready (as it was given), inject, arrive (cycles), number, source and
    target (routers), in an array that it must not keep. A message comes after those that it waited
    for."""

    def add(self, news: Records) -> None: ...


class Engine(Protocol):
    """A chip's network, on which messages are sent once.

    unsent: messages that never left, because they wait for each other, and the first one's number.
    """

    chip: ChipSpec
    unsent: tuple[int, int]

    def alone(self, records: Records) -> Floats:
        """Cycles of each message in an empty network; to be asked before the run."""

    def run(self, spool: Spool, waits: Waits, sink: Sink, cycle_limit: int | None) -> int:
        """Send all messages; returns how many left and cannot arrive."""

    def busy(self) -> tuple[Floats, Floats, Floats]:
        """Busy cycles of links, injection ports and ejection ports, as in `Times`."""


class _Arrays:
    """Keeps the times of every message."""

    def __init__(self, count: int) -> None:
        self.inject: Any = np.full(count, -1)
        self.arrive: Any = np.full(count, -1)

    def add(self, news: Records) -> None:
        if news["arrive"].dtype.kind == "f" and self.arrive.dtype.kind != "f":
            self.inject, self.arrive = self.inject.astype(float), self.arrive.astype(float)
        self.inject[news["number"]] = news["inject"]
        self.arrive[news["number"]] = news["arrive"]


def run_batch(engine: Engine, batch: Batch, cycle_limit: Any = None) -> Times:
    """Send a batch and keep every message's times."""
    records = records_of(engine.chip, batch)
    alone = engine.alone(records)
    sink = _Arrays(len(batch))
    waits = make_waits(batch.later, batch.earlier, records["source"])
    stuck = engine.run(Spool.of(records), waits, sink, cycle_limit)
    return Times(sink.inject, sink.arrive, *engine.busy(), alone, stuck)
