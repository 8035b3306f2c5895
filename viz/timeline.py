"""When each instruction runs: the whole step in lanes, and one layer instruction by instruction."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from meshc.ir.trace import Span

from .data import RunData
from .lanes import (
    LANE_HEIGHT,
    MOST_REGIONS,
    Lane,
    Polygons,
    add_bar,
    blocks_of,
    draw_bars,
    draw_lanes,
    is_dense,
    kind_order,
    lane_name,
    lanes_of,
    time_axes,
)
from .mesh import Window
from .sheet import MARGIN, Sheet, header_height
from .style import (
    INK,
    MUTED,
    TIME_COLOURS,
    kind_colour,
    kind_label,
    squeeze,
    styled,
    text_width,
    tidy,
)

WIDEST_NAME, PLOT, PARTS = 3.0, 8.8, 1.9  # inches: names, time axis, bars of where time goes
ROW_HEIGHT = 0.185
MOST_ROWS = 48


@styled
def timeline(run: RunData) -> Figure:
    """The step in lanes above, one layer (or the step, when it has none) in detail below."""
    lanes = lanes_of(run, PLOT)
    layer = _typical_layer(run)
    detail = _detail_spans(run, layer)
    shown, rest = _longest(detail)
    names = _row_names(shown, rest)
    widths = [text_width(lane_name(lane, lanes), 8.5) for lane in lanes]
    room = min(WIDEST_NAME, max([0.6, *widths, *(text_width(n, 8) for n in names)]))
    left, right = MARGIN + room + 0.12, MARGIN + room + 0.12 + PLOT
    window = Window(0, 0, run.rows, run.cols)
    top = header_height(window) + 0.8
    overview = LANE_HEIGHT * (lanes[-1].bottom if lanes else 1)
    below = top + overview + 1.4
    rows = ROW_HEIGHT * max(1, len(names))
    sheet = Sheet(
        run,
        window,
        right + 0.65 + PARTS + 0.25 + MARGIN,
        below + rows + 0.75,
        "Timeline",
        "When each instruction runs: from the first core that enters it to the last that leaves."
        + (" Bands: each kind's share of a layer's time." if is_dense(run, PLOT) else ""),
    )
    _key(sheet, run, left, top - 0.68)
    axes = sheet.axes(left, top, PLOT, overview, "overview")
    draw_lanes(axes, run, lanes, PLOT, room)
    _note_hidden_regions(sheet, run, right, top + overview + 0.35)
    title = f"Layer {layer} in detail (framed above)" if layer >= 0 else "The step in detail"
    if rest:
        title += f", its {len(shown)} longest instructions"
    sheet.text(MARGIN, below - 0.52, title, size=10.5, weight="bold")
    _waterfall(sheet.axes(left, below, PLOT, rows, "layer"), run, shown, rest, names, room)
    _parts(sheet, shown, rest, right + 0.65, below, rows)
    if layer >= 0:
        _mark(axes, detail, lanes)
    return sheet.figure


def _typical_layer(run: RunData) -> int:
    """The middle layer, which is in the steady state; −1 when no span belongs to a layer."""
    layers = [b.layer for b in blocks_of(run.spans) if b.layer >= 0]
    layers = list(dict.fromkeys(layers))
    return layers[len(layers) // 2] if layers else -1


def _detail_spans(run: RunData, layer: int) -> list[Span]:
    spans = [s for s in run.spans if layer < 0 or s.layer == layer]
    return sorted(spans, key=lambda s: (s.start_cycle, s.position))


def _longest(spans: list[Span]) -> tuple[list[Span], list[Span]]:
    """The longest spans, in order of time, and the rest when there are too many for rows."""
    if len(spans) <= MOST_ROWS:
        return spans, []
    ranked = sorted(range(len(spans)), key=lambda i: (-_length(spans[i]), i))
    keep = set(ranked[: MOST_ROWS - 1])
    return (
        [s for i, s in enumerate(spans) if i in keep],
        [s for i, s in enumerate(spans) if i not in keep],
    )


def _row_names(shown: list[Span], rest: list[Span]) -> list[str]:
    several = len({s.region for s in (*shown, *rest)}) > 1
    names = [f"{s.region}: {tidy(s.name)}" if several else tidy(s.name) for s in shown]
    return [*names, f"{len(rest)} shorter instructions"] if rest else names


def _mark(axes: Axes, detail: list[Span], lanes: list[Lane]) -> None:
    """Frame the detailed spans in the overview."""
    regions = {s.region for s in detail}
    own = [lane for lane in lanes if lane.region in regions]
    if own:
        first, last = detail[0].start_cycle, max(s.end_cycle for s in detail)
        low, high = own[0].top, own[-1].bottom
        axes.add_patch(
            Rectangle(
                (first, low),
                last - first,
                high - low,
                fill=False,
                edgecolor=INK,
                linewidth=1.6,
                zorder=4,
                clip_on=False,
            )
        )


def _waterfall(
    axes: Axes, run: RunData, shown: list[Span], rest: list[Span], names: list[str], room: float
) -> None:
    """One row per instruction, from the top in order of time."""
    every = [*shown, *rest]
    first = min((s.start_cycle for s in every), default=0.0)
    last = max((s.end_cycle for s in every), default=1.0)
    axes.set_xlim(first, first + (last - first or 1) * 1.002)
    axes.set_ylim(len(names) or 1, 0)
    polygons: Polygons = {}
    for y, s in enumerate(shown):
        add_bar(polygons, run.kind(s), s, y + 0.12, 0.76)
    for s in rest:
        add_bar(polygons, run.kind(s), s, len(shown) + 0.12, 0.76)
    for y in range(1, len(names), 2):
        axes.axhspan(y, y + 1, facecolor="#f5f5f5", zorder=0)
    draw_bars(axes, polygons)
    ticks = [y + 0.5 for y in range(len(names))]
    axes.set_yticks(ticks, [squeeze(n, 8, room) for n in names], fontsize=8)
    axes.tick_params(axis="y", length=0)
    time_axes(axes, run)


def _parts(
    sheet: Sheet, shown: list[Span], rest: list[Span], left: float, top: float, height: float
) -> None:
    """Beside each row: its cycles, and the shares of computing, communicating and waiting."""
    axes = sheet.axes(left, top, PARTS, height, "parts")
    rows: list[list[Span]] = [[s] for s in shown] + ([rest] if rest else [])
    axes.set_xlim(0, 100)
    axes.set_ylim(len(rows) or 1, 0)
    for y, spans in enumerate(rows):
        length = sum(_length(s) for s in spans)
        axes.text(-4, y + 0.5, f"{length:,.0f}", ha="right", va="center_baseline", fontsize=8)
        sums = (
            sum(s.compute_cycles for s in spans),
            sum(s.communication_cycles for s in spans),
            sum(s.wait_cycles for s in spans),
        )
        whole, x = max(length, sum(sums)) or 1.0, 0.0
        for colour, part in zip(TIME_COLOURS.values(), sums, strict=False):
            axes.barh(y + 0.5, 100 * part / whole, left=x, height=0.76, color=colour)
            x += 100 * part / whole
    axes.set_yticks([])
    axes.set_xticks([0, 50, 100], ["0", "50", "100 %"])
    axes.tick_params(axis="x", length=2.5)
    axes.set_xlabel("share of its time, average core")
    sheet.text(left - 0.08, top - 0.09, "cycles", size=8.5, colour=MUTED, align="right")
    for name, words in (("compute", "compute"), ("communication", "comm."), ("waiting", "wait")):
        sheet.swatch(left, top - 0.09, TIME_COLOURS[name], size=0.1)
        sheet.text(left + 0.14, top - 0.09, words, size=8.5)
        left += 0.14 + text_width(words, 8.5) + 0.12


def _key(sheet: Sheet, run: RunData, left: float, top: float) -> None:
    """Legend of the kinds of op in this run, one entry per colour."""
    entries: dict[str, str] = {}
    for kind in sorted({run.kind(s) for s in run.spans}, key=kind_order):
        entries.setdefault(kind_label(kind), kind_colour(kind))
    for words, colour in entries.items():
        sheet.swatch(left, top, colour, edge=colour)
        sheet.text(left + 0.19, top, words, size=8.5)
        left += 0.19 + text_width(words, 8.5) + 0.22


def _note_hidden_regions(sheet: Sheet, run: RunData, right: float, top: float) -> None:
    hidden = len({s.region for s in run.spans}) - MOST_REGIONS
    if hidden > 0:
        words = f"+{hidden} more regions"
        sheet.text(right, top, words, size=8.5, colour=MUTED, align="right")


def _length(span: Span) -> float:
    return span.end_cycle - span.start_cycle
