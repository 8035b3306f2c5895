"""What nouns say about themselves: refusals in whole sentences, sizes, texts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshc.errors import InputError, InvariantError
from meshc.ir.chip import ChipSpec, Coord, CoreSpec, NocSpec
from meshc.ir.dtypes import NAMES, NUMPY, size_bytes
from meshc.ir.graph import Graph, Op, Segment, Tensor
from meshc.ir.layout import Layout, replicated, split
from meshc.ir.placement import Region
from meshc.ir.program import (
    Broadcast,
    Buffer,
    Compute,
    Reduce,
    Transfer,
    buffers_of,
    lane_bytes,
    reads_of,
    writes_of,
)
from meshc.ir.stream import View
from meshc.ir.workload import Workload


def tensor(name: str, kind: str = "ACTIVATION", shape: tuple[int, ...] = (2, 3)) -> Tensor:
    return Tensor(name, kind, shape, "fp16", (name,))  # type: ignore[arg-type]


def graph(*ops: Op, carried: tuple[tuple[str, str], ...] = ()) -> Graph:
    tensors = {n: tensor(n) for op in ops for n in (*op.inputs, op.output)}
    tensors["x"] = tensor("x", "INPUT")
    return Graph("g", tensors, (Segment("body", ops, 2, carried),), ("x",), ())


def test_graph_accepts_ordered_ops() -> None:
    graph(Op("a", "map", ("x",), "y"), Op("b", "map", ("y", "x"), "z")).verify()
    graph(Op("a", "map", ("h",), "y"), carried=(("h", "y"),)).verify()


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (
            graph(Op("b", "map", ("y",), "z"), Op("a", "map", ("x",), "y")),
            r"^Op 'b' reads 'y' before it is made\.$",
        ),
        (
            graph(Op("a", "map", ("x",), "y"), carried=(("x", "w"),)),
            r"^Segment 'body' carries unmade 'w'\.$",
        ),
        (
            replace(
                graph(Op("a", "map", ("x",), "y")),
                tensors={"x": tensor("x", "INPUT")},
            ),
            r"^Op 'a' names the unknown tensor 'y'\.$",
        ),
        (
            replace(graph(), tensors={"t": tensor("t", shape=(2, -1))}),
            r"^Tensor 't' has shape \(2, -1\) of 'fp16'\.$",
        ),
        (
            replace(graph(), tensors={"t": replace(tensor("t"), dtype="fp8")}),
            r"^Tensor 't' has shape \(2, 3\) of 'fp8'\.$",
        ),
    ],
)
def test_graph_refuses(broken: Graph, sentence: str) -> None:
    with pytest.raises(InvariantError, match=sentence):
        broken.verify()


def test_graph_dump_is_the_same_for_equal_graphs() -> None:
    one = graph(Op("a", "map", ("x",), "y", (("fn", "exp"),)))
    two = graph(Op("a", "map", ("x",), "y", (("fn", "exp"),)))
    assert one == two and one.dump() == two.dump()
    assert "y:A[2, 3]fp16 = map(x:I[2, 3]fp16) fn=exp" in one.dump()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((0, 1, 0, 1), r"^--batch 0 is below 1; give at least 1\.$"),
        ((1, 0, 0, 1), r"^--prompt 0 is below 1; give at least 1\.$"),
        ((1, 1, -1, 1), r"^--context -1 is below 0; give at least 0\.$"),
        (
            (1, 2, 7, 8),
            r"^--max-context 8 is below the 9 tokens that are cached when the decode step ends "
            r"\(context 7 \+ new 2\); raise it or lower --context\.$",
        ),
    ],
)
def test_workload_refuses(values: tuple[int, int, int, int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Workload("decode", *values).verify()


def test_dtypes() -> None:
    assert all(NAMES[t] == n for n, t in NUMPY.items())
    assert [size_bytes(d) for d in ("bool", "bf16", "fp32", "int64")] == [1, 2, 4, 8]
    assert tensor("t").elements == 6 and tensor("t").bytes == 12


def test_dead_cores_of_every_kind() -> None:
    core, noc = CoreSpec(1024, 64, {"fp32": 16}, {"fp32": 64}), NocSpec(32)
    chip = ChipSpec("c", "tests", 3, 4, 1e9, core, noc, dead_cores=(Coord(0, 0), Coord(1, 2)),
                    dead_rows=(1,), dead_cols=(3,))  # fmt: skip
    assert chip.dead() == {Coord(0, 0), *(Coord(1, c) for c in range(4)), Coord(0, 3), Coord(2, 3)}
    assert chip.cores == 12 - 7
    assert replace(core, reserved_bytes=24).usable_bytes == 1000


def test_region() -> None:
    r = Region("r", 1, 2, 2, 3)
    assert r.core(0, 0) == Coord(1, 2) and r.core(1, 2) == Coord(2, 4)
    inside = {Coord(i, j) for i in range(5) for j in range(6) if r.contains(Coord(i, j))}
    assert inside == {r.core(i, j) for i in range(2) for j in range(3)}


def test_buffer_bytes_and_addresses() -> None:
    layout = Layout((split(7, ("row",), 2, 2), split(3, (), 2, 2)))
    size = lane_bytes((7, 3), "fp16", layout, 2, 2, 8)
    assert size == 24 and lane_bytes((7, 3), "fp16", layout, 2, 2, 16) == 32
    b = Buffer("b", "t", "weight", (7, 3), (7, 3), "fp16", layout, size, offset=64, stride=100)
    assert [b.address(i) for i in range(3)] == [64, 164, 264]


def test_what_instructions_touch() -> None:
    compute = Compute("c", "op", ("a", "b", "a"), "y", (replicated(1),) * 3)
    reduce = Reduce("r", "op", "y", "row", "sum", 1, ("s0", "s1"))
    broadcast = Broadcast("b", "op", "y", "row", 1, True)
    transfer = Transfer("t", "op", "y", "z", True)
    assert reads_of(compute) == ("a", "b", "a") and writes_of(compute) == ("y",)
    assert reads_of(reduce) == ("y",) and writes_of(reduce) == ("y", "s0", "s1")
    assert reads_of(broadcast) == writes_of(broadcast) == ("y",)
    assert reads_of(transfer) == ("y",) and writes_of(transfer) == ("z",)
    assert buffers_of(compute) == ("a", "b", "y") and buffers_of(reduce) == ("y", "s0", "s1")


def test_views() -> None:
    v = View(16, (4, 6), (range(1, 4), range(0, 6, 2)), "fp16")
    assert v.elements == 9 and v.bytes == 18 and v.span == (16, 64)
