"""How a tensor is divided over the lanes of a region.

A region is a grid of `rows` × `cols` lanes. Axis "row" numbers the lanes by their row (lanes
that differ in it lie below each other), axis "col" by their column. Each tensor dimension is
divided over no axis, one axis, or both; an axis that divides no dimension replicates the
tensor. Every shard of a dimension is an arithmetic range, so it is written as a `range`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Literal

from meshc.errors import InvariantError

Axis = Literal["row", "col"]
AXES: tuple[Axis, Axis] = ("row", "col")


@dataclass(frozen=True)
class Split:
    """How one dimension is divided.

    axes: the mesh axes that divide it, the first one outermost; () keeps it whole.
    block: elements per lane for a blocked split; 1 when cyclic.
    cyclic: element t lives on lane t mod lanes (a growing KV cache stays balanced), otherwise
        lane i holds elements [i·block, (i+1)·block).
    """

    axes: tuple[Axis, ...] = ()
    block: int = 0
    cyclic: bool = False

    def lanes(self, rows: int, cols: int) -> int:
        """Number of lanes along this split on a rows × cols region."""
        return prod((rows if a == "row" else cols) for a in self.axes)

    def lane(self, row: int, col: int, rows: int, cols: int) -> int:
        """Index along this split of the lane at (row, col)."""
        index = 0
        for a in self.axes:
            index = index * (rows if a == "row" else cols) + (row if a == "row" else col)
        return index

    def shard(self, size: int, row: int, col: int, rows: int, cols: int) -> range:
        """Elements of a dimension of `size` that the lane (row, col) holds; may be empty."""
        if not self.axes:
            return range(size)
        lane = self.lane(row, col, rows, cols)
        if self.cyclic:
            return range(min(lane, size), size, self.lanes(rows, cols))
        return range(min(lane * self.block, size), min((lane + 1) * self.block, size))

    def largest(self, size: int, rows: int, cols: int) -> int:
        """Elements on the fullest lane (lane 0)."""
        if not self.axes:
            return size
        if self.cyclic:
            return ceil(size / self.lanes(rows, cols))
        return min(self.block, size)


WHOLE = Split()


def split(
    size: int,
    axes: tuple[Axis, ...],
    rows: int,
    cols: int,
    unit: int = 1,
    cyclic: bool = False,
) -> Split:
    """Divide `size` elements, kept together in units of `unit`, over `axes`.

    Axes with one lane are dropped, so that equal layouts compare equal.
    """
    axes = tuple(a for a in axes if (rows if a == "row" else cols) > 1)
    if not axes:
        return WHOLE
    lanes = prod((rows if a == "row" else cols) for a in axes)
    if cyclic:
        if unit != 1:
            raise InvariantError(f"A cyclic split keeps single elements, not units of {unit}.")
        return Split(axes, 1, True)
    return Split(axes, unit * ceil(size / unit / lanes), False)


@dataclass(frozen=True)
class Layout:
    """The division of a whole tensor: one Split per dimension."""

    splits: tuple[Split, ...]

    def __post_init__(self) -> None:
        # Layouts are looked up very often while planning; hash them once.
        object.__setattr__(self, "_hash", hash(self.splits))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def verify(self) -> None:
        used = [a for s in self.splits for a in s.axes]
        if len(used) != len(set(used)):
            raise InvariantError(f"Layout {self} divides two dimensions over the same mesh axis.")

    @property
    def axes(self) -> frozenset[Axis]:
        """Mesh axes that divide some dimension; the others replicate."""
        return frozenset(a for s in self.splits for a in s.axes)

    def shard(
        self, shape: tuple[int, ...], row: int, col: int, rows: int, cols: int
    ) -> tuple[range, ...]:
        """Index ranges that the lane (row, col) holds of a tensor of `shape`."""
        return tuple(
            s.shard(n, row, col, rows, cols) for s, n in zip(self.splits, shape, strict=True)
        )

    def largest(self, shape: tuple[int, ...], rows: int, cols: int) -> tuple[int, ...]:
        """Shape of the shard on the fullest lane, lane (0, 0)."""
        return tuple(s.largest(n, rows, cols) for s, n in zip(self.splits, shape, strict=True))

    def __str__(self) -> str:
        def one(s: Split) -> str:
            if not s.axes:
                return "·"
            return "".join(a[0] for a in s.axes) + (":cyclic" if s.cyclic else f":{s.block}")

        return "[" + ", ".join(one(s) for s in self.splits) + "]"


def replicated(rank: int) -> Layout:
    """The layout in which every lane holds the whole tensor."""
    return Layout((WHOLE,) * rank)
