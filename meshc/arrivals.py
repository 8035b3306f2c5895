"""When messages left and arrived, kept in a temporary file until they are written in file order.

Messages arrive in another order than the file's. Each one's times go into the part of the file that
belongs to its number, and parts are put in order one by one.
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

PART = 1 << 17  # messages


class Arrivals:
    """Inject cycle, arrive cycle and hops of messages by number. `kind`: the cycles' type."""

    def __init__(self, count: int, kind: Any) -> None:
        self.count = count
        self._record = np.dtype(
            [("inject", kind), ("arrive", kind), ("number", np.uint32), ("hops", np.int32)]
        )
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._used = np.zeros(count // PART + 1, np.int64)
        self._part = -1
        self._columns: NDArray[Any] = np.zeros((0, 3), np.int64)

    def add(self, news: Any, hops: NDArray[Any]) -> None:
        """Keep the times of some messages."""
        records = np.empty(len(news), self._record)
        for name in ("inject", "arrive", "number"):
            records[name] = news[name]
        records["hops"] = hops
        parts = news["number"] // PART
        order = np.argsort(parts, kind="stable")
        numbers, starts = np.unique(parts[order], return_index=True)
        for part, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            self._file.seek((part * PART + int(self._used[part])) * self._record.itemsize)
            self._file.write(records[rows].tobytes())
            self._used[part] += len(rows)

    def rows(self, first: int, most: int) -> NDArray[Any]:
        """Columns (inject, arrive, hops) of up to so many messages from one on; whole numbers where
        all of them are."""
        last = min(first + most, self.count)
        pieces = [np.zeros((0, 3), np.int64)]
        for part in range(first // PART, (max(first, last - 1)) // PART + 1):
            columns = self._load(part)
            pieces.append(columns[max(0, first - part * PART) : last - part * PART])
        return np.concatenate(pieces)

    def _load(self, part: int) -> NDArray[Any]:
        """All columns of a part."""
        if part != self._part:
            used = int(self._used[part])
            self._file.seek(part * PART * self._record.itemsize)
            records = np.frombuffer(self._file.read(used * self._record.itemsize), self._record)
            columns = np.zeros((used, 3), self._record["inject"])
            at = records["number"] - part * PART
            for k, name in enumerate(("inject", "arrive", "hops")):
                columns[at, k] = records[name]
            whole = columns.astype(np.int64)
            self._part = part
            self._columns = whole if np.array_equal(whole, columns) else columns
        return self._columns
