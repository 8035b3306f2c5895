"""Strategy `pipeline`: every layer on a region of its own, as far as the chip has room."""

from __future__ import annotations

from dataclasses import replace

from meshc.ir.chip import ChipSpec
from meshc.ir.plan import Plan, SolveStats
from meshc.partition.auto import Options, PhaseGraphs, plan_auto


def plan_pipeline(
    phases: list[PhaseGraphs], chip: ChipSpec, options: Options
) -> tuple[list[dict[str, Plan]], list[SolveStats]]:
    """The best plans among those with at least two stages (one per layer where two cores or more
    are left for each). Models without repeated layers have a single stage."""
    layers = max(s.repeat for p in phases for s in p.graph.segments)
    wanted = replace(options, least_stages=max(1, min(layers, chip.cores)))
    finalists, stats = plan_auto(phases, chip, wanted)
    named = [{n: replace(p, strategy="pipeline") for n, p in plans.items()} for plans in finalists]
    return named, stats
