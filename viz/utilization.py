"""What each core does with the step's time: compute, communicate, wait."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from .data import RunData
from .mesh import label_cells, numbers, window_of
from .panel import LEFT, heat_panel, mesh_key, room_for
from .sheet import MARGIN, Sheet, header_height
from .style import (
    MUTED,
    SHARE_MAP,
    TIME_COLOURS,
    nice_ceiling,
    percent_text,
    styled,
    text_width,
)

PANELS = (
    ("compute", "Compute", "compute_cycles"),
    ("communication", "Communication", "communication_cycles"),
    ("waiting", "Waiting for other cores", "wait_cycles"),
)


@styled
def utilization(run: RunData) -> Figure:
    """Three heatmaps in per cent of the step's time, and the average core's time as one bar."""
    window, top = window_of(run), header_height(window_of(run))
    rooms = [room_for(window, MARGIN, top, 3.7, 4.4)]
    for _ in PANELS[1:]:
        rooms.append(room_for(window, rooms[-1].right + 0.15, top, 3.7, 4.4))
    bottom = rooms[0].bottom + 0.45
    sheet = Sheet(
        run,
        window,
        rooms[-1].right + MARGIN,
        bottom + 1.15,
        "Utilization",
        f"Where each core's time goes, in per cent of the step ({_step(run)}). "
        "Each map has its own scale.",
    )
    for (label, title, array), room in zip(PANELS, rooms, strict=True):
        share = run.percent(getattr(run, array))
        used = share[run.used_mask] if run.used_mask.any() else np.zeros(1)
        axes = heat_panel(
            sheet,
            room,
            run,
            window,
            share,
            label=label,
            title=title,
            unit=f"% of the step's time (mean {percent_text(float(used.mean()))})",
            cmap=SHARE_MAP,
            top_value=nice_ceiling(float(used.max())),
        )
        if room.mesh_width / window.cols > 0.4:
            label_cells(axes, run, window, numbers(share), size=8)
    mesh_key(sheet, run, rooms[0].left + LEFT, rooms[0].bottom + 0.1)
    _average_core(sheet, run, rooms[0].left + LEFT, bottom, rooms[-1].right - 0.2)
    return sheet.figure


def _average_core(sheet: Sheet, run: RunData, left: float, top: float, right: float) -> None:
    """A stacked bar: the mean over the used cores, what is left is idle."""
    used = run.used_mask
    shares = [
        float(run.percent(getattr(run, array))[used].mean()) if used.any() else 0.0
        for _, _, array in PANELS
    ]
    shares.append(max(0.0, 100.0 - sum(shares)))
    axes = sheet.axes(left, top + 0.15, right - left, 0.3, "average core")
    sheet.text(left, top + 0.05, "The average core's time", size=10.5, weight="bold")
    x = 0.0
    for colour, share in zip(TIME_COLOURS.values(), shares, strict=True):
        axes.barh(0, share, left=x, height=1, color=colour, edgecolor="white", linewidth=0.8)
        x += share
    axes.set_xlim(0, max(100.0, x))
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([])
    axes.tick_params(axis="x", length=2.5)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} %")
    place = left
    for (name, colour), share in zip(TIME_COLOURS.items(), shares, strict=True):
        sheet.swatch(place, top + 0.9, colour)
        words = f"{name} {percent_text(share)}"
        sheet.text(place + 0.2, top + 0.9, words)
        place += 0.2 + text_width(words, 9) + 0.3
    if x > 100.5:
        note = "more than 100 %: computation and communication overlap"
        sheet.text(right, top + 0.05, note, size=8.5, colour=MUTED, align="right")


def _step(run: RunData) -> str:
    cycles = f"{run.cycles:,.0f} cycles"
    if not run.clock_hz:
        return cycles
    return f"{cycles}, {run.cycles / run.clock_hz * 1e6:,.4g} µs"
