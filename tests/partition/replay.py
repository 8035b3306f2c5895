"""Independent checks of expanded programs: messages, order, and who owns which byte.

A read of a byte that another buffer wrote last, or nobody did, is an error; so is a message
without a partner or a circle of waiting. Nothing here uses the emulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import networkx as nx
import numpy as np

from meshc.expand import POSITIONS, Expander
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.dtypes import size_bytes
from meshc.ir.program import (
    Broadcast,
    Buffer,
    Compute,
    Instruction,
    Move,
    Program,
    Reduce,
    Transfer,
)
from meshc.ir.stream import Combine, Copy, Kernel, Recv, Send, Step, View

Streams = dict[Coord, list[Step]]
POSTED = -2
NOBODY = -1


def expand_all(program: Program) -> Streams:
    expander = Expander(program)
    return {core: list(expander.stream(core)) for core in expander.cores()}


def check_messages(streams: Streams) -> int:
    """Every Send has exactly one Recv at each destination, of equal bytes, from the sender."""
    sends: dict[tuple[int, int, int], tuple[Coord, Send]] = {}
    receipts: dict[tuple[int, int, int], list[tuple[Coord, Recv]]] = {}
    for core, steps in streams.items():
        for step in steps:
            for action in step.actions:
                if isinstance(action, Send):
                    assert action.key not in sends, f"two sends are called {action.key}"
                    assert action.to and len(set(action.to)) == len(action.to)
                    assert core not in action.to, f"{core} sends to itself in {step.name}"
                    assert action.view.bytes > 0, f"{core} sends nothing in {step.name}"
                    sends[action.key] = core, action
                elif isinstance(action, Recv):
                    receipts.setdefault(action.key, []).append((core, action))
    assert set(sends) == set(receipts)
    for key, (core, send) in sends.items():
        found = receipts[key]
        assert sorted(c for c, _ in found) == sorted(send.to)
        for _, recv in found:
            assert recv.source == core
            assert recv.view.bytes == send.view.bytes
            assert recv.view.dtype == send.view.dtype
            assert [len(r) for r in recv.view.ranges] == [len(r) for r in send.view.ranges]
    return len(sends)


def check_order(streams: Streams) -> None:
    """Program order, posts before departures and departures before arrivals make no circle.

    A send waits here for its receivers even where a chip lets cores run on, the strictest case.
    """
    graph = nx.DiGraph()
    posts: dict[tuple[object, Coord], tuple[Coord, int, int]] = {}
    for core, steps in streams.items():
        before = None
        for number, step in enumerate(steps):
            for at in range(-1, len(step.actions)):
                node = (core, number, at)
                if before is not None:
                    graph.add_edge(before, node)
                before = node
            for action in step.actions:
                if isinstance(action, Recv):
                    posts[action.key, core] = (core, number, -1)
    arrivals = {
        (action.key, core): (core, number, at)
        for core, steps in streams.items()
        for number, step in enumerate(steps)
        for at, action in enumerate(step.actions)
        if isinstance(action, Recv)
    }
    for core, steps in streams.items():
        for number, step in enumerate(steps):
            for at, action in enumerate(step.actions):
                if isinstance(action, Send):
                    for to in action.to:
                        graph.add_edge(posts[action.key, to], (core, number, at))
                        graph.add_edge((core, number, at), arrivals[action.key, to])
    if not nx.is_directed_acyclic_graph(graph):
        circle = nx.find_cycle(graph)
        raise AssertionError(f"cores wait in a circle: {circle}")


class _Bytes:
    """Who wrote each byte of one core last."""

    def __init__(self, size: int) -> None:
        self.owner = np.full(size, NOBODY, np.int64)

    def at(self, view: View) -> np.ndarray:
        item = size_bytes(view.dtype)
        end = view.address + prod(view.extent) * item
        assert view.address >= 0 and end <= len(self.owner), f"{view} leaves the SRAM"
        array = self.owner[view.address : end].reshape(*view.extent, item)
        return array[tuple(slice(r.start, r.stop, r.step) for r in view.ranges)]


class _Owners:
    """Numbers for (buffer, address)."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, int], int] = {}
        self.names: list[tuple[str, int]] = []

    def number(self, b: Buffer, view: View, what: str) -> int:
        known = [(b.name, a) for a in (view.address,)]
        steps = view.address - b.offset
        right = steps == 0 if b.stride == 0 else steps >= 0 and steps % b.stride == 0
        assert right, f"{what} looks for '{b.name}' at {view.address}, which lies at {b.offset}"
        if known[0] not in self.numbers:
            self.numbers[known[0]] = len(self.names)
            self.names.append(known[0])
        return self.numbers[known[0]]

    def text(self, number: int) -> str:
        if number < 0:
            return "a message on its way" if number == POSTED else "nobody"
        return f"'{self.names[number][0]}' at {self.names[number][1]}"


def check_memory(program: Program, streams: Streams, chip: ChipSpec) -> None:
    """Replay every core: what is read must have been written last by the buffer it is read as."""
    owners = _Owners()
    for core, steps in streams.items():
        memory = _Bytes(chip.core.usable_bytes)
        for view, number in _loaded(program, core, owners):
            spot = memory.at(view)
            assert ((spot == NOBODY) | (spot == number)).all(), f"loads overlap on {core}"
            spot[...] = number
        for step in steps:
            instruction = _instruction(program, step)
            posted = [a.view for a in step.actions if isinstance(a, Recv)]
            for view in posted:
                memory.at(view)[...] = POSTED
            for reads, writes in _touched(program, instruction, step):
                for b, view in reads:
                    found, wanted = memory.at(view), owners.number(b, view, step.name)
                    if not (found == wanted).all():
                        other = int(found[found != wanted].flat[0])
                        raise AssertionError(
                            f"Core {core} reads '{b.name}' in '{step.name}' (layer {step.layer}) "
                            f"where {owners.text(other)} wrote last."
                        )
                for b, view in writes:
                    memory.at(view)[...] = owners.number(b, view, step.name)
        for b, view in _kept(program, core):
            found, wanted = memory.at(view), owners.number(b, view, "an output")
            assert (found == wanted).all(), f"output '{b.name}' is gone on {core}"


def _instruction(program: Program, step: Step) -> Instruction:
    entry = program.schedule[step.position // POSITIONS]
    if isinstance(entry, Move):
        return entry.transfer
    return program.bodies[entry.body][step.position % POSITIONS]


def _touched(
    program: Program, i: Instruction, step: Step
) -> Iterator[tuple[list[tuple[Buffer, View]], list[tuple[Buffer, View]]]]:
    """Per action of a step, what it reads and writes, each with the buffer it must be."""
    b = program.buffers
    for a in step.actions:
        if isinstance(a, Kernel):
            assert isinstance(i, Compute)
            reads = [(b[n], v) for n, v in zip(i.inputs, a.inputs, strict=True)]
            if a.output.elements:
                yield reads, [(b[i.output], a.output)]
        elif isinstance(a, Copy):
            assert isinstance(i, Transfer)
            yield [(b[i.source], a.source)], [(b[i.destination], a.destination)]
        elif isinstance(a, Combine):
            assert isinstance(i, Reduce)
            scratch = next(b[n] for n in i.scratch if b[n].offset == a.source.address)
            own = (b[i.buffer], a.destination)
            yield [(scratch, a.source), own], [own]
        elif isinstance(a, Send):
            assert isinstance(i, Reduce | Broadcast | Transfer)
            yield [(b[i.source if isinstance(i, Transfer) else i.buffer], a.view)], []
        else:
            if isinstance(i, Reduce):
                target = next(b[n] for n in i.scratch if b[n].offset == a.view.address)
            else:
                assert isinstance(i, Transfer | Broadcast)
                target = b[i.destination if isinstance(i, Transfer) else i.buffer]
            yield [], [(target, a.view)]


def _loaded(program: Program, core: Coord, owners: _Owners) -> Iterator[tuple[View, int]]:
    for _, name, region_name, layer in program.load:
        view = _shard(program, name, region_name, layer, core)
        if view is not None:
            yield view, owners.number(program.buffers[name], view, "a load")


def _kept(program: Program, core: Coord) -> Iterator[tuple[Buffer, View]]:
    for _, name, region_name, layer in program.outputs:
        view = _shard(program, name, region_name, layer, core)
        if view is not None:
            yield program.buffers[name], view


def _shard(program: Program, name: str, region_name: str, layer: int, core: Coord) -> View | None:
    """The core's whole shard of a buffer, if it belongs to the region."""
    b, region = program.buffers[name], program.regions[region_name]
    if not region.contains(core):
        return None
    lane = (core.row - region.row, core.col - region.col)
    shard = b.layout.shard(b.shape, *lane, region.rows, region.cols)
    extent = b.layout.largest(b.capacity, region.rows, region.cols)
    ranges = tuple(range(len(r)) for r in shard)
    return View(b.offset + layer * b.stride, extent, ranges, b.dtype)
