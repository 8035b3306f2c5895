"""From flags to workloads: defaults, what the graph fixes, and what contradicts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshc.errors import InputError
from meshc.frontend.dims import evaluate, names_of
from meshc.frontend.labels import BATCH, BUFFER, FIXED, NEW, PAST, TOTAL, Label
from meshc.frontend.reader import Model, Port
from meshc.frontend.roles import Kind
from meshc.ir.dtypes import NUMPY
from meshc.ir.workload import Phase, Workload

DEFAULT_PROMPT = 16
DEFAULT_GROWTH = 64  # tokens that "both" leaves room for behind the prompt
LABELS: dict[Kind, Label] = {
    "batch": BATCH, "new": NEW, "past": PAST, "total": TOTAL, "buffer": BUFFER,
}  # fmt: skip


def workloads(
    model: Model,
    *,
    phase: str | None = None,
    batch: int | None = None,
    prompt: int | None = None,
    context: int | None = None,
    max_context: int | None = None,
    dims: Mapping[str, int] | None = None,
    decode_model: Model | None = None,
) -> dict[Phase, tuple[Model, Workload]]:
    """The workload of each phase to compile, with the model that computes it.

    Unset values get the contract's defaults within what the graphs fix; a given value that
    contradicts a graph is an InputError.
    """
    for name, value, least in (
        ("batch", batch, 1), ("prompt", prompt, 1), ("context", context, 0),
        ("max-context", max_context, 1),
    ):  # fmt: skip
        if value is not None and value < least:
            raise InputError(f"--{name} {value} is below {least}; give at least {least}.")
    wanted = phase or ("both" if decode_model is not None else model.default_phase)
    if wanted not in ("prefill", "decode", "both"):
        raise InputError(f"--phase {wanted} is unknown; give prefill, decode or both.")
    phases: list[Phase] = ["prefill", "decode"] if wanted == "both" else [wanted]  # type: ignore[list-item]
    models = {
        p: decode_model if p == "decode" and decode_model is not None else model for p in phases
    }
    for p, m in models.items():
        _check_phase(m, p, wanted)
    limit = min((m.roles.limit for m in models.values() if m.roles.limit), default=None)
    batch = _agree(models, "batch", "--batch", batch, 1)
    new, old = _lengths(models, prompt, context, limit)
    for p, m in models.items():
        if p == "prefill" and old[p] > 0 and not m.has_past:
            raise InputError(
                f"--context {old[p]} needs a graph with a past input, which '{m.path.name}' does "
                "not have; give --context 0 or a graph with a past."
            )
    ends = {p: old[p] + new[p] for p in phases}
    for p, end in ends.items():
        if limit is not None and end > limit:
            raise InputError(
                f"A {p} of {new[p]} new tokens after {old[p]} cached ones needs {end} positions, "
                f"more than the {limit} that the position table of '{models[p].path.name}' has; "
                "lower --prompt or --context."
            )
    room = _room(models, max_context, ends, new, wanted, limit)
    found: dict[Phase, tuple[Model, Workload]] = {}
    for p, m in models.items():
        workload = Workload(p, batch, new[p], old[p], room)
        workload.verify()
        found[p] = (m, workload)
    _check_dims(found, dims or {})
    usual = {
        **_usual_dims([m for m in models.values()], max(new.values()), max(old.values()), room),
        **(dims or {}),
    }
    pairs = tuple(sorted(usual.items()))
    return {p: (m, replace(w, dims=pairs)) for p, (m, w) in found.items()}


def _usual_dims(models: list[Model], new: int, old: int, room: int) -> dict[str, int]:
    """Defaults of the symbols that the workload does not determine: an encoder has as many tokens
    as a prompt, a window holds what it must or what is cached."""
    found: dict[str, int] = {}
    for model in models:
        roles = model.roles
        for dim in roles.apart:
            windows = [
                past.window
                for name, past in roles.pasts.items()
                if past.style == "window" and str(roles.ports[name].dims[past.axis or 0]) == dim
            ]
            if windows:
                found[dim] = max(*windows, old, 1)
            elif names_of(dim) == (dim,) and not dim.isdecimal():
                found.setdefault(dim, new if new > 1 else max(old, 1))
    return found


def _check_phase(model: Model, phase: str, wanted: str) -> None:
    if phase in model.phases:
        return
    if phase == "decode":
        reason, remedy = "it has no past input", "give --phase prefill, or the decode graph"
        if model.has_past:
            tokens = model.roles.frozen("new")
            reason = f"its token axis is frozen at {tokens}"
            remedy = "give --phase prefill, or export it with a free token axis"
        if wanted == "both":
            remedy = "give --phase prefill, or the decode graph with --decode-model"
    else:
        reason = "its token axis is frozen at 1"
        remedy = "give --phase decode, or export it with a free token axis"
    raise InputError(f"Model '{model.path.name}' cannot {phase}: {reason}; {remedy}.")


def _agree(
    models: Mapping[Phase, Model], kind: Kind, flag: str, given: int | None, default: int
) -> int:
    """One value for all phases: given, fixed by a graph, or the default."""
    value = given
    for model in models.values():
        fixed = model.roles.frozen(kind)
        if fixed is None:
            continue
        if value is not None and value != fixed:
            raise InputError(
                f"{flag} {value} contradicts '{model.path.name}', whose graph is frozen to "
                f"{fixed}; give {flag} {fixed} or export it with a free dimension."
            )
        value = fixed
    return default if value is None else value


def _lengths(
    models: Mapping[Phase, Model], prompt: int | None, context: int | None, limit: int | None
) -> tuple[dict[Phase, int], dict[Phase, int]]:
    """New and cached tokens of each phase."""
    new: dict[Phase, int] = {}
    old: dict[Phase, int] = {}
    usual = DEFAULT_PROMPT
    if limit is not None:
        usual = max(min(usual, limit - (1 if "decode" in models else 0)), 1)
    if "prefill" in models:
        model = models["prefill"]
        start = context if context is not None and "decode" not in models else None
        fixed_past = _fixed_past(model)
        if fixed_past is not None and start is not None and start != fixed_past:
            _contradict(model, "--context", start, fixed_past)
        old["prefill"] = start if start is not None else fixed_past or 0
        new["prefill"] = _agree(
            {"prefill": model}, "new", "--prompt", prompt,
            max(min(usual, (limit or usual + old["prefill"]) - old["prefill"]), 1),
        )  # fmt: skip
    if "decode" in models:
        model = models["decode"]
        fixed_past = _fixed_past(model)
        if context is not None and fixed_past is not None and context != fixed_past:
            _contradict(model, "--context", context, fixed_past)
        if "prefill" in models:
            length = new["prefill"]
        else:
            length = prompt if prompt is not None and prompt > 1 else usual
        if context is not None:
            length = context
        elif fixed_past is not None:
            length = fixed_past
        buffer = model.roles.frozen("buffer")
        if buffer is not None and context is None:
            length = min(length, buffer - 1)
        new["decode"], old["decode"] = 1, length
    return new, old


def _fixed_past(model: Model) -> int | None:
    past = model.roles.frozen("past")
    if past is None and model.has_past:
        total, new = model.roles.frozen("total"), model.roles.frozen("new")
        if total is not None and new is not None:
            return total - new
    return past


def _contradict(model: Model, flag: str, given: int, fixed: int) -> None:
    raise InputError(
        f"{flag} {given} contradicts '{model.path.name}', whose graph is frozen to {fixed}; give "
        f"{flag} {fixed} or export it with a free dimension."
    )


def _room(
    models: Mapping[Phase, Model],
    given: int | None,
    ends: Mapping[Phase, int],
    new: Mapping[Phase, int],
    wanted: str,
    limit: int | None,
) -> int:
    """The longest cache that memory is reserved for, one for all phases."""
    buffer = next((n for m in models.values() if (n := m.roles.frozen("buffer"))), None)
    if buffer is not None:
        if given is not None and given != buffer:
            raise InputError(
                f"--max-context {given} contradicts the cache of {buffer} tokens that the graph is "
                f"frozen to; give --max-context {buffer}."
            )
        return buffer
    if given is not None:
        if limit is not None and given > limit:
            name = next(m.path.name for m in models.values() if m.roles.limit == limit)
            raise InputError(
                f"--max-context {given} exceeds the {limit} positions of the table in '{name}'; "
                f"give at most {limit}."
            )
        return given
    least = max(ends.values())
    if wanted != "both":
        return least
    usual = new["prefill"] + DEFAULT_GROWTH
    return max(least, usual if limit is None else min(usual, limit))


@dataclass(frozen=True)
class Sizes:
    """Every quantity that dimensions stand for."""

    batch: int
    new: int
    past: int
    total: int
    buffer: int

    @staticmethod
    def of(workload: Workload) -> Sizes:
        return Sizes(
            workload.batch, workload.prompt, workload.context,
            workload.context + workload.prompt, workload.max_context,
        )  # fmt: skip

    def get(self, kind: Kind) -> int:
        return int(getattr(self, kind))


def _check_dims(found: Mapping[Phase, tuple[Model, Workload]], dims: Mapping[str, int]) -> None:
    """--dim must name a dimension of some graph and agree with what is bound."""
    for name, value in dims.items():
        known: set[str] = set()
        hit = False
        for model, workload in found.values():
            symbols = model.roles.symbols()
            known |= set(symbols)
            if name not in symbols:
                continue
            hit = True
            kind = symbols[name]
            bound = None if kind is None else Sizes.of(workload).get(kind)
            if bound is not None and bound != value:
                raise InputError(
                    f"--dim {name}={value} contradicts the {workload.phase} workload, which binds "
                    f"'{name}' to {bound}; leave it out or change --batch, --prompt or --context."
                )
        if not hit:
            listed = ", ".join(sorted(known)) or "none"
            raise InputError(
                f"--dim {name}={value} names no dimension of the graph; known names: {listed}."
            )


def bound_shape(
    model: Model, port: Port, workload: Workload, unknown: list[str]
) -> tuple[tuple[int, ...], tuple[Label, ...]]:
    """Shape and labels of an input; -1 and an entry in `unknown` where a symbol is unbound.

    Numbers that the graph fixes and the workload contradicts raise InputError.
    """
    sizes, given = Sizes.of(workload), dict(workload.dims)
    symbols = model.roles.symbols()

    def size_of(name: str) -> tuple[int, Label] | None:
        known = symbols.get(name)
        if known is not None:
            return sizes.get(known), LABELS[known]
        return (given[name], FIXED) if name in given else None

    shape: list[int] = []
    labels: list[Label] = []
    for kind, dim in zip(model.roles.kinds(port.name), port.dims, strict=True):
        if isinstance(dim, str) and kind is None:
            kind = symbols.get(dim)
        label = FIXED if kind is None or isinstance(dim, int) else LABELS[kind]
        if kind == "total" and not model.has_past and label != FIXED:
            label = NEW
        if isinstance(dim, int):
            if kind is not None and sizes.get(kind) != dim:
                raise InputError(
                    f"Input '{port.name}' of '{model.path.name}' is frozen to {list(port.dims)}, "
                    f"but the {workload.phase} workload has {sizes.get(kind)} for its {kind} size "
                    f"{dim}; give the batch, prompt and context that it was exported with."
                )
            shape.append(dim)
        elif kind is not None:
            shape.append(sizes.get(kind))
        elif dim in given:
            shape.append(given[dim])
        elif (found := evaluate(dim, size_of)) is not None:
            shape.append(found[0])
            label = found[1]
        else:
            shape.append(-1)
            unknown.append(dim or f"{port.name}[{len(shape) - 1}]")
        labels.append(label)
    return tuple(shape), tuple(labels)


def folded_inputs(model: Model, workload: Workload) -> dict[str, np.ndarray]:
    """Values of the inputs that the workload determines, in their own types."""
    sizes = Sizes.of(workload)
    found: dict[str, np.ndarray] = {}
    for port in model.inputs:
        role = model.roles.roles[port.name]
        if port.dtype not in NUMPY or role in ("tokens", "past", "other", "encoder", "types"):
            continue
        shape, _ = bound_shape(model, port, workload, [])
        shape = tuple(1 if n < 0 else n for n in shape)
        if role in ("mask", "encoder_mask"):
            array = _mask(port, shape, sizes, "buffer" in model.roles.kinds(port.name))
        elif role == "positions":
            array = np.broadcast_to(np.arange(sizes.past, sizes.total), shape)
        else:
            number: Any = {
                "flag": sizes.past > 0, "context": sizes.past, "total": sizes.total,
                "last": sizes.total - 1,
            }[role]  # fmt: skip
            array = np.full(shape, number)
        found[port.name] = np.array(array, dtype=NUMPY[port.dtype], order="C")
    return found


def _mask(port: Port, shape: tuple[int, ...], sizes: Sizes, static: bool) -> np.ndarray:
    """Nothing is padding: ones, or what each new token may see where the rank asks for that."""
    if len(shape) == 2:
        seen = np.ones(shape, bool)
        if static:
            seen[:, sizes.total :] = False
        return seen
    rows = np.arange(shape[-2])[:, None] + sizes.past
    seen = np.broadcast_to(np.arange(shape[-1])[None, :] <= rows, shape)
    if port.dtype in ("fp32", "fp16", "bf16"):
        lowest = -65504.0 if port.dtype == "fp16" else float(np.finfo(np.float32).min)
        return np.where(seen, 0.0, lowest)
    return seen
