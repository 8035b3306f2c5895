"""The routes that a flow may take: row or column first on each network, or around dead cores."""

from __future__ import annotations

import numpy as np

from meshc.errors import DoesNotFitError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.routing import Route
from meshc.route.flow import Ints, Messages
from meshc.route.segments import Mask, steps

WAYPOINTS = 3  # detours offered per network to a flow that needs one
MARGIN = 3  # detours are looked for within this distance of the flow before anywhere else
_CHUNK = 2_000_000


class Obstacles:
    """Dead cores that do not forward, summed along rows and columns: a run is one look-up."""

    def __init__(self, chip: ChipSpec) -> None:
        self.chip = chip
        self.dead = np.zeros((chip.rows, chip.cols), bool)
        if not chip.dead_cores_forward and chip.noc.topology != "exchange":
            self.dead[list(chip.dead_rows), :] = True
            self.dead[:, list(chip.dead_cols)] = True
            for core in chip.dead_cores:
                self.dead[core.row, core.col] = True
        self.any = bool(self.dead.any())
        # Twice round, for runs that wrap.
        twice_row = np.concatenate([self.dead, self.dead], 1).astype(np.int64)
        twice_col = np.concatenate([self.dead, self.dead], 0).astype(np.int64)
        self._row = np.pad(twice_row.cumsum(1), ((0, 0), (1, 0)))
        self._col = np.pad(twice_col.cumsum(0), ((1, 0), (0, 0)))

    def clear(self, source: Ints, destination: Ints, policy: str, network: int) -> Mask:
        """Whether the path of each (source, destination) meets no dead core; arrays (…, 2)."""
        chip = self.chip
        if chip.noc.one_way:
            policy = "xy" if network % 2 == 0 else "yx"
        source, destination = np.broadcast_arrays(source, destination)
        row, col = source[..., 0], source[..., 1]
        to_row, to_col = destination[..., 0], destination[..., 1]
        across = steps(col, to_col, chip.cols, network, chip)
        down = steps(row, to_row, chip.rows, network, chip)
        line_row = to_row if policy == "yx" else row
        line_col = col if policy == "yx" else to_col
        met = _between(self._row, line_row, col, across, chip.cols)
        met = met + _between(self._col.T, line_col, row, down, chip.rows)
        return np.asarray(met == 0)


def _between(sums: Ints, line: Ints, start: Ints, signed: Ints, size: int) -> Ints:
    """Dead cores on a run of `signed` hops from `start`, both ends included."""
    low = np.where(signed >= 0, start, (start + signed) % size)
    return np.asarray(sums[line, low + np.abs(signed) + 1] - sums[line, low])


def candidates(m: Messages, chip: ChipSpec, obstacles: Obstacles) -> list[Route]:
    """Routes whose paths all avoid dead cores, plain ones first; they differ in some path.

    Raises DoesNotFitError when no route of the kinds that meshc has avoids them.
    """
    noc = chip.noc
    if noc.topology == "exchange" and chip.seams is None:
        return [Route("xy", 0)]
    plain: list[Route] = []
    for network in range(noc.networks):
        if noc.one_way:
            plain.append(Route("xy" if network % 2 == 0 else "yx", network))
        elif m.straight:
            plain.append(Route("xy", network))
        else:
            plain += [Route("xy", network), Route("yx", network)]
    if not obstacles.any or not len(m.message):
        return plain
    open_ = [
        r
        for r in plain
        if bool(obstacles.clear(m.source, m.destination, r.policy, r.network).all())
    ]
    if open_:
        return open_
    detours: list[Route] = []
    for near in (True, False):
        for network in range(noc.networks):
            detours += _detours(m, network, obstacles, near)
        if detours:
            return detours
    first = _blocked(m, obstacles)
    raise DoesNotFitError(
        f"no route of flow {m.name} on {chip.name} avoids the dead cores: from {first[0]} to "
        f"{first[1]} along the row, along the column and over any one waypoint that serves all its "
        f"{len(m.message)} messages, each way is blocked; set dead_cores_forward = true if dead "
        "cores forward messages, or use regions that lie on one side of them (--grid)."
    )


def _blocked(m: Messages, obstacles: Obstacles) -> tuple[str, str]:
    bad = ~obstacles.clear(m.source, m.destination, "xy", 0)
    i = int(np.argmax(bad))
    ends = (m.source[i].tolist(), m.destination[i].tolist())
    return f"({ends[0][0]}, {ends[0][1]})", f"({ends[1][0]}, {ends[1][1]})"


def _detours(m: Messages, network: int, obstacles: Obstacles, near: bool) -> list[Route]:
    """The shortest few waypoints that serve every message; near: beside the flow's own cores."""
    chip = obstacles.chip
    sources = np.unique(m.source, axis=0)
    sinks = np.unique(m.destination, axis=0)
    ends = np.concatenate([sources, sinks])
    low, high = np.array([0, 0]), np.array([chip.rows - 1, chip.cols - 1])
    if near:
        low = np.maximum(ends.min(0) - MARGIN, low)
        high = np.minimum(ends.max(0) + MARGIN, high)
    way = np.argwhere(~obstacles.dead[low[0] : high[0] + 1, low[1] : high[1] + 1]) + low
    good = []
    size = max(1, _CHUNK // len(ends))
    for begin in range(0, len(way), size):
        some = way[begin : begin + size, None, :]
        fine = obstacles.clear(sources[None], some, "xy", network).all(1)
        fine &= obstacles.clear(some, sinks[None], "xy", network).all(1)
        good.append(way[begin : begin + size][fine])
    usable = np.concatenate(good) if good else np.zeros((0, 2), np.int64)
    if not len(usable):
        return []
    cost = np.zeros(len(usable))
    for axis, length in ((0, chip.rows), (1, chip.cols)):
        for group in (sources, sinks):
            at, counts = np.unique(group[:, axis], return_counts=True)
            for value, times in zip(at.tolist(), counts.tolist(), strict=True):
                there = np.full(len(usable), value)
                hops = (
                    steps(there, usable[:, axis], length, network, chip)
                    if group is sources
                    else steps(usable[:, axis], there, length, network, chip)
                )
                cost += times * np.abs(hops)
    order = np.argsort(cost, kind="stable")[:WAYPOINTS]
    return [
        Route("via", network, waypoint=Coord(int(r), int(c))) for r, c in usable[order].tolist()
    ]
