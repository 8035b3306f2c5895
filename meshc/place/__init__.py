"""Placement: blocks of cores onto the mesh, off the dead cores, at the least bytes × hops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from meshc.errors import DoesNotFitError, InvariantError
from meshc.ir.chip import ChipSpec
from meshc.ir.placement import Placement, Region
from meshc.ir.plan import SolveStats
from meshc.place.anchors import candidate_anchors
from meshc.place.blocks import Block, Mask, Net, axis_hops, centres, fits, working
from meshc.place.firstfit import first_fit
from meshc.place.problem import placement_problem
from meshc.solve import solve

__all__ = ["Block", "Net", "byte_hops", "place"]

WINDOW = 16  # blocks that are placed together; more are placed in overlapping windows

Position = tuple[int, int]


def place(
    blocks: Sequence[Block],
    nets: Sequence[Net],
    chip: ChipSpec,
    *,
    solver: str = "ilp",
    gap: float = 0.01,
    time_limit: float = 10.0,
    seed: int = 0,
    share: bool = False,
) -> tuple[Placement, list[SolveStats]]:
    """A region for every block, in their order, and the statistics of the solves.

    share: blocks may overlap (regions that take turns).   time_limit: seconds over all windows.
    Raises DoesNotFitError when the blocks do not fit beside each other.
    """
    _check(blocks, nets, chip)
    if not blocks:
        return Placement({}), []
    free = working(chip)
    _check_each_fits(blocks, free, chip)
    positions: list[Position | None]
    if share:
        positions, count = [first_fit([b], free)[0][0] for b in blocks], len(blocks)
    else:
        _check_area(blocks, chip)
        positions, count = first_fit(blocks, free)
    windows = _windows(len(blocks))
    if len(windows) > 1 and count < len(blocks):
        raise _does_not_fit(blocks, chip, count, proven=False)
    stats: list[SolveStats] = []
    for number, members in enumerate(windows):
        part = f"{len(blocks)} blocks"
        if len(windows) > 1:
            part = f"window {number + 1} of {len(windows)}, {len(members)} of {len(blocks)} blocks"
        found, record, complete = _place_window(
            blocks, nets, positions, members, free, chip, share, part,
            solver=solver, gap=gap, time_limit=time_limit / len(windows), seed=seed,
        )  # fmt: skip
        stats.append(record)
        if found is None:
            proven = complete and record.status == "infeasible"
            raise _does_not_fit(blocks, chip, count, proven)
        for i, new in zip(members, found, strict=True):
            positions[i] = new
    regions = {}
    for block, position in zip(blocks, positions, strict=True):
        assert position is not None
        regions[block.name] = Region(block.name, *position, block.rows, block.cols)
    return Placement(regions), stats


def byte_hops(placement: Placement, nets: Sequence[Net], chip: ChipSpec) -> float:
    """Sum over the nets of bytes × hops between the middles of their ends."""
    total = 0.0
    for net in nets:
        ends = [_middle(name, placement, chip) for name in (net.first, net.second)]
        for axis in (0, 1):
            first, second = (np.array([e[axis]]) for e in ends)
            total += net.bytes * float(axis_hops(chip, axis, first, second)[0, 0])
    return total


def _middle(name: str, placement: Placement, chip: ChipSpec) -> tuple[float, float]:
    region = placement.regions.get(name)
    if region is None:
        return _channels(chip)[name]
    return region.row + (region.rows - 1) / 2, region.col + (region.cols - 1) / 2


def _channels(chip: ChipSpec) -> dict[str, tuple[float, float]]:
    return {f"dram.{i}": (float(d.row), float(d.col)) for i, d in enumerate(chip.dram)}


def _windows(count: int) -> list[list[int]]:
    """Runs of at most WINDOW blocks, each overlapping half of the one before."""
    if count <= WINDOW:
        return [list(range(count))]
    starts = range(0, count - WINDOW // 2, WINDOW // 2)
    return [list(range(s, min(s + WINDOW, count))) for s in starts]


def _place_window(
    blocks: Sequence[Block],
    nets: Sequence[Net],
    positions: list[Position | None],
    members: list[int],
    free: Mask,
    chip: ChipSpec,
    share: bool,
    part: str,
    *,
    solver: str,
    gap: float,
    time_limit: float,
    seed: int,
) -> tuple[list[Position] | None, SolveStats, bool]:
    """New positions of some blocks, the others staying; the third tells that all were tried."""
    room = free.copy()
    fixed = _channels(chip)
    for i, (block, position) in enumerate(zip(blocks, positions, strict=True)):
        if i in members or position is None:
            continue
        row, col = position
        if not share:
            room[row : row + block.rows, col : col + block.cols] = False
        middle = centres(np.array([position], np.int64), block)[0]
        fixed[block.name] = (float(middle[0]), float(middle[1]))
    moving = [blocks[i] for i in members]
    known = [positions[i] for i in members]
    anchors, words = candidate_anchors(moving, room, known)
    problem = placement_problem(moving, nets, anchors, fixed, chip, share, f"{part}, {words}")
    starts = []
    if all(p is not None for p in known):
        starts = [
            tuple(
                int(np.flatnonzero((a == p).all(1))[0]) for a, p in zip(anchors, known, strict=True)
            )
        ]
    answer, record = solve(
        problem, solver=solver, gap=gap, time_limit=time_limit, seed=seed, starts=starts
    )
    complete = words == "every position"
    if answer is None:
        return None, record, complete
    chosen = [a[o] for a, o in zip(anchors, answer.options, strict=True)]
    return [(int(r), int(c)) for r, c in chosen], record, complete


def _check(blocks: Sequence[Block], nets: Sequence[Net], chip: ChipSpec) -> None:
    for name, uses in Counter(b.name for b in blocks).items():
        if uses > 1:
            raise InvariantError(f"block {name} is given {uses} times; names must differ.")
    known = {b.name for b in blocks} | set(_channels(chip))
    for net in nets:
        for end in (net.first, net.second):
            if end not in known:
                raise InvariantError(
                    f"net {net.first} to {net.second} names {end}, which is neither a block nor a "
                    f"DRAM channel of {chip.name}."
                )
    for block in blocks:
        if block.rows < 1 or block.cols < 1:
            raise InvariantError(f"block {block.name} of {block.rows}x{block.cols} has no core.")


def _check_each_fits(blocks: Sequence[Block], free: Mask, chip: ChipSpec) -> None:
    for block in {(b.rows, b.cols): b for b in reversed(blocks)}.values():
        size = f"{block.rows}x{block.cols}"
        if block.rows > chip.rows or block.cols > chip.cols:
            raise DoesNotFitError(
                f"region {block.name} of {size} cores is larger than the {chip.rows}x{chip.cols} "
                f"mesh of {chip.name}; use a smaller region (--grid) or a larger chip."
            )
        if not fits(free, block.rows, block.cols).any():
            raise DoesNotFitError(
                f"region {block.name} of {size} cores fits nowhere on the {chip.rows}x{chip.cols} "
                f"mesh of {chip.name} without one of its {len(chip.dead())} dead cores; "
                "use a smaller region (--grid)."
            )


def _check_area(blocks: Sequence[Block], chip: ChipSpec) -> None:
    area = sum(b.rows * b.cols for b in blocks)
    if area > chip.cores:
        raise DoesNotFitError(
            f"{_sizes(blocks)} need {area} cores of their own, but {chip.name} has {chip.cores} "
            f"working ones, {area - chip.cores} too few; use fewer or smaller regions."
        )


def _does_not_fit(
    blocks: Sequence[Block], chip: ChipSpec, count: int, proven: bool
) -> DoesNotFitError:
    dead = len(chip.dead())
    beside = f" beside its {dead} dead cores" if dead else ""
    verb = "cannot stand" if proven else "were not found to fit"
    return DoesNotFitError(
        f"{_sizes(blocks)} {verb} on the {chip.rows}x{chip.cols} mesh of {chip.name}{beside} "
        f"without overlap: {count} of them fit; use fewer or smaller regions."
    )


def _sizes(blocks: Sequence[Block]) -> str:
    counts = Counter((b.rows, b.cols) for b in blocks)
    return " and ".join(
        f"{n} region{'s' if n > 1 else ''} of {r}x{c}" for (r, c), n in sorted(counts.items())
    )
