"""From ordered nodes and their repeat to a Graph and the data of its tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshc.errors import InputError
from meshc.frontend.builder import Builder, Node, Value
from meshc.frontend.folding import Const
from meshc.frontend.importer import Importer
from meshc.frontend.labels import loose_dims
from meshc.frontend.reader import Model
from meshc.frontend.repeats import Repeat
from meshc.frontend.streams import Stream
from meshc.ir.graph import CachePair, Graph, Op, Segment, Tensor, TensorKind


@dataclass(frozen=True)
class TensorData:
    """Values of WEIGHT and CONSTANT instances, by their names in the graph."""

    consts: dict[str, Const]

    def read(self, name: str) -> np.ndarray:
        """The array; large weights are read from the model's files each time."""
        return self.consts[name].array()

    def require(self) -> None:
        """InputError where a weight or constant that the program loads has no values."""
        for const in self.consts.values():
            if const.lacks:
                raise InputError(const.lacks)

    def digest(self, name: str) -> str:
        """Hash of type, shape and content: equal for a weight that two graphs share.

        Of a weight in an external file, which is not read for this, the name stands for the
        content.
        """
        const = self.consts[name]
        state = hashlib.sha256(f"{const.dtype}{list(const.shape)}".encode())
        if const.outside:
            state.update(name.encode())
            return state.hexdigest()
        array = np.ascontiguousarray(const.array())
        state.update(array.reshape(-1).view(np.uint8).data)
        return state.hexdigest()


class Assembly:
    """Turns ordered nodes and their repeat into a Graph."""

    def __init__(
        self,
        model: Model,
        ops: Sequence[Node],
        repeat: Repeat,
        roots: Sequence[tuple[str, Value]],
        streams: Sequence[Stream],
        builder: Builder,
    ) -> None:
        self.model, self.ops, self.repeat = model, ops, repeat
        self.roots, self.streams, self.builder = roots, streams, builder
        self.outputs = {id(v) for name, v in roots if name}
        self.tensors: dict[str, Tensor] = {}
        self.by_key: dict[tuple[str, tuple[str, ...]], str] = {}
        self.consts: dict[str, Const] = {}
        self.op_names: set[str] = set()
        self.body_last = repeat.start + repeat.period * repeat.count

    def build(self, importer: Importer, folded: dict[str, np.ndarray]) -> tuple[Graph, TensorData]:
        r, model = self.repeat, self.model
        body = r.period if r.count > 1 else 0
        first_end = r.start + body
        segments = []
        parts = (
            ("prologue" if body else "model", self.ops[: r.start if body else len(self.ops)], 1),
            ("body", self.ops[r.start : first_end], r.count),
            ("epilogue", self.ops[self.body_last :] if body else [], 1),
        )
        last: dict[int, Value] = {}  # values of the last layer → of the first
        if body:
            for j in range(body):
                final = self.ops[self.body_last - body + j]
                last[id(final.output)] = self.ops[r.start + j].output
        for name, nodes, count in parts:
            if not nodes:
                continue
            inside = name == "body"
            ops = tuple(self._op(n, j, inside, last) for j, n in enumerate(nodes))
            carried = tuple((self._plain(a), b.name) for a, b in r.carried) if inside else ()
            segments.append(Segment(name, ops, count, carried))
        graph = Graph(
            name=model.name,
            tensors=self.tensors,
            segments=tuple(segments),
            inputs=self._inputs(),
            outputs=tuple(self._output(name, v) for name, v in self.roots if name),
            caches=tuple(self._pairs()),
            parameters=importer.parameters,
            sha256=model.sha256,
            node_count=model.node_count,
            folded_inputs=tuple(folded),
        )  # fmt: skip
        graph.verify()
        return graph, TensorData(self.consts)

    def _inputs(self) -> tuple[str, ...]:
        """Names that the host gives tensors for, in the model's order."""
        given = dict.fromkeys(
            i for t in self.tensors.values() if t.kind == "INPUT" for i in t.instances
        )
        ours = [p.name for p in self.model.inputs if p.name in given]
        return (*ours, *(n for n in given if n not in set(ours)))

    def _op(self, node: Node, j: int, inside: bool, last: dict[int, Value]) -> Op:
        names = []
        for k, v in enumerate(node.inputs):
            instances = self.repeat.instances.get((j, k)) if inside else None
            if instances is not None:
                names.append(self._outside(instances))
            elif not inside and id(v) in last:
                names.append(last[id(v)].name)
            else:
                names.append(self._plain(v))
        out = node.output
        kind: TensorKind = "OUTPUT" if id(out) in self.outputs else "ACTIVATION"
        shown: tuple[str, ...] = (out.name,)
        if inside and self.repeat.count > 1:
            layers = self._layers(j)
            if any(id(v) in self.outputs for v in layers):
                kind, shown = "OUTPUT", tuple(v.name for v in layers)
        self.tensors[out.name] = Tensor(out.name, kind, out.shape, out.dtype, shown)
        own = dict(node.attrs)
        if node.kind == "reshape":
            loose = loose_dims(node.inputs[0].labels, out.labels)
            if any(loose):
                own["loose"] = loose
        attrs = tuple(sorted(own.items()))
        label = self._op_name(node.name)
        return Op(label, node.kind, tuple(names), out.name, attrs, (node.source,))

    def _op_name(self, name: str) -> str:
        """`name`, numbered where another op has it already."""
        unique, n = name, 1
        while unique in self.op_names:
            unique, n = f"{name}#{n}", n + 1
        self.op_names.add(unique)
        return unique

    def _layers(self, j: int) -> list[Value]:
        r = self.repeat
        return [self.ops[r.start + i * r.period + j].output for i in range(r.count)]

    def _plain(self, v: Value) -> str:
        return v.name if v.node is not None else self._outside((v,))

    def _outside(self, instances: Sequence[Value]) -> str:
        """The tensor of a weight, constant, cache or input, made when first asked for."""
        if all(v is instances[0] for v in instances):
            instances = instances[:1]
        first = instances[0]
        for v in instances:  # a name stands for one constant, whatever the nodes are called
            while v.const is not None and self.consts.get(v.name, v.const) is not v.const:
                v.name = self.builder.unique(v.name)
        names = tuple(v.name for v in instances)
        key = (first.source, names)
        if key in self.by_key:
            return self.by_key[key]
        name = first.name if first.name not in self.tensors else self.builder.unique(first.name)
        kind: TensorKind
        if first.const is not None:
            fixed = all(v.const is not None and v.const.fixed for v in instances)
            kind = "WEIGHT" if fixed and not any(any(v.labels) for v in instances) else "CONSTANT"
            for v in instances:
                assert v.const is not None
                self.consts[v.name] = v.const
        else:
            kind = "CACHE" if first.source == "CACHE" else "INPUT"
        self.tensors[name] = Tensor(name, kind, first.shape, first.dtype, names)
        self.by_key[key] = name
        return name

    def _output(self, name: str, v: Value) -> tuple[str, str, int]:
        """(name in the model, tensor, repetition)."""
        r = self.repeat
        assert v.node is not None
        at = v.node.order
        if r.count > 1 and r.start <= at < self.body_last:
            layer, j = divmod(at - r.start, r.period)
            return (name, self.ops[r.start + j].output.name, layer)
        return (name, v.name, 0)

    def _pairs(self) -> list[CachePair]:
        """One pair per body; tensors are those of the first layer."""
        r = self.repeat
        found: dict[tuple[str | None, str], CachePair] = {}
        known: set[tuple[tuple[int, int], int, int | None]] = set()
        reads = {
            id(v): (i, k)
            for i, op in enumerate(self.ops)
            for k, v in enumerate(op.inputs)
            if v.source == "CACHE"
        }
        for s in self.streams:
            past, present = s.past, s.present
            node = present.node
            assert node is not None
            at = node.order
            inside = r.count > 1 and r.start <= at < self.body_last
            if inside:
                node = self.ops[r.start + (at - r.start) % r.period]
            name = None
            if past is not None:
                i, k = reads[id(past)]
                key = ((i - r.start) % r.period, k) if inside else (-1, k)
                if inside and (key, node.order, s.axis) in known:
                    continue  # the same of another layer
                known.add((key, node.order, s.axis))
                name = self._outside(r.instances.get(key, (past,)))
            pair = CachePair(name, node.output.name, s.axis)
            found.setdefault((pair.past, pair.present), pair)
        return list(found.values())
