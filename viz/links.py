"""How busy the links between cores are, by direction."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from meshc.ir.trace import DIRECTIONS

from .data import RunData
from .mesh import Window, draw_dead, frame, label_cells, outline_regions, window_of
from .panel import LEFT, Room, heat_panel, mesh_axes, mesh_key, room_for
from .sheet import MARGIN, Sheet, header_height
from .style import FAINT, LINK_MAP, nice_ceiling, percent_text, styled

ARROWS = 16  # up to so many rows and columns, every link is drawn
STEPS = {"east": (0, 1), "west": (0, -1), "south": (1, 0), "north": (-1, 0)}
ARROW_SIGNS = {"east": "→", "west": "←", "south": "↓", "north": "↑"}
UNIT = "busy share of the step (%)"
# An arrow along +x from a core's centre to its neighbour's: shaft and head, to the right of the
# centre line as it flies, so that the two directions of a link lie beside each other.
ARROW = np.array(
    [
        (0.23, 0.06), (0.62, 0.06), (0.62, 0.015), (0.77, 0.105),
        (0.62, 0.195), (0.62, 0.15), (0.23, 0.15),
    ]
)  # fmt: skip


@styled
def links(run: RunData) -> Figure:
    """Per network the busiest outgoing link of every core, and the load of each direction."""
    window = window_of(run)
    share = run.percent(run.link_busy_cycles)
    top_value = nice_ceiling(float(share.max()) if share.size else 0.0)
    small = max(window.rows, window.cols) <= ARROWS
    top = header_height(window)
    networks = max(1, run.networks)
    rooms = [room_for(window, MARGIN, top, 4.6, 4.6)]
    for _ in range(1, networks):
        rooms.append(room_for(window, MARGIN, rooms[-1].bottom + 0.2, 4.6, 4.6))
    beside = _beside(rooms[0], window, small)
    sheet = Sheet(
        run,
        window,
        max(r.right for r in beside) + MARGIN,
        max(rooms[-1].bottom, rooms[-1].top + beside[-1].bottom - rooms[0].top) + 0.3,
        "Links",
        "Share of the step's time in which the links that leave a core's router carry data.",
    )
    for network, room in enumerate(rooms):
        of = f", network {network}" if networks > 1 else ""
        here = share[network] if run.networks else np.zeros((run.rows, run.cols, 4))
        axes = heat_panel(
            sheet,
            room,
            run,
            window,
            here.max(axis=2),
            label=f"busiest {network}",
            title=f"Busiest outgoing link of each core{of}",
            unit=f"{UNIT}, {_summary(run, here)}",
            cmap=LINK_MAP,
            top_value=top_value,
            hide_unused=False,
            names=False,
        )
        label_cells(axes, run, window, lambda r, c, s=here: f"{s[r, c].max():.3g}", size=8)
        for place, direction in zip(_beside(room, window, small), DIRECTIONS, strict=False):
            if small:
                _arrow_panel(sheet, place, run, window, here, network, top_value)
            else:
                _direction_panel(sheet, place, run, window, here, network, direction, top_value)
    mesh_key(sheet, run, rooms[-1].left + LEFT, rooms[-1].bottom + 0.1, unused=False)
    return sheet.figure


def _beside(room: Room, window: Window, small: bool) -> list[Room]:
    """Rooms to the right of a network's heatmap: one for arrows, or four for the directions."""
    left = room.right + 0.15
    if small:
        return [room_for(window, left, room.top, 4.6, 4.6)]
    first = room_for(window, left, room.top, 2.1, 2.1, bar=False)
    right, below = first.right + 0.05, first.bottom + 0.12
    return [
        first,
        room_for(window, right, room.top, 2.1, 2.1, bar=False),
        room_for(window, left, below, 2.1, 2.1, bar=False),
        room_for(window, right, below, 2.1, 2.1, bar=False),
    ]


def _direction_panel(
    sheet: Sheet,
    room: Room,
    run: RunData,
    window: Window,
    share: np.ndarray,
    network: int,
    direction: str,
    top_value: float,
) -> None:
    axes = heat_panel(
        sheet,
        room,
        run,
        window,
        share[:, :, DIRECTIONS.index(direction)],
        label=f"{direction} {network}",
        title=f"{ARROW_SIGNS[direction]} {direction}",
        unit="",
        cmap=LINK_MAP,
        top_value=top_value,
        hide_unused=False,
        names=False,
    )
    axes.set_xlabel("core column", fontsize=8)
    axes.set_ylabel("core row", fontsize=8)


def _arrow_panel(
    sheet: Sheet,
    room: Room,
    run: RunData,
    window: Window,
    share: np.ndarray,
    network: int,
    top_value: float,
) -> None:
    axes = mesh_axes(sheet, room, f"arrows {network}", "Every link")
    _draw_links(axes, run, window, share, top_value)
    width = max(room.mesh_width, 2.1)
    top = room.bottom - 0.62
    sheet.colour_bar(room.left + LEFT, top, width, LINK_MAP, top_value, f"{UNIT}; grey: never used")


def _draw_links(
    axes: Axes, run: RunData, window: Window, share: np.ndarray, top_value: float
) -> None:
    """Cores as squares, each directed link as an arrow in the colour of its load."""
    frame(axes, window, grid=False)
    corners = 0.21 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    squares = [
        corners + (c, r)
        for r in range(window.row, window.row + window.rows)
        for c in range(window.col, window.col + window.cols)
        if not run.dead_mask[r, c]
    ]
    axes.add_collection(PolyCollection(squares, facecolor="#e4e4e4", edgecolor=FAINT, zorder=1))
    draw_dead(axes, run, window)
    outline_regions(axes, run, window)
    busy, idle, values = [], [], []
    for d, direction in enumerate(DIRECTIONS):
        for row in range(window.row, window.row + window.rows):
            for col in range(window.col, window.col + window.cols):
                value = float(share[row, col, d])
                inside = _has_neighbour(run, row, col, direction)
                if value > 0:
                    busy.append(_arrow(row, col, direction, 1.0 if inside else 0.62))
                    values.append(value)
                elif inside:
                    idle.append(_arrow(row, col, direction, 1.0))
    axes.add_collection(
        PolyCollection(idle, facecolor="white", edgecolor=FAINT, linewidth=0.5, zorder=2)
    )
    axes.add_collection(
        PolyCollection(
            busy,
            array=np.array(values),
            cmap=LINK_MAP,
            norm=Normalize(0, top_value),
            edgecolor="#4a4a4a",
            linewidth=0.3,
            zorder=3.5,
            clip_on=False,
            label="busy links",
        )
    )


def _has_neighbour(run: RunData, row: int, col: int, direction: str) -> bool:
    down, right = STEPS[direction]
    row, col = row + down, col + right
    return 0 <= row < run.rows and 0 <= col < run.cols


def _arrow(row: int, col: int, direction: str, length: float) -> np.ndarray:
    """Corners (x, y) of a link's arrow; a link that wraps round or leaves the mesh is shorter."""
    down, right = STEPS[direction]
    along, aside = 0.23 + (ARROW[:, 0] - 0.23) * length, ARROW[:, 1]
    return np.column_stack((col + along * right - aside * down, row + along * down + aside * right))


def _summary(run: RunData, share: np.ndarray) -> str:
    """Mean over the links between cores in use, and the maximum."""
    exist = np.repeat(run.used_mask[:, :, None], len(DIRECTIONS), axis=2)
    for d, direction in enumerate(DIRECTIONS):
        down, right = STEPS[direction]
        neighbour = np.zeros_like(run.used_mask)
        neighbour[max(0, -down) : run.rows - max(0, down), max(0, -right) : run.cols - max(0, right)] = (
            run.used_mask[max(0, down) : run.rows + min(0, down), max(0, right) : run.cols + min(0, right)]
        )
        exist[:, :, d] &= neighbour
    mean = float(share[exist].mean()) if exist.any() else 0.0
    return f"mean {percent_text(mean)}, max {percent_text(float(share.max()))}"
