"""A slow twin of the emulator for one op: shards, one evaluation per lane, sums over lanes.

It knows layouts only through `Layout.shard`, so that it shares nothing with the code that turns
plans into programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshc import ops
from meshc.emit.body import bind_attributes
from meshc.ir.dtypes import NAMES, NUMPY
from meshc.ir.graph import Op, Tensor
from meshc.ir.layout import AXES, Axis, Layout
from meshc.partition.candidates import _consistent, assignments, layouts_of

Assignment = tuple[int | None, int | None]
COMBINE = {
    "sum": np.add,
    "max": np.maximum,
    "prod": np.multiply,
    "min": np.minimum,
    "attend": lambda a, b: _attended(a, b),
}
GRIDS = [(2, 3), (3, 2), (4, 1), (1, 3), (5, 4)]


@dataclass(frozen=True)
class Case:
    """One op with its operands.

    expected: what numpy says, independent of the op's record.   growing: per operand (the output
    last) the dimensions that count cached tokens.
    """

    op: Op
    arrays: tuple[np.ndarray, ...]
    expected: np.ndarray
    growing: tuple[frozenset[int], ...] = ()
    rtol: float = 0.0
    inputs: tuple[Tensor, ...] = field(init=False)
    output: Tensor = field(init=False)

    def __post_init__(self) -> None:
        names = [f"in{i}" for i in range(len(self.arrays))]
        made = tuple(tensor(n, a) for n, a in zip(names, self.arrays, strict=True))
        object.__setattr__(self, "inputs", made)
        object.__setattr__(self, "output", tensor("out", self.expected))
        if not self.growing:
            object.__setattr__(self, "growing", (frozenset(),) * (len(made) + 1))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [t.shape for t in (*self.inputs, self.output)]

    def space(self) -> ops.Space:
        return ops.space(self.op, self.inputs, self.output)


def tensor(name: str, array: np.ndarray) -> Tensor:
    return Tensor(name, "ACTIVATION", array.shape, NAMES[array.dtype], (name,))


def make_op(kind: str, inputs: int, **attrs: object) -> Op:
    operands = tuple(f"in{i}" for i in range(inputs))
    return Op("op", kind, operands, "out", tuple(sorted(attrs.items())))


def axes_by_dim(s: ops.Space, assignment: Assignment) -> tuple[tuple[Axis, ...], ...]:
    """The mesh axes that divide each iteration dimension."""
    found: list[tuple[Axis, ...]] = [()] * len(s.dims)
    for axis, dim in zip(AXES, assignment, strict=True):
        if dim is not None:
            found[dim] = (*found[dim], axis)
    return tuple(found)


def legal(case: Case, rows: int, cols: int) -> Iterator[tuple[Assignment, list[Layout]]]:
    """Every assignment that the planner may choose, and the layouts that follow."""
    s = case.space()
    for assignment in assignments(s, rows, cols):
        layouts = layouts_of(
            s, axes_by_dim(s, assignment), case.shapes, list(case.growing), rows, cols
        )
        if layouts is not None and _consistent(s, layouts):
            yield assignment, layouts


def reductions(s: ops.Space, assignment: Assignment) -> list[tuple[Axis, str]]:
    """Axes that leave partial results, and how they combine: the dims' kinds alone decide."""
    return [
        (axis, s.dims[dim].kind)
        for axis, dim in zip(AXES, assignment, strict=True)
        if dim is not None and s.dims[dim].kind in COMBINE
    ]


def _attended(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows [weighted sum …, weight, largest score] of two sets of tokens, one row at a time."""
    out = np.empty_like(a)
    for at in np.ndindex(a.shape[:-1]):
        top = max(a[at][-1], b[at][-1])
        scale = [0.0 if x[at][-1] == -np.inf else np.exp(x[at][-1] - top) for x in (a, b)]
        out[at][:-1] = a[at][:-1] * scale[0] + b[at][:-1] * scale[1]
        out[at][-1] = top
    return out


def part(array: np.ndarray, ranges: Sequence[range]) -> np.ndarray:
    """The elements of a whole tensor that a lane holds."""
    return array[tuple(slice(r.start, r.stop, r.step) for r in ranges)]


def simulate(
    case: Case,
    layouts: Sequence[Layout],
    reduce: Sequence[tuple[Axis, str]],
    rows: int,
    cols: int,
) -> dict[tuple[int, int], np.ndarray]:
    """The output shard of every lane, partial results combined over the reduced axes."""
    op = bind_attributes(case.op, case.shapes[:-1])
    dtype = NUMPY[case.output.dtype]
    results: dict[tuple[int, int], np.ndarray] = {}
    for r in range(rows):
        for c in range(cols):
            ranges = [
                layout.shard(shape, r, c, rows, cols)
                for layout, shape in zip(layouts, case.shapes, strict=True)
            ]
            local = [part(a, at) for a, at in zip(case.arrays, ranges[:-1], strict=True)]
            out = ops.evaluate(op, local, ranges[:-1], ranges[-1])
            assert out.shape == tuple(map(len, ranges[-1]))
            results[r, c] = np.asarray(out) if reduce else np.asarray(out).astype(dtype)
    for axis, how in reduce:
        lines: dict[int, np.ndarray] = {}
        for (r, c), value in results.items():
            line = c if axis == "row" else r
            lines[line] = COMBINE[how](lines[line], value) if line in lines else value
        results = {(r, c): lines[c if axis == "row" else r] for r, c in results}
    return {lane: value.astype(dtype) for lane, value in results.items()}


def check(
    case: Case,
    layouts: Sequence[Layout],
    reduce: Sequence[tuple[Axis, str]],
    rows: int,
    cols: int,
    what: str,
) -> None:
    """Every lane's output must be its shard of the whole result."""
    for layout in layouts:
        layout.verify()
    results = simulate(case, layouts, reduce, rows, cols)
    for (r, c), got in results.items():
        wanted = part(case.expected, layouts[-1].shard(case.output.shape, r, c, rows, cols))
        message = f"{what}: lane ({r},{c}) of {rows}x{cols}, {case.op}, shapes {case.shapes}"
        assert_equal(got, wanted, case.rtol, message)


def assert_equal(got: np.ndarray, wanted: np.ndarray, rtol: float, message: str) -> None:
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, message
    if wanted.dtype.kind not in "biu":
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol, rtol, err_msg=message
        )
    else:
        np.testing.assert_array_equal(got, wanted, message)
