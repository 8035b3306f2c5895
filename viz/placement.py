"""Which layers and ops live where."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from meshc.ir.placement import Region

from .data import RunData
from .mesh import Window, draw_mesh, label_cells, outline_regions, window_of
from .panel import LEFT, TITLE, Room, mesh_axes, mesh_key, room_for
from .sheet import MARGIN, Sheet, header_height
from .style import halo, region_colour, shorten, styled, text_width, tidy
from .tables import TABLE_WIDTH, full_table, short_table, table_lines

DETAILED = 5  # so many regions have a full entry in the table


@dataclass(frozen=True)
class Place:
    """The regions that lie on one and the same rectangle; they take turns on its cores."""

    region: Region
    title: str
    contents: str  # layers and other segments
    working: int  # cores that are not dead
    resident_bytes: int  # that stay in the fullest core's SRAM
    ops: tuple[tuple[str, str], ...]  # (name, kind)

    @property
    def kinds(self) -> Counter[str]:
        return Counter(kind for _, kind in self.ops)

    @property
    def op_names(self) -> list[str]:
        return list(dict.fromkeys(tidy(name) for name, _ in self.ops))


def places(run: RunData) -> list[Place]:
    """Regions in the run's order, those on the same rectangle together."""
    by_box: dict[tuple[int, int, int, int], list[Region]] = {}
    for r in run.regions.values():
        by_box.setdefault((r.row, r.col, r.rows, r.cols), []).append(r)
    return [
        Place(
            region=same[0],
            title=", ".join(r.name for r in same),
            contents=" + ".join(filter(None, (run.hosted(r.name) for r in same))),
            working=int((~run.dead_mask[row : row + rows, col : col + cols]).sum()),
            resident_bytes=sum(run.resident_bytes(r.name) for r in same),
            ops=tuple(op for r in same for op in run.ops.get(r.name, ())),
        )
        for (row, col, rows, cols), same in by_box.items()
    ]


@styled
def placement(run: RunData) -> Figure:
    """The mesh with a colour per region, and beside it what each region hosts."""
    window, found = window_of(run), places(run)
    top = header_height(window)
    room = room_for(window, MARGIN, top, 5.2, 5.2, bar=False)
    left = max(room.right, MARGIN + 3.4) + 0.25
    full = len(found) <= DETAILED
    sheet = Sheet(
        run,
        window,
        left + TABLE_WIDTH + MARGIN,
        top + max(room.height + 0.4, TITLE + 0.2 + table_lines(found, full)),
        "Placement",
        "Which cores host which layers. The ops of a region take turns on all of its cores.",
    )
    _draw_regions(sheet, run, found, room, window)
    mesh_key(sheet, run, room.left + LEFT, room.bottom + 0.12)
    table = full_table if full else short_table
    table(sheet, found, left, top + TITLE - 0.1)
    return sheet.figure


def _draw_regions(
    sheet: Sheet, run: RunData, found: list[Place], room: Room, window: Window
) -> None:
    """The map; where rectangles overlap, the smaller one is on top."""
    index = np.full((run.rows, run.cols), -1.0)
    order = sorted(range(len(found)), key=lambda i: -found[i].region.rows * found[i].region.cols)
    for i in order:
        r = found[i].region
        index[r.row : r.row + r.rows, r.col : r.col + r.cols] = i
    count = len(run.regions)
    title = f"{count} region{'s' if count != 1 else ''} on {int(run.used_mask.sum()):,} cores"
    axes = mesh_axes(sheet, room, "regions", title)
    colours = ListedColormap([region_colour(i) for i in range(max(1, len(found)))])
    draw_mesh(axes, run, window, index, colours, max(1, len(found)) - 0.5, bottom_value=-0.5)
    outline_regions(axes, run, window)
    cell = room.mesh_width / window.cols
    if window.labelled and cell > 0.4:
        _label_cells(axes, run, window, found, index, cell)
    else:
        for place in found:
            _label_region(axes, place, cell)


def _label_cells(
    axes: Axes, run: RunData, window: Window, found: list[Place], index: np.ndarray, cell: float
) -> None:
    size = 7.5 if cell > 0.7 else 6.5

    def words(row: int, col: int) -> str:
        if index[row, col] < 0:
            return ""
        place = found[int(index[row, col])]
        short = place.contents.replace("layers ", "L").replace("layer ", "L")
        lines = [place.title, *short.split(" + ")][:3]
        return "\n".join(shorten(line, size, cell * 0.9) for line in lines if line)

    label_cells(axes, run, window, words, size)


def _label_region(axes: Axes, place: Place, cell: float) -> None:
    """The region's name and contents in its middle, as far as they fit."""
    r = place.region
    width, height = 0.94 * cell * r.cols, 0.94 * cell * r.rows
    size = 9.0 if text_width(place.title, 9) <= width else 7.0
    lines = [place.title, *place.contents.split(" + ")][: int(height / (size * 1.4 / 72))]
    if not lines or text_width(place.title, size) > max(width, 0.4):
        return
    fitted = [shorten(line, size, width) for line in lines]
    axes.text(
        r.col + (r.cols - 1) / 2,
        r.row + (r.rows - 1) / 2,
        "\n".join(line for line in fitted if line in lines or len(line) > 4),
        ha="center",
        va="center",
        fontsize=size,
        path_effects=halo(),
        zorder=4,
    )
