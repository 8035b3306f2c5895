"""How busy the links between cores are, by direction."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from meshc.ir.trace import DIRECTIONS

from .data import RunData
from .mesh import Window, draw_dead, frame, label_cells, numbers, outline_regions, window_of
from .panel import LEFT, Room, bar_below, heat_panel, mesh_axes, mesh_key, room_for
from .sheet import MARGIN, Sheet, header_height
from .style import FAINT, LINK_MAP, nice_ceiling, percent_text, styled

ARROWS = 16  # up to so many rows and columns, every link is drawn
STEPS = {"east": (0, 1), "west": (0, -1), "south": (1, 0), "north": (-1, 0)}
SIGNS = {"east": "→", "west": "←", "south": "↓", "north": "↑"}
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
    if not run.networks:
        share = np.zeros((1, run.rows, run.cols, len(DIRECTIONS)))
    top_value = nice_ceiling(float(share.max()))
    top, rows = header_height(window), []
    for _ in share:
        rows.append(_row(window, top))
        top = max(room.bottom for room in rows[-1]) + 0.35
    sheet = Sheet(
        run,
        window,
        max(room.right for room in rows[0]) + MARGIN,
        top,
        "Links",
        "Share of the step's time in which the links that leave a core's router carry data."
        + ("" if share.any() else " In this step none did."),
    )
    for network, ((room, *beside), here) in enumerate(zip(rows, share, strict=True)):
        busiest = here.max(axis=2)
        axes = heat_panel(
            sheet,
            room,
            run,
            window,
            busiest,
            label=f"busiest {network}",
            title="Busiest outgoing link" + (f", network {network}" if len(share) > 1 else ""),
            unit=f"{UNIT}, {_summary(run, here)}",
            cmap=LINK_MAP,
            top_value=top_value,
            hidden=busiest == 0,
            names=False,
        )
        label_cells(axes, run, window, numbers(busiest), size=8)
        if len(beside) == 1:
            axes = mesh_axes(sheet, beside[0], f"arrows {network}", "Every link")
            _draw_links(axes, run, window, here, top_value)
            bar_below(sheet, beside[0], LINK_MAP, top_value, f"{UNIT}, outline only: not used")
            continue
        for place, direction, load in zip(beside, DIRECTIONS, np.moveaxis(here, 2, 0), strict=True):
            heat_panel(
                sheet,
                place,
                run,
                window,
                load,
                label=f"{direction} {network}",
                title=f"{SIGNS[direction]} {direction}",
                unit="",
                cmap=LINK_MAP,
                top_value=top_value,
                hidden=load == 0,
                names=False,
            )
    quiet = bool((share.max(axis=(0, 3)) == 0)[~run.dead_mask].any())
    room = rows[-1][0]
    mesh_key(sheet, run, room.left + LEFT, room.bottom + 0.12, "no traffic" if quiet else "")
    return sheet.figure


def _row(window: Window, top: float) -> list[Room]:
    """Rooms of one network: the heatmap, then one for arrows or four for the directions."""
    room = room_for(window, MARGIN, top, 4.6, 4.6)
    left, longest = room.right + 0.15, max(window.rows, window.cols)
    if longest <= ARROWS:
        side = 4.6 if longest <= ARROWS // 2 else 6.4
        return [room, room_for(window, left, top, side, side)]
    first = room_for(window, left, top, 2.1, 2.1, bar=False)
    right, below = first.right + 0.05, first.bottom + 0.12
    places = ((left, top), (right, top), (left, below), (right, below))
    return [room, *(room_for(window, x, y, 2.1, 2.1, bar=False) for x, y in places)]


def _draw_links(
    axes: Axes, run: RunData, window: Window, share: np.ndarray, top_value: float
) -> None:
    """Cores as squares, each directed link as an arrow in the colour of its load."""
    frame(axes, window, grid=False)
    corners = 0.21 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    squares = [
        corners + np.array((c, r))
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
    used = run.used_mask
    exist = np.zeros(share.shape, dtype=bool)
    sideways, down = used[:, 1:] & used[:, :-1], used[1:] & used[:-1]
    exist[:, :-1, 0] = exist[:, 1:, 1] = sideways
    exist[:-1, :, 2] = exist[1:, :, 3] = down
    mean = float(share[exist].mean()) if exist.any() else 0.0
    return f"mean {percent_text(mean)}, max {percent_text(float(share.max()))}"
