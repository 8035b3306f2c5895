"""The list beside the placement map: what each region hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .sheet import Sheet
from .style import (
    MUTED,
    bytes_text,
    kind_colour,
    region_colour,
    shorten,
    text_width,
    wrap,
)

if TYPE_CHECKING:
    from .placement import Place

TABLE_WIDTH = 5.2
LINE = 0.19  # inches from line to line
INDENT = 0.22
ROOM = TABLE_WIDTH - INDENT - 0.1
LISTED = 22  # regions that the short table names
COLUMNS = ((INDENT, "region"), (1.25, "hosts"), (3.7, "cores"), (4.4, "stays in SRAM"))


def table_lines(found: Sequence[Place], full: bool) -> float:
    """Height of the table in inches."""
    if full:
        return LINE * sum(2 + len(_lines(p)) + _op_height(p, _op_limit(found)) for p in found)
    return LINE * (min(len(found), LISTED) + 4 + _op_height(_fullest(found), 4))


def full_table(sheet: Sheet, found: Sequence[Place], left: float, top: float) -> None:
    """Each region's layers, rectangle, resident bytes and ops."""
    for i, place in enumerate(found):
        sheet.swatch(left, top, region_colour(i))
        title = shorten(place.title, 10.5, ROOM, "bold")
        sheet.text(left + INDENT, top, title, size=10.5, weight="bold")
        for line in _lines(place):
            top += LINE
            sheet.text(left + INDENT, top, shorten(line, 9, ROOM))
        top = _draw_ops(sheet, place, left + INDENT, top, _op_limit(found)) + 2 * LINE


def short_table(sheet: Sheet, found: Sequence[Place], left: float, top: float) -> None:
    """One line a region, and the ops of the region with the most of them."""
    for x, word in COLUMNS:
        sheet.text(left + x, top, word, size=8.5, colour=MUTED)
    for i, place in enumerate(found[:LISTED]):
        top += LINE
        cells = (
            place.title,
            place.contents,
            f"{place.region.rows} × {place.region.cols}",
            bytes_text(place.resident_bytes) if place.resident_bytes else "",
        )
        sheet.swatch(left, top, region_colour(i))
        ends = [x for x, _ in COLUMNS[1:]] + [TABLE_WIDTH]
        for (x, _), end, words in zip(COLUMNS, ends, cells, strict=True):
            sheet.text(left + x, top, shorten(words, 9, end - x - 0.08))
    if len(found) > LISTED:
        top += LINE
        words = f"+{len(found) - LISTED} more regions"
        sheet.text(left + INDENT, top, words, colour=MUTED)
    fullest = _fullest(found)
    if fullest.ops:
        top += 2 * LINE
        words = shorten(f"Ops of {fullest.title}", 9, ROOM, "bold")
        sheet.text(left + INDENT, top, words, weight="bold")
        _draw_ops(sheet, fullest, left + INDENT, top, 4)


def _fullest(found: Sequence[Place]) -> Place:
    return max(found, key=lambda p: len(p.ops))


def _lines(place: Place) -> list[str]:
    r = place.region
    dead = r.rows * r.cols - place.working
    where = (
        f"{_range('row', r.row, r.rows)}, {_range('column', r.col, r.cols)}: "
        f"{r.rows} × {r.cols}{f' − {dead} dead' if dead else ''} = {place.working:,} cores"
    )
    stays = f"{bytes_text(place.resident_bytes)} stay in the SRAM of a core from start to end"
    return [w for w in (place.contents, where, stays if place.resident_bytes else "") if w]


def _range(word: str, first: int, count: int) -> str:
    return f"{word} {first}" if count == 1 else f"{word}s {first}–{first + count - 1}"


def _op_limit(found: Sequence[Place]) -> int:
    """Lines for the names of ops, fewer when there are more regions."""
    return 10 if len(found) == 1 else 4


def _op_height(place: Place, limit: int) -> int:
    return len(_kind_lines(place.kinds)) + len(_names(place, limit))


def _names(place: Place, limit: int) -> list[str]:
    return wrap(place.op_names, ", ", 8.5, ROOM, limit)


def _draw_ops(sheet: Sheet, place: Place, left: float, top: float, limit: int) -> float:
    """Kinds with their counts and colours, then names; returns the last baseline."""
    for line in _kind_lines(place.kinds):
        top += LINE
        x = left
        for kind, words in line:
            sheet.swatch(x, top, kind_colour(kind), edge=kind_colour(kind), size=0.1)
            sheet.text(x + 0.15, top, words, size=8.5)
            x += _kind_width(words)
    for words in _names(place, limit):
        top += LINE
        sheet.text(left, top, words, size=8.5, colour=MUTED)
    return top


def _kind_lines(kinds: Counter[str]) -> list[list[tuple[str, str]]]:
    """(kind, text) in lines that fit, the most frequent first."""
    lines: list[list[tuple[str, str]]] = []
    x = ROOM
    for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0])):
        words = f"{kind} ×{count}"
        if x + _kind_width(words) > ROOM:
            lines.append([])
            x = 0.0
        lines[-1].append((kind, words))
        x += _kind_width(words)
    return lines


def _kind_width(words: str) -> float:
    return 0.15 + text_width(words, 8.5) + 0.16
