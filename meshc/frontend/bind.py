"""bind(): from a model and a workload to a Graph of primitive ops."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshc.errors import InputError
from meshc.frontend.binding import bound_shape, folded_inputs
from meshc.frontend.builder import UNKNOWN, Builder, Node, Value
from meshc.frontend.folding import Const
from meshc.frontend.fuse import fuse as fuse_maps
from meshc.frontend.groups import share_heads
from meshc.frontend.importer import Importer, Poison
from meshc.frontend.labels import MIXED
from meshc.frontend.order import main_output, ordered, share_steady
from meshc.frontend.reader import Model
from meshc.frontend.repeats import Repeat, find_repeats
from meshc.frontend.simplify import Net, share_rows, simplify
from meshc.ir.dtypes import NUMPY
from meshc.ir.graph import CachePair, Graph, Op, Segment, Tensor, TensorKind
from meshc.ir.workload import Workload

_CACHE_OUTPUT = re.compile(r"present|past|cache|key|value")


@dataclass(frozen=True)
class TensorData:
    """Values of WEIGHT and CONSTANT instances, by their names in the graph."""

    consts: dict[str, Const]

    def read(self, name: str) -> np.ndarray:
        """The array; large weights are read from the model's files each time."""
        return self.consts[name].array()

    def digest(self, name: str) -> str:
        """Hash of type, shape and content: equal for a weight that two graphs share."""
        const = self.consts[name]
        state = hashlib.sha256(f"{const.dtype}{list(const.shape)}".encode())
        array = np.ascontiguousarray(const.array())
        state.update(array.reshape(-1).view(np.uint8).data)
        return state.hexdigest()


@dataclass(frozen=True)
class Bound:
    """A model bound to a workload.

    folded: the inputs that the workload determined, as an oracle must be fed.
    inputs: shape and dtype of those given at run time.
    caches: (past input or None, present output, shape of the past, dtype), in layer order.
    """

    graph: Graph
    data: TensorData
    folded: dict[str, np.ndarray]
    inputs: dict[str, tuple[tuple[int, ...], str]]
    caches: tuple[tuple[str | None, str, tuple[int, ...], str], ...]


def bind(
    model: Model, workload: Workload, *, dynamic_mask: bool = False, fuse: bool = True
) -> Bound:
    """Bind every dimension, fold what becomes constant, and lower the rest to primitive ops.

    fuse: merge chains of elementwise ops.   dynamic_mask: keep masks and positions as inputs.
    Raises InputError for what the graph or the workload does not allow.
    """
    workload.verify()
    builder = Builder()
    folded = folded_inputs(model, workload)
    if dynamic_mask:
        keep = {n for n, r in model.roles.roles.items() if r in ("mask", "positions")}
        folded = {n: a for n, a in folded.items() if n not in keep}
    inputs = _inputs(model, workload, builder, folded)
    importer = Importer(model, builder, workload.phase)
    names = [p.name for p in model.outputs]
    results = importer.run(dict(inputs), names)
    importer.check("leave out --dynamic-mask" if dynamic_mask else "")
    roots, pairs = _roots(model, builder, names, results)
    _check_shapes(model, inputs)
    net = Net(roots)
    simplify(net)
    pairs += _static_pairs(roots)
    present = {id(v) for _, v in pairs}
    for node in net.nodes():
        if node.kind == "append" and id(node.output) not in present:
            node.kind = "concat"  # nothing puts the longer cache out
    share_heads(net, builder)
    share_rows(net, workload.batch)
    main, ends = main_output(names), [v for _, v in roots]
    tokens = model.roles.tokens
    if dynamic_mask:
        share_steady(net, tokens)
    ops = ordered(net, main, tokens)
    repeat = find_repeats(ops, ends)
    if fuse:
        fuse_maps(net, repeat.layers(ops), repeat.leaving(ops))
        ops = ordered(net, main, tokens)
        repeat = find_repeats(ops, ends)
    graph, data = _Assembly(model, ops, repeat, roots, pairs, builder).build(importer, folded)
    given = {n: (inputs[n].shape, inputs[n].dtype) for n in graph.inputs}
    past_of = {id(present): past for past, present in pairs}
    caches = []
    named = {id(v): n for n, v in roots}
    for op in ops:
        if id(op.output) in past_of:
            past = past_of[id(op.output)]
            shape = list(op.output.shape)
            shape[op.attrs["axis"]] = past.shape[op.attrs["axis"]] if past is not None else 0
            name = past.name if past is not None else None
            caches.append((name, named[id(op.output)], tuple(shape), op.output.dtype))
    return Bound(graph, data, folded, given, tuple(caches))


def _inputs(
    model: Model, workload: Workload, b: Builder, folded: dict[str, np.ndarray]
) -> dict[str, Value]:
    """A value for every graph input: folded constant, cache, or run-time input."""
    found: dict[str, Value] = {}
    unbound: dict[str, None] = {}
    for port in model.inputs:
        unknown: list[str] = []
        shape, labels = bound_shape(model, port, workload, unknown)
        cache = port.name in model.roles.past
        if not cache:
            unbound.update(dict.fromkeys(unknown))
        if port.dtype not in NUMPY:
            raise InputError(
                f"Input '{port.name}' of '{model.path.name}' has {port.dtype}, which is not "
                "supported; export it in a float type."
            )
        b.names.add(port.name)
        if port.name in folded:
            const = Const.of(folded[port.name], port.dtype, MIXED)
            found[port.name] = Value(port.name, shape, port.dtype, labels, "CONST", const)
        else:
            kind = "CACHE" if cache else "INPUT"
            found[port.name] = Value(port.name, shape, port.dtype, labels, kind)
    if unbound:
        listed = ", ".join(f"'{n}'" for n in unbound)
        example = " ".join(f"--dim {n}=N" for n in unbound)
        raise InputError(
            f"Dimensions {listed} of '{model.path.name}' are not determined by the workload; bind "
            f"them with {example}."
        )
    return found


def _check_shapes(model: Model, inputs: dict[str, Value]) -> None:
    """Every cache must have got its dimensions from the ops that read it."""
    for value in inputs.values():
        if value.source == "CACHE" and UNKNOWN in value.shape:
            port = model.roles.ports[value.name]
            names = [str(d) for d, n in zip(port.dims, value.shape, strict=True) if n == UNKNOWN]
            raise InputError(
                f"Dimensions {', '.join(repr(n) for n in names)} of input '{value.name}' of "
                f"'{model.path.name}' are not determined by the graph; bind them with "
                f"{' '.join(f'--dim {n}=N' for n in names)}."
            )


def _roots(
    model: Model, b: Builder, names: Sequence[str], results: Sequence[Value | Poison | None]
) -> tuple[list[tuple[str, Value]], list[tuple[Value | None, Value]]]:
    """The graph's outputs, and (past, present) of every cache among them.

    An output that is no op's own result, or one that another output already is, gets a copy.
    """
    roots: list[tuple[str, Value]] = []
    pairs: list[tuple[Value | None, Value]] = []
    taken: set[int] = set()
    main = main_output(list(names))
    for name, value in zip(names, results, strict=True):
        if value is None or isinstance(value, Poison):
            raise InputError(
                f"Output '{name}' of '{model.path.name}' is made by no node; export the model "
                "again."
            )
        if value.node is not None and value.node.kind == "append" and id(value) not in taken:
            if len(value.node.inputs) == 2:
                pairs.append((value.node.inputs[0], value))
        elif name != main and not model.has_past and _is_cache(name, value):
            b.scope = b.source = name
            if value.name == name:
                value.name = b.unique(f"{name}.new")
                if value.node is not None and value.node.name == name:
                    value.node.name = value.name
            present = b.append(None, value, value.rank - 2, "append")
            present.name = name
            value = present
            pairs.append((None, value))
        elif value.node is None or id(value) in taken:
            b.scope = b.source = name
            copy = Value(b.unique(f"{name}.copy"), value.shape, value.dtype, value.labels)
            copy.node = Node(copy.name, "reshape", [value], {}, copy, name)
            value = copy
        taken.add(id(value))
        roots.append((name, value))
    return roots, pairs


def _static_pairs(roots: Sequence[tuple[str, Value]]) -> list[tuple[Value | None, Value]]:
    """Caches of fixed length: outputs that are a past input with rows written over."""
    found: list[tuple[Value | None, Value]] = []
    for _, v in roots:
        if v.node is None or v.node.kind != "concat":
            continue
        first = v.node.inputs[0].node
        if first is not None and first.kind == "slice" and first.inputs[0].source == "CACHE":
            found.append((first.inputs[0], v))
    return found


def _is_cache(name: str, value: Value) -> bool:
    return value.rank == 4 and value.node is not None and bool(_CACHE_OUTPUT.search(name.lower()))


class _Assembly:
    """Turns ordered nodes and their repeat into a Graph."""

    def __init__(
        self,
        model: Model,
        ops: Sequence[Node],
        repeat: Repeat,
        roots: Sequence[tuple[str, Value]],
        pairs: Sequence[tuple[Value | None, Value]],
        builder: Builder,
    ) -> None:
        self.model, self.ops, self.repeat = model, ops, repeat
        self.roots, self.pairs, self.builder = roots, pairs, builder
        self.outputs = {id(v) for _, v in roots}
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
            inputs=tuple(
                p.name for p in model.inputs
                if p.name in self.tensors and self.tensors[p.name].kind == "INPUT"
            ),
            outputs=tuple(self._output(name, v) for name, v in self.roots),
            caches=tuple(self._pairs()),
            parameters=importer.parameters,
            sha256=model.sha256,
            node_count=model.node_count,
            folded_inputs=tuple(folded),
        )  # fmt: skip
        graph.verify()
        return graph, TensorData(self.consts)

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
        attrs = tuple(sorted(node.attrs.items()))
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
        reads = {
            id(v): (i, k)
            for i, op in enumerate(self.ops)
            for k, v in enumerate(op.inputs)
            if v.source == "CACHE"
        }
        for past, present in self.pairs:
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
                name = self._outside(r.instances.get(key, (past,)))
            pair = CachePair(name, node.output.name, node.attrs["axis"])
            found.setdefault((pair.past, pair.present), pair)
        return list(found.values())
