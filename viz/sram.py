"""How full each core's SRAM gets, and what lies at which address of the fullest one."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from meshc.ir.chip import Coord

from .data import RunData, SramBuffer
from .mesh import label_cells, numbers, window_of
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
    squeeze,
    styled,
    text_width,
    tidy,
)

MAP_WIDTH, MAP_HEIGHT, LAYERS_WIDTH, LEGEND_WIDTH = 5.6, 4.4, 0.72, 1.35
NAMES = 0.2  # room above the map for the names of its segments
LOW_PEAK = 0.35  # below this occupancy the map's address axis ends above the peak
SMALLEST_LABEL = 0.125  # inches that a rectangle must be high to carry its name
CAPACITY = "#CC3311"


@dataclass(frozen=True)
class Box:
    """A buffer's instance on the map: positions [first, last), addresses [address, address +
    bytes)."""

    buffer: SramBuffer
    first: float
    last: float
    address: int

    @property
    def bytes(self) -> int:
        return self.buffer.bytes


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
        map_left + MAP_WIDTH + LAYERS_WIDTH + LEGEND_WIDTH + MARGIN,
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
    label_cells(axes, run, window, numbers(share), size=8.5)
    mesh_key(sheet, run, room.left + LEFT, room.bottom + 0.1)
    _address_map(sheet, run, map_left, top, capacity)
    return sheet.figure


def _address_map(sheet: Sheet, run: RunData, left: float, top: float, capacity: float) -> None:
    peaks = np.where(run.dead_mask, -1, run.sram_peak_bytes)
    row, col = (int(i) for i in np.unravel_index(int(peaks.argmax()), peaks.shape))
    peak = float(run.sram_peak_bytes[row, col])
    hosts = [n for n, r in run.regions.items() if r.contains(Coord(row, col))]
    buffers = [b for n in hosts for b in run.buffers.get(n, ())]
    start, end = _positions(buffers)
    boxes = [box for b in buffers for box in _boxes(b, start, end)]
    axes = sheet.axes(left, top + TITLE + NAMES, MAP_WIDTH, MAP_HEIGHT, "address map")
    title = (
        f"Address map of the fullest core ({row}, {col}): "
        f"{bytes_text(peak)} of {bytes_text(capacity)} ({percent_text(100 * peak / capacity)})"
    )
    sheet.text(left, top + TITLE - 0.1, title, size=10.5, weight="bold")
    highest = max([peak, *(box.address + box.bytes for box in boxes)])
    limit = capacity * 1.06 if highest > LOW_PEAK * capacity else highest * 1.2 or capacity
    axes.set_xlim(start, end)
    axes.set_ylim(0, limit)
    axes.set_facecolor("#fafafa")
    unit, name = (1024**2, "MiB") if limit >= 4 * 1024**2 else (1024, "KiB")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / unit:,.4g}")
    axes.set_yticks(_address_ticks(limit, unit))
    axes.set_ylabel(f"SRAM address ({name})")
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.tick_params(length=2.5)
    _draw_capacity(axes, capacity, limit)
    _draw_segments(axes, run, hosts, buffers, start, end)
    _draw_buffers(axes, boxes, limit, end - start)
    _draw_layers(axes, run, hosts, buffers, limit)
    _kind_totals(sheet, boxes, left + MAP_WIDTH + LAYERS_WIDTH, top + TITLE + NAMES)
    if not buffers:
        middle = (start + end) / 2
        axes.text(middle, limit / 2, "the run lists no buffers", ha="center", color=MUTED)


def _positions(buffers: list[SramBuffer]) -> tuple[int, int]:
    """First position in the program, and the one after the last, at which a buffer is live."""
    passing = [b.live for b in buffers if not b.persistent]
    start = min((first for first, _ in passing), default=0)
    return start, max((last + 1 for _, last in passing), default=start + 1)


def _boxes(buffer: SramBuffer, start: int, end: int) -> list[Box]:
    first, last = (start, end) if buffer.persistent else (buffer.live[0], buffer.live[1] + 1)
    return [
        Box(buffer, first, last, buffer.offset + i * buffer.stride) for i in range(buffer.instances)
    ]


def _draw_buffers(axes: Axes, boxes: list[Box], limit: float, positions: float) -> None:
    inches = MAP_HEIGHT / limit
    order = list(BUFFER_COLOURS)
    for kind in sorted({b.buffer.kind for b in boxes}, key=lambda k: (k not in order, k)):
        own = [b for b in boxes if b.buffer.kind == kind]
        axes.add_collection(
            PatchCollection(
                [Rectangle((b.first, b.address), b.last - b.first, b.bytes) for b in own],
                facecolor=BUFFER_COLOURS.get(kind, OTHER),
                edgecolor="white",
                linewidth=[0.5 if b.bytes * inches > 0.05 else 0.0 for b in own],
                label=kind,
                zorder=2,
            ),
            autolim=False,
        )
    for b in boxes:
        width = (b.last - b.first) * MAP_WIDTH / positions - 0.06
        words = squeeze(tidy(b.buffer.tensor or b.buffer.name), 7.5, width)
        if b.bytes * inches < SMALLEST_LABEL or (len(words) < 6 and "…" in words):
            continue
        axes.text(
            (b.first + b.last) / 2,
            b.address + b.bytes / 2,
            words,
            ha="center",
            va="center_baseline",
            fontsize=7.5,
            zorder=3,
        )


def _draw_layers(
    axes: Axes, run: RunData, hosts: list[str], buffers: list[SramBuffer], limit: float
) -> None:
    """Beside the map: which layer's weights and caches lie where, as far as there is room."""
    layered = [b for b in buffers if b.instances > 1]
    if not layered:
        return
    base, stride = min(b.offset for b in layered), max(b.stride for b in layered)
    count = max(b.instances for b in layered)
    runs = [r for n in hosts for r in run.stages.get(n, ()) if r[0] in run.repeated]
    number = runs[0][1] if len(runs) == 1 else 0
    height = stride * MAP_HEIGHT / limit
    every = max(1, ceil(0.14 / height))
    for i in range(count):
        bottom = base + i * stride
        if i and height > 0.2:
            axes.axhline(bottom, color=INK, linewidth=0.5, zorder=2.5)
        if i % every == 0:
            axes.annotate(
                f"layer {number + i}",
                (1, bottom + stride / 2),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=MUTED,
                annotation_clip=False,
            )


def _draw_capacity(axes: Axes, capacity: float, limit: float) -> None:
    words = f"capacity {bytes_text(capacity)}"
    if capacity <= limit:
        axes.axhline(capacity, color=CAPACITY, linewidth=1.6, zorder=4)
        place, y, below = "bottom", capacity / limit, 2
    else:
        words = f"↑ {words}, {capacity / limit:.1f} times the height of this map"
        place, y, below = "top", 1.0, -4
    axes.annotate(
        words, (1, y), xytext=(-4, below), xycoords="axes fraction", textcoords="offset points",
        ha="right", va=place, fontsize=8.5, color=CAPACITY, zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )  # fmt: skip


def _draw_segments(
    axes: Axes, run: RunData, hosts: list[str], buffers: list[SramBuffer], start: int, end: int
) -> None:
    """Borders between the program's segments, their names above as far as they fit, and below
    in full."""
    first: dict[str, int] = {}
    for b in buffers:
        if b.segment and not b.persistent:
            first[b.segment] = min(first.get(b.segment, b.live[0]), b.live[0])
    axes.set_xlabel("position in the program")
    if len(set(first.values())) < len(first) or not first:
        return  # positions are not the program's: nothing to tell segments apart by
    names = sorted(first, key=lambda n: first[n])
    starts = [start, *(first[n] for n in names[1:]), end]
    parts = []
    for name, left, right in zip(names, starts[:-1], starts[1:], strict=True):
        parts.append(f"{name} {left}–{right - 1}" if right - left > 1 else f"{name} {left}")
        words = f"{name} (one pass per layer)" if name in run.repeated else name
        width = (right - left) * MAP_WIDTH / (end - start) - 0.04
        words = words if text_width(words, 8.5) <= width else shorten(name, 8.5, width)
        if left > start:
            axes.axvline(left, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2.6)
        if len(words) > 3 or words == name:
            axes.text(
                (left + right) / 2,
                1.012,
                words,
                transform=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
                fontsize=8.5,
                color=MUTED,
            )
    every = "position in the program: " + ", ".join(parts)
    axes.set_xlabel(shorten(every, 9, MAP_WIDTH + LAYERS_WIDTH))


def _kind_totals(sheet: Sheet, boxes: list[Box], left: float, top: float) -> None:
    """Legend: each kind with the most bytes that it holds at one moment."""
    moments = sorted({b.first for b in boxes})
    order = list(BUFFER_COLOURS)
    kinds = {b.buffer.kind for b in boxes}
    ranked = sorted(kinds, key=lambda k: (order.index(k) if k in order else len(order), k))
    if ranked:
        sheet.text(left, top + 0.1, "most bytes at once", size=8.5, colour=MUTED)
    for i, kind in enumerate(ranked):
        own = [b for b in boxes if b.buffer.kind == kind]
        most = max(sum(b.bytes for b in own if b.first <= m < b.last) for m in moments)
        y = top + 0.4 + 0.4 * i
        sheet.swatch(left, y, BUFFER_COLOURS.get(kind, OTHER))
        sheet.text(left + 0.22, y, BUFFER_LABELS.get(kind, kind))
        sheet.text(left + 0.22, y + 0.17, bytes_text(most), size=8.5, colour=MUTED)


def _address_ticks(limit: float, unit: int) -> list[float]:
    steps = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    fine = [s * unit / 16 for s in (1, 2, 4, 8)] + [s * unit for s in steps]
    step = next((s for s in fine if limit / s <= 10), fine[-1])
    return [i * step for i in range(int(limit / step) + 1)]
