"""Small graphs written by hand, a slow interpreter for them, and plans drawn by lot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshc import ops
from meshc.emit import emit
from meshc.emit.body import bind_attributes
from meshc.ir.chip import ChipSpec, CoreSpec, NocSpec
from meshc.ir.compiled import MemoryMap
from meshc.ir.dtypes import NUMPY
from meshc.ir.graph import CachePair, Graph, Op, Segment, Tensor
from meshc.ir.placement import Placement, Region
from meshc.ir.plan import OpPlan, Plan
from meshc.ir.program import Program
from meshc.memory import assign
from meshc.partition.auto import stages_of
from meshc.partition.select import Space

Data = dict[str, np.ndarray]


def small_chip(rows: int = 4, cols: int = 4, sram_bytes: int = 1 << 20, **noc: Any) -> ChipSpec:
    """A chip of round numbers."""
    core = CoreSpec(sram_bytes, 64, {"fp32": 16, "fp16": 32}, {"fp32": 64, "fp16": 128})
    return ChipSpec("small", "tests", rows, cols, 1e9, core, NocSpec(32, **noc))


@dataclass
class Draft:
    """Builds a graph segment by segment.

    Weights and caches of a repeated segment have one instance per repetition.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=list)
    caches: list[CachePair] = field(default_factory=list)
    outputs: list[tuple[str, str, int]] = field(default_factory=list)
    _ops: list[Op] = field(default_factory=list)
    _repeat: int = 1

    def given(
        self,
        name: str,
        kind: str,
        shape: tuple[int, ...],
        dtype: str = "fp32",
        several: bool = False,
    ) -> str:
        """A tensor that no op makes."""
        count = self._repeat if several else 1
        names = tuple(f"{name}.{i}" for i in range(count)) if count > 1 else (name,)
        self.tensors[name] = Tensor(name, kind, shape, dtype, names)  # type: ignore[arg-type]
        return name

    def input(self, name: str, *shape: int, dtype: str = "fp32") -> str:
        return self.given(name, "INPUT", shape, dtype)

    def weight(self, name: str, *shape: int, dtype: str = "fp32") -> str:
        return self.given(name, "WEIGHT", shape, dtype, several=True)

    def begin(self, repeat: int = 1) -> None:
        """Ops from here on belong to a new segment."""
        self._ops, self._repeat = [], repeat

    def op(
        self,
        kind: str,
        inputs: tuple[str, ...],
        out: str,
        *shape: int,
        dtype: str = "fp32",
        **attrs: Any,
    ) -> str:
        self.tensors[out] = Tensor(out, "ACTIVATION", shape, dtype, (out,))
        self._ops.append(Op(f"make {out}", kind, inputs, out, tuple(sorted(attrs.items()))))
        return out

    def map(self, fn: str, inputs: tuple[str, ...], out: str, *shape: int) -> str:
        steps = ((fn, tuple(("in", i) for i in range(len(inputs))), "fp32"),)
        return self.op("map", inputs, out, *shape, steps=steps)

    def end(self, name: str, carried: tuple[tuple[str, str], ...] = ()) -> None:
        self.segments.append(Segment(name, tuple(self._ops), self._repeat, carried))

    def output(self, tensor: str, name: str | None = None, turn: int = 0) -> None:
        t = self.tensors[tensor]
        self.outputs.append((name or tensor, tensor, turn))
        instances = t.instances if name is None else (*t.instances[:turn], name)
        self.tensors[tensor] = replace(t, kind="OUTPUT", instances=instances)

    def graph(self) -> Graph:
        inputs = tuple(t.name for t in self.tensors.values() if t.kind == "INPUT")
        g = Graph(
            "small", self.tensors, tuple(self.segments), inputs, tuple(self.outputs),
            tuple(self.caches),
        )  # fmt: skip
        g.verify()
        return g


def layers(repeat: int, width: int = 8, new: int = 2, tokens: int = 5) -> Graph:
    """A miniature decoder: embedding, `repeat` layers with grouped queries, a cache and a
    residual, a head.

    tokens: cached in the end, `new` of them by this step.
    """
    d = Draft()
    heads, size = 2, width // 4
    d.begin()
    ids, table = d.input("ids", 1, new, dtype="int64"), d.weight("table", 11, width)
    d.op("gather", (table, ids), "h", 1, new, width, axis=0)
    d.end("prologue")
    d.begin(repeat)
    d.op("reduce", ("h",), "mean", 1, new, 1, fn="mean", axes=(2,), keepdims=True)
    d.map("sub", ("h", "mean"), "low", 1, new, width)
    for name, n in (("q", 2 * heads), ("k", heads)):
        d.weight(f"w{name}", width, n * size)
        d.op("matmul", ("low", f"w{name}"), f"{name}.flat", 1, new, n * size)
        d.op("reshape", (f"{name}.flat",), f"{name}.cut", 1, new, n, size)
        d.op("transpose", (f"{name}.cut",), name, 1, n, new, size, perm=(0, 2, 1, 3))
    past = d.given("past", "CACHE", (1, heads, tokens - new, size), several=True)
    d.op("append", (past, "k"), "keys", 1, heads, tokens, size, axis=2)
    d.caches.append(CachePair(past, "keys", 2))
    for name in ("k", "v"):  # each kept head serves two of the queries'
        d.op("reshape", ("keys",), f"{name}.one", 1, heads, 1, tokens, size)
        d.op("expand", (f"{name}.one",), f"{name}.two", 1, heads, 2, tokens, size)
        d.op("reshape", (f"{name}.two",), f"{name}.all", 1, 2 * heads, tokens, size)
    heads *= 2
    d.op("matmul", ("q", "k.all"), "scores", 1, heads, new, tokens, transpose_b=True)
    d.op("reduce", ("scores",), "top", 1, heads, new, 1, fn="max", axes=(3,), keepdims=True)
    d.map("sub", ("scores", "top"), "shift", 1, heads, new, tokens)
    d.map("exp", ("shift",), "soft", 1, heads, new, tokens)
    d.op("matmul", ("soft", "v.all"), "mix", 1, heads, new, size)
    d.op("transpose", ("mix",), "turn", 1, new, heads, size, perm=(0, 2, 1, 3))
    d.op("reshape", ("turn",), "flat", 1, new, width)
    d.map("tanh", ("flat",), "act", 1, new, width)
    d.map("add", ("h", "act"), "next", 1, new, width)
    d.end("body", (("h", "next"),) if repeat > 1 else ())
    d.begin()
    d.weight("head", width, 7)
    d.op("matmul", ("next", "head"), "logits", 1, new, 7)
    d.end("epilogue")
    d.output("logits")
    instances = tuple(f"present.{i}" for i in range(repeat))
    d.tensors["keys"] = replace(d.tensors["keys"], kind="OUTPUT", instances=instances)
    d.outputs += [(name, "keys", i) for i, name in enumerate(instances)]
    return d.graph()


def random_data(graph: Graph, seed: int = 0) -> Data:
    """Values of everything that no op makes, by instance name."""
    rng = np.random.default_rng(seed)
    data: Data = {}
    for t in graph.tensors.values():
        if t.kind not in ("INPUT", "WEIGHT", "CONSTANT", "CACHE"):
            continue
        for name in t.instances:
            if t.dtype.startswith("int"):
                data[name] = rng.integers(0, 4, t.shape).astype(NUMPY[t.dtype])
            else:
                data[name] = rng.standard_normal(t.shape).astype(NUMPY[t.dtype])
    return data


def interpret(graph: Graph, data: Mapping[str, np.ndarray]) -> Data:
    """The graph's outputs, op by op on whole tensors."""
    values: Data = {}
    outputs: Data = {}

    def find(name: str, turn: int) -> np.ndarray:
        if name in values:
            return values[name]
        names = graph.tensors[name].instances
        return data[names[turn if len(names) > 1 else 0]]

    renamed = {made: read for s in graph.segments for read, made in s.carried}
    for segment in graph.segments:
        for turn in range(segment.repeat):
            for op in segment.ops:
                tensors = [graph.tensors[n] for n in op.inputs]
                arrays = [find(n, turn) for n in op.inputs]
                ranges = [tuple(map(range, t.shape)) for t in tensors]
                out = graph.tensors[op.output]
                bound = bind_attributes(op, [t.shape for t in tensors])
                value = ops.evaluate(bound, arrays, ranges, tuple(map(range, out.shape)))
                values[op.output] = np.asarray(value).astype(NUMPY[out.dtype])
                for name, tensor, when in graph.outputs:
                    if tensor == op.output and when == turn:
                        outputs[name] = values[op.output]
            for read, made in segment.carried:
                values[read] = values[made]
        for _, made in segment.carried:
            values[renamed[made]] = values[made]
    return outputs


def random_plan(rng: np.random.Generator, space: Space, graph: Graph, stages: int = 1) -> Plan:
    """Any candidate for every op, any layout for what is carried: legal, if seldom fast."""
    chosen: dict[str, OpPlan] = {}
    for name, options in zip(space.names, space.options, strict=True):
        chosen[name] = options[int(rng.integers(len(options)))].plan
    carried = {n: found[int(rng.integers(len(found)))] for n, found in space.carried}
    return Plan(
        "decode", "random", space.rows, space.cols, stages_of(graph, stages), chosen, carried
    )


def side_by_side(plan: Plan, chip: ChipSpec) -> Placement:
    """The stages' regions in reading order."""
    regions: dict[str, Region] = {}
    row = col = 0
    for stage in plan.stages:
        if col + plan.cols > chip.cols:
            row, col = row + plan.rows, 0
        assert row + plan.rows <= chip.rows, "the stages have no room"
        regions[stage.name] = Region(stage.name, row, col, plan.rows, plan.cols)
        col += plan.cols
    return Placement(regions)


def program_of(
    graph: Graph, full: Graph, plan: Plan, chip: ChipSpec, max_context: int
) -> tuple[Program, MemoryMap]:
    """Emit and lay out one phase."""
    draft = emit(graph, full, plan, side_by_side(plan, chip), chip, max_context)
    (program,), memory = assign([draft], [{}])
    return program, memory
