"""When each instruction runs: the whole step in lanes, and one layer instruction by instruction."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from meshc.ir.trace import Span

from .data import RunData
from .mesh import Window
from .sheet import MARGIN, Sheet, header_height
from .style import (
    FAINT,
    INK,
    MUTED,
    TIME_COLOURS,
    kind_colour,
    kind_label,
    shorten,
    styled,
    text_width,
)

LEFT, PLOT, PARTS = 3.0, 8.6, 1.9  # inches: names, time axis, the bars of where time goes
LANE, ROW = 0.24, 0.185
LANES = ("compute", "reduce", "broadcast", "transfer", "shift")
LANE_NAMES = {"reduce": "reduce over cores"}
MANY_REGIONS, MOST_REGIONS, MOST_ROWS = 3, 40, 48


@dataclass(frozen=True)
class Line:
    """One line of the overview: the spans of a region, of one lane or of all, or its layers."""

    region: str
    lane: str  # one of LANES, "all" or "layers"


@styled
def timeline(run: RunData) -> Figure:
    """The step in lanes above, one layer (or the step, when it has none) in detail below."""
    lines = _lines(run)
    layer = _typical_layer(run)
    detail = _detail_spans(run, layer)
    shown, rest = _longest(detail)
    top = header_height(_whole(run)) + 0.75
    overview = LANE * max(1, len(lines))
    below = top + overview + 1.35
    rows = ROW * max(1, len(shown) + bool(rest))
    sheet = Sheet(
        run,
        _whole(run),
        MARGIN + LEFT + PLOT + 0.25 + PARTS + 0.65 + MARGIN,
        below + rows + 0.75,
        "Timeline",
        "When each instruction runs: from the first core that enters it to the last that leaves.",
    )
    _key(sheet, run, MARGIN + LEFT, top - 0.62)
    axes = sheet.axes(MARGIN + LEFT, top, PLOT, overview, "overview")
    _overview(axes, run, lines)
    detailed = sheet.axes(MARGIN + LEFT, below, PLOT, rows, "layer")
    title = f"One layer in detail: layer {layer}" if layer >= 0 else "The step in detail"
    if rest:
        title += f" (its {len(shown)} longest instructions)"
    sheet.text(MARGIN, below - 0.5, title, size=10.5, weight="bold")
    _waterfall(detailed, run, shown, rest)
    parts = sheet.axes(MARGIN + LEFT + PLOT + 0.65, below, PARTS, rows, "parts")
    _parts(sheet, parts, shown, rest, MARGIN + LEFT + PLOT + 0.65, below)
    if layer >= 0 and detail:
        first, last = detail[0].start_cycle, max(s.end_cycle for s in detail)
        axes.axvspan(first, last, facecolor="none", edgecolor=INK, linewidth=1.2, zorder=4)
    return sheet.figure


def _whole(run: RunData) -> Window:
    return Window(0, 0, run.rows, run.cols)


def _lines(run: RunData) -> list[Line]:
    """The overview's lines: per region its layers and each lane in use, or one line for all."""
    regions = list(dict.fromkeys([*run.regions, *(s.region for s in run.spans)]))
    regions = [r for r in regions if any(s.region == r for s in run.spans)]
    if len(regions) > MANY_REGIONS:
        return [Line(r, "all") for r in regions[:MOST_REGIONS]]
    out = []
    for region in regions:
        found = {run.lane(s) for s in run.spans if s.region == region}
        out += [Line(region, lane) for lane in ("layers", *LANES) if lane in found | {"layers"}]
    return out


def _overview(axes: Axes, run: RunData, lines: list[Line]) -> None:
    axes.set_xlim(0, run.cycles or 1)
    axes.set_ylim(len(lines) or 1, 0)
    groups: dict[str, list[list[tuple[float, float]]]] = {}
    several = len({line.region for line in lines}) > 1
    for y, line in enumerate(lines):
        spans = [s for s in run.spans if s.region == line.region]
        if line.lane == "layers":
            _layer_strip(axes, run, line.region, spans, y)
            continue
        for s in spans:
            if line.lane in ("all", run.lane(s)):
                groups.setdefault(run.kind(s), []).append(_bar(s, y + 0.12, 0.76))
        if line.lane == "all":
            _layer_marks(axes, spans, y)
    _add_bars(axes, groups)
    names = [
        line.region
        if line.lane == "all"
        else (f"{line.region}: " if several else "") + LANE_NAMES.get(line.lane, line.lane)
        for line in lines
    ]
    ticks = [y + 0.5 for y in range(len(lines))]
    axes.set_yticks(ticks, [shorten(n, 8.5, LEFT - 0.2) for n in names])
    axes.tick_params(axis="y", length=0)
    for y in range(1, len(lines)):
        new = lines[y].region != lines[y - 1].region
        strong = several and new and lines[y].lane != "all"
        axes.axhline(y, color=INK if strong else FAINT, linewidth=0.9 if strong else 0.5)
    _time_axes(axes, run)


def _layer_strip(axes: Axes, run: RunData, region: str, spans: list[Span], y: int) -> None:
    """Alternating blocks of the region's layers, numbered where there is room."""
    starts = _layer_starts(spans)
    ends = [*(start for _, start in starts[1:]), 0.0]
    if starts:
        ends[-1] = max(s.end_cycle for s in spans if s.layer == starts[-1][0])
    per_inch = (run.cycles or 1) / PLOT
    widths = [(e - s) / per_inch for (_, s), e in zip(starts, ends, strict=True)]
    widest = max((text_width(f"{n}", 8) for n, _ in starts), default=0.1) + 0.06
    every = next(
        (n for n in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100) if n * min(widths) > widest), 200
    ) if widths else 1  # fmt: skip
    for i, ((number, start), end) in enumerate(zip(starts, ends, strict=True)):
        axes.broken_barh(
            [(start, end - start)], (y, 1), facecolor="#d9d9d9" if i % 2 else "#f2f2f2", zorder=1
        )
        axes.axvline(start, color=FAINT, linewidth=0.6, zorder=0.5)
        long = f"layer {number}"
        words = long if text_width(long, 8) < widths[i] - 0.08 else str(number)
        if words == long or number % every == 0:
            axes.text(
                (start + end) / 2, y + 0.5, words, ha="center", va="center_baseline", fontsize=8
            )
    others = [n for n, _, _ in run.stages.get(region, ()) if n not in run.repeated]
    bounds = (starts[0][1], ends[-1]) if starts else (run.cycles, run.cycles)
    for inside, outer in (((0.0, bounds[0]), True), ((bounds[1], run.cycles), False)):
        width = (inside[1] - inside[0]) / per_inch
        words = ", ".join(_around(run, region, others, before=outer))
        if words and width > 0.3:
            axes.text(
                sum(inside) / 2,
                y + 0.5,
                shorten(words, 8, width - 0.04),
                ha="center",
                va="center_baseline",
                fontsize=8,
                color=MUTED,
            )


def _around(run: RunData, region: str, others: list[str], before: bool) -> list[str]:
    """Segments that do not repeat, before (or after) the region's first layers."""
    order = [n for n, _, _ in run.stages.get(region, ())]
    layers = [i for i, n in enumerate(order) if n in run.repeated]
    first = layers[0] if layers else len(order)
    return [n for n in others if (order.index(n) < first) == before]


def _layer_starts(spans: list[Span]) -> list[tuple[int, float]]:
    starts: dict[int, float] = {}
    for s in spans:
        if s.layer >= 0:
            starts[s.layer] = min(starts.get(s.layer, s.start_cycle), s.start_cycle)
    return sorted(starts.items(), key=lambda item: item[1])


def _layer_marks(axes: Axes, spans: list[Span], y: int) -> None:
    starts = [start for _, start in _layer_starts(spans)]
    axes.vlines(starts, y, y + 1, color=INK, linewidth=0.6, zorder=3)


def _typical_layer(run: RunData) -> int:
    """The middle layer, which is in the steady state; −1 when no span belongs to a layer."""
    layers = [n for n, _ in _layer_starts(list(run.spans))]
    return layers[len(layers) // 2] if layers else -1


def _detail_spans(run: RunData, layer: int) -> list[Span]:
    spans = [s for s in run.spans if layer < 0 or s.layer == layer]
    return sorted(spans, key=lambda s: (s.start_cycle, s.position))


def _longest(spans: list[Span]) -> tuple[list[Span], list[Span]]:
    """The longest spans, in order of time, and the rest when there are too many for rows."""
    if len(spans) <= MOST_ROWS:
        return spans, []
    ranked = sorted(range(len(spans)), key=lambda i: (_length(spans[i]), -i), reverse=True)
    keep = set(ranked[: MOST_ROWS - 1])
    return (
        [s for i, s in enumerate(spans) if i in keep],
        [s for i, s in enumerate(spans) if i not in keep],
    )


def _waterfall(axes: Axes, run: RunData, shown: list[Span], rest: list[Span]) -> None:
    every = [*shown, *rest]
    first = min((s.start_cycle for s in every), default=0.0)
    last = max((s.end_cycle for s in every), default=1.0)
    axes.set_xlim(first, first + (last - first or 1) * 1.001)
    axes.set_ylim(len(shown) + bool(rest) or 1, 0)
    groups: dict[str, list[list[tuple[float, float]]]] = {}
    for y, s in enumerate(shown):
        groups.setdefault(run.kind(s), []).append(_bar(s, y + 0.12, 0.76))
    for s in rest:
        groups.setdefault(run.kind(s), []).append(_bar(s, len(shown) + 0.12, 0.76))
    for y in range(1, len(shown) + bool(rest), 2):
        axes.axhspan(y, y + 1, facecolor="#f6f6f6", zorder=0)
    _add_bars(axes, groups)
    several = len({s.region for s in every}) > 1
    names = [f"{s.region}: {s.name}" if several else s.name for s in shown]
    names += [f"{len(rest)} shorter instructions"] if rest else []
    ticks = [y + 0.5 for y in range(len(names))]
    axes.set_yticks(ticks, [shorten(n, 8, LEFT - 0.15) for n in names], fontsize=8)
    axes.tick_params(axis="y", length=0)
    _time_axes(axes, run)


def _parts(
    sheet: Sheet, axes: Axes, shown: list[Span], rest: list[Span], left: float, top: float
) -> None:
    """Beside each row: its cycles, and the shares of computing, communicating and waiting."""
    rows: list[list[Span]] = [[s] for s in shown] + ([rest] if rest else [])
    axes.set_xlim(0, 100)
    axes.set_ylim(len(rows) or 1, 0)
    for y, spans in enumerate(rows):
        length = sum(_length(s) for s in spans)
        axes.text(
            -4, y + 0.5, f"{length:,.0f}", ha="right", va="center_baseline", fontsize=8, color=INK
        )
        x = 0.0
        sums = (
            sum(s.compute_cycles for s in spans),
            sum(s.communication_cycles for s in spans),
            sum(s.wait_cycles for s in spans),
        )
        whole = max(length, sum(sums)) or 1.0
        for name, part in zip(TIME_COLOURS, sums, strict=False):
            width = 100 * part / whole
            axes.barh(y + 0.5, width, left=x, height=0.76, color=TIME_COLOURS[name])
            x += width
    axes.set_yticks([])
    axes.set_xticks([0, 50, 100], ["0", "50", "100 %"])
    axes.tick_params(axis="x", length=2.5)
    axes.set_xlabel("share of its time, average core")
    sheet.text(left - 0.08, top - 0.09, "cycles", size=8.5, colour=MUTED, align="right")
    x = left
    for name, words in (("compute", "compute"), ("communication", "comm."), ("waiting", "wait")):
        sheet.swatch(x, top - 0.09, TIME_COLOURS[name], size=0.1)
        sheet.text(x + 0.14, top - 0.09, words, size=8.5)
        x += 0.14 + text_width(words, 8.5) + 0.12


def _key(sheet: Sheet, run: RunData, left: float, top: float) -> None:
    """Legend of the kinds of op in this run, one entry per colour."""
    entries: dict[str, str] = {}
    for kind in sorted({run.kind(s) for s in run.spans}, key=_kind_order):
        entries.setdefault(kind_label(kind), kind_colour(kind))
    x = left
    for words, colour in entries.items():
        sheet.swatch(x, top, colour, edge=colour)
        sheet.text(x + 0.19, top, words, size=8.5)
        x += 0.19 + text_width(words, 8.5) + 0.22


def _kind_order(kind: str) -> tuple[bool, int, str]:
    from .style import KIND_COLOURS

    order = list(KIND_COLOURS)
    return kind not in order, order.index(kind) if kind in order else 0, kind


def _length(span: Span) -> float:
    return span.end_cycle - span.start_cycle


def _bar(span: Span, y: float, height: float) -> list[tuple[float, float]]:
    a, b = span.start_cycle, span.end_cycle
    return [(a, y), (b, y), (b, y + height), (a, y + height)]


def _add_bars(axes: Axes, groups: dict[str, list[list[tuple[float, float]]]]) -> None:
    for kind in sorted(groups, key=_kind_order):
        axes.add_collection(
            PolyCollection(
                groups[kind],
                facecolor=kind_colour(kind),
                edgecolor=kind_colour(kind),
                linewidth=0.25,  # an instruction of a few cycles stays visible in a long step
                label=kind,
                zorder=2,
            ),
            autolim=False,
        )


def _time_axes(axes: Axes, run: RunData) -> None:
    """Cycles below; seconds above, where the clock is known."""
    axes.set_xlabel("cycles")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.tick_params(axis="x", length=2.5)
    if not run.clock_hz:
        return
    scale, unit = (1e6, "µs") if run.cycles / run.clock_hz < 0.01 else (1e3, "ms")
    factor = scale / run.clock_hz
    above = axes.secondary_xaxis("top", functions=(lambda c: c * factor, lambda t: t / factor))
    above.tick_params(length=2.5, labelsize=8.5)
    above.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    above.set_xlabel(unit)
