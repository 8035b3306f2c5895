"""The numbered scripts in examples/ run and say something."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(p.name for p in FOLDER.glob("[0-9]*.py"))
QUICK = "03_own_chip.py"


def test_examples_are_numbered_from_one() -> None:
    assert [name[:3] for name in SCRIPTS] == [f"{n:02}_" for n in range(1, len(SCRIPTS) + 1)]
    for name in SCRIPTS:
        head = (FOLDER / name).read_text().split('"""')[1]
        assert f"python examples/{name}" in head  # says how it is run


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == QUICK else [pytest.mark.slow]) for n in SCRIPTS]
)
def test_example_runs(name: str, tmp_path: Path) -> None:
    before = {p.name for p in FOLDER.iterdir()}
    path = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(FOLDER / name)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" and re.search(r"\d", done.stdout)
    assert "False" not in done.stdout
    assert {p.name for p in FOLDER.iterdir()} - {"__pycache__"} == before - {"__pycache__"}
    assert list(tmp_path.iterdir()) == []
