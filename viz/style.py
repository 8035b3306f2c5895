"""One look for all pictures: colours, fonts, and text that fits its room.

Qualitative colours are from Okabe and Ito ("Color Universal Design", 2008) and Paul Tol
("Colour Schemes", SRON/EPS/TN/09-002, 2021), both made for colour-blind readers. Heatmaps use
perceptually uniform maps only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib
from matplotlib.font_manager import FontProperties
from matplotlib.patheffects import withStroke
from matplotlib.textpath import TextPath

_LAYER_PATH = re.compile(r"(?<!\S)\S*?\b[A-Za-z_]+[./]\d+[./](?=\S)")

P = ParamSpec("P")
R = TypeVar("R")

INK, MUTED, FAINT = "#1a1a1a", "#5a5a5a", "#c8c8c8"
UNUSED, DEAD = "#ececec", "#ffffff"  # cores without work; dead ones are hatched on white
OCCUPANCY_MAP, SHARE_MAP, LINK_MAP = "viridis", "cividis", "magma_r"

# Op kind → colour. Cool hues compute, greys only rearrange, warm hues talk to other cores.
LAYOUT = "#9a9a9a"
OTHER = "#6b6b6b"
KIND_COLOURS = {
    "matmul": "#0072B2",
    "fused": "#56B4E9",
    "map": "#009E73",
    "reduce": "#BBCC33",
    "gather": "#8C5A2B",
    "append": "#332288",
    "reshape": LAYOUT,
    "transpose": LAYOUT,
    "expand": LAYOUT,
    "slice": LAYOUT,
    "concat": LAYOUT,
    "all-reduce": "#D55E00",
    "broadcast": "#E69F00",
    "transfer": "#CC79A7",
    "shift": "#882255",
}
KIND_LABELS = {
    "reduce": "reduce (local)",
    "all-reduce": "reduce over cores",
    "broadcast": "broadcast",
    **dict.fromkeys(
        ("reshape", "transpose", "expand", "slice", "concat"), "layout (reshape, slice, …)"
    ),
}

# SRAM buffer kind → colour.
BUFFER_COLOURS = {
    "weight": "#77AADD",
    "kv": "#CC99CC",
    "constant": "#EEDD88",
    "input": "#44BB99",
    "activation": "#EE8866",
    "scratch": "#BBBBBB",
}
BUFFER_LABELS = {
    "weight": "weights",
    "kv": "KV cache",
    "constant": "constants",
    "input": "inputs",
    "activation": "activations",
    "scratch": "scratch",
}

# Where a core's time goes; none of these is the colour of an op kind.
TIME_COLOURS = {
    "compute": "#2e2e2e",
    "communication": "#a58bd0",
    "waiting": "#d9d9d9",
    "idle": "#ffffff",
}

# Tol's "light" scheme: fills that carry dark text.
REGION_COLOURS = (
    "#77AADD", "#EE8866", "#EEDD88", "#44BB99", "#FFAABB", "#99DDFF", "#BBCC33", "#DDAADD",
)  # fmt: skip

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "text.parse_math": False,
    "svg.hashsalt": "meshc",
    "svg.fonttype": "path",
    "path.simplify": True,
}


def styled(picture: Callable[P, R]) -> Callable[P, R]:
    """Run a function that draws or saves with meshc's matplotlib settings, whatever the user's."""

    @wraps(picture)
    def with_style(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            settings: Any = matplotlib.rcParams
            settings.update(RC)
            return picture(*args, **kwargs)

    return with_style


def kind_colour(kind: str) -> str:
    return KIND_COLOURS.get(kind, OTHER)


def kind_label(kind: str) -> str:
    return KIND_LABELS.get(kind, kind if kind in KIND_COLOURS else "other")


def region_colour(index: int) -> str:
    return REGION_COLOURS[index % len(REGION_COLOURS)]


def halo(width: float = 2.5, colour: str = "white") -> list[Any]:
    """Path effects that keep text readable on any colour."""
    return [withStroke(linewidth=width, foreground=colour)]


@lru_cache(maxsize=20_000)
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Width of one line of text, in inches, without a renderer."""
    if not text.strip():
        return 0.0
    font = FontProperties(family=RC["font.family"], weight=weight)
    return float(TextPath((0, 0), text, size=size, prop=font).get_extents().x1) / 72


def shorten(text: str, size: float, width: float, weight: str = "normal") -> str:
    """The text, or as much of its beginning as fits `width` inches with an ellipsis; "" if none."""
    if text_width(text, size, weight) <= width:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if text_width(text[:middle] + "…", size, weight) <= width:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip(" .,·") + "…" if low else ""


def tidy(name: str) -> str:
    """A model's name of an op or tensor without its path down to the layer, which is the same for
    all of a layer's: "reduce /model/layers.0/mlp/MatMul" → "reduce mlp/MatMul"."""
    return _LAYER_PATH.sub("", name).lstrip("/") or name


def squeeze(text: str, size: float, width: float) -> str:
    """Like `shorten`, but cut out of the middle: names in a model differ in their ends."""
    if text_width(text, size) <= width:
        return text
    low, high = 0, len(text) - 1
    while low < high:
        kept = (low + high + 1) // 2
        if text_width(_middle_cut(text, kept), size) <= width:
            low = kept
        else:
            high = kept - 1
    return _middle_cut(text, low) if low else ""


def _middle_cut(text: str, kept: int) -> str:
    head = kept // 3
    return text[:head] + "…" + text[len(text) - (kept - head) :]


def wrap(words: list[str], separator: str, size: float, width: float, lines: int) -> list[str]:
    """Words joined into at most `lines` lines of `width` inches, "+N more" for those left out."""
    out: list[str] = []
    line = ""
    for index, word in enumerate(words):
        last = len(out) == lines - 1
        left = len(words) - index
        room = width - (text_width(f"{separator}+{left} more", size) if last and left > 1 else 0)
        trial = line + separator + word if line else word
        if text_width(trial, size) <= room:
            line = trial
        elif not last and line:
            out.append(line + separator.rstrip())
            line = shorten(word, size, width)
        elif line:
            return [*out, f"{line}{separator}+{left} more"]
        else:
            line = shorten(word, size, room)
    return [*out, line] if line else out


def bytes_text(count: float) -> str:
    """Bytes with a binary unit, three significant digits."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    if unit == "B" or value >= 100:
        return f"{value:,.0f} {unit}"
    return f"{value:.1f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def cell_text(value: float) -> str:
    """A number for a cell: whole from 10 on, one decimal below, nothing but 0 for zero."""
    return f"{value:.0f}" if value == 0 or value >= 9.95 else f"{value:.1f}"


def percent_text(value: float) -> str:
    """A percentage that keeps small values apart from zero."""
    if value == 0 or value >= 9.95:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.095 else f"{value:.2g} %"


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 2, 2.5, 4, 5, 6, 8, 10 times a power of ten that is at least `value`."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power < value:
        power *= 10
    while power >= 10 * value:
        power /= 10
    steps = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    return next(s * power for s in steps if s * power >= value * (1 - 1e-9))
