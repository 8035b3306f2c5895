"""`--dtype`: weights of matrix products stored in another type than the model's, by part.

Parts are told by structure. The head is the last product with weights, where what it makes becomes
the model's output without meeting another activation. Attention's are those whose result reaches a
product of activations, or a cache, before any other weights, and those whose operand comes from
such a product. The rest of the products with weights is the mlp's, but for those whose result picks
experts: these stay. So do weights that the model itself stores packed, and whatever is no operand
of a product, as norms and tables are: a table that is also the head's weights exists twice then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from meshc.errors import InputError
from meshc.frontend.assembly import TensorData
from meshc.frontend.bind import Bound
from meshc.frontend.folding import Const
from meshc.ir.dtypes import BLOCK_FORMATS, FLOATS, NUMPY
from meshc.ir.graph import Graph, Op, Segment, Tensor
from meshc.ops.blocks import blocks_of, from_blocks, to_blocks

PARTS = ("attention", "mlp", "head")
TYPES = ("keep", "fp32", "fp16", "bf16", "int8", "int4", "bfp8", "bfp4")
PRODUCTS = ("matmul", "experts")
VIEWS = ("transpose", "reshape", "slice", "expand")


def parse(text: str) -> dict[str, str]:
    """Part → type of a --dtype such as "bfp8" or "mlp=bfp4,attention=bfp8"; what is not named
    keeps the model's type. InputError for an unknown part or type."""
    found: dict[str, str] = {}
    for item in text.split(","):
        part, equals, name = item.strip().rpartition("=")
        if equals and part not in PARTS:
            raise InputError(
                f"--dtype names the part '{part}', which is not known; the parts are "
                f"{', '.join(PARTS)}."
            )
        if name not in TYPES:
            raise InputError(
                f"--dtype names the type '{name}', which is not known; the types are "
                f"{', '.join(TYPES)}."
            )
        for p in (part,) if equals else PARTS:
            if equals or p not in found:
                found[p] = name
    return {p: found[p] for p in PARTS if found.get(p, "keep") != "keep"}


def rounded(array: np.ndarray, name: str) -> np.ndarray:
    """What an array is after having been stored in a type, in its own type."""
    if name not in BLOCK_FORMATS:
        return array.astype(NUMPY[name]).astype(array.dtype)
    values = from_blocks(to_blocks(array, name), name)
    return values[..., : array.shape[-1]].astype(array.dtype)


@dataclass
class _Net:
    """Who makes and who reads each tensor, across layers and segments.

    makers, readers: by tensor.   aliases: a carried tensor → what it continues.
    """

    graph: Graph
    makers: dict[str, Op] = field(default_factory=dict)
    readers: dict[str, list[Op]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for _, op in self.graph.ops():
            self.makers[op.output] = op
            for name in dict.fromkeys(op.inputs):
                self.readers.setdefault(name, []).append(op)

    def weights(self, op: Op) -> str | None:
        """The stored floats that a product multiplies by; None where it has none."""
        if op.kind not in PRODUCTS:
            return None
        for name in op.inputs[:2]:
            while name in self.makers and self.makers[name].kind in VIEWS:
                name = self.makers[name].inputs[0]
            t = self.graph.tensors[name]
            if t.kind == "WEIGHT" and t.dtype in FLOATS and len(t.shape) >= 2:
                return name
        return None

    def weighs(self, op: Op) -> bool:
        """Whether one operand of a product is made of weights, in whatever form."""
        return op.kind in PRODUCTS and any(self._fixed(n) for n in op.inputs[:2])

    def _fixed(self, name: str) -> bool:
        op = self.makers.get(name)
        if op is None:
            return self.graph.tensors[name].kind == "WEIGHT"
        if op.kind == "append":
            return False
        return bool(op.inputs) and all(self._fixed(n) for n in op.inputs)

    def joins(self, op: Op) -> bool:
        """Whether an op is attention's own: a cache, or a product of activations."""
        caches = {p.present for p in self.graph.caches}
        product = op.kind == "attend" or (op.kind == "matmul" and not self.weighs(op))
        return product or op.kind == "append" or op.output in caches

    def reach(self, op: Op, wanted: Callable[[Op], bool], forward: bool) -> bool:
        """Whether a walk from an op, that ends at weights, meets a wanted op."""
        seen: set[str] = set()
        stack = [op]
        while stack:
            at = stack.pop()
            names = (at.output,) if forward else at.inputs
            for name in names:
                if forward:
                    near = self.readers.get(name, [])
                else:
                    near = [self.makers[name]] if name in self.makers else []
                for other in near:
                    if other.name in seen:
                        continue
                    seen.add(other.name)
                    if wanted(other):
                        return True
                    if not self.weighs(other):
                        stack.append(other)
        return False


def _part(net: _Net, op: Op, last: Op) -> str | None:
    """The part that a product with weights belongs to; None for one that stays."""
    if op is last and _is_head(net, op):
        return "head"
    if net.reach(op, lambda o: o.kind == "topk", True):
        return None
    if net.reach(op, net.joins, True) or net.reach(op, net.joins, False):
        return "attention"
    return "mlp"


def _is_head(net: _Net, op: Op) -> bool:
    """Whether a product's result becomes an output without meeting another activation."""
    name = op.output
    outputs = {tensor for _, tensor, _ in net.graph.outputs}
    while name not in outputs:
        readers = net.readers.get(name, [])
        if len(readers) != 1:
            return False
        others = [n for n in readers[0].inputs if n != name]
        if any(net.graph.tensors[n].kind in ("ACTIVATION", "CACHE", "INPUT") for n in others):
            return False
        name = readers[0].output
    return True


def parts(graph: Graph) -> dict[str, tuple[str, str]]:
    """Product → (its part, the tensor with its weights), of a graph of primitives."""
    net = _Net(graph)
    found = [(op, w) for _, op in graph.ops() if (w := net.weights(op)) is not None]
    if not found:
        return {}
    last = found[-1][0]
    named = ((op, w, _part(net, op, last)) for op, w in found)
    return {op.name: (part, w) for op, w, part in named if part is not None}


def store(bound: Bound, wanted: dict[str, str], names: set[str]) -> Bound:
    """Store the weights of products as --dtype says; `stored` of the result names them.

    wanted: part → type.   names: of the values in the model's graph; weights that are put together
    from several of them, as stacks of experts, stay.
    """
    graph, data = bound.graph, dict(bound.data.consts)
    types: dict[str, str] = {}
    tensors = dict(graph.tensors)
    found = parts(graph)
    segments = []
    for segment in graph.segments:
        ops: list[Op] = []
        for op in segment.ops:
            part, weights = found.get(op.name, ("", ""))
            form = wanted.get(part)
            t = graph.tensors.get(weights)
            if form is None or t is None or t.dtype == form or not set(t.instances) <= names:
                ops.append(op)
                continue
            if types.setdefault(t.instances[0], form) != form:
                raise InputError(
                    f"Weight '{t.instances[0]}' belongs to parts that --dtype stores in "
                    f"{types[t.instances[0]]} and in {form}; give them one type."
                )
            types.update(dict.fromkeys(t.instances, form))
            ops += _reading(tensors, data, segment, op, t, form)
        segments.append(replace(segment, ops=tuple(_read(ops, segment, graph))))
    read = {n for s in segments for op in s.ops for n in (*op.inputs, op.output)}
    read |= {n for s in segments for pair in s.carried for n in pair}
    tensors = {n: t for n, t in tensors.items() if t.kind != "WEIGHT" or n in read}
    graph = replace(graph, segments=tuple(segments), tensors=tensors)
    graph.verify()
    return replace(bound, graph=graph, data=TensorData(data), stored=types)


def _read(ops: list[Op], segment: Segment, graph: Graph) -> list[Op]:
    """Ops without the views of weights that nothing reads any more."""
    wanted = {n for s in graph.segments if s is not segment for op in s.ops for n in op.inputs}
    wanted |= {n for s in graph.segments for pair in s.carried for n in pair}
    wanted |= {tensor for _, tensor, _ in graph.outputs} | {p.present for p in graph.caches}
    kept: list[Op] = []
    for op in reversed(ops):
        if op.kind not in VIEWS or op.output in wanted or any(op.output in o.inputs for o in kept):
            kept.append(op)
    return kept[::-1]


def _reading(
    tensors: dict[str, Tensor],
    data: dict[str, Const],
    segment: Segment,
    op: Op,
    t: Tensor,
    form: str,
) -> list[Op]:
    """The ops in place of `op` that read its weights `t` stored in a type."""
    makers = {o.output: o for o in segment.ops}
    instances = tuple(f"{n} as {form}" for n in t.instances)
    name = f"{t.name} as {form}"
    block = BLOCK_FORMATS.get(form)
    shape, dtype = t.shape, form
    if block is not None:
        shape, dtype = (*t.shape[:-1], blocks_of(t.shape[-1], form)), block.dtype
    tensors[name] = Tensor(name, "WEIGHT", shape, dtype, instances)
    for own, stored in zip(t.instances, instances, strict=True):
        source = data[own]
        make = partial(_converted, source, form)
        data[stored] = Const(shape, dtype, source.origin, make, source.outside, source.lacks)
    made: list[Op] = []
    if block is not None:
        # Products that share weights have kernels of their own, each with what restores them.
        whole, label = (*t.shape[:-1], shape[-1] * block.elements), f"{op.name}.{form}"
        attrs = (("bits", block.bits), ("format", form), ("to", t.dtype))
        tensors[label] = Tensor(label, "ACTIVATION", whole, t.dtype, (label,))
        made.append(Op(label, "restore", (name,), label, attrs, op.source))
        name = label
        if whole != t.shape:
            cut = f"{label}.cut"
            tensors[cut] = Tensor(cut, "ACTIVATION", t.shape, t.dtype, (cut,))
            first = (("axis", len(t.shape) - 1), ("start", 0), ("step", 1))
            made.append(Op(cut, "slice", (label,), cut, first, op.source))
            name = cut

    def through(tensor: str) -> str:
        """`tensor` with the stored weights in place of `t`; views on the way are made anew."""
        if tensor == t.name:
            return name
        view = makers.get(tensor)
        if view is None or view.kind not in VIEWS:
            return tensor
        source = through(view.inputs[0])
        if source == view.inputs[0]:
            return tensor
        label = f"{op.name}.{tensor}"
        old = tensors[tensor]
        kind = old.dtype if block is not None else form
        tensors[label] = Tensor(label, "ACTIVATION", old.shape, kind, (label,))
        made.append(replace(view, name=label, inputs=(source, *view.inputs[1:]), output=label))
        return label

    inputs = tuple(through(n) for n in op.inputs[:2])
    return [*made, replace(op, inputs=(*inputs, *op.inputs[2:]))]


def _converted(source: Const, form: str) -> np.ndarray:
    array = source.array()
    return to_blocks(array, form) if form in BLOCK_FORMATS else array.astype(NUMPY[form])
