"""Where machine code is kept."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numba
import pytest

from meshc.emulator import compiled
from meshc.emulator.compiled import cache_folder, lowest, ones


def test_bits() -> None:
    @numba.njit
    def both(mask: int) -> tuple[int, int]:
        return lowest(mask), ones(mask)

    assert [both(m) for m in (1, 8, 12, 1 << 40)] == [(0, 1), (3, 1), (2, 2), (40, 1)]


def test_code_is_kept_where_one_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "SETTINGS", SimpleNamespace(CACHE_DIR=""))
    find = cache_folder.__wrapped__
    beside = Path(compiled.__file__).parent
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: beside not in Path(path).parents and access(path, mode)
    )
    folder = find()
    assert folder is not None and Path(folder).parent == tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert find() is None
