"""A page laid out in inches from its top-left corner, so that nothing overlaps by chance."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from .data import RunData
from .mesh import Window, draw_locator
from .style import INK, MUTED, shorten, text_width

MARGIN = 0.3
LOCATOR_HEIGHT = 0.85


def header_height(window: Window) -> float:
    """Room that title, subtitle and, for a zoomed window, the map of the whole chip take."""
    return 0.9 if window.whole else 1.45


class Sheet:
    """A figure with a title, a subtitle and, when `window` is zoomed, a map of the whole chip."""

    def __init__(
        self, run: RunData, window: Window, width: float, height: float, title: str, note: str
    ) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width, height))
        room = width - 2 * MARGIN
        if not window.whole:
            room -= LOCATOR_HEIGHT * min(2.0, run.cols / run.rows) + 0.5
            self._locator(run, window)
        heading = f"{title} · {run.model} on {run.chip} · {run.phase}"
        self.text(MARGIN, 0.34, shorten(heading, 14, room * 0.98, "bold"), size=14, weight="bold")
        self.text(MARGIN, 0.6, shorten(note, 9.5, room), size=9.5, colour=MUTED)
        if not window.whole:
            self.text(MARGIN, 0.83, window.describe(run), size=9.5, colour=MUTED)

    def axes(self, left: float, top: float, width: float, height: float, label: str) -> Axes:
        """Axes of `width` × `height` whose top-left corner is (left, top)."""
        box = (
            left / self.width,
            1 - (top + height) / self.height,
            width / self.width,
            height / self.height,
        )
        return self.figure.add_axes(box, label=label)

    def text(
        self,
        left: float,
        top: float,
        text: str,
        size: float = 9,
        weight: str = "normal",
        colour: str = INK,
        align: str = "left",
    ) -> None:
        """One line whose baseline starts (or ends, or is centred) at (left, top)."""
        self.figure.text(
            left / self.width,
            1 - top / self.height,
            text,
            fontsize=size,
            fontweight=weight,
            color=colour,
            ha=align,
            va="baseline",
        )

    def swatch(
        self,
        left: float,
        top: float,
        colour: str,
        hatch: str = "",
        edge: str = MUTED,
        size: float = 0.13,
    ) -> None:
        """A small filled square that sits on the baseline (left, top)."""
        self.figure.add_artist(
            Rectangle(
                (left / self.width, 1 - top / self.height),
                size / self.width,
                size / self.height,
                facecolor=colour,
                edgecolor=edge,
                hatch=hatch,
                linewidth=0.6,
                transform=self.figure.transFigure,
            )
        )

    def colour_bar(
        self, left: float, top: float, width: float, cmap: str, top_value: float, label: str
    ) -> None:
        """A horizontal colour bar from 0 to `top_value`, its label with the unit below."""
        axes = self.axes(left, top, width, 0.13, "colour bar")
        mappable = ScalarMappable(Normalize(0, top_value), cmap)
        bar = self.figure.colorbar(mappable, cax=axes, orientation="horizontal")
        if text_width(label, 9) > width + 0.4:
            label = label.replace(", ", "\n", 1)
        bar.set_label(label)
        bar.locator = MaxNLocator(max(3, int(width / 0.6)), steps=[1, 2, 2.5, 5, 10])
        bar.update_ticks()

    def _locator(self, run: RunData, window: Window) -> None:
        width = LOCATOR_HEIGHT * min(2.0, run.cols / run.rows)
        height = min(LOCATOR_HEIGHT, width * run.rows / run.cols)
        left, top = self.width - MARGIN - width, 0.42
        axes = self.axes(left, top, width, height, "locator")
        draw_locator(axes, run, window)
        caption = f"whole chip: {run.rows} × {run.cols} cores"
        self.text(self.width - MARGIN, 0.32, caption, size=8, colour=MUTED, align="right")
