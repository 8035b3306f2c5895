"""The mesh as a picture: row 0 at the top, square cells, regions outlined, dead cores hatched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import Colormap
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator

from .data import RunData
from .style import DEAD, FAINT, INK, MUTED, UNUSED, cell_text, halo

HATCH = "//////"
LABELLED = 8  # up to so many rows and columns, cells carry text
TICK_STEPS = (1, 2, 4, 8, 16, 32, 64)  # of meshes up to 128 long
LONG_TICK_STEPS = (20, 50, 100, 200, 500, 1000, 2000)


@dataclass(frozen=True)
class Window:
    """The part of the mesh that is drawn: rows [row, row + rows), columns [col, col + cols)."""

    row: int
    col: int
    rows: int
    cols: int
    whole: bool = True

    def crop(self, values: np.ndarray) -> np.ndarray:
        """The window's part of an array whose first two axes are the mesh's."""
        return values[self.row : self.row + self.rows, self.col : self.col + self.cols]

    def describe(self, run: RunData) -> str:
        return (
            f"Zoomed to rows {self.row}–{self.row + self.rows - 1} and columns "
            f"{self.col}–{self.col + self.cols - 1} of {run.rows} × {run.cols} cores."
        )

    @property
    def labelled(self) -> bool:
        return max(self.rows, self.cols) <= LABELLED


def window_of(run: RunData) -> Window:
    """The whole mesh, or on a large one the used rectangle and a margin, where that is small."""
    whole = Window(0, 0, run.rows, run.cols)
    rows, cols = np.nonzero(run.used_mask)
    if max(run.rows, run.cols) <= 32 or not len(rows):
        return whole
    margin = max(2, int(0.15 * max(np.ptp(rows), np.ptp(cols))))
    top, left = max(0, int(rows.min()) - margin), max(0, int(cols.min()) - margin)
    bottom = min(run.rows, int(rows.max()) + margin + 1)
    right = min(run.cols, int(cols.max()) + margin + 1)
    zoomed = Window(top, left, bottom - top, right - left, whole=False)
    return zoomed if zoomed.rows * zoomed.cols < 0.4 * run.rows * run.cols else whole


def fit(
    window: Window, width: float, height: float, largest_cell: float = 1.1
) -> tuple[float, float]:
    """Size in inches of the window's picture in a room of `width` × `height`, cells square.

    Very long meshes get at least a fifth of an inch across, so that they stay visible.
    """
    cell = min(width / window.cols, height / window.rows, largest_cell)
    return max(0.2, cell * window.cols), max(0.2, cell * window.rows)


def draw_mesh(
    axes: Axes,
    run: RunData,
    window: Window,
    values: np.ndarray,
    cmap: Colormap | str,
    top_value: float,
    hidden: np.ndarray | None = None,
    bottom_value: float = 0.0,
) -> AxesImage:
    """Draw a per-core array. Dead cores are hatched; `hidden` ones (default: those of no region)
    are pale."""
    hidden = ~run.used_mask if hidden is None else hidden
    shown = np.ma.masked_array(window.crop(values), window.crop(hidden | run.dead_mask))
    axes.set_facecolor(UNUSED)
    image = axes.imshow(
        shown,
        cmap=cmap,
        vmin=bottom_value,
        vmax=top_value,
        interpolation="nearest" if max(window.rows, window.cols) <= 256 else "auto",
        extent=extent(window),
        aspect="auto",
    )
    frame(axes, window)
    draw_dead(axes, run, window)
    return image


def extent(window: Window) -> tuple[float, float, float, float]:
    left, top = window.col - 0.5, window.row - 0.5
    return left, left + window.cols, top + window.rows, top


def frame(axes: Axes, window: Window, grid: bool = True) -> None:
    """Axes labels, limits, integer ticks, and on small meshes a grid between the cells."""
    left, right, bottom, top = extent(window)
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    width, height = _size_inches(axes)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(window.col, window.cols, width)))
    axes.yaxis.set_major_locator(FixedLocator(_ticks(window.row, window.rows, height)))
    axes.tick_params(length=2.5)
    axes.set_xlabel("core column")
    if height < 0.75:  # too low for a turned label
        axes.set_ylabel("core\nrow", rotation=0, ha="right", va="center", fontsize=8)
    else:
        axes.set_ylabel("core row")
    if grid and max(window.rows, window.cols) <= 32:
        axes.set_xticks(np.arange(left + 1, right), minor=True)
        axes.set_yticks(np.arange(top + 1, bottom), minor=True)
        axes.grid(which="minor", color="white", linewidth=0.8 if window.labelled else 0.4)
        axes.tick_params(which="minor", length=0)


def draw_dead(axes: Axes, run: RunData, window: Window) -> None:
    """Hatch the dead cores; neighbours in a row or column are drawn as one."""
    runs = list(_dead_runs(window.crop(run.dead_mask)))
    if runs:
        boxes = [
            Rectangle((window.col + c - 0.5, window.row + r - 0.5), cols, rows)
            for r, c, rows, cols in runs
        ]
        axes.add_collection(
            PatchCollection(
                boxes,
                facecolor=DEAD,
                edgecolor=MUTED,
                linewidth=0.4 if len(runs) < 400 else 0.1,
                hatch=HATCH if len(runs) < 400 else None,
                zorder=2.5,
                label="dead cores",
            ),
            autolim=False,
        )


def outline_regions(axes: Axes, run: RunData, window: Window, names: bool = False) -> None:
    """Draw every region's border; with `names`, its name in the corner when there are several."""
    boxes: dict[tuple[int, int, int, int], list[str]] = {}
    for r in run.regions.values():
        boxes.setdefault((r.row, r.col, r.rows, r.cols), []).append(r.name)
    for (row, col, rows, cols), members in boxes.items():
        for colour, width in (("white", 3.2), (INK, 1.4)):
            axes.add_patch(
                Rectangle(
                    (col - 0.5, row - 0.5),
                    cols,
                    rows,
                    fill=False,
                    edgecolor=colour,
                    linewidth=width,
                    zorder=3,
                    clip_on=False,
                )
            )
        if names and len(boxes) > 1 and not window.labelled:
            axes.annotate(
                ", ".join(members),
                (col - 0.5, row - 0.5),
                xytext=(3, -3),
                textcoords="offset points",
                va="top",
                fontsize=8,
                path_effects=halo(),
                zorder=4,
                annotation_clip=True,
            )


def label_cells(
    axes: Axes, run: RunData, window: Window, text: Callable[[int, int], str], size: float = 8
) -> None:
    """Write `text(row, col)` into every working cell of a small mesh, dark on light colours of
    the axes' image and light on dark ones."""
    if not window.labelled:
        return
    image = axes.images[0]
    shown: np.ndarray = np.ma.asanyarray(image.get_array())
    light = image.to_rgba(shown)[..., :3] @ (0.299, 0.587, 0.114) > 0.5
    light |= np.ma.getmaskarray(shown)
    for row in range(window.row, window.row + window.rows):
        for col in range(window.col, window.col + window.cols):
            words = "" if run.dead_mask[row, col] else text(row, col)
            if words:
                axes.text(
                    col,
                    row,
                    words,
                    ha="center",
                    va="center",
                    fontsize=size,
                    color=INK if light[row - window.row, col - window.col] else "white",
                    zorder=4,
                    linespacing=1.15,
                )


def numbers(values: np.ndarray) -> Callable[[int, int], str]:
    """The text of a cell: its value."""
    return lambda row, col: cell_text(float(values[row, col]))


def draw_locator(axes: Axes, run: RunData, window: Window) -> None:
    """The whole chip, small: the regions dark, the drawn window marked in the cross-hairs."""
    axes.set_xlim(-0.5, run.cols - 0.5)
    axes.set_ylim(run.rows - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_facecolor(UNUSED)
    row, col = window.row + window.rows / 2 - 0.5, window.col + window.cols / 2 - 0.5
    axes.axhline(row, color=FAINT, linewidth=0.8, zorder=1)
    axes.axvline(col, color=FAINT, linewidth=0.8, zorder=1)
    for r in run.regions.values():
        axes.add_patch(Rectangle((r.col - 0.5, r.row - 0.5), r.cols, r.rows, color=INK))
    smallest = 0.07 / _size_inches(axes)[1] * run.rows  # the mark stays visible on a wafer
    height, width = max(window.rows, smallest), max(window.cols, smallest)
    axes.add_patch(
        Rectangle(
            (col - width / 2, row - height / 2),
            width,
            height,
            fill=False,
            edgecolor="#D55E00",
            linewidth=1.4,
            zorder=3,
        )
    )


def _size_inches(axes: Axes) -> tuple[float, float]:
    dpi = axes.figure.dpi
    return axes.bbox.width / dpi, axes.bbox.height / dpi


def _ticks(start: int, count: int, inches: float) -> list[int]:
    """Integer ticks at round numbers, at most one each 0.32 inches."""
    most = max(2, int(inches / 0.32))
    steps = TICK_STEPS if count <= 128 else LONG_TICK_STEPS
    step = next((s for s in steps if count / s <= most), steps[-1])
    first = -(-start // step) * step
    return list(range(first, start + count, step)) or [start]


def _dead_runs(mask: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """Rectangles (row, col, rows, cols) that cover the True cells: dead columns whole, then runs
    within rows, equal runs of neighbouring rows joined."""
    left = mask.copy()
    for col in np.flatnonzero(mask.all(axis=0)):
        yield 0, int(col), mask.shape[0], 1
        left[:, col] = False
    open_runs: dict[tuple[int, int], int] = {}  # (first col, cols) → first row
    for row in range(mask.shape[0] + 1):
        line = left[row] if row < len(left) else np.zeros(mask.shape[1])
        edges = np.flatnonzero(np.diff(np.concatenate(([0], line, [0]))))
        here = {(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)}
        for key in sorted(k for k in open_runs if k not in here):
            first = open_runs.pop(key)
            yield first, key[0], row - first, key[1]
        for key in sorted(here):
            open_runs.setdefault(key, row)
