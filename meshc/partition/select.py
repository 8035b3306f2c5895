"""Plan selection: one candidate per op, chosen by an integer program over a search space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshc.ir.layout import Layout
from meshc.ir.plan import OpPlan, SolveStats
from meshc.partition.space import Fixed, Space, build, kv_bytes, layouts_for
from meshc.solve import solve

Solver = Literal["ilp", "greedy", "anneal"]

__all__ = ["Fixed", "Selection", "Solver", "Space", "build", "choose", "kv_bytes", "layouts_for"]


@dataclass(frozen=True)
class Selection:
    """The solved choice: plans by op, layouts of the carried tensors, predicted cycles (the
    objective without the price of SRAM)."""

    space: Space
    ops: dict[str, OpPlan]
    carried: dict[str, Layout]
    cycles: float


def choose(
    space: Space, *, solver: Solver, gap: float, time_limit: float, seed: int
) -> tuple[Selection | None, SolveStats]:
    """Solve one space; no Selection when it has no answer, or none was found in time."""
    answer, stats = solve(space.problem, solver=solver, gap=gap, time_limit=time_limit, seed=seed)
    if answer is None:
        return None, stats
    n = len(space.names)
    ops = {name: space.options[i][answer.options[i]].plan for i, name in enumerate(space.names)}
    carried = {
        name: layouts[answer.options[n + i]] for i, (name, layouts) in enumerate(space.carried)
    }
    rent = sum(space.rents[i][answer.options[i]] for i in range(n))
    return Selection(space, ops, carried, answer.objective - rent), stats
