"""How two partial results become one: what joins lanes that divided a summed dimension.

"attend" joins rows of softmax-weighted sums, as the op kind attend makes them: each row ends with
the sum of its weights and the largest score that they were taken against (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from meshc.errors import InvariantError


class Combine(NamedTuple):
    """run: elementwise over two arrays of one shape.   vector_ops: per element of the result."""

    run: Callable[[np.ndarray, np.ndarray], np.ndarray]
    vector_ops: int = 1


def attend(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows [weighted sum …, sum of weights, largest score] of two sets of scores as rows of both.

    A set without any visible score has the largest score -inf and counts for nothing.
    """
    top = np.maximum(a[..., -1:], b[..., -1:])
    with np.errstate(all="ignore"):
        shares = [np.where(x[..., -1:] == -np.inf, 0, np.exp(x[..., -1:] - top)) for x in (a, b)]
    whole = a * shares[0] + b * shares[1]
    whole[..., -1:] = top
    return np.asarray(whole)


COMBINES: dict[str, Combine] = {
    "sum": Combine(np.add),
    "max": Combine(np.maximum),
    "min": Combine(np.minimum),
    "prod": Combine(np.multiply),
    # two products and a sum per element; the two exponentials of a row are covered by the
    # elements that need none (its last)
    "attend": Combine(attend, 3),
}


def combine(how: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Two partial results as one; small floats are accumulated in float32."""
    if how not in COMBINES:
        raise InvariantError(f"Nothing combines with '{how}', only with {', '.join(COMBINES)}.")
    if a.dtype.itemsize < 4 and a.dtype.kind not in "iub":
        a, b = a.astype(np.float32), b.astype(np.float32)
    return np.asarray(COMBINES[how].run(a, b))
