"""Choice problems: take one option of every choice, at the least total cost.

The three integer programs of meshc (plan, place, route) are all of this kind: costs of single
options and of pairs of them, limits on sums, peaks (the largest of many sums), and conflicts.
This module has the problem as a value, its exact evaluation, and the reductions that lose no
optimum; `solve.py` has the solvers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from meshc.errors import InvariantError

Floats = np.ndarray[Any, np.dtype[np.float64]]
Options = tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """One option is taken. costs: of each option; inf forbids it."""

    name: str
    costs: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Pair:
    """Cost that depends on two choices: costs[i, j] for option i of `first` and j of `second`.

    An entry of inf forbids the combination.
    """

    first: int
    second: int
    costs: Floats


@dataclass(frozen=True, eq=False)
class Limit:
    """The amounts of the options taken must not exceed the capacity.

    terms: (choice, amount of each of its options).
    pair_terms: (index into the problem's pairs, amount of each combination).
    """

    name: str
    terms: tuple[tuple[int, Floats], ...]
    capacity: float
    pair_terms: tuple[tuple[int, Floats], ...] = ()


@dataclass(frozen=True, eq=False)
class Peak:
    """Cost weight × the largest load of any cell; weight ≥ 0.

    loads: per cell, (choice, load of each of its options).   base: per cell, a load that is always
    there (empty: none).
    """

    name: str
    weight: float
    loads: tuple[tuple[tuple[int, Floats], ...], ...]
    base: tuple[float, ...] = ()

    def constant(self, cell: int) -> float:
        return self.base[cell] if self.base else 0.0

    @cached_property
    def by_choice(self) -> dict[int, tuple[np.ndarray[Any, np.dtype[np.intp]], Floats]]:
        """Choice → the cells it loads, and the load of each [option, cell]."""
        found: dict[int, dict[int, Floats]] = {}
        for i, cell in enumerate(self.loads):
            for c, a in cell:
                own = found.setdefault(c, {})
                own[i] = own[i] + a if i in own else a
        return {
            c: (np.array(sorted(own), np.intp), np.stack([own[i] for i in sorted(own)], 1))
            for c, own in sorted(found.items())
        }

    def largest(self, options: Sequence[int]) -> float:
        """The largest load under an assignment; 0 without cells."""
        if not self.loads:
            return 0.0
        total = np.array(self.base, float) if self.base else np.zeros(len(self.loads))
        for c, (cells, loads) in self.by_choice.items():
            total[cells] += loads[options[c]]
        return float(total.max())


@dataclass(frozen=True)
class Conflict:
    """These (choice, option) items must not all be taken together."""

    items: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class ChoiceProblem:
    """stage, scope: what is decided, for reports.

    known_bound: a lower bound of the objective that the caller can prove, or -inf.
    """

    stage: str
    scope: str
    choices: tuple[Choice, ...]
    pairs: tuple[Pair, ...] = ()
    limits: tuple[Limit, ...] = ()
    peaks: tuple[Peak, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    known_bound: float = -math.inf

    def verify(self) -> None:
        """Raise InvariantError where shapes, indices or values cannot be meant."""
        sizes = [len(c.costs) for c in self.choices]

        def fail(thing: str, why: str) -> None:
            raise InvariantError(f"{thing} of the {self.stage} problem ({self.scope}) {why}.")

        for choice in self.choices:
            if any(math.isnan(c) or c == -math.inf for c in choice.costs):
                fail(f"choice {choice.name}", "has a cost that is not a number; give finite costs")
        for index, pair in enumerate(self.pairs):
            if pair.first == pair.second:
                fail(f"pair {index}", "joins a choice to itself; put the cost on its options")
            if pair.costs.shape != (sizes[pair.first], sizes[pair.second]):
                fail(f"pair {index}", f"has shape {pair.costs.shape}, unlike its choices' options")
            if bool(np.any(np.isnan(pair.costs) | (pair.costs == -np.inf))):
                fail(f"pair {index}", "has a cost that is not a number; give finite costs")
        for limit in self.limits:
            for c, amounts in limit.terms:
                if amounts.shape != (sizes[c],) or not bool(np.all(np.isfinite(amounts))):
                    fail(f"limit {limit.name}", f"has unusable amounts of {self.choices[c].name}")
            for p, amounts in limit.pair_terms:
                if amounts.shape != self.pairs[p].costs.shape or not np.all(np.isfinite(amounts)):
                    fail(f"limit {limit.name}", f"has unusable amounts of pair {p}")
        for peak in self.peaks:
            if not peak.weight >= 0 or (peak.base and len(peak.base) != len(peak.loads)):
                fail(f"peak {peak.name}", "has a negative weight or a base of another length")
            for cell in peak.loads:
                for c, amounts in cell:
                    if amounts.shape != (sizes[c],) or not bool(np.all(np.isfinite(amounts))):
                        fail(f"peak {peak.name}", f"has unusable loads of {self.choices[c].name}")
        for index, conflict in enumerate(self.conflicts):
            if any(not 0 <= o < sizes[c] for c, o in conflict.items):
                fail(f"conflict {index}", "names an option that its choice does not have")

    def objective(self, options: Sequence[int]) -> float:
        """Total cost of an assignment (one option index per choice); inf when it is not allowed."""
        if self.violations(options):
            return math.inf
        total = math.fsum(c.costs[o] for c, o in zip(self.choices, options, strict=True))
        total += math.fsum(float(p.costs[options[p.first], options[p.second]]) for p in self.pairs)
        for peak in self.peaks:
            total += peak.weight * peak.largest(options)
        return total

    def violations(self, options: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
        """For each broken rule the (choice, option) items that break it together."""
        out: list[tuple[tuple[int, int], ...]] = []
        for c, (choice, o) in enumerate(zip(self.choices, options, strict=True)):
            if choice.costs[o] == math.inf:
                out.append(((c, o),))
        for pair in self.pairs:
            if pair.costs[options[pair.first], options[pair.second]] == math.inf:
                out.append(((pair.first, options[pair.first]), (pair.second, options[pair.second])))
        for limit in self.limits:
            used = [float(a[options[c]]) for c, a in limit.terms]
            for p, a in limit.pair_terms:
                used.append(float(a[options[self.pairs[p].first], options[self.pairs[p].second]]))
            if math.fsum(used) > limit.capacity + 1e-9 * (abs(limit.capacity) + 1e-3):
                members = {c for c, _ in limit.terms}
                for p, _ in limit.pair_terms:
                    members |= {self.pairs[p].first, self.pairs[p].second}
                out.append(tuple((c, options[c]) for c in sorted(members)))
        for conflict in self.conflicts:
            if all(options[c] == o for c, o in conflict.items):
                out.append(conflict.items)
        return out

    def lower_bound(self) -> float:
        """A valid lower bound: every part of the cost at its own least."""
        total = math.fsum(min(c.costs, default=0.0) for c in self.choices)
        total += math.fsum(float(p.costs.min()) for p in self.pairs if p.costs.size)
        for peak in self.peaks:
            loads = [
                peak.constant(i) + math.fsum(float(a.min()) for _, a in cell)
                for i, cell in enumerate(peak.loads)
            ]
            total += peak.weight * max(loads, default=0.0)
        return max(total, self.known_bound)


@dataclass(frozen=True, eq=False)
class Reduced:
    """An equivalent smaller problem.

    kept: original index of each of its choices.   options: per kept choice, the original index of
    each of its options.   fixed: one option per original choice (meaningless for kept ones).
    The objective of the original is that of the problem + constant.
    """

    problem: ChoiceProblem
    kept: tuple[int, ...]
    options: tuple[tuple[int, ...], ...]
    fixed: Options
    constant: float

    def restore(self, options: Sequence[int]) -> Options:
        """The original's assignment for one of the reduced problem."""
        out = list(self.fixed)
        for c, allowed, o in zip(self.kept, self.options, options, strict=True):
            out[c] = allowed[o]
        return tuple(out)

    def restrict(self, options: Sequence[int]) -> Options | None:
        """The reduced problem's assignment for one of the original; None if it was ruled out."""
        out = []
        for c, allowed in zip(self.kept, self.options, strict=True):
            if options[c] not in allowed:
                return None
            out.append(allowed.index(options[c]))
        kept = set(self.kept)
        if any(options[c] != o for c, o in enumerate(self.fixed) if c not in kept):
            return None
        return tuple(out)


def reduce_problem(problem: ChoiceProblem) -> Reduced | None:
    """Drop options that no allowed assignment has and fold choices with one option into the rest.

    None when some choice is left without an option: the problem is infeasible.
    """
    alive = _live_options(problem)
    if alive is None:
        return None
    allowed = [np.flatnonzero(a) for a in alive]
    single = [len(a) == 1 for a in allowed]
    kept = [c for c, one in enumerate(single) if not one]
    position = {c: i for i, c in enumerate(kept)}
    fixed = tuple(int(a[0]) for a in allowed)
    costs: list[Floats] = [
        np.array(c.costs, float)[a] for c, a in zip(problem.choices, allowed, strict=True)
    ]
    constant = math.fsum(float(costs[c][0]) for c, one in enumerate(single) if one)

    used = {p for limit in problem.limits for p, _ in limit.pair_terms}
    pairs: list[Pair] = []
    pair_position: dict[int, int] = {}
    for index, pair in enumerate(problem.pairs):
        block = pair.costs[np.ix_(allowed[pair.first], allowed[pair.second])]
        if single[pair.first] and single[pair.second]:
            constant += float(block[0, 0])
        elif single[pair.first]:
            costs[pair.second] = costs[pair.second] + block[0]
        elif single[pair.second]:
            costs[pair.first] = costs[pair.first] + block[:, 0]
        elif index not in used and not block.any():
            continue
        else:
            pair_position[index] = len(pairs)
            pairs.append(Pair(position[pair.first], position[pair.second], block))

    limits = _reduced_limits(problem, allowed, single, position, pair_position)
    peaks = []
    for peak in problem.peaks:
        base, cells = [], []
        for i, cell in enumerate(peak.loads):
            base.append(
                peak.constant(i) + math.fsum(float(a[fixed[c]]) for c, a in cell if single[c])
            )
            cells.append(tuple((position[c], a[allowed[c]]) for c, a in cell if not single[c]))
        open_cells = [i for i, cell in enumerate(cells) if cell]
        still = max((b for b, cell in zip(base, cells, strict=True) if not cell), default=-math.inf)
        if not open_cells:
            constant += peak.weight * max(base, default=0.0)
            continue
        floor: tuple[tuple[int, Floats], ...] = ()
        peaks.append(
            replace(
                peak,
                loads=(*(cells[i] for i in open_cells), *((floor,) if still > -math.inf else ())),
                base=(*(base[i] for i in open_cells), *((still,) if still > -math.inf else ())),
            )
        )
    conflicts = []
    for conflict in problem.conflicts:
        taken = set(conflict.items)
        if len({c for c, _ in taken}) == len(taken) and all(alive[c][o] for c, o in taken):
            items = tuple(
                (position[c], int(np.searchsorted(allowed[c], o)))
                for c, o in sorted(taken)
                if not single[c]
            )
            conflicts.append(Conflict(items))
    smaller = ChoiceProblem(
        problem.stage,
        problem.scope,
        tuple(Choice(problem.choices[c].name, tuple(costs[c].tolist())) for c in kept),
        tuple(pairs),
        tuple(limits),
        tuple(peaks),
        tuple(conflicts),
        problem.known_bound - constant,
    )
    options = tuple(tuple(int(o) for o in allowed[c]) for c in kept)
    return Reduced(smaller, tuple(kept), options, fixed, constant)


def _live_options(problem: ChoiceProblem) -> list[np.ndarray[Any, np.dtype[np.bool_]]] | None:
    """Options that survive forbidden pairs, limits and conflicts looked at one by one."""
    alive = [np.isfinite(np.array(c.costs, float)) for c in problem.choices]
    while True:
        before = sum(int(a.sum()) for a in alive)
        for pair in problem.pairs:
            open_ = np.isfinite(pair.costs) & np.outer(alive[pair.first], alive[pair.second])
            alive[pair.first] &= open_.any(1)
            alive[pair.second] &= open_.any(0)
        if not all(a.any() for a in alive):
            return None
        for limit in problem.limits:
            least = [float(a[alive[c]].min()) for c, a in limit.terms]
            slack = limit.capacity - math.fsum(least)
            for p, a in limit.pair_terms:
                pair = problem.pairs[p]
                slack -= float(a[np.ix_(alive[pair.first], alive[pair.second])].min())
            tolerance = 1e-9 * (abs(limit.capacity) + 1e-3)
            for (c, a), low in zip(limit.terms, least, strict=True):
                if sum(1 for other, _ in limit.terms if other == c) == 1:
                    alive[c] &= a - low <= slack + tolerance
            if slack < -tolerance:
                return None
        for conflict in problem.conflicts:
            if not all(alive[c][o] for c, o in conflict.items):
                continue
            if len({c for c, _ in conflict.items}) < len(set(conflict.items)):
                continue  # two options of one choice are never taken together anyway
            undecided = [(c, o) for c, o in set(conflict.items) if alive[c].sum() > 1]
            if not undecided:
                return None
            if len(undecided) == 1:
                alive[undecided[0][0]][undecided[0][1]] = False
        if not all(a.any() for a in alive):
            return None
        if sum(int(a.sum()) for a in alive) == before:
            return alive


def _reduced_limits(
    problem: ChoiceProblem,
    allowed: list[np.ndarray[Any, np.dtype[np.intp]]],
    single: list[bool],
    position: dict[int, int],
    pair_position: dict[int, int],
) -> list[Limit]:
    """The limits over the kept choices, without those that cannot bind."""
    limits = []
    for limit in problem.limits:
        capacity = limit.capacity
        terms: dict[int, Floats] = {}
        pair_terms = []

        def add(c: int, amounts: Floats, terms: dict[int, Floats] = terms) -> None:
            terms[c] = terms[c] + amounts if c in terms else amounts

        for c, a in limit.terms:
            if single[c]:
                capacity -= float(a[allowed[c][0]])
            else:
                add(position[c], a[allowed[c]])
        for p, a in limit.pair_terms:
            pair = problem.pairs[p]
            block = a[np.ix_(allowed[pair.first], allowed[pair.second])]
            if single[pair.first] and single[pair.second]:
                capacity -= float(block[0, 0])
            elif single[pair.first]:
                add(position[pair.second], block[0])
            elif single[pair.second]:
                add(position[pair.first], block[:, 0])
            else:
                pair_terms.append((pair_position[p], block))
        most = math.fsum(float(a.max()) for a in terms.values())
        most += math.fsum(float(a.max()) for _, a in pair_terms)
        if most > capacity:
            limits.append(Limit(limit.name, tuple(terms.items()), capacity, tuple(pair_terms)))
    return limits
