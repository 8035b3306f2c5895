"""Synthetic runs in the form that `meshc run` writes, for the tests of the pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

# (name, op kind, instruction kind, cycles, shares of compute, communication and waiting)
LAYER: tuple[tuple[str, str, str, int, tuple[float, float, float]], ...] = (
    ("attn_norm.square", "map", "compute", 24, (0.9, 0.0, 0.1)),
    ("attn_norm.mean", "reduce", "compute", 18, (0.8, 0.0, 0.2)),
    ("attn_norm.mean.all", "reduce", "reduce", 310, (0.04, 0.3, 0.66)),
    ("attn_norm.mean.back", "reduce", "broadcast", 190, (0.0, 0.4, 0.6)),
    ("attn_norm.scale", "map", "compute", 30, (0.9, 0.0, 0.1)),
    ("qkv_proj", "matmul", "compute", 620, (0.97, 0.0, 0.03)),
    ("qkv_proj.sum", "matmul", "reduce", 420, (0.1, 0.35, 0.55)),
    ("qkv_proj.back", "matmul", "broadcast", 210, (0.0, 0.45, 0.55)),
    ("q_heads", "reshape", "compute", 12, (1.0, 0.0, 0.0)),
    ("k_heads", "reshape", "compute", 12, (1.0, 0.0, 0.0)),
    ("v_heads", "transpose", "compute", 14, (1.0, 0.0, 0.0)),
    ("rotary_q", "fused", "compute", 85, (0.95, 0.0, 0.05)),
    ("rotary_k", "fused", "compute", 85, (0.95, 0.0, 0.05)),
    ("append_k", "append", "compute", 25, (1.0, 0.0, 0.0)),
    ("append_v", "append", "compute", 25, (1.0, 0.0, 0.0)),
    ("scores", "matmul", "compute", 180, (0.9, 0.0, 0.1)),
    ("softmax.max", "reduce", "reduce", 260, (0.03, 0.37, 0.6)),
    ("softmax.max.back", "reduce", "broadcast", 170, (0.0, 0.4, 0.6)),
    ("softmax.exp", "map", "compute", 60, (0.9, 0.0, 0.1)),
    ("softmax.sum", "reduce", "reduce", 260, (0.03, 0.37, 0.6)),
    ("softmax.sum.back", "reduce", "broadcast", 170, (0.0, 0.4, 0.6)),
    ("attention_values", "matmul", "compute", 170, (0.9, 0.0, 0.1)),
    ("attention_output.reshard", "transpose", "transfer", 240, (0.1, 0.5, 0.4)),
    ("o_proj", "matmul", "compute", 380, (0.97, 0.0, 0.03)),
    ("o_proj.sum", "matmul", "reduce", 390, (0.1, 0.35, 0.55)),
    ("o_proj.back", "matmul", "broadcast", 200, (0.0, 0.45, 0.55)),
    ("residual", "map", "compute", 20, (0.9, 0.0, 0.1)),
    ("mlp_norm", "fused", "compute", 60, (0.9, 0.0, 0.1)),
    ("gate_up_proj", "matmul", "compute", 1150, (0.98, 0.0, 0.02)),
    ("gate_up_proj.sum", "matmul", "reduce", 520, (0.1, 0.35, 0.55)),
    ("silu_mul", "fused", "compute", 75, (0.95, 0.0, 0.05)),
    ("down_proj", "matmul", "compute", 780, (0.97, 0.0, 0.03)),
    ("down_proj.sum", "matmul", "reduce", 400, (0.1, 0.35, 0.55)),
    ("down_proj.back", "matmul", "broadcast", 200, (0.0, 0.45, 0.55)),
    ("residual_2", "map", "compute", 20, (0.9, 0.0, 0.1)),
)
EMBEDDING = (("token_embedding", "gather", "compute", 150, (0.6, 0.0, 0.4)),)
HEAD = (
    ("final_norm", "fused", "compute", 120, (0.8, 0.0, 0.2)),
    ("lm_head", "matmul", "compute", 2100, (0.98, 0.0, 0.02)),
    ("lm_head.gather", "concat", "transfer", 500, (0.0, 0.6, 0.4)),
)
BODIES = {"embedding": EMBEDDING, "layers": LAYER, "head": HEAD}


def write_run(
    out_dir: Path,
    rows: int,
    cols: int,
    regions: dict[str, tuple[int, int, int, int]] | None = None,
    layers: int = 4,
    phase: str = "decode",
    networks: int = 1,
    dead: tuple[tuple[int, int], ...] = (),
    capacity_bytes: int = 524_288,
    fill: float = 0.8,
    chip: str = "",
    model: str = "tiny-llama",
    phases: tuple[str, ...] = (),
) -> Path:
    """Write report.json and one phase's trace; the layers are shared out over the regions."""
    rng = np.random.default_rng(rows * 1000 + cols)
    regions = regions or {"all": (0, 0, rows, cols)}
    stages = _stages(list(regions), layers)
    spans, cycles = _spans(stages)
    used = np.zeros((rows, cols), dtype=bool)
    for row, col, height, width in regions.values():
        used[row : row + height, col : col + width] = True
    for row, col in dead:
        used[row, col] = False
    arrays = _arrays(rng, used, cycles, networks, capacity_bytes, fill)
    name = chip or f"test{rows}x{cols}"
    trace = {
        "chip": {"name": name, "rows": rows, "cols": cols, "clock_hz": 1.1e9, "dead": dead},
        "phase": phase,
        "cycles": cycles,
        "regions": {n: list(box) for n, box in regions.items()},
        "spans": spans,
        "sram": {
            "capacity_bytes": capacity_bytes,
            **{n: _buffers(stages[n], capacity_bytes, fill) for n in regions},
        },
        "stages": {n: [list(run) for run in runs] for n, runs in stages.items()},
        "ops": {
            n: [[o[0], o[1]] for run in runs for o in BODIES[run[0]] if o[2] == "compute"]
            for n, runs in stages.items()
        },
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    (out_dir / f"trace-{phase}.json").write_text(json.dumps(trace))
    np.savez_compressed(out_dir / f"trace-{phase}.npz", **arrays)
    report = _report(model, name, rows, cols, phase, cycles, spans)
    path = out_dir / "report.json"
    if path.exists():  # a second phase of the same run
        report["phases"] |= json.loads(path.read_text())["phases"]
    path.write_text(json.dumps(report))
    return out_dir


def _stages(regions: list[str], layers: int) -> dict[str, list[tuple[str, int, int]]]:
    share = -(-layers // len(regions))
    out: dict[str, list[tuple[str, int, int]]] = {}
    for i, region in enumerate(regions):
        first, last = min(i * share, layers), min((i + 1) * share, layers)
        runs = [("layers", first, last)] if last > first else []
        if i == 0:
            runs.insert(0, ("embedding", 0, 1))
        if i == len(regions) - 1:
            runs.append(("head", 0, 1))
        out[region] = runs
    return out


def _spans(stages: dict[str, list[tuple[str, int, int]]]) -> tuple[list[list[Any]], float]:
    spans: list[list[Any]] = []
    time = 0.0
    for i, (region, runs) in enumerate(stages.items()):
        if i:
            spans.append(
                [0, "hidden.move", "", "move", -1, region, time, time + 320, 0.0, 200.0, 120.0]
            )
            time += 320
        for segment, first, last in runs:
            for layer in range(first, last):
                for position, (name, op_kind, sort, length, shares) in enumerate(BODIES[segment]):
                    number = layer if segment == "layers" else -1
                    op = name if sort == "compute" else name.rsplit(".", 1)[0]
                    kind = op_kind if sort == "compute" else sort
                    parts = [length * s for s in shares]
                    spans.append(
                        [position, name, op, kind, number, region, time, time + length, *parts]
                    )
                    time += length * 0.97
    return spans, time + 100


def _arrays(
    rng: np.random.Generator,
    used: np.ndarray,
    cycles: float,
    networks: int,
    capacity_bytes: int,
    fill: float,
) -> dict[str, np.ndarray]:
    rows, cols = used.shape
    down, right = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, cols), indexing="ij")
    centre = 1 - (down**2 + right**2) / 2
    noise = rng.uniform(0.97, 1.03, used.shape).round(2)
    compute = cycles * 0.34 * noise * used
    communication = cycles * (0.08 + 0.16 * centre) * noise * used
    wait = (cycles * 0.9 - compute - communication) * used
    busy = np.zeros((networks, rows, cols, 4))
    for network in range(networks):
        for d, towards in enumerate((-right, right, -down, down)):
            load = np.clip(0.05 + 0.3 * centre * (towards > -0.3), 0, None)
            busy[network, :, :, d] = cycles * load * noise * used / (1 + network)
    busy[:, :, -1, 0] = busy[:, :, 0, 1] = busy[:, -1, :, 2] = busy[:, 0, :, 3] = 0
    return {
        "compute_cycles": compute,
        "communication_cycles": communication,
        "wait_cycles": wait,
        "finish_cycles": (cycles - 50 * (1 - centre)) * used,
        "sram_peak_bytes": (capacity_bytes * fill * (1 - 0.15 * (1 - centre)) * used).astype(int),
        "sram_bytes": (compute * 40).astype(int),
        "macs": (compute * 100).astype(int),
        "link_busy_cycles": busy,
        "link_bytes": busy * 32,
    }


def _buffers(
    runs: list[tuple[str, int, int]], capacity_bytes: int, fill: float
) -> list[dict[str, Any]]:
    """Weights and caches from the bottom up, activations on top of them by turns."""
    own = sum(last - first for name, first, last in runs if name == "layers")
    layered: list[tuple[str, str, float]] = []
    if own:
        shapes = (("w_qkv", 3), ("w_o", 2), ("w_gate_up", 6), ("w_down", 3))
        layered += [(n, "weight", s / 20) for n, s in shapes]
        layered += [("k_cache", "kv", 0.06), ("v_cache", "kv", 0.06)]
    single = [("rotary_table", "constant", 0.03), ("hidden", "activation", 0.03)]
    if any(name == "embedding" for name, _, _ in runs):
        single = [("w_embedding", "weight", 0.12), ("input_ids", "input", 0.004), *single]
    scale = capacity_bytes * fill * 0.8 / sum(p[2] for p in layered + single)
    sizes = [int(share * scale / own) // 4 * 4 for _, _, share in layered]
    stride, offset, out = sum(sizes), 0, []
    for (name, kind, _), size in zip(layered, sizes, strict=True):
        out.append(_buffer(name, kind, "layers", offset, size, stride if own > 1 else 0, own))
        offset += size
    offset = stride * own
    for name, kind, share in single:
        size = int(share * scale) // 4 * 4
        out.append(_buffer(name, kind, "", offset, size, 0, 1))
        offset += size
    left, clock = int(capacity_bytes * fill) - offset, 0
    for segment, _, _ in runs:
        for i, (name, *_) in enumerate(BODIES[segment]):
            size = left // (2 + i % 4) // 4 * 4
            at = offset if i % 2 else offset + left - size
            live = (clock + i, clock + i + 1 - i % 2)
            kind = "scratch" if name.endswith(("sum", "all", "max")) else "activation"
            out.append(_buffer(name + ".out", kind, segment, at, size, 0, 1, live))
        clock += len(BODIES[segment]) + 1
    return out


def _buffer(
    name: str,
    kind: str,
    segment: str,
    offset: int,
    size: int,
    stride: int,
    layers: int,
    live: tuple[int, int] = (0, -1),
) -> dict[str, Any]:
    return {
        "name": name, "kind": kind, "tensor": name, "segment": segment, "offset": offset,
        "bytes": size, "stride": stride, "layers": layers, "live": list(live),
    }  # fmt: skip


def _report(
    model: str, chip: str, rows: int, cols: int, phase: str, cycles: float, spans: list[list[Any]]
) -> dict[str, Any]:
    keys = ("compute_cycles", "communication_cycles", "wait_cycles")
    ops = [
        {"name": s[1], "kind": s[3], "layer": s[4], "region": [0, 0, rows, cols],
         "start_cycle": s[6], "end_cycle": s[7], "bound_by": "noc",
         **dict(zip(keys, s[8:11], strict=True))}
        for s in spans
    ]  # fmt: skip
    return {
        "meshc_version": "0.1.0",
        "model": {"name": model, "sha256": "0" * 64, "ops": 42, "parameters": 1_234_567},
        "chip": {
            "name": chip, "rows": rows, "cols": cols, "cores": rows * cols, "clock_hz": 1.1e9,
        },
        "workload": {
            "phase": phase, "batch": 1, "prompt": 1, "context": 16, "max_context": 17,
        },
        "strategy": "auto", "solver": "ilp", "seed": 0,
        "phases": {
            phase: {
                "latency_cycles": cycles, "latency_s": cycles / 1.1e9,
                "tokens_per_s": 1.1e9 / cycles, "tokens_per_s_per_user": 1.1e9 / cycles,
                "layer_cycles": 7800.0, "predicted_cycles": cycles * 0.95,
                "bounds": {"roofline_cycles": cycles * 0.2, "no_contention_cycles": cycles * 0.9},
                "utilization": {
                    "compute": 0.34, "sram_bandwidth": 0.2, "links_mean": 0.1,
                    "links_max": 0.35, "dram": 0.0, "cores_used": 1.0,
                },
                "memory": {"sram_bytes_per_core": 524_288, "peak_bytes": 419_430},
                "ops": ops,
                "bottleneck": {
                    "what": "reductions <over> cores", "share": 0.43,
                    "advice": "Use a smaller region.",
                },
            }
        },
        "ttft_s": None, "tpot_s": cycles / 1.1e9, "energy": None,
        "solves": [
            {"stage": "partition", "scope": "layers", "solver": "HiGHS", "status": "optimal",
             "objective": 1.0, "bound": 1.0, "gap": 0.0, "seconds": 0.8, "variables": 120,
             "constraints": 88, "heuristic_objective": 1.1}
        ],
        "verify": {
            "oracle": "onnxruntime", "tolerance": 0.001, "passed": True,
            "outputs": [{"name": "logits", "max_abs_error": 1e-5, "max_rel_error": 1e-4}],
        },
        "seconds": {"import": 0.2, "emulate": 1.1}, "peak_rss_bytes": 123_456_789,
    }  # fmt: skip


def one_region_4x4(folder: Path) -> Path:
    return write_run(folder, 4, 4, layers=2)


def two_regions_8x8(folder: Path) -> Path:
    regions = {"stage0": (0, 0, 8, 4), "stage1": (0, 4, 8, 4)}
    return write_run(folder, 8, 8, regions, layers=6, networks=2, dead=((3, 3),), fill=0.6)


def two_networks_16x16(folder: Path) -> Path:
    dead = ((3, 4), (3, 5), (12, 9))
    return write_run(folder, 16, 16, layers=12, networks=2, dead=dead, fill=0.9)


def pipeline_16x16(folder: Path) -> Path:
    regions = {f"stage{i}": (4 * (i // 4), 4 * (i % 4), 4, 4) for i in range(16)}
    return write_run(folder, 16, 16, regions, layers=32, fill=0.2)


def whole_64x64(folder: Path) -> Path:
    dead = tuple((r, (7 * r) % 64) for r in range(0, 64, 5)) + tuple((40, c) for c in range(64))
    regions = {"stage0": (0, 0, 40, 64), "stage1": (41, 0, 23, 60)}
    return write_run(folder, 64, 64, regions, layers=56, dead=dead)


def wafer(folder: Path) -> Path:
    regions = {"decode": (300, 410, 12, 12)}
    return write_run(
        folder, 750, 994, regions, layers=2, dead=((305, 415), (10, 10)), chip="wse2",
        capacity_bytes=49_152,
    )  # fmt: skip


def whole_wafer(folder: Path) -> Path:
    return write_run(folder, 750, 994, {"decode": (20, 30, 660, 660)}, layers=32, chip="wse2")


def line_1x64(folder: Path) -> Path:
    return write_run(folder, 1, 64, layers=2)


def tall_64x2(folder: Path) -> Path:
    return write_run(folder, 64, 2, layers=40, networks=2)


def tiny_2x2(folder: Path) -> Path:
    return write_run(folder, 2, 2, layers=1, capacity_bytes=1_499_136, fill=0.97)


def two_phases_4x8(folder: Path) -> Path:
    for phase in ("prefill", "decode"):
        write_run(folder, 4, 8, layers=3, phase=phase)
    return folder


RUNS = {
    run.__name__: run
    for run in (
        one_region_4x4, two_regions_8x8, two_networks_16x16, pipeline_16x16, whole_64x64, wafer,
        whole_wafer, line_1x64, tall_64x2, tiny_2x2, two_phases_4x8,
    )
}  # fmt: skip
