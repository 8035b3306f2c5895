"""TRAFFIC.csv: messages for a network alone, read in blocks so that memory stays small.

Two headers are known: `id,ready_cycle,src_row,src_col,dst_row,dst_col,bytes[,after]`, where `after`
lists ids separated by `;`, and that of recorded transfers, `start_cycle,src_x,src_y,dst_x,dst_y,
noc,bytes,kind`. Columns may stand in any order. A name that ends in .gz is unpacked while reading.
"""

from __future__ import annotations

import csv
import difflib
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.batch import Batch
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec

MESSAGES = ("id", "ready_cycle", "src_row", "src_col", "dst_row", "dst_col", "bytes")
TRANSFERS = ("start_cycle", "src_x", "src_y", "dst_x", "dst_y", "noc", "bytes", "kind")
OPTIONAL = ("after",)
LARGEST = 1 << 53  # numbers above are not exact in other tools
LONGEST_ID = 100
LATEST = 1 << 40  # cycles are also counted in parts of them
BLOCK_BYTES = 1 << 22
TEXTS = ("id", "after", "kind")  # columns that need not be numbers


@dataclass
class Columns:
    """Blocks of columns while a file is read.

    ids: as numbers, or as bytes where some id is none; empty for transfers.
    later, after: messages that wait, and each id that they wait for.
    """

    numbers: dict[str, list[NDArray[np.int64]]] = field(default_factory=dict)
    ids: list[NDArray[Any]] = field(default_factory=list)
    later: list[NDArray[np.int64]] = field(default_factory=list)
    after: list[NDArray[Any]] = field(default_factory=list)
    lines: list[NDArray[np.int64]] = field(default_factory=list)  # of each message
    count: int = 0

    def column(self, name: str) -> NDArray[np.int64]:
        return np.concatenate(self.numbers[name])


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file, unpacked; raises InputError where it cannot be read."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"Traffic file {path} cannot be read ({reason}); give the path of a CSV file."
        ) from None


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    """The file in blocks of whole lines."""
    rest = b""
    while data := file.read(BLOCK_BYTES):
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            rest += data
            continue
        yield rest + data[:cut]
        rest = data[cut:]
    if rest:
        yield rest


def header_of(path: Path, line: bytes) -> tuple[str, ...]:
    """The names of the columns."""
    try:
        names = tuple(n.strip() for n in next(csv.reader([line.decode("utf-8-sig")]), []))
    except (UnicodeDecodeError, csv.Error):
        names = ()
    known = TRANSFERS if "start_cycle" in names else MESSAGES
    allowed = known if known is TRANSFERS else known + OPTIONAL
    for name in names:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, 1, 0.0)
            raise InputError(
                f"{path}, line 1: '{name[:40]}' is not a column of a traffic file; the nearest is "
                f"{near[0] if near else allowed[0]}, and the header is {','.join(known)}"
                f"{'[,after]' if known is MESSAGES else ''}."
            )
        if names.count(name) > 1:
            raise InputError(f"{path}, line 1: column {name} stands twice; remove one.")
    needed = [n for n in known if n not in names and n != "kind"]
    if needed:
        raise InputError(
            f"{path}, line 1: the header lacks {needed[0]}; begin the file with "
            f"{','.join(known)}{'[,after]' if known is MESSAGES else ''}."
        )
    return names


def read_traffic(path: Path, chip: ChipSpec) -> Batch:
    """The messages of a file for a chip.

    Raises InputError with the line for whatever is not as it should be.
    """
    columns = Columns()
    names: tuple[str, ...] = ()
    line = 1
    with opened(path) as file:
        for block in blocks(file):
            if not names:
                first, _, block = block.partition(b"\n")
                names = header_of(path, first)
                line = 2
            if block.strip():
                _read_block(path, block, names, line, columns)
            line += block.count(b"\n")
    if not names:
        raise InputError(f"Traffic file {path} is empty; begin it with {','.join(MESSAGES)}.")
    if columns.count == 0:
        raise InputError(f"Traffic file {path} has no messages; give it at least one line.")
    return _batch(path, names, columns, chip)


def _read_block(
    path: Path, block: bytes, names: tuple[str, ...], line: int, columns: Columns
) -> None:
    """Read a block that begins at a line, at once if it is plain numbers, else line by line."""
    table = _numbers(block, len(names)) if not set(names) & {"after", "kind"} else None
    if table is None:
        _read_lines(path, block, names, line, columns)
        return
    for k, name in enumerate(names):
        values = table[:, k]
        if name == "id":
            columns.ids.append(values.copy())
        else:
            _check_range(path, name, values, line)
            columns.numbers.setdefault(name, []).append(values.copy())
    columns.lines.append(np.arange(line, line + len(table)))
    columns.count += len(table)


def _numbers(block: bytes, width: int) -> NDArray[np.int64] | None:
    """A block as a table if every line has so many whole numbers and nothing else."""
    from meshc.emulator.tables import parse

    table = np.empty((block.count(b"\n") + 1, width), np.int64)
    rows = parse(np.frombuffer(block, np.uint8), table)
    return None if rows < 0 else table[:rows]


def _limits(name: str) -> tuple[int, int]:
    """The least and the largest value of a column."""
    return (1 if name == "bytes" else 0), (LATEST if name.endswith("_cycle") else LARGEST)


def _check_range(path: Path, name: str, values: NDArray[np.int64], line: int) -> None:
    least, most = _limits(name)
    if len(values) and (int(values.min()) < least or int(values.max()) > most):
        at = int(np.argmax((values < least) | (values > most)))
        _refuse(path, line + at, name, str(values[at]))


def _refuse(path: Path, line: int, name: str, text: str) -> None:
    least, most = _limits(name)
    raise InputError(
        f"{path}, line {line}: {name} is '{text[:40]}', but it must be a whole number from {least} "
        f"to {most}; correct it."
    )


def _read_lines(
    path: Path, block: bytes, names: tuple[str, ...], line: int, columns: Columns
) -> None:
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        line += block[: error.start].count(b"\n")
        raise InputError(
            f"{path}, line {line}: this is not UTF-8 text; save the file as a UTF-8 CSV file."
        ) from None
    numeric = [name for name in names if name not in TEXTS]
    rows: dict[str, list[int]] = {name: [] for name in numeric}
    ids: list[str] = []
    later: list[int] = []
    after: list[str] = []
    numbers: list[int] = []
    at = {name: k for k, name in enumerate(names)}
    for number, source in enumerate(text.split("\n"), line):
        if not source.strip():
            continue
        fields = source.rstrip("\r").split(",")
        if '"' in source:
            try:
                fields = next(csv.reader([source.rstrip("\r")], strict=True))
            except (csv.Error, StopIteration):
                raise InputError(
                    f"{path}, line {number}: the quotes of this line do not match; correct it."
                ) from None
        if len(fields) == len(names) - 1 and names[-1] == "after":
            fields.append("")
        if len(fields) != len(names):
            raise InputError(
                f"{path}, line {number}: this line has {len(fields)} fields, but the header has "
                f"{len(names)} columns; give one for each."
            )
        for name in numeric:
            value = _whole(fields[at[name]])
            least, most = _limits(name)
            if value is None or not least <= value <= most:
                _refuse(path, number, name, fields[at[name]].strip())
            assert value is not None
            rows[name].append(value)
        if "id" in at:
            ids.append(_id(path, number, fields[at["id"]]))
        if "after" in at and fields[at["after"]].strip():
            others = dict.fromkeys(name.strip() for name in fields[at["after"]].split(";"))
            after += others
            later += [columns.count + len(numbers)] * len(others)
        numbers.append(number)
    for name in numeric:
        columns.numbers.setdefault(name, []).append(np.array(rows[name], np.int64))
    if "id" in at:
        columns.ids.append(_keys(ids))
    if after:
        columns.later.append(np.array(later, np.int64))
        columns.after.append(_keys(after))
    columns.lines.append(np.array(numbers, np.int64))
    columns.count += len(numbers)


def _whole(text: str) -> int | None:
    text = text.strip()
    try:
        if text.isascii() and text.removeprefix("-").isdigit():
            return int(text)
        value = float(text)
        return int(value) if value == int(value) and "_" not in text else None
    except (ValueError, OverflowError):
        return None


def _id(path: Path, line: int, text: str) -> str:
    text = text.strip()
    if not text or ";" in text or len(text) > LONGEST_ID:
        raise InputError(
            f"{path}, line {line}: id is '{text[:40]}', but it must be a name of at most "
            f"{LONGEST_ID} characters without semicolons; give one."
        )
    return text


def _keys(names: list[str]) -> NDArray[Any]:
    """Ids as numbers if all are, else as bytes."""
    if all(name.isascii() and name.isdigit() and len(name) < 16 for name in names):
        return np.array(names, np.int64)
    return np.array([name.encode() for name in names])


def _batch(path: Path, names: tuple[str, ...], columns: Columns, chip: ChipSpec) -> Batch:
    """Put the columns together and check what concerns several lines or the chip."""
    transfers = "start_cycle" in names
    rows = columns.column("src_y" if transfers else "src_row")
    cols = columns.column("src_x" if transfers else "src_col")
    to_rows = columns.column("dst_y" if transfers else "dst_row")
    to_cols = columns.column("dst_x" if transfers else "dst_col")
    network = columns.column("noc") if transfers else np.zeros(columns.count, np.int64)
    lines = columns.lines
    sized = columns.column("bytes")
    for values, limit, what in (
        (rows, chip.rows, "src_y" if transfers else "src_row"),
        (cols, chip.cols, "src_x" if transfers else "src_col"),
        (to_rows, chip.rows, "dst_y" if transfers else "dst_row"),
        (to_cols, chip.cols, "dst_x" if transfers else "dst_col"),
        (network, chip.noc.networks, "noc"),
    ):
        if (values >= limit).any():
            at = int(np.argmax(values >= limit))
            raise InputError(
                f"{path}, line {np.concatenate(lines)[at]}: {what} is {values[at]}, but chip "
                f"'{chip.name}' has them from 0 to {limit - 1}; correct it or take another chip."
            )
    least = min(chip.noc.link_bytes_per_cycle, chip.noc.flit_bytes or LARGEST)
    if int(sized.max()) / least > 2**31:
        at = int(sized.argmax())
        raise InputError(
            f"{path}, line {np.concatenate(lines)[at]}: bytes is {sized[at]}, which takes more "
            f"than {2**31} cycles on a link of chip '{chip.name}'; split the message."
        )
    later, earlier = _dependencies(path, columns, transfers)
    return Batch(
        columns.column("start_cycle" if transfers else "ready_cycle"),
        (rows * chip.cols + cols).astype(np.int32),
        (to_rows * chip.cols + to_cols).astype(np.int32),
        sized,
        network.astype(np.int32),
        later,
        earlier,
    )


def _dependencies(
    path: Path, columns: Columns, transfers: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Pairs of a message and one that must have arrived before it. Ids must differ."""
    none = np.zeros(0, np.int32)
    if transfers:
        return none, none
    ids = _joined(columns.ids)
    if not columns.after and ids.dtype.kind == "i" and bool((ids[1:] > ids[:-1]).all()):
        return none, none  # the usual case: numbered in order
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(same):
        first = int(order[same + 1].min())
        _refuse_twice(path, columns, _shown(ids[first]), first)
    if not columns.after:
        return none, none
    later, after = np.concatenate(columns.later), _joined(columns.after)
    if after.dtype.kind != ids.dtype.kind:
        ids, after = _joined([ids, after[:0].astype("S")]), _joined([after, ids[:0].astype("S")])
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
    place = np.minimum(np.searchsorted(ordered, after), len(ids) - 1)
    earlier = order[place]
    wrong = (ordered[place] != after) | (earlier == later)
    if wrong.any():
        at = int(np.argmax(wrong))
        line = np.concatenate(columns.lines)[later[at]]
        what = f"'{_shown(after[at])[:40]}', but there is no such id"
        if ordered[place[at]] == after[at]:
            what = "itself"
        raise InputError(
            f"{path}, line {line}: the message comes after {what}; name other messages "
            "of the file, separated by semicolons."
        )
    return later.astype(np.int32), earlier.astype(np.int32)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Ids of all blocks: numbers if all are, else bytes."""
    if all(part.dtype.kind == "i" for part in parts):
        return np.concatenate(parts)
    return np.concatenate([part.astype("S") for part in parts])


def _shown(key: Any) -> str:
    """An id as text."""
    return key.decode() if isinstance(key, bytes) else str(key)


def _refuse_twice(path: Path, columns: Columns, name: str, number: int) -> None:
    line = np.concatenate(columns.lines)[number]
    raise InputError(
        f"{path}, line {line}: id '{name[:40]}' was used before; give each message its own."
    )
