"""Fusion: primitives that one kernel can run without keeping what passes between them.

A group has one core op. Views (transpose, reshape, slice, expand, concat) in front of it become
the way it reads its operands, views behind it the way it writes its result; elementwise ops join
when the core is elementwise or a reduction, which take each element as it comes. A matmul also
takes what makes its operand from weights or a cache alone (unpacking and scaling of quantised
ones), so that they stay small in SRAM. Forms (see `meshc.patterns`) let a kernel span reductions,
whose dimensions it then has whole. What happens depends only on the graph's structure, never on
its sizes, so that a graph bound for another context fuses alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from meshc import patterns
from meshc.ir.dtypes import size_bytes
from meshc.ir.graph import Graph, Op, Tensor
from meshc.ops.passes import VIEWS

PRODUCTS = ("matmul", "experts")  # multiply by weights, which may be stored smaller
EACH = ("map", "unpack", "restore")  # take each element as it comes
LARGEST = 48  # primitives in a group


def fuse(graph: Graph, forms: Collection[str] = ()) -> Graph:
    """The graph with groups of ops as single ops of kind "fused".

    forms: those of `meshc.patterns.FORMS` that kernels may take.
    """
    if "attention" in forms:
        graph = patterns.rewrite(graph)
    kept = _kept(graph)
    readers = Counter(name for _, op in graph.ops() for name in dict.fromkeys(op.inputs))
    replaced = _replaced(graph)
    segments = tuple(
        replace(
            s, ops=_Grouping(list(s.ops), graph.tensors, kept, readers, replaced, forms).fused()
        )
        for s in graph.segments
    )
    used = {n for s in segments for op in s.ops for n in (*op.inputs, op.output)}
    used |= {n for s in graph.segments for pair in s.carried for n in pair} | kept
    return replace(
        graph,
        segments=segments,
        tensors={n: t for n, t in graph.tensors.items() if n in used},
    )


def _kept(graph: Graph) -> set[str]:
    """Tensors that must exist: outputs, caches, and what passes between layers or segments."""
    kept = {tensor for _, tensor, _ in graph.outputs}
    kept |= {n for s in graph.segments for pair in s.carried for n in pair}
    kept |= {p.present for p in graph.caches}
    home = {op.output: s.name for s, op in graph.ops()}
    for s, op in graph.ops():
        kept |= {n for n in op.inputs if home.get(n, s.name) != s.name}
    return kept


def _replaced(graph: Graph) -> dict[str, str]:
    """Past → present of the caches that a step writes over: what reads the past must stay before
    what writes the present, so it runs where it stands or in the writer itself."""
    kinds = {op.output: op.kind for _, op in graph.ops()}
    return {
        p.past: p.present
        for p in graph.caches
        if p.past is not None and kinds.get(p.present) != "append"
    }


def _stored(ops: list[Op], tensors: dict[str, Tensor]) -> set[int]:
    """Places of the ops that compute on weights, and on caches of small integers, alone."""
    made = {
        op.output for op in ops if op.kind == "append" and size_bytes(tensors[op.output].dtype) == 1
    }
    found = set()
    for i, op in enumerate(ops):
        if (op.kind in EACH or op.kind in VIEWS) and all(
            n in made or tensors[n].kind == "WEIGHT" for n in op.inputs
        ):
            found.add(i)
            made.add(op.output)
    return found


# What a member of a group may take in: "plain" what passes its core by element, "score" what makes
# the scores of an attention, "operand" only views.
Role = Literal["plain", "score", "operand"]


@dataclass
class _Grouping:
    """Grows a group backwards from each op of a segment that is not yet in one, last op first;
    then lets views that nothing took join the op whose result they show.

    replaced: see `_replaced`.   stored: places of the ops that compute on weights alone.
    group: op → the core of its group.   groups: core → its members, each with its role.
    """

    ops: list[Op]
    tensors: dict[str, Tensor]
    kept: set[str]
    readers: Counter[str]
    replaced: dict[str, str]
    forms: Collection[str]
    stored: set[int] = field(default_factory=set)
    made_at: dict[str, int] = field(default_factory=dict)
    group: dict[int, int] = field(default_factory=dict)
    groups: dict[int, dict[int, Role]] = field(default_factory=dict)

    def fused(self) -> tuple[Op, ...]:
        """The segment's ops, those of one group as one."""
        self.made_at = {op.output: i for i, op in enumerate(self.ops)}
        self.stored = _stored(self.ops, self.tensors)
        for core in reversed(range(len(self.ops))):
            if core in self.group:
                continue
            self.group[core] = core
            self.groups[core] = {core: "plain"}
            if self.ops[core].kind != "append":
                self._grow(core)
        self._write_through()
        return tuple(
            self.ops[members[0]]
            if len(members) == 1
            else _fused(
                [self.ops[i] for i in members],
                self.tensors,
                [self.ops[i] for i in members if i in self.stored],
            )
            for members in sorted((sorted(m) for m in self.groups.values()), key=lambda m: m[-1])
        )

    def _grow(self, core: int) -> None:
        """Take in every producer whose readers are all in the group."""
        members = self.groups[core]
        changed = True
        while changed and len(members) < LARGEST:
            changed = False
            inside = {n for i in members for n in self.ops[i].inputs}
            for name in sorted(inside, key=lambda n: -self.made_at.get(n, -1)):
                at = self.made_at.get(name)
                if at is None or at in self.group or name in self.kept:
                    continue
                reading = [i for i in members if name in self.ops[i].inputs]
                role = self._role(core, name, reading)
                if len(reading) != self.readers[name] or role is None:
                    continue
                own = self.ops[core].output
                if any(self.replaced.get(n, own) != own for n in self.ops[at].inputs):
                    continue
                self.group[at] = core
                members[at] = role
                changed = True
                break

    def _role(self, core: int, name: str, reading: list[int]) -> Role | None:
        """What the producer of `name` would be in the group of its readers; None where it may
        not join one of them."""
        found: set[Role] = set()
        op = self.ops[self.made_at[name]]
        for i in reading:
            reader, role = self.ops[i], self.groups[core][i]
            if reader.kind == "attend":
                role = "score" if reader.inputs[0] == name else "operand"
                if reader.inputs[0] == reader.inputs[1]:
                    return None
            elif reader.kind in PRODUCTS:
                role = "operand"
            if role == "operand":
                fits = self.made_at[name] in self.stored or (
                    op.kind in VIEWS - {"concat"}
                    and self.ops[core].kind != "experts"
                    and not self._regroups(core, op)
                )
            elif role == "score":
                fits = op.kind in VIEWS or op.kind in (*EACH, "matmul")
            else:
                fits = self._fits_plain(core, op)
            if not fits:
                return None
            found.add(role)
        order: tuple[Role, ...] = ("operand", "plain", "score")
        return next((r for r in order if r in found), None)

    def _regroups(self, core: int, op: Op) -> bool:
        """Whether a view would tie a weight's dimension to the heads that the view joins or parts,
        so that it can be divided into no more parts than there are heads."""
        if "heads" in self.forms or self.ops[core].kind != "matmul" or op.kind != "reshape":
            return False
        weighs = any(
            self.tensors[n].kind == "WEIGHT" or self.made_at.get(n) in self.stored
            for n in self.ops[core].inputs
        )
        before, after = (self.tensors[n].shape for n in (op.inputs[0], op.output))
        return weighs and before[-1:] != after[-1:]

    def _fits_plain(self, core: int, op: Op) -> bool:
        """Whether an op can be computed while the group's core reads its result."""
        kind = self.ops[core].kind
        if kind in (*EACH, "reduce") or kind in VIEWS:
            if op.kind in VIEWS or (op.kind in EACH and kind not in VIEWS):
                return True
            return kind == "map" and (self._is_row(core, op) or self._is_gate(core, op))
        return op.kind in VIEWS and kind in ("matmul", "gather") and op.kind != "concat"

    def _is_row(self, core: int, op: Op) -> bool:
        """Whether a reduction is a statistic of the last dimension, as norms take it."""
        if "norm" not in self.forms or op.kind != "reduce" or self._count(core, "matmul"):
            return False
        rank = len(self.tensors[op.inputs[0]].shape)
        return op.attr("axes") == (rank - 1,) and bool(op.attr("keepdims", True))

    def _is_gate(self, core: int, op: Op) -> bool:
        """Whether a product is one of two that an elementwise core joins."""
        if "gated" not in self.forms or op.kind != "matmul" or self._count(core, "reduce"):
            return False
        direct = [self.made_at.get(n) for n in self.ops[core].inputs]
        products = [
            self.ops[i]
            for i in direct
            if i is not None
            and self.ops[i].kind == "matmul"
            and self.readers[self.ops[i].output] == 1
            and self.ops[i].output not in self.kept
        ]
        return op in products and len(products) == 2 and len({p.inputs[0] for p in products}) == 1

    def _count(self, core: int, kind: str) -> int:
        return sum(self.ops[i].kind == kind for i in self.groups[core])

    def _write_through(self) -> None:
        """A group of nothing but views behind a matmul joins it: the matmul writes its result to
        the place where the views would put it."""
        presents = set(self.replaced.values())
        for core in sorted(self.groups):
            members = sorted(self.groups[core])
            if self.ops[members[-1]].output in presents:
                continue
            if any(self.ops[i].kind not in VIEWS - {"concat"} for i in members):
                continue
            made = {self.ops[i].output for i in members}
            outside = {n for i in members for n in self.ops[i].inputs} - made
            if len(outside) != 1:
                continue
            (name,) = outside
            at = self.made_at.get(name)
            if at is None or name in self.kept or self.ops[self.group[at]].kind != "matmul":
                continue
            target = self.group[at]
            if any(self._regroups(target, self.ops[i]) for i in members):
                continue
            reading = sum(name in self.ops[i].inputs for i in members)
            if self.ops[target].output != name or self.readers[name] != reading:
                continue
            self.groups[target] |= self.groups.pop(core)
            for i in members:
                self.group[i] = target


def _weight_bits(stored: list[Op], tensors: dict[str, Tensor]) -> int:
    """Bits per element of the quantised weights that these ops restore; 0 where none are."""
    found = [
        op.attr("bits")
        for op in stored
        if op.kind in ("unpack", "restore") and tensors[op.inputs[0]].kind == "WEIGHT"
    ]
    for op in stored:
        if op.kind == "map":
            found += [8 for n in op.inputs if tensors[n].kind == "WEIGHT" and size_bytes(
                tensors[n].dtype) == 1]  # fmt: skip
    return min(found, default=0)


def _fused(body: list[Op], tensors: dict[str, Tensor], stored: list[Op]) -> Op:
    made = {op.output for op in body}
    inputs = tuple(dict.fromkeys(n for op in body for n in op.inputs if n not in made))
    names = dict.fromkeys((*inputs, *(op.output for op in body)))
    shapes = tuple((n, tensors[n].shape, tensors[n].dtype) for n in names)
    core = next((op for op in reversed(body) if op.kind not in VIEWS), body[-1])
    attrs: dict[str, Any] = {"core": core.kind, "shapes": shapes}
    if pattern := patterns.name(body):
        attrs["pattern"] = pattern
    products = {op.kind for op in body} & set(PRODUCTS)
    if products and (bits := _weight_bits(stored, tensors)):
        attrs["quantised"] = bits
        attrs.setdefault("pattern", "quantised matmul")
    source = tuple(dict.fromkeys(n for op in body for n in op.source))
    named = tuple(sorted(attrs.items()))
    return Op(core.name, "fused", inputs, body[-1].output, named, source, tuple(body))
