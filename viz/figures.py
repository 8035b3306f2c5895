"""The pictures by name. Each takes a `RunData` and returns a matplotlib Figure."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from .data import RunData, load_run
from .links import links
from .placement import placement
from .sram import sram
from .timeline import timeline
from .utilization import utilization

FIGURES: dict[str, Callable[[RunData], Figure]] = {
    "placement": placement,
    "sram": sram,
    "utilization": utilization,
    "links": links,
    "timeline": timeline,
}

__all__ = [
    "FIGURES", "RunData", "links", "load_run", "placement", "sram", "timeline", "utilization",
]  # fmt: skip
