"""Rewrites on the graph under construction that save copies.

None of them looks at a size that depends on the workload, so a graph keeps its ops when the
batch, the prompt or the context changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from meshc.frontend.builder import Node, Value
from meshc.frontend.folding import Const
from meshc.frontend.labels import FIXED, MIXED

MOVES = ("transpose", "reshape", "expand")


@dataclass
class Net:
    """The values that leave the graph, by the model's output names; everything else hangs on
    them."""

    roots: list[tuple[str, Value]]

    def nodes(self) -> list[Node]:
        """All nodes that the roots need, operands first: depth-first post-order."""
        done: list[Node] = []
        seen: set[int] = set()
        for _, root in self.roots:
            visit(root, seen, done)
        return done

    def consumers(self) -> dict[int, list[Node]]:
        """Readers of each value by its id, one entry per operand."""
        readers: dict[int, list[Node]] = {}
        for node in self.nodes():
            for v in node.inputs:
                readers.setdefault(id(v), []).append(node)
        return readers

    def is_root(self, value: Value) -> bool:
        return id(value) in self.root_ids

    @cached_property
    def root_ids(self) -> frozenset[int]:
        """Rewrites change what the roots hang on, never the roots."""
        return frozenset(id(v) for _, v in self.roots)


def visit(root: Value, seen: set[int], done: list[Node]) -> None:
    """Append the nodes that `root` needs and `seen` lacks, operands first."""
    stack: list[tuple[Node, Iterator[Value]]] = []
    if root.node is not None and id(root.node) not in seen:
        seen.add(id(root.node))
        stack.append((root.node, iter(root.node.inputs)))
    while stack:
        node, operands = stack[-1]
        for v in operands:
            if v.node is not None and id(v.node) not in seen:
                seen.add(id(v.node))
                stack.append((v.node, iter(v.node.inputs)))
                break
        else:
            done.append(node)
            stack.pop()


def simplify(net: Net) -> None:
    """All rewrites, each once."""
    sink_transposes(net)
    straighten(net)
    merge_moves(net)
    move_scales(net)
    absorb_transposes(net)
    merge_moves(net)


def merge_moves(net: Net) -> None:
    """A reshape of a reshape, or a transpose of a transpose, becomes one."""
    for node in net.nodes():
        while True:
            inner = node.inputs[0].node
            if inner is None or inner.kind != node.kind:
                break
            if node.kind == "transpose":
                perm = tuple(inner.attrs["perm"][p] for p in node.attrs["perm"])
                if perm == tuple(range(len(perm))):
                    break
                node.attrs = {"perm": perm}
            elif node.kind != "reshape":
                break
            node.inputs[0] = inner.inputs[0]


def sink_transposes(net: Net) -> None:
    """A transpose of a concat of transposed slices becomes a concat of slices.

    That is how exporters write rows into a cache of fixed length; the cache itself is then
    neither turned nor turned back.
    """
    for node in net.nodes():
        joined = node.inputs[0].node
        if node.kind != "transpose" or joined is None or joined.kind != "concat":
            continue
        perm = node.attrs["perm"]
        if not any(_is_turned_slice(v, perm) for v in joined.inputs):
            continue
        node.inputs = [_turned(v, perm) for v in joined.inputs]
        node.kind, node.attrs = "concat", {"axis": perm.index(joined.attrs["axis"])}


def _is_turned_slice(v: Value, perm: tuple[int, ...]) -> bool:
    turn = v.node.inputs[0].node if v.node is not None and v.node.kind == "slice" else None
    if turn is None or turn.kind != "transpose":
        return False
    return tuple(turn.attrs["perm"][p] for p in perm) == tuple(range(len(perm)))


def _turned(v: Value, perm: tuple[int, ...]) -> Value:
    """transpose(v, perm), without a transpose where v is one or a slice of one."""
    shape = tuple(v.shape[p] for p in perm)
    out = Value(v.name, shape, v.dtype, tuple(v.labels[p] for p in perm))
    node = v.node
    if node is not None and node.kind == "transpose":
        both = tuple(node.attrs["perm"][p] for p in perm)
        if both == tuple(range(len(both))):
            return node.inputs[0]
        out.node = Node(node.name, "transpose", node.inputs[:], {"perm": both}, out, node.source)
    elif node is not None and node.kind == "slice":
        attrs = {**node.attrs, "axis": perm.index(node.attrs["axis"])}
        inner = [_turned(node.inputs[0], perm)]
        out.node = Node(node.name, "slice", inner, attrs, out, node.source)
    else:
        name = f"{v.name}.turn"
        out.name = name
        out.node = Node(name, "transpose", [v], {"perm": perm}, out, name)
    return out


def _swaps_last_two(node: Node) -> bool:
    if node.kind != "transpose":
        return False
    rank = node.output.rank
    return rank >= 2 and node.attrs["perm"] == (*range(rank - 2), rank - 1, rank - 2)


def straighten(net: Net) -> None:
    """reshape(transpose(reshape(x))) that only swaps x's last two dimensions is a transpose of x,
    or of x with other leading dimensions."""
    for node in net.nodes():
        if node.kind != "reshape":
            continue
        turn = node.inputs[0].node
        if turn is None or not _swaps_last_two(turn):
            continue
        first = turn.inputs[0].node
        if first is None or first.kind != "reshape":
            continue
        x, flat, out = first.inputs[0], first.output, node.output
        if x.rank < 2 or out.rank < 2:
            continue
        same = x.shape[-2:] == flat.shape[-2:] and x.labels[-2:] == flat.labels[-2:]
        back = out.shape[-2:] == x.shape[:-3:-1] and out.labels[-2:] == x.labels[:-3:-1]
        if not (same and back) or MIXED in x.labels[-2:]:
            continue
        if out.shape[:-2] != x.shape[:-2] or out.labels[:-2] != x.labels[:-2]:
            view = Value(
                flat.name,
                (*out.shape[:-2], *x.shape[-2:]),
                x.dtype,
                (*out.labels[:-2], *x.labels[-2:]),
            )
            view.node = Node(first.name, "reshape", [x], {}, view, first.source)
            x = view
        rank = out.rank
        node.kind, node.inputs = "transpose", [x]
        node.attrs = {"perm": (*range(rank - 2), rank - 1, rank - 2)}


def move_scales(net: Net) -> None:
    """A constant factor on the right operand of a matmul moves to the left one.

    Exporters scale queries and keys alike; on the keys the factor would touch the whole cache
    at every step and need a second copy of it.
    """
    readers = net.consumers()

    def alone(v: Value) -> bool:
        return len(readers.get(id(v), ())) == 1 and not net.is_root(v)

    for node in net.nodes():
        if node.kind != "matmul" or node.inputs[0].node is None:
            continue
        reader, at, v = node, 1, node.inputs[1]
        while v.node is not None and v.node.kind in MOVES and alone(v):
            reader, at, v = v.node, 0, v.node.inputs[0]
        scale = v.node
        if scale is None or not alone(v) or v.rank < 3 or not _is_scale(scale):
            continue
        left, inner = node.inputs[0], scale.inputs[0]
        reader.inputs[at] = inner
        for move in _chain(node.inputs[1], inner):
            move.output.dtype = inner.dtype
        moved = Value(v.name, left.shape, left.dtype, left.labels)
        fn, args, _ = scale.attrs["steps"][0]
        steps = ((fn, args, left.dtype),)
        moved.node = Node(scale.name, "map", [left], {"steps": steps}, moved, scale.source)
        node.inputs[0] = moved
        readers[id(left)] = [moved.node if n is node else n for n in readers.get(id(left), [])]
        readers[id(moved)] = [node]


def _is_scale(node: Node) -> bool:
    if node.kind != "map" or len(node.inputs) != 1 or len(node.attrs["steps"]) != 1:
        return False
    fn, args, dtype = node.attrs["steps"][0]
    kinds = [a[0] for a in args]
    if dtype != node.inputs[0].dtype or sorted(kinds) != ["const", "in"]:
        return False
    return bool(fn == "mul" or (fn == "div" and kinds == ["in", "const"]))


def _chain(top: Value, bottom: Value) -> Iterator[Node]:
    v = top
    while v is not bottom and v.node is not None:
        yield v.node
        v = v.node.inputs[0]


def absorb_transposes(net: Net) -> None:
    """A transpose of the last two dimensions that only matmuls read becomes their attribute."""
    readers = net.consumers()
    for node in net.nodes():
        if not _swaps_last_two(node) or net.is_root(node.output):
            continue
        if any(r.kind != "matmul" for r in readers.get(id(node.output), [])):
            continue
        for reader in {id(r): r for r in readers.get(id(node.output), [])}.values():
            for i, key in enumerate(("transpose_a", "transpose_b")):
                if reader.inputs[i] is node.output:
                    reader.inputs[i] = node.inputs[0]
                    reader.attrs = {**reader.attrs, key: not reader.attrs[key]}


def share_rows(net: Net, batch: int) -> None:
    """A constant that is the same for every sequence of the batch keeps one row.

    Masks and rotary tables are, because the workload treats all sequences alike. Only maps may
    read it, which broadcast the row.
    """
    if batch < 2:
        return
    cut: dict[int, Value] = {}
    for node, i, v in _batched(net, batch):
        if id(v) not in cut:
            cut[id(v)] = _first_row(v)
        node.inputs[i] = cut[id(v)]


def _batched(net: Net, batch: int) -> list[tuple[Node, int, Value]]:
    """Uses, all by maps, of workload constants whose rows are equal."""
    uses: dict[int, list[tuple[Node, int, Value]]] = {}
    spoiled: set[int] = set()
    for node in net.nodes():
        for i, v in enumerate(node.inputs):
            if v.const is None or v.const.fixed or v.rank < 2 or v.shape[0] != batch:
                continue
            others = [w for w in node.inputs if w.const is None]
            whole = any(w.rank == v.rank and w.shape[0] == batch for w in others)
            if node.kind != "map" or v.rank != node.output.rank or not whole:
                spoiled.add(id(v))
            uses.setdefault(id(v), []).append((node, i, v))
    found = []
    for key, entries in uses.items():
        if key in spoiled:
            continue
        const = entries[0][2].const
        assert const is not None
        array = const.array()
        if (array == array[:1]).all():
            found += entries
    return found


def _first_row(v: Value) -> Value:
    const = v.const
    assert const is not None
    shape = (1, *v.shape[1:])
    row = Const(shape, const.dtype, MIXED, lambda: const.array()[:1])
    return Value(v.name, shape, v.dtype, (FIXED, *v.labels[1:]), "CONST", row)
