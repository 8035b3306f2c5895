"""Cache streams: which output continues which cache input, and how.

A cache that tokens are appended to grows in its own memory. One that a step replaces (a buffer
that it writes into, the last tokens of a window, the state of a convolution) is written over in
place, when nothing reads the old one any more. What can be neither is an input like any other,
and its present an output: whoever runs the steps hands it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meshc.errors import InputError
from meshc.frontend.builder import UNKNOWN, Builder, Node, Value
from meshc.frontend.cacheviews import Stacks, part_names, stacked, unstacked
from meshc.frontend.folding import Const
from meshc.frontend.importer import Poison
from meshc.frontend.labels import FIXED, NEW
from meshc.frontend.order import main_output
from meshc.frontend.pasts import mark_of, of_encoder
from meshc.frontend.reader import Model
from meshc.frontend.simplify import Net
from meshc.ir.dtypes import NUMPY

Root = tuple[str, Value]  # output of the model ("" for none) and its value
_CACHE_OUTPUT = ("present", "past", "cache", "key", "value")
_MOVES = ("slice", "concat", "transpose", "reshape", "expand", "gather", "append")


@dataclass(eq=False)
class Stream:
    """past: None where a graph makes the cache from nothing.   name: of the present output, ""
    where the model does not put it out.   axis: that counts tokens; None: it never grows."""

    past: Value | None
    present: Value
    name: str
    axis: int | None


@dataclass
class Ends:
    """The graph's outputs and cache streams.

    stacks: tensors of the model that are kept in parts.   carried: past inputs that are ordinary
    inputs here → the output to hand on.
    """

    roots: list[Root] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    stacks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    carried: dict[str, str] = field(default_factory=dict)


def cache_values(
    model: Model, b: Builder, inputs: dict[str, Value], stacks: Stacks
) -> dict[str, Value]:
    """What the graph reads for its cache inputs: parts stacked, the encoder's keys and values as
    they are kept from the first step on. Returns the caches themselves by name."""
    found: dict[str, Value] = {}
    for name, past in model.roles.pasts.items():
        value = inputs[name]
        b.scope = b.source = name
        if name in stacks:
            shape, labels = value.shape[past.stack :], value.labels[past.stack :]
            parts = [Value(n, shape, value.dtype, labels, "CACHE") for n in stacks[name]]
            found.update((p.name, p) for p in parts)
            b.names.update(stacks[name])
            inputs[name] = stacked(b, parts, value.shape[: past.stack])
        else:
            found[name] = value
        if past.style == "cross" and past.axis is not None and UNKNOWN not in value.shape:
            kept = b.append(value, _no_tokens(b, value, past.axis), past.axis, "kept")
            kept.labels = value.labels
            inputs[name] = kept
    b.settle()
    return found


def _no_tokens(b: Builder, cache: Value, axis: int) -> Value:
    """What a step appends to a cache that stays as it is."""
    shape = tuple(0 if i == axis else n for i, n in enumerate(cache.shape))
    labels = tuple(FIXED if i == axis else n for i, n in enumerate(cache.labels))
    key = ("nothing", shape, cache.dtype)
    array = np.zeros(shape, NUMPY[cache.dtype])
    return b.once(key, lambda: Const.of(array, cache.dtype, FIXED), labels)


def stacks_of(model: Model, inputs: dict[str, Value]) -> dict[str, tuple[str, ...]]:
    """Cache inputs that number layers, or keys and values, in leading dimensions."""
    found = {}
    for name, past in model.roles.pasts.items():
        counts = inputs[name].shape[: past.stack]
        if past.stack and all(0 < n <= 4096 for n in counts) and UNKNOWN not in inputs[name].shape:
            found[name] = part_names(name, counts)
    return found


def find_ends(
    model: Model,
    b: Builder,
    names: Sequence[str],
    results: Sequence[Value | Poison | None],
    caches: dict[str, Value],
    inputs: dict[str, Value],
    stacks: Stacks,
) -> Ends | None:
    """Outputs and the streams that the lowering made; None where a stack must stay one tensor."""
    ends = Ends(stacks=dict(stacks))
    taken: set[int] = set()
    main = main_output(list(names))
    partner = {p.present: n for n, p in model.roles.pasts.items() if p.present is not None}
    read = _read(results)
    for name, value in zip(names, results, strict=True):
        if value is None or isinstance(value, Poison):
            raise InputError(
                f"Output '{name}' of '{model.path.name}' is made by no node; export the model "
                "again."
            )
        past = model.roles.pasts.get(partner.get(name, ""))
        if past is not None and partner[name] in stacks:
            counts = value.shape[: past.stack]
            parts = unstacked(b, value, past.stack) if value.const is None else None
            if parts is None:
                return None
            b.settle()
            ends.stacks[name] = part_names(name, counts)
            for part, v in zip(ends.stacks[name], parts, strict=True):
                _root(b, ends, taken, part, v)
            continue
        own = inputs.get(partner.get(name, ""))
        if past is not None and past.style == "cross" and value.const is not None:
            _keep(ends, own, name)
            _root(b, ends, taken, name, value)
            continue
        unread = past is not None and id(caches.get(partner[name])) not in read
        fresh = name != main and _is_cache(name, value) and not model.has_past
        if (unread and value.node is not None and past is not None and past.style != "state") or (
            fresh and id(value) not in taken
        ):
            axis = past.axis if past is not None and past.axis is not None else value.rank - 2
            grows = past.style in ("grows", "buffer") if past is not None else not of_encoder(name)
            value = _appended(b, name, value, axis)
            ends.streams.append(Stream(None, value, name, axis if grows else None))
            taken.add(id(value))
            ends.roots.append((name, value))
            continue
        _root(b, ends, taken, name, value)
    for name, past in model.roles.pasts.items():
        if past.style == "cross" and past.present is None:
            _keep(ends, inputs[name], "")
    return ends


def _keep(ends: Ends, kept: Value | None, name: str) -> None:
    """The encoder's keys or values that a step reads and its outputs do not have."""
    if kept is None or kept.node is None or kept.node.kind != "append":
        return
    if all(v is not kept for _, v in ends.roots):
        ends.roots.append(("", kept))
        ends.streams.append(Stream(kept.node.inputs[0], kept, "", None))


def _read(results: Sequence[Value | Poison | None]) -> set[int]:
    """Ids of the caches that the outputs depend on."""
    net = Net([("", v) for v in results if isinstance(v, Value)])
    found = {id(v) for n in net.nodes() for v in n.inputs if v.source == "CACHE"}
    return found | {id(v) for v in results if isinstance(v, Value) and v.source == "CACHE"}


def _root(b: Builder, ends: Ends, taken: set[int], name: str, value: Value) -> None:
    """One output; one that is no op's own result, or that another output already is, is a copy."""
    if value.node is not None and value.node.kind == "append" and id(value) not in taken:
        if len(value.node.inputs) == 2:
            past, axis = value.node.inputs[0], value.node.attrs["axis"]
            same = past.shape[axis] == value.shape[axis] and past.labels == value.labels
            ends.streams.append(Stream(past, value, name, None if same else axis))
    elif value.node is None or id(value) in taken:
        b.scope = b.source = name
        copy = Value(b.unique(f"{name}.copy"), value.shape, value.dtype, value.labels)
        copy.node = Node(copy.name, "reshape", [value], {}, copy, name)
        value = copy
    taken.add(id(value))
    ends.roots.append((name, value))


def _appended(b: Builder, name: str, value: Value, axis: int) -> Value:
    """A cache made from nothing."""
    b.scope = b.source = name
    if value.name == name:
        value.name = b.unique(f"{name}.new")
        if value.node is not None and value.node.name == name:
            value.node.name = value.name
    present = b.append(None, value, axis, "append")
    present.name = name
    b.made = []
    return present


def _is_cache(name: str, value: Value) -> bool:
    low = name.lower()
    return value.rank == 4 and value.node is not None and any(w in low for w in _CACHE_OUTPUT)


def pair_replaced(model: Model, ends: Ends, net: Net, caches: dict[str, Value]) -> None:
    """Streams whose present takes the past's place, after the graph was simplified; what has no
    stream becomes an ordinary input."""
    outputs = {n: v for n, v in ends.roots if n}
    streamed = {id(s.past) for s in ends.streams if s.past is not None}
    made = {id(s.present) for s in ends.streams}
    read = {id(v) for n in net.nodes() for v in n.inputs if v.source == "CACHE"}
    owner = {part: name for name, parts in ends.stacks.items() for part in parts}
    for name, value in caches.items():
        if id(value) in streamed or id(value) not in read:
            continue
        whole = owner.get(name, name)
        past = model.roles.pasts[whole]
        target = past.present
        if target is not None and name != whole:
            target = f"{target}{name[len(whole) :]}"
        present = outputs.get(target or "")
        fits = present is not None and _fits(value, present, past.axis, past.stack)
        if present is not None and fits and id(present) not in made:
            _check_moves(model, name, value, present, past.style)
            axis = None if past.axis is None else past.axis - (past.stack if name != whole else 0)
            grows = past.style in ("grows", "buffer")
            ends.streams.append(Stream(value, present, target or "", axis if grows else None))
            made.add(id(present))
        else:
            value.source = "INPUT"
            if target in outputs:
                ends.carried[name] = target or ""


def _fits(past: Value, present: Value, axis: int | None, stack: int) -> bool:
    """Whether the present may lie where the past did."""
    node = present.node
    if node is None or present.dtype != past.dtype or present.rank != past.rank:
        return False
    if node.kind in ("reshape", "transpose", "append"):
        return False  # a view of something else that stays, or an append of its own
    if present.shape == past.shape and present.labels == past.labels:
        return True
    if axis is None:
        return False
    differs = [i for i in range(past.rank) if past.labels[i] != present.labels[i]]
    if any(present.labels[i] == NEW for i in differs):
        return False  # the new tokens alone, for the host to append
    return differs in ([], [axis - stack], [axis])


def _check_moves(model: Model, name: str, past: Value, present: Value, style: str) -> None:
    """A state that is computed from its last value, not moved, is a recurrence."""
    if style != "state":
        return
    depends: dict[int, bool] = {id(past): False}  # value → whether arithmetic lies between
    for node in Net([("", present)]).nodes():
        found = [depends[id(v)] for v in node.inputs if id(v) in depends]
        if found:
            depends[id(node.output)] = any(found) or node.kind not in _MOVES
    if depends.get(id(present)):
        raise InputError(
            f"Model '{model.path.name}' is a state-space or recurrent model (output "
            f"'{present.name}' is computed from the state '{name}' that it replaces), which meshc "
            "does not compile; give a transformer."
        )


def settle(net: Net, ends: Ends, order: Sequence[Node]) -> list[Stream]:
    """Take back the streams whose past is read after its present is written."""
    place = {id(n): i for i, n in enumerate(order)}
    kept: list[Stream] = []
    undone: list[Stream] = []
    for s in ends.streams:
        writer = s.present.node
        late = (
            s.past is not None
            and writer is not None
            and writer.kind != "append"
            and any(
                place[id(n)] > place[id(writer)]
                for n in net.nodes()
                if n is not writer and any(v is s.past for v in n.inputs)
            )
        )
        (undone if late else kept).append(s)
    for s in undone:
        assert s.past is not None
        s.past.source = "INPUT"
        ends.carried[s.past.name] = s.name
    ends.streams = kept
    return undone


def sort_streams(streams: list[Stream]) -> list[Stream]:
    """In the order of their names' numbers and halves, so that two graphs of one model agree;
    as they are where names do not tell them apart."""
    marks = [mark_of(s.past.name if s.past is not None else s.name) for s in streams]
    if len(set(marks)) < len(marks):
        return streams
    return [s for _, s in sorted(zip(marks, streams, strict=True), key=lambda p: p[0])]
