"""One core's own instructions, as `expand` makes them from a Program.

Keys identify messages: a Send and a Recv with the same key are one message. Views name the part
of a buffer on this core: a byte address, the shape of the array in memory (`extent`, row-major)
and one range per dimension into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshc.ir.chip import Coord
from meshc.ir.dtypes import size_bytes
from meshc.ir.routing import Route

Key = tuple[int, int, int]  # schedule position and layer, instruction, message


@dataclass(frozen=True, slots=True)
class View:
    """Part of an array in this core's SRAM."""

    address: int
    extent: tuple[int, ...]
    ranges: tuple[range, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return prod(len(r) for r in self.ranges)

    @property
    def bytes(self) -> int:
        return self.elements * size_bytes(self.dtype)

    @property
    def span(self) -> tuple[int, int]:
        """Byte interval [start, end) of the whole array."""
        return self.address, self.address + prod(self.extent) * size_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class Kernel:
    """Run the op on local views. ranges: global index ranges of each operand's dims, the
    output's last; they say which part of the tensors these shards are.   layer: of the model, -1
    outside repeated segments."""

    op: str
    inputs: tuple[View, ...]
    output: View
    ranges: tuple[tuple[range, ...], ...]
    layer: int = -1


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy one view to another of equal shape on the same core."""

    source: View
    destination: View


@dataclass(frozen=True, slots=True)
class Send:
    """Send a view's elements, in row-major order, to one or several cores (multicast)."""

    key: Key
    to: tuple[Coord, ...]
    view: View
    route: Route


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive into a view; the message must have the view's bytes."""

    key: Key
    source: Coord
    view: View


@dataclass(frozen=True, slots=True)
class Combine:
    """destination := combine(destination, source), elementwise, accumulated in float32."""

    combine: str
    source: View
    destination: View


@dataclass(frozen=True, slots=True)
class Pass:
    """Combine a message with the view that `send` sends, flit by flit as it arrives, and send the
    result on as it comes out."""

    recv: Recv
    combine: str
    send: Send


@dataclass(frozen=True, slots=True)
class SetUp:
    """Make ready for a collective; takes the network's collective_cycles."""


Action = Kernel | Copy | Send | Recv | Combine | Pass | SetUp


@dataclass(frozen=True, slots=True)
class Step:
    """What this core does for one SPMD instruction. All Recv of the step are posted when the
    core enters it, then the actions run in order.

    name, op, layer: for traces (layer is the model's, -1 outside repeated segments).
    """

    position: int
    name: str
    op: str
    kind: str
    layer: int
    actions: tuple[Action, ...]
