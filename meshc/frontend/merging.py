"""Equal expressions of different experts as one: rows, each computed with its own expert's weights.

`Merger.rows` takes the same value of every expert and gives one value of which row s is that of
expert ids[s]. Weights become one stacked constant, products with them become `experts`, biases are
looked up, and everything else must treat every row for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshc.frontend.builder import Builder, Value
from meshc.frontend.folding import Const
from meshc.frontend.indexing import experts
from meshc.frontend.labels import FIXED, Label, product


class Unlike(Exception):
    """The experts' expressions differ, or are none of rows."""


@dataclass
class Merger:
    """Merges values of the experts in the order of their positions in the stacked weights.

    lead: the dimensions that the values have before their last one, with their labels.
    each: rows made of every one of those: the experts that a token goes to.
    members, among: the experts' numbers among how many, where they are not all.
    ids: position in the stack of every row [S], outside for those of no expert.
    """

    b: Builder
    ids: Value
    lead: tuple[int, ...]
    labels: tuple[Label, ...]
    each: int = 1
    members: tuple[int, ...] = ()
    among: int = 0
    done: dict[tuple[int, ...], Value] = field(default_factory=dict)
    stacks: dict[tuple[int, ...], Value] = field(default_factory=dict)

    @property
    def count(self) -> tuple[int, Label]:
        return self.ids.shape[0], self.ids.labels[0]

    def rows(self, values: Sequence[Value]) -> Value:
        """[S, n]; raises Unlike."""
        key = tuple(map(id, values))
        if key not in self.done:
            self.done[key] = self._rows(values)
        return self.done[key]

    def _rows(self, values: Sequence[Value]) -> Value:
        first = values[0]
        same = all((v.shape, v.labels, v.dtype) == (first.shape, first.labels, first.dtype)
                   for v in values)  # fmt: skip
        if not same:
            raise Unlike
        if all(v is first for v in values):
            return self._shared(first)
        if all(_weightlike(v) for v in values):
            return self._looked_up(values)
        nodes = [v.node for v in values if v.node is not None]
        if len(nodes) < len(values) or any(
            (n.kind, n.attrs, len(n.inputs))
            != (nodes[0].kind, nodes[0].attrs, len(nodes[0].inputs))
            for n in nodes
        ):
            raise Unlike
        node, b = nodes[0], self.b
        b.scope, b.source = node.name, node.source
        if node.kind != "reshape" and first.shape[:-1] != self.lead:
            raise Unlike
        operands = [[n.inputs[i] for n in nodes] for i in range(len(node.inputs))]
        if node.kind == "matmul":
            return self._product(operands, node.attrs, first)
        made = [self.rows(o) for o in operands]
        shape, labels = (self.count[0], first.shape[-1]), (self.count[1], first.labels[-1])
        if node.kind == "map":
            if any(m.shape[-1] not in (1, shape[1]) for m in made):
                raise Unlike
            # A row of one element is one element of every row, so the widths decide.
            return b.emit("map", made, node.attrs, shape, first.dtype, labels)
        last = first.rank - 1
        if node.kind in ("slice", "concat") and node.attrs["axis"] == last:
            return b.emit(node.kind, made, {**node.attrs, "axis": 1}, shape, first.dtype, labels)
        if node.kind == "reduce" and node.attrs["axes"] == (last,) and node.attrs["keepdims"]:
            return b.emit("reduce", made, {**node.attrs, "axes": (1,)}, shape, first.dtype, labels)
        if node.kind == "reshape" and operands[0][0].shape[-1:] == first.shape[-1:]:
            return made[0]  # other leading dimensions of the same rows
        raise Unlike

    def _shared(self, v: Value) -> Value:
        """What all experts read: rows, repeated for every choice, or one row for all."""
        n, label = (v.shape[-1], v.labels[-1]) if v.rank else (1, FIXED)
        if all(s == 1 and lab == FIXED for s, lab in zip(v.shape[:-1], v.labels[:-1], strict=True)):
            return self.b.reshape(v, (1, n), (FIXED, label), "row")
        if int(np.prod(v.shape[:-1])) != int(np.prod(self.lead)):
            raise Unlike
        lead = (int(np.prod(self.lead)), product(self.labels, self.lead))
        if self.each == 1:
            return self.b.reshape(v, (lead[0], n), (lead[1], label), "rows")
        one = self.b.reshape(v, (lead[0], 1, n), (lead[1], FIXED, label), "once")
        many = self.b.expand(one, (lead[0], self.each, n), (lead[1], FIXED, label), "each")
        return self.b.reshape(many, (self.count[0], n), (self.count[1], label), "rows")

    def _product(self, operands: list[list[Value]], attrs: dict[str, Any], out: Value) -> Value:
        left, right = operands
        k, n = right[0].shape[-2:] if not attrs["transpose_b"] else right[0].shape[:-3:-1]
        if attrs["transpose_a"] or not all(map(_weightlike, right)):
            raise Unlike
        if any(s != 1 for s in right[0].shape[:-2]) or n != out.shape[-1]:
            raise Unlike
        rows = self.rows(left)
        if rows.shape != (self.count[0], k):
            raise Unlike
        weights = self.stacked(right)
        if weights.rank > 3:
            own = (weights.shape[0], *weights.shape[-2:])
            weights = self.b.reshape(weights, own, (FIXED,) * 3, "weights")
        return experts(self.b, rows, weights, self.ids, bool(attrs["transpose_b"]), "experts",
                       out.dtype, self.members, self.among)  # fmt: skip

    def _looked_up(self, values: Sequence[Value]) -> Value:
        """Every row's own bias or scale."""
        v = values[0]
        if any(s != 1 for s in v.shape[:-1]):
            raise Unlike
        width, label = (v.shape[-1], v.labels[-1]) if v.rank else (1, FIXED)
        every = self.stacked(values)
        table = self.b.reshape(every, (every.shape[0], width), (FIXED, label), "table")
        return self.b.gather(table, self.ids, 0, "own")

    def stacked(self, values: Sequence[Value]) -> Value:
        """Weights of all experts [E, ...]; those that are parts of one tensor are that tensor."""
        key = tuple(map(id, values))
        if key not in self.stacks:
            self.stacks[key] = self._stacked(values)
        return self.stacks[key]

    def _stacked(self, values: Sequence[Value]) -> Value:
        first, count = values[0], len(values)
        shape, labels = (count, *first.shape), (FIXED, *first.labels)
        if any(first.labels):
            raise Unlike
        if all(v.const is not None for v in values):
            consts = [v.const for v in values if v.const is not None]
            lacks = next((c.lacks for c in consts if c.lacks), "")
            const = Const(
                shape, first.dtype, FIXED, lambda: np.stack([c.array() for c in consts]),
                outside=True, lacks=lacks,
            )  # fmt: skip
            value = self.b.value(const, f"{first.name}.experts", labels)
            self.b.made.append(value)
            return value
        nodes = [v.node for v in values if v.node is not None]
        if len(nodes) < count or any(
            (n.kind, n.attrs, len(n.inputs))
            != (nodes[0].kind, nodes[0].attrs, len(nodes[0].inputs))
            for n in nodes
        ):
            raise Unlike
        node = nodes[0]
        made = []
        for i in range(len(node.inputs)):
            inner = self.stacked([n.inputs[i] for n in nodes])
            missing = first.rank + 1 - inner.rank
            if node.kind in ("map", "expand") and missing > 0:  # broadcasting counts from the right
                lead = (count, *(1,) * missing, *inner.shape[1:])
                inner = self._stored("reshape", [inner], {}, lead, inner.dtype, first.name)
            made.append(inner)
        attrs = dict(node.attrs)
        if node.kind in ("slice", "concat"):
            attrs["axis"] += 1
        elif node.kind == "transpose":
            attrs["perm"] = (0, *(p + 1 for p in attrs["perm"]))
        elif node.kind not in ("map", "reshape", "expand", "unpack"):
            raise Unlike
        return self._stored(node.kind, made, attrs, shape, first.dtype, first.name)

    def _stored(
        self,
        kind: str,
        inputs: list[Value],
        attrs: dict[str, Any],
        shape: tuple[int, ...],
        dtype: str,
        name: str,
    ) -> Value:
        labels: tuple[Label, ...] = (FIXED,) * len(shape)
        value = self.b.node(kind, inputs, attrs, shape, dtype, labels, f"{name}.experts")
        self.b.made.append(value)
        return value


def _weightlike(v: Value) -> bool:
    """Whether a value comes from the model file alone."""
    stack = [v]
    for _ in range(64):
        if not stack:
            return True
        at = stack.pop()
        if at.const is not None:
            if not at.const.fixed:
                return False
        elif at.node is None:
            return False
        else:
            stack += at.node.inputs
    return False
