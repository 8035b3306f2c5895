"""Whether a prefill graph and a decode graph are of one model.

The caches must agree, and the vocabulary. Of the weights, those under one name must be the same,
as far as their digests tell, and of the small matrices in the decode graph nearly all must be in
the prefill graph under whatever name, turned or not, where it has any of their shape and type.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from math import prod

import numpy as np

from meshc.errors import InputError
from meshc.frontend.bind import Bound
from meshc.frontend.order import main_output
from meshc.frontend.reader import Model

MOST = 0.1  # of the decode graph's weights, by elements, that may not be in the prefill graph
LARGEST = 1 << 20  # elements of a weight whose values are compared
_OWN = re.compile(r"^(?!onnx::).*[./](weight|bias)\b")  # a parameter's name, not an exporter's
_LENGTHS = ("grows", "buffer", "window")
Cache = tuple[tuple[int, ...], str]


def check_pair(
    models: tuple[Model, Model],
    bound: tuple[Bound, Bound],
    digests: tuple[Mapping[str, str], Mapping[str, str]],
) -> None:
    """InputError where the decode graph is not of the prefill graph's model.

    models, bound, digests: of the prefill and of the decode; digests of weights by name.
    """
    names = f"'{models[0].path.name}' and the decode graph '{models[1].path.name}'"
    problem = (
        _caches(models, bound) or _vocabulary(models, bound) or _weights(models, bound, digests)
    )
    if problem:
        raise InputError(
            f"The prefill graph {names} are not of one model: {problem}; give the decode graph of "
            "the same model with --decode-model."
        )


def _caches(models: tuple[Model, Model], bound: tuple[Bound, Bound]) -> str:
    first, then = ([_cache(m, *c) for c in b.caches] for m, b in zip(models, bound, strict=True))
    if not first or not then:
        return ""
    if len(first) != len(then):
        return f"the one puts out {len(first)} caches, the other reads {len(then)}"
    for a, b in zip(sorted(first), sorted(then), strict=True):
        if a != b:
            return (
                f"the one puts out a cache of {list(a[0])} per token in {a[1]}, the other reads "
                f"one of {list(b[0])} in {b[1]}"
            )
    return ""


def _cache(
    model: Model, past: str | None, present: str, shape: tuple[int, ...], dtype: str
) -> Cache:
    """A cache's dimensions but the one that counts tokens."""
    del present
    axis = next((i for i, n in enumerate(shape) if not n), None)
    own = (past or "").partition("[")[0]
    known = model.roles.pasts.get(own)
    if known is not None:
        axis = known.axis if known.style in _LENGTHS else None
        if axis is not None and past != own:
            axis -= known.stack
    return tuple(n for i, n in enumerate(shape) if i != axis), dtype


def _vocabulary(models: tuple[Model, Model], bound: tuple[Bound, Bound]) -> str:
    sizes = []
    for m, b in zip(models, bound, strict=True):
        main = main_output([p.name for p in m.outputs])
        shapes = [b.graph.tensors[t].shape for n, t, _ in b.graph.outputs if n == main]
        sizes.append(shapes[0][-1] if shapes and shapes[0] else 0)
    if sizes[0] == sizes[1]:
        return ""
    return f"the one scores {sizes[0]} tokens, the other {sizes[1]}"


def _weights(
    models: tuple[Model, Model],
    bound: tuple[Bound, Bound],
    digests: tuple[Mapping[str, str], Mapping[str, str]],
) -> str:
    first, then = digests
    for name in then:
        if name in first and _OWN.match(name) and all(name in m.initializers for m in models):
            dims = [list(m.initializers[name].dims) for m in models]
            if dims[0] != dims[1]:
                return f"weight '{name}' is {dims[0]} in the one and {dims[1]} in the other"
            if first[name] != then[name]:
                return f"weight '{name}' has other values in the one than in the other"
    ours, theirs = (_comparable(b, d) for b, d in zip(bound, digests, strict=True))
    known, kinds = set(digests[0].values()), {_kind(bound[0], n) for n in ours}
    found = [n for n in theirs if _kind(bound[1], n) in kinds]
    other = [n for n in found if digests[1][n] not in known]
    if other:
        turned = {_turned(bound[0], n) for n in ours}
        other = [n for n in other if _turned(bound[1], n) not in turned]
    size, total = (sum(prod(bound[1].data.consts[n].shape) for n in x) for x in (other, found))
    if size > MOST * total:
        return (
            f"{size} of {total} elements of the decode graph's weights, those of '{other[0]}' for "
            "example, are not in the prefill graph"
        )
    return ""


def _comparable(bound: Bound, digests: Mapping[str, str]) -> list[str]:
    """Matrices that are in the model file and small enough to look at."""
    found = []
    for name in digests:
        const = bound.data.consts[name]
        if len(const.shape) > 1 and prod(const.shape) <= LARGEST and not const.outside:
            found.append(name)
    return found


def _kind(bound: Bound, name: str) -> tuple[str, tuple[int, ...]]:
    const = bound.data.consts[name]
    return const.dtype, tuple(sorted(const.shape))


def _turned(bound: Bound, name: str) -> str:
    """What a weight has in common with its transpose."""
    values = np.sort(bound.data.read(name), axis=None)
    return hashlib.sha256(repr(_kind(bound, name)).encode() + values.tobytes()).hexdigest()
