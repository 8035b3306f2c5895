"""Which way messages go.

A flow is the traffic of one communication instruction (or of one kind of them). Its route is a
policy that gives every pair of cores a path, so that its size does not depend on the core count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshc.ir.chip import Coord

Policy = Literal["xy", "yx", "via"]


@dataclass(frozen=True)
class Route:
    """policy: "xy" goes along the row (changing column) first, "yx" along the column first;
    "via" goes xy to `waypoint` and xy from there.
    network: index of the physical network.   colour: routing entry shared by the flow's messages.
    """

    policy: Policy = "xy"
    network: int = 0
    colour: int = 0
    waypoint: Coord | None = None


@dataclass(frozen=True)
class Routing:
    """Flow name → route."""

    routes: dict[str, Route]

    def dump(self) -> str:
        return "".join(
            f"flow {name} {r.policy} network={r.network} colour={r.colour}"
            + (f" waypoint=({r.waypoint.row},{r.waypoint.col})" if r.waypoint else "")
            + "\n"
            for name, r in self.routes.items()
        )
