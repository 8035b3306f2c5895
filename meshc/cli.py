"""The command line. Heavy modules are imported inside the commands, so that --help is quick."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from meshc.errors import InputError, MeshcError, VerificationError
from meshc.flags import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parser().parse_args(argv)
    try:
        code = COMMANDS[args.command](args)
        sys.stdout.flush()
        return code
    except MeshcError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        if error.exit_code == 1:
            raise
        return error.exit_code
    except KeyboardInterrupt:
        print("Interrupted; nothing was left half-written.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _say(args: argparse.Namespace) -> tuple[Any, Callable[[str], None]]:
    """A context and a function that shows progress, on stderr when it is a terminal."""
    if args.quiet or args.json or not sys.stderr.isatty():
        return nullcontext(), lambda text: None
    from rich.console import Console

    status = Console(stderr=True).status("starting")
    return status, lambda text: status.update(text)


def _emit_json(value: Any) -> None:
    print(json.dumps(value, allow_nan=False))


def _peak_rss_bytes() -> int:
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def _compile(args: argparse.Namespace) -> int:
    from meshc import store
    from meshc.frontend import read_load
    from meshc.ir.compiled import CompileOptions
    from meshc.pipeline import compile as compile_model

    if args.kv_dtype != "keep":
        raise InputError(
            f"--kv-dtype {args.kv_dtype} is not available in this version; leave it out to keep "
            "the model's own types."
        )
    out = Path(args.output)
    store.check_target(out)
    options = CompileOptions(
        chip=args.chip,
        overrides=tuple(args.override),
        phase=args.phase,
        batch=args.batch,
        prompt=args.prompt,
        context=args.context,
        max_context=args.max_context,
        decode_model=args.decode_model,
        dims=tuple(args.dim),
        strategy=args.strategy,
        settings=tuple(args.set),
        dtype=args.dtype,
        grid=args.grid,
        solver=args.solver,
        gap=args.gap,
        time_limit=args.time_limit,
        seed=args.seed,
        dynamic_mask=args.dynamic_mask,
        fusion=not args.no_fusion,
        recognition=not args.no_recognition,
        experts=read_load(args.experts),
    )
    began = time.perf_counter()
    status, say = _say(args)
    dumps: dict[str, str] | None = {} if args.dump else None
    notes: list[str] = []
    with status:
        compiled = compile_model(
            args.model, options, progress=say, until=args.until, dumps=dumps, note=notes.append
        )
    with store.whole_folder(out, keep=compiled is None) as folder:
        store.mark(folder)
        if compiled is not None:
            store.save_compiled(compiled, folder)
        for name, text in (dumps or {}).items():
            store.write_whole(folder / f"{name}.txt", text.encode())
    from meshc import summary

    record = summary.compile_record(
        compiled, out, time.perf_counter() - began, _peak_rss_bytes(), sorted(dumps or {})
    )
    if args.json:
        _emit_json(record)
    elif not args.quiet:
        summary.print_compiled(compiled, record)
    for text in [] if args.quiet else notes:
        print(text, file=sys.stderr)
    return 0


def _run(args: argparse.Namespace) -> int:
    from meshc import store, summary

    out = Path(args.output)
    engine = args.engine
    compiled = store.open_compiled(out)
    if args.trace:
        store.check_file(Path(args.trace))
    from meshc.report import measure
    from meshc.run import decode_steps, feeds_from_file, run_phase, verify_phase

    if args.tokens is not None and args.tokens < 1:
        raise InputError(f"--tokens {args.tokens} is below 1; ask for at least one step.")
    traces: dict[str, Any] = {}
    verified: dict[str, Any] = {}
    experts: list[tuple[tuple[int, ...], ...]] = []
    given: tuple[str, dict[str, Any]] | None = None
    began = time.perf_counter()
    status, say = _say(args)
    with status:
        if args.inputs:
            given = feeds_from_file(Path(args.inputs), compiled)
        steps = decode_steps(compiled, args.tokens, engine=engine, say=say) if args.tokens else []
        for phase in compiled.phases:
            say(f"emulate {phase}")
            spans = args.trace is not None
            if args.verify or (given and given[0] == phase):
                feeds = given[1] if given and given[0] == phase else None
                result = verify_phase(
                    compiled,
                    phase,
                    feeds=feeds,
                    engine=engine,
                    core_spans=spans,
                    check=args.verify,
                )
                traces[phase] = (result.trace, result.free)
                experts.append(result.experts)
                if result.verify is not None:
                    verified[phase] = result.verify
            else:
                traces[phase] = run_phase(compiled, phase, engine=engine, core_spans=spans)
    report = measure(
        traces,
        compiled,
        emulate_seconds=time.perf_counter() - began,
        peak_rss_bytes=_peak_rss_bytes(),
        verify=summary.merge_verified(verified),
    )
    if steps:
        cycles = [t.cycles for _, t in steps]
        report["steps"] = [{"context": c, "latency_cycles": t.cycles} for c, t in steps]
        report["tpot_s"] = sum(cycles) / len(cycles) / compiled.chip.clock_hz
    if any(experts):  # both phases together, in the form that --experts takes
        layers = [
            [sum(n) for n in zip(*layer, strict=True)] for layer in zip(*experts, strict=True)
        ]
        store.write_json(out / store.EXPERTS, layers)
    if given:
        store.write_arrays(out / "outputs.npz", traces[given[0]][0].outputs)
    for phase, (trace, _) in traces.items():
        store.write_trace(out, phase, trace, compiled)
    store.write_json(out / store.REPORT, report)
    if args.trace:
        store.write_chrome_trace(Path(args.trace), {p: t for p, (t, _) in traces.items()}, compiled)
    if args.json:
        _emit_json(report)
    elif not args.quiet:
        summary.print_report(report)
    if report["verify"] and not report["verify"]["passed"]:
        raise VerificationError(summary.failure(report["verify"]))
    return 0


def _generate(args: argparse.Namespace) -> int:
    from meshc import store
    from meshc.generation import Generated, generate, read_inputs

    engine = args.engine
    compiled = store.open_compiled(Path(args.output))
    clock = compiled.chip.clock_hz

    def show(g: Generated) -> None:
        if not args.json and not args.quiet:
            kind = "first token" if g.phase == "prefill" else "token"
            micro = g.cycles / clock * 1e6
            print(f"{kind} {g.token}  {g.cycles:,.0f} cycles  {micro:,.2f} µs", flush=True)

    inputs = read_inputs(Path(args.inputs)) if args.inputs else None
    found = generate(compiled, args.ids, args.tokens, engine=engine, inputs=inputs, say=show)
    ids = [g.token for g in found]
    if args.json:
        _emit_json(
            {
                "prompt": args.ids,
                "ids": ids,
                "latency_cycles": [g.cycles for g in found],
                "latency_s": [g.cycles / clock for g in found],
            }
        )
    else:
        print(",".join(map(str, ids)))
    return 0


def _viz(args: argparse.Namespace) -> int:
    from meshc import store

    out = Path(args.output)
    store.open_compiled(out)
    if not (out / store.REPORT).exists():
        raise InputError(
            f"Folder '{out}' has no {store.REPORT} yet; run it first: meshc run {out}."
        )
    if args.dest:
        dest = Path(args.dest)
        if dest.exists() and not dest.is_dir():
            raise InputError(f"'{dest}' is a file, not a folder; give a folder with -o.")
        with store.writable(dest):
            dest.mkdir(parents=True, exist_ok=True)
    draw = store.viz_module().draw
    files = draw(out, Path(args.dest) if args.dest else None)
    if args.json:
        _emit_json({"files": [str(f) for f in files]})
    elif not args.quiet:
        for f in files:
            print(f)
    return 0


def _noc(args: argparse.Namespace) -> int:
    from meshc import chips, noc, summary

    status, say = _say(args)
    with status:
        chip = chips.load_chip(args.chip, chips.parse_overrides(tuple(args.override)))
        output = Path(args.output) if args.output else None
        result = noc.run_file(Path(args.traffic), chip, output, say)
    record = result.record() | {"peak_rss_bytes": _peak_rss_bytes()}
    if args.json:
        _emit_json(record)
    elif not args.quiet:
        summary.print_noc(record)
    return 0


def _chips(args: argparse.Namespace) -> int:
    from meshc import chips, summary

    if args.name:
        spec = chips.load_chip(args.name)
        if args.json:
            from meshc.ir import codec

            _emit_json({"chip": codec.encode(spec), "sources": chips.chip_sources(args.name)})
        else:
            print(chips.chip_text(args.name), end="")
        return 0
    specs = [chips.load_chip(n) for n in chips.chip_names()]
    if args.json:
        _emit_json({"chips": [summary.chip_record(s) for s in specs]})
    else:
        summary.print_chips(specs)
    return 0


def _ops(args: argparse.Namespace) -> int:
    from meshc import frontend, operators, summary

    if args.model is None:
        names = [f"{d}:{n}" if d else n for d, n in frontend.known_operators()]
        if args.json:
            _emit_json({"ops": [{"op": n, "status": "supported"} for n in names]})
        elif not args.quiet:
            summary.print_known(names)
        return 0
    second = frontend.load_model(args.decode_model) if args.decode_model else None
    found = operators.operators(
        args.model,
        phase=args.phase,
        batch=args.batch,
        prompt=args.prompt,
        context=args.context,
        max_context=args.max_context,
        dims=dict(args.dim),
        decode_model=second,
    )
    if args.json:
        rows = [
            {"op": r.operator, "count": r.nodes, "status": r.status}
            | {f: r.fates.get(f, 0) for f in frontend.FATES}
            for r in found.rows
        ]
        _emit_json({"ops": rows, "patterns": found.patterns, "reason": found.reason or None})
    elif not args.quiet:
        summary.print_ops(found)
    if found.reason:
        raise InputError(found.reason)
    return 0


def _disasm(args: argparse.Namespace) -> int:
    from meshc import store, summary
    from meshc.expand import expand
    from meshc.ir.chip import Coord

    compiled = store.open_compiled(Path(args.output))
    row, comma, col = args.core.partition(",")
    if not comma or not row.strip().isdigit() or not col.strip().isdigit():
        raise InputError(f"--core '{args.core}' is not R,C; give a row and a column, such as 0,1.")
    core = Coord(int(row), int(col))
    chip = compiled.chip
    if core.row >= chip.rows or core.col >= chip.cols:
        raise InputError(
            f"Core {core.row},{core.col} is outside of {chip.name}, whose last core is "
            f"{chip.rows - 1},{chip.cols - 1}."
        )
    phases = [args.phase] if args.phase else list(compiled.phases)
    if args.phase and args.phase not in compiled.phases:
        raise InputError(f"Phase '{args.phase}' was not compiled; it has {list(compiled.phases)}.")
    lines = {
        p: [summary.step_text(s) for s in expand(compiled.phases[p].program, core)] for p in phases
    }
    if args.json:
        _emit_json({"core": [core.row, core.col], "phases": lines})
        return 0
    for phase, steps in lines.items():
        print(f"# {phase}, core {core.row},{core.col}: {len(steps)} instructions")
        for text in steps:
            print(text)
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "compile": _compile,
    "run": _run,
    "generate": _generate,
    "viz": _viz,
    "noc": _noc,
    "chips": _chips,
    "ops": _ops,
    "disasm": _disasm,
}


if __name__ == "__main__":
    sys.exit(main())
