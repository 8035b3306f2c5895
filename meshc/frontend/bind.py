"""bind(): from a model and a workload to a Graph of primitive ops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshc.errors import InputError
from meshc.frontend.assembly import Assembly, TensorData
from meshc.frontend.binding import bound_shape, folded_inputs
from meshc.frontend.builder import UNKNOWN, Builder, Node, Value
from meshc.frontend.folding import Const
from meshc.frontend.fuse import fuse as fuse_maps
from meshc.frontend.groups import share_heads
from meshc.frontend.importer import Importer, Poison
from meshc.frontend.labels import MIXED
from meshc.frontend.order import main_output, ordered, share_steady
from meshc.frontend.reader import Model
from meshc.frontend.repeats import find_repeats
from meshc.frontend.simplify import Net, share_rows, simplify
from meshc.ir.dtypes import NUMPY
from meshc.ir.graph import Graph
from meshc.ir.workload import Workload

_CACHE_OUTPUT = re.compile(r"present|past|cache|key|value")


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
    importer = Importer(model, builder, workload.phase)
    names = [p.name for p in model.outputs]
    try:
        folded = folded_inputs(model, workload)
        if dynamic_mask:
            keep = [n for n, r in model.roles.roles.items() if r in ("mask", "positions")]
            folded = {n: a for n, a in folded.items() if n not in keep}
        inputs = _inputs(model, workload, builder, folded)
    except InputError:
        importer.unknown(names)  # an operator that nothing supports is the better reason
        raise
    results = importer.run(dict(inputs), names)
    importer.check("leave out --dynamic-mask" if dynamic_mask else "")
    importer.check_names()
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
    graph, data = Assembly(model, ops, repeat, roots, pairs, builder).build(importer, folded)
    given = {n: (inputs[n].shape, inputs[n].dtype) for n in graph.inputs}
    return Bound(graph, data, folded, given, _caches(ops, roots, pairs))


def _caches(
    ops: Sequence[Node],
    roots: Sequence[tuple[str, Value]],
    pairs: Sequence[tuple[Value | None, Value]],
) -> tuple[tuple[str | None, str, tuple[int, ...], str], ...]:
    """(past, present, shape of the past, dtype) in the order of the ops, which is that of the
    layers."""
    past_of = {id(present): past for past, present in pairs}
    named = {id(v): n for n, v in roots}
    found = []
    for op in ops:
        if id(op.output) in past_of:
            past = past_of[id(op.output)]
            shape = list(op.output.shape)
            shape[op.attrs["axis"]] = past.shape[op.attrs["axis"]] if past is not None else 0
            name = past.name if past is not None else None
            found.append((name, named[id(op.output)], tuple(shape), op.output.dtype))
    return tuple(found)


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
