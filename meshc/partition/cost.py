"""The planner's cost model: closed forms for the time of what a plan does.

It prices a candidate from the fullest lane's work and from the shape of its collectives, without
running anything. The emulator does not use it; the report shows its prediction beside the
emulated time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, prod

from meshc.collectives import tree
from meshc.ir.chip import ChipSpec
from meshc.ir.dtypes import size_bytes
from meshc.ir.layout import Axis, Layout, Split
from meshc.ir.shards import covers, pieces
from meshc.ops import Work, timing


@dataclass(frozen=True, eq=False)
class CostModel:
    """Prices for one chip. All times in cycles. Compared by identity: one model serves a whole
    planning, so that its prices are worked out once."""

    chip: ChipSpec

    def kernel(self, work: Work) -> float:
        """One lane's kernel."""
        cycles = timing.kernel_cycles(self.chip.core, work)
        return cycles if cycles == inf else ceil(cycles)

    def message(self, size_bytes_: float, hops: float, seams: int = 0) -> float:
        """A message alone: from sending to having been received.

        seams: how many of its hops cross from chip to chip.
        """
        noc = self.chip.noc
        hop_time = (1 if noc.topology == "exchange" else hops) * noc.hop_cycles + noc.sync_cycles
        link = self._link()
        if seams and self.chip.seams is not None:
            hop_time += seams * (self.chip.seams.hop_cycles - noc.hop_cycles)
            link = min(link, self.chip.seams.link_bytes_per_cycle)
        serial = max(1, ceil(size_bytes_ / link)) - 1
        return 2 * noc.message_cycles + sum(noc.ramp_cycles) + hop_time + serial

    def pitch(self, axis: Axis) -> int:
        """Lanes along an axis from one seam to the next, 0 without seams. Regions are taken to
        begin at a chip's corner."""
        seams = self.chip.seams
        return 0 if seams is None else seams.rows if axis == "row" else seams.cols

    def _link(self) -> float:
        noc = self.chip.noc
        ports = [p for p in (noc.inject_bytes_per_cycle, noc.eject_bytes_per_cycle) if p]
        return min([noc.link_bytes_per_cycle, *ports])

    def combine(self, elements: int, dtype: str, how: str = "sum") -> float:
        """Joining a received partial result with one's own."""
        if not timing.vector_rate(self.chip.core, dtype):
            return inf  # no lane could, so that no candidate that needs it is worth taking
        cycles = timing.combine_cycles(self.chip.core, how, dtype, elements)
        return cycles + ceil(self.chip.noc.step_cycles)

    def all_reduce(
        self,
        elements: int,
        dtype: str,
        lanes: int,
        groups: int,
        pitch: int = 0,
        how: str = "sum",
    ) -> float:
        """Reduce along a line of lanes by a tree of `groups` groups, then give the result back.

        pitch: lanes from seam to seam along the line, 0 without seams.
        """
        if lanes == 1 or elements == 0:
            return 0.0
        size = elements * size_bytes(dtype)
        t = tree(lanes, groups)
        add = self.combine(elements, dtype, how)
        ready = [float(self.chip.noc.collective_cycles)] * lanes
        flit = max(size_bytes(dtype), self.chip.noc.flit_bytes or 0)
        one = self.combine(max(1, int(min(size, flit)) // size_bytes(dtype)), dtype, how)
        for order, children, parent in zip(t.order, t.children, t.parent, strict=True):
            done: dict[int, tuple[float, float]] = {}  # when the first and the last of it is there
            for lane in order:
                at = begin = ready[lane]
                for child in children[lane]:
                    leg = _leg(size, child, lane, pitch)
                    first, last = done[child]
                    arrived = first + self.message(*leg)
                    if self.chip.noc.streaming_reduce and parent[lane] >= 0:
                        alone = self.message(flit, *leg[1:])
                        begin = max(at, first + alone) + one
                        at = max(max(arrived, last + alone) + one, begin + add - one)
                        continue
                    alone = self.message(flit, *leg[1:])
                    at = begin = max(at, arrived, last + alone) + add
                done[lane] = begin, at
                ready[lane] = at
        reduced = ready[t.root]
        if self.chip.noc.multicast:
            far = max(t.root, lanes - 1 - t.root)
            end = 0 if far == t.root else lanes - 1
            return reduced + self.message(*_leg(size, t.root, end, pitch))
        return reduced + self._give_back(size, lanes, groups, pitch)

    def _give_back(self, size: int, lanes: int, groups: int, pitch: int) -> float:
        t = tree(lanes, groups)
        at = {t.root: 0.0}
        noc = self.chip.noc
        issue = max(noc.message_cycles, ceil(size / self._link()))
        for level in reversed(range(len(t.parent))):
            front = [lane for lane in at]
            while front:
                lane = front.pop()
                for number, child in enumerate(t.children[level][lane]):
                    at[child] = (
                        at[lane] + number * issue + self.message(*_leg(size, lane, child, pitch))
                    )
                    front.append(child)
        return max(at.values())

    def best_groups(
        self, elements: int, dtype: str, lanes: int, pitch: int = 0, how: str = "sum"
    ) -> tuple[int, float]:
        """The number of groups with the least all-reduce time, and that time."""
        return _best_groups(self, elements, dtype, lanes, pitch, how)

    def reshard(
        self,
        source: Layout,
        wanted: Layout,
        shape: tuple[int, ...],
        dtype: str,
        rows: int,
        cols: int,
    ) -> float:
        """Time of giving every lane its shard of `wanted` from lanes that hold `source`.

        Looks at a few lanes of the region: what the busiest of them takes in and its distance
        from the givers; and at what a giver sends.
        """
        if source == wanted or covers(source, wanted, shape, rows, cols):
            return 0.0
        return _reshard(self, source, wanted, shape, dtype, rows, cols)


def _leg(size: int, start: int, end: int, pitch: int) -> tuple[int, int, int]:
    """Arguments of `message` from one place of a line to another."""
    return size, abs(end - start), abs(end // pitch - start // pitch) if pitch else 0


@lru_cache(maxsize=100_000)
def _best_groups(
    model: CostModel, elements: int, dtype: str, lanes: int, pitch: int, how: str
) -> tuple[int, float]:
    options = sorted({1, *(g for g in (2, 3, 4, 5, 6, 8, 12, 16, 24, 32) if g < lanes)})
    return min(
        ((g, model.all_reduce(elements, dtype, lanes, g, pitch, how)) for g in options),
        key=lambda x: x[1],
    )


@lru_cache(maxsize=400_000)
def _reshard(
    model: CostModel,
    source: Layout,
    wanted: Layout,
    shape: tuple[int, ...],
    dtype: str,
    rows: int,
    cols: int,
) -> float:
    noc = model.chip.noc
    link = model._link()
    element = size_bytes(dtype)
    worst = 0.0
    for home in sorted({(0, 0), (rows - 1, cols - 1), (rows // 2, cols // 2)}):
        arrive, messages, local_bytes, far, crossed = 0.0, 0, 0, 0, 0
        found: list[tuple[int, int, int]] = [(-1, -1, element)]
        for s, w, n in zip(source.splits, wanted.splits, shape, strict=True):
            found = [
                (r if r >= 0 else row, c if c >= 0 else col, size * count)
                for row, col, size in found
                for r, c, count in _givers(s, w, n, *home, rows, cols)
            ]
        for r, c, size in found:
            giver = (r if r >= 0 else home[0], c if c >= 0 else home[1])
            if giver == home:
                local_bytes += size
                continue
            messages += 1
            crossings = _leg(size, giver[0], home[0], model.pitch("row"))[2]
            crossings += _leg(size, giver[1], home[1], model.pitch("col"))[2]
            crossed = max(crossed, crossings)
            slow = model.chip.seams.link_bytes_per_cycle if model.chip.seams else link
            arrive += max(1, ceil(size / (min(link, slow) if crossings else link)))
            far = max(far, abs(giver[0] - home[0]) + abs(giver[1] - home[1]))
        if messages:
            time = (messages + 1) * noc.message_cycles + sum(noc.ramp_cycles) + arrive - 1
            time += (1 if noc.topology == "exchange" else far) * noc.hop_cycles + noc.sync_cycles
            if model.chip.seams is not None:
                time += crossed * (model.chip.seams.hop_cycles - noc.hop_cycles)
        else:
            time = 0.0
        time += timing.copy_cycles(model.chip.core, local_bytes)
        worst = max(worst, time)
    # A giver that many lanes ask serialises its messages unless one multicast serves them.
    out = prod(source.largest(shape, rows, cols)) * element
    fan = _fan_out(source, wanted, rows, cols)
    if fan > 1 and not noc.multicast:
        worst = max(worst, fan * max(1, ceil(out / link)) + sum(noc.ramp_cycles))
    return worst


@lru_cache(maxsize=200_000)
def _givers(
    source: Split, wanted: Split, size: int, row: int, col: int, rows: int, cols: int
) -> tuple[tuple[int, int, int], ...]:
    """Of one dimension: the lanes that give the lane (row, col) its elements, as (row, col,
    elements), -1 for a coordinate that does not matter."""
    part = wanted.shard(size, row, col, rows, cols)
    whole = pieces(Layout((source,)), (part,), (size,), rows, cols, (-1 % rows, -1 % cols))
    axes = source.axes
    return tuple(
        (r if "row" in axes else -1, c if "col" in axes else -1, len(rs[0])) for (r, c), rs in whole
    )


def _fan_out(source: Layout, wanted: Layout, rows: int, cols: int) -> int:
    """Lanes that want the same elements of one giver: those along axes that divide the source
    but not the wanted layout."""
    gone: set[Axis] = set(source.axes) - set(wanted.axes)
    return prod((rows if a == "row" else cols) for a in gone)
