"""Values known at compile time, and the numpy meaning of the primitive ops on them.

A Const is evaluated when first read, so that a transposed weight of gigabytes costs nothing
until tensors are emulated. Besides its values a Const knows their origin: whether they come
from the model file alone or from the workload (and from which of its numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend.labels import FIXED, MIXED, array_of, loose, map_label
from meshc.ir.dtypes import NARROW, NUMPY
from meshc.ops.elementwise import FUNCTIONS
from meshc.ops.experts import multiplied
from meshc.ops.gather import pick
from meshc.ops.matmul import product, widened
from meshc.ops.scan import cumulate
from meshc.ops.scatter import scattered
from meshc.ops.topk import select
from meshc.ops.unpack import unpacked

Origin = Any  # a label for all elements, or an array of one label per element
Step = tuple[str, tuple[tuple[str, Any], ...], str]
Steps = tuple[Step, ...]

_EAGER = 4096  # elements: below this a Const is evaluated at once
_KEEP_BYTES = 1 << 24  # evaluated constants up to this size are kept
_KEEP_OUTSIDE = 1 << 16  # the same for weights in external files, of which there are many


class Const:
    """An array known at compile time.

    outside: its values come from an external file or are absent, so nothing reads them before
    they are needed.   lacks: why there are no values, as a sentence; "" where there are.
    """

    __slots__ = ("_array", "_make", "dtype", "lacks", "origin", "outside", "shape")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str,
        origin: Origin,
        make: Callable[[], np.ndarray],
        outside: bool = False,
        lacks: str = "",
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.origin = origin
        self._make = make
        self.outside = outside
        self.lacks = lacks
        self._array: np.ndarray | None = None

    @staticmethod
    def of(array: np.ndarray, dtype: str, origin: Origin = FIXED) -> Const:
        const = Const(array.shape, dtype, origin, lambda: array)
        const._array = array
        return const

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def fixed(self) -> bool:
        """Whether it comes from the model file alone."""
        return not loose(self.origin)

    def array(self) -> np.ndarray:
        """The values, in the numpy type of `dtype`; InputError where they are absent."""
        if self._array is not None:
            return self._array
        if self.lacks:
            raise InputError(self.lacks)
        array = np.asarray(self._make(), dtype=NUMPY[self.dtype]).reshape(self.shape)
        if array.nbytes <= (_KEEP_OUTSIDE if self.outside else _KEEP_BYTES):
            self._array = array
        return array

    def origins(self) -> np.ndarray:
        """Label of each element."""
        if isinstance(self.origin, np.ndarray):
            return self.origin
        return np.full(self.shape, self.origin, object)


def fold(
    kind: str,
    attrs: dict[str, Any],
    inputs: Sequence[Const],
    shape: tuple[int, ...],
    dtype: str,
    shaped: bool,
) -> Const:
    """The Const that a primitive op makes of constants; `shaped`: its shape depends on the
    workload."""
    origin: Origin = FIXED
    size = int(np.prod(shape, dtype=np.int64))
    if not all(c.fixed for c in inputs):
        origin = MIXED
        if size <= 256 and dtype in ("int64", "int32"):
            found = _origin(kind, attrs, inputs, shape)
            whole = isinstance(found, np.ndarray) or found == MIXED
            origin = found if whole else array_of([found]).reshape(())
    elif shaped:
        origin = MIXED
    const = Const(
        shape,
        dtype,
        origin,
        lambda: evaluate(kind, attrs, [c.array() for c in inputs], shape, dtype),
        outside=any(c.outside for c in inputs),
        lacks=next((c.lacks for c in inputs if c.lacks), ""),
    )
    if not const.outside and size <= _EAGER and all(c.size <= _EAGER for c in inputs):
        const.array()
    return const


def _origin(
    kind: str, attrs: dict[str, Any], inputs: Sequence[Const], shape: tuple[int, ...]
) -> Origin:
    """Origin of each element of a folded integer tensor."""
    origins = [c.origins() for c in inputs]
    if kind == "gather":
        if loose(origins[1]) or attrs.get("batch", 0):
            return MIXED
        return np.take(origins[0], inputs[1].array(), axis=attrs["axis"])
    if kind in ("reshape", "transpose", "slice", "concat", "expand"):
        return evaluate(kind, attrs, origins, shape, "")
    if kind == "map" and len(attrs["steps"]) == 1:
        fn, args, _ = attrs["steps"][0]
        fixed = np.full((), FIXED, object)
        own: list[np.ndarray] = [origins[a[1]] if a[0] == "in" else fixed for a in args]
        given = [inputs[a[1]].array() if a[0] == "in" else np.asarray(a[1]) for a in args]
        marks = [np.broadcast_to(m, shape) for m in own]
        numbers = [np.broadcast_to(x, shape) for x in given]
        out = np.empty(shape, object)
        for at in np.ndindex(*shape):
            labels: list[Any] = [m[at] for m in marks]
            out[at] = map_label(fn, labels, [n[at] for n in numbers])
        return out
    return MIXED


def evaluate(
    kind: str,
    attrs: dict[str, Any],
    inputs: Sequence[np.ndarray],
    shape: tuple[int, ...],
    dtype: str,
) -> np.ndarray:
    """Numpy meaning of one primitive op on whole tensors."""
    if kind == "map":
        return np.broadcast_to(run_steps(attrs["steps"], inputs), shape)
    if kind == "matmul":
        a, b = widened(*inputs)
        if attrs.get("transpose_a"):
            a = np.swapaxes(a, -1, -2)
        if attrs.get("transpose_b"):
            b = np.swapaxes(b, -1, -2)
        return product(a, b).astype(NUMPY[dtype])
    x = inputs[0]
    if kind == "reduce":
        return _reduce(attrs["fn"], x, attrs["axes"], attrs["keepdims"]).astype(NUMPY[dtype])
    if kind == "transpose":
        turned: np.ndarray = x.transpose(attrs["perm"])
        return turned
    if kind == "reshape":
        return x.reshape(shape)
    if kind == "expand":
        return np.broadcast_to(x, shape)
    if kind == "slice":
        axis, start, step = attrs["axis"], attrs["start"], attrs["step"]
        index = start + step * np.arange(shape[axis])
        return np.asarray(np.take(x, index, axis=axis))
    if kind in ("concat", "append"):
        return np.concatenate(list(inputs), axis=attrs["axis"])
    if kind == "gather":
        axis, batch = attrs["axis"], attrs.get("batch", 0)
        return pick(x, np.where(inputs[1] < 0, inputs[1] + x.shape[axis], inputs[1]), axis, batch)
    if kind == "topk":
        axis = attrs["axis"]
        how = attrs["largest"], attrs["last"], attrs["result"]
        return select(x, axis, shape[axis], *how)
    if kind == "scan":
        return cumulate(x, attrs["axis"], attrs["exclusive"], attrs["reverse"])
    if kind == "scatter":
        batch = attrs["batch"]
        rows = range(x.shape[batch])
        return scattered(x, inputs[1], inputs[2], batch, attrs["reduction"], rows)
    if kind == "experts":
        return multiplied(x, inputs[1], inputs[2], attrs["transpose_b"], 0).astype(NUMPY[dtype])
    if kind == "unpack":
        return unpacked(x, attrs["bits"], attrs["signed"])
    raise AssertionError(kind)


def _wide(x: np.ndarray) -> np.ndarray:
    """Narrow floats are computed in fp32."""
    return x.astype(np.float32) if x.dtype in NARROW else x


def _reduce(fn: str, x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
    x = _wide(x)
    if fn in ("sum", "mean", "prod", "sumsquare"):  # whole numbers wrap in their own type
        if fn == "sumsquare":
            x = x * x
        plain = np.mean if fn == "mean" else np.prod if fn == "prod" else np.sum
        return np.asarray(plain(x, axis=axes, keepdims=keepdims, dtype=x.dtype))
    if fn == "l2":
        return np.asarray(np.sqrt(np.sum(x * x, axis=axes, keepdims=keepdims)))
    return np.asarray(getattr(np, fn)(x, axis=axes, keepdims=keepdims))


def run_steps(steps: Steps, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Evaluate a map's expression; every step is rounded to its dtype."""
    done: list[np.ndarray] = []
    wide = [_wide(x) for x in inputs]
    with np.errstate(all="ignore"):
        for fn, args, dtype in steps:
            values = [
                wide[a[1]] if a[0] == "in" else done[a[1]] if a[0] == "step" else a[1] for a in args
            ]
            result = np.asarray(FUNCTIONS[fn](*values))
            done.append(_wide(result.astype(NUMPY[dtype])))
    return done[-1].astype(NUMPY[steps[-1][2]])


def python_scalar(const: Const) -> int | float | bool:
    """A one-element constant as a Python number."""
    item = (
        const.array()
        .reshape(())
        .astype(np.float64 if NUMPY[const.dtype].kind not in "iub" else NUMPY[const.dtype])
    )
    number: int | float | bool = item.item()
    return number
