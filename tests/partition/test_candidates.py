"""Candidates of ops, and what becomes of them when the step's tensors change their sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import pytest
from ops.lanes import Case, axes_by_dim, check, make_op

from meshc import ops
from meshc.analysis.growing import growing_dims
from meshc.fusion import fuse
from meshc.ir.dtypes import NUMPY
from meshc.ir.graph import Graph, Op, Segment, Tensor
from meshc.ir.layout import AXES
from meshc.ir.plan import OpPlan
from meshc.partition.candidates import candidates, resize, resize_layout
from meshc.partition.cost import CostModel
from meshc.partition.select import layouts_for

from .small import layers, small_chip

GRIDS = [(2, 3), (3, 2), (4, 1)]
MODEL = CostModel(small_chip())
Shapes = Sequence[tuple[int, ...]]


def one_op(op: Op, shapes: Shapes, weights: Sequence[int] = ()) -> Graph:
    """A graph of one op; operands named in `weights` are weights."""
    names = (*op.inputs, op.output)
    tensors = {
        n: Tensor(n, "WEIGHT" if i in weights else "INPUT", s, "fp32", (n,))
        for i, (n, s) in enumerate(zip(names, shapes, strict=True))
    }
    return Graph("g", tensors, (Segment("model", (op,)),), (), ())


# Ops by prompt: attributes, shapes of the operands and of the output.
Sized = tuple[str, dict[str, object], Callable[[int], Shapes]]
SIZED: dict[str, Sized] = {
    "reshape heads": ("reshape", {}, lambda p: [(1, p, 12), (1, p, 3, 4)]),
    "reshape hidden": ("reshape", {}, lambda p: [(2, p, 3, 4), (2, p, 12)]),
    "unsqueeze": ("reshape", {}, lambda p: [(p, 12), (1, p, 12)]),
    "squeeze": ("reshape", {}, lambda p: [(1, p, 12), (p, 12)]),
    "merge batch": ("reshape", {}, lambda p: [(2, p, 12), (2 * p, 12)]),
    "cut batch": ("reshape", {}, lambda p: [(2 * p, 12), (2, p, 12)]),
    "cut tokens": ("reshape", {}, lambda p: [(3 * p, 4), (p, 12)]),
    "join heads to tokens": ("reshape", {}, lambda p: [(p, 12), (3 * p, 4)]),
    "flatten": ("reshape", {}, lambda p: [(p, 2, 3), (6 * p,)]),
    "unflatten": ("reshape", {}, lambda p: [(6 * p,), (p, 2, 3)]),
    "shift tokens": ("reshape", {}, lambda p: [(2, 3 * p, 7), (2 * p, 3, 7)]),
    "tokens last": ("reshape", {}, lambda p: [(4, 3, p), (12, 1, p)]),
    "tokens between": ("reshape", {}, lambda p: [(4, p, 6), (2, 2, p, 3, 2)]),
    "linear": ("matmul", {}, lambda p: [(1, p, 8), (8, 6), (1, p, 6)]),
    "linear transposed": ("matmul", {"transpose_b": True},
                          lambda p: [(1, p, 8), (6, 8), (1, p, 6)]),
    "scores": ("matmul", {"transpose_b": True},
               lambda p: [(1, 2, p, 4), (1, 2, p, 4), (1, 2, p, p)]),
    "values": ("matmul", {}, lambda p: [(1, 2, p, p), (1, 2, p, 4), (1, 2, p, 4)]),
    "outer": ("matmul", {}, lambda p: [(1, p, 3, 1), (1, 1, 1, 5), (1, p, 3, 5)]),
    "tokens deep": ("matmul", {"transpose_a": True}, lambda p: [(p, 5), (p, 4), (5, 4)]),
    "scale": ("map", {"steps": (("mul", (("in", 0), ("in", 1)), "fp32"),)},
              lambda p: [(1, p, 8), (1, p, 1), (1, p, 8)]),
    "bias": ("map", {"steps": (("mul", (("in", 0), ("in", 1)), "fp32"),)},
             lambda p: [(1, p, 8), (8,), (1, p, 8)]),
    "mask": ("map", {"steps": (("add", (("in", 0), ("in", 1)), "fp32"),)},
             lambda p: [(1, 4, p, p), (1, 1, p, p), (1, 4, p, p)]),
    "row mask": ("map", {"steps": (("add", (("in", 0), ("in", 1)), "fp32"),)},
                 lambda p: [(1, 4, p, 6), (1, 1, 1, 6), (1, 4, p, 6)]),
    "norm": ("reduce", {"fn": "mean", "axes": (2,), "keepdims": True},
             lambda p: [(1, p, 8), (1, p, 1)]),
    "pool": ("reduce", {"fn": "sum", "axes": (1,), "keepdims": False},
             lambda p: [(2, p, 8), (2, 8)]),
    "best token": ("reduce", {"fn": "max", "axes": (1,), "keepdims": True},
                   lambda p: [(2, p, 8), (2, 1, 8)]),
    "turn": ("transpose", {"perm": (0, 2, 1, 3)}, lambda p: [(1, p, 3, 4), (1, 3, p, 4)]),
    "repeat": ("expand", {}, lambda p: [(1, p, 1, 4), (1, p, 3, 4)]),
    "half": ("slice", {"axis": 2, "start": 4, "step": 1}, lambda p: [(1, p, 8), (1, p, 4)]),
    "first token": ("slice", {"axis": 1, "start": 0, "step": 1},
                    lambda p: [(1, p, 8), (1, 1, 8)]),
    "join": ("concat", {"axis": 2}, lambda p: [(1, p, 4), (1, p, 3), (1, p, 7)]),
    "embed": ("gather", {"axis": 0}, lambda p: [(9, 8), (1, p), (1, p, 8)]),
    "pick token": ("gather", {"axis": 1}, lambda p: [(1, p, 8), (1,), (1, 1, 8)]),
    "keep": ("append", {"axis": 1}, lambda p: [(1, p, 4), (1, p, 4)]),
}  # fmt: skip


def check_plan(op: Op, tensors: Sequence[Tensor], plan: OpPlan, rows: int, cols: int) -> None:
    """The op divided as planned, evaluated lane by lane, gives the whole result."""
    rng = np.random.default_rng(0)
    arrays = []
    for slot, t in enumerate(tensors[:-1]):
        if op.kind == "gather" and slot == 1:
            size = tensors[0].shape[op.attr("axis")]
            arrays.append(rng.integers(-size, size, t.shape))
        elif t.dtype.startswith("int"):
            arrays.append(rng.integers(0, 3, t.shape).astype(NUMPY[t.dtype]))
        else:
            arrays.append(rng.integers(-4, 5, t.shape).astype(NUMPY[t.dtype]))
    ranges = [tuple(map(range, t.shape)) for t in tensors]
    shapes = [t.shape for t in tensors[:-1]]
    from meshc.emit.body import bind_attributes

    bound = bind_attributes(op, shapes)
    whole = np.array(ops.evaluate(bound, arrays, ranges[:-1], ranges[-1]))
    case = Case(op, tuple(arrays), whole.astype(NUMPY[tensors[-1].dtype]), rtol=1e-5)
    inner = [o.attr("fn") for o in op.body or (op,) if o.kind == "reduce"]
    how = inner[0] if inner and inner[0] in ("max", "min") else "sum"
    layouts = [*plan.inputs, plan.output]
    check(case, layouts, [(axis, how) for axis in plan.reduce], rows, cols, str(plan.assignment))


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize(("rows", "cols"), GRIDS)
def test_resized_plans_still_give_the_whole_result(name: str, rows: int, cols: int) -> None:
    """Each candidate of a prompt of five, resized to every shorter prompt."""
    kind, attrs, shapes = SIZED[name]
    op = make_op(kind, len(shapes(5)) - 1, **attrs)
    full = one_op(op, shapes(5))
    operands = [*op.inputs, op.output]
    for candidate in candidates(full, full, op, {}, rows, cols, MODEL):
        for prompt in range(1, 6):
            graph = one_op(op, shapes(prompt))
            plan = resize(graph, op, candidate.plan, rows, cols)
            check_plan(op, [graph.tensors[n] for n in operands], plan, rows, cols)
            if prompt == 5:
                assert plan == candidate.plan


@pytest.mark.parametrize("name", SIZED)
def test_resized_layouts_are_those_of_a_fresh_computation(name: str) -> None:
    """Or whole, where a dimension has shrunk to one element or cannot be divided any more."""
    rows, cols = 2, 3
    kind, attrs, shapes = SIZED[name]
    op = make_op(kind, len(shapes(4)) - 1, **attrs)
    full = one_op(op, shapes(4))
    operands = [*op.inputs, op.output]
    kept = divided = 0
    for candidate in candidates(full, full, op, {}, rows, cols, MODEL):
        for prompt in (2, 3):
            graph = one_op(op, shapes(prompt))
            plan = resize(graph, op, candidate.plan, rows, cols)
            fresh = {
                c.plan.assignment: c.plan
                for c in candidates(graph, graph, op, {}, rows, cols, MODEL)
            }
            same = fresh.get(candidate.plan.assignment)
            divided += any(candidate.plan.assignment[i] is not None for i in range(2))
            if same is not None and same.output == plan.output:
                kept += 1
                assert plan.inputs == same.inputs and plan.reduce == same.reduce
            for layout, t in zip((*plan.inputs, plan.output), map(graph.tensors.get, operands),
                                 strict=True):  # fmt: skip
                assert t is not None
                layout.verify()
                assert layout.largest(t.shape, rows, cols) <= t.shape
    assert kept or not divided


@pytest.mark.parametrize("name", ["linear", "linear transposed", "embed", "bias"])
def test_weights_stay_where_they_are(name: str) -> None:
    """A shorter prompt reads the weights that the compiled program has in SRAM."""
    kind, attrs, shapes = SIZED[name]
    slot = 0 if name == "embed" else 1
    op = make_op(kind, 2, **attrs)
    full = one_op(op, shapes(6), [slot])
    for rows, cols in GRIDS:
        for candidate in candidates(full, full, op, {}, rows, cols, MODEL):
            for prompt in range(1, 6):
                plan = resize(one_op(op, shapes(prompt)), op, candidate.plan, rows, cols)
                assert plan.inputs[slot] == candidate.plan.inputs[slot]
                assert plan.reduce == candidate.plan.reduce
                assert plan.groups == candidate.plan.groups


@pytest.mark.parametrize("fused", [False, True], ids=["primitive", "fused"])
def test_a_decoder_resized(fused: bool) -> None:
    """All ops of a layer, caches divided cyclically among them."""

    def make(prompt: int) -> Graph:
        g = layers(2, width=8, new=prompt, tokens=prompt)
        return fuse(g) if fused else g

    full = make(4)
    growing = growing_dims(full)
    rows, cols = 2, 3
    for _, op in full.ops():
        for candidate in islice(candidates(full, full, op, growing, rows, cols, MODEL), 0, None, 2):
            for prompt in range(1, 5):
                graph = make(prompt)
                own = next(o for _, o in graph.ops() if o.name == op.name)
                plan = resize(graph, own, candidate.plan, rows, cols)
                tensors = [graph.tensors[n] for n in (*own.inputs, own.output)]
                check_plan(own, tensors, plan, rows, cols)
                if op.kind == "append":
                    assert plan.output == candidate.plan.output, "a cache must not move"


@pytest.mark.parametrize("fused", [False, True], ids=["primitive", "fused"])
@pytest.mark.parametrize(("rows", "cols"), [(2, 3), (4, 1)])
def test_candidates_reduce_what_they_leave_partial(fused: bool, rows: int, cols: int) -> None:
    graph = layers(2, width=8, new=2, tokens=7)
    graph = fuse(graph) if fused else graph
    growing = growing_dims(graph)
    for _, op in graph.ops():
        found = candidates(graph, graph, op, growing, rows, cols, MODEL)
        assert found
        tensors = [graph.tensors[n] for n in (*op.inputs, op.output)]
        s = ops.space(op, tensors[:-1], tensors[-1])
        for c in found:
            check_plan(op, tensors, c.plan, rows, cols)
            per_dim = axes_by_dim(s, c.plan.assignment)
            joined = ("sum", "max", "min", "prod")
            partial = {a for d, dim in enumerate(s.dims) if dim.kind in joined for a in per_dim[d]}
            assert set(c.plan.reduce) == partial
            assert len(c.plan.groups) == len(c.plan.reduce)
            assert c.cycles > 0 and c.output_bytes > 0


def test_undominated_candidates_keep_the_best_of_equal_layouts() -> None:
    """Nothing that is dropped is both faster and smaller than all that is kept."""
    graph = layers(2)
    growing = growing_dims(graph)
    for _, op in graph.ops():
        found = candidates(graph, graph, op, growing, 2, 3, MODEL)
        seen = {(c.plan.inputs, c.plan.output, c.resident) for c in found}
        assert len(seen) == len(found)


def test_carried_layouts_resized() -> None:
    for layout in layouts_for((2, 6, 8), frozenset(), 2, 3):
        for prompt in range(1, 7):
            shape = (2, prompt, 8)
            new = resize_layout(layout, shape, 2, 3)
            new.verify()
            assert [s.axes for s in new.splits] == [s.axes for s in layout.splits]
            assert new.splits[2] == layout.splits[2]
    grown = layouts_for((1, 9), frozenset({1}), 2, 3)
    assert all(resize_layout(x, (1, 4), 2, 3) == x for x in grown)


def test_layouts_for_are_all_layouts() -> None:
    found = layouts_for((4, 6), frozenset(), 2, 3)
    assert len(found) == len(set(found)) == 9
    for a in (None, 0, 1):
        for b in (None, 0, 1):
            used = [tuple(x for x, d in zip(AXES, (a, b), strict=True) if d == i) for i in (0, 1)]
            assert any([s.axes for s in layout.splits] == used for layout in found)
