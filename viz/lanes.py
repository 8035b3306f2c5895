"""The whole step as lanes: each region's layers, and what its instructions do when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from meshc.ir.trace import Span

from .data import RunData
from .style import FAINT, INK, KIND_COLOURS, MUTED, kind_colour, shorten, text_width

LANE_HEIGHT = 0.24  # inches
LANES = ("compute", "reduce", "broadcast", "transfer", "shift")
LANE_NAMES = {
    "reduce": "reduce over cores",
    "layers": "layers",
    "mix": "share of time by kind",
}
MANY_REGIONS, MOST_REGIONS = 3, 40
DENSE = 55  # spans per inch; with more, a layer's spans are summed up by kind
MOST_VECTORS = 5_000  # bars of one colour; more are a bitmap in the SVG
LAYER_STEPS = (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 200)

Polygons = dict[str, list[list[tuple[float, float]]]]


@dataclass(frozen=True)
class Lane:
    """A lane of the overview: a region's spans of one sort, its layers, or "mix": all of its spans,
    layer by layer summed up by kind where they are too many to tell apart."""

    region: str
    what: str  # one of LANES, "layers" or "mix"
    top: float
    height: float

    @property
    def bottom(self) -> float:
        return self.top + self.height


@dataclass(frozen=True)
class Block:
    """Successive spans of one layer of one region; layer −1 for what is outside layers."""

    layer: int
    start: float
    end: float
    spans: tuple[Span, ...]


def lanes_of(run: RunData, inches: float) -> list[Lane]:
    """The overview's lanes from the top, positions in units of LANE_HEIGHT. With few regions
    each has its layers and a lane per sort of instruction, with many each has one lane."""
    regions = [r for r in _region_names(run) if any(s.region == r for s in run.spans)]
    if len(regions) > MANY_REGIONS:
        return [Lane(r, "mix", i, 1) for i, r in enumerate(regions[:MOST_REGIONS])]
    dense = is_dense(run, inches)
    out: list[Lane] = []
    top = 0.0
    for region in regions:
        found = {run.lane(s) for s in run.spans if s.region == region}
        rows = [("layers", 1.0)]
        rows += [("mix", 4.0)] if dense else [(lane, 1.0) for lane in LANES if lane in found]
        for what, height in rows:
            out.append(Lane(region, what, top, height))
            top += height
    return out


def is_dense(run: RunData, inches: float) -> bool:
    """Whether some region has more spans per inch than can be told apart."""
    per_inch = (run.cycles or 1) / inches
    for region in _region_names(run):
        spans = [s for s in run.spans if s.region == region]
        if spans:
            length = max(s.end_cycle for s in spans) - min(s.start_cycle for s in spans)
            if len(spans) > DENSE * max(length / per_inch, 0.1):
                return True
    return False


def draw_lanes(axes: Axes, run: RunData, lanes: list[Lane], inches: float, names: float) -> None:
    """Draw the lanes over the step; `names` is the room for their names in inches."""
    axes.set_xlim(0, run.cycles or 1)
    axes.set_ylim(lanes[-1].bottom if lanes else 1, 0)
    polygons: Polygons = {}
    dense = is_dense(run, inches)
    for lane in lanes:
        spans = [s for s in run.spans if s.region == lane.region]
        blocks = blocks_of(spans)
        if lane.what == "layers":
            _layer_strip(axes, run, lane, blocks, inches)
        elif lane.what == "mix" and dense:
            for block in blocks:
                _add_mix(polygons, run, block, lane)
        else:
            for s in spans:
                if lane.what in ("mix", run.lane(s)):
                    add_bar(polygons, run.kind(s), s, lane.top + 0.12, 0.76)
        if lane.what == "mix":
            starts = [b.start for b in blocks if b.layer >= 0]
            axes.vlines(starts, lane.top, lane.bottom, color="white", linewidth=0.6, zorder=3)
    draw_bars(axes, polygons)
    texts = [lane_name(lane, lanes) for lane in lanes]
    middles = [lane.top + lane.height / 2 for lane in lanes]
    axes.set_yticks(middles, [shorten(t, 8.5, names) for t in texts])
    axes.tick_params(axis="y", length=0)
    for above, below in pairwise(lanes):
        strong = below.what == "layers" and above.region != below.region
        axes.axhline(below.top, color=INK if strong else FAINT, linewidth=0.9 if strong else 0.5)
    time_axes(axes, run)


def lane_name(lane: Lane, lanes: Sequence[Lane]) -> str:
    """A lane's name; the region is part of it when there are several."""
    if all(other.what == "mix" for other in lanes):
        return lane.region
    several = any(other.region != lane.region for other in lanes)
    return (f"{lane.region}: " if several else "") + LANE_NAMES.get(lane.what, lane.what)


def blocks_of(spans: Sequence[Span]) -> list[Block]:
    """A region's spans as runs of one layer each, in order of time."""
    ordered = sorted(spans, key=lambda s: s.start_cycle)
    out = []
    for layer, members in groupby(ordered, key=lambda s: s.layer):
        own = tuple(members)
        out.append(Block(layer, own[0].start_cycle, max(s.end_cycle for s in own), own))
    return out


def kind_order(kind: str) -> tuple[bool, int, str]:
    """Sorts kinds as the palette does, unknown ones last."""
    order = list(KIND_COLOURS)
    return kind not in order, order.index(kind) if kind in order else 0, kind


def add_bar(polygons: Polygons, kind: str, span: Span, top: float, height: float) -> None:
    """A span as a rectangle of its kind."""
    _add_box(polygons, kind, span.start_cycle, span.end_cycle, top, height)


def draw_bars(axes: Axes, polygons: Polygons) -> None:
    """Rectangles in their kinds' colours, one collection a kind."""
    for kind in sorted(polygons, key=kind_order):
        axes.add_collection(
            PolyCollection(
                polygons[kind],
                facecolor=kind_colour(kind),
                edgecolor=kind_colour(kind),
                linewidth=0.25,  # an instruction of a few cycles stays visible in a long step
                label=kind,
                rasterized=len(polygons[kind]) > MOST_VECTORS,
                zorder=2,
            ),
            autolim=False,
        )


def time_axes(axes: Axes, run: RunData) -> None:
    """Cycles below; seconds above, where the clock is known."""
    axes.set_xlabel("cycles")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.tick_params(axis="x", length=2.5)
    if not run.clock_hz:
        return
    scale, unit = (1e6, "µs") if run.cycles / run.clock_hz < 0.01 else (1e3, "ms")
    factor = scale / run.clock_hz
    above = axes.secondary_xaxis("top", functions=(_scale(factor), _scale(1 / factor)))
    above.tick_params(length=2.5, labelsize=8.5)
    above.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    above.set_xlabel(unit)


def _scale(factor: float) -> Callable[[Any], Any]:
    return lambda values: values * factor


def _region_names(run: RunData) -> list[str]:
    return list(dict.fromkeys([*run.regions, *(s.region for s in run.spans)]))


def _add_box(
    polygons: Polygons, kind: str, start: float, end: float, top: float, height: float
) -> None:
    corners = [(start, top), (end, top), (end, top + height), (start, top + height)]
    polygons.setdefault(kind, []).append(corners)


def _add_mix(polygons: Polygons, run: RunData, block: Block, lane: Lane) -> None:
    """A block cut into bands, one a kind, as high as the kind's share of the spans' time."""
    sums: dict[str, float] = {}
    for s in block.spans:
        sums[run.kind(s)] = sums.get(run.kind(s), 0.0) + s.end_cycle - s.start_cycle
    total = sum(sums.values()) or 1.0
    top, room = lane.top + 0.06, lane.height - 0.12
    for kind in sorted(sums, key=kind_order):
        height = room * sums[kind] / total
        _add_box(polygons, kind, block.start, block.end, top, height)
        top += height


def _layer_strip(axes: Axes, run: RunData, lane: Lane, blocks: list[Block], inches: float) -> None:
    """Alternating boxes of the region's layers, numbered where there is room."""
    layers = [b for b in blocks if b.layer >= 0]
    per_inch = (run.cycles or 1) / inches
    narrowest = min(((b.end - b.start) / per_inch for b in layers), default=1.0)
    widest = max((text_width(str(b.layer), 8) for b in layers), default=0.1) + 0.08
    every = next((n for n in LAYER_STEPS if n * narrowest > widest), LAYER_STEPS[-1])
    middle = lane.top + lane.height / 2
    for i, block in enumerate(layers):
        end = layers[i + 1].start if i + 1 < len(layers) else block.end
        axes.broken_barh(
            [(block.start, end - block.start)],
            (lane.top, lane.height),
            facecolor="#d9d9d9" if i % 2 else "#f2f2f2",
            zorder=1,
        )
        if len(layers) <= 64:
            axes.axvline(block.start, color=FAINT, linewidth=0.6, zorder=0.5)
        words, width = f"layer {block.layer}", (end - block.start) / per_inch
        if text_width(words, 8) > width - 0.08:
            words = str(block.layer) if block.layer % every == 0 else ""
        axes.text((block.start + end) / 2, middle, words, ha="center", va="center", fontsize=8)
    order = [name for name, _, _ in run.stages.get(lane.region, ())]
    repeated = [i for i, name in enumerate(order) if name in run.repeated]
    first, last = (repeated[0], repeated[-1]) if repeated else (len(order), len(order))
    start, end = (layers[0].start, layers[-1].end) if layers else (run.cycles, run.cycles)
    for left, right, segments in (
        (blocks[0].start, start, order[:first]),
        (end, blocks[-1].end, order[last + 1 :]),
    ):
        words = shorten(", ".join(segments), 8, (right - left) / per_inch - 0.04)
        if len(words) > 3:
            axes.text(
                (left + right) / 2, middle, words,
                ha="center", va="center", fontsize=8, color=MUTED,
            )  # fmt: skip
