"""Which layers and ops live where."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from meshc.ir.placement import Region

from .data import RunData
from .mesh import draw_mesh, label_cells, outline_regions, window_of
from .panel import LEFT, TITLE, mesh_axes, mesh_key, room_for
from .sheet import MARGIN, Sheet, header_height
from .style import (
    MUTED,
    bytes_text,
    halo,
    kind_colour,
    region_colour,
    shorten,
    styled,
    text_width,
    wrap,
)

TABLE_WIDTH = 5.2
LINE = 0.19  # inches between the table's lines
DETAILED, LISTED = 5, 22  # regions with a full entry, regions with one line
OP_LINES = 4


@dataclass(frozen=True)
class Place:
    """The regions that lie on one and the same rectangle; they take turns on its cores."""

    region: Region
    names: tuple[str, ...]

    @property
    def title(self) -> str:
        return ", ".join(self.names)

    def contents(self, run: RunData) -> str:
        return " + ".join(filter(None, (run.hosted(n) for n in self.names)))


def places(run: RunData) -> list[Place]:
    """Regions in the run's order, those on the same rectangle together."""
    by_box: dict[tuple[int, int, int, int], list[Region]] = {}
    for r in run.regions.values():
        by_box.setdefault((r.row, r.col, r.rows, r.cols), []).append(r)
    return [Place(same[0], tuple(r.name for r in same)) for same in by_box.values()]


@styled
def placement(run: RunData) -> Figure:
    """The mesh with a colour per region, and beside it what each region hosts."""
    window, found = window_of(run), places(run)
    top = header_height(window)
    room = room_for(window, MARGIN, top, 5.2, 5.2, bar=False)
    entries = [_entry(run, p) for p in found[:DETAILED]] if len(found) <= DETAILED else []
    lines = sum(len(e) + 1 for e in entries) if entries else min(len(found), LISTED) + 2
    height = max(room.height + 0.35, 0.3 + lines * LINE) + top + 0.15
    sheet = Sheet(
        run,
        window,
        room.right + 0.25 + TABLE_WIDTH + MARGIN,
        height,
        "Placement",
        "Which region of cores hosts which layers; a region's ops take turns on all of its cores.",
    )
    _draw_regions(sheet, run, found, room, window)
    mesh_key(sheet, run, room.left + LEFT, room.bottom + 0.12)
    left = room.right + 0.25
    if entries:
        _detailed_table(sheet, run, found, entries, left, top)
    else:
        _short_table(sheet, run, found, left, top)
    return sheet.figure


def _draw_regions(sheet, run, found, room, window) -> None:  # type: ignore[no-untyped-def]
    index = np.full((run.rows, run.cols), -1.0)
    order = sorted(range(len(found)), key=lambda i: -found[i].region.rows * found[i].region.cols)
    for i in order:
        r = found[i].region
        index[r.row : r.row + r.rows, r.col : r.col + r.cols] = i
    title = f"{len(run.regions)} region" + ("s" if len(run.regions) != 1 else "")
    axes = mesh_axes(sheet, room, "regions", title + f" on {int(run.used_mask.sum()):,} cores")
    colours = ListedColormap([region_colour(i) for i in range(max(1, len(found)))])
    draw_mesh(
        axes, run, window, index, colours, max(1, len(found)) - 0.5, bottom_value=-0.5
    )
    outline_regions(axes, run, window)
    cell = room.mesh_width / window.cols
    size = 7.5 if cell > 0.62 else 6.0

    def words(row: int, col: int) -> str:
        if index[row, col] < 0:
            return ""
        place = found[int(index[row, col])]
        short = place.contents(run).replace("layers ", "L").replace("layer ", "L")
        lines = [place.title, *short.split(" + ")] if cell > 0.45 else [place.title]
        return "\n".join(filter(None, (shorten(w, size, cell * 0.92) for w in lines[:3])))

    label_cells(axes, run, window, words, size)
    if window.labelled:
        return
    for place in found:
        r = place.region
        width, height = cell * r.cols * 0.94, cell * r.rows * 0.94
        size = 9.0 if width > 0.5 else 7.0
        if height < size / 72:
            continue
        lines = [place.title, *place.contents(run).split(" + ")]
        lines = lines[: max(1, int(height / (size * 1.4 / 72)))]
        if text_width(place.title, size) > width < 0.45:
            continue
        axes.text(
            r.col + (r.cols - 1) / 2,
            r.row + (r.rows - 1) / 2,
            "\n".join(shorten(w, size, width) for w in lines),
            ha="center",
            va="center",
            fontsize=size,
            path_effects=halo(),
            zorder=4,
        )


def _entry(run: RunData, place: Place) -> list[str]:
    """A region's lines in the detailed table, below its title."""
    r = place.region
    working = int(run.used_mask[r.row : r.row + r.rows, r.col : r.col + r.cols].sum())
    where = (
        f"rows {r.row}–{r.row + r.rows - 1}, columns {r.col}–{r.col + r.cols - 1}"
        f" · {r.rows} × {r.cols} = {working:,} cores"
    )
    resident = sum(run.resident_bytes(n) for n in place.names)
    stays = f"{bytes_text(resident)} stay in the SRAM of each core" if resident else ""
    return [w for w in (place.contents(run), where, stays) if w] + [""] * _op_lines(run, place)


def _op_lines(run: RunData, place: Place) -> int:
    kinds, names = _ops(run, place)
    return bool(kinds) + len(_wrapped(names))


def _ops(run: RunData, place: Place) -> tuple[Counter[str], list[str]]:
    ops = [op for n in place.names for op in run.ops.get(n, ())]
    return Counter(kind for _, kind in ops), list(dict.fromkeys(name for name, _ in ops))


def _wrapped(names: list[str]) -> list[str]:
    return wrap(names, ", ", 8.5, TABLE_WIDTH - 0.45, OP_LINES)


def _detailed_table(sheet, run, found, entries, left, top) -> None:  # type: ignore[no-untyped-def]
    y = top + TITLE - 0.1
    for i, (place, entry) in enumerate(zip(found, entries, strict=True)):
        sheet.swatch(left, y, region_colour(i))
        title = shorten(place.title, 10.5, TABLE_WIDTH - 0.3, "bold")
        sheet.text(left + 0.22, y, title, size=10.5, weight="bold")
        kinds, names = _ops(run, place)
        for line in (w for w in entry if w):
            y += LINE
            sheet.text(left + 0.22, y, shorten(line, 9, TABLE_WIDTH - 0.3))
        if kinds:
            y += LINE
            _kind_line(sheet, kinds, left + 0.22, y)
        for line in _wrapped(names):
            y += LINE
            sheet.text(left + 0.22, y, line, size=8.5, colour=MUTED)
        y += 2 * LINE


def _kind_line(sheet: Sheet, kinds: Counter[str], left: float, y: float) -> None:
    """Op kinds with their counts, each with its colour, as many as fit."""
    end = left + TABLE_WIDTH - 0.3
    ranked = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    for done, (kind, count) in enumerate(ranked):
        words = f"{kind} ×{count}"
        width = 0.17 + text_width(words, 8.5) + 0.16
        if left + width > end - (0.6 if done < len(ranked) - 1 else 0):
            sheet.text(left, y, f"+{len(ranked) - done} more", size=8.5)
            return
        sheet.swatch(left, y, kind_colour(kind), edge=kind_colour(kind), size=0.1)
        sheet.text(left + 0.15, y, words, size=8.5)
        left += width


def _short_table(sheet, run, found, left, top) -> None:  # type: ignore[no-untyped-def]
    y = top + TITLE - 0.1
    heads = ((0.22, "region"), (1.25, "hosts"), (3.75, "cores"), (4.35, "stays in SRAM"))
    for x, word in heads:
        sheet.text(left + x, y, word, size=8.5, colour=MUTED)
    for i, place in enumerate(found[:LISTED]):
        y += LINE
        resident = sum(run.resident_bytes(n) for n in place.names)
        sheet.swatch(left, y, region_colour(i))
        sheet.text(left + 0.22, y, shorten(place.title, 9, 0.98), weight="bold")
        sheet.text(left + 1.25, y, shorten(place.contents(run), 9, 2.4))
        sheet.text(left + 3.75, y, f"{place.region.rows} × {place.region.cols}")
        sheet.text(left + 4.35, y, bytes_text(resident) if resident else "")
    if len(found) > LISTED:
        sheet.text(left + 0.22, y + LINE, f"+{len(found) - LISTED} more regions", colour=MUTED)
