"""What the messages of a traffic file are called, in a few bytes each.

An id that is a whole number stands for itself; any other one for the first 63 bits of its digest,
below zero. Ids that count up take no room at all, others eight bytes each.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
MOST_DIGITS = 15


def key_of(name: str) -> int:
    """The number that stands for an id."""
    if len(name) <= MOST_DIGITS and name.isascii() and name.isdigit():
        return int(name)
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") | -(1 << 63)


class Ids:
    """The ids of messages, in the order of the messages."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[tuple[int, int, Keys | None]] = []  # first id, how many, ids if not +1
        self._last: int | None = None
        self._ascending = True
        self._all: Keys | None = None
        self._order: NDArray[Any] | None = None

    def add(self, keys: Keys) -> None:
        """The next messages' ids."""
        if not len(keys):
            return
        steps = np.diff(keys)
        runs = bool((steps == 1).all())
        self._ascending &= runs or bool((steps > 0).all())
        if self._last is not None:
            self._ascending &= int(keys[0]) > self._last
        self._last = int(keys[-1])
        self._parts.append((int(keys[0]), len(keys), None if runs else keys.copy()))
        self.count += len(keys)

    def twice(self) -> int | None:
        """The first message whose id an earlier one has."""
        if self._ascending:
            return None
        keys, order = self._sorted()
        same = np.flatnonzero(keys[1:] == keys[:-1])
        return int(order[same + 1].min()) if len(same) else None

    def find(self, keys: Keys) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The messages that have these ids, and whether there are such."""
        if self._ascending and all(part[2] is None for part in self._parts):
            starts = np.array([part[0] for part in self._parts])
            sizes = np.array([part[1] for part in self._parts])
            at = np.maximum(np.searchsorted(starts, keys, "right") - 1, 0)
            offset = keys - starts[at]
            found = (offset >= 0) & (offset < sizes[at])
            return ((np.cumsum(sizes) - sizes)[at] + offset).astype(np.uint32), found
        ordered, order = self._sorted()
        place = np.minimum(np.searchsorted(ordered, keys), self.count - 1)
        return order[place], ordered[place] == keys

    def _sorted(self) -> tuple[Keys, NDArray[Any]]:
        """All ids in order, and the messages that have them."""
        if self._all is None or self._order is None:
            keys = np.concatenate(
                [
                    np.arange(first, first + count) if part is None else part
                    for first, count, part in self._parts
                ]
            )
            order = np.argsort(keys, kind="stable").astype(np.uint32)
            self._all, self._order = keys[order], order
        return self._all, self._order
