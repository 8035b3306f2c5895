"""SRAM layout: an address for every buffer, the same on every lane.

From address 0 up: weights and caches with one instance per layer (a block per layer), weights
with one instance, inputs, constants and kept results of the step, then the arena of activations,
in which buffers that never live at the same time share addresses. Programs of one model's phases
share the weights and caches.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from meshc.errors import InvariantError
from meshc.ir.compiled import MemoryMap
from meshc.ir.program import Buffer, Program, Run, buffers_of

ALIGN = 8
STEP_KINDS = ("input", "constant", "output")  # last for the whole step


def layers_per_region(program: Program, segment: str) -> int:
    """Most repetitions of a segment that one region runs."""
    runs = [e for e in program.schedule if isinstance(e, Run) and e.segment == segment]
    return max((e.last - e.first for e in runs), default=1)


def _layered(program: Program, b: Buffer) -> bool:
    """Whether the buffer has one instance for each layer of a region."""
    return b.segment != "" and layers_per_region(program, b.segment) > 1


def assign(
    programs: Sequence[Program], keys: Sequence[Mapping[str, Hashable]]
) -> tuple[list[Program], MemoryMap]:
    """Give every buffer its address.

    keys: per program, buffer name → identity of what it holds; equal identities (in different
    programs) get the same address. Buffers without a key are the program's own.
    """
    placed: dict[Hashable, tuple[int, int]] = {}
    cursor = 0
    weight_bytes = kv_bytes = 0
    layered: dict[Hashable, tuple[int, int]] = {}  # offset within the layer block, size
    single: dict[Hashable, int] = {}
    layers = 1
    step_sizes: list[int] = []
    for number, (p, key) in enumerate(zip(programs, keys, strict=True)):
        for b in sorted(p.buffers.values(), key=lambda b: b.name):
            if b.kind not in ("weight", "kv") and not _one_per_layer(p, b):
                continue
            identity = key.get(b.name, (number, b.name))
            if _layered(p, b):
                if identity not in layered:
                    layered[identity] = (cursor, b.bytes)
                    cursor += _align(b.bytes)
                    layers = max(layers, layers_per_region(p, b.segment))
            elif identity not in single:
                single[identity] = b.bytes
    stride = cursor
    top = stride * layers
    for identity, size in single.items():
        placed[identity] = (top, 0)
        top += _align(size)
    counted: set[Hashable] = set()
    results = []
    peaks, arenas = [], []
    for number, (p, key) in enumerate(zip(programs, keys, strict=True)):
        buffers: dict[str, Buffer] = {}
        own = top
        for b in sorted(p.buffers.values(), key=lambda b: b.name):
            identity = key.get(b.name, (number, b.name))
            if identity in layered:
                buffers[b.name] = replace(b, offset=layered[identity][0], stride=stride)
            elif identity in placed:
                buffers[b.name] = replace(b, offset=placed[identity][0])
            elif b.kind in STEP_KINDS:
                buffers[b.name] = replace(b, offset=own)
                own += _align(b.bytes)
            else:
                continue
            if b.kind in ("weight", "kv") and identity not in counted:
                counted.add(identity)
                size = b.bytes * (layers if identity in layered else 1)
                weight_bytes += size if b.kind == "weight" else 0
                kv_bytes += size if b.kind == "kv" else 0
        step_sizes.append(own - top)
        arena = [b for b in p.buffers.values() if b.name not in buffers]
        offsets, height = pack(arena)
        for b in arena:
            buffers[b.name] = replace(b, offset=own + offsets[b.name])
        arenas.append(height)
        peaks.append(own + height)
        ordered = {n: buffers[n] for n in p.buffers}
        results.append(replace(p, buffers=ordered))
    memory = MemoryMap(
        weight_bytes, kv_bytes, top, tuple(step_sizes), tuple(arenas), max(peaks, default=top)
    )
    return results, memory


def assign_like(draft: Program, known: Program, memory: MemoryMap) -> Program:
    """Addresses for another step of a compiled program: weights and caches stay where they are,
    the step's own inputs, constants and activations lie above them, or among the layers where the
    compiled step has room for the like."""
    buffers: dict[str, Buffer] = {}
    cursor = memory.persistent_bytes
    arena = []
    for b in sorted(draft.buffers.values(), key=lambda b: b.name):
        old = known.buffers.get(b.name)
        layered = _one_per_layer(draft, b)
        if b.kind in ("weight", "kv") and old is None:
            raise InvariantError(f"Buffer '{b.name}' of the step is not in the compiled program.")
        if old is not None and (b.kind in ("weight", "kv") or (layered and b.bytes <= old.bytes)):
            buffers[b.name] = replace(b, offset=old.offset, stride=old.stride)
        elif layered:  # divided otherwise than in the compiled step
            stride = _align(b.bytes)
            buffers[b.name] = replace(b, offset=cursor, stride=stride)
            cursor += stride * layers_per_region(draft, b.segment)
        elif b.kind in STEP_KINDS:
            buffers[b.name] = replace(b, offset=cursor)
            cursor += _align(b.bytes)
        else:
            arena.append(b)
    offsets, _ = pack(arena)
    for b in arena:
        buffers[b.name] = replace(b, offset=cursor + offsets[b.name])
    return replace(draft, buffers={n: buffers[n] for n in draft.buffers})


def _one_per_layer(p: Program, b: Buffer) -> bool:
    """Whether something of the step has one instance per layer and so lies among the layers."""
    return b.kind in STEP_KINDS and b.segment != "" and _layered(p, b)


def _align(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def pack(buffers: Sequence[Buffer]) -> tuple[dict[str, int], int]:
    """Addresses for buffers with live intervals: largest first, each at the lowest address that
    is free for as long as it lives; parts of another lie in it. Returns offsets and the height of
    the pile in bytes."""
    done: list[tuple[int, int, int, int]] = []  # first, last, start, end
    offsets: dict[str, int] = {}
    height = 0
    parts = [b for b in buffers if b.within is not None]
    whole = [b for b in buffers if b.within is None]
    for b in sorted(whole, key=lambda b: (-b.bytes, b.live[0], b.name)):
        size = _align(b.bytes)
        first, last = b.live
        busy = sorted((s, t) for f, g, s, t in done if f <= last and first <= g)
        at = 0
        for s, t in busy:
            if at + size <= s:
                break
            at = max(at, t)
        offsets[b.name] = at
        done.append((first, last, at, at + size))
        height = max(height, at + size)
    for b in parts:
        assert b.within is not None
        offsets[b.name] = offsets[b.within[0]] + b.within[1]
    return offsets, height


def peak_by_region(program: Program) -> dict[str, int]:
    """Highest byte in use on the lanes of each region."""
    return {name: max((hi for _, hi in spans), default=0) for name, spans in _spans(program)}


def _spans(program: Program) -> list[tuple[str, list[tuple[int, int]]]]:
    found = []
    for region in program.regions:
        spans = []
        for b, count in region_buffers(program, region):
            spans.append((b.offset, b.offset + (count - 1) * b.stride + b.bytes))
        found.append((region, spans))
    return found


def region_buffers(program: Program, region: str) -> list[tuple[Buffer, int]]:
    """Buffers that a region uses, each with its number of instances there."""
    used: dict[str, int] = {}
    for e in program.schedule:
        if isinstance(e, Run):
            if e.region != region:
                continue
            for i in program.bodies[e.body]:
                for name in buffers_of(i):
                    b = program.buffers[name]
                    count = e.last - e.first + e.base if b.stride else 1
                    used[name] = max(used.get(name, 0), count)
        else:
            if e.region == region:
                used.setdefault(e.transfer.source, 1)
            if e.to_region == region:
                used.setdefault(e.transfer.destination, 1)
    return [(program.buffers[n], c) for n, c in used.items()]
