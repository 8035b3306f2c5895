"""Partitioning: region shape, stages, and a sharding for every op.

A strategy is one function from phases, a chip and options to its finalists, each a plan per
phase; `STRATEGIES` names them.
"""

from meshc.partition.auto import Options, PhaseGraphs, plan_auto
from meshc.partition.pipeline import plan_pipeline
from meshc.partition.waferllm import SETTINGS as WAFERLLM_SETTINGS
from meshc.partition.waferllm import plan_waferllm

STRATEGIES = {"auto": plan_auto, "pipeline": plan_pipeline, "waferllm": plan_waferllm}

# Options of each strategy that --set takes.
SETTINGS: dict[str, tuple[str, ...]] = {"waferllm": WAFERLLM_SETTINGS}

__all__ = ["SETTINGS", "STRATEGIES", "Options", "PhaseGraphs"]
