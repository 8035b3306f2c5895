"""`meshc noc`: the messages of a file on a chip's network alone."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from meshc import store
from meshc.arrivals import Arrivals
from meshc.emulator.batch import links_between
from meshc.emulator.messages import CircleError, check_paths, check_sent, network_of
from meshc.emulator.sinks import Engine
from meshc.emulator.spool import Sorter, Spool, records_of
from meshc.emulator.waits import Waits, make_waits, no_waits, unloaded_arrivals
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec
from meshc.traffic import TrafficReader, blocks, line_of, opened


@dataclass(frozen=True)
class NocResult:
    """What became of a file of messages, and how busy the network was.

    mean_latency_cycles, max_latency_cycles: of a message, from the cycle in which it could leave
    (ready, and those that it waits for arrived) to its tail's arrival.
    busy: busy cycles of links, injection ports and ejection ports.
    seconds: of processor time, by part.
    """

    chip: ChipSpec
    messages: int
    bytes: int
    makespan_cycles: float
    mean_latency_cycles: float
    max_latency_cycles: float
    no_contention_cycles: float
    busy: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
    seconds: dict[str, float]

    def utilization(self) -> dict[str, float]:
        """Busy shares of the makespan: of links in the mean and at most, of ports at most."""
        span = max(self.makespan_cycles, 1)
        links, inject, eject = (busy / span for busy in self.busy)
        return {
            "links_mean": float(links.sum() / max(1, link_count(self.chip))),
            "links_max": float(links.max(initial=0)),
            "inject_max": float(inject.max(initial=0)),
            "eject_max": float(eject.max(initial=0)),
        }

    def record(self) -> dict[str, Any]:
        """The summary as plain values."""
        return {
            "chip": self.chip.name,
            "messages": self.messages,
            "bytes": self.bytes,
            "makespan_cycles": plain(self.makespan_cycles),
            "mean_latency_cycles": self.mean_latency_cycles,
            "max_latency_cycles": plain(self.max_latency_cycles),
            "no_contention_makespan_cycles": plain(self.no_contention_cycles),
            "utilization": self.utilization(),
            "seconds": self.seconds,
        }


def plain(value: float) -> int | float:
    """A whole number as int."""
    return int(value) if value == int(value) else float(value)


def link_count(chip: ChipSpec) -> int:
    """Links between routers of all networks."""
    rows, cols, noc = chip.rows, chip.cols, chip.noc
    if noc.topology == "exchange":
        seams = chip.seams
        down = (rows // seams.rows - 1) * cols if seams else 0
        across = (cols // seams.cols - 1) * rows if seams else 0
    elif noc.topology == "torus":
        down = across = rows * cols
    else:
        down, across = (rows - 1) * cols, (cols - 1) * rows
    return noc.networks * (down + across) * (1 if noc.one_way else 2)


class _Messages:
    """The messages of a file while they are read, sorted for a network."""

    def __init__(self, network: Engine, reader: TrafficReader) -> None:
        self.network = network
        self.reader = reader
        self.bytes = 0
        self.latest = 0.0  # arrival without contention
        self._sorter = Sorter()
        self._alone: list[NDArray[np.float64]] = []  # kept where messages wait, as sources are
        self._sources: list[NDArray[Any]] = []

    def read(self) -> tuple[Spool, Waits]:
        """Read all; `latest` is known then."""
        chip = self.network.chip
        for batch in self.reader.batches():
            check_paths(chip, batch)
            records = records_of(chip, batch, self.reader.count - len(batch))
            alone = self.network.alone(records)
            self.bytes += int(batch.bytes.sum())
            self.latest = max(self.latest, float((batch.ready + alone).max(initial=0)))
            if self.reader.waits:
                self._alone.append(alone)
                self._sources.append(records["source"].copy())
            self._sorter.add(records)
        later, earlier = self.reader.pairs()
        spool = self._sorter.spool()
        if not len(later):
            return spool, no_waits()
        sources = np.concatenate(self._sources)
        self._sources = []
        waits = make_waits(later, earlier, sources)
        del later, earlier, sources
        alone = np.concatenate(self._alone)
        self._alone = []
        self.latest = float(unloaded_arrivals(spool, alone, waits).max())
        return spool, waits


class _Tally:
    """Adds up what arrives, and keeps the times if they are to be written."""

    def __init__(self, chip: ChipSpec, count: int, waits: Waits, keep: bool) -> None:
        self.chip = chip
        self.count = count
        self.latency_sum = self.latency_max = self.makespan = 0.0
        self.arrivals: Arrivals | None = None
        self._keep = keep
        self._waits = waits
        self._free = np.zeros(len(waits.counts))  # when those that a message waited for were there

    def add(self, news: Any) -> None:
        free = news["ready"]
        if len(self._free):
            self._release(news)
            free = np.maximum(free, self._free[news["number"]])
        latency = news["arrive"] - free
        self.latency_sum += float(latency.sum())
        self.latency_max = max(self.latency_max, float(latency.max()))
        self.makespan = max(self.makespan, float(news["arrive"].max()))
        if self._keep:
            if self.arrivals is None:
                self.arrivals = Arrivals(self.count, news["arrive"].dtype)
            self.arrivals.add(news, links_between(self.chip, news["source"], news["target"]))

    def _release(self, news: Any) -> None:
        """Those that waited for these messages wait no longer."""
        start = self._waits.start[news["number"]].astype(np.int64)
        sizes = self._waits.start[news["number"] + 1] - start
        into = np.repeat(start - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
        later = self._waits.wake[into]
        np.maximum.at(self._free, later, np.repeat(news["arrive"].astype(float), sizes))


def run_file(
    path: Path,
    chip: ChipSpec,
    output: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> NocResult:
    """Send the messages of a file; writes the same lines with their times to `output`.

    Memory does not grow with the number of messages, except for those that are in the network and,
    where some wait for others, for some 60 bytes each; temporary files take 90 bytes each.

    Raises InputError for a file that is not as it should be, and as `send_messages`.
    """
    if output is not None:
        store.check_file(output)
    began = time.process_time()
    progress("reading the messages")
    network = network_of(chip)
    messages = _Messages(network, TrafficReader(path, chip))
    spool, waits = messages.read()
    read = time.process_time()
    progress(f"sending {len(spool):,} messages")
    tally = _Tally(chip, len(spool), waits, output is not None)
    stuck = network.run(spool, waits, tally, None)
    try:
        check_sent(network, stuck)
    except CircleError as circle:
        name = line_of(path, circle.message)[1].get("id", str(circle.message))
        raise InputError(str(CircleError(circle.message, circle.count, name))) from None
    done = time.process_time()
    seconds = {"simulate": done - read, "read": read - began}
    if output is not None and tally.arrivals is not None:
        progress("writing the times")
        write_times(path, output, tally.arrivals)
        seconds["write"] = time.process_time() - done
    return NocResult(
        chip,
        len(spool),
        messages.bytes,
        tally.makespan,
        tally.latency_sum / len(spool),
        tally.latency_max,
        messages.latest,
        network.busy(),
        seconds,
    )


def write_times(path: Path, output: Path, arrivals: Arrivals) -> None:
    """The lines of a traffic file with inject_cycle, arrive_cycle and hops, whole or not at all."""
    row = 0
    header = b""
    with store.writable(output), _appearing(output) as file, opened(path) as source:
        for block in blocks(source):
            if not header:
                first, _, block = block.partition(b"\n")
                header = first.rstrip()
                file.write(header + b",inject_cycle,arrive_cycle,hops\n")
            columns = arrivals.rows(row, block.count(b"\n") + 1)
            text, used = _extended(block, header.count(b","), columns)
            file.write(text)
            row += used


def _extended(block: bytes, commas: int, columns: NDArray[Any]) -> tuple[bytes, int]:
    """Lines with a row of columns behind each that is not empty, and how many there are."""
    if columns.dtype == np.int64:
        from meshc.emulator.tables import extend

        room = len(block) + (block.count(b"\n") + 1) * (2 + 20 * columns.shape[1])
        out = np.empty(room, np.uint8)
        used, rows = extend(np.frombuffer(block, np.uint8), commas, 0, columns, out)
        return out[:used].tobytes(), rows
    lines = [x for x in map(bytes.rstrip, block.split(b"\n")) if x]
    part = columns[: len(lines)].tolist()
    return b"".join(
        line + b"," * (line.count(b",") < commas) + f",{plain(i)},{plain(a)},{int(h)}\n".encode()
        for line, (i, a, h) in zip(lines, part, strict=True)
    ), len(lines)


@contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes its place when the block ends without an error."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
