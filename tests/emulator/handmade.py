"""Chips, views and streams written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from meshc.ir.chip import ChipSpec, Coord, CoreSpec, NocSpec
from meshc.ir.routing import Route
from meshc.ir.stream import Action, Copy, Key, Recv, Send, Step, View

XY = Route()


def chip(rows: int = 4, cols: int = 4, core: dict[str, Any] | None = None, **noc: Any) -> ChipSpec:
    """A chip whose network is that of the BookSim traces (1 B/cycle, hop 4, ramps 3)."""
    defaults: dict[str, Any] = {
        "link_bytes_per_cycle": 1,
        "hop_cycles": 4,
        "ramp_cycles": (3, 3),
    }
    top = {k: noc.pop(k) for k in ("seams", "dead_cores", "dead_cores_forward") if k in noc}
    values: dict[str, Any] = {
        "sram_bytes": 4096,
        "sram_bytes_per_cycle": 64,
        "vector_ops_per_cycle": {"fp32": 16, "fp16": 32},
        "macs_per_cycle": {"fp32": 64, "fp16": 128},
    }
    return ChipSpec(
        "handmade",
        "tests",
        rows,
        cols,
        1e9,
        CoreSpec(**(values | (core or {}))),
        NocSpec(**(defaults | noc)),
        **top,
    )


def slow_sends(spec: ChipSpec) -> ChipSpec:
    """The chip with cores that wait until a message has left."""
    return replace(spec, core=replace(spec.core, overlap=False))


def array(address: int, count: int, dtype: str = "int8", part: range | None = None) -> View:
    """A view of a vector, whole or a part of it."""
    return View(address, (count,), (part if part is not None else range(count),), dtype)


def send(key: int, to: Iterable[tuple[int, int]], view: View, route: Route = XY) -> Send:
    return Send((0, 0, key), tuple(Coord(*c) for c in to), view, route)


def recv(key: int, source: tuple[int, int], view: View) -> Recv:
    return Recv((0, 0, key), Coord(*source), view)


def busy(cycles: int, address: int = 3584) -> Copy:
    """A local copy that takes so many cycles at 64 B/cycle of SRAM (at most 16)."""
    return Copy(array(address, 32 * cycles), array(address, 32 * cycles))


def step(*actions: Action, position: int = 0, name: str = "step", layer: int = -1) -> Step:
    return Step(position, name, name, "transfer", layer, actions)


def streams(**cores: list[Step]) -> dict[Coord, list[Step]]:
    """c00=[…], c12=[…]: the core at row 0, col 0 and so on."""
    return {Coord(int(name[1]), int(name[2])): steps for name, steps in cores.items()}


def key(number: int) -> Key:
    return (0, 0, number)
