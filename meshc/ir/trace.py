"""What an emulation measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

DIRECTIONS = ("east", "west", "south", "north")


@dataclass(frozen=True)
class Span:
    """One SPMD instruction of one layer on one region.

    start_cycle of the first core that enters it, end_cycle of the last that leaves it.
    compute_cycles, communication_cycles, wait_cycles: means over the region's cores of the time
    in kernels (and local copies, combines), in sending and receiving data, and in waiting for
    other cores.
    """

    position: int
    name: str
    op: str
    kind: str
    layer: int
    region: str
    start_cycle: float
    end_cycle: float
    compute_cycles: float
    communication_cycles: float
    wait_cycles: float
    messages: int = 0
    message_bytes: int = 0


@dataclass(frozen=True)
class Trace:
    """One emulated step.

    Per-core arrays have shape (rows, cols); link arrays (networks, rows, cols, 4) with the last
    axis in the order of DIRECTIONS, indexed by the router that the link leaves.
    finish_cycles: when each core is done.   link_busy_cycles: cycles the link carried data.
    outputs: tensors by the model's names, when tensors were carried.
    routed: (op, layer) → row → the expert that it went to, when tensors were carried.
    state: the cores' memories at the end, when asked for; a later step can start from them.
    """

    cycles: float
    spans: tuple[Span, ...]
    compute_cycles: np.ndarray
    communication_cycles: np.ndarray
    wait_cycles: np.ndarray
    finish_cycles: np.ndarray
    mac_cycles: np.ndarray
    macs: np.ndarray
    sram_bytes: np.ndarray
    link_busy_cycles: np.ndarray
    link_bytes: np.ndarray
    messages: int
    message_bytes: int
    instructions: int
    byte_hops: int
    outputs: dict[str, np.ndarray] | None = None
    mac_by_dtype: dict[str, int] = field(default_factory=dict)
    core_spans: tuple[tuple[int, int, int, float, float], ...] = ()  # row, col, span, start, end
    state: Any = None
    routed: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
