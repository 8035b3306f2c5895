"""Who may import whom, read from the source: a module imports only from levels below its own.

The stages know nothing of each other, with a few exceptions that are listed with their reason.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "meshc").rglob("*.py"), *(ROOT / "viz").rglob("*.py")])

LEVELS = (
    ("errors",),
    ("ir",),
    (
        "ops", "collectives", "choice", "heuristic", "solve", "paths", "chipfields", "analysis",
        "patterns",
    ),
    (
        "frontend", "chips", "fusion", "partition", "place", "route", "emit", "expand", "flows",
        "memory", "emulator",
    ),
)  # fmt: skip
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}
STAGES = LEVELS[-1]
TOP = len(LEVELS)  # pipeline, run, report, store and others that know the stages
LAST = dict.fromkeys(("flags", "cli", "summary", "sweep", "__main__"), TOP + 1)

# Stage → stages that it may know, and why.
BETWEEN_STAGES = {
    "emulator": {"expand"},  # runs the cores' own streams
    "flows": {"expand", "route"},  # turns streams into the router's flows
}
# Package → the only places that may import it.
ONLY = {
    "onnx": ("meshc/frontend/",),
    "onnxruntime": ("meshc/frontend/",),
    "pulp": ("meshc/solve.py",),
    "highspy": ("meshc/solve.py",),
    "matplotlib": ("viz/",),
    "networkx": ("meshc/route/",),
    "numba": ("meshc/emulator/",),
    "llvmlite": ("meshc/emulator/",),
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a file, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            if base in ("meshc", "meshc.ir"):
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, base


def place(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module(path: Path) -> str:
    """Name of the part of meshc that a file belongs to: its package or its own name."""
    parts = path.relative_to(ROOT / "meshc").parts
    return parts[0].removesuffix(".py")


def part(name: str) -> str | None:
    """The part of meshc that an import names; None for the package itself or another one."""
    parts = name.split(".")
    if parts[0] != "meshc" or len(parts) == 1 or parts[1].startswith("__version"):
        return None
    return parts[1]


def level(name: str) -> int:
    return LEVEL.get(name, LAST.get(name, TOP))


MESHC = [p for p in SOURCES if p.is_relative_to(ROOT / "meshc")]


def test_there_is_something_to_check() -> None:
    names = {module(p) for p in MESHC}
    assert {"ir", "ops", "partition", "emulator", "pipeline", "cli"} <= names


@pytest.mark.parametrize("path", MESHC, ids=place)
def test_imports_point_downwards(path: Path) -> None:
    own = module(path)
    if own == "__init__":  # offers the public functions, imported when asked for
        assert all(part(name) is None for _, name in imports(path))
        return
    for line, name in imports(path):
        other = part(name)
        if other is None or other == own:
            continue
        where = f"{place(path)}:{line} imports meshc.{other}"
        assert level(other) <= level(own), f"{where}, which lies above meshc.{own}"
        if own == "errors" or (level(own) == 1 and level(other) > 1):
            raise AssertionError(f"{where}; {own} knows only what lies below it")
        if own in STAGES and other in STAGES:
            allowed = BETWEEN_STAGES.get(own, set())
            assert other in allowed, f"{where}; stages do not know each other"


@pytest.mark.parametrize("path", SOURCES, ids=place)
def test_libraries_stay_where_they_belong(path: Path) -> None:
    for line, name in imports(path):
        allowed = ONLY.get(name.split(".")[0])
        if allowed is not None:
            assert place(path).startswith(allowed), (
                f"{place(path)}:{line} imports {name}, which is for {', '.join(allowed)} only"
            )


def test_the_nouns_know_no_algorithms() -> None:
    for path in MESHC:
        if module(path) == "ir":
            known = {part(name) for _, name in imports(path)} - {None}
            assert known <= {"ir", "errors"}, f"{place(path)} imports {known}"


def test_the_emulator_knows_nothing_of_planning() -> None:
    for path in MESHC:
        if module(path) == "emulator":
            known = {part(name) for _, name in imports(path)} - {None}
            planning = {"partition", "place", "route", "solve", "choice", "pipeline", "frontend"}
            assert not known & planning, f"{place(path)} imports {known & planning}"


def test_drawing_knows_only_nouns() -> None:
    for path in SOURCES:
        if place(path).startswith("viz/"):
            known = {part(name) for _, name in imports(path)} - {None}
            assert known <= {"ir", "errors"}, f"{place(path)} imports {known}"


def loaded_by(code: str) -> set[str]:
    """Top-level packages in memory after some code ran in a fresh interpreter."""
    tail = "import sys; print('LOADED', *sorted({n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{tail}"], capture_output=True, text=True, cwd=ROOT,
        check=True,
    )  # fmt: skip
    last = done.stdout.rstrip().splitlines()[-1]
    assert last.startswith("LOADED")
    return set(last.split()[1:])


HEAVY = {"numpy", "onnx", "onnxruntime", "pulp", "highspy", "matplotlib", "networkx", "ml_dtypes"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["compile", "--help"], ["--version"]], ids=" ".join
)
def test_help_is_quick(arguments: list[str]) -> None:
    """Nothing heavy is imported before a command needs it."""
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['meshc', *{arguments!r}]\n"
        "try:\n    runpy.run_module('meshc.cli', run_name='__main__')\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
    )
    assert not loaded_by(code) & HEAVY


def test_importing_meshc_is_quick() -> None:
    assert not loaded_by("import meshc") & HEAVY


def test_planning_and_emulating_need_no_onnx() -> None:
    code = "import meshc.partition, meshc.emit, meshc.emulator, meshc.place, meshc.route"
    assert not loaded_by(code) & {"onnx", "onnxruntime", "matplotlib"}


def test_the_emulator_needs_no_solver() -> None:
    assert not loaded_by("import meshc.emulator") & {"pulp", "highspy", "networkx", "onnx"}


def test_every_import_names_something_that_exists() -> None:
    """A forgotten rename inside a function would show only when a user gets there."""
    names = {module(p) for p in MESHC}
    for path in SOURCES:
        for line, name in imports(path):
            other = part(name)
            if other in ("chipspecs", "viz"):  # stand at the top of the repository
                continue
            assert other is None or other in names, f"{place(path)}:{line} imports {name}"


def test_levels_name_what_exists() -> None:
    names = {module(p) for p in MESHC}
    assert set(LEVEL) <= names, f"no such part of meshc: {set(LEVEL) - names}"
