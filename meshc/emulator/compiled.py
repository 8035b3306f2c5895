"""Machine code for the network's inner loops, made by numba when first needed and kept on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba
import numba.core.config
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])
NJIT: Any = numba.njit
SETTINGS: Any = numba.core.config
# Without this numba counts references to every array at every use, which takes ten times longer
# than the rest. No function here makes an array.
OPTIONS = {"_nrt": False}


@cache
def cache_folder() -> str | None:
    """Where machine code is kept: beside this file, or else in the user's cache folder; None if
    neither can be written. Its name depends on all sources that are compiled, because numba looks
    at a function's own file only and not at those whose functions it calls."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    sources = [*here.glob("router*.py"), *here.glob("lanes/*.py")]
    sources += [
        here / name for name in ("queues.py", "tables.py", "sizes.py", "compiled.py", "waits.py")
    ]
    for file in sorted(sources):
        digest.update(file.read_bytes())
    name = f"meshc-{digest.hexdigest()[:16]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    places = [here / "__pycache__", home]
    if SETTINGS.CACHE_DIR:
        places.insert(0, Path(SETTINGS.CACHE_DIR))
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
    before = SETTINGS.CACHE_DIR
    SETTINGS.CACHE_DIR = folder or before
    try:
        return cast(F, NJIT(cache=folder is not None, **OPTIONS)(function))
    finally:
        SETTINGS.CACHE_DIR = before


def inlined(function: F) -> F:
    """As `compiled`, but as a part of each function that calls it."""
    return cast(F, NJIT(forceinline=True, **OPTIONS)(function))


if TYPE_CHECKING:

    def whole(value: Any) -> int:
        """An integer of any size as one of 64 bits with a sign."""

    def lowest(mask: Any) -> int:
        """Position of the lowest set bit of an integer that is not 0."""

    def ones(mask: Any) -> int:
        """How many bits are set."""

else:
    whole = np.int64

    @intrinsic
    def lowest(typing: Any, mask: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

        return types.int64(types.int64), generate

    @intrinsic
    def ones(typing: Any, mask: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.ctpop(arguments[0])

        return types.int64(types.int64), generate
