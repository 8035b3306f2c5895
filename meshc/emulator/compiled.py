"""Machine code for the network's inner loops, made by numba when first needed and kept on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


@cache
def cache_folder() -> str | None:
    """Where machine code is kept: beside this file, or else in the user's cache folder; None if
    neither can be written. Its name depends on all sources that are compiled, because numba looks
    at a function's own file only and not at those whose functions it calls."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted([*here.glob("router*.py"), here / "queues.py", Path(__file__)]):
        digest.update(file.read_bytes())
    name = f"meshc-{digest.hexdigest()[:16]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    places = [here / "__pycache__", home]
    if numba.config.CACHE_DIR:
        places.insert(0, Path(numba.config.CACHE_DIR))
    for place in places:
        folder = place / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return str(folder)
    return None


def compiled(function: F) -> F:
    """The function as machine code."""
    folder = cache_folder()
    # Without `_nrt`, numba would count references to every array at every use.
    if folder is None:
        return cast(F, numba.njit(_nrt=False)(function))
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = folder  # type: ignore[attr-defined]
    try:
        return cast(F, numba.njit(cache=True, _nrt=False)(function))
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


def inlined(function: F) -> F:
    """As `compiled`, but as a part of each function that calls it."""
    return cast(F, numba.njit(forceinline=True, _nrt=False)(function))


@intrinsic
def lowest(typing: Any, mask: Any) -> Any:
    """Position of the lowest set bit of an integer that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate
