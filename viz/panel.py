"""A mesh heatmap with its title, axes labels and colour bar, placed on a sheet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from .data import RunData
from .mesh import Window, draw_mesh, fit, outline_regions
from .sheet import Sheet
from .style import FAINT, MUTED, UNUSED

TITLE, LEFT, BELOW, BAR, RIGHT = 0.3, 0.62, 0.52, 0.62, 0.2
NARROWEST, NARROWEST_BARE = 2.7, 1.0  # room for a title and a colour bar beside a very narrow mesh


@dataclass(frozen=True)
class Room:
    """Where a panel lies on its sheet and how large its mesh is drawn, in inches."""

    left: float
    top: float
    mesh_width: float
    mesh_height: float
    bar: bool = True

    @property
    def width(self) -> float:
        """Of the whole panel, labels included."""
        return LEFT + self.inner_width + RIGHT

    @property
    def inner_width(self) -> float:
        """Of the title and the colour bar."""
        return max(self.mesh_width, NARROWEST if self.bar else NARROWEST_BARE)

    @property
    def height(self) -> float:
        return TITLE + self.mesh_height + BELOW + (BAR if self.bar else 0)

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


def room_for(
    window: Window, left: float, top: float, width: float, height: float, bar: bool = True
) -> Room:
    """The room of a panel whose mesh is drawn in at most `width` × `height`."""
    return Room(left, top, *fit(window, width, height), bar=bar)


def heat_panel(
    sheet: Sheet,
    room: Room,
    run: RunData,
    window: Window,
    values: np.ndarray,
    *,
    label: str,
    title: str,
    unit: str,
    cmap: str,
    top_value: float,
    hidden: np.ndarray | None = None,
    names: bool = True,
) -> Axes:
    """Draw a per-core array in its room; `unit` labels the colour bar. Axes carry `label`."""
    axes = mesh_axes(sheet, room, label, title)
    draw_mesh(axes, run, window, values, cmap, top_value, hidden)
    outline_regions(axes, run, window, names)
    if room.bar:
        bar_below(sheet, room, cmap, top_value, unit)
    return axes


def bar_below(sheet: Sheet, room: Room, cmap: str, top_value: float, unit: str) -> None:
    """The room's colour bar."""
    top = room.top + TITLE + room.mesh_height + BELOW
    sheet.colour_bar(room.left + LEFT, top, room.inner_width, cmap, top_value, unit)


def mesh_axes(sheet: Sheet, room: Room, label: str, title: str) -> Axes:
    """Empty axes for a mesh, the title above them."""
    left, top = room.left + LEFT, room.top + TITLE
    axes = sheet.axes(left, top, room.mesh_width, room.mesh_height, label)
    sheet.text(left, top - 0.1, title, size=10.5, weight="bold")
    return axes


def mesh_key(
    sheet: Sheet, run: RunData, left: float, top: float, pale: str = "core without work"
) -> None:
    """Explains hatched cells where there are any, and pale ones ("" when there are none)."""
    if run.dead_mask.any():
        sheet.swatch(left, top, "white", hatch="//////")
        sheet.text(left + 0.2, top, "dead core")
        left += 1.05
    if pale == "core without work" and (run.used_mask | run.dead_mask).all():
        return
    if pale:
        sheet.swatch(left, top, UNUSED, edge=FAINT)
        sheet.text(left + 0.2, top, pale, colour=MUTED)
