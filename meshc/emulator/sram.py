"""A core's SRAM when tensors are carried: bytes, views of them, what is in them at the
beginning and which outputs lie in them at the end."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from meshc.emulator import resident
from meshc.emulator.resident import Budget, Shard, Shards, Sources
from meshc.errors import InputError, InvariantError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.dtypes import NUMPY
from meshc.ir.program import Buffer, Program
from meshc.ir.stream import View

# Memory that was never written is NaN in every float type and far out of range as an index.
POISON = np.uint16(0xFFF1)


class Memory:
    """The SRAM of one core; grows to the highest address used, at most `limit_bytes`.

    shards: weights that are read when something looks at them; their bytes take no memory before.
    """

    __slots__ = ("_bytes", "_filled", "_map", "limit_bytes", "name", "shards")

    def __init__(
        self,
        name: str,
        limit_bytes: int,
        size_bytes: int = 0,
        shards: Shards | None = None,
        spared: Sequence[tuple[int, int]] = (),
    ) -> None:
        """spared: disjoint ascending intervals of bytes that shards will fill."""
        self.name = name
        self.limit_bytes = limit_bytes
        self.shards = shards
        self._map: mmap.mmap | None = None
        size = min(size_bytes, limit_bytes)
        if shards is None:
            self._bytes = self._garbage(size)
        else:  # pages of the operating system exist from the first write on
            self._map = mmap.mmap(-1, limit_bytes + limit_bytes % 2)
            self._bytes = np.frombuffer(self._map, np.uint8)
            at = 0
            for start, end in (*spared, (size, size)):
                self._spoil(at, min(start, size))
                at = end
        self._filled = size if shards is not None else self._bytes.size

    @staticmethod
    def _garbage(size: int) -> np.ndarray:
        return np.full((size + 1) // 2, POISON, dtype=np.uint16).view(np.uint8)

    def _spoil(self, start: int, end: int) -> None:
        """Bytes [start, end) as if never written."""
        if end > start:
            skip = start % 2
            self._bytes[start:end] = self._garbage(end - start + skip)[skip : end - start + skip]

    def _array(self, view: View, writes: bool) -> np.ndarray:
        dtype = NUMPY[view.dtype]
        start = view.address
        end = start + prod(view.extent) * dtype.itemsize
        if start < 0 or end > self.limit_bytes:
            raise InvariantError(
                f"Core {self.name} uses bytes [{start}, {end}) of its SRAM, which has "
                f"{self.limit_bytes}."
            )
        if end > self._filled:
            size = min(max(end, 2 * self._filled), self.limit_bytes)
            if self._map is None:
                more = self._garbage(size)
                more[: self._bytes.size] = self._bytes
                self._bytes = more
                size = more.size
            else:
                self._spoil(self._filled, size)
            self._filled = size
        if self.shards is not None:
            (self.shards.claim if writes else self.shards.look)(start, end)
        array = self._bytes[start:end].view(dtype).reshape(view.extent)
        index: Any = (*(slice(r.start, r.stop, r.step) for r in view.ranges), ...)
        return np.asarray(array[index])

    def view(self, view: View) -> np.ndarray:
        """The view's elements as a writable array over this memory."""
        return self._array(view, True)

    def read(self, view: View) -> np.ndarray:
        """The view's elements as an array over this memory that is good for one action and is not
        written to."""
        return self._array(view, False)

    def begin(self) -> None:
        """Another action of a core begins."""
        if self.shards is not None:
            self.shards.budget.tick += 1

    def defer(self, view: View, part: Callable[[], np.ndarray]) -> None:
        """The view will hold what `part` returns, which is asked when something looks at it."""
        shards = self.shards
        start, end = view.span
        if shards is None or end > self.limit_bytes or shards.overlaps(start, end):
            self.begin()
            self.write(view, part())
            return

        def fill() -> None:
            self._spoil(start, end)
            array = self._bytes[start:end].view(NUMPY[view.dtype]).reshape(view.extent)
            index: Any = (*(slice(r.start, r.stop, r.step) for r in view.ranges), ...)
            array[index] = part().astype(array.dtype, copy=False)

        shards.add(Shard(start, end, fill, lambda: self._release(start, end)))

    def _release(self, start: int, end: int) -> None:
        """Give whole pages within [start, end) back to the operating system."""
        page = mmap.PAGESIZE
        first, last = -(-start // page) * page, end // page * page
        if last > first and self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def write(self, view: View, value: np.ndarray) -> None:
        """Store a value, rounded to the view's dtype."""
        target = self.view(view)
        if target.shape != value.shape:
            raise InvariantError(
                f"Core {self.name} stores an array of shape {value.shape} in a view of shape "
                f"{target.shape} at address {view.address}."
            )
        target[...] = value.astype(target.dtype, copy=False)

    def read_bytes(self, view: View) -> np.ndarray:
        """A copy of the view's elements, row-major, as bytes."""
        self.begin()
        return np.array(self.read(view), order="C").reshape(-1).view(np.uint8)

    def write_bytes(self, view: View, data: np.ndarray) -> None:
        """Store the bytes of row-major elements."""
        target = self.view(view)
        target[...] = data.view(target.dtype).reshape(target.shape)

    def untouched(self, view: View) -> bool:
        """Whether nothing was ever written to the view."""
        held = self.read_bytes(view)
        return bool(np.array_equal(held, self._garbage(held.size)[: held.size]))

    def poison(self, view: View) -> None:
        """Forget what the view holds."""
        target = self.view(view)
        data = self._garbage(target.nbytes)[: target.nbytes]
        target[...] = data.view(target.dtype).reshape(target.shape)


def memory_bytes(program: Program) -> int:
    """Bytes of SRAM up to the end of the highest buffer."""
    layers: dict[str, int] = {}
    for _, buffer, _, layer in (*program.load, *program.outputs):
        layers[buffer] = max(layers.get(buffer, 0), layer)
    return max(
        (b.address(layers.get(b.name, 0)) + b.bytes for b in program.buffers.values()), default=0
    )


def lane_view(buffer: Buffer, layer: int, lane: tuple[int, int], grid: tuple[int, int]) -> View:
    """What the lane (row, col) of a rows × cols grid holds of a buffer: its whole shard."""
    shard = buffer.layout.shard(buffer.shape, *lane, *grid)
    extent = buffer.layout.largest(buffer.capacity, *grid)
    return View(buffer.address(layer), extent, tuple(range(len(r)) for r in shard), buffer.dtype)


def lane_slices(buffer: Buffer, lane: tuple[int, int], grid: tuple[int, int]) -> tuple[slice, ...]:
    """Where the lane's shard lies in the whole tensor."""
    shard = buffer.layout.shard(buffer.shape, *lane, *grid)
    return tuple(slice(r.start, r.stop, r.step) for r in shard)


def load(
    program: Program,
    chip: ChipSpec,
    tensors: Mapping[str, np.ndarray],
    state: dict[Coord, Memory] | None = None,
) -> dict[Coord, Memory]:
    """The memories of all cores in regions before the first step.

    state: memories that an earlier step of the same model left behind; caches and the weights of
    that step are in them already.
    """
    memories = state or _fresh(program, chip)
    sources = Sources(tensors)
    for name, buffer_name, region_name, layer in program.load:
        buffer, region = program.buffers[buffer_name], program.regions[region_name]
        if state is not None and buffer.kind in ("weight", "kv"):
            first = memories[region.core(0, 0)]
            view = lane_view(buffer, layer, (0, 0), (region.rows, region.cols))
            if buffer.kind == "kv" or not first.untouched(view):
                continue  # a weight that only this phase has is loaded when it first runs
        if name not in tensors:
            raise InputError(
                f"The program loads '{name}' into buffer '{buffer_name}', but no tensor of that "
                "name is given; give every input of the model."
            )
        grid = (region.rows, region.cols)
        if _deferred(program, buffer, grid):
            for r in range(region.rows):
                for c in range(region.cols):
                    shard = partial(_part, sources, name, buffer, (r, c), grid)
                    view = lane_view(buffer, layer, (r, c), grid)
                    memories[region.core(r, c)].defer(view, shard)
            continue
        data = tensors[name]
        if buffer.kind == "kv":
            buffer = replace(buffer, shape=_past_shape(buffer, data))
        _check_shape(name, data, buffer)
        for r in range(region.rows):
            for c in range(region.cols):
                part = np.asarray(data[lane_slices(buffer, (r, c), grid)])
                view = lane_view(buffer, layer, (r, c), grid)
                memories[region.core(r, c)].write(view, part)
    return memories


def _check_shape(name: str, data: np.ndarray, buffer: Buffer) -> None:
    if tuple(data.shape) != tuple(buffer.shape):
        raise InputError(
            f"The tensor '{name}' has shape {tuple(data.shape)}, but the program was compiled "
            f"for {tuple(buffer.shape)}; give that shape or compile again."
        )


def _part(
    sources: Sources, name: str, buffer: Buffer, lane: tuple[int, int], grid: tuple[int, int]
) -> np.ndarray:
    """A lane's shard of a tensor."""
    data = sources[name]
    _check_shape(name, data, buffer)
    return np.asarray(data[lane_slices(buffer, lane, grid)])


def _deferred(program: Program, buffer: Buffer, grid: tuple[int, int]) -> bool:
    """Whether a buffer's shards are read only when something looks at them: large weights."""
    if buffer.kind != "weight":
        return False
    start, end = lane_view(buffer, 0, (0, 0), grid).span
    return end - start >= resident.LEAST_BYTES


def _fresh(program: Program, chip: ChipSpec) -> dict[Coord, Memory]:
    """The memories of all cores in regions, with nothing in them."""
    size = memory_bytes(program)
    budget = Budget()
    found: dict[Coord, Memory] = {}
    spared: dict[str, list[tuple[int, int]]] = {name: [] for name in program.regions}
    for _, buffer_name, region_name, layer in program.load:
        buffer, region = program.buffers[buffer_name], program.regions[region_name]
        grid = (region.rows, region.cols)
        if _deferred(program, buffer, grid):
            spared[region_name].append(lane_view(buffer, layer, (0, 0), grid).span)
    for name, region in program.regions.items():
        gaps = _joined(spared[name])
        for r in range(region.rows):
            for c in range(region.cols):
                core = region.core(r, c)
                shards = Shards(budget) if gaps else None
                label = f"({core.row},{core.col})"
                found[core] = Memory(label, chip.core.sram_bytes, size, shards, gaps)
    return found


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of intervals, ascending and disjoint."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _past_shape(buffer: Buffer, data: np.ndarray) -> tuple[int, ...]:
    """Shape of what a cache holds before the step: shorter than the buffer where it may grow."""
    if data.ndim != len(buffer.shape):
        return buffer.shape
    return tuple(
        have if have < now and buffer.growing == d else now
        for d, (have, now) in enumerate(zip(data.shape, buffer.shape, strict=True))
    )


def collect(program: Program, memories: Mapping[Coord, Memory]) -> dict[str, np.ndarray]:
    """The program's outputs. Elements that lanes should agree on but do not (by more than
    rounding) become NaN, or the smallest integer, so that a wrong copy shows."""
    outputs = {}
    for name, buffer_name, region_name, layer in program.outputs:
        buffer, region = program.buffers[buffer_name], program.regions[region_name]
        grid = (region.rows, region.cols)
        whole = np.zeros(buffer.shape, NUMPY[buffer.dtype])
        seen = np.zeros(buffer.shape, bool)
        spread = np.zeros(buffer.shape)
        for r in range(region.rows):
            for c in range(region.cols):
                where = lane_slices(buffer, (r, c), grid)
                part = memories[region.core(r, c)].view(lane_view(buffer, layer, (r, c), grid))
                whole[where] = np.where(seen[where], whole[where], part)
                seen[where] = True
                spread[where] = np.maximum(spread[where], _apart(part, whole[where]))
        if not seen.all():
            raise InvariantError(f"No lane of region '{region_name}' holds all of output '{name}'.")
        dtype = NUMPY[program.tensor_dtypes.get(buffer.tensor, buffer.dtype)]
        outputs[name] = _disown(whole, spread).astype(dtype, copy=False)
    return outputs


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distances between elements; NaN is at one place with itself and far from all else."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0, np.nan_to_num(np.abs(x - y), nan=np.inf))


def _disown(whole: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Mark elements whose copies are further apart than replicas that add in another order."""
    if not spread.any():
        return whole
    if whole.dtype.kind in "iub":
        low = False if whole.dtype.kind == "b" else np.iinfo(whole.dtype).min
        return np.where(spread > 0, whole.dtype.type(low), whole)
    finite = np.abs(whole.astype(np.float64))
    scale = finite[np.isfinite(finite)].max(initial=0)
    eps = float(ml_dtypes.finfo(whole.dtype).eps)  # type: ignore[no-untyped-call]
    allowed = max(4 * eps, 1e-4) * scale
    return np.where(spread > allowed, whole.dtype.type(np.nan), whole)
