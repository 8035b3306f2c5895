"""When each activation holds a value, in positions along prologue, body and epilogue.

Each op is one position; a segment ends with one more, at which its results are handed on. A
tensor made before a repeated body and read inside it stays until the body's end.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.graph import Graph


@dataclass(frozen=True)
class Intervals:
    """position: op name → its position.   live: tensor name → (first, last) position.
    ends: segment name → the position at its end.   length: number of positions.
    """

    position: dict[str, int]
    live: dict[str, tuple[int, int]]
    ends: dict[str, int]
    length: int


def carried_names(graph: Graph) -> dict[str, str]:
    """Tensor that a repeated segment produces for its next repetition → the tensor it replaces."""
    return {made: read for s in graph.segments for read, made in s.carried}


def intervals(graph: Graph) -> Intervals:
    """Live intervals of every tensor that an op makes and of the carried tensors."""
    position: dict[str, int] = {}
    ends: dict[str, int] = {}
    starts: dict[str, int] = {}
    clock = 0
    home: dict[str, str] = {}
    for segment in graph.segments:
        starts[segment.name] = clock
        for op in segment.ops:
            position[op.name] = clock
            home[op.output] = segment.name
            clock += 1
        ends[segment.name] = clock
        clock += 1
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    renamed = carried_names(graph)
    carried_in = {read: s for s in graph.segments for read, _ in s.carried}
    for segment in graph.segments:
        for op in segment.ops:
            at = position[op.name]
            first.setdefault(op.output, at)
            last.setdefault(op.output, at)
            for name in op.inputs:
                made_in = home.get(name)
                if name in renamed and made_in != segment.name:
                    name = renamed[name]  # after the loop the carried buffer holds it
                    made_in = None
                until = at
                if segment.repeat > 1 and made_in not in (None, segment.name):
                    until = ends[segment.name]
                last[name] = max(last.get(name, -1), until)
    for read, segment in carried_in.items():
        given = graph.tensors[read].kind == "INPUT"  # there before the step begins
        begin = 0 if given else max(0, starts[segment.name] - 1)
        first[read] = min(first.get(read, clock), begin)
        last[read] = max(last.get(read, -1), ends[segment.name])
    for made, read in renamed.items():
        last[made] = max(last.get(made, -1), ends[carried_in[read].name])
    for _, name, _ in graph.outputs:
        target = renamed.get(name, name)
        last[target] = clock - 1
    live = {n: (first[n], last[n]) for n in first if n in last}
    return Intervals(position, live, ends, clock)
