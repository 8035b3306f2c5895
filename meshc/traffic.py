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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.batch import Batch
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec
from meshc.trafficids import Ids, key_of

MESSAGES = ("id", "ready_cycle", "src_row", "src_col", "dst_row", "dst_col", "bytes")
TRANSFERS = ("start_cycle", "src_x", "src_y", "dst_x", "dst_y", "noc", "bytes", "kind")
OPTIONAL = ("after",)
LARGEST = 1 << 53  # numbers above are not exact in other tools
LONGEST_ID = 100
LATEST = 1 << 40  # cycles are also counted in parts of them
BLOCK_BYTES = 1 << 22
TEXTS = ("id", "after", "kind")  # columns that need not be numbers


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


class TrafficReader:
    """The messages of a file for a chip, block by block.

    count: messages that were read.   waits: whether the file says which messages wait for others.
    Raises InputError with the line for whatever is not as it should be.
    """

    def __init__(self, path: Path, chip: ChipSpec) -> None:
        self.path = path
        self.chip = chip
        self.count = 0
        self.waits = False
        self._ids = Ids()
        self._later: list[NDArray[Any]] = []
        self._keys: list[NDArray[Any]] = []

    def batches(self) -> Iterator[Batch]:
        """The messages of each block, without those that they wait for."""
        names: tuple[str, ...] = ()
        line = 1
        with opened(self.path) as file:
            for block in blocks(file):
                lines = block.count(b"\n")
                if not names:
                    first, _, block = block.partition(b"\n")
                    names = header_of(self.path, first)
                    self.waits = "after" in names
                    if block.strip():
                        yield self._read_block(block, names, 2)
                elif block.strip():
                    yield self._read_block(block, names, line)
                line += lines
        if not names:
            raise InputError(
                f"Traffic file {self.path} is empty; begin it with {','.join(MESSAGES)}."
            )
        if self.count == 0:
            raise InputError(
                f"Traffic file {self.path} has no messages; give it at least one line."
            )

    def _read_block(self, block: bytes, names: tuple[str, ...], line: int) -> Batch:
        """Read a block that begins at a line, at once if it is plain numbers, else by lines."""
        part = _numbers(self.path, block, names, line) or _lines(self.path, block, names, line)
        if "id" in names:
            self._ids.add(part.keys)
        if len(part.after):
            self._later.append((part.later + self.count).astype(np.uint32))
            self._keys.append(part.after)
        self.count += len(part.lines)
        return _batch(self.path, part, self.chip)

    def pairs(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Pairs of a message and one that must have arrived before it. Ids must differ."""
        twice = self._ids.twice()
        if twice is not None:
            line, fields = line_of(self.path, twice)
            raise InputError(
                f"{self.path}, line {line}: id '{fields['id'][:40]}' was used before; give each "
                "message its own."
            )
        none = np.zeros(0, np.uint32)
        later = np.concatenate([none, *self._later])
        earlier, found = self._ids.find(np.concatenate([none.astype(np.int64), *self._keys]))
        wrong = ~found | (earlier == later)
        if wrong.any():
            self._refuse_after(int(later[int(np.argmax(wrong))]))
        self._later, self._keys = [], []
        return later, earlier

    def _refuse_after(self, number: int) -> None:
        """Say which id in a message's `after` is none."""
        line, fields = line_of(self.path, number)
        what = "itself"
        for name in fields["after"].split(";"):
            earlier, found = self._ids.find(np.array([key_of(name.strip())]))
            if not found[0]:
                what = f"'{name.strip()[:40]}', but there is no such id"
                break
            if earlier[0] == number:
                break
        raise InputError(
            f"{self.path}, line {line}: the message comes after {what}; name other messages "
            "of the file, separated by semicolons."
        )


def line_of(path: Path, number: int) -> tuple[int, dict[str, str]]:
    """Where a message stands in its file, and the fields of that line by name."""
    count = -2
    line = 0
    names: list[str] = []
    with opened(path) as file:
        for block in blocks(file):
            for text in block.removesuffix(b"\n").split(b"\n"):
                line += 1
                count += bool(text.strip()) or line == 1
                if line == 1 or count == number:
                    fields = next(csv.reader([text.decode("utf-8-sig").rstrip("\r")]), [])
                    if line > 1:
                        fields += [""] * (len(names) - len(fields))
                        values = (field.strip() for field in fields)
                        return line, dict(zip(names, values, strict=False))
                    names = [name.strip() for name in fields]
    raise InputError(f"{path} was changed while it was read; start again.")


@dataclass(frozen=True)
class Part:
    """A block of messages as columns.

    keys: what stands for the ids.   later, after: messages that wait, counted from the block's
    first one, and what stands for each id that they wait for.   lines: of each message.
    """

    numbers: dict[str, NDArray[np.int64]]
    keys: NDArray[np.int64]
    later: NDArray[Any]
    after: NDArray[np.int64]
    lines: NDArray[np.int64]


def _numbers(path: Path, block: bytes, names: tuple[str, ...], line: int) -> Part | None:
    """A block if every line has as many whole numbers as there are columns and nothing else."""
    from meshc.emulator.tables import parse, parse_after

    if "kind" in names:
        return None
    text = np.frombuffer(block, np.uint8)
    numbers = [name for name in names if name != "after"]
    table = np.empty((block.count(b"\n") + 1, len(numbers)), np.int64)
    pairs = len(table) + block.count(b";") if "after" in names else 0
    later, after = np.empty(pairs, np.uint32), np.empty(pairs, np.int64)
    if "after" in names:
        rows, pairs = parse_after(text, table, names.index("after"), later, after)
    else:
        rows = parse(text, table)
    if rows < 0:
        return None
    columns = {name: table[:rows, k].copy() for k, name in enumerate(numbers)}
    for name, values in columns.items():
        if name != "id":
            _check_range(path, name, values, line)
    keys = columns.pop("id", np.zeros(0, np.int64))
    return Part(columns, keys, later[:pairs], after[:pairs], np.arange(line, line + rows))


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


def _lines(path: Path, block: bytes, names: tuple[str, ...], line: int) -> Part:
    """A block line by line."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        line += block[: error.start].count(b"\n")
        raise InputError(
            f"{path}, line {line}: this is not UTF-8 text; save the file as a UTF-8 CSV file."
        ) from None
    numeric = [name for name in names if name not in TEXTS]
    rows: dict[str, list[int]] = {name: [] for name in numeric}
    ids: list[int] = []
    later: list[int] = []
    after: list[int] = []
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
            ids.append(key_of(_id(path, number, fields[at["id"]])))
        if "after" in at and fields[at["after"]].strip():
            others = dict.fromkeys(name.strip() for name in fields[at["after"]].split(";"))
            after += map(key_of, others)
            later += [len(numbers)] * len(others)
        numbers.append(number)
    return Part(
        {name: np.array(rows[name], np.int64) for name in numeric},
        np.array(ids, np.int64),
        np.array(later, np.uint32),
        np.array(after, np.int64),
        np.array(numbers, np.int64),
    )


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


def _batch(path: Path, part: Part, chip: ChipSpec) -> Batch:
    """Check what concerns the chip."""
    transfers = "start_cycle" in part.numbers
    rows = part.numbers["src_y" if transfers else "src_row"]
    cols = part.numbers["src_x" if transfers else "src_col"]
    to_rows = part.numbers["dst_y" if transfers else "dst_row"]
    to_cols = part.numbers["dst_x" if transfers else "dst_col"]
    network = part.numbers["noc"] if transfers else np.zeros(len(rows), np.int64)
    sized = part.numbers["bytes"]
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
                f"{path}, line {part.lines[at]}: {what} is {values[at]}, but chip "
                f"'{chip.name}' has them from 0 to {limit - 1}; correct it or take another chip."
            )
    least = min(chip.noc.link_bytes_per_cycle, chip.noc.flit_bytes or LARGEST)
    if int(sized.max(initial=0)) / least > 2**31:
        at = int(sized.argmax())
        raise InputError(
            f"{path}, line {part.lines[at]}: bytes is {sized[at]}, which takes more "
            f"than {2**31} cycles on a link of chip '{chip.name}'; split the message."
        )
    return Batch(
        part.numbers["start_cycle" if transfers else "ready_cycle"],
        (rows * chip.cols + cols).astype(np.int32),
        (to_rows * chip.cols + to_cols).astype(np.int32),
        sized,
        network.astype(np.int32),
    )
