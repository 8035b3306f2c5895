"""Find the decoder's layers: the run of equal op sequences that covers most of the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshc.frontend.builder import Builder, Node, Value
from meshc.frontend.folding import Const, Steps
from meshc.ir.dtypes import FLOATS, NAMES, NUMPY

_CANDIDATES = 24  # periods that are tried
_SHIFTS = 64  # starts that are tried per run


@dataclass
class Repeat:
    """ops[start : start + period · count] are `count` equal layers.

    carried: (value read by the first layer, value of the first layer that replaces it).
    instances: for every value that the first layer reads from outside and that differs by
    layer, what each layer reads in its place, by the reading op and operand.
    """

    start: int = 0
    period: int = 0
    count: int = 1
    carried: list[tuple[Value, Value]] = field(default_factory=list)
    instances: dict[tuple[int, int], tuple[Value, ...]] = field(default_factory=dict)

    @property
    def covered(self) -> int:
        """Ops in the layers; 0 where nothing repeats."""
        return self.period * self.count if self.count > 1 else 0

    def layers(self, ops: Sequence[Node]) -> dict[int, int]:
        """Layer number of each op by its id: 0 before the layers, count + 1 behind them."""
        if self.count < 2:
            return dict.fromkeys(map(id, ops), 0)
        number = [(i - self.start) // self.period + 1 for i in range(len(ops))]
        return {id(op): min(max(n, 0), self.count + 1) for op, n in zip(ops, number, strict=True)}

    def leaving(self, ops: Sequence[Node]) -> set[int]:
        """Ids of the values, of every layer, that the next layer or what follows reads."""
        if self.count < 2:
            return set()
        end = self.start + self.period * self.count
        place = {id(op.output): i for i, op in enumerate(ops)}
        out = {place[id(b)] - self.start for _, b in self.carried}
        for op in ops[end:]:
            for v in op.inputs:
                at = place.get(id(v), -1)
                if self.start <= at < end:
                    out.add((at - self.start) % self.period)
        return {
            id(ops[self.start + r * self.period + j].output) for j in out for r in range(self.count)
        }


def find_repeats(ops: Sequence[Node], roots: Sequence[Value], numbers: bool = True) -> Repeat:
    """The best repeat, or one with count 1 where there is none. numbers: those in elementwise
    expressions must be equal too."""
    tokens = _tokens(ops, numbers)
    products = np.cumsum([op.kind == "matmul" for op in ops])
    best = Repeat()
    for covered, period, start, length in _runs(tokens):
        if covered <= best.covered:
            break
        count = length // period + 1
        for shift in range(min(length % period + 1, _SHIFTS)):
            first = start + shift
            if products[first + period - 1] == products[first] and ops[first].kind != "matmul":
                continue  # a layer multiplies
            found = _verify(ops, first, period, count, roots)
            if found is not None:
                best = found
                break
    return best


def free_numbers(ops: Sequence[Node], roots: Sequence[Value], b: Builder) -> Repeat:
    """The best repeat, for which numbers in elementwise expressions that differ from layer to
    layer become operands.

    Exporters write a layer's own scales of quantised activations as scalars; with them in the
    expressions no layer would equal another. Nothing changes where the layers are found without.
    """
    exact = find_repeats(ops, roots)
    if exact.covered * 10 >= len(ops) * 9:
        return exact
    found = find_repeats(ops, roots, numbers=False)
    if found.covered <= exact.covered:
        return exact
    for j in range(found.period):
        layers = [ops[found.start + r * found.period + j] for r in range(found.count)]
        if layers[0].kind == "map":
            _free(layers, b)
    return find_repeats(ops, roots)


def _free(layers: Sequence[Node], b: Builder) -> None:
    for s, (_, args, _) in enumerate(layers[0].attrs["steps"]):
        for a, (kind, _) in enumerate(args):
            values = [op.attrs["steps"][s][1][a][1] for op in layers]
            if kind != "const" or len({repr(v) for v in values}) == 1:
                continue
            for op, value in zip(layers, values, strict=True):
                steps = list(op.attrs["steps"])
                fn, given, dtype = steps[s]
                own = np.asarray(value, NUMPY[_number_dtype(value, dtype)])
                const = Const.of(own, NAMES[own.dtype])
                place = ("in", len(op.inputs))
                op.inputs.append(b.value(const, b.unique(f"{op.name}.number")))
                steps[s] = (fn, (*given[:a], place, *given[a + 1 :]), dtype)
                op.attrs = {**op.attrs, "steps": tuple(steps)}


def _number_dtype(value: float, dtype: str) -> str:
    """Type in which a number of a step that makes `dtype` is the same as an operand."""
    if isinstance(value, float) or dtype in FLOATS:
        return "fp64" if dtype == "fp64" else "fp32"
    return "int64" if dtype == "bool" else dtype


def _tokens(ops: Sequence[Node], numbers: bool = True) -> np.ndarray:
    """A number per op that is equal for ops of equal kind, attributes, shapes and dtypes."""
    known: dict[Hashable, int] = {}
    out = np.empty(len(ops), np.int64)
    for i, op in enumerate(ops):
        operands = tuple((_side(v), v.shape, v.dtype) for v in op.inputs)
        attrs = op.attrs
        if op.kind == "map" and not numbers:
            attrs = {"steps": _without_numbers(attrs["steps"])}
        key = (op.kind, tuple(sorted(attrs.items())), operands, op.output.shape, op.output.dtype)
        out[i] = known.setdefault(key, len(known))
    return out


def _without_numbers(steps: Steps) -> Steps:
    return tuple(
        (fn, tuple((kind, type(x).__name__ if kind == "const" else x) for kind, x in args), dtype)
        for fn, args, dtype in steps
    )


def _side(v: Value) -> str:
    if v.const is not None:
        return "weight" if v.const.fixed else "constant"
    return "cache" if v.source == "CACHE" else "value"


def _runs(tokens: np.ndarray) -> list[tuple[int, int, int, int]]:
    """(ops covered, period, start, matching length) of candidate repeats, best first."""
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for i, t in enumerate(tokens.tolist()):
        if t in last:
            gaps[i - last[t]] += 1
        last[t] = i
    ranked = sorted(gaps, key=lambda g: (-g * gaps[g], g))[:_CANDIDATES]
    found = []
    for period in ranked:
        equal = tokens[period:] == tokens[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.view(np.int8), [0]))))
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            length = end - start
            if length >= period:
                found.append(((length // period + 1) * period, period, start, length))
    return sorted(found, key=lambda f: (-f[0], f[1], f[2]))


def _verify(
    ops: Sequence[Node], start: int, period: int, count: int, roots: Sequence[Value]
) -> Repeat | None:
    """Check the wiring of every layer against the first; None where it differs."""
    position = {id(op.output): i for i, op in enumerate(ops)}
    end = start + period * count
    carried: dict[int, tuple[Value, Value]] = {}
    instances: dict[tuple[int, int], tuple[Value, ...]] = {}
    steady: set[int] = set()  # values from before that all layers read
    for j in range(period):
        first = ops[start + j]
        for k, a in enumerate(first.inputs):
            at = position.get(id(a), -1)
            layers = [ops[start + r * period + j].inputs[k] for r in range(count)]
            if at >= start:  # made in the layer itself
                for r, v in enumerate(layers):
                    if position.get(id(v), -1) != at + r * period:
                        return None
                continue
            if all(v is a for v in layers):
                steady.add(id(a))
                continue
            where = [position.get(id(v), -1) for v in layers[1:]]
            if a.const is not None or a.source == "CACHE":
                if max(where) >= 0 or any(v.source == "INPUT" for v in layers):
                    return None
                instances[j, k] = tuple(layers)
                continue
            if all(v.source == "INPUT" for v in layers):
                instances[j, k] = tuple(layers)
                continue
            for r, w in enumerate(where):  # carried from the layer before
                low = start + r * period
                if not low <= w < low + period or w - r * period != where[0]:
                    return None
            pair = (a, ops[where[0]].output)
            if carried.setdefault(id(a), pair)[1] is not pair[1]:
                return None
    if steady & set(carried) or not _leaves_well(ops, start, end, period, carried, roots):
        return None
    return Repeat(start, period, count, list(carried.values()), instances)


def _leaves_well(
    ops: Sequence[Node],
    start: int,
    end: int,
    period: int,
    carried: dict[int, tuple[Value, Value]],
    roots: Sequence[Value],
) -> bool:
    """What follows may read only the last layer's values, and no value that was replaced."""
    early = {id(op.output) for op in ops[start : end - period]}
    early |= set(carried)
    return not any(id(v) in early for op in ops[end:] for v in op.inputs) and not any(
        id(v) in carried for v in roots
    )
