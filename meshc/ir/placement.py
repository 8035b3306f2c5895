"""Where regions lie on the mesh."""

from __future__ import annotations

from dataclasses import dataclass

from meshc.ir.chip import Coord


@dataclass(frozen=True)
class Region:
    """A named rectangle of cores."""

    name: str
    row: int
    col: int
    rows: int
    cols: int

    def core(self, row: int, col: int) -> Coord:
        """Position on the mesh of the lane at (row, col) of the region."""
        return Coord(self.row + row, self.col + col)

    def contains(self, core: Coord) -> bool:
        return (
            self.row <= core.row < self.row + self.rows
            and self.col <= core.col < self.col + self.cols
        )


@dataclass(frozen=True)
class Placement:
    """Stage name → region."""

    regions: dict[str, Region]

    def dump(self) -> str:
        return "".join(
            f"region {r.name} at ({r.row},{r.col}) {r.rows}x{r.cols}\n"
            for r in self.regions.values()
        )
