"""Chip specs: TOML to `ChipSpec`, with every number checked and every source kept.

A chip is one TOML file. Shipped ones are named without `.toml`; any other is given by its path.
Any number may be written as `{ value = …, source = "…" }`; `chip_sources` gives those sources.
Every defect raises `InputError` with one sentence: the thing, its value, the limit, the remedy.
"""

from __future__ import annotations

import difflib
import importlib.resources
import re
import tomllib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from meshc.chipfields import OWN_DEFAULT, REQUIRED, TABLES, OutOfRangeError
from meshc.errors import InputError
from meshc.ir.chip import Array, ChipSpec, CoreSpec, DramChannel, EnergySpec, NocSpec, Ports, Seams

MAX_CORES = 10_000_000
_NOTHING: Mapping[str, str] = MappingProxyType({})

# Fields of matrix engines that are no systolic arrays, and why an array has none.
_NOT_OF_ARRAYS = {
    "mac_tile": "an array's own size is its tile",
    "mac_start_cycles": "how long an array takes to fill follows from its size",
    "mac_operand_bytes_per_cycle": "an array keeps one operand and streams the other",
}

Table = dict[str, Any]


def chip_names() -> list[str]:
    """Names of the shipped chips, sorted."""
    return sorted(f.name[:-5] for f in _folder().iterdir() if f.name.endswith(".toml"))


def chip_text(name: str) -> str:
    """The TOML text of a shipped chip, or of the file at that path."""
    return _read_text(name)


def load_chip(name: str | Path, overrides: Mapping[str, str] = _NOTHING) -> ChipSpec:
    """The chip of that shipped name or path, with fields overridden (FIELD → TOML value)."""
    document, _ = _document(str(name))
    where = f"chip {name}"
    for key, text in overrides.items():
        _override(document, key, text, where)
    return _chip(document, where)


def parse_overrides(items: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise InputError(
                f"--override '{item}' is not FIELD=VALUE; write for example core.sram_bytes=98304."
            )
        found[key.strip()] = value.strip()
    return found


def chip_sources(name: str | Path) -> dict[str, str]:
    """Field → source, for every number that carries its own; "" has the whole chip's source."""
    document, sources = _document(str(name))
    return {"": str(document.get("source", "")), **sources}


def _folder() -> Traversable:
    """Where the shipped specs are: in the installed package, else beside it in a checkout."""
    try:
        return importlib.resources.files("meshc.chipspecs")
    except ModuleNotFoundError:
        return Path(__file__).resolve().parent.parent / "chipspecs"


def _read_text(name: str) -> str:
    shipped = _folder() / f"{name}.toml"
    if re.fullmatch(r"[\w.-]+", name) and shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    try:
        data = Path(name).read_bytes()
    except (OSError, ValueError) as error:
        if Path(name).suffix == ".toml" or "/" in name or "\\" in name:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"chip spec {name} cannot be read ({reason}); give the path of a TOML file or one "
                f"of the shipped names: {', '.join(chip_names())}."
            ) from None
        names = chip_names()
        near = difflib.get_close_matches(name, names, 1, 0.0)
        hint = f"; the nearest shipped name is {near[0]}" if near else ""
        raise InputError(
            f"chip {name} is neither a shipped name nor the path of a TOML file{hint}; "
            f"choose one of {', '.join(names)}, or give a path."
        ) from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(
            f"chip spec {name} is not UTF-8 text at line {line}; save it as a UTF-8 TOML file."
        ) from None


def _document(name: str) -> tuple[Table, dict[str, str]]:
    """The file as plain values, and the sources that stood beside them."""
    text = _read_text(name)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what = str(error)
        if "end of document" in what:
            what = what.replace("at end of document", f"at line {text.count(chr(10)) + 1}, the end")
        raise InputError(
            f"chip spec {name} is not valid TOML: {what}; correct that line."
        ) from None
    except RecursionError:
        raise InputError(
            f"chip spec {name} is not a chip spec: its values are nested too deeply; "
            "compare it with a shipped one (meshc chips test8x8)."
        ) from None
    sources: dict[str, str] = {}
    return _plain(document, "", sources, f"chip {name}"), sources


def _plain(value: Any, path: str, sources: dict[str, str], where: str) -> Any:
    """Replace every `{ value, source }` by its value and note the source."""
    if isinstance(value, list):
        return [_plain(v, f"{path}.{i}", sources, where) for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "value" in value and path:
        extra = sorted(set(value) - {"value", "source"})
        inner = value["value"]
        if extra:
            raise InputError(
                f"{where}: {path}.{extra[0]} is not a field of a chip spec; "
                f"the nearest is {path}.source."
            )
        if isinstance(inner, dict):
            raise InputError(
                f"{where}: {path} is a table, but only numbers and lists of numbers may be written "
                f"as {{ value = …, source = … }}; put value and source inside, on its numbers."
            )
        if "source" in value:
            if not isinstance(value["source"], str):
                raise InputError(
                    f"{where}: {path}.source is {_show(value['source'])}, but it must be text in "
                    "quotes; say where the number comes from."
                )
            sources[path] = value["source"]
        return inner
    if path and set(value) == {"source"} and path not in TABLES:
        raise InputError(f"{where}: {path} has a source but no value; add value = … to it.")
    return {
        key: _plain(v, f"{path}.{key}" if path else key, sources, where) for key, v in value.items()
    }


def _override(document: Table, key: str, text: str, where: str) -> None:
    """Set one field of the document from a `FIELD=VALUE` pair."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    if set(parsed) == {"value"}:
        value = _plain(parsed["value"], key, {}, where)
    elif re.fullmatch(r"[A-Za-z][\w.-]*", text):
        value = text  # a bare word, as in noc.topology=torus
    else:
        raise InputError(
            f"{where}: override {key}={text} has no valid TOML value; write it as in a spec, "
            "such as core.sram_bytes=98304 or dead_cores=[[3,4]]."
        )
    parts = key.split(".")
    node: Any = document
    for depth, part in enumerate(parts[:-1]):
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                raise InputError(
                    f"{where}: override {key} names entry {part} of "
                    f"{'.'.join(parts[:depth])}, which has {len(node)}; "
                    "number its entries from 0, or give the whole list."
                )
            node = node[int(part)]
        else:
            fresh: Any = [] if depth == 0 and part in ("dram", "ports") else {}
            node = node.setdefault(part, fresh)
        if not isinstance(node, dict | list):
            raise InputError(
                f"{where}: override {key} goes into {'.'.join(parts[: depth + 1])}, which is a "
                f"value and not a table; override {'.'.join(parts[: depth + 1])} itself."
            )
    last = parts[-1]
    if isinstance(node, list):
        if not last.isdigit() or int(last) >= len(node):
            raise InputError(
                f"{where}: override {key} names entry {last} of {'.'.join(parts[:-1])}, which has "
                f"{len(node)}; number its entries from 0, or give the whole list."
            )
        node[int(last)] = value
    else:
        node[last] = value


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    text = "a table" if isinstance(value, dict) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _nearest(table: str, key: str) -> str:
    """The known field that looks most like `key`, its own table's first."""

    def likeness(candidate: tuple[str, str]) -> float:
        same = 0.15 if candidate[0] == table else 0.0
        begins = 0.3 if candidate[1].startswith(key) else 0.0
        return difflib.SequenceMatcher(None, key, candidate[1]).ratio() + same + begins

    known = [(t, f) for t, fields in TABLES.items() for f in fields]
    known += [tuple(t.rpartition(".")[::2]) for t in TABLES if t]  # type: ignore[misc]
    best = max(known, key=likeness)
    return ".".join(part for part in best if part)


def _fields(document: Any, table: str, label: str, where: str) -> Table:
    """The checked fields of one table as keyword arguments of its noun.

    table: key of TABLES.   label: the same as the user writes it (dram.0).
    """
    known = TABLES[table]
    if not isinstance(document, dict):
        raise InputError(
            f"{where}: {label} is {_show(document)}, but it must be a table; "
            f"write its fields, such as {next(iter(known))}, under it."
        )
    prefix = f"{label}." if label else ""
    tables = {t.rpartition(".")[2] for t in TABLES if t and t.rpartition(".")[0] == table}
    for key in document:
        if key not in known and key not in tables:
            nearest = _nearest(table, key)
            if table and nearest.startswith(f"{table}."):
                nearest = label + nearest[len(table) :]
            raise InputError(
                f"{where}: {prefix}{key} is not a field of a chip spec; the nearest is {nearest}."
            )
    out: Table = {}
    for key, spec in known.items():
        if key not in document:
            if spec.default is REQUIRED:
                raise InputError(
                    f"{where}: {prefix}{key} is missing, and a chip spec needs it; "
                    f"add {key} = …" + (f" to [{label}]." if label else " at the top.")
                )
            if spec.default is not OWN_DEFAULT:
                out[key] = spec.default
            continue
        try:
            out[key] = spec.read(document[key])
        except OutOfRangeError as limit:
            raise InputError(
                f"{where}: {prefix}{key} is {_show(document[key])}, but it must be {limit}; "
                "correct it."
            ) from None
    return out


def _rates(document: Table, table: str, key: str, where: str) -> dict[str, float]:
    rates: dict[str, float] = _fields(document[key], f"{table}.{key}", f"{table}.{key}", where)
    if not rates:
        raise InputError(
            f"{where}: {table}.{key} is empty, but it must have a rate for at least one dtype; "
            "add one, such as fp32 = 16."
        )
    return rates


def _core(document: Any, where: str) -> CoreSpec:
    fields = _fields(document, "core", "core", where)
    macs, array = "macs_per_cycle" in document, "array" in document
    if macs == array:
        given = "both macs_per_cycle and array" if macs else "neither macs_per_cycle nor array"
        raise InputError(
            f"{where}: core has {given}, but exactly one of them describes the matrix engine; "
            f"{'remove' if macs else 'add'} one."
        )
    for field, why in _NOT_OF_ARRAYS.items():
        if array and field in document:
            raise InputError(
                f"{where}: core has both {field} and array, but {why}; remove {field}."
            )
    if "vector_ops_per_cycle" not in document:
        raise InputError(
            f"{where}: core.vector_ops_per_cycle is missing, and a chip spec needs it; "
            "add vector_ops_per_cycle = … to [core]."
        )
    fields["vector_ops_per_cycle"] = _rates(document, "core", "vector_ops_per_cycle", where)
    if macs:
        fields["macs_per_cycle"] = _rates(document, "core", "macs_per_cycle", where)
        if "matvec_macs_per_cycle" in document:
            fields["matvec_macs_per_cycle"] = _rates(
                document, "core", "matvec_macs_per_cycle", where
            )
    else:
        fields["array"] = Array(**_fields(document["array"], "core.array", "core.array", where))
    core = CoreSpec(**fields)
    if core.reserved_bytes >= core.sram_bytes:
        raise InputError(
            f"{where}: core.reserved_bytes is {core.reserved_bytes}, which leaves nothing of the "
            f"core's {core.sram_bytes} bytes of SRAM; lower it or raise core.sram_bytes."
        )
    return core


def _noc(document: Any, where: str) -> NocSpec:
    fields = _fields(document, "noc", "noc", where)
    if not fields.get("flit_bytes"):
        fields["flit_bytes"] = fields["link_bytes_per_cycle"]
    noc = NocSpec(**fields)
    if noc.one_way and (noc.topology != "torus" or noc.networks != 2):
        raise InputError(
            f"{where}: noc.one_way is true on a {noc.topology} with networks = {noc.networks}, but "
            "one-way links reach every core only on a torus with two networks; set topology = "
            '"torus" and networks = 2, or one_way = false.'
        )
    return noc


def _chip(document: Table, where: str) -> ChipSpec:
    fields = _fields(document, "", "", where)
    for table in ("core", "noc"):
        if table not in document:
            raise InputError(
                f"{where}: the table [{table}] is missing, and a chip spec needs it; add it as in "
                "the shipped specs (meshc chips test8x8)."
            )
    fields["core"] = _core(document["core"], where)
    fields["noc"] = _noc(document["noc"], where)
    channels = document.get("dram", [])
    if not isinstance(channels, list):
        raise InputError(
            f"{where}: dram is {_show(channels)}, but it must be a list of channels; "
            "write each one under [[dram]]."
        )
    fields["dram"] = tuple(
        DramChannel(**_fields(c, "dram", f"dram.{i}", where)) for i, c in enumerate(channels)
    )
    ports = document.get("ports", [])
    if not isinstance(ports, list):
        raise InputError(
            f"{where}: ports is {_show(ports)}, but it must be a list of groups of cores; "
            "write each one under [[ports]]."
        )
    fields["ports"] = tuple(
        Ports(**_fields(p, "ports", f"ports.{i}", where)) for i, p in enumerate(ports)
    )
    if document.get("seams"):
        fields["seams"] = Seams(**_fields(document["seams"], "seams", "seams", where))
    if document.get("energy"):
        energy = _fields(document["energy"], "energy", "energy", where)
        table = document["energy"]
        energy["mac_pj"] = (
            _rates(table, "energy", "mac_pj", where) if "mac_pj" in table else {"fp16": 0.5}
        )
        fields["energy"] = EnergySpec(**energy)
    chip = ChipSpec(**fields)
    _check_mesh(chip, where)
    return chip


def _check_mesh(chip: ChipSpec, where: str) -> None:
    """Everything that stands on the mesh must lie inside it, and working cores must connect."""
    size = f"the mesh of {chip.rows} x {chip.cols}"
    if chip.rows * chip.cols > MAX_CORES:
        raise InputError(
            f"{where}: {size} has {chip.rows * chip.cols:,} cores, above the limit of "
            f"{MAX_CORES:,}; lower rows or cols."
        )
    for core in chip.dead_cores:
        if core.row >= chip.rows or core.col >= chip.cols:
            raise InputError(
                f"{where}: dead core ({core.row}, {core.col}) lies outside {size}; rows and cols "
                "count from 0, so remove or correct it."
            )
    for what, lines, limit in (
        ("row", chip.dead_rows, chip.rows),
        ("col", chip.dead_cols, chip.cols),
    ):
        for line in lines:
            if line >= limit:
                raise InputError(
                    f"{where}: dead {what} {line} lies outside {size}; {what}s count from 0 to "
                    f"{limit - 1}, so remove or correct it."
                )
    alive = _alive(chip)
    if not alive.any():
        raise InputError(
            f"{where}: all {chip.rows * chip.cols} cores are dead, but at least one must work; "
            "shorten dead_cores, dead_rows or dead_cols."
        )
    through = chip.dead_cores_forward or chip.noc.topology == "exchange"
    for index, channel in enumerate(chip.dram):
        if channel.row >= chip.rows or channel.col >= chip.cols:
            raise InputError(
                f"{where}: dram.{index} at ({channel.row}, {channel.col}) lies outside {size}; "
                "move it to a core of the mesh."
            )
    for index, ports in enumerate(chip.ports):
        for core in ports.cores:
            if core.row >= chip.rows or core.col >= chip.cols:
                raise InputError(
                    f"{where}: ports.{index} names ({core.row}, {core.col}), which lies outside "
                    f"{size}; remove or correct it."
                )
    if chip.seams is not None:
        for what, size_of, total in (
            ("rows", chip.seams.rows, chip.rows),
            ("cols", chip.seams.cols, chip.cols),
        ):
            if total % size_of:
                raise InputError(
                    f"{where}: seams.{what} is {size_of}, which does not divide the {total} {what} "
                    f"of the mesh; choose a divisor of {total}."
                )
    if not through and not alive.all():
        _check_connected(chip, alive, where)


def _alive(chip: ChipSpec) -> np.ndarray[Any, np.dtype[np.bool_]]:
    alive = np.ones((chip.rows, chip.cols), bool)
    alive[list(chip.dead_rows), :] = False
    alive[:, list(chip.dead_cols)] = False
    for core in chip.dead_cores:
        alive[core.row, core.col] = False
    return alive


def _check_connected(
    chip: ChipSpec, alive: np.ndarray[Any, np.dtype[np.bool_]], where: str
) -> None:
    """Join runs of working cores within rows to those of the next row; one part must remain."""
    starts = alive.copy()
    starts[:, 1:] &= ~alive[:, :-1]
    label = np.cumsum(starts.ravel()).reshape(alive.shape) - 1
    count = int(starts.sum())
    touching = [(label[:-1], label[1:], alive[:-1] & alive[1:])]
    if chip.noc.topology == "torus":
        touching.append((label[-1:], label[:1], alive[-1:] & alive[:1]))
        touching.append((label[:, -1:], label[:, :1], alive[:, -1:] & alive[:, :1]))
    parent = list(range(count))

    def root(run: int) -> int:
        while parent[run] != run:
            parent[run] = parent[parent[run]]
            run = parent[run]
        return run

    for first, second, both in touching:
        codes = np.unique(first[both].astype(np.int64) * count + second[both])
        for code in codes.tolist():
            a, b = root(code // count), root(code % count)
            parent[max(a, b)] = min(a, b)
    roots = np.array([root(run) for run in range(count)])
    parts, sizes = np.unique(roots[label[alive]], return_counts=True)
    if len(parts) == 1:
        return
    cells = np.argwhere(alive)
    smallest = int(np.argmin(sizes))
    row, col = cells[np.argmax(roots[label[alive]] == parts[smallest])]
    raise InputError(
        f"{where}: the dead cores cut the {int(alive.sum())} working cores into {len(parts)} parts "
        f"that cannot reach each other (the largest has {int(sizes.max())}, the smallest "
        f"{int(sizes[smallest])} around ({row}, {col})); set dead_cores_forward = true if dead "
        "cores still forward messages, or list the cores of the smaller parts in dead_cores too."
    )
