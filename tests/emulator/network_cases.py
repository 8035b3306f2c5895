"""Chips, batches and recorded traffic for tests of the network alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from meshc.emulator.batch import Batch
from meshc.ir.chip import ChipSpec

from .handmade import chip

HERE = Path(__file__).parents[1] / "data" / "network"
SHARED = Path(__file__).parents[3] / "shared" / "groundtruth"

# The routers of the recorded traffic as a chip spec says them.
ROUTERS: dict[str, dict[str, Any]] = {
    "vc8": {"virtual_channels": 8, "buffer_flits": 8},
    "vc2": {"virtual_channels": 2, "buffer_flits": 8},
    "wh1": {"virtual_channels": 1, "buffer_flits": 8},
    "wh1d4": {"virtual_channels": 1, "buffer_flits": 4},
    "fast1": {"virtual_channels": 1, "buffer_flits": 8, "hop_cycles": 3, "ramp_cycles": (3, 2)},
    "vc8rc": {"virtual_channels": 8, "buffer_flits": 8, "hop_cycles": 5, "ramp_cycles": (4, 3)},
}


def router_chip(router: str, k: int) -> ChipSpec:
    """A mesh of k × k with one of the routers."""
    return chip(k, k, **ROUTERS[router])


def batch(rows: Any, networks: Any = 0, after: Any = ()) -> Batch:
    """Messages from rows (ready, source, target, bytes) and pairs (later, earlier)."""
    table = np.asarray(rows, np.int64).reshape(-1, 4)
    pairs = np.asarray(after, np.int32).reshape(-1, 2)
    return Batch(
        table[:, 0].copy(),
        table[:, 1].astype(np.int32),
        table[:, 2].astype(np.int32),
        table[:, 3].copy(),
        np.broadcast_to(np.asarray(networks, np.int32), len(table)).copy(),
        pairs[:, 0].copy(),
        pairs[:, 1].copy(),
    )


def random_batch(
    seed: int, cores: int, count: int, *, most: int = 12, span: int = 60, networks: int = 1
) -> Batch:
    """Random messages of up to `most` bytes within `span` cycles."""
    rng = np.random.default_rng(seed)
    rows = np.stack(
        [
            np.sort(rng.integers(0, span, count)),
            rng.integers(0, cores, count),
            rng.integers(0, cores, count),
            rng.integers(1, most + 1, count),
        ],
        axis=1,
    )
    return batch(rows, rng.integers(0, networks, count))


def trace(folder: Path, name: str) -> Batch:
    """A recorded trace."""
    with gzip.open(folder / f"{name}.trace.gz") as file:
        return batch(np.loadtxt(file, np.int64, comments="#", ndmin=2))


def tails(folder: Path, name: str, router: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """When each packet of a recorded trace arrived."""
    with gzip.open(folder / f"{name}.{router}.csv.gz", "rt") as file:
        table = np.genfromtxt(file, np.int64, delimiter=",", names=True)
    return np.sort(table, order="id")["atime_tail"]


def index() -> list[dict[str, Any]]:
    """What was recorded of every trace and router; empty where it is not there."""
    file = SHARED / "network" / "index.json"
    return json.loads(file.read_text()) if file.exists() else []
