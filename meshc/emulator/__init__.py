"""The emulator: runs a Program on a chip, for its time or for time and tensors.

It knows the Program and the chip and nothing of the planner. Sizes are in bytes, times in cycles
of the chip's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from meshc.emulator.core import check_chip_runs
from meshc.emulator.cores import Faults, Progress, run_streams
from meshc.emulator.lanes import run_lanes
from meshc.emulator.sram import Memory, collect, load
from meshc.errors import InputError
from meshc.expand import POSITIONS, Expander
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.program import Program
from meshc.ir.trace import Trace

__all__ = ["DEFAULT_ENGINE", "ENGINES", "Faults", "check_chip_runs", "emulate"]


def _run_cores(
    program: Program,
    chip: ChipSpec,
    *,
    tensors: Mapping[str, np.ndarray] | None,
    contention: bool,
    cycle_limit: float | None,
    faults: Faults | None,
    progress: Progress | None,
    core_spans: bool,
    state: dict[Coord, Memory] | None,
    keep_state: bool,
) -> Trace:
    expander = Expander(program)
    memories = load(program, chip, tensors, state) if tensors is not None else None
    trace = run_streams(
        {core: expander.stream(core) for core in expander.cores()},
        chip,
        program.ops,
        contention=contention,
        memories=memories,
        cycle_limit=cycle_limit,
        faults=faults,
        progress=progress,
        core_spans=core_spans,
        region_of=lambda position: program.schedule[position // POSITIONS].region,
    )
    if memories is None:
        return trace
    left = memories if keep_state else None
    return replace(trace, outputs=collect(program, memories), state=left)


def _run_lanes(
    program: Program,
    chip: ChipSpec,
    *,
    tensors: Mapping[str, np.ndarray] | None,
    contention: bool,
    cycle_limit: float | None,
    faults: Faults | None,
    progress: Progress | None,
    core_spans: bool,
    state: dict[Coord, Memory] | None,
    keep_state: bool,
) -> Trace:
    """Time by whole regions. Tensors, which the time does not depend on, are carried core by
    core."""
    carried = None
    if tensors is not None:
        carried = _run_cores(
            program,
            chip,
            tensors=tensors,
            contention=False,
            cycle_limit=None,
            faults=faults,
            progress=progress,
            core_spans=False,
            state=state,
            keep_state=keep_state,
        )
    trace = run_lanes(
        program,
        chip,
        contention=contention,
        cycle_limit=cycle_limit,
        progress=progress if tensors is None else None,
        core_spans=core_spans,
    )
    if carried is None:
        return trace
    return replace(trace, outputs=carried.outputs, state=carried.state, routed=carried.routed)


ENGINES = {"lanes": _run_lanes, "cores": _run_cores}
DEFAULT_ENGINE = "lanes"


def emulate(
    program: Program,
    chip: ChipSpec,
    *,
    tensors: Mapping[str, np.ndarray] | None = None,
    contention: bool = True,
    engine: str = DEFAULT_ENGINE,
    cycle_limit: float | None = None,
    faults: Faults | None = None,
    progress: Progress | None = None,
    core_spans: bool = False,
    state: dict[Coord, Memory] | None = None,
    keep_state: bool = False,
) -> Trace:
    """Run a program on a chip.

    tensors: data by the names in `program.load`; with them the cores compute and the Trace has
        outputs, in the same number of cycles.
    engine: "lanes" works SPMD instructions out over whole regions and is for meshes of any size;
        "cores" runs each core's own stream, message by message, and is the reference.
    contention: False gives links and ports to every message as if it were alone.
    cycle_limit: InputError when the run takes longer.   faults: for tests of verification.
    progress: called now and then with (cycle, cores done, cores).
    core_spans: also record each core's own time in each span.
    state: memories to start from (`Trace.state` of an earlier step of the same model); weights
        and caches are then not loaded again.   keep_state: put the memories into the Trace.
    """
    if engine not in ENGINES:
        raise InputError(
            f"The emulator has no engine '{engine}'; choose one of {', '.join(ENGINES)}."
        )
    check_chip_runs(program, chip)
    return ENGINES[engine](
        program,
        chip,
        tensors=tensors,
        contention=contention,
        cycle_limit=cycle_limit,
        faults=faults,
        progress=progress,
        core_spans=core_spans,
        state=state,
        keep_state=keep_state,
    )
