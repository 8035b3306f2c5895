"""The program: SPMD instructions over regions and the SRAM buffers that they use.

Bodies are instruction lists stored once. The schedule runs a body on a region for a range of
layers, or moves a buffer from one region to another. The size of a Program depends on neither
the core count nor the layer count; `meshc.expand.expand(program, core)` gives one core's own
instruction stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from meshc.errors import InvariantError
from meshc.ir.dtypes import size_bytes
from meshc.ir.graph import Op
from meshc.ir.layout import Axis, Layout
from meshc.ir.placement import Region
from meshc.ir.routing import Route

DEFAULT_ROUTE = Route()
BufferKind = Literal["weight", "kv", "input", "constant", "output", "activation", "scratch"]


@dataclass(frozen=True)
class Buffer:
    """An array in the SRAM of every lane of the regions that use it.

    kind: "output" keeps one result per layer until the end.
    tensor: Graph tensor that it holds.   shape: of the whole tensor in this step.
    capacity: shape that memory is reserved for (differs from shape for a growing cache).
    offset: byte address on every lane.   stride: bytes from one layer's instance to the next
    (0: one instance).   bytes: of one instance on the fullest lane.
    live: first and last position in its body at which it holds a value; persistent ones have
    (0, -1).
    within: name of a larger buffer that it is part of, and its place there in bytes.
    segment: the segment whose ops use it ("" when shared by several).
    growing: the dimension that counts cached tokens, of a kv buffer.   token_dims: all dimensions
    that do, of any buffer.
    """

    name: str
    tensor: str
    kind: BufferKind
    shape: tuple[int, ...]
    capacity: tuple[int, ...]
    dtype: str
    layout: Layout
    bytes: int
    offset: int = 0
    stride: int = 0
    live: tuple[int, int] = (0, -1)
    segment: str = ""
    growing: int | None = None
    token_dims: tuple[int, ...] = ()
    within: tuple[str, int] | None = None

    def address(self, layer: int) -> int:
        """Byte address of the instance that belongs to a region's `layer`-th layer."""
        return self.offset + layer * self.stride


def lane_bytes(
    shape: tuple[int, ...], dtype: str, layout: Layout, rows: int, cols: int, align: int = 4
) -> int:
    """Bytes that the fullest lane needs for a tensor, rounded up to `align`."""
    raw = prod(layout.largest(shape, rows, cols)) * size_bytes(dtype)
    return -(-raw // align) * align


@dataclass(frozen=True)
class Compute:
    """Every lane runs `op` on its own shards. `op` names a Graph op of the Program's `ops`.

    layouts: the shards that the op reads, which may be parts of the input buffers' own shards.
    scratch: buffers of the kernel's temporaries.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str
    layouts: tuple[Layout, ...]
    scratch: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reduce:
    """Lanes along `axis` combine their copies of `buffer` elementwise at the tree's root.

    combine: a name of `meshc.ops.combine.COMBINES`.   groups: the line is cut into this many
    groups; each reduces towards its middle, then the group roots towards the middle one (1: a
    plain two-sided chain).   scratch: one or two receive buffers.   set_up: every core makes ready
    for the collective first.   streams: a core that receives one partial result passes its own on
    while it arrives.
    """

    name: str
    op: str
    buffer: str
    axis: Axis
    combine: str
    groups: int
    scratch: tuple[str, ...]
    route: Route = DEFAULT_ROUTE
    set_up: bool = False
    streams: bool = False


@dataclass(frozen=True)
class Broadcast:
    """The root of the reduction tree along `axis` gives its copy of `buffer` to the others: as one
    multicast message, or passed down the tree."""

    name: str
    op: str
    buffer: str
    axis: Axis
    groups: int
    multicast: bool
    route: Route = DEFAULT_ROUTE


@dataclass(frozen=True)
class Transfer:
    """Re-shard: every lane of the destination gets its shard of `destination` from lanes that
    hold it in `source`. Within one region, or between two when the schedule says so."""

    name: str
    op: str
    source: str
    destination: str
    multicast: bool
    route: Route = DEFAULT_ROUTE


@dataclass(frozen=True)
class Shift:
    """A product by passing tiles round the lines of a square region, once round: in every step each
    lane multiplies the two tiles that it has, adds to a tile of the result, and passes two tiles
    on. Lines are rings (see `meshc.collectives.ring`) on which no step is longer than two hops.

    inputs: left and right operand, which stay as they are; layouts: their shards.
    turning: what goes round. "operands": left tiles along "col", right ones along "row", and the
        result stays (Cannon's algorithm). "result": the result's tiles along "col", right ones
        along "row", and the left stays (for a right operand whose shards lie as the transposed
        product wants them).
    tiles: two buffers of what turns along "col" and two of what turns along "row".
    """

    name: str
    op: str
    inputs: tuple[str, str]
    output: str
    layouts: tuple[Layout, Layout]
    turning: Literal["operands", "result"]
    tiles: tuple[str, str, str, str]
    route: Route = DEFAULT_ROUTE


Instruction = Compute | Reduce | Broadcast | Transfer


def reads_of(i: Instruction) -> tuple[str, ...]:
    """Names of the buffers whose values an instruction needs."""
    if isinstance(i, Compute | Shift):
        return i.inputs
    return (i.source,) if isinstance(i, Transfer) else (i.buffer,)


def writes_of(i: Instruction) -> tuple[str, ...]:
    """Names of the buffers that an instruction changes."""
    if isinstance(i, Compute):
        return (i.output, *i.scratch)
    if isinstance(i, Shift):
        return (i.output, *i.tiles)
    if isinstance(i, Transfer):
        return (i.destination,)
    return (i.buffer, *i.scratch) if isinstance(i, Reduce) else (i.buffer,)


def buffers_of(i: Instruction) -> tuple[str, ...]:
    """Names of the buffers that an instruction reads or writes."""
    return tuple(dict.fromkeys((*reads_of(i), *writes_of(i))))


@dataclass(frozen=True)
class Run:
    """Run `body` on `region` for layers [first, last) of `segment`; `base` is the index of the
    first of them among the region's own layers."""

    body: str
    segment: str
    region: str
    first: int
    last: int
    base: int = 0


@dataclass(frozen=True)
class Move:
    """Run one Transfer from `region` to `to_region`."""

    transfer: Transfer
    region: str
    to_region: str


@dataclass(frozen=True)
class Program:
    """A whole step of one phase. `load` lists what is in SRAM before it starts, `outputs` where
    the results lie when it ends: (name in the model, buffer, region, layer of the region).
    """

    phase: str
    chip: str
    rows: int
    cols: int
    regions: dict[str, Region]
    buffers: dict[str, Buffer]
    ops: dict[str, Op]
    bodies: dict[str, tuple[Instruction, ...]]
    schedule: tuple[Run | Move, ...]
    # (name of the data, buffer, region, layer of the region)
    load: tuple[tuple[str, str, str, int], ...]
    outputs: tuple[tuple[str, str, str, int], ...]
    tensor_shapes: dict[str, tuple[int, ...]]
    tensor_dtypes: dict[str, str]

    def verify(self) -> None:
        """Raise InvariantError unless everything that is named exists."""
        for e in self.schedule:
            if not isinstance(e, Run | Move):
                raise InvariantError(f"The schedule has {e!r}, which is neither a run nor a move.")
            regions = (e.region, e.to_region) if isinstance(e, Move) else (e.region,)
            for name in regions:
                if name not in self.regions:
                    raise InvariantError(f"The schedule names the unknown region '{name}'.")
            if isinstance(e, Run) and e.body not in self.bodies:
                raise InvariantError(f"The schedule names the unknown body '{e.body}'.")
        moves = [e.transfer for e in self.schedule if isinstance(e, Move)]
        for i in (*moves, *(i for body in self.bodies.values() for i in body)):
            for name in buffers_of(i):
                if name not in self.buffers:
                    raise InvariantError(f"'{i.name}' names the unknown buffer '{name}'.")
            if isinstance(i, Compute) and i.op not in self.ops:
                raise InvariantError(f"'{i.name}' names the unknown op '{i.op}'.")
        for data, buffer, region, _ in (*self.load, *self.outputs):
            if buffer not in self.buffers or region not in self.regions:
                raise InvariantError(f"'{data}' lies in an unknown buffer or region.")

    def dump(self) -> str:
        """Canonical text: buffers with their addresses, bodies, schedule."""
        lines = [f"program {self.phase} for {self.chip} {self.rows}x{self.cols}"]
        for r in self.regions.values():
            lines.append(f"region {r.name} {r.rows}x{r.cols} at ({r.row},{r.col})")
        for b in self.buffers.values():
            lines.append(
                f"buffer {b.name}: {b.kind} {list(b.shape)} of {list(b.capacity)} {b.dtype} "
                f"{b.layout} at {b.offset}+{b.bytes} stride {b.stride} "
                f"live {b.live[0]}..{b.live[1]}"
            )
        for name, body in self.bodies.items():
            lines.append(f"body {name}")
            lines += [f"  {_instruction_text(i)}" for i in body]
        for e in self.schedule:
            if isinstance(e, Move):
                text = f"move {e.transfer.source} from {e.region} to {e.to_region}"
            else:
                text = f"run {e.body} on {e.region} layers {e.first}..{e.last - 1}"
            lines.append(text)
        lines += [f"load {d} into {b} of {r} layer {n}" for d, b, r, n in self.load]
        lines += [f"output {d} in {b} of {r} layer {n}" for d, b, r, n in self.outputs]
        return "\n".join(lines) + "\n"


def _instruction_text(i: Instruction) -> str:
    if isinstance(i, Compute):
        return f"compute {i.op}: {i.output} <- {', '.join(i.inputs)}"
    if isinstance(i, Reduce):
        return f"reduce {i.buffer} by {i.combine} over {i.axis} in {i.groups} groups"
    if isinstance(i, Shift):
        return f"shift {i.op}: {i.output} <- {', '.join(i.inputs)}, turning the {i.turning}"
    if isinstance(i, Broadcast):
        return f"broadcast {i.buffer} over {i.axis} in {i.groups} groups"
    return f"transfer {i.destination} <- {i.source}"
