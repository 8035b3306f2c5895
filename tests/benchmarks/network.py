"""How fast the network alone is. Not collected by pytest.

    python tests/benchmarks/network.py [--data ../shared/groundtruth] [--messages N] [--json FILE]

Uniform traffic of packets of four flits, as the flit-level simulator's own speed was recorded
(network/speed.json in the data): simulated cycles per second of processor time, how many times as
many as recorded there, and how many as meshc's own plain engine reaches in this run. With
--messages, also a batch of so many messages and the memory that it takes.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from meshc.emulator.batch import Batch
from meshc.emulator.messages import send_messages
from meshc.emulator.traffic import Traffic, simulate_messages
from meshc.ir.chip import Coord
from meshc.validation import router_chip


def uniform(k: int, rate: float, cycles: int, seed: int = 1) -> Batch:
    """Bernoulli traffic to random cores of k × k, in packets of four flits."""
    rng = np.random.default_rng(seed)
    ready, source = np.nonzero(rng.random((cycles, k * k)) < rate / 4)
    return Batch(
        ready.astype(np.int64),
        source.astype(np.int32),
        rng.integers(0, k * k, len(ready)).astype(np.int32),
        np.full(len(ready), 4, np.int64),
        np.zeros(len(ready), np.int32),
    )


def rate_of(router: str, k: int, rate: float, cycles: int) -> float:
    """Simulated cycles per second of processor time, the best of three."""
    chip, batch = router_chip(router, k), uniform(k, rate, cycles)
    best = 0.0
    for _ in range(3):
        begin = time.process_time()
        times = send_messages(chip, batch)
        best = max(best, times.makespan_cycles / (time.process_time() - begin))
    return best


def plain_rate(k: int, rate: float, cycles: int) -> float:
    """The same of the plain engine, whose buffers are unlimited."""
    chip, batch = router_chip("wh1", k), uniform(k, rate, cycles)
    messages = [
        Traffic(n, float(r), Coord(*divmod(s, k)), Coord(*divmod(t, k)), 4)
        for n, (r, s, t) in enumerate(
            zip(batch.ready.tolist(), batch.source.tolist(), batch.target.tolist(), strict=True)
        )
    ]
    begin = time.process_time()
    result = simulate_messages(messages, chip)
    return result.makespan_cycles / (time.process_time() - begin)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    flags.add_argument("--data", type=Path, metavar="DIR", help="with network/speed.json")
    flags.add_argument("--messages", type=int, default=0, metavar="N")
    flags.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    args = flags.parse_args()
    recorded: dict[tuple[str, int, float], float] = {}
    if args.data:
        speed = json.loads((args.data / "network" / "speed.json").read_text())
        for entry in speed["results"]:
            key = entry["router"], entry["k"], entry["flit_rate"]
            recorded[key] = entry["cycles_per_cpu_s"]
    rows: list[dict[str, Any]] = []
    rate_of("wh1", 4, 0.1, 100)  # compile
    for k, rates, cycles in ((8, (0.05, 0.25), 20_000), (16, (0.025, 0.125), 8000),
                             (32, (0.0125, 0.0625), 2000)):  # fmt: skip
        for rate in rates:
            plain = plain_rate(k, rate, cycles // 10)
            for router in ("vc8", "wh1", "fast1"):
                ours = rate_of(router, k, rate, cycles)
                known = recorded.get((router, k, rate))
                rows.append(
                    {
                        "traffic": f"{router} {k}x{k} at {rate:g}",
                        "cycles_per_second": ours,
                        "over_plain": ours / plain,
                        "over_recorded": ours / known if known else None,
                    }
                )
    table = Table(title="the network alone, in one run", title_justify="left")
    for name in ("traffic", "cycles/s", "× plain engine", "× recorded"):
        table.add_column(name, justify="left" if name == "traffic" else "right")
    for row in rows:
        over = row["over_recorded"]
        table.add_row(
            row["traffic"],
            f"{row['cycles_per_second']:,.0f}",
            f"{row['over_plain']:.0f}",
            f"{over:.0f}" if over else "",
        )
    Console(highlight=False).print(table)
    if args.messages:
        batch = uniform(16, 0.25, args.messages // 16)
        begin = time.process_time()
        send_messages(router_chip("vc8", 16), batch)
        spent = time.process_time() - begin
        scale = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
        print(f"{len(batch):,} messages: {spent:.1f} s, {peak / len(batch):.0f} bytes each at most")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
