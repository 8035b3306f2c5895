"""Grouped-query attention without repeated keys and values.

Exporters repeat every cached head for the queries of its group (reshape, expand, reshape) before
they multiply. The queries are viewed as [B, KV, G, S, D] instead and the keys as [B, KV, 1, T, D],
which broadcasts in the product; what lies between the two products keeps the five dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshc.frontend.builder import Builder, Node, Value
from meshc.frontend.labels import FIXED, Label
from meshc.frontend.simplify import Net


@dataclass(frozen=True)
class _Repeat:
    """A right operand that repeats heads: its view with one row per group, KV and G."""

    view: Value
    groups: int
    members: int


def share_heads(net: Net, b: Builder) -> None:
    """Rewrite every matmul whose right operand repeats heads."""
    views: dict[int, Value] = {}
    readers = net.consumers()
    found = {}
    for node in net.nodes():
        if node.kind == "matmul" and (r := _repeat_of(node, readers, net)) is not None:
            found[id(node)] = (node, r)
    done: set[int] = set()
    for key, (node, repeat) in found.items():
        if key in done:
            continue
        region = _Region(repeat, readers, net, {k: r for k, (_, r) in found.items()})
        ends = region.explore(node)
        if ends is None:
            _alone(node, repeat, b)
            done.add(key)
            continue
        region.convert(b, views)
        _widen_left(node, repeat, b)
        done.add(key)
        for end in ends:
            end.inputs[1] = found[id(end)][1].view
            _narrow_output(end, repeat, b)
            done.add(id(end))


def _repeat_of(node: Node, readers: dict[int, list[Node]], net: Net) -> _Repeat | None:
    """The pattern reshape(expand(reshape(x))) from [B, KV, T, D] over [B, KV, 1, T, D]."""
    left, out = node.inputs
    chain = []
    v = out
    for kind in ("reshape", "expand", "reshape"):
        if v.node is None or v.node.kind != kind or net.is_root(v):
            return None
        chain.append(v)
        v = v.node.inputs[0]
    final, wide, view = chain
    if final.rank != 4 or wide.rank != 5 or left.rank != 4 or node.attrs["transpose_a"]:
        return None
    groups, members = wide.shape[1], wide.shape[2]
    same = (
        view.shape == (*wide.shape[:2], 1, *wide.shape[3:])
        and final.shape == (wide.shape[0], groups * members, *wide.shape[3:])
        and not any((*wide.labels[1:3], view.labels[2], final.labels[1], left.labels[1]))
        and final.labels[2:] == wide.labels[3:] == view.labels[3:]
        and left.shape[1] == groups * members
    )
    if not same or any(r.kind != "matmul" for r in readers.get(id(final), [])):
        return None
    return _Repeat(view, groups, members)


def _split(v: Value, repeat: _Repeat) -> tuple[tuple[int, ...], tuple[Label, ...]]:
    """Shape and labels of [B, H, S, ·] as [B, KV, G, S, ·]."""
    shape = (v.shape[0], repeat.groups, repeat.members, *v.shape[2:])
    return shape, (v.labels[0], FIXED, FIXED, *v.labels[2:])


def _widen_left(node: Node, repeat: _Repeat, b: Builder) -> None:
    left = node.inputs[0]
    b.scope, b.source = node.name, node.source
    shape, labels = _split(left, repeat)
    view = b.reshape(left, shape, labels)
    _name(b, view, f"{left.name}.grouped", f"{node.name}.query")
    node.inputs[0] = view
    node.inputs[1] = repeat.view


def _narrow_output(node: Node, repeat: _Repeat, b: Builder) -> None:
    """The matmul makes a value of rank 5; its old output becomes a view of it."""
    old = node.output
    shape, labels = _split(old, repeat)
    inner = Value(b.unique(f"{old.name}.grouped"), shape, old.dtype, labels)
    inner.node = node
    node.output = inner
    name = b.unique(f"{node.name}.ungroup")
    old.node = Node(name, "reshape", [inner], {}, old, node.source)


def _alone(node: Node, repeat: _Repeat, b: Builder) -> None:
    """Views around one matmul."""
    _widen_left(node, repeat, b)
    _narrow_output(node, repeat, b)


def _name(b: Builder, v: Value, value: str, node: str) -> None:
    v.name = b.unique(value)
    if v.node is not None:
        v.node.name = b.unique(node)
    b.made = []


@dataclass
class _Region:
    """The elementwise ops and reductions between the two products of one attention."""

    repeat: _Repeat
    readers: dict[int, list[Node]]
    net: Net
    repeats: dict[int, _Repeat]
    nodes: list[Node] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)

    def explore(self, start: Node) -> list[Node] | None:
        """The matmuls that end the region; None where something else reads inside it."""
        ends: dict[int, Node] = {}
        stack = [start.output]
        self.values = {id(start.output): start.output}
        seen: set[int] = set()
        while stack:
            v = stack.pop()
            if self.net.is_root(v):
                return None
            for node in self.readers.get(id(v), []):
                if id(node) in seen:
                    continue
                if node.kind == "matmul":
                    other = self.repeats.get(id(node))
                    if other is None or node.inputs[0] is not v or node.inputs[1] is v:
                        return None
                    if (other.groups, other.members) != (self.repeat.groups, self.repeat.members):
                        return None
                    ends[id(node)] = node
                    continue
                if not self._inner(node):
                    return None
                seen.add(id(node))
                self.nodes.append(node)
                self.values[id(node.output)] = node.output
                stack.append(node.output)
        if not ends or not all(self._fed(n) for n in self.nodes):
            return None
        return list(ends.values())

    def _inner(self, node: Node) -> bool:
        heads = self.repeat.groups * self.repeat.members
        if node.output.rank != 4 or node.output.shape[1] != heads:
            return False
        if node.kind == "reduce":
            return bool(node.attrs["axes"] == (3,) and node.attrs["keepdims"])
        return node.kind == "map"

    def _fed(self, node: Node) -> bool:
        """Operands from outside must broadcast along the heads."""
        for v in node.inputs:
            if id(v) not in self.values and v.rank > 2:
                heads = v.shape[v.rank - 3]
                if heads != 1 or v.labels[v.rank - 3] != FIXED or v.rank > 4:
                    return False
        return True

    def convert(self, b: Builder, views: dict[int, Value]) -> None:
        """Give every value of the region five dimensions."""
        for v in self.values.values():
            v.shape, v.labels = _split(v, self.repeat)
        for node in self.nodes:
            if node.kind == "reduce":
                node.attrs = {**node.attrs, "axes": (4,)}
                continue
            for i, v in enumerate(node.inputs):
                if id(v) in self.values or v.rank < 3:
                    continue
                if id(v) not in views:
                    b.scope, b.source = node.name, node.source
                    view = b.insert_axis(v, v.rank - 2)
                    _name(b, view, f"{v.name}.grouped", f"{node.name}.view")
                    views[id(v)] = view
                    views[-id(v)] = v  # keeps the id taken
                node.inputs[i] = views[id(v)]
