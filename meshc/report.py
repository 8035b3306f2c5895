"""From traces to the report (CONTRACT: report.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meshc.ir.chip import ChipSpec
from meshc.ir.graph import Graph
from meshc.ir.layout import replicated
from meshc.ir.program import Program, lane_bytes
from meshc.ir.trace import Trace
from meshc.ir.workload import Workload
from meshc.memory import pack, region_buffers
from meshc.ops import timing


def roofline_cycles(trace: Trace, chip: ChipSpec) -> float:
    """Least time of the program's arithmetic and SRAM traffic, spread evenly over the cores that
    it uses."""
    used = int((trace.finish_cycles > 0).sum()) or 1
    arithmetic = sum(
        macs / _mac_rate(chip, dtype) for dtype, macs in trace.mac_by_dtype.items() if macs
    )
    traffic = float(trace.sram_bytes.sum()) / chip.core.sram_bytes_per_cycle
    return max(arithmetic, traffic) / used


def lower_bound_cycles(trace: Trace, graph_bytes: int, chip: ChipSpec) -> float:
    """Least time of any mapping: the arithmetic on every working core of the chip, and one read
    of every weight byte that the step multiplies from SRAM."""
    arithmetic = sum(
        macs / _mac_rate(chip, dtype) for dtype, macs in trace.mac_by_dtype.items() if macs
    )
    return max(arithmetic, graph_bytes / chip.core.sram_bytes_per_cycle) / chip.cores


def _mac_rate(chip: ChipSpec, dtype: str) -> float:
    if chip.core.array is not None:
        return float(chip.core.array.rows * chip.core.array.cols)
    return timing.mac_rate(chip.core, dtype) or float("inf")


def measure_phase(
    trace: Trace,
    free: Trace,
    program: Program,
    chip: ChipSpec,
    workload: Workload,
    *,
    predicted_cycles: float,
    graph: Graph | None = None,
    kinds: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """One phase of the report.

    trace: with contention.   free: the same program without.
    """
    latency = trace.cycles
    seconds = latency / chip.clock_hz
    tokens = workload.batch * workload.prompt
    roofline = roofline_cycles(trace, chip)
    used = trace.finish_cycles > 0
    cores = int(used.sum()) or 1
    weights = _weight_bytes(program)
    arithmetic = sum(m / _mac_rate(chip, d) for d, m in trace.mac_by_dtype.items() if m)
    links = _used_links(trace)
    memory = memory_report(program, chip, workload)
    layer = layer_cycles(trace)
    return {
        "latency_cycles": latency,
        "latency_s": seconds,
        "tokens_per_s": tokens / seconds if seconds else 0.0,
        "tokens_per_s_per_user": workload.prompt / seconds if seconds else 0.0,
        "layer_cycles": layer,
        "predicted_cycles": predicted_cycles,
        "bounds": {
            "roofline_cycles": roofline,
            "no_contention_cycles": free.cycles,
            "lower_bound_cycles": lower_bound_cycles(trace, weights, chip),
        },
        "utilization": {
            "compute": _share(arithmetic, cores * latency),
            "sram_bandwidth": _share(
                float(trace.sram_bytes.sum()) / chip.core.sram_bytes_per_cycle, cores * latency
            ),
            "links_mean": _share(float(links.mean()) if links.size else 0.0, latency),
            "links_max": _share(float(links.max()) if links.size else 0.0, latency),
            "dram": 0.0,
            "cores_used": _share(cores, chip.cores),
            "busy": _share(float(trace.compute_cycles[used].sum()), cores * latency),
        },
        "memory": memory,
        "ops": op_rows(trace, program, graph, kinds or {}),
        "bottleneck": bottleneck(trace, chip, latency),
        "messages": trace.messages,
        "message_bytes": trace.message_bytes,
        "instructions": trace.instructions,
    }


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0


def _used_links(trace: Trace) -> np.ndarray:
    busy = trace.link_busy_cycles
    return busy[busy > 0]


def _weight_bytes(program: Program) -> int:
    """Bytes of the weights that are read whole, each counted once: tables, of which a step reads
    some rows, are not."""
    total = 0
    tables = {
        o.inputs[0] for op in program.ops.values() for o in op.body or (op,) if o.kind == "gather"
    }
    seen = set()
    for data, name, _, _ in program.load:
        b = program.buffers[name]
        if b.kind == "weight" and b.tensor not in tables and data not in seen:
            seen.add(data)
            total += lane_bytes(b.shape, b.dtype, replicated(len(b.shape)), 1, 1)
    return total


def layer_cycles(trace: Trace) -> float:
    """From one layer's start to the next one's, between the last two layers of the repeat."""
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    for s in trace.spans:
        if s.layer >= 0:
            start[s.layer] = min(start.get(s.layer, s.start_cycle), s.start_cycle)
            end[s.layer] = max(end.get(s.layer, s.end_cycle), s.end_cycle)
    if not start:
        return trace.cycles
    layers = sorted(start)
    if len(layers) == 1:
        return end[layers[0]] - start[layers[0]]
    return start[layers[-1]] - start[layers[-2]]


def memory_report(program: Program, chip: ChipSpec, workload: Workload) -> dict[str, Any]:
    """Bytes per core of the fullest core, which add up to its peak; the mean is over the cores
    that the program uses."""
    peaks, parts = [], []
    for region in program.regions:
        weight = kv = high = 0
        for b, count in region_buffers(program, region):
            top = b.offset + (count - 1) * b.stride + b.bytes
            high = max(high, top)
            if b.kind == "weight":
                weight += count * b.bytes
            elif b.kind == "kv":
                kv += count * b.bytes
        r = program.regions[region]
        peaks += [high] * (r.rows * r.cols)
        parts.append((high, weight, kv))
    high, weight, kv = max(parts)
    longest = max_context_tokens(program, chip, workload)
    return {
        "sram_bytes_per_core": chip.core.usable_bytes,
        "peak_bytes": high,
        "mean_bytes": sum(peaks) / len(peaks),
        "weight_bytes": weight,
        "kv_bytes": kv,
        "activation_bytes": high - weight - kv,
        "max_context_tokens": longest,
        "max_context_by_policy": {kv_policy(program): longest},
    }


def kv_policy(program: Program) -> str:
    """How the caches lie: "sequence" when token t is on lane t mod lanes of an axis, "head" when
    whole sequences are divided by heads or batch alone, "none" without caches."""
    layouts = [b.layout for b in program.buffers.values() if b.kind == "kv"]
    if not layouts:
        return "none"
    return "sequence" if any(s.cyclic for x in layouts for s in x.splits) else "head"


def max_context_tokens(program: Program, chip: ChipSpec, workload: Workload) -> int:
    """Most cached tokens for which this mapping's buffers would still fit SRAM.

    Every buffer dimension that counts cached tokens grows with them. Caches that keep a number of
    entries hold so many.
    """
    reserved = workload.reserved
    if workload.kept is not None or not any(b.kind == "kv" for b in program.buffers.values()):
        return reserved
    regions = [(program.regions[name], region_buffers(program, name)) for name in program.regions]

    def fits(tokens: int) -> bool:
        for region, used in regions:
            total = 0
            arena = []
            for b, count in used:
                grown = [
                    tokens if d in b.token_dims and n == reserved else n
                    for d, n in enumerate(b.capacity)
                ]
                size = lane_bytes(tuple(grown), b.dtype, b.layout, region.rows, region.cols, 8)
                if b.kind in ("activation", "scratch"):
                    arena.append(replace(b, bytes=size))
                else:
                    total += size * count
            if total + pack(arena)[1] > chip.core.usable_bytes:
                return False
        return True

    low, high = reserved, reserved
    while fits(high * 2) and high < 1 << 30:
        low = high = high * 2
    high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def op_rows(
    trace: Trace, program: Program, graph: Graph | None, kinds: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row per op and layer: its kernel, its re-shards and its collectives together."""
    rows: dict[tuple[str, int, str], dict[str, Any]] = {}
    del graph
    for s in trace.spans:
        name = s.op or s.name
        key = (name, s.layer, s.region)
        r = program.regions[s.region]
        op = program.ops.get(s.op)
        row = rows.setdefault(
            key,
            {
                "name": name,
                "kind": kinds.get(name) or (op.core if op else "transfer"),
                "layer": s.layer,
                "region": [r.row, r.col, r.rows, r.cols],
                "start_cycle": s.start_cycle,
                "end_cycle": s.end_cycle,
                "compute_cycles": 0.0,
                "communication_cycles": 0.0,
                "wait_cycles": 0.0,
            },
        )
        row["start_cycle"] = min(row["start_cycle"], s.start_cycle)
        row["end_cycle"] = max(row["end_cycle"], s.end_cycle)
        row["compute_cycles"] += s.compute_cycles
        row["communication_cycles"] += s.communication_cycles
        row["wait_cycles"] += s.wait_cycles
    for row in rows.values():
        busy = row["compute_cycles"], row["communication_cycles"]
        # Time in which the average core is in another op counts as waiting for stragglers.
        rest = max(row["wait_cycles"], row["end_cycle"] - row["start_cycle"] - sum(busy))
        row["bound_by"] = max(
            zip(("compute", "communication", "wait"), (*busy, rest), strict=True),
            key=lambda x: x[1],
        )[0]
    return sorted(rows.values(), key=lambda r: (r["start_cycle"], r["end_cycle"], r["name"]))


_ADVICE = {
    "kernel start": "fuse small operations or lower core.kernel_cycles",
    "compute": "use more cores or raise core.macs_per_cycle",
    "communication": "use a smaller region, or raise noc.link_bytes_per_cycle",
    "wait": "shorten the chains of dependent reductions: a smaller or squarer region",
}


def bottleneck(trace: Trace, chip: ChipSpec, latency: float) -> dict[str, Any]:
    """Where the cores' time goes, and what would help most."""
    used = trace.finish_cycles > 0
    cores = int(used.sum()) or 1
    kernels = sum(1 for s in trace.spans if s.kind == "compute")
    start = min(kernels * chip.core.kernel_cycles, float(trace.compute_cycles[used].mean()))
    shares = {
        "kernel start": start,
        "compute": float(trace.compute_cycles[used].sum()) / cores - start,
        "communication": float(trace.communication_cycles[used].sum()) / cores,
        "wait": float(trace.wait_cycles[used].sum()) / cores,
    }
    what = max(shares, key=lambda k: shares[k])
    return {"what": what, "share": _share(shares[what], latency), "advice": _ADVICE[what]}


def energy(traces: Mapping[str, Trace], chip: ChipSpec, tokens: int) -> dict[str, Any] | None:
    """Joules per token by part, or None when the chip spec lacks energies that are needed.

    traces: per phase; the decode's is used when there is one.   tokens: of that step.
    """
    if chip.energy is None or not traces:
        return None
    trace = traces.get("decode") or next(iter(traces.values()))
    e = chip.energy
    if any(n and not _wider(e.mac_pj, d) for d, n in trace.mac_by_dtype.items()):
        return None
    pico = 1e-12
    parts = {
        "compute": sum(n * _wider(e.mac_pj, d) for d, n in trace.mac_by_dtype.items()) * pico,
        "sram": float(trace.sram_bytes.sum()) * e.sram_pj_per_byte * pico,
        "network": trace.byte_hops * e.hop_pj_per_byte * pico,
        "dram": 0.0,
        "idle": e.idle_watts * trace.cycles / chip.clock_hz,
    }
    return {
        "joules_per_token": sum(parts.values()) / tokens,
        "by_part": {k: v / tokens for k, v in parts.items()},
    }


def _wider(table: Mapping[str, float], dtype: str) -> float:
    found = timing.rate_dtype(table, dtype) or timing.rate_dtype(table, "fp32")
    return table[found] if found is not None else 0.0


def measure(
    traces: Mapping[str, tuple[Trace, Trace]],
    compiled: Any,
    *,
    emulate_seconds: float,
    peak_rss_bytes: int,
    verify: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The whole report.

    traces: per phase, the trace with contention and the one without.
    """
    chip: ChipSpec = compiled.chip
    phases = {}
    for phase, (trace, free) in traces.items():
        done = compiled.phases[phase]
        phases[phase] = measure_phase(
            trace,
            free,
            done.program,
            chip,
            done.workload,
            predicted_cycles=done.predicted_cycles,
        )
    last = compiled.phases.get("decode") or next(iter(compiled.phases.values()))
    w: Workload = last.workload
    prefill = compiled.phases.get("prefill")
    main = {k: t for k, (t, _) in traces.items()}
    return {
        "meshc_version": compiled.version,
        "model": compiled.model,
        "chip": {
            "name": chip.name,
            "rows": chip.rows,
            "cols": chip.cols,
            "cores": chip.cores,
            "clock_hz": chip.clock_hz,
        },
        "workload": {
            "phase": "both" if len(compiled.phases) > 1 else w.phase,
            "batch": w.batch,
            "prompt": prefill.workload.prompt if prefill else w.prompt,
            "context": w.context,
            "max_context": w.max_context,
        },
        "strategy": last.plan.strategy,
        "solver": compiled.options.solver,
        "seed": compiled.options.seed,
        "phases": phases,
        "ttft_s": phases["prefill"]["latency_s"] if "prefill" in phases else None,
        "tpot_s": phases["decode"]["latency_s"] if "decode" in phases else None,
        "energy": energy(main, chip, w.batch * w.prompt),
        "solves": [s.record() for s in compiled.solves],
        "verify": verify,
        "seconds": {**compiled.seconds, "emulate": emulate_seconds},
        "peak_rss_bytes": peak_rss_bytes,
    }
