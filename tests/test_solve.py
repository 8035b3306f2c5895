"""Choice problems: the ILP against enumeration, honest statistics, quiet solvers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from meshc.errors import InputError, InvariantError
from meshc.solve import Choice, ChoiceProblem, Conflict, Limit, Pair, Peak, solve


def brute_force(problem: ChoiceProblem) -> float:
    """Least objective over every assignment; inf when none is allowed."""
    ranges = [range(len(c.costs)) for c in problem.choices]
    return min((problem.objective(o) for o in itertools.product(*ranges)), default=math.inf)


def random_problem(seed: int, scale: float = 100.0) -> ChoiceProblem:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    sizes = [int(rng.integers(1, 5)) for _ in range(count)]
    choices = tuple(
        Choice(f"c{i}", tuple((rng.integers(0, 20, n) * scale).tolist()))
        for i, n in enumerate(sizes)
    )
    pairs = []
    for a, b in itertools.combinations(range(count), 2):
        if rng.random() < 0.6:
            costs = rng.integers(0, 15, (sizes[a], sizes[b])) * scale
            costs[rng.random(costs.shape) < 0.25] = np.inf
            pairs.append(Pair(a, b, costs) if rng.random() < 0.5 else Pair(b, a, costs.T.copy()))
    limits = []
    for i in range(int(rng.integers(0, 3))):
        terms = tuple(
            (c, rng.integers(0, 50_000, sizes[c]).astype(float))
            for c in range(count)
            if rng.random() < 0.8
        )
        pair_terms = tuple(
            (p, rng.integers(0, 20_000, pair.costs.shape).astype(float))
            for p, pair in enumerate(pairs)
            if rng.random() < 0.3
        )
        limits.append(Limit(f"l{i}", terms, float(rng.integers(20_000, 120_000)), pair_terms))
    peaks = []
    for i in range(int(rng.integers(0, 3))):
        loads = tuple(
            tuple(
                (c, rng.integers(0, 30, sizes[c]).astype(float))
                for c in range(count)
                if rng.random() < 0.6
            )
            for _ in range(int(rng.integers(1, 5)))
        )
        base = tuple(rng.integers(0, 20, len(loads)).astype(float)) if rng.random() < 0.5 else ()
        peaks.append(Peak(f"p{i}", float(rng.integers(1, 4)) * scale, loads, base))
    conflicts = []
    for _ in range(int(rng.integers(0, 4))):
        members = rng.choice(count, size=int(rng.integers(1, count + 1)), replace=False)
        conflicts.append(Conflict(tuple((int(c), int(rng.integers(sizes[c]))) for c in members)))
    return ChoiceProblem(
        "test", str(seed), choices, tuple(pairs), tuple(limits), tuple(peaks), tuple(conflicts)
    )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e7])
@pytest.mark.parametrize("seed", range(60))
def test_ilp_finds_the_optimum(seed: int, scale: float) -> None:
    problem = random_problem(seed, scale)
    best = brute_force(problem)
    answer, stats = solve(problem, gap=0.0)
    if math.isinf(best):
        assert answer is None
        assert stats.status == "infeasible"
        return
    assert answer is not None
    assert stats.status == "optimal"
    assert answer.objective == pytest.approx(best, rel=1e-6)
    assert answer.objective == problem.objective(answer.options)
    assert stats.bound <= stats.objective <= stats.heuristic_objective


@pytest.mark.parametrize("solver", ["greedy", "anneal"])
@pytest.mark.parametrize("seed", range(40))
def test_heuristics_are_allowed_and_honest(seed: int, solver: str) -> None:
    problem = random_problem(seed)
    best = brute_force(problem)
    answer, stats = solve(problem, solver=solver)
    if math.isinf(best):
        assert answer is None
        assert stats.status == "infeasible"
        return
    assert answer is not None
    assert best - 1e-6 <= answer.objective < math.inf
    assert stats.bound <= best + 1e-6 * abs(best)
    assert stats.status in ("optimal", "heuristic")


def hard_problem(choices: int, options: int, pairs: int, seed: int = 0) -> ChoiceProblem:
    """Dense random pair costs, which no relaxation proves quickly."""
    rng = np.random.default_rng(seed)
    edges = list(itertools.combinations(range(choices), 2))
    chosen = sorted(rng.choice(len(edges), size=pairs, replace=False).tolist())
    return ChoiceProblem(
        "test",
        "hard",
        tuple(Choice(f"c{i}", tuple(rng.random(options) * 1e6)) for i in range(choices)),
        tuple(
            Pair(*edges[e], costs=np.round(rng.random((options, options)) * 1e6)) for e in chosen
        ),
    )


def test_time_limit_is_reported_as_such() -> None:
    problem = hard_problem(30, 12, 250)
    answer, stats = solve(problem, gap=0.0, time_limit=1.0)
    assert answer is not None
    assert stats.status == "time-limit"
    assert stats.gap > 0.01
    assert stats.bound < stats.objective <= stats.heuristic_objective
    assert stats.gap == pytest.approx((stats.objective - stats.bound) / stats.objective)
    assert stats.seconds < 8.0


def test_requested_gap_is_reported_as_such() -> None:
    problem = hard_problem(9, 6, 20, seed=3)
    exact, _ = solve(problem, gap=0.0, time_limit=60.0)
    loose, stats = solve(problem, gap=0.9)
    assert exact is not None and loose is not None
    assert stats.status in ("gap", "optimal")
    assert stats.bound <= exact.objective * (1 + 1e-9)
    assert loose.objective <= stats.bound / (1 - 0.9) + 1e-6


@pytest.mark.parametrize("seed", range(12))
def test_cbc_where_highs_is_missing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pulp = pytest.importorskip("pulp")
    if not pulp.PULP_CBC_CMD(msg=False).available():
        pytest.skip("this PuLP carries no CBC")
    monkeypatch.setattr(pulp.HiGHS, "available", lambda self: False)
    problem = random_problem(seed)
    best = brute_force(problem)
    answer, stats = solve(problem, gap=0.0, time_limit=30.0)
    if math.isinf(best):
        assert (answer, stats.status) == (None, "infeasible")
        return
    assert answer is not None
    assert answer.objective == pytest.approx(best, rel=1e-6)
    assert (stats.status, stats.bound <= best * (1 + 1e-9)) == ("optimal", True)


def test_two_options_of_one_choice_never_conflict() -> None:
    problem = ChoiceProblem(
        "test",
        "x",
        (Choice("a", (1.0, 2.0)), Choice("b", (1.0, 2.0))),
        conflicts=(Conflict(((0, 0), (0, 1))), Conflict(((0, 0), (1, 0)))),
    )
    answer, _ = solve(problem, gap=0.0)
    assert answer is not None
    assert answer.objective == 3.0


def test_same_problem_same_answer() -> None:
    problem = hard_problem(8, 6, 16, seed=5)
    for solver in ("ilp", "greedy", "anneal"):
        first, _ = solve(problem, solver=solver, time_limit=60.0)
        second, _ = solve(problem, solver=solver, time_limit=60.0)
        assert first == second


def test_never_worse_than_a_start() -> None:
    problem = hard_problem(30, 12, 250)
    good, _ = solve(problem, solver="anneal")
    assert good is not None
    again, stats = solve(problem, time_limit=1.0, starts=[good.options])
    assert again is not None
    assert again.objective <= good.objective
    assert stats.heuristic_objective <= good.objective


def test_problem_without_freedom() -> None:
    problem = ChoiceProblem("test", "fixed", (Choice("a", (3.0,)), Choice("b", (4.0,))))
    answer, stats = solve(problem)
    assert answer is not None
    assert (answer.options, answer.objective, stats.status) == ((0, 0), 7.0, "optimal")
    empty, stats = solve(ChoiceProblem("test", "empty", ()))
    assert empty is not None
    assert (empty.options, empty.objective, stats.status) == ((), 0.0, "optimal")
    nothing, stats = solve(ChoiceProblem("test", "none", (Choice("a", ()),)))
    assert nothing is None
    assert stats.status == "infeasible"


def test_byte_limits_are_exact() -> None:
    """One byte too many is too many, at a megabyte as well."""
    for capacity, expected in ((1_000_000.0, 5.0), (999_999.0, 9.0)):
        problem = ChoiceProblem(
            "test",
            "bytes",
            (Choice("a", (1.0, 5.0)), Choice("b", (4.0, 4.0))),
            limits=(
                Limit(
                    "sram",
                    ((0, np.array([600_000.0, 1.0])), (1, np.array([400_000.0, 400_000.0]))),
                    capacity,
                ),
            ),
        )
        answer, stats = solve(problem, gap=0.0)
        assert answer is not None
        assert (answer.objective, stats.status) == (expected, "optimal")


def test_solvers_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    solve(hard_problem(8, 6, 16))
    solve(random_problem(3))
    assert capfd.readouterr() == ("", "")


def test_unknown_solver() -> None:
    with pytest.raises(InputError) as error:
        solve(ChoiceProblem("test", "x", ()), solver="gurobi")
    assert str(error.value) == "solver gurobi is not known; choose one of ilp, greedy, anneal."


def test_malformed_problem() -> None:
    problem = ChoiceProblem(
        "test", "x", (Choice("a", (1.0,)), Choice("b", (1.0, 2.0))), (Pair(0, 1, np.zeros((2, 2))),)
    )
    with pytest.raises(InvariantError, match="pair 0 of the test problem"):
        solve(problem)
