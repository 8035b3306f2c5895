"""Tensors of which run-time data picks some rows: how many is not known when compiling.

NonZero gives the coordinates of the true elements of a mask, Range and Slice with run-time bounds
give neighbouring rows. Such a tensor is followed as the whole tensor and a domain that says which
rows count: operators that treat every row for itself are applied to all rows, a scatter leaves out
the rows that do not count, and intervals that together are everything are put together by
selecting row by row. So nothing that depends on data is left. Whatever cannot be proven to mean the
same is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshc.frontend import lower_activation, lower_elementwise, lower_reduce
from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call
from meshc.frontend.facts import Prefix, nonnegative, prefix, total
from meshc.frontend.folding import Const
from meshc.frontend.indexing import iota
from meshc.frontend.labels import FIXED, MIXED, Label, product
from meshc.frontend.lower_index import placed_elements, placed_rows

WHY = "on rows that run-time data picks"
POINTWISE = frozenset((*lower_elementwise.TABLE, *lower_activation.TABLE))


@dataclass(eq=False, frozen=True)
class Domain:
    """Which of `size` rows count: those under `mask` [size], or those from `start` to `stop`.

    start, stop: run-time integers of one element, with what is known of them.
    """

    size: int
    label: Label
    mask: Value | None = None
    start: Value | None = None
    stop: Value | None = None
    low: Prefix | None = None
    high: Prefix | None = None


@dataclass(eq=False, frozen=True)
class Picked:
    """The rows of `full` along `axis` that count."""

    full: Value
    axis: int
    domain: Domain

    @property
    def rank(self) -> int:
        return self.full.rank

    @property
    def behind(self) -> int:
        """Dimensions behind that of the rows."""
        return self.full.rank - 1 - self.axis


@dataclass(eq=False, frozen=True)
class Sizes:
    """A vector, or a scalar, of sizes of which some are a domain's number of rows."""

    items: tuple[tuple[int, Label] | Domain, ...]
    scalar: bool = False


Operand = Value | Picked | Sizes | None
Results = list[Operand]
Run = Callable[[Call, Sequence[Value | None]], Sequence[Value | None]]


def begins(b: Builder, call: Call, x: Sequence[Value | None]) -> Results | None:
    """Results of an operator on plain operands whose result has a run-time number of rows; None
    for any other."""
    if call.domain or call.op not in ("NonZero", "Range", "Slice"):
        return None
    if not any(v is not None and v.const is None for v in x[int(call.op == "Slice") :]):
        return None
    if call.op == "NonZero":
        return [_nonzero(b, x)]
    return [_range(b, x)] if call.op == "Range" else [_part(b, x)]


def _nonzero(b: Builder, x: Sequence[Value | None]) -> Operand:
    """The coordinates of all elements [rank, size], of which those of true elements count."""
    v = x[0]
    assert v is not None
    if v.rank == 0:
        raise Unsupported("of a scalar that run-time data decides")
    size, label = prod(v.shape), product(v.labels, v.shape)
    true = v if v.dtype == "bool" else b.apply("not", b.apply("equal", v, 0), dtype="bool")
    mask = b.reshape(true, (size,), (label,), "mask")
    origin = MIXED if any(v.labels) else FIXED
    shape = v.shape

    def places() -> Const:
        return Const.of(np.indices(shape).reshape(len(shape), size), "int64", origin)

    every = b.once(("places", shape, v.labels), places, (FIXED, label))
    return Picked(every, 1, Domain(size, label, mask))


def _bound(v: Value | None) -> Value:
    if v is None or prod(v.shape) != 1:
        raise Unsupported("with run-time bounds that are not one number each")
    return v


def _range(b: Builder, x: Sequence[Value | None]) -> Operand:
    start, stop, step = (_bound(x[i]) for i in range(3))
    if step.const is None or not step.const.fixed or step.const.array().reshape(-1)[0] != 1:
        raise Unsupported("with a step other than one between run-time bounds")
    domain = _interval(start, stop)
    numbers = iota(b, domain.size, domain.label)
    return Picked(b.cast(numbers, start.dtype), 0, domain)


def _interval(start: Value, stop: Value) -> Domain:
    """The rows between two prefix sums of the same counts, whose total is known."""
    low, high = prefix(start), prefix(stop)
    if low is None or high is None or high.source is None:
        raise Unsupported("with run-time bounds that are no running sums")
    if low.count > high.count or (low.source is not None and low.source is not high.source):
        raise Unsupported("with run-time bounds that need not rise")
    whole = total(high.source)
    if whole is None or not nonnegative(high.source):
        raise Unsupported("with run-time bounds that nothing known limits")
    return Domain(*whole, start=start, stop=stop, low=low, high=high)


def _part(b: Builder, x: Sequence[Value | None]) -> Operand:
    """Rows start..stop - 1 of one axis."""
    v, start, stop = x[0], _bound(x[1]), _bound(x[2])
    assert v is not None
    axes, steps = (x[i] if len(x) > i else None for i in (3, 4))
    for extra in (axes, steps):
        if extra is not None and extra.const is None:
            raise Unsupported("with axes or steps that depend on run-time data")
    if steps is not None and steps.const is not None and int(steps.const.array().item()) != 1:
        raise Unsupported("with a step other than one between run-time bounds")
    axis = 0
    if axes is not None and axes.const is not None:
        axis = int(axes.const.array().item()) % v.rank
    domain = _interval(start, stop)
    if (domain.size, domain.label) != (v.shape[axis], v.labels[axis]):
        raise Unsupported(f"with run-time bounds up to {domain.size} of {v.shape[axis]} rows")
    return Picked(v, axis, domain)


def lower(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    """Results of an operator of which some operands have a run-time number of rows.

    run: lowers a call on plain values.
    """
    key = (call.domain, call.op)
    if any(isinstance(v, Sizes) for v in x):
        return _with_sizes(b, call, x, run)
    if key in POINTWISE:
        return _pointwise(call, x, run)
    if not call.domain and call.op in TABLE:
        return TABLE[call.op](b, call, x, run)
    raise Unsupported(WHY)


def _whole(x: Sequence[Operand]) -> list[Value | None]:
    """The operands with all rows."""
    out: list[Value | None] = []
    for v in x:
        if isinstance(v, Sizes):
            raise Unsupported("on a number of rows that run-time data decides")
        out.append(v.full if isinstance(v, Picked) else v)
    return out


def _one_domain(x: Sequence[Operand]) -> Domain:
    domains = {id(v.domain): v.domain for v in x if isinstance(v, Picked)}
    if len(domains) != 1:
        raise Unsupported("on different choices of rows")
    return next(iter(domains.values()))


def _only(x: Sequence[Operand], at: int) -> Picked:
    """Operand `at`, the only one of which rows are picked."""
    v = x[at]
    if not isinstance(v, Picked) or sum(isinstance(o, Picked) for o in x) != 1:
        raise Unsupported(WHY)
    return v


def _out(values: Sequence[Value | None], behind: int, domain: Domain) -> Results:
    """Results whose rows are the dimension with `behind` others behind it."""
    out: Results = []
    for v in values:
        out.append(None if v is None else Picked(v, v.rank - 1 - behind, domain))
    return out


def _pointwise(call: Call, x: Sequence[Operand], run: Run) -> Results:
    """Rows must meet in the same dimension, and what is no choice of rows must be one row."""
    shaped = x[:1] if call.op == "CastLike" else x
    if not any(isinstance(v, Picked) for v in shaped):
        return list(run(call, _whole(x)))
    domain = _one_domain(shaped)
    behind = {v.behind for v in shaped if isinstance(v, Picked)}
    if len(behind) != 1:
        raise Unsupported(WHY)
    (at,) = behind
    for v in shaped:
        if isinstance(v, Value) and v.rank > at and not _single(v, v.rank - 1 - at):
            raise Unsupported("on picked rows together with all rows")
    return _out(run(call, _whole(x)), at, domain)


def _single(v: Value, axis: int) -> bool:
    return v.shape[axis] == 1 and v.labels[axis] == FIXED


def _matmul(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    """Rows of the left operand; the right one has no dimension there."""
    left = _only(x, 0)
    right = x[1]
    if left.behind < 1 or not isinstance(right, Value) or right.rank < 2:
        raise Unsupported(WHY)
    if left.behind > 1 and right.rank > left.behind:
        raise Unsupported(WHY)
    if call.op == "Gemm":
        bias = x[2] if len(x) > 2 else None
        if call.attr("transA", 0) or (
            isinstance(bias, Value) and bias.rank > 1 and not _single(bias, bias.rank - 2)
        ):
            raise Unsupported(WHY)
    return _out(run(call, _whole(x)), left.behind, left.domain)


def _transpose(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    v = _only(x, 0)
    perm = [int(p) % v.rank for p in call.attr("perm", tuple(reversed(range(v.rank))))]
    return [Picked(b.transpose(v.full, perm), perm.index(v.axis), v.domain)]


def _axes(call: Call, x: Sequence[Operand]) -> list[int] | None:
    """Axes by operand or attribute; None where there are none."""
    given = x[1] if len(x) > 1 else None
    if isinstance(given, Picked) or (isinstance(given, Value) and given.const is None):
        raise Unsupported(WHY)
    if isinstance(given, Value) and given.const is not None:
        return [int(a) for a in given.const.array().reshape(-1)]
    axes = call.attr("axes")
    return None if axes is None else [int(a) for a in axes]


def _unsqueeze(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    v, axes = _only(x, 0), _axes(call, x) or []
    rank = v.rank + len(axes)
    new = {a % rank for a in axes}
    kept = [i for i in range(rank) if i not in new]
    return _out(run(call, _whole(x)), rank - 1 - kept[v.axis], v.domain)


def _squeeze(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    v, axes = _only(x, 0), _axes(call, x)
    if axes is None or v.axis in {a % v.rank for a in axes}:
        raise Unsupported(WHY)
    gone = {a % v.rank for a in axes}
    behind = sum(i not in gone for i in range(v.axis + 1, v.rank))
    return _out(run(call, _whole(x)), behind, v.domain)


def _beside(axis_default: int, multi: bool = False) -> Callable[..., Results]:
    """An operator along one or more axes that are not that of the rows."""

    def run_it(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
        v = _only(x, 0)
        axis = int(call.attr("axis", axis_default)) % v.rank
        if axis == v.axis or (multi and axis < v.axis):
            raise Unsupported(WHY)
        return _out(run(call, _whole(x)), v.behind, v.domain)

    return run_it


def _reduce(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    v, axes = _only(x, 0), _axes(call, x)
    if not axes or v.axis in {a % v.rank for a in axes}:
        raise Unsupported(WHY)
    gone = {a % v.rank for a in axes} if not call.attr("keepdims", 1) else set()
    behind = sum(i not in gone for i in range(v.axis + 1, v.rank))
    return _out(run(call, _whole(x)), behind, v.domain)


def _slice(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    v = _only(x, 0)
    axes = call.attr("axes") if len(x) == 1 else None
    if len(x) > 3 and isinstance(x[3], Value) and x[3].const is not None:
        axes = x[3].const.array().reshape(-1).tolist()
    if axes is None or v.axis in {int(a) % v.rank for a in axes}:
        raise Unsupported(WHY)
    return _out(run(call, _whole(x)), v.behind, v.domain)


def _gather(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    """Picked indices pick rows of the data; of picked rows other dimensions may be looked up."""
    data, indices = x[0], x[1]
    axis = int(call.attr("axis", 0))
    if isinstance(indices, Picked) and isinstance(data, Value):
        axis %= data.rank
        behind = indices.behind + data.rank - 1 - axis
        if indices.domain.mask is None and _is_iota(indices.full, data, axis):
            return [Picked(data, axis, indices.domain)]
        return _out(run(call, _whole(x)), behind, indices.domain)
    v = _only(x, 0)
    axis %= v.rank
    if axis == v.axis or not isinstance(indices, Value):
        raise Unsupported(WHY)
    behind = v.behind + (indices.rank - 1 if axis > v.axis else 0)
    return _out(run(call, _whole(x)), behind, v.domain)


def _is_iota(indices: Value, data: Value, axis: int) -> bool:
    if indices.rank != 1 or indices.const is None or indices.labels[0] != data.labels[axis]:
        return False
    return np.array_equal(indices.const.array(), np.arange(data.shape[axis]))


def _gather_nd(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    indices, data = _only(x, 1), x[0]
    if indices.behind < 1 or int(call.attr("batch_dims", 0)) or not isinstance(data, Value):
        raise Unsupported(WHY)
    depth = indices.full.shape[-1]
    return _out(run(call, _whole(x)), indices.behind - 1 + data.rank - depth, indices.domain)


def _concat(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    """Beside each other where the rows are the same; one behind the other where intervals make
    up the whole."""
    if not all(isinstance(v, Picked) for v in x):
        raise Unsupported("of picked rows and others")
    parts = [v for v in x if isinstance(v, Picked)]
    axis = int(call.attr("axis", 0)) % parts[0].rank
    if any(v.axis != parts[0].axis for v in parts):
        raise Unsupported(WHY)
    if axis != parts[0].axis:
        domain = _one_domain(x)
        return _out(run(call, _whole(x)), parts[0].behind, domain)
    if len(parts) == 1:
        return [parts[0]]
    return [_tiled(b, parts)]


def _tiled(b: Builder, parts: Sequence[Picked]) -> Value:
    """Row by row the part whose interval it is in."""
    domains = [p.domain for p in parts]
    if any(d.low is None or d.high is None for d in domains):
        raise Unsupported("of rows under different masks")
    lows, highs = [d.low for d in domains], [d.high for d in domains]
    last = highs[-1]
    assert last is not None and last.source is not None
    joined = all(
        a is not None and z is not None and z.same(a) for z, a in zip(highs, lows[1:], strict=False)
    )
    if not joined or lows[0] is None or lows[0].count or last.count != last.source.shape[0]:
        raise Unsupported("of intervals that are not known to be everything")
    first = parts[0].full
    if any((p.full.shape, p.full.labels) != (first.shape, first.labels) for p in parts):
        raise Unsupported("of intervals of different tensors")
    axis, size, label = parts[0].axis, domains[0].size, domains[0].label
    if (first.shape[axis], first.labels[axis]) != (size, label):
        raise Unsupported("of intervals of fewer rows than there are")
    numbers = iota(b, size, label)
    ids: Value | None = None
    for d in domains[:-1]:
        assert d.stop is not None
        stop = b.reshape(b.cast(d.stop, "int64"), (1,), (FIXED,), "stop")
        steps = [
            ("greaterorequal", (("in", 0), ("in", 1)), "bool"),
            ("cast", (("step", 0),), "int64"),
        ]
        past = b.map(steps, [numbers, stop], "past")
        ids = past if ids is None else b.apply("add", ids, past, suffix="part")
    assert ids is not None
    shape = [1] * first.rank
    labels: list[Label] = [FIXED] * first.rank
    shape[axis], labels[axis] = size, label
    out = parts[-1].full
    for i in reversed(range(len(parts) - 1)):
        here = b.reshape(b.apply("equal", ids, i, suffix=f"in{i}"), shape, labels, f"here{i}")
        out = b.apply("where", here, parts[i].full, out, dtype=out.dtype, suffix=f"from{i}")
    return out


def _shape(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    v = _only(x, 0)
    start, end = int(call.attr("start", 0)), call.attr("end", v.rank)
    items: list[tuple[int, Label] | Domain] = list(zip(v.full.shape, v.full.labels, strict=True))
    items[v.axis] = v.domain
    return [Sizes(tuple(items[slice(*slice(start, end).indices(v.rank))]))]


def _target(v: Operand) -> list[tuple[int, Label] | Domain]:
    if isinstance(v, Sizes):
        return list(v.items)
    if isinstance(v, Value) and v.const is not None:
        return list(zip(v.const.array().reshape(-1).tolist(), v.const.origins().reshape(-1),
                        strict=True))  # fmt: skip
    raise Unsupported("with sizes that depend on run-time data")


def _reshape(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    """The rows must stay one dimension: what is before and behind them is cut anew."""
    v = _only(x, 0) if not isinstance(x[0], Value) else None
    if v is None:
        raise Unsupported("to a number of rows that run-time data decides")
    target = _target(x[1])
    if not call.attr("allowzero", 0):
        own: list[Any] = list(zip(v.full.shape, v.full.labels, strict=True))
        own[v.axis] = v.domain
        target = [own[i] if t == (0, FIXED) and i < v.rank else t for i, t in enumerate(target)]
    return [_recut(b, v, target)]


def _recut(b: Builder, v: Picked, target: list[tuple[int, Label] | Domain]) -> Picked:
    free = [i for i, t in enumerate(target) if isinstance(t, Domain) or t[0] == -1]
    if len([t for t in target if isinstance(t, Domain) and t is not v.domain]) or len(free) > 2:
        raise Unsupported(WHY)
    own = [i for i in free if isinstance(target[i], Domain)]
    before, behind = v.full.shape[: v.axis], v.full.shape[v.axis + 1 :]
    if own and len(free) == 2:  # the other one follows from what is left
        (rest,) = [i for i in free if i not in own]
        side = behind if rest > own[0] else before
        known = target[own[0] + 1 :] if rest > own[0] else target[: own[0]]
        done = prod(t[0] for t in known if not isinstance(t, Domain) and t[0] != -1)
        if not done or prod(side) % done:
            raise Unsupported(WHY)
        target[rest] = (prod(side) // done, FIXED)
    elif not own and len(free) != 1:
        raise Unsupported(WHY)
    at = own[0] if own else free[0]
    place = (v.domain.size, v.domain.label)
    cut = [place if i == at or isinstance(t, Domain) else t for i, t in enumerate(target)]
    sizes, labels = [n for n, _ in cut], [label for _, label in cut]
    if prod(sizes[:at]) != prod(before) or prod(sizes[at + 1 :]) != prod(behind):
        raise Unsupported("that mixes picked rows with other dimensions")
    return Picked(b.reshape(v.full, sizes, labels), at, v.domain)


def _flatten(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    v = _only(x, 0)
    axis = int(call.attr("axis", 1))
    axis = axis + v.rank if axis < 0 else axis
    shape = v.full.shape
    groups = [shape[:axis], shape[axis:]]
    mine = 0 if v.axis < axis else 1
    sizes: list[tuple[int, Label] | Domain] = [(prod(g), FIXED) for g in groups]
    sizes[mine] = v.domain
    return [_recut(b, v, sizes)]


def _expand(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    """The rows stay, or one row becomes as many as there are."""
    target = _target(x[1])
    v = x[0]
    full = v.full if isinstance(v, Picked) else v
    if not isinstance(full, Value):
        raise Unsupported(WHY)
    asked = [t for t in target if isinstance(t, Domain)]
    domain = v.domain if isinstance(v, Picked) else asked[0] if asked else None
    if domain is None or any(d is not domain for d in asked):
        raise Unsupported(WHY)
    rank = max(full.rank, len(target))
    shape, labels = [1] * (rank - full.rank), [FIXED] * (rank - full.rank)
    shape += full.shape
    labels += full.labels
    rows = rank - full.rank + v.axis if isinstance(v, Picked) else -1
    for i, t in enumerate(target, start=rank - len(target)):
        if isinstance(t, Domain):
            if rows not in (-1, i) or (rows == -1 and shape[i] != 1):
                raise Unsupported(WHY)
            rows, shape[i], labels[i] = i, t.size, t.label
        elif t != (1, FIXED):
            if i == rows:
                raise Unsupported("of picked rows to a known number")
            if shape[i] not in (1, t[0]):
                raise Unsupported(WHY)
            shape[i], labels[i] = t[0], t[1] if labels[i] == FIXED and shape[i] == 1 else labels[i]
    if tuple(shape) == full.shape:
        return [Picked(full, rows, domain)]
    return [Picked(b.expand(full, shape, labels), rows, domain)]


def _scatter(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    """Rows that do not count are placed nowhere."""
    data, indices, updates = x[0], x[1], x[2]
    if not isinstance(data, Value) or not isinstance(indices, Picked):
        raise Unsupported(WHY)
    if not isinstance(updates, Picked):
        raise Unsupported("of all rows to picked places")
    domain = _one_domain([indices, updates])
    if domain.mask is None:
        raise Unsupported("of rows between run-time bounds")
    how = str(call.attr("reduction", "none"))
    if call.op == "ScatterND":
        if indices.axis != 0 or updates.axis != 0:
            raise Unsupported(WHY)
        return [placed_rows(b, data, indices.full, updates.full, how, domain.mask)]
    axis = int(call.attr("axis", 0)) % data.rank
    if indices.axis != axis or updates.axis != axis:
        raise Unsupported(WHY)
    return [placed_elements(b, data, indices.full, updates.full, axis, how, domain.mask)]


def _with_sizes(b: Builder, call: Call, x: Sequence[Operand], run: Run) -> Results:
    """Arithmetic on shapes that have a number of rows among them."""
    if call.domain:
        raise Unsupported(WHY)
    if call.op in ("Reshape", "Expand") and not isinstance(x[0], Sizes):
        return TABLE[call.op](b, call, x, run)
    if call.op == "ConstantOfShape" and isinstance(x[0], Sizes):
        return [_filled(b, call, x[0])]
    first = x[0]
    call.ignore("axis", "axes", "to", "saturate", "allowzero")  # a vector has one axis
    if call.op == "Concat":
        items: list[tuple[int, Label] | Domain] = []
        for v in x:
            items += _target(v)
        return [Sizes(tuple(items))]
    if not isinstance(first, Sizes):
        raise Unsupported("on a number of rows that run-time data decides")
    if call.op in ("Cast", "Identity"):
        return [first]
    if call.op == "Unsqueeze" and first.scalar:
        return [Sizes(first.items)]
    if call.op in ("Squeeze", "Reshape") and len(first.items) == 1:
        wanted = _target(x[1]) if call.op == "Reshape" else []
        if len(wanted) > 1:
            raise Unsupported(WHY)
        return [Sizes(first.items, scalar=not wanted)]
    if call.op == "Gather":
        return [_looked_up(b, call, first, x[1])]
    if call.op == "Slice":
        return [_sliced(b, call, first, x)]
    raise Unsupported("on a number of rows that run-time data decides")


def _plain(b: Builder, sizes: Sizes) -> Operand:
    """An ordinary value where no run-time number is left."""
    if any(isinstance(i, Domain) for i in sizes.items):
        return sizes
    known = [i for i in sizes.items if not isinstance(i, Domain)]
    v = b.ints([n for n, _ in known], [label for _, label in known])
    return b.reshape(v, (), ()) if sizes.scalar else v


def _looked_up(b: Builder, call: Call, sizes: Sizes, at: Operand) -> Operand:
    if not isinstance(at, Value) or at.const is None or at.rank > 1:
        raise Unsupported(WHY)
    places = at.const.array().reshape(-1).tolist()
    return _plain(b, Sizes(tuple(sizes.items[int(i)] for i in places), at.rank == 0))


def _sliced(b: Builder, call: Call, sizes: Sizes, x: Sequence[Operand]) -> Operand:
    given = [v.const.array().reshape(-1).tolist() if isinstance(v, Value) and v.const else None
             for v in x[1:]]  # fmt: skip
    if len(x) == 1:
        given = [list(call.attr("starts")), list(call.attr("ends"))]
    if any(g is None or len(g) != 1 for g in given):
        raise Unsupported(WHY)
    start, end = (int(g[0]) for g in given[:2] if g)
    step = int(given[3][0]) if len(given) > 3 and given[3] else 1
    if step < 1:
        raise Unsupported(WHY)
    return _plain(b, Sizes(sizes.items[slice(start, end, step)]))


def _filled(b: Builder, call: Call, sizes: Sizes) -> Picked:
    """Rows of one number."""
    fill = call.attr("value")
    number = np.zeros(1, np.float32) if fill is None else fill
    domains = [i for i in sizes.items if isinstance(i, Domain)]
    if len(domains) != 1:
        raise Unsupported(WHY)
    (domain,) = domains
    shape = tuple(i.size if isinstance(i, Domain) else i[0] for i in sizes.items)
    labels = [i.label if isinstance(i, Domain) else i[1] for i in sizes.items]
    one = b.constant(number.reshape((1,) * len(shape)), f"{b.scope}.fill")
    return Picked(b.expand(one, shape, labels), sizes.items.index(domain), domain)


TABLE: dict[str, Callable[[Builder, Call, Sequence[Operand], Run], Results]] = {
    "MatMul": _matmul,
    "Gemm": _matmul,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "Slice": _slice,
    "Split": _beside(0),
    "Softmax": _beside(-1),
    "LogSoftmax": _beside(-1),
    "LayerNormalization": _beside(-1, multi=True),
    "RMSNormalization": _beside(-1, multi=True),
    "SimplifiedLayerNormalization": _beside(-1, multi=True),
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Concat": _concat,
    "Shape": _shape,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    **{op: _reduce for _, op in lower_reduce.TABLE if op.startswith("Reduce")},
}
