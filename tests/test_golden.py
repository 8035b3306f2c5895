"""Cycle counts of the example model, recorded in tests/golden/, so that a change in them is seen.

After a change on purpose: pytest tests/test_golden.py --update-golden -m "slow or not slow", and
say why in the commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshc.ir.compiled import Compiled
from meshc.run import run_phase

GOLDEN = Path(__file__).parent / "golden"


def metrics(compiled: Compiled) -> dict[str, Any]:
    """What must not change unnoticed: no times, nothing that depends on the machine."""
    found: dict[str, Any] = {}
    for phase, done in compiled.phases.items():
        trace, free = run_phase(compiled, phase)
        found[phase] = {
            "regions": [f"{r.rows}x{r.cols}" for r in done.program.regions.values()],
            "latency_cycles": trace.cycles,
            "no_contention_cycles": free.cycles,
            "predicted_cycles": round(done.predicted_cycles, 6),
            "messages": trace.messages,
            "message_bytes": trace.message_bytes,
            "macs": int(trace.macs.sum()),
            "busiest_link_cycles": float(trace.link_busy_cycles.max()),
        }
    return found | {"peak_sram_bytes": compiled.memory.needed}


@pytest.mark.parametrize(
    ("chip", "solver"),
    [
        ("test4x4", "greedy"),
        ("test4x4", "ilp"),
        pytest.param("test8x8", "greedy", marks=pytest.mark.slow),
        ("test8x8", "ilp"),
    ],
)
def test_cycle_counts(
    chip: str, solver: str, build: Callable[..., Compiled], request: pytest.FixtureRequest
) -> None:
    # A time limit would make the count depend on the machine; these solve in seconds.
    found = metrics(build(chip=chip, solver=solver, time_limit=120.0))
    file = GOLDEN / f"llama-{chip}-{solver}.json"
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")
        return
    if not file.exists():
        pytest.fail(f"{file.name} is not recorded; run pytest tests/test_golden.py --update-golden")
    recorded = json.loads(file.read_text())
    if solver == "ilp":  # another version of the solver may take another of several optima
        for part, numbers in found.items():
            for name in ("latency_cycles", "predicted_cycles"):
                if isinstance(numbers, dict):
                    assert numbers[name] == pytest.approx(recorded[part][name], rel=0.05), name
        return
    changes = {
        f"{part}.{name}": (value.get(name), numbers[name])
        for part, numbers in found.items()
        if isinstance(numbers, dict)
        for value in [recorded.get(part, {})]
        for name in numbers
        if value.get(name) != numbers[name]
    }
    assert not changes, "recorded and found differ; if on purpose, run with --update-golden"
    assert recorded == found
