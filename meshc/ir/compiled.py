"""What a compilation asks for and yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshc.ir.chip import ChipSpec
from meshc.ir.graph import Graph
from meshc.ir.placement import Placement
from meshc.ir.plan import Plan, SolveStats
from meshc.ir.program import Program
from meshc.ir.routing import Routing
from meshc.ir.workload import Workload


@dataclass(frozen=True)
class CompileOptions:
    """Everything that `meshc compile` was asked for; None leaves a choice to its default."""

    chip: str
    overrides: tuple[str, ...] = ()
    phase: str | None = None
    batch: int | None = None
    prompt: int | None = None
    context: int | None = None
    max_context: int | None = None
    decode_model: str | None = None
    dims: tuple[tuple[str, int], ...] = ()
    strategy: str = "auto"
    settings: tuple[tuple[str, str], ...] = ()
    grid: tuple[int, int] | None = None
    solver: str = "ilp"
    gap: float = 0.01
    time_limit: float = 10.0
    seed: int = 0
    dynamic_mask: bool = False
    fusion: bool = True
    recognition: bool = True
    experts: tuple[tuple[float, ...], ...] = ()
    dtype: str = "keep"  # as --dtype says it


@dataclass(frozen=True)
class MemoryMap:
    """Sizes of the parts of a lane's SRAM in bytes.

    step_bytes, arena_bytes: per program, of its inputs and constants and of its activations.
    persistent_bytes: where they begin.   needed: what the fullest lane uses at its peak.
    """

    weight_bytes: int
    kv_bytes: int
    persistent_bytes: int
    step_bytes: tuple[int, ...]
    arena_bytes: tuple[int, ...]
    needed: int


@dataclass(frozen=True)
class CompiledPhase:
    """One phase of a compiled model. graph: not stored; bound again when needed."""

    model_path: str
    model_sha256: str
    workload: Workload
    plan: Plan
    routing: Routing
    program: Program
    predicted_cycles: float
    graph: Graph | None = None


@dataclass(frozen=True)
class Compiled:
    """A compiled model: what `meshc compile` writes and `meshc run` reads."""

    model: dict[str, Any]
    chip: ChipSpec
    options: CompileOptions
    placement: Placement
    phases: dict[str, CompiledPhase]
    memory: MemoryMap
    solves: tuple[SolveStats, ...]
    seconds: dict[str, float]
    version: str = ""
