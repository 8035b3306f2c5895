"""Greedy generation on the emulated chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meshc import frontend
from meshc.emulator import DEFAULT_ENGINE, emulate
from meshc.errors import InputError
from meshc.ir.compiled import Compiled
from meshc.ir.dtypes import NUMPY
from meshc.ir.program import Program
from meshc.pipeline import step_program
from meshc.run import Tensors, index_limits, open_model, read_arrays


@dataclass(frozen=True)
class Generated:
    """A generated token, and the time of the step that made it."""

    token: int
    cycles: float
    phase: str


def generate(
    compiled: Compiled,
    ids: list[int],
    count: int,
    *,
    engine: str = DEFAULT_ENGINE,
    inputs: Mapping[str, np.ndarray] | None = None,
    say: Callable[[Generated], None] | None = None,
) -> list[Generated]:
    """Prefill `ids`, then decode greedily, on the emulated chip.

    The cores' SRAM lasts from step to step: weights are loaded once and the cache grows in place.
    A model compiled without prefill is given the prompt token by token.
    inputs: what the model needs besides the ids, an encoder's hidden states for example.
    """
    phases = compiled.phases
    _check_generate(compiled, ids, count)
    state: Any = None
    handed: dict[str, np.ndarray] = {}  # inputs that the step before put out
    given = dict(inputs or {})
    context = seen = 0  # entries in the caches, tokens so far
    token = -1
    results: list[Generated] = []
    queue: list[tuple[str, list[int]]] = []
    if "prefill" in phases:
        queue.append(("prefill", ids))
    else:
        queue += [("decode", [i]) for i in ids]
    models = {p: open_model(done) for p, done in phases.items()}
    waited = 0.0
    while queue:
        phase, fed = queue.pop(0)
        program, bound = step_program(
            compiled, phase, models[phase], context=context, prompt=len(fed)
        )
        step = replace(phases[phase].workload, context=context, prompt=len(fed))
        bound.data.require()
        known = {p.name for m in models.values() for p in m.inputs}
        _check_given(given, known)
        parts = bound.parts(given)
        feeds = _step_feeds(bound, models[phase], fed, parts, handed, first=state is None)
        trace = emulate(
            program,
            compiled.chip,
            tensors=Tensors(feeds, bound.data),
            engine=engine,
            state=state,
            keep_state=True,
        )
        state = trace.state
        assert trace.outputs is not None
        handed = _handed(bound, feeds, trace.outputs)
        seen += len(fed)
        context = frontend.entries_after(bound.kept, step)
        _check_counted(models[phase], context, seen, last=not queue and len(results) + 1 == count)
        waited += trace.cycles
        if queue:
            continue
        logits = trace.outputs[logits_name(bound)]
        token = int(np.argmax(logits.astype(np.float32).reshape(-1, logits.shape[-1])[-1]))
        results.append(Generated(token, waited, phase))
        waited = 0.0
        if say:
            say(results[-1])
        if len(results) < count:
            queue.append(("decode", [token]))
    return results


def read_inputs(path: Path) -> dict[str, np.ndarray]:
    """Read `generate --inputs`."""
    return read_arrays(path)


def _handed(
    bound: Any, feeds: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What the next step's inputs take from this step: an output as it is, or joined to the cache
    that it continues."""
    found: dict[str, np.ndarray] = {}
    for name, out in bound.carried.items():
        cache = frontend.appended_to(bound.kept, name)
        found[name] = outputs[out]
        if cache is not None:
            found[name] = np.concatenate([feeds[name], outputs[out]], axis=cache.axis)
    return found


def _check_counted(model: Any, context: int, seen: int, *, last: bool) -> None:
    """InputError where a step would need a mask or positions of tokens that the caches no longer
    hold, or hold twice."""
    counting = frontend.counting(model.roles.roles)
    if last or context == seen or not counting:
        return
    listed = ", ".join(f"'{n}'" for n in counting)
    raise InputError(
        f"After {seen} tokens the caches of '{model.path.name}' keep {context} entries, and what "
        f"{listed} must hold then is not known to meshc; ask for fewer tokens, or export the "
        "model with caches that keep all tokens."
    )


def _check_given(given: Mapping[str, np.ndarray], known: set[str]) -> None:
    for name in given:
        if name not in known:
            listed = ", ".join(f"'{n}'" for n in sorted(known))
            raise InputError(f"The model has no input '{name}' to give; it has {listed}.")


def _step_feeds(
    bound: Any,
    model: Any,
    ids: list[int],
    given: Mapping[str, np.ndarray],
    handed: Mapping[str, np.ndarray],
    *,
    first: bool,
) -> dict[str, np.ndarray]:
    """Every input of a step: the ids, what was given, what the step before handed on, zeros for
    token types and for caches that are still empty (the others lie in the cores' SRAM)."""
    roles = model.roles
    feeds: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in bound.inputs.items():
        role = roles.roles.get(name.partition("[")[0], "past")
        if name == roles.tokens and not dtype.startswith(("fp", "bf")):
            array = np.asarray(ids).reshape(shape)
        elif name in given and not (role == "past" and not first):
            array = given[name]
        elif name in handed:
            array = handed[name]
        elif name in bound.usual:
            array = bound.usual[name]
        elif role == "types" or (role == "past" and first and not _of_encoder(roles, name)):
            array = np.zeros(shape)
        else:
            raise InputError(
                f"Input '{name}' of shape {list(shape)} is not the token ids, and nothing says "
                "what it holds; give it in an .npz file with --inputs."
            )
        feeds[name] = _fitting(name, array, shape, dtype)
    for past, _, shape, dtype in bound.caches:
        if past is None:
            continue
        if past in given and first:
            feeds[past] = _fitting(past, given[past], shape, dtype)
            continue
        if first and _of_encoder(roles, past):
            raise InputError(
                f"Cache '{past}' of shape {list(shape)} holds the encoder's keys or values, which "
                "this graph does not compute; give it in an .npz file with --inputs."
            )
        feeds[past] = np.zeros(shape, NUMPY[dtype])
    return feeds


def _of_encoder(roles: Any, name: str) -> bool:
    past = roles.pasts.get(name.partition("[")[0])
    return past is not None and past.style == "cross"


def _fitting(name: str, array: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if array.shape != shape:
        raise InputError(
            f"Input '{name}' has shape {list(array.shape)} where this step needs {list(shape)}; "
            "give that shape, or compile for another with --dim."
        )
    return array.astype(NUMPY[dtype])


def logits_name(bound: Any) -> str:
    """The output that scores the vocabulary: by name, else the first that is no cache."""
    caches = {present for _, present, _, _ in bound.caches}
    names = [n for n, _, _ in bound.graph.outputs if n not in caches]
    for name in names:
        if "logits" in name:
            return str(name)
    if not names:
        raise InputError("The model has no output but its caches, so nothing can be generated.")
    return str(names[0])


def _cache_places(program: Program) -> frozenset[tuple[Any, ...]]:
    """Where and how the caches lie in SRAM."""
    return frozenset(
        (b.offset, b.stride, b.dtype, b.layout, b.capacity)
        for b in program.buffers.values()
        if b.kind == "kv"
    )


def _check_generate(compiled: Compiled, ids: list[int], count: int) -> None:
    phases = compiled.phases
    main = phases.get("decode") or phases["prefill"]
    w = main.workload
    if count < 1:
        raise InputError(f"--tokens {count} is below 1; ask for at least one token.")
    if not ids:
        raise InputError("--ids is empty; give at least one token id.")
    if w.batch != 1:
        raise InputError(
            f"meshc generate runs one sequence, and the model was compiled for batch {w.batch}; "
            "compile with --batch 1."
        )
    if "decode" not in phases and count > 1:
        raise InputError(
            "Only the prefill was compiled, which gives one token; compile with --phase both, or "
            "with --decode-model for an export in two files."
        )
    if "prefill" in phases and phases["prefill"].workload.context:
        raise InputError(
            f"The prefill was compiled to continue {phases['prefill'].workload.context} cached "
            "tokens; compile it with --context 0 to generate."
        )
    if len({_cache_places(p.program) for p in phases.values()}) > 1:
        raise InputError(
            "The prefill and the decode graph keep their caches in different places, so a decode "
            "cannot go on from a prefill; export both in one graph, or compile with --phase decode."
        )
    limit = min(p.workload.max_context for p in phases.values())
    if main.workload.kept is not None:
        counting = frontend.counting(open_model(main).roles.roles)
        if counting and len(ids) + count - 1 > main.workload.kept:
            listed = ", ".join(f"'{n}'" for n in counting)
            raise InputError(
                f"The model's caches keep {main.workload.kept} entries of the "
                f"{len(ids) + count - 1} tokens that {len(ids)} prompt tokens and {count} new ones "
                f"make, and what {listed} must hold then is not known to meshc; ask for at most "
                f"{main.workload.kept} tokens in all, or export the model with caches that keep "
                "all tokens."
            )
    elif len(ids) + count - 1 > limit:
        raise InputError(
            f"{len(ids)} prompt tokens and {count} new ones need {len(ids) + count - 1} cached "
            f"tokens where SRAM is reserved for {limit}; compile with --max-context "
            f"{len(ids) + count - 1} or ask for fewer."
        )
    graph = next((p.graph for p in phases.values() if p.graph is not None), None)
    if graph is None:
        first = next(iter(phases))
        _, bound = step_program(
            compiled, first, open_model(phases[first]), context=phases[first].workload.context
        )
        graph = bound.graph
    for size in index_limits(graph).values():
        for i in ids:
            if not 0 <= i < size:
                raise InputError(f"Token id {i} is outside the vocabulary of 0 to {size - 1}.")
