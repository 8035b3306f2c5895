"""The fields of a chip spec: for every table, how each field is read and what its absence means.

This table is the single list of what a spec may say; `chips.py` walks it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshc.ir.chip import Coord
from meshc.ir.dtypes import BLOCK_FORMATS, NUMPY

_BLOCKS = {f.dtype for f in BLOCK_FORMATS.values()}
RATE_DTYPES = (
    *(d for d in NUMPY if d != "bool" and d not in _BLOCKS),
    *("fp8", "int4", "uint4", "bfp8", "bfp4"),
)
OWN_DEFAULT = object()


@dataclass(frozen=True)
class Field:
    """read: turns a TOML value into the noun's value, or raises OutOfRangeError with the limit.
    default: what an absent field means; REQUIRED when it must be given."""

    read: Callable[[Any], Any]
    default: Any = OWN_DEFAULT  # absent: the noun's own default


REQUIRED = object()


class OutOfRangeError(Exception):
    """A value outside its limit; the text completes "… is VALUE, but it must be"."""


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


MOST_NETWORKS = 16


def _whole(minimum: int, maximum: int = 1 << 53) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        limit = f"a whole number of at least {minimum}"
        if isinstance(value, int | float) and value > maximum:
            raise OutOfRangeError(f"a whole number from {minimum} to {maximum}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise OutOfRangeError(limit)
        if not _finite(value) or value != int(value) or value < minimum:
            raise OutOfRangeError(limit)
        return int(value)

    return read


def _number(positive: bool) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        limit = "a number above 0" if positive else "a number of at least 0"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise OutOfRangeError(limit)
        if not _finite(value) or value < 0 or (positive and value == 0):
            raise OutOfRangeError(limit)
        return value

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise OutOfRangeError('text in quotes, such as "example"')
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise OutOfRangeError("true or false")
    return value


def _one_of(*names: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in names or not isinstance(value, str):
            raise OutOfRangeError(
                " or ".join((", ".join(f'"{n}"' for n in names[:-1]), f'"{names[-1]}"'))
            )
        return value

    return read


def _list(of: Callable[[Any], Any], what: str, length: int | None = None) -> Callable[[Any], Any]:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            raise OutOfRangeError(what)
        try:
            return tuple(of(v) for v in value)
        except OutOfRangeError:
            raise OutOfRangeError(what) from None

    return read


def _ramp(value: Any) -> tuple[float, float]:
    what = "a number of at least 0, or two of them as [in, out]"
    pair = value if isinstance(value, list) else [value, value]
    into, out = _list(_number(False), what, 2)(pair)
    return into, out


def _coord(value: Any) -> Coord:
    row, col = _list(_whole(0), "", 2)(value)
    return Coord(row, col)


_COORDS = _list(_coord, "a list of [row, col] pairs of whole numbers from 0")
_INDICES = _list(_whole(0), "a list of whole numbers from 0")
_POSITIVE, _NONNEGATIVE = _number(True), _number(False)
_RATES: dict[str, Field] = {d: Field(_POSITIVE) for d in RATE_DTYPES}

# Table → field → how it is read. "dram" and "ports" are lists of tables; the values of the optional
# tables stand here because a table that is present has the documented defaults.
TABLES: dict[str, dict[str, Field]] = {
    "": {
        "name": Field(_text, REQUIRED),
        "source": Field(_text, REQUIRED),
        "rows": Field(_whole(1), REQUIRED),
        "cols": Field(_whole(1), REQUIRED),
        "clock_hz": Field(_POSITIVE, REQUIRED),
        "dead_cores": Field(_COORDS),
        "dead_rows": Field(_INDICES),
        "dead_cols": Field(_INDICES),
        "dead_cores_forward": Field(_flag),
    },
    "core": {
        "sram_bytes": Field(_whole(1), REQUIRED),
        "reserved_bytes": Field(_whole(0)),
        "sram_bytes_per_cycle": Field(_POSITIVE, REQUIRED),
        "mac_tile": Field(_list(_whole(1), "three whole numbers of at least 1: [m, k, n]", 3)),
        "mac_start_cycles": Field(_NONNEGATIVE),
        "mac_operand_bytes_per_cycle": Field(_NONNEGATIVE),
        "kernel_cycles": Field(_NONNEGATIVE),
        "overlap": Field(_flag),
    },
    "core.macs_per_cycle": _RATES,
    "core.matvec_macs_per_cycle": _RATES,
    "core.vector_ops_per_cycle": _RATES,
    "core.array": {
        "rows": Field(_whole(1), REQUIRED),
        "cols": Field(_whole(1), REQUIRED),
        "dataflow": Field(_one_of("ws", "os", "is")),
        "overlap_load": Field(_flag),
    },
    "noc": {
        "topology": Field(_one_of("mesh", "torus", "exchange")),
        "networks": Field(_whole(1, MOST_NETWORKS)),
        "one_way": Field(_flag),
        "link_bytes_per_cycle": Field(_POSITIVE, REQUIRED),
        "hop_cycles": Field(_NONNEGATIVE),
        "ramp_cycles": Field(_ramp),
        "message_cycles": Field(_NONNEGATIVE),
        "collective_cycles": Field(_NONNEGATIVE),
        "step_cycles": Field(_NONNEGATIVE),
        "streaming_reduce": Field(_flag),
        "shift_cycles": Field(_NONNEGATIVE),
        "virtual_channels": Field(_whole(1)),
        "flit_bytes": Field(_NONNEGATIVE),
        "buffer_flits": Field(_whole(0)),
        "inject_bytes_per_cycle": Field(_NONNEGATIVE),
        "eject_bytes_per_cycle": Field(_NONNEGATIVE),
        "max_routes": Field(_whole(0)),
        "multicast": Field(_flag),
        "sync_cycles": Field(_NONNEGATIVE),
    },
    "dram": {
        "row": Field(_whole(0), 0),
        "col": Field(_whole(0), 0),
        "bytes_per_cycle": Field(_POSITIVE, 32),
        "latency_cycles": Field(_NONNEGATIVE, 100),
        "capacity_bytes": Field(_whole(1), 12_000_000_000),
    },
    "ports": {
        "cores": Field(_COORDS, REQUIRED),
        "inject_bytes_per_cycle": Field(_NONNEGATIVE),
        "eject_bytes_per_cycle": Field(_NONNEGATIVE),
    },
    "seams": {
        "rows": Field(_whole(1), 8),
        "cols": Field(_whole(1), 8),
        "link_bytes_per_cycle": Field(_POSITIVE, 4),
        "hop_cycles": Field(_NONNEGATIVE, 200),
    },
    "energy": {
        "sram_pj_per_byte": Field(_NONNEGATIVE, 1.0),
        "hop_pj_per_byte": Field(_NONNEGATIVE, 0.2),
        "dram_pj_per_byte": Field(_NONNEGATIVE, 20.0),
        "idle_watts": Field(_NONNEGATIVE, 0.0),
    },
    "energy.mac_pj": {d: Field(_NONNEGATIVE) for d in RATE_DTYPES},
}
