"""The engine "lanes": SPMD instructions over whole regions, for meshes of any size."""

from __future__ import annotations

from collections.abc import Callable

from meshc.ir.chip import ChipSpec
from meshc.ir.program import Program
from meshc.ir.trace import Trace

__all__ = ["run_lanes"]


def run_lanes(
    program: Program,
    chip: ChipSpec,
    *,
    contention: bool = True,
    cycle_limit: float | None = None,
    progress: Callable[[float, int, int], None] | None = None,
    core_spans: bool = False,
    shorten: bool = True,
    most_hops: int | None = None,
) -> Trace:
    """The time of a program.

    shorten: work repeated layers out only until their times repeat.   most_hops: transfers of
    more links are worked out message after message.   The rest is as in `meshc.emulator.emulate`.
    """
    # numba is loaded when it is first needed.
    from meshc.emulator.lanes.engine import MOST_HOPS, Lanes

    return Lanes(
        program,
        chip,
        contention=contention,
        cycle_limit=cycle_limit,
        progress=progress,
        core_spans=core_spans,
        shorten=shorten,
        most_hops=MOST_HOPS if most_hops is None else most_hops,
    ).run()
