"""Shortening repeated layers.

After a layer the future depends on the clocks of the region's cores, on sends that may still read
SRAM and on when the servers that the layer uses are taken; costs are those of the layer. If all
of these are what they were after the layer before but for one number of cycles, then every
following layer of the same costs repeats it, that many cycles later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.lanes.fleet import Fleet
from meshc.emulator.lanes.wires import HOPS, Wires
from meshc.ir.placement import Region

if TYPE_CHECKING:
    from meshc.emulator.lanes.engine import Tallies

Array = NDArray[Any]


@dataclass
class _Sums:
    """What only adds up, so far."""

    arrays: list[Array]
    hops: int
    spans: int
    messages: int
    message_bytes: int
    instructions: int
    mac_by_dtype: dict[str, int]


class Repeats:
    """Watches one run of layers on one region."""

    def __init__(
        self,
        f: Fleet,
        w: Wires,
        region: Region,
        tallies: Tallies,
        moving: Sequence[tuple[int, int]],
    ) -> None:
        """moving: bytes of SRAM where each layer has buffers of its own."""
        self.f, self.w, self.tallies = f, w, tallies
        self.moving = moving
        rows = np.arange(region.row, region.row + region.rows)
        cols = np.arange(region.col, region.col + region.cols)
        self.cores = (rows[:, None] * w.cols + cols).reshape(-1)
        self.sums = self._sums()
        self.before: tuple[float, list[Array]] | None = None

    def _adding(self) -> list[Array]:
        f, w = self.f, self.w
        cores = [f.compute, f.communication, f.wait, f.mac_cycles, f.macs, f.sram_bytes]
        return [*cores, w.link_busy, w.link_bytes]

    def _sums(self) -> _Sums:
        t = self.tallies
        return _Sums(
            [a.copy() for a in self._adding()],
            int(self.w.counts[HOPS]),
            len(t.spans),
            t.messages,
            t.message_bytes,
            t.instructions,
            dict(t.mac_by_dtype),
        )

    def _state(self, base: float, touched: Array) -> list[Array]:
        """Everything that the future depends on, in cycles from `base`, the earliest clock."""
        f, w = self.f, self.w
        found: list[Array] = [f.clock[self.cores] - base]
        core, place = self._reading()
        found += [core, place, f.reads[core, place], f.leaves[core, place] - base]
        ports = self._ports()
        for slots, which in ((w.link, touched), (w.inject, ports), (w.eject, ports)):
            part = slots[which]
            for last in (1, 3):
                old = part[:, last] <= base
                pair = np.where(old[:, None], -1.0, part[:, last - 1 : last + 1] - base)
                found.append(pair)
        return found

    def _ports(self) -> Array:
        w = self.w
        plane = w.rows * w.cols
        networks = len(w.inject) // plane
        return (np.arange(networks)[:, None] * plane + self.cores).reshape(-1)

    def skip(self, alike: int, layer: int) -> int:
        """How many of the `alike` layers behind the one just worked out repeat it; the state is
        as after them. layer: of the one just worked out."""
        old = self.sums
        touched = np.flatnonzero(self.w.link_bytes != old.arrays[-1])
        base = float(self.f.clock[self.cores].min())
        state = self._state(base, touched)
        before, self.before = self.before, (base, state)
        self.sums = self._sums()
        if before is None or alike < 1 or len(before[1]) != len(state):
            return 0
        for a, b in zip(before[1], state, strict=True):
            if a.shape != b.shape or not np.array_equal(a, b):
                return 0
        if self._moving_reads():
            return 0
        self._repeat(old, alike, layer, base - before[0], touched, base)
        return alike

    def _reading(self) -> tuple[Array, Array]:
        """Sends that may still read SRAM: their cores and places."""
        f = self.f
        busy = self.cores[f.pending[self.cores] > 0]
        alive = np.arange(f.reads.shape[1]) < f.pending[busy][:, None]
        alive &= f.leaves[busy, :, 1] > f.clock[busy][:, None]
        which, place = np.nonzero(alive)
        return busy[which], place

    def _moving_reads(self) -> bool:
        """Whether what some send still reads may belong to one layer only."""
        reads = self.f.reads[self._reading()]
        return any(
            bool(((reads[:, 0] < end) & (first < reads[:, 1])).any()) for first, end in self.moving
        )

    def _repeat(
        self, old: _Sums, times: int, layer: int, shift: float, touched: Array, base: float
    ) -> None:
        f, w, t = self.f, self.w, self.tallies
        for now, then in zip(self._adding(), old.arrays, strict=True):
            now += (now - then) * times
        w.counts[HOPS] += (int(w.counts[HOPS]) - old.hops) * times
        t.messages += (t.messages - old.messages) * times
        t.message_bytes += (t.message_bytes - old.message_bytes) * times
        t.instructions += (t.instructions - old.instructions) * times
        for name, count in t.mac_by_dtype.items():
            t.mac_by_dtype[name] = count + (count - old.mac_by_dtype.get(name, 0)) * times
        pattern = t.spans[old.spans :]
        for k in range(1, times + 1):
            t.spans += [
                replace(
                    s,
                    layer=layer + k if s.layer >= 0 else s.layer,
                    start_cycle=s.start_cycle + k * shift,
                    end_cycle=s.end_cycle + k * shift,
                )
                for s in pattern
            ]
        whole = times * shift
        f.clock[self.cores] += whole
        f.leaves[self.cores] += whole
        ports = self._ports()
        for slots, which in ((w.link, touched), (w.inject, ports), (w.eject, ports)):
            part = slots[which]
            for last in (1, 3):
                past = part[:, last] <= base
                part[:, last - 1 : last + 1] += whole
                part[past, last - 1 : last + 1] = 0.0
            slots[which] = part
