"""The links that a message takes from core to core under a route: the definition in plain steps.

Along the row first ("xy") or along the column first ("yx"); "via" goes xy to the waypoint and xy
from there. On a torus each axis is travelled the shorter way round, east and south when both are
equal; with one-way networks, even networks go east and then south, odd ones north and then west,
whatever the policy. An exchange has no links but the seams between its chips.
"""

from __future__ import annotations

from typing import NamedTuple

from meshc.errors import InvariantError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.routing import Route

EAST, WEST, SOUTH, NORTH = range(4)
STEPS = ((0, 1), (0, -1), (1, 0), (-1, 0))


class Hop(NamedTuple):
    """A link: its network, the router (row, col) that it leaves, and its direction 0 to 3."""

    network: int
    row: int
    col: int
    direction: int


def path(source: Coord, destination: Coord, route: Route, chip: ChipSpec) -> tuple[Hop, ...]:
    """The links from one core to another in order; empty when both are the same."""
    if route.policy == "via":
        if route.waypoint is None:
            raise InvariantError("a route with policy via has no waypoint; give it one.")
        hops = _leg(source, route.waypoint, "xy", route.network, chip)
        hops += _leg(route.waypoint, destination, "xy", route.network, chip)
    else:
        hops = _leg(source, destination, route.policy, route.network, chip)
    if chip.noc.topology == "exchange":
        hops = [h for h in hops if crosses_seam(h, chip)]
    return tuple(hops)


def crosses_seam(hop: Hop, chip: ChipSpec) -> bool:
    """Whether a link leads from one chip of a multi-chip mesh to another."""
    if chip.seams is None:
        return False
    down, right = STEPS[hop.direction]
    row, col = (hop.row + down) % chip.rows, (hop.col + right) % chip.cols
    rows, cols = chip.seams.rows, chip.seams.cols
    return (hop.row // rows, hop.col // cols) != (row // rows, col // cols)


def _leg(source: Coord, destination: Coord, policy: str, network: int, chip: ChipSpec) -> list[Hop]:
    if chip.noc.one_way:
        policy = "xy" if network % 2 == 0 else "yx"
    across = _steps(source.col, destination.col, chip.cols, network, chip)
    down = _steps(source.row, destination.row, chip.rows, network, chip)
    along_row = [EAST if across > 0 else WEST] * abs(across)
    along_col = [SOUTH if down > 0 else NORTH] * abs(down)
    hops = []
    row, col = source.row, source.col
    for direction in along_col + along_row if policy == "yx" else along_row + along_col:
        hops.append(Hop(network, row, col, direction))
        row = (row + STEPS[direction][0]) % chip.rows
        col = (col + STEPS[direction][1]) % chip.cols
    return hops


def _steps(start: int, end: int, size: int, network: int, chip: ChipSpec) -> int:
    """Signed number of hops along one axis; positive towards growing positions."""
    if chip.noc.topology != "torus":
        return end - start
    forward = (end - start) % size
    if chip.noc.one_way:
        return forward if network % 2 == 0 else forward - size if forward else 0
    return forward if 2 * forward <= size else forward - size
