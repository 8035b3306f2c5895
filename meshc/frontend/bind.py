"""bind(): from a model and a workload to a Graph of primitive ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshc.errors import InputError
from meshc.frontend.assembly import Assembly, TensorData
from meshc.frontend.binding import bound_shape, folded_inputs
from meshc.frontend.builder import UNKNOWN, Builder, Node, Value
from meshc.frontend.cacheviews import join_arrays, split_arrays
from meshc.frontend.expertload import loaded
from meshc.frontend.experts import recognise_experts
from meshc.frontend.folding import Const
from meshc.frontend.fuse import fuse as fuse_maps
from meshc.frontend.gates import split_gates
from meshc.frontend.groups import share_heads
from meshc.frontend.importer import Importer
from meshc.frontend.kept import Kept, kept_entries
from meshc.frontend.labels import MIXED
from meshc.frontend.order import main_output, ordered, share_steady
from meshc.frontend.reader import Model
from meshc.frontend.repeats import find_repeats, free_numbers
from meshc.frontend.simplify import Net, share_rows, simplify
from meshc.frontend.streams import (
    Ends,
    Stream,
    cache_values,
    find_ends,
    pair_replaced,
    settle,
    sort_streams,
    stacks_of,
)
from meshc.frontend.survey import Survey
from meshc.ir.dtypes import NUMPY
from meshc.ir.graph import Graph
from meshc.ir.workload import Workload


@dataclass(frozen=True)
class Bound:
    """A model bound to a workload.

    folded: the inputs that the workload determined, as an oracle must be fed.
    inputs: shape and dtype of those given at run time.
    caches: (past input or None, present output, shape of the past, dtype), in layer order.
    stacks: tensors of the model that the graph keeps in parts → the parts' names.
    carried: inputs that an output of the step before continues → that output.
    defined: outputs of which only the first elements of an axis mean something → (axis, count).
    unread: inputs of the model that the bound graph does not read.
    usual: values of the masks and positions that were not folded, where nothing is padding.
    kept: what the growing caches hold after the step.
    stored: values of the model that products read stored in another type → that type.
    """

    graph: Graph
    data: TensorData
    folded: dict[str, np.ndarray]
    inputs: dict[str, tuple[tuple[int, ...], str]]
    caches: tuple[tuple[str | None, str, tuple[int, ...], str], ...]
    stacks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    carried: dict[str, str] = field(default_factory=dict)
    defined: dict[str, tuple[int, int]] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    usual: dict[str, np.ndarray] = field(default_factory=dict)
    kept: tuple[Kept, ...] = ()
    stored: dict[str, str] = field(default_factory=dict)

    def parts(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The model's tensors as the graph names them."""
        return split_arrays(arrays, self.stacks)

    def whole(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The graph's inputs or outputs as the model names them."""
        return join_arrays(arrays, self.stacks)


def bind(
    model: Model,
    workload: Workload,
    *,
    dynamic_mask: bool = False,
    fuse: bool = True,
    recognise: bool = True,
    survey: Survey | None = None,
) -> Bound:
    """Bind every dimension, fold what becomes constant, and lower the rest to primitive ops.

    fuse: merge chains of elementwise ops.   recognise: make sums over experts, however they are
    written, grouped products.   dynamic_mask: keep masks and positions as inputs.
    survey: receives what becomes of every node.
    Raises InputError for what the graph or the workload does not allow.
    """
    workload.verify()
    bound = _bind(model, workload, dynamic_mask, fuse, recognise, True, survey)
    if bound is None:  # what is stacked must stay so
        if survey is not None:
            survey.clear()
        bound = _bind(model, workload, dynamic_mask, fuse, recognise, False, survey)
    assert bound is not None
    return bound


def _bind(
    model: Model,
    workload: Workload,
    dynamic_mask: bool,
    fuse: bool,
    recognise: bool,
    split: bool,
    survey: Survey | None,
) -> Bound | None:
    """split: keep stacked caches in parts; None where the graph does not allow it."""
    builder = Builder()
    importer = Importer(model, builder, workload.phase, survey=survey)
    names = [p.name for p in model.outputs]
    usual: dict[str, np.ndarray] = {}
    try:
        folded = folded_inputs(model, workload)
        if dynamic_mask:
            keep = [n for n, r in model.roles.roles.items() if r in ("mask", "positions")]
            usual = {n: a for n, a in folded.items() if n in keep}
            folded = {n: a for n, a in folded.items() if n not in keep}
        inputs = _inputs(model, workload, builder, folded)
    except InputError:
        importer.unknown(names)  # an operator that nothing supports is the better reason
        raise
    stacks = stacks_of(model, inputs) if split else {}
    own = dict(inputs)
    caches = cache_values(model, builder, inputs, stacks)
    results = importer.run(dict(inputs), names)
    importer.check("leave out --dynamic-mask" if dynamic_mask else "")
    importer.check_names()
    ends = find_ends(model, builder, names, results, caches, inputs, stacks)
    if ends is None:
        return None
    _check_shapes(model, own)
    net = Net(ends.roots)
    if recognise:
        recognise_experts(net, builder)
    simplify(net)
    if recognise:
        split_gates(net, builder)
    pair_replaced(model, ends, net, caches)
    kept = kept_entries(model, ends)
    present = {id(s.present) for s in ends.streams}
    for node in net.nodes():
        if node.kind == "append" and id(node.output) not in present:
            node.kind = "concat"  # nothing puts the longer cache out
    share_heads(net, builder)
    share_rows(net, workload.batch)
    main, values = main_output(names), [v for _, v in ends.roots]
    moving = {n for n, r in model.roles.roles.items() if r not in ("mask", "positions", "other")}
    moving.update(caches)
    if dynamic_mask:
        share_steady(net, moving)
    ops = ordered(net, main, moving, _after(net, ends))
    if settle(net, ends, ops):
        ops = ordered(net, main, moving, _after(net, ends))
    repeat = free_numbers(ops, values, builder)
    if fuse:
        fuse_maps(net, repeat.layers(ops), repeat.leaving(ops))
        ops = ordered(net, main, moving, _after(net, ends))
        if settle(net, ends, ops):
            ops = ordered(net, main, moving, _after(net, ends))
        repeat = find_repeats(ops, values)
    if survey is not None:
        for i in range(repeat.start, repeat.start + repeat.period * repeat.count):
            twin = ops[repeat.start + (i - repeat.start) % repeat.period]
            survey.first[ops[i].source] = twin.source
    streams = sort_streams(ends.streams)
    graph, data = Assembly(model, ops, repeat, ends.roots, streams, builder).build(importer, folded)
    graph = loaded(graph, workload)
    known = {**own, **{p: c for p, c in caches.items()}}
    given = {n: (known[n].shape, known[n].dtype) for n in graph.inputs}
    defined = {n: builder.defined[id(v)] for n, v in ends.roots if id(v) in builder.defined}
    found = _caches(ops, streams)
    taken = {*given, *folded, *(c[0] for c in found), *ends.stacks}
    unread = tuple(n for n in own if n not in taken)
    return Bound(
        graph, data, folded, given, found, ends.stacks, ends.carried, defined, unread, usual, kept
    )


def _after(net: Net, ends: Ends) -> dict[int, list[Node]]:
    """Presents that take their past's place come after all that reads the past."""
    writers = {id(s.past): s.present.node for s in ends.streams if s.past is not None}
    found: dict[int, list[Node]] = {}
    for node in net.nodes():
        for v in node.inputs:
            writer = writers.get(id(v))
            if writer is not None and writer is not node and writer.kind != "append":
                found.setdefault(id(writer), []).append(node)
    return found


def _caches(
    ops: Sequence[Node], streams: Sequence[Stream]
) -> tuple[tuple[str | None, str, tuple[int, ...], str], ...]:
    """(past, present, shape of the past, dtype) in the order of the ops, which is that of the
    layers."""
    stream_of = {id(s.present): s for s in streams}
    found = []
    for op in ops:
        s = stream_of.get(id(op.output))
        if s is None:
            continue
        shape = list(op.output.shape)
        if s.past is not None:
            shape = list(s.past.shape)
        elif s.axis is not None:
            shape[s.axis] = 0
        name = s.past.name if s.past is not None else None
        found.append((name, s.name, tuple(shape), op.output.dtype))
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
