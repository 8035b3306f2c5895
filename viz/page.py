"""report.html: the pictures and the report's tables on one page that needs nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .style import bytes_text

LARGEST_SVG = 1_500_000  # bytes; a larger picture is embedded as PNG
MOST_OPS = 25

ALT = {
    "placement": "The mesh of cores with one colour per region, and a list of the layers and "
    "operations that each region hosts.",
    "sram": "Peak SRAM occupancy of every core as a heatmap, and the buffers of the fullest core "
    "by address and time.",
    "utilization": "Heatmaps of the share of time that each core computes, communicates and "
    "waits, and the average core's time as a bar.",
    "links": "Busy share of the links between cores: the busiest link of each core, and every "
    "direction.",
    "timeline": "The instructions of the step over time, and one layer instruction by instruction.",
}

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --muted: #5a5a5a; --line: #d8d8d8;
  --page: #ffffff; --band: #f5f5f5; --good: #00704a; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --muted: #a8a8a8;
  --line: #3c3c3c; --page: #161616; --band: #202020; --good: #4cc38a; --bad: #ff8a80; } }
body { margin: 0 auto; max-width: 78rem; padding: 1.5rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { margin: 2.2rem 0 .6rem; }
h3 { margin: 1.4rem 0 .4rem; } p.note, figcaption, caption { color: var(--muted); }
nav a { color: inherit; margin-right: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .22rem .8rem .22rem 0; border-bottom: 1px solid var(--line);
  text-align: left; vertical-align: top; } th { font-weight: 600; }
td.n, th.n { text-align: right; } .wide { overflow-x: auto; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr));
  gap: 1rem 2.5rem; align-items: start; }
figure { margin: 1rem 0 1.6rem; } figure img { display: block; width: 100%; height: auto;
  background: #fff; border: 1px solid var(--line); border-radius: 6px; }
.passed { color: var(--good); } .failed { color: var(--bad); }
.lead { background: var(--band); border-radius: 6px; padding: .7rem 1rem; }
"""


@dataclass(frozen=True)
class Picture:
    """A drawn picture: its name (a key of FIGURES), phase, file stem and bytes."""

    name: str
    phase: str
    stem: str
    svg: bytes
    png: bytes


def page(report: dict[str, Any], pictures: Sequence[Picture]) -> str:
    """The whole page. Fields that the report lacks are left out."""
    model, chip = _dict(report, "model"), _dict(report, "chip")
    title = f"{model.get('name', 'model')} on {chip.get('name', 'chip')}"
    found = list(dict.fromkeys(p.phase for p in pictures))
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)} · meshc</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="note">meshc {escape(str(report.get("meshc_version", "")))}</p>',
        "<nav>" + "".join(f'<a href="#{escape(p)}">{escape(p)}</a>' for p in found) + "</nav>",
        '<div class="facts">',
        _facts("Model", model),
        _facts("Chip", chip),
        _facts(
            "Workload and mapping",
            _dict(report, "workload")
            | {k: report[k] for k in ("strategy", "solver", "seed") if k in report},
        ),
        _facts("Whole run", _whole_run(report)),
        "</div>",
        _verify(report.get("verify")),
    ]
    for phase in found:
        numbers = _dict(_dict(report, "phases"), phase)
        parts.append(f'<section id="{escape(phase)}"><h2>{escape(phase.capitalize())}</h2>')
        parts.append(_phase(numbers))
        parts += [_figure(p) for p in pictures if p.phase == phase]
        parts.append(_longest_ops(numbers.get("ops")))
        parts.append("</section>")
    parts += [_solves(report.get("solves")), "</body></html>"]
    return "\n".join(p for p in parts if p) + "\n"


def _phase(numbers: dict[str, Any]) -> str:
    if not numbers:
        return ""
    bottleneck = _dict(numbers, "bottleneck")
    lead = ""
    if bottleneck:
        share = bottleneck.get("share")
        of = f" ({100 * share:.0f} % of the time)" if isinstance(share, int | float) else ""
        lead = (
            f'<p class="lead"><strong>What holds it back:</strong> '
            f"{escape(str(bottleneck.get('what', '')))}{escape(of)}. "
            f"{escape(str(bottleneck.get('advice', '')))}</p>"
        )
    speed = {k: v for k, v in numbers.items() if isinstance(v, int | float)}
    tables = [
        _facts("Speed", speed | _dict(numbers, "bounds")),
        _facts("Utilization", _dict(numbers, "utilization")),
        _facts("Memory", _dict(numbers, "memory")),
    ]
    return lead + '<div class="facts">' + "".join(tables) + "</div>"


def _whole_run(report: dict[str, Any]) -> dict[str, Any]:
    facts = {k: report[k] for k in ("ttft_s", "tpot_s") if report.get(k) is not None}
    energy = _dict(report, "energy")
    if "joules_per_token" in energy:
        facts["joules_per_token"] = energy["joules_per_token"]
    facts |= {f"{stage} (seconds)": s for stage, s in _dict(report, "seconds").items()}
    return facts | {k: report[k] for k in ("peak_rss_bytes",) if k in report}


def _facts(title: str, facts: dict[str, Any]) -> str:
    rows = [
        f"<tr><th>{escape(_words(k))}</th><td>{escape(_value(k, v))}</td></tr>"
        for k, v in facts.items()
        if v is not None and not isinstance(v, dict | list)
    ]
    return f"<div><h3>{escape(title)}</h3><table>{''.join(rows)}</table></div>" if rows else ""


def _verify(verify: Any) -> str:
    if not isinstance(verify, dict):
        return ""
    passed = bool(verify.get("passed"))
    word = '<span class="passed">passed</span>' if passed else '<span class="failed">failed</span>'
    caption = f"compared with {verify.get('oracle', '')}, tolerance {verify.get('tolerance', '')}"
    columns = ("name", "max_abs_error", "max_rel_error")
    return f"<h2>Verification: {word}</h2>" + _table(verify.get("outputs"), columns, caption)


def _solves(solves: Any) -> str:
    columns = (
        "stage", "scope", "solver", "status", "objective", "bound", "gap", "seconds",
        "variables", "constraints", "heuristic_objective",
    )  # fmt: skip
    table = _table(solves, columns, "each integer program, beside what the heuristic reached")
    return f"<h2>Solves</h2>{table}" if table else ""


def _longest_ops(ops: Any) -> str:
    if not isinstance(ops, list) or not ops:
        return ""
    rows = [o for o in ops if isinstance(o, dict)]
    rows.sort(key=lambda o: float(o.get("start_cycle", 0)) - float(o.get("end_cycle", 0)))
    rows = [
        o | {"cycles": float(o.get("end_cycle", 0)) - float(o.get("start_cycle", 0))} for o in rows
    ]
    columns = (
        "name", "kind", "layer", "cycles", "compute_cycles", "communication_cycles",
        "wait_cycles", "bound_by",
    )  # fmt: skip
    caption = f"the {min(MOST_OPS, len(rows))} longest of {len(rows)}"
    return "<h3>Operations</h3>" + _table(rows[:MOST_OPS], columns, caption)


def _table(rows: Any, columns: Iterable[str], caption: str) -> str:
    if not isinstance(rows, list) or not rows:
        return ""
    columns = [c for c in columns if any(c in r for r in rows)]
    numeric = {c for c in columns if all(isinstance(r.get(c, 0), int | float | None) for r in rows)}
    mark = {c: ' class="n"' if c in numeric else "" for c in columns}
    head = "".join(f"<th{mark[c]}>{escape(_words(c))}</th>" for c in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td{mark[c]}>{escape(_value(c, r.get(c, '')))}</td>" for c in columns)
        + "</tr>"
        for r in rows
    )
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _figure(picture: Picture) -> str:
    kind, content = (
        ("svg+xml", picture.svg) if len(picture.svg) <= LARGEST_SVG else ("png", picture.png)
    )
    data = b64encode(content).decode("ascii")
    alt = f"{ALT.get(picture.name, picture.name)} Phase: {picture.phase}."
    caption = f"{picture.name.capitalize()} ({picture.stem}.png, {picture.stem}.svg)"
    return (
        f'<figure><img alt="{escape(alt)}" src="data:image/{kind};base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _words(name: str) -> str:
    for suffix, unit in (
        ("_bytes", "bytes"), ("_cycles", "cycles"), ("_hz", "Hz"), ("_s", "seconds"),
    ):  # fmt: skip
        if name.endswith(suffix) and name != "tokens_per_s":
            return f"{name.removesuffix(suffix).replace('_', ' ')} ({unit})"
    return name.replace("_", " ")


def _value(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        text = f"{value:,}"
    elif isinstance(value, float):
        text = f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    else:
        return str(value)
    return f"{text} ({bytes_text(value)})" if name.endswith("bytes") and value >= 1024 else text


def _dict(record: dict[str, Any], key: str) -> dict[str, Any]:
    value = record.get(key)
    return value if isinstance(value, dict) else {}
