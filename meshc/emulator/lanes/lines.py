"""Transfers that stay within the lines of a region: each taker's givers are in its own column (or
its own row), so that lines have nothing to do with each other.

Lines whose lanes have shards of the same sizes send the same messages. Of these, lines whose
cores and servers are in the same state but for one number of cycles take the same course, that
many cycles later; one of them is worked out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.lanes import fleet as fl
from meshc.emulator.lanes.fleet import Fleet
from meshc.emulator.lanes.shapes import held
from meshc.emulator.lanes.wires import HOPS, Wires
from meshc.ir.layout import Axis, Split
from meshc.ir.placement import Region
from meshc.ir.program import Buffer

Array = NDArray[Any]


@dataclass(frozen=True)
class Pattern:
    """Lines along an axis that send the same messages, and the takers of the first of them."""

    axis: Axis
    lines: Array
    takers: Array


def line_axis(source: Buffer, target: Buffer) -> Axis | None:
    """The axis along which all messages of a transfer within a region go; None if there is none.

    Lanes along "row" are a column of the region.
    """
    for along, other in (("row", "col"), ("col", "row")):
        if all(
            other not in s.axes or (s == w and s.axes == (other,))
            for s, w in zip(source.layout.splits, target.layout.splits, strict=True)
        ):
            return along  # type: ignore[return-value]
    return None


def patterns(source: Buffer, target: Buffer, region: Region, axis: Axis) -> list[Pattern]:
    """The lines of a region by what they send."""
    rows, cols = region.rows, region.cols
    count, places = (cols, rows) if axis == "row" else (rows, cols)
    keys = np.zeros((count, 0), np.int64)
    for s, w, n in zip(source.layout.splits, target.layout.splits, target.shape, strict=True):
        if set(w.axes) <= {axis}:
            continue  # the same in every line
        more = _wanted_by_line(w, n, rows, cols, axis, ranges=bool(s.axes) and s != w)
        keys = np.concatenate([keys, more], axis=1)
    _, inverse = np.unique(keys, axis=0, return_inverse=True) if keys.size else (0, np.zeros(count))
    found = []
    inverse = np.asarray(inverse, np.int64).reshape(-1)
    for number in range(int(inverse.max(initial=0)) + 1):
        lines = np.flatnonzero(inverse == number)
        at = int(lines[0])
        place = np.arange(places)
        takers = place * cols + at if axis == "row" else at * cols + place
        found.append(Pattern(axis, lines, takers))
    return found


def _wanted_by_line(w: Split, n: int, rows: int, cols: int, axis: Axis, *, ranges: bool) -> Array:
    """Of each line, how much its lanes want of a dimension; with `ranges`, also which part."""
    row, col = np.arange(rows)[:, None], np.arange(cols)[None, :]
    lane = np.zeros((rows, cols), np.int64)
    for a in w.axes:
        lane = lane * (rows if a == "row" else cols) + (row if a == "row" else col)
    size = held(w, n, rows, cols, lane)
    found = np.where(size > 0, lane, -1) if ranges else size
    if axis == "row":
        found = found.T
    if axis not in w.axes:
        found = found[:, :1]
    return np.ascontiguousarray(found)


class LineStates:
    """What the course of each line of a region depends on, and what it changes."""

    def __init__(self, f: Fleet, w: Wires, region: Region, axis: Axis, network: int) -> None:
        self.f, self.w, self.axis = f, w, axis
        self.grid = (w.rows, w.cols)
        self.network = network
        self.first = region.col if axis == "row" else region.row
        low, count = (region.row, region.rows) if axis == "row" else (region.col, region.cols)
        self.span = slice(low, low + count)

    def _line(self, array: Array, line: int) -> Array:
        """A per-core array's part in one line of the region, as a view."""
        whole = array.reshape(*self.grid, *array.shape[1:])
        at = self.first + line
        return whole[self.span, at] if self.axis == "row" else whole[at, self.span]

    def _servers(self, line: int) -> list[Array]:
        """The servers in one line of the chip: links along it and ports, as views."""
        w, at = self.w, self.first + line
        link = w.link.reshape(-1, *self.grid, 4, 4)[self.network]
        ports = [a.reshape(-1, *self.grid, 4)[self.network] for a in (w.inject, w.eject)]
        if self.axis == "row":
            return [link[:, at, 2:], *(p[:, at] for p in ports)]
        return [link[at, :, :2], *(p[at] for p in ports)]

    def _loads(self, line: int) -> list[Array]:
        """What links of one line have carried, as views."""
        found = []
        for array in (self.w.link_busy, self.w.link_bytes):
            whole = array.reshape(-1, *self.grid, 4)[self.network]
            at = self.first + line
            found.append(whole[:, at, 2:] if self.axis == "row" else whole[at, :, :2])
        return found

    def classes(self, lines: Array) -> list[tuple[Array, Array]]:
        """Lines in the same state, and when each one's state begins."""
        found: dict[bytes, tuple[list[int], list[float]]] = {}
        f = self.f
        for line in lines.tolist():
            clock = self._line(f.clock, line)
            base = float(clock.min())
            parts: list[Array] = [clock - base]
            pending = self._line(f.pending, line)
            if pending.any():
                leaves, reads = self._line(f.leaves, line), self._line(f.reads, line)
                alive = np.arange(leaves.shape[1]) < pending[:, None]
                alive &= leaves[:, :, 1] > clock[:, None]
                parts += [alive, leaves[alive] - base, reads[alive]]
            for slots in self._servers(line):
                for last in (1, 3):
                    pair = slots[..., last - 1 : last + 1]
                    old = slots[..., last, None] <= base
                    parts.append(np.where(old, -1.0, pair - base))
            key = b"".join(np.ascontiguousarray(p).tobytes() for p in parts)
            numbers, bases = found.setdefault(key, ([], []))
            numbers.append(line)
            bases.append(base)
        return [(np.array(a), np.array(b)) for a, b in found.values()]

    def copy(self, lines: Array, bases: Array, work: Callable[[], None]) -> None:
        """Work out the first of some lines in the same state, and let the others follow."""
        f, w = self.f, self.w
        adding: tuple[Array, ...] = (f.compute, f.communication, f.wait, f.sram_bytes)
        first = int(lines[0])
        before = [self._line(a, first).copy() for a in adding]
        loads = [a.copy() for a in self._loads(first)]
        hops, sums = int(w.counts[HOPS]), f.tally.copy()
        f.tally[: fl.SERIAL] = 0
        f.tally[fl.START] = np.inf
        work()
        mine = f.tally.copy()
        times = len(lines)
        f.tally[fl.START] = min(sums[fl.START], mine[fl.START] + float((bases - bases[0]).min()))
        f.tally[fl.END] = max(sums[fl.END], mine[fl.END] + float((bases - bases[0]).max()))
        for k in range(fl.COMPUTE, fl.SERIAL):
            f.tally[k] = sums[k] + mine[k] * times
        w.counts[HOPS] += (int(w.counts[HOPS]) - hops) * (times - 1)
        done = [self._line(a, first) - b for a, b in zip(adding, before, strict=True)]
        carried = [a - b for a, b in zip(self._loads(first), loads, strict=True)]
        for line, base in zip(lines[1:].tolist(), bases[1:].tolist(), strict=True):
            shift = base - float(bases[0])
            for array, more in zip(adding, done, strict=True):
                self._line(array, line)[...] += more
            for array, more in zip(self._loads(line), carried, strict=True):
                array += more
            self._line(f.clock, line)[...] = self._line(f.clock, first) + shift
            self._line(f.begin, line)[...] = self._line(f.begin, first) + shift
            self._line(f.leaves, line)[...] = self._line(f.leaves, first) + shift
            same: tuple[Array, ...] = (f.pending, f.reads, f.mark)
            for array in same:
                self._line(array, line)[...] = self._line(array, first)
            for theirs, ours in zip(self._servers(line), self._servers(first), strict=True):
                for last in (1, 3):
                    pair = ours[..., last - 1 : last + 1]
                    live = ours[..., last, None] > bases[0]
                    theirs[..., last - 1 : last + 1] = np.where(live, pair + shift, 0.0)
