"""Partitioning: region shape, stages, and a sharding for every op.

A strategy is one function from phases and a chip to a plan per phase; `STRATEGIES` names them.
"""

from meshc.partition.auto import Options, PhaseGraphs, plan_auto

STRATEGIES = {"auto": plan_auto}

__all__ = ["STRATEGIES", "Options", "PhaseGraphs"]
