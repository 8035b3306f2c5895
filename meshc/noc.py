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
from meshc.emulator.batch import Batch, Times
from meshc.emulator.messages import CircleError, links_used, send_messages, unloaded_arrivals
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec
from meshc.traffic import blocks, opened, read_traffic


@dataclass(frozen=True)
class NocResult:
    """A batch of messages, when they left and arrived, and how busy the network was.

    latency: of each message, from the cycle in which it could leave (ready, and those that it
    waits for arrived) to its tail's arrival.   seconds: of processor time, by part.
    """

    chip: ChipSpec
    batch: Batch
    times: Times
    latency: NDArray[np.float64]
    no_contention_cycles: float
    seconds: dict[str, float]

    @property
    def makespan_cycles(self) -> float:
        return self.times.makespan_cycles

    def utilization(self) -> dict[str, float]:
        """Busy shares of the makespan: of links in the mean and at most, of ports at most."""
        span = max(self.makespan_cycles, 1)
        links = self.times.link_busy / span
        return {
            "links_mean": float(links.sum() / max(1, link_count(self.chip))),
            "links_max": float(links.max(initial=0)),
            "inject_max": float(self.times.inject_busy.max(initial=0) / span),
            "eject_max": float(self.times.eject_busy.max(initial=0) / span),
        }

    def record(self) -> dict[str, Any]:
        """The summary as plain values."""
        return {
            "chip": self.chip.name,
            "messages": len(self.batch),
            "bytes": int(self.batch.bytes.sum()),
            "makespan_cycles": plain(self.makespan_cycles),
            "mean_latency_cycles": float(self.latency.mean()),
            "max_latency_cycles": plain(float(self.latency.max())),
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


def run_messages(chip: ChipSpec, batch: Batch) -> NocResult:
    """Send a batch through a chip's network."""
    began = time.process_time()
    times = send_messages(chip, batch)
    free = batch.ready.astype(float)
    np.maximum.at(free, batch.later, times.arrive[batch.earlier].astype(float))
    done = time.process_time()
    return NocResult(
        chip,
        batch,
        times,
        times.arrive - free,
        float(unloaded_arrivals(chip, batch, times.alone).max(initial=0)),
        {"simulate": done - began},
    )


def run_file(
    path: Path,
    chip: ChipSpec,
    output: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> NocResult:
    """Send the messages of a file; writes the same lines with their times to `output`.

    Raises InputError for a file that is not as it should be, and as `send_messages`.
    """
    if output is not None:
        store.check_file(output)
    began = time.process_time()
    progress("reading the messages")
    batch = read_traffic(path, chip)
    read = time.process_time() - began
    progress(f"sending {len(batch):,} messages")
    try:
        result = run_messages(chip, batch)
    except CircleError as circle:
        raise InputError(
            str(CircleError(circle.message, circle.count, _name(path, circle)))
        ) from None
    result.seconds["read"] = read
    if output is not None:
        began = time.process_time()
        progress("writing the times")
        write_times(path, output, result)
        result.seconds["write"] = time.process_time() - began
    return result


def _name(path: Path, circle: CircleError) -> str:
    """What a message is called in the file."""
    with opened(path) as file:
        lines = (x for block in blocks(file) for x in block.decode("utf-8-sig").split("\n"))
        names = [n.strip() for n in next(lines).split(",")]
        for number, line in enumerate(filter(str.strip, lines)):
            if number == circle.message and "id" in names:
                return line.split(",")[names.index("id")].strip()
    return str(circle.message)


def write_times(path: Path, output: Path, result: NocResult) -> None:
    """The lines of a traffic file with inject_cycle, arrive_cycle and hops, whole or not at all."""
    hops = links_used(result.chip, result.batch)
    exact = [np.asarray(x) for x in (result.times.inject, result.times.arrive, hops)]
    columns = np.stack([x.astype(np.int64) for x in exact], axis=1)
    if not all(np.array_equal(x, columns[:, k]) for k, x in enumerate(exact)):
        columns = np.stack(exact, axis=1)  # cycles with fractions
    row = 0
    header = b""
    with store.writable(output), _appearing(output) as file, opened(path) as source:
        for block in blocks(source):
            if not header:
                first, _, block = block.partition(b"\n")
                header = first.rstrip()
                file.write(header + b",inject_cycle,arrive_cycle,hops\n")
            text, row = _extended(block, header.count(b","), row, columns)
            file.write(text)


def _extended(block: bytes, commas: int, row: int, columns: NDArray[Any]) -> tuple[bytes, int]:
    """Lines with a row of columns behind each that is not empty, and the next row."""
    if columns.dtype == np.int64:
        from meshc.emulator.tables import extend

        room = len(block) + (block.count(b"\n") + 1) * (2 + 20 * columns.shape[1])
        out = np.empty(room, np.uint8)
        used, row = extend(np.frombuffer(block, np.uint8), commas, row, columns, out)
        return out[:used].tobytes(), row
    lines = [x for x in map(bytes.rstrip, block.split(b"\n")) if x]
    part = columns[row : row + len(lines)].tolist()
    return b"".join(
        line + b"," * (line.count(b",") < commas) + f",{plain(i)},{plain(a)},{int(h)}\n".encode()
        for line, (i, a, h) in zip(lines, part, strict=True)
    ), row + len(lines)


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
