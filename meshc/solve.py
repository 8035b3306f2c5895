"""Solvers of choice problems; the only user of PuLP.

`solve` returns the options taken and the statistics of how sure that answer is. The integer
program is solved by HiGHS (CBC when highspy is missing), starts from the heuristic answer and
never returns a worse one. What is reported is checked here: the objective is recomputed from the
options by the problem's own evaluation, and the bound is the solver's proven one, because PuLP
calls a solve "Optimal" even when HiGHS ran out of time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pulp  # type: ignore[import-untyped]

from meshc.choice import (
    Choice,
    ChoiceProblem,
    Conflict,
    Floats,
    Limit,
    Options,
    Pair,
    Peak,
    reduce_problem,
)
from meshc.errors import InputError
from meshc.heuristic import anneal, greedy
from meshc.ir.plan import SolveStats

__all__ = [
    "SOLVERS",
    "Assignment",
    "Choice",
    "ChoiceProblem",
    "Conflict",
    "Limit",
    "Pair",
    "Peak",
    "solve",
]

Solver = Literal["ilp", "greedy", "anneal"]
SOLVERS: tuple[Solver, ...] = ("ilp", "greedy", "anneal")
OPTIMAL_GAP = 1e-6


@dataclass(frozen=True)
class Assignment:
    """options: index of the option taken for every choice.   objective: its total cost."""

    options: Options
    objective: float


@dataclass(frozen=True)
class _Outcome:
    """What the integer program gave: options (None: none found), proven bound, model size."""

    options: Options | None
    bound: float
    infeasible: bool
    variables: int
    constraints: int


def solve(
    problem: ChoiceProblem,
    *,
    solver: str = "ilp",
    gap: float = 0.01,
    time_limit: float = 10.0,
    seed: int = 0,
    starts: Sequence[Options] = (),
) -> tuple[Assignment | None, SolveStats]:
    """The cheapest assignment found, or None, and how it was found.

    solver: "ilp", "greedy" or "anneal".   gap: relative distance to the proven bound at which the
    ILP may stop.   time_limit: seconds.   starts: known assignments that the answer may not be
    worse than.   None comes with status "infeasible" when that is proven, else "time-limit".
    Raises InputError for an unknown solver and InvariantError for a malformed problem.
    """
    if solver not in SOLVERS:
        raise InputError(f"solver {solver} is not known; choose one of {', '.join(SOLVERS)}.")
    problem.verify()
    begin = time.monotonic()
    deadline = begin + time_limit
    reduced = reduce_problem(problem)
    if reduced is None:
        return None, _stats(problem, solver, "infeasible", None, math.inf, None, begin, 0, 0)
    small = reduced.problem
    known = [r for r in map(reduced.restrict, starts) if r is not None]
    size = (0, 0)
    bound = small.lower_bound()
    if not small.choices:
        options: Options | None = ()
        if small.violations(()):
            return None, _stats(problem, solver, "infeasible", None, math.inf, None, begin, 0, 0)
        found, bound = options, small.objective(())
    else:
        effort = 20_000 if solver == "greedy" else 4_000
        if solver == "anneal":
            found = anneal(small, known, seed, deadline=deadline)
        else:
            share = 1.0 if solver == "greedy" else 0.3
            found = greedy(small, known, seed, effort, begin + share * time_limit)
    heuristic = None if found is None else reduced.restore(found)
    infeasible = False
    proven = found is not None and math.isfinite(problem.known_bound)
    if proven and found is not None:
        limit = max(gap, OPTIMAL_GAP) if solver == "ilp" else math.inf
        cost = small.objective(found) + reduced.constant
        proven = _relative_gap(cost, bound + reduced.constant) <= limit
    if small.choices and not proven and (solver == "ilp" or found is None):
        # The baselines ask the integer program only whether there is any answer at all.
        outcome = _integer_program(small, found, gap if solver == "ilp" else 1e9, deadline, seed)
        size = (outcome.variables, outcome.constraints)
        bound = max(bound, outcome.bound)
        infeasible = outcome.infeasible and found is None
        if outcome.options is not None and (
            found is None or small.objective(outcome.options) < small.objective(found)
        ):
            found = outcome.options
    if found is None:
        status = "infeasible" if infeasible else "time-limit"
        lower = math.inf if infeasible else bound + reduced.constant
        return None, _stats(problem, solver, status, None, lower, None, begin, *size)
    options = reduced.restore(found)
    answer = Assignment(options, problem.objective(options))
    best_known = None if heuristic is None else problem.objective(heuristic)
    status = _status(answer.objective, bound + reduced.constant, gap, solver)
    stats = _stats(
        problem, solver, status, answer, bound + reduced.constant, best_known, begin, *size
    )
    return answer, stats


def _relative_gap(objective: float, bound: float) -> float:
    """(objective - bound) / objective; the larger magnitude divides, so that 0 is no trouble."""
    if objective <= bound:
        return 0.0
    if math.isinf(bound):
        return 1.0
    return (objective - bound) / max(abs(objective), abs(bound))


def _status(objective: float, bound: float, gap: float, solver: str) -> str:
    reached = _relative_gap(objective, bound)
    if reached <= OPTIMAL_GAP:
        return "optimal"
    if solver != "ilp":
        return "heuristic"
    return "gap" if reached <= gap * (1 + 1e-9) else "time-limit"


def _stats(
    problem: ChoiceProblem,
    solver: str,
    status: str,
    answer: Assignment | None,
    bound: float,
    heuristic: float | None,
    begin: float,
    variables: int,
    constraints: int,
) -> SolveStats:
    objective = math.inf if answer is None else answer.objective
    bound = min(bound, objective)
    return SolveStats(
        stage=problem.stage,
        scope=problem.scope,
        solver=solver,
        status=status,
        objective=objective,
        bound=bound,
        gap=_relative_gap(objective, bound) if answer is not None else 1.0,
        seconds=time.monotonic() - begin,
        variables=variables,
        constraints=constraints,
        heuristic_objective=math.inf if heuristic is None else heuristic,
    )


class _Model:
    """The integer program of a reduced problem, with costs and limits scaled for numerics.

    x[c][o] = 1 when choice c takes option o. A pair has flow variables y[a, b] between the classes
    of its options that behave alike (equal costs up to a constant, which moves to the options), so
    that sum over b of y[a, b] = sum of x in class a, and likewise for b.
    """

    def __init__(self, problem: ChoiceProblem) -> None:
        self.problem = problem
        self.lp = pulp.LpProblem("choice", pulp.LpMinimize)
        # PuLP 3.3.0 has no add_variable; later ones warn about the constructor.
        self.variable = getattr(self.lp, "add_variable", pulp.LpVariable)
        self.unary: list[Floats] = [np.array(c.costs, float) for c in problem.choices]
        self.objective: list[tuple[Any, float]] = []
        self.rows = 0
        self.x = [
            [self.variable(f"x_{c}_{o}", cat="Binary") for o in range(len(u))]
            for c, u in enumerate(self.unary)
        ]
        for c in range(len(self.x)):
            self._row([(v, 1.0) for v in self.x[c]], "=", 1.0)
        self.y: list[tuple[dict[tuple[int, int], Any], Any, Any]] = []
        self.shared = [[] for _ in problem.pairs]  # type: list[list[Floats]]
        for limit in problem.limits:
            for p, amounts in limit.pair_terms:
                self.shared[p].append(amounts)
        for index in range(len(problem.pairs)):
            self._pair(index)
        for limit in problem.limits:
            self._limit(limit)
        for conflict in problem.conflicts:
            self.forbid(conflict.items)
        self.tops = [self._peak(i, peak) for i, peak in enumerate(problem.peaks)]
        self.constant = 0.0
        for c, costs in enumerate(self.unary):
            least = float(costs.min())
            self.constant += least
            self.objective += [(self.x[c][o], v - least) for o, v in enumerate(costs.tolist())]
        largest = max((abs(v) for _, v in self.objective), default=0.0)
        self.scale = 1e3 / largest if largest > 0 else 1.0
        self.lp.setObjective(
            pulp.LpAffineExpression([(v, k * self.scale) for v, k in self.objective])
        )

    def _row(self, terms: list[tuple[Any, float]], sense: str, right: float) -> None:
        kinds = {"=": pulp.LpConstraintEQ, "<": pulp.LpConstraintLE}
        expression = pulp.LpAffineExpression(terms)
        self.lp.addConstraint(pulp.LpConstraint(expression, kinds[sense], f"r{self.rows}", right))
        self.rows += 1

    def _pair(self, index: int) -> None:
        pair = self.problem.pairs[index]
        costs = pair.costs.copy()
        for axis, owner in ((1, pair.first), (0, pair.second)):
            finite = np.where(np.isfinite(costs), costs, np.inf)
            least = finite.min(axis)
            self.unary[owner] = self.unary[owner] + least
            costs = costs - np.expand_dims(least, axis)
        # Rounding must not split classes; 1e-12 of the largest cost is below any meaning.
        finite = costs[np.isfinite(costs)]
        grain = max(float(np.abs(pair.costs[np.isfinite(pair.costs)]).max(initial=0.0)), 1e-300)
        key = np.where(np.isfinite(costs), np.round(costs / (grain * 1e-12)), np.inf)
        stacked = np.stack([key, *self.shared[index]])
        row_class = _classes(stacked.transpose(1, 0, 2).reshape(stacked.shape[1], -1))
        col_class = _classes(stacked.transpose(2, 0, 1).reshape(stacked.shape[2], -1))
        row_first = np.unique(row_class, return_index=True)[1]
        col_first = np.unique(col_class, return_index=True)[1]
        y: dict[tuple[int, int], Any] = {}
        for a, i in enumerate(row_first.tolist()):
            for b, j in enumerate(col_first.tolist()):
                if np.isfinite(costs[i, j]):
                    y[a, b] = self.variable(f"y_{index}_{a}_{b}", 0)
                    if costs[i, j] > 0:
                        self.objective.append((y[a, b], float(costs[i, j])))
        self.y.append((y, row_class, col_class))
        by_row: list[list[tuple[Any, float]]] = [[] for _ in row_first]
        by_col: list[list[tuple[Any, float]]] = [[] for _ in col_first]
        for (a, b), v in y.items():
            by_row[a].append((v, 1.0))
            by_col[b].append((v, 1.0))
        for lists, classes, owner in (
            (by_row, row_class, pair.first),
            (by_col, col_class, pair.second),
        ):
            for k, terms in enumerate(lists):
                members = [(self.x[owner][o], -1.0) for o in np.flatnonzero(classes == k).tolist()]
                self._row(terms + members, "=", 0.0)

    def _limit(self, limit: Limit) -> None:
        amounts = [float(np.abs(a).max()) for _, a in (*limit.terms, *limit.pair_terms)]
        scale = 1e3 / (max([abs(limit.capacity), *amounts]) or 1.0)
        terms = [
            (self.x[c][o], v * scale)
            for c, a in limit.terms
            for o, v in enumerate(a.tolist())
            if v != 0
        ]
        for p, a in limit.pair_terms:
            y, row_class, col_class = self.y[p]
            row_first = np.unique(row_class, return_index=True)[1]
            col_first = np.unique(col_class, return_index=True)[1]
            for (i, j), v in y.items():
                amount = float(a[row_first[i], col_first[j]])
                if amount != 0:
                    terms.append((v, amount * scale))
        self._row(terms, "<", limit.capacity * scale)

    def _peak(self, index: int, peak: Peak) -> tuple[Any, float]:
        largest = max((float(np.abs(a).max()) for cell in peak.loads for _, a in cell), default=0.0)
        unit = largest or 1.0
        top = self.variable(f"t_{index}")
        for i, cell in enumerate(peak.loads):
            terms = [
                (self.x[c][o], v / unit)
                for c, a in cell
                for o, v in enumerate(a.tolist())
                if v != 0
            ]
            self._row([*terms, (top, -1.0)], "<", -peak.constant(i) / unit)
        self.objective.append((top, peak.weight * unit))
        return top, unit

    def forbid(self, items: tuple[tuple[int, int], ...]) -> None:
        """Not all of these (choice, option) items together."""
        self._row([(self.x[c][o], 1.0) for c, o in items], "<", len(items) - 1.0)

    def start(self, options: Options) -> dict[str, float]:
        """Values of all variables that describe an assignment."""
        values = {self.x[c][o].name: 1.0 for c, o in enumerate(options)}
        for pair, (y, row_class, col_class) in zip(self.problem.pairs, self.y, strict=True):
            key = (int(row_class[options[pair.first]]), int(col_class[options[pair.second]]))
            values[y[key].name] = 1.0
        for peak, (top, unit) in zip(self.problem.peaks, self.tops, strict=True):
            values[top.name] = peak.largest(options) / unit
        return values

    def options(self) -> Options | None:
        """The assignment that the solver's values mean; None when it has no solution."""
        values = [[v.varValue for v in row] for row in self.x]
        if any(v is None for row in values for v in row):
            return None
        return tuple(int(np.argmax(row)) for row in values)


def _classes(rows: Floats) -> Any:
    """Class number of every row; equal rows share one. Numbered in order of appearance."""
    numbers: dict[bytes, int] = {}
    rows = np.ascontiguousarray(rows + 0.0)  # -0.0 becomes 0.0
    return np.array([numbers.setdefault(r.tobytes(), len(numbers)) for r in rows], np.intp)


def _integer_program(
    problem: ChoiceProblem, start: Options | None, gap: float, deadline: float, seed: int
) -> _Outcome:
    """Solve a reduced problem; an answer that rounding made wrong is cut off and solved again."""
    model = _Model(problem)
    best: Options | None = None
    bound = -math.inf
    for _ in range(20):
        size = (len(model.lp.variables()), model.rows)
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            return _Outcome(best, bound, False, *size)
        infeasible, solver_bound = _run(model, start, gap, seconds, seed)
        if infeasible:
            return _Outcome(best, bound, best is None, *size)
        bound = max(bound, solver_bound)
        options = model.options()
        if options is None:
            return _Outcome(best, bound, False, *size)
        broken = problem.violations(options)
        if not broken:
            return _Outcome(options, bound, False, *size)
        for items in broken:
            model.forbid(items)
    return _Outcome(best, bound, False, *size)


def _run(
    model: _Model, start: Options | None, gap: float, seconds: float, seed: int
) -> tuple[bool, float]:
    """Run HiGHS or CBC once: (proven infeasible, proven lower bound of the problem's objective)."""
    if pulp.HiGHS(msg=False).available():
        return _run_highs(model, start, gap, seconds, seed)
    solver = pulp.PULP_CBC_CMD(
        msg=False, timeLimit=max(seconds, 0.1), gapRel=gap, threads=1, options=[f"randomS {seed}"]
    )
    model.lp.solve(solver)
    if model.lp.status == pulp.LpStatusInfeasible:
        return True, math.inf
    if model.lp.sol_status == pulp.LpSolutionOptimal:
        value = float(pulp.value(model.lp.objective) or 0.0)
        proven = value - gap * (abs(value) + abs(model.constant * model.scale))
        return False, proven / model.scale + model.constant
    if model.lp.sol_status != pulp.LpSolutionIntegerFeasible:
        for row in model.x:
            for variable in row:
                variable.varValue = None
    return False, -math.inf


def _run_highs(
    model: _Model, start: Options | None, gap: float, seconds: float, seed: int
) -> tuple[bool, float]:
    import highspy

    settings = {
        "threads": 1,
        "parallel": "off",
        "random_seed": seed,
        "time_limit": float(seconds),
        "mip_rel_gap": float(gap),
        "mip_abs_gap": 1e-9,
    }

    class Quiet(highspy.Highs):  # type: ignore[misc, unused-ignore]
        """HiGHS logs its name at its first use, before an option can be set from outside."""

        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call, unused-ignore]

    class Solver(pulp.HiGHS):  # type: ignore[misc]
        """PuLP's interface, with the objective's constant and a starting solution passed on."""

        def createAndConfigureSolver(self, lp: Any) -> None:
            lp.solverModel = Quiet()  # type: ignore[no-untyped-call, unused-ignore]
            lp.solverModel.setOptionValue("output_flag", False)
            for name, value in settings.items():
                lp.solverModel.setOptionValue(name, value)

        def buildSolverModel(self, lp: Any) -> None:
            super().buildSolverModel(lp)
            lp.solverModel.changeObjectiveOffset(model.constant * model.scale)
            if start is not None:
                values = model.start(start)
                solution = highspy.HighsSolution()
                solution.col_value = [values.get(v.name, 0.0) for v in lp.variables()]
                lp.solverModel.setSolution(solution)

    model.lp.solve(Solver(msg=False))
    highs = model.lp.solverModel
    status = highs.getModelStatus()
    kinds = highspy.HighsModelStatus
    info = highs.getInfo()
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        return True, math.inf
    solved = info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
    if not solved:
        for row in model.x:
            for variable in row:
                variable.varValue = None
    bound = float(info.mip_dual_bound)
    if not math.isfinite(bound):
        return False, -math.inf
    return False, bound / model.scale
