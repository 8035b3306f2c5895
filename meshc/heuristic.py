"""Greedy and annealed answers to choice problems; the start and the yardstick of the ILP.

All state of a search is in `Search`: the options taken now, the use of every limit and the load of
every peak cell, kept up to date move by move, so that scoring all options of one choice is a few
array operations. Randomness comes from the seed alone and effort is counted in scores, not
seconds, so that the same problem and seed give the same answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshc.choice import ChoiceProblem, Floats, Options

Indices = np.ndarray[Any, np.dtype[np.intp]]


class Search:
    """A current assignment of a (reduced) problem and the cost of changing it."""

    def __init__(self, problem: ChoiceProblem, start: Sequence[int] | None = None) -> None:
        count = len(problem.choices)
        self.problem = problem
        self.scores = 0
        self.unary: list[Floats] = [np.array(c.costs, float) for c in problem.choices]
        # Per choice: (other choice, finite costs[own, other], forbidden[own, other] or None).
        self.links: list[list[tuple[int, Floats, Floats | None]]] = [[] for _ in range(count)]
        for pair in problem.pairs:
            barred = np.isinf(pair.costs)
            costs = np.where(barred, 0.0, pair.costs)
            forbidden = barred.astype(float) if barred.any() else None
            self.links[pair.first].append((pair.second, costs, forbidden))
            turned = None if forbidden is None else np.ascontiguousarray(forbidden.T)
            self.links[pair.second].append((pair.first, np.ascontiguousarray(costs.T), turned))
        self._index_limits()
        self._index_peaks()
        self.conflicts: list[list[tuple[int, tuple[tuple[int, int], ...]]]] = [
            [] for _ in range(count)
        ]
        for conflict in problem.conflicts:
            for c, o in conflict.items:
                rest = tuple(item for item in conflict.items if item != (c, o))
                self.conflicts[c].append((o, rest))
        spread = [float(np.ptp(u)) for u in self.unary]
        spread += [float(np.ptp(m)) for links in self.links for _, m, _ in links]
        spread += [
            p.weight * sum(float(np.ptp(a)) for _, a in cell)
            for p in problem.peaks
            for cell in p.loads
        ]
        self.spread = max(spread, default=0.0) or 1.0
        self.now: list[int] = [0] * count
        self.set(start if start is not None else [int(np.argmin(u)) for u in self.unary])

    def _index_limits(self) -> None:
        problem = self.problem
        self.capacity = np.array([li.capacity for li in problem.limits], float)
        sizes = []
        for limit in problem.limits:
            amounts = [float(np.abs(a).max()) for _, a in (*limit.terms, *limit.pair_terms)]
            sizes.append(max([abs(limit.capacity), *amounts]) or 1.0)
        self.limit_scale = np.array(sizes, float)
        # Price per amount of every limit, added to costs while `priced` (Lagrange multipliers).
        self.price = np.zeros(len(sizes))
        self.priced = False
        members: list[dict[int, Floats]] = [{} for _ in problem.choices]
        self.limit_pairs: list[list[tuple[int, int, Floats]]] = [[] for _ in problem.choices]
        for index, limit in enumerate(problem.limits):
            for c, a in limit.terms:
                members[c][index] = members[c].get(index, 0.0) + a
            for p, a in limit.pair_terms:
                pair = problem.pairs[p]
                self.limit_pairs[pair.first].append((index, pair.second, a))
                self.limit_pairs[pair.second].append((index, pair.first, a.T))
                members[pair.first].setdefault(index, np.zeros(a.shape[0]))
                members[pair.second].setdefault(index, np.zeros(a.shape[1]))
        self.limit_cells: list[Indices] = [np.array(sorted(m), np.intp) for m in members]
        self.limit_amounts: list[Floats] = [
            np.stack([m[i] for i in sorted(m)], 1) if m else np.zeros((len(u), 0))
            for m, u in zip(members, self.unary, strict=True)
        ]

    def _index_peaks(self) -> None:
        # Per choice and peak: (peak, touched cells, loads[option, touched cell]).
        self.peak_loads: list[list[tuple[int, Indices, Floats]]] = [[] for _ in self.unary]
        for p, peak in enumerate(self.problem.peaks):
            for c, (cells, loads) in peak.by_choice.items():
                self.peak_loads[c].append((p, cells, loads))

    def set(self, options: Sequence[int]) -> None:
        """Take this assignment and recompute all sums."""
        self.now = list(options)
        self.usage = np.zeros(len(self.problem.limits))
        for c, o in enumerate(self.now):
            np.add.at(self.usage, self.limit_cells[c], self.limit_amounts[c][o])
        for index, limit in enumerate(self.problem.limits):
            for p, a in limit.pair_terms:
                pair = self.problem.pairs[p]
                self.usage[index] += a[self.now[pair.first], self.now[pair.second]]
        self.loads = [
            np.array(p.base, float) if p.base else np.zeros(len(p.loads))
            for p in self.problem.peaks
        ]
        for c, o in enumerate(self.now):
            for p, cells, loads in self.peak_loads[c]:
                self.loads[p][cells] += loads[o]

    def move(self, c: int, option: int) -> None:
        """Take another option of one choice."""
        old = self.now[c]
        if old == option:
            return
        amounts = self.limit_amounts[c]
        self.usage[self.limit_cells[c]] += amounts[option] - amounts[old]
        for index, other, a in self.limit_pairs[c]:
            self.usage[index] += a[option, self.now[other]] - a[old, self.now[other]]
        for p, cells, loads in self.peak_loads[c]:
            self.loads[p][cells] += loads[option] - loads[old]
        self.now[c] = option

    def score(self, c: int) -> tuple[Floats, Floats]:
        """For each option of choice c, the others as they are: (cost, violation).

        The cost is the objective up to a constant; the violation is 0 where allowed.
        """
        self.scores += 1
        now, old = self.now, self.now[c]
        cost = self.unary[c].copy()
        violation = np.zeros(len(cost))
        for other, costs, forbidden in self.links[c]:
            cost += costs[:, now[other]]
            if forbidden is not None:
                violation += forbidden[:, now[other]]
        cells = self.limit_cells[c]
        if len(cells):
            amounts = self.limit_amounts[c]
            if self.priced:
                cost += amounts @ self.price[cells]
            used = self.usage[cells] - amounts[old] + amounts
            for index, other, a in self.limit_pairs[c]:
                column = a[:, now[other]]
                used[:, int(np.searchsorted(cells, index))] += column - column[old]
            excess = (used - self.capacity[cells]) / self.limit_scale[cells]
            violation += np.where(excess > 1e-9, excess, 0.0).sum(1)
        for option, rest in self.conflicts[c]:
            if all(now[other] == o for other, o in rest):
                violation[option] += 1.0
        for p, cells, loads in self.peak_loads[c]:
            total = self.loads[p].copy()
            total[cells] = -math.inf
            still = float(total.max(initial=-math.inf))
            moved = (self.loads[p][cells] - loads[old] + loads).max(1)
            cost += self.problem.peaks[p].weight * np.maximum(moved, still)
        return cost, violation

    def descend(self, penalty: float, sweeps: int = 50) -> None:
        """Best option of each choice in turn until nothing moves (iterated conditional modes)."""
        for _ in range(sweeps):
            moved = False
            for c in range(len(self.now)):
                cost, violation = self.score(c)
                total = cost + penalty * violation
                best = int(np.argmin(total))
                if total[best] < total[self.now[c]] - 1e-12 * self.spread:
                    self.move(c, best)
                    moved = True
            if not moved:
                return


def greedy(
    problem: ChoiceProblem,
    starts: Sequence[Options] = (),
    seed: int = 0,
    effort: int = 20_000,
    deadline: float = math.inf,
) -> Options | None:
    """Greedy construction, local search over one and two choices, seeded kicks; the best answer.

    starts: assignments to improve besides the constructed one.   effort: scores to spend.
    deadline: time.monotonic() value after which no further kick is begun.
    None when no allowed assignment was found (which does not prove that there is none).
    """
    search = Search(problem)
    hard = 1e7 * search.spread
    best: Options | None = None
    best_value = math.inf

    def keep() -> bool:
        nonlocal best, best_value
        value = problem.objective(search.now)
        if value < best_value - 1e-12 * max(1.0, abs(value)):
            best, best_value = tuple(search.now), value
            return True
        return False

    for known in starts:
        search.set(known)
        keep()
        search.descend(hard)
        _polish(search, hard, effort)
        keep()
    candidates = [tuple(search.now)] if starts else []
    for order in _orders(search):
        search.price[:] = 0.0
        for _ in range(24 if len(search.price) else 1):
            search.priced = True
            _construct(search, order)
            search.descend(0.0, sweeps=4)
            over = search.usage > search.capacity
            search.priced = False
            candidates.append(tuple(search.now))
            _repair(search, hard)
            search.descend(hard)
            keep()
            first = search.spread / search.limit_scale
            raised = np.maximum(2.0 * search.price, 0.05 * first)
            search.price = np.where(over, raised, 0.7 * search.price)
            if search.scores > effort or time.monotonic() > deadline or not search.price.any():
                break
    search.set(best if best is not None else candidates[-1])
    _polish(search, hard, effort)
    keep()
    rng = np.random.default_rng(seed)
    count = len(problem.choices)
    for _ in range(min(400, 20 * count)):
        if search.scores > effort or time.monotonic() > deadline or count < 2:
            break
        if best is not None:
            search.set(best)
        for c in rng.choice(count, size=min(count, count // 6 + 2), replace=False):
            search.move(int(c), int(rng.integers(len(search.unary[c]))))
        _repair(search, hard)
        search.descend(hard)
        if keep():
            _polish(search, hard, effort)
            keep()
    return best


def _orders(search: Search) -> list[list[int]]:
    """Orders of construction: as given (often that of the data flow), and most at stake first."""
    stake = [
        float(np.ptp(u)) + sum(float(np.ptp(m)) for _, m, _ in links)
        for u, links in zip(search.unary, search.links, strict=True)
    ]
    given = list(range(len(stake)))
    return [given, sorted(given, key=lambda c: (-stake[c], c))]


def _construct(search: Search, order: list[int]) -> None:
    """Take options in this order, each with the best that the later choices could still do.

    Backward, every choice tells its latest predecessor its least cost for each option of that one
    (exact where the pairs form a tree); forward, each takes its best option.
    """
    place = {c: i for i, c in enumerate(order)}
    wall = 1e3 * search.spread
    ahead = [
        u + (search.limit_amounts[c] @ search.price[search.limit_cells[c]])
        for c, u in enumerate(search.unary)
    ]
    links = [
        [(other, m if bar is None else m + bar * wall) for other, m, bar in own]
        for own in search.links
    ]
    for c in reversed(order):
        before = [other for other, _ in links[c] if place[other] < place[c]]
        if not before:
            continue
        last = max(before, key=lambda other: place[other])
        joint = ahead[c][:, None] + sum(m for other, m in links[c] if other == last)
        ahead[last] = ahead[last] + joint.min(0)
    for c in order:
        cost = ahead[c].copy()
        for other, costs in links[c]:
            if place[other] < place[c]:
                cost += costs[:, search.now[other]]
        search.move(c, int(np.argmin(cost)))


def _repair(search: Search, hard: float) -> None:
    """Raise the price of violations step by step until the assignment is allowed."""
    penalty = search.spread
    while penalty < hard:
        search.descend(penalty, sweeps=10)
        if not search.problem.violations(search.now):
            return
        penalty *= 8.0


def _polish(search: Search, penalty: float, effort: int) -> None:
    """Moves of two choices: every option of one, then the best answer of each partner."""
    partners: list[list[int]] = []
    groups: list[set[int]] = [{c for c, _ in li.terms} for li in search.problem.limits]
    for c, links in enumerate(search.links):
        near = {other for other, _, _ in links}
        for group in groups:
            if c in group:
                near |= group
        near |= {other for _, rest in search.conflicts[c] for other, _ in rest}
        partners.append(sorted(near - {c}))
    improved = True
    while improved and search.scores < effort:
        improved = False
        for c in range(len(search.now)):
            for d in partners[c]:
                if search.scores > effort:
                    return
                improved |= _move_two(search, c, d, penalty)
        if improved:
            search.descend(penalty)


def _move_two(search: Search, c: int, d: int, penalty: float) -> bool:
    """Try every option of c together with the best option of d; keep the best if it is better."""
    old_c, old_d = search.now[c], search.now[d]
    cost_c, violation_c = search.score(c)
    total_c = cost_c + penalty * violation_c
    # Options of c that are hopeless even after the largest gain d could give are tried too, but
    # only the most promising ones: a swap first looks bad.
    order = np.argsort(total_c, kind="stable")[:24]
    best, choice = -1e-9 * search.spread, None
    for option in order.tolist():
        if option == old_c:
            continue
        search.move(c, option)
        cost_d, violation_d = search.score(d)
        total_d = cost_d + penalty * violation_d
        answer = int(np.argmin(total_d))
        change = float(total_c[option] - total_c[old_c] + total_d[answer] - total_d[old_d])
        if change < best:
            best, choice = change, (option, answer)
        search.move(c, old_c)
    if choice is None:
        return False
    search.move(c, choice[0])
    search.move(d, choice[1])
    return True


def anneal(
    problem: ChoiceProblem,
    starts: Sequence[Options] = (),
    seed: int = 0,
    steps: int = 0,
    deadline: float = math.inf,
) -> Options | None:
    """Simulated annealing: options drawn by their Boltzmann weight while the temperature falls."""
    search = Search(problem, starts[0] if starts else None)
    count = len(problem.choices)
    steps = steps or min(60_000, max(2_000, 1_000 * count))
    rng = np.random.default_rng(seed)
    hot, cold = search.spread, 1e-4 * search.spread
    hard = 1e7 * search.spread
    best: Options | None = None
    best_value = math.inf

    def keep(options: Sequence[int]) -> None:
        nonlocal best, best_value
        value = problem.objective(options)
        if value < best_value:
            best, best_value = tuple(options), value

    for start in starts:
        keep(start)
    for step in range(steps):
        if step % 64 == 0 and time.monotonic() > deadline:
            break
        temperature = hot * (cold / hot) ** (step / steps)
        c = int(rng.integers(count))
        cost, violation = search.score(c)
        total = cost + (search.spread + 50.0 * temperature) * (violation + (violation > 0))
        weight = np.exp((total.min() - total) / temperature)
        ladder = np.cumsum(weight)
        search.move(c, int(np.searchsorted(ladder, rng.random() * ladder[-1], side="right")))
        if step % count == 0 and 2 * step > steps and violation[search.now[c]] == 0:
            keep(search.now)
    _repair(search, hard)
    search.descend(hard)
    _polish(search, hard, search.scores + 5_000)
    keep(search.now)
    return best
