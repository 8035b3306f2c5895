"""Messages by source, in the order in which each source injects them, in bounded memory.

Up to `RUN` messages stay in memory. More are sorted in runs of so many, which are then merged, a
few sources at a time, in a temporary file; from there a `Feed` brings each source's next messages
into a few slots of memory while the network runs. Only a single source with more than `RUN`
messages whose ready times are out of order from run to run is sorted in memory as a whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.batch import Batch, flits_of
from meshc.ir.chip import ChipSpec

Records = Any  # a structured array
# source, target: routers, which are network · cores + core.
RECORD = np.dtype(
    [("ready", np.int64), ("bytes", np.int64)]
    + [(name, np.uint32) for name in ("number", "source", "target", "flits")]
)
RUN = 1 << 18  # messages that are sorted in memory
SLOTS = 1 << 18  # messages that wait in memory for their turn, of all sources together
LEAST_SLOTS = 8  # of one source


def records_of(chip: ChipSpec, batch: Batch, first: int = 0) -> Records:
    """The messages of a batch, numbered from `first` on."""
    plane = chip.rows * chip.cols
    records = np.zeros(len(batch), RECORD)
    records["ready"], records["bytes"] = batch.ready, batch.bytes
    records["number"] = np.arange(first, first + len(batch))
    records["flits"] = flits_of(chip, batch.bytes)
    records["source"] = batch.network * plane + batch.source
    records["target"] = batch.network * plane + batch.target
    return records


def _sorted(records: Records) -> Records:
    """By source, then ready time, then as they are."""
    return records[np.lexsort((records["ready"], records["source"]))]


class Spool:
    """Messages sorted by (source, ready time, number).

    sources: routers that send, ascending.   starts: where each one's part begins, and the end.
    """

    def __init__(self, records: Records | None, file: IO[bytes] | None, sources: Any) -> None:
        self.sources, counts = sources
        self.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._records, self._file = records, file

    @staticmethod
    def of(records: Records) -> Spool:
        """Messages in the order of their numbers that are all in memory."""
        records = _sorted(records)
        return Spool(records, None, np.unique(records["source"], return_counts=True))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, start: int, count: int) -> Records:
        """So many records from a place on."""
        if self._records is not None:
            return self._records[start : start + count]
        return _read(self._file, start, count)

    def chunks(self) -> Iterator[Records]:
        """All records, some at a time."""
        for start in range(0, len(self), RUN):
            yield self.read(start, min(RUN, len(self) - start))


def _read(file: Any, start: int, count: int) -> Records:
    file.seek(start * RECORD.itemsize)
    return np.frombuffer(file.read(count * RECORD.itemsize), RECORD)


class Sorter:
    """Takes messages in the order of their numbers and makes a spool of them."""

    def __init__(self) -> None:
        self._parts: list[Records] = []
        self._held = 0
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, NDArray[Any], NDArray[Any]]] = []  # begin, sources, counts
        self._written = 0

    def add(self, records: Records) -> None:
        self._parts.append(records)
        self._held += len(records)
        if self._held > RUN:
            self._write()

    def _write(self) -> None:
        """Write what is held as a run."""
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        records = _sorted(np.concatenate(self._parts))
        self._parts, self._held = [], 0
        self._file.write(records.tobytes())
        self._runs.append((self._written, *np.unique(records["source"], return_counts=True)))
        self._written += len(records)

    def spool(self) -> Spool:
        """All messages; the sorter can take no more."""
        if self._file is None:
            return Spool.of(np.concatenate([np.zeros(0, RECORD), *self._parts]))
        if self._held:
            self._write()
        sources, places = np.unique(
            np.concatenate([run[1] for run in self._runs]), return_inverse=True
        )
        counts = np.zeros(len(sources), np.int64)
        np.add.at(counts, places, np.concatenate([run[2] for run in self._runs]))
        target = tempfile.TemporaryFile()  # noqa: SIM115
        begin = 0
        for end in _groups(counts):
            for records in self._merged(int(sources[begin]), int(sources[end - 1])):
                target.write(records.tobytes())
            begin = end
        self._file.close()
        return Spool(None, target, (sources, counts))

    def _merged(self, first: int, last: int) -> Iterator[Records]:
        """The messages of the sources from one to another, in order."""
        parts = []
        for start, sources, counts in self._runs:
            low, high = np.searchsorted(sources, [first, last + 1])
            begin = start + int(counts[:low].sum())
            size = int(counts[low:high].sum())
            if size:
                parts.append((begin, size))
        if first == last and self._in_order(parts):
            for begin, size in parts:
                yield _read(self._file, begin, size)
        else:
            yield _sorted(np.concatenate([_read(self._file, *part) for part in parts]))

    def _in_order(self, parts: list[tuple[int, int]]) -> bool:
        """Whether the parts of one source follow on each other."""
        ends = [
            [int(_read(self._file, at, 1)["ready"][0]) for at in (begin, begin + size - 1)]
            for begin, size in parts
        ]
        return all(before[1] <= after[0] for before, after in pairwise(ends))


def _groups(counts: NDArray[np.int64]) -> Iterator[int]:
    """Where groups of sources end that have up to `RUN` messages together, or are alone."""
    total = 0
    for k, count in enumerate(counts.tolist()):
        if total and total + count > RUN:
            yield k
            total = 0
        total += count
    yield len(counts)


class Feed:
    """The next messages of each source, in memory.

    slots: records; those of router r are slots[place[r] : place_end[r]].   rest: of each router,
    messages of the spool that are not there yet.   place, place_end, rest: arrays of the network,
    which moves `place` on.
    """

    def __init__(self, spool: Spool, place: Any, place_end: Any, rest: Any) -> None:
        self._spool = spool
        self._place, self._place_end, self._rest = place, place_end, rest
        sources, counts = spool.sources, np.diff(spool.starts)
        self._next = spool.starts[:-1].copy()
        if len(spool) <= SLOTS:
            self._room = counts
        else:
            self._room = np.minimum(counts, max(LEAST_SLOTS, SLOTS // len(sources)))
        self._base = np.cumsum(self._room) - self._room
        self.slots = np.zeros(max(1, int(self._room.sum())), RECORD)
        place[sources] = place_end[sources] = self._base
        rest[sources] = counts
        if len(spool) <= SLOTS:
            self.slots[: len(spool)] = spool.read(0, len(spool))
            place_end[sources] += self._room.astype(place_end.dtype)
            rest[:] = 0
        else:
            self.refill()

    def refill(self) -> list[int]:
        """Fill up the slots of sources that have less than half of theirs left; returns the
        routers that had none."""
        routers = self._spool.sources
        have = self._place_end[routers].astype(np.int64) - self._place[routers]
        rest = self._rest[routers].astype(np.int64)
        needed = np.flatnonzero((rest > 0) & (2 * have <= self._room))
        for k in needed.tolist():
            router, base, kept = int(routers[k]), int(self._base[k]), int(have[k])
            begin = int(self._place[router])
            self.slots[base : base + kept] = self.slots[begin : begin + kept].copy()
            count = min(int(self._room[k]) - kept, int(rest[k]))
            end = base + kept + count
            self.slots[base + kept : end] = self._spool.read(int(self._next[k]), count)
            self._next[k] += count
            self._place[router], self._place_end[router] = base, end
            self._rest[router] -= count
        return [int(routers[k]) for k in needed if have[k] == 0]

    def left(self) -> tuple[int, int]:
        """How many messages have not left, and the least of their numbers."""
        count, least = 0, (1 << 32) - 1
        for k, router in enumerate(self._spool.sources.tolist()):
            begin, end = int(self._place[router]), int(self._place_end[router])
            parts = [self.slots[begin:end]]
            start, rest = int(self._next[k]), int(self._rest[router])
            parts += [
                self._spool.read(at, min(RUN, start + rest - at))
                for at in range(start, start + rest, RUN)
            ]
            for part in parts:
                count += len(part)
                least = min(least, int(part["number"].min(initial=least)))
        return count, least
