"""Partitioning: region shape, stages, and a sharding for every op.

A strategy is one function from phases, a chip and options to its finalists, each a plan per
phase; `STRATEGIES` names them.
"""

from meshc.partition.auto import Options, PhaseGraphs, plan_auto
from meshc.partition.pipeline import plan_pipeline

STRATEGIES = {"auto": plan_auto, "pipeline": plan_pipeline}

__all__ = ["STRATEGIES", "Options", "PhaseGraphs"]
