"""The command line's flags: what can be asked, and what a value must look like."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from meshc import __version__

STAGE_NAMES = ("import", "partition", "place", "emit", "route")


class _Parser(argparse.ArgumentParser):
    """Complains in one sentence, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        text = message[0].upper() + message[1:]
        self.exit(2, f"{text.rstrip('.')}; see {self.prog} --help.\n")


def _grid(text: str) -> tuple[int, int]:
    rows, x, cols = text.lower().partition("x")
    if not x or not rows.isdigit() or not cols.isdigit() or not int(rows) or not int(cols):
        raise argparse.ArgumentTypeError(f"'{text}' is not ROWSxCOLS, such as 8x8")
    return int(rows), int(cols)


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a list of token ids, such as 1,2,3"
        ) from None


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"'{text}' is not KEY=VALUE")
    return key, value


def _dimension(text: str) -> tuple[str, int]:
    key, value = _assignment(text)
    if not value.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=N with a whole number N")
    return key, int(value)


class _Dimensions(argparse.Action):
    """Collects NAME=N; a name given twice must have one value."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        found = dict(getattr(namespace, self.dest))
        name, size = values
        if found.get(name, size) != size:
            raise argparse.ArgumentError(
                self, f"'{name}' is given both {found[name]} and {size}; give one of them"
            )
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), (name, size)])


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 0")
    return value


def _seed(text: str) -> int:
    if not text.isdigit() or int(text) >= 1 << 31:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0 to 2147483647")
    return int(text)


def _add_workload(p: argparse.ArgumentParser) -> None:
    """The flags that bind a model's dimensions."""
    p.add_argument("--phase", choices=("prefill", "decode", "both"))
    p.add_argument("--batch", type=int, metavar="N", help="sequences (default 1)")
    p.add_argument("--prompt", type=int, metavar="N", help="new tokens of a prefill (default 16)")
    p.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens cached before a decode, or before a prefill that continues a cache",
    )
    p.add_argument("--max-context", type=int, metavar="N", help="cached tokens to reserve for")
    p.add_argument("--decode-model", metavar="F", help="the decode graph, if exported apart")
    p.add_argument(
        "--dim",
        type=_dimension,
        action=_Dimensions,
        default=[],
        metavar="NAME=N",
        help="bind another symbolic dimension (repeatable)",
    )


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="meshc",
        description="Map an ONNX LLM onto a mesh of cores with private SRAM, run it on an "
        "emulator, and prove the result.",
        epilog="Example: meshc compile examples/llama-optimum-with_past.onnx --chip test8x8 "
        "-o out && meshc run out --verify && meshc viz out",
    )
    top.add_argument("--version", action="version", version=f"meshc {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, help_: str, **more: Any) -> argparse.ArgumentParser:
        p = commands.add_parser(name, help=help_, description=help_, **more)
        p.add_argument("--json", action="store_true", help="one JSON object on stdout")
        p.add_argument("--quiet", action="store_true", help="no progress and no summary")
        return p

    c = add("compile", "Compile a model for a chip.")
    c.add_argument("model", metavar="MODEL.onnx")
    c.add_argument("--chip", required=True, help="a name from 'meshc chips' or a TOML file")
    c.add_argument("-o", "--output", required=True, metavar="OUT", help="output folder")
    _add_workload(c)
    c.add_argument(
        "--experts",
        default="uniform",
        metavar="uniform|FILE.json",
        help="how tokens spread over a mixture's experts: evenly, or in the ratio of a list of "
        "numbers (or of one list per layer)",
    )
    c.add_argument(
        "--dtype",
        default="keep",
        metavar="TYPE|PART=TYPE,...",
        help="storage of products' weights, for all or by part (attention, mlp, head): keep, fp32, "
        "fp16, bf16, int8, int4, bfp8 or bfp4",
    )
    c.add_argument("--kv-dtype", default="keep", help="storage of the cache (this version: keep)")
    c.add_argument("--strategy", default="auto")
    c.add_argument(
        "--set",
        type=_assignment,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the strategy (repeatable)",
    )
    c.add_argument("--grid", type=_grid, metavar="RxC", help="only this rectangle of cores")
    c.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of the chip spec (repeatable)",
    )
    c.add_argument("--solver", choices=("ilp", "greedy", "anneal"), default="ilp")
    c.add_argument("--gap", type=_positive, default=0.01, help="relative gap to stop at")
    c.add_argument(
        "--time-limit", type=_positive, default=10.0, metavar="S", help="seconds for each solve"
    )
    c.add_argument("--seed", type=_seed, default=0)
    c.add_argument(
        "--until",
        choices=STAGE_NAMES,
        metavar="STAGE",
        help="stop after this stage: " + ", ".join(STAGE_NAMES),
    )
    c.add_argument("--dump", action="store_true", help="write each stage's text dump to OUT")
    c.add_argument(
        "--dynamic-mask", action="store_true", help="keep masks and positions as run-time inputs"
    )
    c.add_argument("--no-fusion", action="store_true", help="one kernel per primitive operation")
    c.add_argument(
        "--no-recognition",
        action="store_true",
        help="no kernels for whole patterns (attention, norms, gated MLPs, experts)",
    )

    r = add("run", "Emulate a compiled model; writes report.json.")
    r.add_argument("output", metavar="OUT")
    r.add_argument("--verify", action="store_true", help="carry tensors, compare with the oracle")
    r.add_argument("--inputs", metavar="FILE.npz", help="carry these tensors; writes outputs.npz")
    r.add_argument("--tokens", type=int, metavar="N", help="decode N steps, the cache growing")
    r.add_argument("--trace", metavar="FILE", help="write a Chrome / Perfetto trace")
    r.add_argument("--engine", choices=("lanes", "cores"), default="lanes")

    g = add("generate", "Prefill, then greedy decode, on the emulated chip.")
    g.add_argument("output", metavar="OUT")
    g.add_argument("--ids", type=_ids, required=True, metavar="1,2,3", help="the prompt's ids")
    g.add_argument("--tokens", type=int, default=8, metavar="N")
    g.add_argument(
        "--inputs", metavar="FILE.npz", help="what else the model needs, such as encoder states"
    )
    g.add_argument("--engine", choices=("lanes", "cores"), default="lanes")

    v = add("viz", "Draw placement, SRAM, utilization, links and timeline of a run.")
    v.add_argument("output", metavar="OUT")
    v.add_argument("-o", "--dest", metavar="DIR", help="folder for the pictures (default OUT)")

    n = add("noc", "Send a file of messages through a chip's network alone.")
    n.add_argument("traffic", metavar="TRAFFIC.csv")
    n.add_argument("--chip", required=True, help="a name from 'meshc chips' or a TOML file")
    n.add_argument("-o", "--output", metavar="OUT.csv", help="the same lines with their times")
    n.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of the chip spec (repeatable)",
    )

    h = add("chips", "List the shipped chip specs, or show one.")
    h.add_argument("name", nargs="?")

    o = add("ops", "List the operators of a model and what becomes of each.")
    o.add_argument("model", metavar="MODEL.onnx", nargs="?", help="without it: what is known")
    _add_workload(o)

    d = add("disasm", "Print one core's own instructions.")
    d.add_argument("output", metavar="OUT")
    d.add_argument("--core", required=True, metavar="R,C")
    d.add_argument("--phase", choices=("prefill", "decode"))
    return top
