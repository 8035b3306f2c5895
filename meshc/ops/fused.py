"""fused: several primitives that one kernel runs, element after element.

Attribute `shapes` has (tensor, shape, dtype) of every tensor inside the op, its operands included.
What runs along what cannot be told from sizes of one: a step's op also has attribute `planned`, the
`shapes` of the graph that it was planned for.
The iteration space is the union of the inner ones: where an inner tensor passes from one
primitive to the next, the dimensions that both run along it are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, prod

import numpy as np

from meshc.ir.dtypes import FLOATS, NUMPY, size_bytes
from meshc.ir.graph import Op, Tensor
from meshc.ops.passes import VIEWS, completed, passes
from meshc.ops.record import (
    PARTIAL,
    ROW_BLOCK,
    DimKind,
    IterDim,
    OpRecord,
    Ranges,
    Space,
    Use,
    Work,
)
from meshc.ops.restore import NATIVE

Dim = tuple[int, int]  # inner op, its iteration dimension


@dataclass
class _Union:
    """Dimensions that are one, with the number of a member's units in one of the root's."""

    size: dict[Dim, int] = field(default_factory=dict)
    kind: dict[Dim, DimKind] = field(default_factory=dict)
    parent: dict[Dim, tuple[Dim, int]] = field(default_factory=dict)

    def root(self, dim: Dim) -> tuple[Dim, int]:
        factor = 1
        while dim in self.parent:
            dim, f = self.parent[dim]
            factor *= f
        return dim, factor

    def use(self, op: int, use: Use) -> Use | tuple[Dim, int]:
        """An inner use as (root, unit), or the plain whole Use."""
        if use.dim is None:
            return use
        root, factor = self.root((op, use.dim))
        return root, use.unit * factor

    def whole(self, dim: Dim) -> None:
        self.kind[self.root(dim)[0]] = "whole"

    def join(self, a: tuple[Dim, int], b: tuple[Dim, int]) -> None:
        """Make one of two roots that run along the same tensor dimension."""
        (ra, ua), (rb, ub) = a, b
        if ra == rb:
            if ua != ub:
                self.whole(ra)
            return
        if ua % ub and ub % ua:
            self.whole(ra)
            self.whole(rb)
            return
        if ub > ua:
            (ra, ua), (rb, ub) = (rb, ub), (ra, ua)
        self.parent[rb] = (ra, ua // ub)
        kinds = {self.kind[ra], self.kind[rb]}
        if "whole" in kinds:
            self.kind[ra] = "whole"
        elif kinds != {"parallel"}:
            (self.kind[ra],) = kinds - {"parallel"}


@dataclass(frozen=True)
class Inside:
    """A fused op worked out: its space, and the uses of every inner tensor."""

    space: Space
    uses: dict[str, tuple[Use, ...]]
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


@lru_cache(maxsize=4096)
def inside(op: Op) -> Inside:
    """The iteration space of a fused op and how each inner tensor lies in it."""
    from meshc.ops.registry import record

    planned = {n: tuple(s) for n, s, _ in op.attr("planned") or op.attr("shapes")}
    dtypes = {n: d for n, _, d in op.attr("shapes")}

    def tensor(name: str) -> Tensor:
        return Tensor(name, "ACTIVATION", planned[name], dtypes[name], (name,))

    spaces = [
        record(o.kind).space(o, [tensor(i) for i in o.inputs], tensor(o.output)) for o in op.body
    ]
    union = _Union()
    for i, s in enumerate(spaces):
        for d, dim in enumerate(s.dims):
            union.size[i, d] = dim.size
            union.kind[i, d] = dim.kind
    for i in completed(op.body):
        for d, dim in enumerate(spaces[i].dims):
            if dim.kind in PARTIAL:
                union.whole((i, d))
    seen: dict[str, list[tuple[int, tuple[Use, ...]]]] = {}
    for i, (o, s) in enumerate(zip(op.body, spaces, strict=True)):
        for name, uses in zip((*o.inputs, o.output), (*s.inputs, s.output), strict=True):
            seen.setdefault(name, []).append((i, uses))
    # Join until nothing changes: a join can make an earlier pair of units unequal.
    for _ in range(len(op.body) + 1):
        before = (dict(union.parent), dict(union.kind))
        for found in seen.values():
            first, uses = found[0]
            for other, theirs in found[1:]:
                for a, b in zip(uses, theirs, strict=True):
                    x, y = union.use(first, a), union.use(other, b)
                    if isinstance(x, tuple) and isinstance(y, tuple):
                        union.join(x, y)
                    elif isinstance(x, tuple):
                        union.whole(x[0])
                    elif isinstance(y, tuple):
                        union.whole(y[0])
        for found in seen.values():
            for i, uses in found:
                roots = [u[0] for u in (union.use(i, use) for use in uses) if isinstance(u, tuple)]
                for r in roots:
                    if roots.count(r) > 1:  # one dimension cannot divide two of a tensor's
                        union.whole(r)
        if before == (union.parent, union.kind):
            break
    roots = [d for d in union.size if d not in union.parent]
    number = {r: k for k, r in enumerate(roots)}
    dims = tuple(IterDim(f"d{k}", union.size[r], union.kind[r]) for k, r in enumerate(roots))

    def resolved(i: int, uses: tuple[Use, ...]) -> tuple[Use, ...]:
        out = []
        for use in uses:
            u = union.use(i, use)
            if isinstance(u, tuple) and union.kind[u[0]] != "whole":
                out.append(Use(number[u[0]], u[1]))
            else:
                out.append(Use(None))
        return tuple(out)

    uses_of = {name: resolved(*found[0]) for name, found in seen.items()}
    space = Space(dims, tuple(uses_of[n] for n in op.inputs), uses_of[op.output])
    shapes = {n: tuple(s) for n, s, _ in op.attr("shapes")}
    return Inside(space, uses_of, shapes, dtypes)


def _space(op: Op, inputs: Sequence[Tensor], output: Tensor) -> Space:
    del inputs, output
    return inside(op).space


def _unit_ranges(op: Op, known: Inside, operands: Sequence[Ranges]) -> dict[int, range]:
    """Which units of each iteration dimension a lane works on, from its operands' shards."""
    found: dict[int, range] = {}
    for name, ranges in zip((*op.inputs, op.output), operands, strict=True):
        for use, r in zip(known.uses[name], ranges, strict=True):
            if use.dim is None:
                continue
            found[use.dim] = r if use.unit == 1 else range(r.start // use.unit, r.stop // use.unit)
    return found


def _inner_ranges(known: Inside, name: str, units: dict[int, range]) -> Ranges:
    out = []
    for use, n in zip(known.uses[name], known.shapes[name], strict=True):
        if use.dim is None or use.dim not in units:
            out.append(range(n))
        else:
            r = units[use.dim]
            out.append(r if use.unit == 1 else range(r.start * use.unit, r.stop * use.unit))
    return tuple(out)


def _evaluate(
    op: Op, arrays: Sequence[np.ndarray], inputs: Sequence[Ranges], output: Ranges
) -> np.ndarray:
    from meshc.ops.registry import record

    known = inside(op)
    units = _unit_ranges(op, known, (*inputs, output))
    values = dict(zip(op.inputs, arrays, strict=True))
    ranges = dict(zip(op.inputs, inputs, strict=True))
    for o in op.body:
        ranges[o.output] = _inner_ranges(known, o.output, units)
        value = record(o.kind).evaluate(
            o, [values[i] for i in o.inputs], [ranges[i] for i in o.inputs], ranges[o.output]
        )
        if o.output != op.output:
            with np.errstate(all="ignore"):
                value = value.astype(NUMPY[known.dtypes[o.output]], copy=False)
        values[o.output] = value
    return values[op.output]


def _local(
    op: Op, known: Inside, shapes: Sequence[tuple[int, ...]], output: tuple[int, ...]
) -> Callable[[str], tuple[int, ...]]:
    """The shape on one lane of any tensor inside, from those of the operands."""
    units: dict[int, int] = {}
    for name, shape in zip((*op.inputs, op.output), (*shapes, output), strict=True):
        for use, n in zip(known.uses[name], shape, strict=True):
            if use.dim is not None:
                units[use.dim] = -(-n // use.unit)

    def local(name: str) -> tuple[int, ...]:
        return tuple(
            n if use.dim is None else units.get(use.dim, n // use.unit) * use.unit
            for use, n in zip(known.uses[name], known.shapes[name], strict=True)
        )

    return local


def _work(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> Work:
    """The arithmetic of all primitives. SRAM sees the fused op's own operands, once for every
    pass over them, and the inner tensors that must be kept."""
    from meshc.ops.registry import record

    known = inside(op)
    local = _local(op, known, shapes, output)

    def one(o: Op) -> Work:
        types = [known.dtypes[n] for n in (*o.inputs, o.output)]
        return record(o.kind).work(
            o, [local(i) for i in o.inputs], local(o.output), types[:-1], types[-1]
        )

    operands = [(n, prod(s) * size_bytes(d)) for n, s, d in zip(op.inputs, shapes, dtypes,
                                                               strict=True)]  # fmt: skip
    return _total(op, one, local, operands, prod(output) * size_bytes(output_dtype))


def _share(
    op: Op, inputs: Sequence[Ranges], output: Ranges, dtypes: Sequence[str], out: str, layer: int
) -> Work:
    """The work of the lane that holds these parts, where lanes with equal shapes differ."""
    from meshc.ops.registry import share

    known = inside(op)
    units = _unit_ranges(op, known, (*inputs, output))

    def ranges(name: str) -> Ranges:
        return _inner_ranges(known, name, units)

    def local(name: str) -> tuple[int, ...]:
        return tuple(map(len, ranges(name)))

    def one(o: Op) -> Work:
        types = [known.dtypes[n] for n in (*o.inputs, o.output)]
        own = [ranges(n) for n in o.inputs]
        return share(o, own, ranges(o.output), types[:-1], types[-1], layer)

    operands = [(n, prod(map(len, r)) * size_bytes(d)) for n, r, d in zip(op.inputs, inputs, dtypes,
                                                                         strict=True)]  # fmt: skip
    return _total(op, one, local, operands, prod(map(len, output)) * size_bytes(out))


def _total(
    op: Op,
    one: Callable[[Op], Work],
    local: Callable[[str], tuple[int, ...]],
    operands: Sequence[tuple[str, int]],
    output_bytes: int,
) -> Work:
    """The work of the primitives together. operands: bytes that the lane holds of each."""
    works = {o.output: one(o) for o in op.body}
    parts = _read_parts(op, works, local)
    dtypes = inside(op).dtypes
    kept, again = passes(op)
    held = dict(operands)
    inner = sum((times - 1) * held[n] for n, times in again)
    inner += sum(2 * prod(local(n)) * size_bytes(dtypes[n]) for n in kept)
    matmuls: list[tuple[int, int, int, int]] = []
    dtype, vector_ops, floats = "fp32", 0.0, []
    stored, restore_ops, formats = "", 0.0, _formats(op)
    picked: int | None = None
    for o in op.body:
        w = works[o.output]
        matmuls += w.matmuls
        inner += w.inner_bytes
        restore_ops += w.restore_ops * parts.get(o.output, 1.0)
        if w.matmuls:
            dtype = w.dtype
            stored = w.stored or next((formats[n] for n in o.inputs if n in formats), stored)
        if w.vector_ops:
            vector_ops += w.vector_ops * parts.get(o.output, 1.0)
            floats.append(w.vector_dtype)
        if o.kind == "gather":  # reads only the rows that it picks
            picked = (picked or 0) + w.sram_bytes
    whole = sum(ceil(n * parts.get(name, 1.0)) for name, n in operands)
    traffic = whole + output_bytes if picked is None else picked
    vector_dtype = max(floats, key=FLOATS.index) if floats else "fp32"
    if not matmuls:
        stored = next(iter(formats.values()), "")
    return Work(
        tuple(matmuls), dtype, vector_ops, vector_dtype, traffic + inner, inner, stored, restore_ops
    )


def _formats(op: Op) -> dict[str, str]:
    """Inner tensors that show weights out of blocks → the blocks' format."""
    found: dict[str, str] = {}
    for o in op.body:
        if o.kind == "restore" and o.attr("format") in NATIVE:
            found[o.output] = o.attr("format")
        elif o.kind in VIEWS and o.inputs[0] in found:
            found[o.output] = found[o.inputs[0]]
    return found


def _read_parts(
    op: Op, works: Mapping[str, Work], local: Callable[[str], tuple[int, ...]]
) -> dict[str, float]:
    """Share of the weights of experts, and of what makes them, that is read: that of the experts
    with rows."""
    parts: dict[str, float] = {}
    for o in op.body:
        if o.kind == "experts":
            busy = sum(times for *_, times in works[o.output].matmuls)
            parts[o.inputs[1]] = busy / max(1, local(o.inputs[1])[0])
    for o in reversed(op.body):
        if o.output in parts:
            parts.update(dict.fromkeys(o.inputs, parts[o.output]))
    return parts


def _scratch(
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    dtypes: Sequence[str],
    output_dtype: str,
) -> int:
    """A block of rows of every inner tensor that must be kept, and what the primitives need."""
    from meshc.ops.registry import record

    del dtypes, output_dtype
    known = inside(op)
    local = _local(op, known, shapes, output)
    total = 0
    for n in passes(op)[0]:
        shape = local(n)
        rows = min(prod(shape[:-1]), ROW_BLOCK)
        total += rows * (shape[-1] if shape else 1) * size_bytes(known.dtypes[n])
    for o in op.body:
        types = [known.dtypes[n] for n in (*o.inputs, o.output)]
        own = [local(n) for n in o.inputs]
        total += record(o.kind).scratch(o, own, local(o.output), types[:-1], types[-1])
    return total


RECORD = OpRecord("fused", _space, _evaluate, _work, _share, _scratch)
