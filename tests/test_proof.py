"""One corrupted message, address or shard makes verification fail.

Where a corruption leaves the outputs right, that must be because they do not depend on it: which
bytes they depend on is worked out from the program alone.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from meshc import frontend, store
from meshc.emulator import Faults, emulate
from meshc.emulator.flight import Meetings
from meshc.errors import MeshcError
from meshc.ir.compiled import Compiled
from meshc.ir.layout import Layout, Split
from meshc.ir.program import Buffer, Compute, Program
from meshc.pipeline import step_program
from meshc.run import Tensors, open_model, random_inputs, verify_outputs, verify_phase

PROGRAMS: dict[str, dict[str, Any]] = {
    "decode": {"phase": "decode", "context": 5, "grid": (2, 2)},
    "prefill": {"phase": "prefill", "batch": 2, "prompt": 3, "context": 5, "grid": (2, 3)},
    "stages": {"phase": "decode", "context": 9, "strategy": "pipeline"},
}
MANY = 20  # sites of each kind that are tried without -m slow
EVERY = [
    pytest.param(name, every, marks=[pytest.mark.slow] if every else [])
    for every in (False, True)
    for name in PROGRAMS
]


@dataclass
class Suspect:
    """A program that can be corrupted and verified many times."""

    compiled: Compiled
    phase: str

    def __post_init__(self) -> None:
        done = self.compiled.phases[self.phase]
        model = open_model(done)
        self.program, self.bound = step_program(
            self.compiled, self.phase, model, context=done.workload.context
        )
        feeds = random_inputs(self.bound, 0)
        self.tensors = Tensors(feeds, self.bound.data)
        self.expected, self.oracle = frontend.run_oracle(model, {**self.bound.folded, **feeds})

    def passes(self, program: Program | None = None, faults: Faults | None = None) -> bool:
        """Whether it runs and its outputs are right."""
        program = program or self.program
        try:
            chip = self.compiled.chip
            trace = emulate(program, chip, tensors=self.tensors, faults=faults)
        except (MeshcError, ValueError, IndexError):
            return False
        assert trace.outputs is not None
        record = verify_outputs(self.bound.graph, trace.outputs, self.expected, self.oracle)
        return bool(record["passed"])

    def moved(self, name: str, offset: int) -> Program:
        """One buffer at another address."""
        return self.with_buffer(replace(self.program.buffers[name], offset=offset))

    def with_buffer(self, buffer: Buffer) -> Program:
        buffers = {**self.program.buffers, buffer.name: buffer}
        return replace(self.program, buffers=buffers)


@pytest.fixture(scope="module")
def suspects(build: Callable[..., Compiled]) -> Callable[[str], Suspect]:
    known: dict[str, Suspect] = {}

    def suspect(name: str) -> Suspect:
        if name not in known:
            options = PROGRAMS[name]
            known[name] = Suspect(build(**options), options["phase"])
        return known[name]

    return suspect


def some(sites: list[Any], every: bool, seed: int = 0, count: int = MANY) -> list[Any]:
    """All sites, or a fixed sample of them."""
    return sites if every else random.Random(seed).sample(sites, min(count, len(sites)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_honest_program_passes(name: str, suspects: Callable[[str], Suspect]) -> None:
    assert suspects(name).passes()


# -- messages ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "every"), EVERY)
def test_a_corrupted_message_is_seen(
    name: str,
    every: bool,
    suspects: Callable[[str], Suspect],
    anatomy: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suspect = suspects(name)
    keys: list[Any] = []
    ops: list[str] = []
    send = Meetings.send

    def spy(self: Any, core: Any, action: Any, size: int, time: float) -> Any:
        keys.append(action.key)
        ops.append(core.step.op)
        return send(self, core, action, size, time)

    with monkeypatch.context() as patch:
        patch.setattr(Meetings, "send", spy)
        assert suspect.passes()
    _, matter = anatomy.needed(anatomy.histories(suspect.program))
    assert len(keys) == len(set(keys)) >= 50
    assert len(matter) >= 0.9 * len(keys)
    maxima = anatomy.cancelling(suspect.program) | anatomy.spared(suspect.program)
    for number in some(list(range(len(keys))), every):
        unseen = suspect.passes(faults=Faults(corrupt_message=number))
        if unseen or keys[number] not in matter:
            assert unseen, number
            assert keys[number] not in matter or ops[number] in maxima, (number, keys[number])


def test_a_message_beyond_the_last_corrupts_nothing(suspects: Callable[[str], Suspect]) -> None:
    assert suspects("decode").passes(faults=Faults(corrupt_message=10**6))


# -- addresses ---------------------------------------------------------------------------------


def moves(program: Program) -> list[tuple[str, int]]:
    """(buffer, new address): a little off, and onto each other buffer."""
    found = []
    for b in program.buffers.values():
        near = [b.offset + d for d in (-8, 4, 8, 64) if b.offset + d >= 0]
        far = [o.offset for o in program.buffers.values() if o.offset != b.offset]
        found += [(b.name, address) for address in dict.fromkeys(near + far)]
    return found


@pytest.mark.parametrize(("name", "every"), EVERY)
def test_a_buffer_on_live_bytes_is_seen(
    name: str, every: bool, suspects: Callable[[str], Suspect], anatomy: Any
) -> None:
    """A moved buffer is seen exactly if some byte that matters is then read from another write."""
    suspect = suspects(name)
    before = anatomy.histories(suspect.program)
    matter, _ = anatomy.needed(before)
    seen = 0
    kinds = sorted({b.kind for b in suspect.program.buffers.values()})
    assert {"weight", "kv", "input", "constant", "activation", "scratch"} >= set(kinds)
    for kind in kinds:
        sites = [m for m in moves(suspect.program) if suspect.program.buffers[m[0]].kind == kind]
        for buffer, address in some(sites, False, 1, 5 * MANY if every else 3):
            program = suspect.moved(buffer, address)
            after = anatomy.histories(program)
            changed = {
                before[core].reads[r].what
                for core, r in matter
                if before[core].reads[r].checksum != after[core].reads[r].checksum
            }
            unseen = suspect.passes(program)
            if changed - {"gather", "shift"}:
                assert not unseen, (buffer, address, changed)
                seen += 1
            elif not changed and unseen is False:
                # Only what the emulator refuses: two messages awaited in the same bytes.
                with pytest.raises(MeshcError, match="to the same bytes of its SRAM"):
                    emulate(program, suspect.compiled.chip, tensors=suspect.tensors)
    assert seen >= len(kinds)


# -- shards ------------------------------------------------------------------------------------


def other_splits(split: Split) -> Iterator[Split]:
    """The same division with another block, or over the axes in another order."""
    if not split.axes:
        return
    if split.cyclic:
        yield replace(split, cyclic=False, block=1)
        return
    yield replace(split, block=split.block + 1)
    if split.block > 1:
        yield replace(split, block=split.block - 1)
    if len(split.axes) > 1:
        yield replace(split, axes=split.axes[::-1])


def other_layouts(layout: Layout, shape: tuple[int, ...], lanes: tuple[int, int]) -> list[Layout]:
    """Layouts with one split changed, of those that give some lane another shard."""
    found = []
    for d, split in enumerate(layout.splits):
        for changed in other_splits(split):
            other = Layout((*layout.splits[:d], changed, *layout.splits[d + 1 :]))
            grid = [(r, c) for r in range(lanes[0]) for c in range(lanes[1])]
            if any(
                layout.shard(shape, *at, *lanes) != other.shard(shape, *at, *lanes) for at in grid
            ):
                found.append(other)
    return found


def lanes_of(program: Program) -> tuple[int, int]:
    region = next(iter(program.regions.values()))
    return region.rows, region.cols


@pytest.mark.parametrize(("name", "every"), EVERY)
def test_a_buffer_in_another_layout_is_seen(
    name: str, every: bool, suspects: Callable[[str], Suspect]
) -> None:
    """Of every buffer but scratch, whose shard is that of the buffer it is reduced into."""
    suspect = suspects(name)
    sites = [
        replace(b, layout=layout)
        for b in suspect.program.buffers.values()
        if b.kind != "scratch"
        for layout in other_layouts(b.layout, b.shape, lanes_of(suspect.program))
    ]
    assert len(sites) >= MANY
    for buffer in some(sites, every, 2):
        assert not suspect.passes(suspect.with_buffer(buffer)), (buffer.name, str(buffer.layout))


@pytest.mark.parametrize(("name", "every"), EVERY)
def test_a_kernel_that_reads_another_shard_is_seen(
    name: str, every: bool, suspects: Callable[[str], Suspect], anatomy: Any
) -> None:
    """But for the maximum of a softmax, which cancels out."""
    suspect = suspects(name)
    program = suspect.program
    maxima = anatomy.cancelling(program)
    sites = []
    for body, instructions in program.bodies.items():
        for place, i in enumerate(instructions):
            if not isinstance(i, Compute):
                continue
            for slot, (tensor, layout) in enumerate(
                zip(program.ops[i.op].inputs, i.layouts, strict=True)
            ):
                if maxima & {i.op, tensor}:
                    continue
                shape = program.tensor_shapes[tensor]
                for other in other_layouts(layout, shape, lanes_of(program)):
                    sites.append((body, place, slot, other))
    assert len(sites) >= MANY
    for body, place, slot, layout in some(sites, every, 3):
        instructions = list(program.bodies[body])
        i = instructions[place]
        layouts = (*i.layouts[:slot], layout, *i.layouts[slot + 1 :])
        instructions[place] = replace(i, layouts=layouts)
        bodies = {**program.bodies, body: tuple(instructions)}
        assert not suspect.passes(replace(program, bodies=bodies)), (i.name, slot, str(layout))


@pytest.mark.parametrize(("name", "every"), EVERY)
def test_a_wrong_load_is_seen(name: str, every: bool, suspects: Callable[[str], Suspect]) -> None:
    """An entry that is missing, goes to another layer, or holds another tensor's data."""
    suspect = suspects(name)
    program = suspect.program
    load = program.load
    data = {entry[0]: suspect.tensors[entry[0]] for entry in load}
    sites: list[tuple[Any, ...]] = []
    for k, (tensor, buffer, region, layer) in enumerate(load):
        assert data[tensor].size
        sites.append((*load[:k], *load[k + 1 :]))
        if program.buffers[buffer].stride:
            sites.append((*load[:k], (tensor, buffer, region, layer + 1), *load[k + 1 :]))
        for other, array in data.items():
            same = array.shape == data[tensor].shape and array.dtype == data[tensor].dtype
            if same and not (array == data[tensor]).all():
                sites.append((*load[:k], (other, buffer, region, layer), *load[k + 1 :]))
    assert len(sites) >= MANY
    for wrong in some(sites, every, 4):
        assert not suspect.passes(replace(program, load=tuple(wrong))), set(wrong) ^ set(load)


@pytest.mark.parametrize(
    "name", ["decode", *(pytest.param(n, marks=pytest.mark.slow) for n in ("prefill", "stages"))]
)
def test_a_missing_instruction_is_seen(
    name: str, suspects: Callable[[str], Suspect], anatomy: Any
) -> None:
    suspect = suspects(name)
    program = suspect.program
    maxima = anatomy.cancelling(program)
    for body, instructions in program.bodies.items():
        for place, i in enumerate(instructions):
            bodies = {**program.bodies, body: (*instructions[:place], *instructions[place + 1 :])}
            if i.op not in maxima:
                assert not suspect.passes(replace(program, bodies=bodies)), i.name


def test_swapped_outputs_are_seen(suspects: Callable[[str], Suspect]) -> None:
    suspect = suspects("decode")
    by_name = {o[0]: o for o in suspect.program.outputs}
    keys = [n for n in by_name if n.endswith("key")]
    assert len(keys) == 2
    swapped = {keys[0]: keys[1], keys[1]: keys[0]}
    outputs = tuple((swapped.get(o[0], o[0]), *o[1:]) for o in suspect.program.outputs)
    assert not suspect.passes(replace(suspect.program, outputs=outputs))


def test_a_skipped_layer_is_seen(suspects: Callable[[str], Suspect]) -> None:
    suspect = suspects("decode")
    schedule = tuple(
        replace(e, last=e.last - 1) if e.last - e.first > 1 else e  # type: ignore[union-attr]
        for e in suspect.program.schedule
    )
    assert schedule != suspect.program.schedule
    assert not suspect.passes(replace(suspect.program, schedule=schedule))


def test_verify_phase_reports_the_failure(build: Callable[..., Compiled]) -> None:
    compiled = build(**PROGRAMS["decode"])
    result = verify_phase(compiled, "decode", faults=Faults(corrupt_message=3))
    assert result.verify is not None
    assert not result.verify["passed"]
    assert result.verify["oracle"] == "onnxruntime"
    worst = [o["max_rel_error"] for o in result.verify["outputs"]]
    assert any(e is None or e > result.verify["tolerance"] for e in worst)


# -- through the command line ------------------------------------------------------------------

FAILURE = re.compile(
    r"Verification failed: \d of 5 outputs disagree with onnxruntime, first '[\w.]+' of the "
    r"decode: (it is off by [\d.e+-]+ of the largest magnitude where 0\.0001 is allowed|[\d,]+ of "
    r"its [\d,]+ elements are infinite or NaN on one side only)\."
)


def edited(out: Path, change: Callable[[Any], None]) -> Path:
    """Change the program in OUT/compiled.json."""
    path = out / store.COMPILED
    value = json.loads(path.read_text())
    change(value["phases"]["decode"]["program"])
    path.write_text(json.dumps(value))
    return out


def wrong_offset(program: Any) -> None:
    weights = [b for b in program["buffers"].values() if b["kind"] == "weight" and b["stride"]]
    weights[0]["offset"] = weights[1]["offset"]


def wrong_cache(program: Any) -> None:
    caches = [b for b in program["buffers"].values() if b["kind"] == "kv"]
    caches[0]["offset"] = caches[1]["offset"]


def wrong_load(program: Any) -> None:
    layers = [e for e in program["load"] if "past_key_values" in e[0] and "key" in e[0]]
    layers[0][0], layers[1][0] = layers[1][0], layers[0][0]


def wrong_output(program: Any) -> None:
    names = [e for e in program["outputs"] if "present" in e[0] and "value" in e[0]]
    names[0][0], names[1][0] = names[1][0], names[0][0]


def wrong_combine(program: Any) -> None:
    reduces = [i for b in program["bodies"].values() for i in b if i["@"] == "Reduce"]
    next(r for r in reduces if r["combine"] == "sum")["combine"] = "max"


@pytest.mark.parametrize(
    "change", [wrong_offset, wrong_cache, wrong_load, wrong_output, wrong_combine]
)
def test_an_edited_program_is_exit_4_and_one_sentence(
    change: Callable[[Any], None], meshc: Callable[..., Any], folder: Callable[..., Path]
) -> None:
    out = edited(folder(**PROGRAMS["decode"]), change)
    result = meshc("run", out, "--verify")
    assert result.code == 4, result.err
    assert FAILURE.fullmatch(result.sentence), result.err
    report = json.loads((out / store.REPORT).read_text())
    assert report["verify"]["passed"] is False


def test_a_failed_verification_still_prints_one_json_object(
    meshc: Callable[..., Any], folder: Callable[..., Path]
) -> None:
    out = edited(folder(**PROGRAMS["decode"]), wrong_load)
    result = meshc("run", out, "--verify", "--json")
    assert result.code == 4
    assert FAILURE.fullmatch(result.sentence), result.err
    assert json.loads(result.out)["verify"]["passed"] is False


def lost_block(program: Any) -> None:
    for b in program["buffers"].values():
        if b["kind"] == "weight" and b["layout"]["splits"][-1]["block"] > 2:
            b["layout"]["splits"][-1]["block"] -= 1
            return


def lost_entry(program: Any) -> None:
    del program["load"][3]


def lost_instruction(program: Any) -> None:
    body = program["bodies"]["body"]
    del body[next(n for n, i in enumerate(body) if i["@"] == "Transfer")]


def below_zero(program: Any) -> None:
    next(b for b in program["buffers"].values() if b["kind"] == "kv")["offset"] = -8


def beyond_sram(program: Any) -> None:
    next(b for b in program["buffers"].values() if b["kind"] == "kv")["offset"] = 1 << 30


def swapped_axes(program: Any) -> None:
    for b in program["buffers"].values():
        if b["kind"] == "weight" and b["layout"]["splits"][-1]["axes"] == ["row", "col"]:
            b["layout"]["splits"][-1]["axes"] = ["col", "row"]
            return


@pytest.mark.parametrize(
    "change", [lost_block, lost_entry, lost_instruction, below_zero, beyond_sram, swapped_axes]
)
def test_an_edited_program_that_cannot_run_is_exit_4_too(
    change: Callable[[Any], None], meshc: Callable[..., Any], folder: Callable[..., Path]
) -> None:
    """The emulator stops, or the result is wrong: verification fails, in one sentence."""
    out = edited(folder(**PROGRAMS["decode"]), change)
    result = meshc("run", out, "--verify")
    assert result.code == 4, result.err
    assert result.sentence.startswith("Verification failed: ")
