"""How full each core's SRAM gets, and what lies at which address of the fullest one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .data import RunData, SramBuffer
from .mesh import label_cells, window_of
from .panel import LEFT, TITLE, heat_panel, mesh_key, room_for
from .sheet import MARGIN, Sheet, header_height
from .style import (
    BUFFER_COLOURS,
    BUFFER_LABELS,
    INK,
    MUTED,
    OCCUPANCY_MAP,
    OTHER,
    bytes_text,
    percent_text,
    shorten,
    styled,
    text_width,
)

MAP_WIDTH, MAP_HEIGHT, LEGEND_WIDTH = 5.6, 4.4, 1.35
NAMES = 0.2  # room above the map for the names of its bodies
NARROWEST_BODY = 0.17  # of the map's width, so that a body's name can be read
LOW_PEAK = 0.35  # below this occupancy the map's address axis ends above the peak


@dataclass(frozen=True)
class Body:
    """A segment's share of the map's horizontal axis: positions 0 … length − 1 drawn over
    [start, start + width)."""

    segment: str
    length: int
    start: float
    width: float

    def x(self, position: int) -> float:
        return self.start + self.width * min(position, self.length) / self.length


@styled
def sram(run: RunData) -> Figure:
    """Peak occupancy of every core, and the address map of the fullest core."""
    window, top = window_of(run), header_height(window_of(run))
    room = room_for(window, MARGIN, top, 4.6, 4.6)
    map_left = room.right + 1.05
    height = max(room.bottom, top + TITLE + NAMES + MAP_HEIGHT + 0.6) + 0.3
    sheet = Sheet(
        run,
        window,
        map_left + MAP_WIDTH + LEGEND_WIDTH + MARGIN,
        height,
        "SRAM",
        "How much of its private memory each core needs at its fullest moment, and what fills it.",
    )
    capacity = run.sram_capacity_bytes or float(run.sram_peak_bytes.max()) or 1.0
    share = 100.0 * run.sram_peak_bytes / capacity
    axes = heat_panel(
        sheet,
        room,
        run,
        window,
        share,
        label="occupancy",
        title="Peak occupancy per core",
        unit=f"peak SRAM in use (% of {bytes_text(capacity)})",
        cmap=OCCUPANCY_MAP,
        top_value=max(100.0, float(share.max())),
    )
    label_cells(axes, run, window, lambda r, c: f"{share[r, c]:.0f}", size=8.5)
    mesh_key(sheet, run, room.left + LEFT, room.bottom + 0.1)
    _address_map(sheet, run, map_left, top, capacity)
    return sheet.figure


def _address_map(sheet: Sheet, run: RunData, left: float, top: float, capacity: float) -> None:
    peaks = np.where(run.dead_mask, -1, run.sram_peak_bytes)
    row, col = (int(i) for i in np.unravel_index(int(peaks.argmax()), peaks.shape))
    peak = float(run.sram_peak_bytes[row, col])
    hosts = [
        n
        for n, r in run.regions.items()
        if r.row <= row < r.row + r.rows and r.col <= col < r.col + r.cols
    ]
    buffers = [(n, b) for n in hosts for b in run.buffers.get(n, ())]
    bodies = _bodies(run, hosts)
    axes = sheet.axes(left, top + TITLE + NAMES, MAP_WIDTH, MAP_HEIGHT, "address map")
    title = (
        f"Address map of the fullest core ({row}, {col}): "
        f"{bytes_text(peak)} of {bytes_text(capacity)} ({percent_text(100 * peak / capacity)})"
    )
    sheet.text(left, top + TITLE - 0.1, title, size=10.5, weight="bold")
    highest = max([peak, *(b.offset + (b.instances - 1) * b.stride + b.bytes for _, b in buffers)])
    limit = capacity * 1.06 if highest > LOW_PEAK * capacity else highest * 1.2 or capacity
    axes.set_xlim(0, 1)
    axes.set_ylim(0, limit)
    unit, name = (1024**2, "MiB") if limit >= 4 * 1024**2 else (1024, "KiB")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / unit:,.4g}")
    axes.set_yticks(_address_ticks(limit, unit))
    axes.set_ylabel(f"SRAM address ({name})")
    axes.set_facecolor("#fafafa")
    _draw_capacity(axes, capacity, limit)
    _draw_bodies(axes, bodies)
    boxes = [(b, *box) for n, b in buffers for box in _boxes(b, bodies.get(n, []))]
    _draw_buffers(axes, boxes, limit)
    _kind_totals(sheet, boxes, left + MAP_WIDTH + 0.25, top + TITLE + NAMES)
    if not buffers:
        axes.text(0.5, limit / 2, "the run lists no buffers", ha="center", color=MUTED)


def _bodies(run: RunData, hosts: list[str]) -> dict[str, list[Body]]:
    """The segments that run on the core, in order, as bodies of one layer each, per region."""
    found: list[tuple[str, str, int]] = []
    for region in hosts:
        names = [name for name, _, _ in run.stages.get(region, ())]
        table = run.buffers.get(region, ())
        names += [b.segment for b in table if b.segment and not b.persistent]
        for name in dict.fromkeys(names):
            own = [b.live[1] + 1 for b in table if b.segment == name and not b.persistent]
            found.append((region, name, max(own, default=1)))
        if not names:
            own = [b.live[1] + 1 for b in table if not b.persistent]
            found.append((region, "", max(own, default=1)))
    total = sum(length for _, _, length in found) or 1
    widths = [max(NARROWEST_BODY, length / total) for _, _, length in found]
    scale, start = 1 / (sum(widths) or 1), 0.0
    out: dict[str, list[Body]] = {}
    for (region, name, length), width in zip(found, widths, strict=True):
        out.setdefault(region, []).append(Body(name, length, start, width * scale))
        start += width * scale
    return out


def _boxes(buffer: SramBuffer, bodies: list[Body]) -> list[tuple[float, float, int, int]]:
    """Rectangles (x, width, address, bytes) of a buffer; touching instances are joined."""
    if buffer.persistent or not buffer.segment:
        x, end = 0.0, 1.0
    else:
        body = next((b for b in bodies if b.segment == buffer.segment), None)
        if body is None:
            return []
        x, end = body.x(buffer.live[0]), body.x(buffer.live[1] + 1)
    if buffer.instances > 1 and buffer.stride - buffer.bytes <= 64:
        size = (buffer.instances - 1) * buffer.stride + buffer.bytes
        return [(x, end - x, buffer.offset, size)]
    return [
        (x, end - x, buffer.offset + i * buffer.stride, buffer.bytes)
        for i in range(buffer.instances)
    ]


def _draw_buffers(
    axes: Axes, boxes: list[tuple[SramBuffer, float, float, int, int]], limit: float
) -> None:
    order = list(BUFFER_COLOURS)
    for kind in sorted({b.kind for b, *_ in boxes}, key=lambda k: (k not in order, k)):
        axes.add_collection(
            PatchCollection(
                [Rectangle((x, y), w, h) for b, x, w, y, h in boxes if b.kind == kind],
                facecolor=BUFFER_COLOURS.get(kind, OTHER),
                edgecolor="white",
                linewidth=0.5 if len(boxes) < 400 else 0.1,
                label=kind,
                zorder=2,
            ),
            autolim=False,
        )
    for b, x, w, y, h in boxes:
        size = 7.5
        if h / limit * MAP_HEIGHT < 0.125:
            continue
        joined = b.instances > 1 and h > b.bytes
        words = f"{b.name} ×{b.instances}" if joined else b.name
        width = w * MAP_WIDTH - 0.06
        if text_width(words, size) > width and width < 0.5:
            continue
        axes.text(
            x + w / 2,
            y + h / 2,
            shorten(words, size, width),
            ha="center",
            va="center_baseline",
            fontsize=size,
            color=INK,
            zorder=3,
        )


def _draw_capacity(axes: Axes, capacity: float, limit: float) -> None:
    words = f"capacity {bytes_text(capacity)}"
    if capacity <= limit:
        axes.axhline(capacity, color="#CC3311", linewidth=1.6, zorder=4)
        axes.annotate(
            words, (1, capacity), xytext=(-4, 2), textcoords="offset points",
            ha="right", va="bottom", fontsize=8.5, color="#CC3311", zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    else:
        axes.annotate(
            f"↑ {words}, {capacity / limit:.1f} times the height of this map",
            (1, 1), xytext=(-4, -4), xycoords="axes fraction", textcoords="offset points",
            ha="right", va="top", fontsize=8.5, color="#CC3311", zorder=5,
        )  # fmt: skip


def _draw_bodies(axes: Axes, bodies: dict[str, list[Body]]) -> None:
    """Ticks by position in each body; borders between bodies, their names on top."""
    at: list[float] = []
    words: list[str] = []
    every = [(region, b) for region, own in bodies.items() for b in own]
    for region, body in every:
        step = next(
            s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9)
            if body.width * MAP_WIDTH / (body.length / s) > 0.28
        )  # fmt: skip
        places = range(0, body.length, step)
        at += [body.x(p) + body.width / body.length / 2 for p in places]
        words += [str(p) for p in places]
        if body.start:
            axes.axvline(body.start, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2.6)
        name = body.segment or "program"
        name = f"{region}: {name}" if len(bodies) > 1 else name
        axes.text(
            body.start + body.width / 2,
            1.012,
            shorten(name, 8.5, body.width * MAP_WIDTH - 0.04),
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=8.5,
            color=MUTED,
        )
    axes.set_xticks(at, words)
    axes.tick_params(axis="x", length=2.5)
    axes.set_xlabel("instruction (position in the body of each segment)")


def _kind_totals(
    sheet: Sheet,
    boxes: list[tuple[SramBuffer, float, float, int, int]],
    left: float,
    top: float,
) -> None:
    """Legend: each kind with the most bytes that it holds at one moment."""
    moments = sorted({x for _, x, *_ in boxes})
    sheet.text(left, top + 0.1, "most bytes at once", size=8.5, colour=MUTED)
    order = list(BUFFER_COLOURS)
    kinds = {b.kind for b, *_ in boxes}
    ranked = sorted(kinds, key=lambda k: (order.index(k) if k in order else len(order), k))
    for i, kind in enumerate(ranked):
        most = max(
            sum(h for b, x, w, _, h in boxes if b.kind == kind and x <= m < x + w) for m in moments
        )
        y = top + 0.4 + 0.4 * i
        sheet.swatch(left, y, BUFFER_COLOURS.get(kind, OTHER))
        sheet.text(left + 0.22, y, BUFFER_LABELS.get(kind, kind))
        sheet.text(left + 0.22, y + 0.17, bytes_text(most), size=8.5, colour=MUTED)


def _address_ticks(limit: float, unit: int) -> list[float]:
    steps = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    fine = [s * unit / 16 for s in (1, 2, 4, 8)] + [s * unit for s in steps]
    step = next((s for s in fine if limit / s <= 10), fine[-1])
    return [i * step for i in range(int(limit / step) + 1)]
