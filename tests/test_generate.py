"""Greedy generation on the emulated chip gives the tokens that ONNX Runtime gives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from meshc import frontend
from meshc.errors import InputError
from meshc.generation import generate
from meshc.ir.compiled import Compiled

EXAMPLE = "llama-optimum-with_past"
PAIR = "llama-hf-op20-pair"
DECODE = "llama-hf-op20-decode"
NEW = 12
LENGTHS = (1, 2, 5, 16)
QUICK = {
    (EXAMPLE, 1), (PAIR, 16), (DECODE, 2), ("llama-mobius-std", 5),
    ("llama-genai-fp32-cpu", 2), ("llama-ptscript-op17-decode", 16),
}  # fmt: skip
MODELS = (
    EXAMPLE, PAIR, DECODE, "llama-mobius-std", "llama-genai-fp32-cpu",
    "llama-ptscript-op17-decode", "llama-ptdynamo-op18-decode", "llama-ptdynamo-op23-decode",
)  # fmt: skip


class Loop:
    """Greedy decoding with ONNX Runtime; feeds the caches back in."""

    def __init__(self, prefill: Path, decode: Path) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        self.steps = [
            (frontend.load_model(p), ort.InferenceSession(str(p), options))
            for p in (prefill, decode)
        ]

    def ids(self, prompt: list[int], count: int) -> list[int]:
        found: list[int] = []
        caches: dict[Any, Any] = {}
        context = 0
        # A graph whose token axis is frozen takes the prompt token by token.
        lone = self.steps[0][0].roles.frozen("new") == 1
        queue = [[i] for i in prompt] if lone else [prompt]
        while len(found) < count:
            fed = queue.pop(0) if queue else [found[-1]]
            model, session = self.steps[0 if context == 0 else 1]
            logits, caches = self._step(model, session, fed, context, caches)
            context += len(fed)
            if not queue:
                found.append(int(np.argmax(logits[0, -1].astype(np.float32))))
        return found

    def _step(
        self, model: Any, session: Any, fed: list[int], context: int, caches: dict[Any, Any]
    ) -> tuple[Any, dict[Any, Any]]:
        feeds: dict[str, Any] = {}
        for port in model.inputs:
            role = model.roles.roles[port.name]
            if role == "tokens":
                feeds[port.name] = np.array([fed], np.int64)
            elif role == "mask":
                feeds[port.name] = np.ones((1, context + len(fed)), np.int64)
            elif role == "positions":
                feeds[port.name] = np.arange(context, context + len(fed))[None]
        for name in model.roles.past:
            feeds[name] = caches.get(slot(name), np.zeros((1, 2, 0, 16), np.float32))
        names = [o.name for o in model.outputs]
        results = dict(zip(names, session.run(names, feeds), strict=True))
        return results.pop("logits"), {slot(n): array for n, array in results.items()}


def slot(name: str) -> tuple[str, str]:
    """Layer and half of a cache input or output, however its exporter names it."""
    layer = re.search(r"\d+", name)
    assert layer is not None
    return layer.group(), name.rpartition(".")[2].removesuffix("s")


@pytest.fixture(scope="module")
def loops(exported: Callable[[str], Path]) -> Callable[[str], Loop]:
    known: dict[str, Loop] = {}

    def loop(name: str) -> Loop:
        if name not in known:
            files = [name, name]
            if name == PAIR:
                files = ["llama-hf-op20-prefill", DECODE]
            known[name] = Loop(*(exported(f"{f}.onnx") for f in files))
        return known[name]

    return loop


def compiled_for(name: str, build: Callable[..., Compiled], **more: Any) -> Compiled:
    phase = "decode" if name == DECODE else "both"
    options: dict[str, Any] = {"phase": phase, "prompt": 16, "max_context": 40, "grid": (2, 2)}
    if phase == "decode":
        del options["prompt"]
    return build(model=name, **{**options, **more})


@pytest.mark.parametrize(
    ("name", "length"),
    [
        pytest.param(n, k, marks=[] if (n, k) in QUICK else [pytest.mark.slow])
        for n in MODELS
        for k in LENGTHS
    ],
)
def test_tokens_are_those_of_onnx_runtime(
    name: str, length: int, build: Callable[..., Compiled], loops: Callable[[str], Loop]
) -> None:
    compiled = compiled_for(name, build)
    prompt = np.random.default_rng(length).integers(0, 160, length).tolist()
    found = generate(compiled, prompt, NEW)
    assert [g.token for g in found] == loops(name).ids(prompt, NEW)
    first = "decode" if name == DECODE else "prefill"
    assert [g.phase for g in found] == [first] + ["decode"] * (NEW - 1)
    assert all(g.cycles > 0 for g in found)
    rest = [g.cycles for g in found[1:]]
    assert max(rest) < 1.5 * min(rest)  # the cache grows by a token a step


@pytest.mark.parametrize(
    "more",
    [
        {"strategy": "pipeline", "grid": (1, 3)},
        pytest.param({"grid": (3, 4)}, marks=pytest.mark.slow),
        pytest.param({"chip": "test8x8", "grid": None, "solver": "ilp"}, marks=pytest.mark.slow),
        pytest.param({"chip": "test16x16", "grid": (8, 16)}, marks=pytest.mark.slow),
    ],
)
def test_tokens_do_not_depend_on_the_mapping(
    more: dict[str, Any], build: Callable[..., Compiled], loops: Callable[[str], Loop]
) -> None:
    compiled = compiled_for(EXAMPLE, build, **more)
    assert [g.token for g in generate(compiled, [7, 3, 150], NEW)] == loops(EXAMPLE).ids(
        [7, 3, 150], NEW
    )


@pytest.mark.slow
def test_a_long_answer_is_right(
    build: Callable[..., Compiled], loops: Callable[[str], Loop]
) -> None:
    compiled = compiled_for(EXAMPLE, build, max_context=120)
    found = generate(compiled, [1, 2, 3], 100)
    assert [g.token for g in found] == loops(EXAMPLE).ids([1, 2, 3], 100)


def test_the_cache_may_be_filled_to_the_last_token(
    build: Callable[..., Compiled], loops: Callable[[str], Loop]
) -> None:
    compiled = compiled_for(EXAMPLE, build, max_context=18)
    prompt = [5] * 16
    assert [g.token for g in generate(compiled, prompt, 3)] == loops(EXAMPLE).ids(prompt, 3)
    with pytest.raises(InputError) as caught:
        generate(compiled, prompt, 4)
    assert str(caught.value) == (
        "16 prompt tokens and 4 new ones need 19 cached tokens where SRAM is reserved for 18; "
        "compile with --max-context 19 or ask for fewer."
    )


# -- the command -------------------------------------------------------------------------------


@pytest.fixture
def out(folder: Callable[..., Path]) -> Path:
    return folder(phase="both", prompt=16, max_context=40, grid=(2, 2))


def test_command_prints_ids_and_latencies(
    out: Path, meshc: Callable[..., Any], loops: Callable[[str], Loop]
) -> None:
    wanted = loops(EXAMPLE).ids([1, 2, 3], 8)
    result = meshc("generate", out, "--ids", "1,2,3")  # 8 tokens unless told
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert [line.split()[0] for line in lines[:8]] == ["first", *["token"] * 7]
    assert all("cycles" in line and "µs" in line for line in lines[:8])
    assert lines[8:] == [",".join(map(str, wanted))]
    quiet = meshc("generate", out, "--ids", "1, 2, 3", "--tokens", "2", "--quiet")
    assert quiet.out == ",".join(map(str, wanted[:2])) + "\n"
    shown = meshc("generate", out, "--ids", "1,2,3", "--tokens", "2", "--json")
    record = json.loads(shown.out)
    assert record["ids"] == wanted[:2] and record["prompt"] == [1, 2, 3]
    assert len(record["latency_cycles"]) == len(record["latency_s"]) == 2


def test_a_generation_leaves_the_folder_as_it_was(out: Path, meshc: Callable[..., Any]) -> None:
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    assert meshc("generate", out, "--ids", "1", "--tokens", "2").code == 0
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            ("--ids", ",".join("1" * 17)),
            "A prompt of 17 tokens exceeds the 16 that the prefill was compiled for; compile with "
            "--prompt 17.",
        ),
        (("--ids", "3,160"), "Token id 160 is outside the vocabulary of 0 to 159."),
        (("--ids=-1",), "Token id -1 is outside the vocabulary of 0 to 159."),
        (
            ("--ids", ""),
            "Argument --ids: '' is not a list of token ids, such as 1,2,3; see meshc generate "
            "--help.",
        ),
        (("--ids", "1", "--tokens", "0"), "--tokens 0 is below 1; ask for at least one token."),
        (
            ("--ids", "1,2", "--tokens", "40"),
            "2 prompt tokens and 40 new ones need 41 cached tokens where SRAM is reserved for 40; "
            "compile with --max-context 41 or ask for fewer.",
        ),
        (
            ("--ids", "1,two"),
            "Argument --ids: '1,two' is not a list of token ids, such as 1,2,3; see meshc generate "
            "--help.",
        ),
        (
            ("--tokens", "3"),
            "The following arguments are required: --ids; see meshc generate --help.",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    flags: tuple[str, ...], complaint: str, out: Path, meshc: Callable[..., Any]
) -> None:
    result = meshc("generate", out, *flags)
    assert (result.code, result.sentence, result.out) == (2, complaint, "")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"phase": "both", "batch": 2, "prompt": 2, "grid": (2, 2)},
            "meshc generate runs one sequence, and the model was compiled for batch 2; compile "
            "with --batch 1.",
        ),
        (
            {"phase": "prefill", "prompt": 4, "grid": (2, 2)},
            "Only the prefill was compiled, which gives one token; compile with --phase both, or "
            "with --decode-model for an export in two files.",
        ),
        (
            {"phase": "prefill", "prompt": 3, "context": 5, "grid": (2, 2)},
            "Only the prefill was compiled, which gives one token; compile with --phase both, or "
            "with --decode-model for an export in two files.",
        ),
    ],
)
def test_a_model_that_cannot_generate_says_why(
    options: dict[str, Any],
    complaint: str,
    folder: Callable[..., Path],
    meshc: Callable[..., Any],
) -> None:
    result = meshc("generate", folder(**options), "--ids", "1,2", "--tokens", "2")
    assert (result.code, result.sentence, result.out) == (2, complaint, "")


def test_masks_at_run_time_are_those_of_the_workload(
    folder: Callable[..., Path], meshc: Callable[..., Any]
) -> None:
    """A mask that is a run-time input has the shape of the ids, and is not the ids."""
    found = []
    for dynamic in (False, True):
        out = folder(phase="both", prompt=4, grid=(2, 2), dynamic_mask=dynamic)
        result = meshc("generate", out, "--ids", "1,2", "--tokens", "3", "--quiet")
        assert result.code == 0, result.err
        found.append(result.out)
    assert found[0] == found[1]


def test_a_prefill_alone_gives_one_token(
    folder: Callable[..., Path], meshc: Callable[..., Any], loops: Callable[[str], Loop]
) -> None:
    out = folder(phase="prefill", prompt=4, grid=(2, 2))
    result = meshc("generate", out, "--ids", "9,8,7", "--tokens", "1", "--quiet")
    assert result.out == f"{loops(EXAMPLE).ids([9, 8, 7], 1)[0]}\n"


def test_a_decode_alone_takes_the_prompt_token_by_token(
    folder: Callable[..., Path], meshc: Callable[..., Any], loops: Callable[[str], Loop]
) -> None:
    """Even where the graph could prefill, but only its decode was compiled."""
    out = folder(phase="decode", context=3, max_context=20, grid=(2, 2))
    result = meshc("generate", out, "--ids", "9,8,7", "--tokens", "4", "--quiet")
    assert result.out.strip() == ",".join(map(str, loops(EXAMPLE).ids([9, 8, 7], 4)))
