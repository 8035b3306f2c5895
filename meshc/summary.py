"""What the commands print: tables for people, records for --json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from meshc.ir.chip import ChipSpec
from meshc.ir.compiled import Compiled
from meshc.ir.stream import Combine, Copy, Kernel, Recv, Send, SetUp, Step, View
from meshc.operators import Operators


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for i, name in enumerate(columns):
        side: JustifyMethod = "left" if i == 0 else "right"
        table.add_column(name, justify=side, overflow="fold")
    return table


def compile_record(
    compiled: Compiled | None, out: Path, seconds: float, rss: int, dumps: list[str]
) -> dict[str, Any]:
    """What `meshc compile --json` prints."""
    record: dict[str, Any] = {
        "output": str(out),
        "total_seconds": seconds,
        "peak_rss_bytes": rss,
        "dumps": dumps,
    }
    if compiled is None:
        return record
    return record | {
        "model": compiled.model,
        "chip": compiled.chip.name,
        "strategy": next(iter(compiled.phases.values())).plan.strategy,
        "phases": {
            name: {
                "predicted_cycles": p.predicted_cycles,
                "regions": {
                    r.name: [r.row, r.col, r.rows, r.cols] for r in p.program.regions.values()
                },
                "workload": {
                    "batch": p.workload.batch,
                    "prompt": p.workload.prompt,
                    "context": p.workload.context,
                    "max_context": p.workload.max_context,
                },
            }
            for name, p in compiled.phases.items()
        },
        "memory": {
            "sram_bytes_per_core": compiled.chip.core.usable_bytes,
            "peak_bytes": compiled.memory.needed,
        },
        "solves": [s.record() for s in compiled.solves],
        "seconds": compiled.seconds,
    }


def print_compiled(compiled: Compiled | None, record: dict[str, Any]) -> None:
    """The summary of a compilation."""
    console = Console(highlight=False)
    if compiled is None:
        console.print(f"Stopped early; dumps: {', '.join(record['dumps']) or 'none'}")
        return
    table = _table(
        f"{compiled.model['name']} on {compiled.chip.name}",
        "phase",
        "batch",
        "new tokens",
        "context",
        "regions",
        "predicted cycles",
    )
    for name, p in compiled.phases.items():
        regions = ", ".join(
            f"{r.rows}x{r.cols} at {r.row},{r.col}" for r in p.program.regions.values()
        )
        w = p.workload
        table.add_row(
            name,
            str(w.batch),
            str(w.prompt),
            str(w.context),
            regions,
            f"{p.predicted_cycles:,.0f}",
        )
    console.print(table)
    solves = _table(
        "Solves", "stage", "scope", "status", "objective", "bound", "gap", "greedy", "s"
    )
    first = next(iter(compiled.phases.values())).plan
    mine = f"region {first.rows}x{first.cols}"
    plans = [s for s in compiled.solves if s.stage == "plan"]
    shown = [s for s in compiled.solves if s.stage != "plan" or mine in s.scope.split(", ")]
    for s in shown:
        solves.add_row(
            s.stage,
            s.scope,
            s.status,
            f"{s.objective:,.0f}",
            f"{s.bound:,.0f}",
            f"{s.gap:.2%}",
            f"{s.heuristic_objective:,.0f}",
            f"{s.seconds:.2f}",
        )
    console.print(solves)
    console.print(
        f"{len(plans)} plans over all region shapes took "
        f"{sum(s.seconds for s in plans):.1f} s to solve."
    )
    console.print(
        f"SRAM {compiled.memory.needed:,} of {compiled.chip.core.usable_bytes:,} bytes on the "
        f"fullest core; {record['total_seconds']:.1f} s. Next: meshc run {record['output']}"
    )


def print_report(report: dict[str, Any]) -> None:
    """The summary of a run."""
    console = Console(highlight=False)
    chip, model = report["chip"], report["model"]
    names = list(report["phases"])
    table = _table(f"{model['name']} on {chip['name']}", "", *names)

    def row(label: str, value: Any) -> None:
        table.add_row(label, *(value(report["phases"][n]) for n in names))

    row("latency, cycles", lambda p: f"{p['latency_cycles']:,.0f}")
    row("latency, µs", lambda p: f"{p['latency_s'] * 1e6:,.2f}")
    row("tokens/s", lambda p: f"{p['tokens_per_s']:,.0f}")
    row("cycles per layer", lambda p: f"{p['layer_cycles']:,.0f}")
    row("predicted cycles", lambda p: f"{p['predicted_cycles']:,.0f}")
    row("without contention, cycles", lambda p: f"{p['bounds']['no_contention_cycles']:,.0f}")
    row("roofline, cycles", lambda p: f"{p['bounds']['roofline_cycles']:,.1f}")
    row("MAC utilization", lambda p: f"{p['utilization']['compute']:.2%}")
    row("SRAM bandwidth used", lambda p: f"{p['utilization']['sram_bandwidth']:.2%}")
    row("busiest link", lambda p: f"{p['utilization']['links_max']:.2%}")
    row("cores used", lambda p: f"{p['utilization']['cores_used']:.2%}")
    row(
        "peak SRAM per core",
        lambda p: f"{p['memory']['peak_bytes']:,} of {p['memory']['sram_bytes_per_core']:,} B",
    )
    row("longest context", lambda p: f"{p['memory']['max_context_tokens']:,}")
    row("held back by", lambda p: f"{p['bottleneck']['what']} {p['bottleneck']['share']:.0%}")
    console.print(table)
    if "steps" in report:
        steps = report["steps"]
        console.print(
            f"{len(steps)} decode steps: {steps[0]['latency_cycles']:,.0f} cycles at context "
            f"{steps[0]['context']}, {steps[-1]['latency_cycles']:,.0f} at {steps[-1]['context']}"
        )
    if report["verify"]:
        v = report["verify"]
        console.print(
            f"verify: {'passed' if v['passed'] else 'FAILED'} against {v['oracle']}, "
            f"{len(v['outputs'])} outputs, {_errors(v)}"
        )


def _errors(verify: dict[str, Any]) -> str:
    """The outputs that cannot be compared number by number, and the largest error of the rest."""
    rows = verify["outputs"]
    known = [o for o in rows if o["max_rel_error"] is not None]
    wrong = [o for o in rows if o["max_rel_error"] is None]
    parts = [f"'{o['name']}': {o.get('problem', 'not finite')}" for o in wrong[:1]]
    if len(wrong) > 1:
        parts.append(f"{len(wrong) - 1} more such outputs")
    if known:
        limit = max(o.get("tolerance", verify["tolerance"]) for o in known)
        parts.append(
            f"largest error{' of the others' if wrong else ''} "
            f"{max(o['max_rel_error'] for o in known):.2g} of the largest magnitude "
            f"(tolerance {limit:.3g})"
        )
    return "; ".join(parts)


def merge_verified(phases: dict[str, Any]) -> dict[str, Any] | None:
    """One verify entry for all phases; outputs of a second phase carry its name."""
    if not phases:
        return None
    outputs = [{**row, "phase": phase} for phase, v in phases.items() for row in v["outputs"]]
    return {
        "oracle": ", ".join(dict.fromkeys(v["oracle"] for v in phases.values())),
        "outputs": outputs,
        "tolerance": max(v["tolerance"] for v in phases.values()),
        "passed": all(v["passed"] for v in phases.values()),
    }


def failure(verify: dict[str, Any]) -> str:
    """One sentence on what disagrees."""
    limit = verify["tolerance"]
    bad = [
        o for o in verify["outputs"]
        if o["max_rel_error"] is None or o["max_rel_error"] > o.get("tolerance", limit)
    ]  # fmt: skip
    first = bad[0]
    if first["max_rel_error"] is None:
        what = first.get("problem", "it is not finite")
    else:
        what = (
            f"it is off by {first['max_rel_error']:.3g} of the largest magnitude where "
            f"{first.get('tolerance', limit):.3g} is allowed"
        )
    return (
        f"Verification failed: {len(bad)} of {len(verify['outputs'])} outputs disagree with "
        f"{verify['oracle']}, first '{first['name']}' of the {first['phase']}: {what}."
    )


def chip_record(spec: ChipSpec) -> dict[str, Any]:
    """One row of `meshc chips`."""
    return {
        "name": spec.name,
        "rows": spec.rows,
        "cols": spec.cols,
        "cores": spec.cores,
        "sram_bytes": spec.core.sram_bytes,
        "clock_hz": spec.clock_hz,
        "topology": spec.noc.topology,
        "source": spec.source,
    }


def print_chips(specs: list[ChipSpec]) -> None:
    table = _table("Chip specs", "name", "mesh", "cores", "SRAM per core", "clock", "network")
    for s in specs:
        table.add_row(
            s.name,
            f"{s.rows}x{s.cols}",
            f"{s.cores:,}",
            f"{s.core.sram_bytes:,} B",
            f"{s.clock_hz / 1e9:g} GHz",
            s.noc.topology,
        )
    Console(highlight=False).print(table)


def print_noc(record: dict[str, Any]) -> None:
    """What `meshc noc` found."""
    table = _table(f"{record['messages']:,} messages on {record['chip']}", "", "cycles")
    for name in ("makespan", "no_contention_makespan", "mean_latency", "max_latency"):
        table.add_row(name.replace("_", " "), f"{record[f'{name}_cycles']:,.6g}")
    table.add_section()
    for name, share in record["utilization"].items():
        table.add_row(f"{name.replace('_', ' ')} busy", f"{100 * share:.1f} %")
    Console(highlight=False).print(table)


def print_ops(found: Operators) -> None:
    """Operators by falling number of nodes, and the patterns found among them."""
    table = _table("Operators", "operator", "nodes", "fused", "executed", "folded", "status")
    for r in found.rows:
        fates = [r.fates.get(f) for f in ("fused", "executed", "folded")]
        table.add_row(r.operator, str(r.nodes), *(str(n or "") for n in fates), r.status)
    console = Console(highlight=False)
    console.print(table)
    if found.patterns:
        listed = ", ".join(f"{n} × {name}" for name, n in found.patterns.items())
        console.print(f"Recognised: {listed}.")


def print_known(names: Sequence[str]) -> None:
    """The operators that can be compiled, in columns."""
    from rich.columns import Columns

    Console(highlight=False).print(Columns(names, equal=True, expand=False))


def _view(v: View) -> str:
    def one(r: range) -> str:
        return f"{r.start}:{r.stop}" + (f":{r.step}" if r.step != 1 else "")

    return f"{v.dtype}@{v.address}[{', '.join(map(one, v.ranges))}]"


def step_text(step: Step) -> str:
    """One core instruction as text."""
    layer = f" layer {step.layer}" if step.layer >= 0 else ""
    lines = [f"{step.kind} {step.name}{layer}"]
    for a in step.actions:
        if isinstance(a, Kernel):
            lines.append(
                f"    kernel {a.op}: {_view(a.output)} <- {', '.join(map(_view, a.inputs))}"
            )
        elif isinstance(a, Send):
            to = " ".join(f"{c.row},{c.col}" for c in a.to)
            lines.append(
                f"    send {_view(a.view)} -> {to} ({a.route.policy}, net {a.route.network})"
            )
        elif isinstance(a, Recv):
            lines.append(f"    recv {_view(a.view)} <- {a.source.row},{a.source.col}")
        elif isinstance(a, Combine):
            lines.append(f"    {a.combine} {_view(a.destination)} += {_view(a.source)}")
        elif isinstance(a, SetUp):
            lines.append("    make ready for a collective")
        elif isinstance(a, Copy):
            lines.append(f"    copy {_view(a.destination)} <- {_view(a.source)}")
    return "\n".join(lines)
