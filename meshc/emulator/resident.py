"""Weights that come into a core's SRAM when something looks at them, and go when room is short.

A program's weights may be larger than this machine's memory. What a core would hold after loading
is determined by the program alone, so a shard may be read from the model's file at the first look
at any of its bytes, and forgotten and read again as long as nothing writes to them. Whoever looks
at the bytes sees the same as if all had been loaded at the beginning.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

import numpy as np

LEAST_BYTES = 1 << 16  # smaller shards are loaded at the beginning
BUDGET_BYTES = 1 << 27  # of shards that are kept, over all cores
SOURCE_BYTES = 1 << 27  # of whole tensors that shards are cut from


class Shard:
    """Bytes [start, end) of a core's SRAM. fill: writes them.   forget: gives their room back.

    tick: of the last look.   inside: whether they are in memory.
    """

    __slots__ = ("end", "fill", "forget", "inside", "start", "tick")

    def __init__(
        self, start: int, end: int, fill: Callable[[], None], forget: Callable[[], None]
    ) -> None:
        self.start, self.end = start, end
        self.fill, self.forget = fill, forget
        self.inside = False
        self.tick = -1


class Budget:
    """How many bytes of shards are in memory, over all cores; the longest unused go first.

    tick: counts the actions of cores; what the present one looked at stays.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = BUDGET_BYTES if limit_bytes is None else limit_bytes
        self.used_bytes = 0
        self.tick = 0
        self._order: OrderedDict[int, Shard] = OrderedDict()

    def look(self, shard: Shard) -> None:
        """Have the shard in memory."""
        shard.tick = self.tick
        if shard.inside:
            self._order.move_to_end(id(shard))
            return
        shard.fill()
        shard.inside = True
        self._order[id(shard)] = shard
        self.used_bytes += shard.end - shard.start
        while self.used_bytes > self.limit_bytes:
            oldest = next(iter(self._order.values()))
            if oldest.tick == self.tick:
                break
            self.drop(oldest)
            oldest.forget()

    def drop(self, shard: Shard) -> None:
        """Count the shard no longer."""
        del self._order[id(shard)]
        shard.inside = False
        self.used_bytes -= shard.end - shard.start


class Shards:
    """The shards of one core that nothing has written to."""

    __slots__ = ("_items", "_starts", "budget")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._starts: list[int] = []
        self._items: dict[int, Shard] = {}

    def add(self, shard: Shard) -> None:
        """A shard that overlaps no other one."""
        insort(self._starts, shard.start)
        self._items[shard.start] = shard

    def _among(self, start: int, end: int) -> Iterator[Shard]:
        first = bisect_right(self._starts, start) - 1
        last = bisect_left(self._starts, end)
        for i in range(max(first, 0), last):
            shard = self._items[self._starts[i]]
            if shard.end > start:
                yield shard

    def overlaps(self, start: int, end: int) -> bool:
        return next(self._among(start, end), None) is not None

    def look(self, start: int, end: int) -> None:
        """Have all that [start, end) touches in memory."""
        for shard in self._among(start, end):
            self.budget.look(shard)

    def claim(self, start: int, end: int) -> None:
        """[start, end) may be written to: what it touches is ordinary memory from here on."""
        for shard in list(self._among(start, end)):
            self.budget.look(shard)
            self.budget.drop(shard)
            del self._items[shard.start]
            self._starts.remove(shard.start)


class Sources:
    """The whole tensors that shards are cut from, the last ones kept."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._tensors = tensors
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._kept:
            self._kept.move_to_end(name)
            return self._kept[name]
        array = self._tensors[name]
        self._kept[name] = array
        while len(self._kept) > 1 and sum(a.nbytes for a in self._kept.values()) > SOURCE_BYTES:
            self._kept.popitem(last=False)
        return array
