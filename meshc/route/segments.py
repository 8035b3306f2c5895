"""The straight runs of links that a flow's messages use under a route, and what they load.

Everything is an array over runs, so that a flow of a hundred thousand messages costs a few array
operations. A multicast uses each link of its tree once: runs of one message that start at the same
router in the same direction are one run of the largest length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshc.ir.chip import ChipSpec
from meshc.ir.routing import Route
from meshc.paths import EAST, NORTH, SOUTH, WEST, Hop, crosses_seam
from meshc.route.flow import Floats, Ints, Messages

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Runs:
    """Straight runs. message: which message.   row, col: the router where the run starts.
    direction: 0 to 3 as in `meshc.paths`.   length: links."""

    message: Ints
    row: Ints
    col: Ints
    direction: Ints
    length: Ints


def steps(start: Ints, end: Ints, size: int, network: int, chip: ChipSpec) -> Ints:
    """Signed hops along one axis, as `meshc.paths` has it, for whole arrays."""
    if chip.noc.topology != "torus":
        return np.asarray(end - start)
    forward = (end - start) % size
    if chip.noc.one_way:
        return forward if network % 2 == 0 else np.where(forward > 0, forward - size, 0)
    return np.where(2 * forward <= size, forward, forward - size)


def runs(m: Messages, route: Route, chip: ChipSpec) -> Runs:
    """All runs of the flow's messages under a route."""
    if route.policy != "via":
        return _leg(m.message, m.source, m.destination, route.policy, route.network, chip)
    assert route.waypoint is not None
    _, first = np.unique(m.message, return_index=True)
    way = np.array([[route.waypoint.row, route.waypoint.col]], np.int64)
    to = np.repeat(way, len(first), 0)
    out = _leg(m.message[first], m.source[first], to, "xy", route.network, chip)
    rest = np.repeat(way, len(m.message), 0)
    back = _leg(m.message, rest, m.destination, "xy", route.network, chip)
    return Runs(
        *(
            np.concatenate([getattr(out, f), getattr(back, f)])
            for f in ("message", "row", "col", "direction", "length")
        )
    )


def _leg(
    message: Ints, source: Ints, destination: Ints, policy: str, network: int, chip: ChipSpec
) -> Runs:
    if chip.noc.one_way:
        policy = "xy" if network % 2 == 0 else "yx"
    across = steps(source[:, 1], destination[:, 1], chip.cols, network, chip)
    down = steps(source[:, 0], destination[:, 0], chip.rows, network, chip)
    # Where the second run starts: at the corner.
    row_turn = destination[:, 0] if policy == "yx" else source[:, 0]
    col_turn = source[:, 1] if policy == "yx" else destination[:, 1]
    parts = Runs(
        np.concatenate([message, message]),
        np.concatenate([row_turn, source[:, 0]]),
        np.concatenate([source[:, 1], col_turn]),
        np.concatenate([np.where(across > 0, EAST, WEST), np.where(down > 0, SOUTH, NORTH)]),
        np.concatenate([np.abs(across), np.abs(down)]),
    )
    return _joined(parts, chip)


def _joined(r: Runs, chip: ChipSpec) -> Runs:
    """Drop empty runs; join those of a message that start alike into the longest."""
    keep = r.length > 0
    key = ((r.message * chip.rows + r.row) * chip.cols + r.col) * 4 + r.direction
    order = np.lexsort((-r.length, key))
    order = order[keep[order]]
    sorted_key = key[order]
    first = np.ones(len(order), bool)
    first[1:] = sorted_key[1:] != sorted_key[:-1]
    chosen = order[first]
    return Runs(
        r.message[chosen], r.row[chosen], r.col[chosen], r.direction[chosen], r.length[chosen]
    )


def spread(r: Runs, amount: Floats, chip: ChipSpec) -> Floats:
    """Sum over the runs of `amount` (one per run) on every link: shape (rows, cols, 4)."""
    out = np.zeros((chip.rows, chip.cols, 4))
    for direction in np.unique(r.direction).tolist():
        mine = r.direction == direction
        along_row = direction in (EAST, WEST)
        line, at = (r.row, r.col) if along_row else (r.col, r.row)
        lines, size = (chip.rows, chip.cols) if along_row else (chip.cols, chip.rows)
        start = at[mine]
        if direction in (WEST, NORTH):
            start = (start - r.length[mine] + 1) % size
        width = 2 * size + 1
        base = line[mine] * width + start
        ends = np.concatenate([base, base + r.length[mine]])
        change = np.concatenate([amount[mine], -amount[mine]])
        total = np.bincount(ends, change, lines * width).reshape(lines, width).cumsum(1)
        folded = total[:, :size] + total[:, size : 2 * size]
        out[:, :, direction] = folded if along_row else folded.T
    # Whole bytes stay whole; what is left of adding and taking away a fraction is no load.
    out[np.abs(out) < 1e-9 * float(amount.max(initial=0.0))] = 0.0
    return out


def link_bytes(m: Messages, route: Route, chip: ChipSpec) -> Floats:
    """Bytes of the flow on every link of the route's network: shape (rows, cols, 4)."""
    r = runs(m, route, chip)
    size = np.zeros(int(m.message.max(initial=-1)) + 1)
    size[m.message] = m.size
    out = spread(r, size[r.message], chip)
    return out * seam_links(chip) if chip.noc.topology == "exchange" else out


def seam_links(chip: ChipSpec) -> Floats:
    """1 for every link between chips, else 0: shape (rows, cols, 4)."""
    out = np.zeros((chip.rows, chip.cols, 4))
    if chip.seams is None:
        return out
    for direction in range(4):
        if direction in (EAST, WEST):
            for col in range(chip.cols):
                out[:, col, direction] = crosses_seam(Hop(0, 0, col, direction), chip)
        else:
            for row in range(chip.rows):
                out[row, :, direction] = crosses_seam(Hop(0, row, 0, direction), chip)
    return out


def touched(m: Messages, route: Route, chip: ChipSpec) -> Mask:
    """Cores that hold a routing entry of the flow: sources, destinations and routers between."""
    r = runs(m, route, chip)
    used = spread(r, np.ones(len(r.length)), chip) > 0.5
    if chip.noc.topology == "exchange":
        used[:] = False
    out = np.array(used.any(2), bool)
    out[:, 1:] |= used[:, :-1, EAST]
    out[:, 0] |= used[:, -1, EAST]
    out[:, :-1] |= used[:, 1:, WEST]
    out[:, -1] |= used[:, 0, WEST]
    out[1:, :] |= used[:-1, :, SOUTH]
    out[0, :] |= used[-1, :, SOUTH]
    out[:-1, :] |= used[1:, :, NORTH]
    out[-1, :] |= used[0, :, NORTH]
    out[m.source[:, 0], m.source[:, 1]] = True
    out[m.destination[:, 0], m.destination[:, 1]] = True
    return out
