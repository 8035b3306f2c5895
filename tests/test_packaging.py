"""The wheel has every package of the source tree."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    inside = {
        ".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "meshc").rglob("__init__.py")
    }
    assert set(listed) == inside | {"meshc.viz", "meshc.chipspecs"}


def test_no_file_is_left_out_of_its_package() -> None:
    for folder in ("meshc", "viz", "chipspecs"):
        for p in (ROOT / folder).rglob("*.py"):
            assert (p.parent / "__init__.py").exists(), p
