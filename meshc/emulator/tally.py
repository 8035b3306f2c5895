"""Adding up what the cores did, per instruction and per core, into a Trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from meshc.emulator.flight import Core, Flight
from meshc.emulator.network import Network
from meshc.ir.chip import ChipSpec
from meshc.ir.stream import Step
from meshc.ir.trace import Span, Trace


class StepTally:
    """One SPMD instruction of one layer, over all cores that run it."""

    __slots__ = (
        "communication",
        "compute",
        "cores",
        "end",
        "message_bytes",
        "messages",
        "start",
        "step",
        "wait",
    )

    def __init__(self, step: Step, start: float) -> None:
        self.step = step
        self.start = start
        self.end: float = 0
        self.cores: set[int] = set()
        self.compute: float = 0
        self.communication: float = 0
        self.wait: float = 0
        self.messages = 0
        self.message_bytes = 0


class Tally:
    """Sums of one run."""

    def __init__(
        self, chip: ChipSpec, core_spans: bool, region_of: Callable[[int], str] | None
    ) -> None:
        self.chip = chip
        self.steps: dict[tuple[int, int], StepTally] = {}
        self.region_of = region_of
        self.instructions = 0
        self.mac_by_dtype: dict[str, int] = {}
        self._core_spans: list[tuple[int, StepTally, float, float]] | None = (
            [] if core_spans else None
        )

    def enter(self, step: Step, time: float) -> StepTally:
        """A core enters a step."""
        key = (step.position, step.layer)
        tally = self.steps.get(key)
        if tally is None:
            tally = self.steps[key] = StepTally(step, time)
        elif time < tally.start:
            tally.start = time
        return tally

    def leave(
        self,
        core: Core,
        tally: StepTally,
        start: float,
        end: float,
        parts: tuple[float, float, float],
    ) -> None:
        """A core leaves a step that it entered at `start`; parts: compute, communication, wait."""
        tally.cores.add(core.index)
        if end > tally.end:
            tally.end = end
        compute, communication, wait = parts
        tally.compute += compute
        tally.communication += communication
        tally.wait += wait
        if self._core_spans is not None:
            self._core_spans.append((core.index, tally, start, end))

    def count_macs(self, dtype: str, macs: int) -> None:
        self.mac_by_dtype[dtype] = self.mac_by_dtype.get(dtype, 0) + macs

    def trace(self, cores: Sequence[Core], network: Network[Flight], messages: int) -> Trace:
        """The whole run. Spans are in order of schedule entry, layer and instruction."""
        chip = self.chip
        keys = sorted(self.steps, key=lambda k: (k[0] >> 16, k[1], k[0]))
        spans: list[Span] = []
        number = {}
        for key in keys:
            t = self.steps[key]
            n = max(len(t.cores), 1)
            number[id(t)] = len(spans)
            spans.append(
                Span(
                    position=t.step.position,
                    name=t.step.name,
                    op=t.step.op,
                    kind=t.step.kind,
                    layer=t.step.layer,
                    region=self.region_of(t.step.position) if self.region_of else "",
                    start_cycle=t.start,
                    end_cycle=t.end,
                    compute_cycles=t.compute / n,
                    communication_cycles=t.communication / n,
                    wait_cycles=t.wait / n,
                    messages=t.messages,
                    message_bytes=t.message_bytes,
                )
            )

        def grid(values: Sequence[float], kind: type) -> np.ndarray:
            array: np.ndarray = np.zeros(chip.rows * chip.cols, kind)
            array[[c.index for c in cores]] = values
            return array.reshape(chip.rows, chip.cols)

        shape = (chip.noc.networks, chip.rows, chip.cols, 4)
        return Trace(
            cycles=max((c.finish for c in cores), default=0),
            spans=tuple(spans),
            compute_cycles=grid([c.compute for c in cores], np.float64),
            communication_cycles=grid([c.communication for c in cores], np.float64),
            wait_cycles=grid([c.wait for c in cores], np.float64),
            finish_cycles=grid([c.finish for c in cores], np.float64),
            mac_cycles=grid([c.mac_cycles for c in cores], np.float64),
            macs=grid([c.macs for c in cores], np.int64),
            sram_bytes=grid([c.sram_bytes for c in cores], np.int64),
            link_busy_cycles=np.array(network.link_busy, np.float64).reshape(shape),
            link_bytes=np.array(network.link_bytes, np.int64).reshape(shape),
            messages=messages,
            message_bytes=sum(t.message_bytes for t in self.steps.values()),
            instructions=self.instructions,
            byte_hops=network.byte_hops,
            mac_by_dtype=dict(sorted(self.mac_by_dtype.items())),
            core_spans=tuple(
                (*divmod(core, chip.cols), number[id(t)], start, end)
                for core, t, start, end in self._core_spans or ()
            ),
        )
