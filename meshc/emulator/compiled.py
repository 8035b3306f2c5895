"""Machine code for the network's inner loops, made by numba when first needed and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code. It is kept beside the source, or where that folder cannot be
    written in the user's cache folder, or where neither can, for this process only."""
    try:
        return cast(F, numba.njit(cache=True, _nrt=False)(function))
    except RuntimeError:  # numba found no folder that it may write
        return cast(F, numba.njit(_nrt=False)(function))


def inlined(function: F) -> F:
    """As `compiled`, and part of each function that calls it."""
    return cast(F, numba.njit(forceinline=True, _nrt=False)(function))


@intrinsic
def lowest(typing: Any, mask: Any) -> Any:
    """Position of the lowest set bit of an integer that is not 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate
