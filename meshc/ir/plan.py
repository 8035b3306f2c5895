"""The plan: how each op is divided over its region, and which collective finishes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshc.ir.layout import Axis, Layout


@dataclass(frozen=True)
class OpPlan:
    """The choice for one op.

    assignment: for each mesh axis (row, col) the index of the iteration dimension of the op's
        space that it divides, or None.
    inputs, output: layouts of the operands that follow from it.
    reduce: axes over which the output holds partial results that an all-reduce joins.
    groups: for each reduced axis, the number of groups of the reduction tree.
    predicted_cycles: the cost model's time for one execution.
    """

    op: str
    assignment: tuple[int | None, int | None]
    inputs: tuple[Layout, ...]
    output: Layout
    reduce: tuple[Axis, ...] = ()
    groups: tuple[int, ...] = ()
    predicted_cycles: float = 0.0


@dataclass(frozen=True)
class Stage:
    """A run of layers on one region: repetitions [first, last) of each segment it executes."""

    name: str
    segments: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Plan:
    """The mapping of one phase before placement.

    rows, cols: shape of every stage's region.   stages: in order of execution.
    carried: layouts of the tensors that pass from layer to layer.
    form: the forms of the kernels that are planned, see `meshc.patterns`.
    joined: groups of ops that read one tensor and whose partial results one all-reduce joins.
    """

    phase: str
    strategy: str
    rows: int
    cols: int
    stages: tuple[Stage, ...]
    ops: dict[str, OpPlan]
    carried: dict[str, Layout]
    predicted_cycles: float = 0.0
    form: tuple[str, ...] = ()
    joined: tuple[tuple[str, ...], ...] = ()

    def dump(self) -> str:
        lines = [f"plan {self.phase} {self.strategy} region {self.rows}x{self.cols}"]
        lines.append(f"forms {' '.join(self.form) or 'none'}")
        for s in self.stages:
            lines.append(f"stage {s.name} " + " ".join(f"{n}[{a}:{b}]" for n, a, b in s.segments))
        lines += [f"  carried {n} {layout}" for n, layout in self.carried.items()]
        lines += [f"  joined {' '.join(group)}" for group in self.joined]
        for p in self.ops.values():
            lines.append(
                f"  {p.op} assign={p.assignment} in={' '.join(map(str, p.inputs))} "
                f"out={p.output} reduce={','.join(p.reduce)} groups={p.groups} "
                f"cycles={p.predicted_cycles:.0f}"
            )
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class SolveStats:
    """What one solve did; `status` is "optimal", "gap", "time-limit", "heuristic" or "infeasible".

    objective, bound and heuristic_objective are in the solve's own unit (see `stage`); gap is
    (objective - bound) / objective.
    """

    stage: str
    scope: str
    solver: str
    status: str
    objective: float
    bound: float
    gap: float
    seconds: float
    variables: int
    constraints: int
    heuristic_objective: float

    def record(self) -> dict[str, Any]:
        return dict(vars(self))
