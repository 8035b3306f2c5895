"""Encoder-decoders: the encoder's keys and values are made once and stay on the chip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from meshc import frontend
from meshc.errors import InputError
from meshc.generation import generate
from meshc.ir.compiled import Compiled, CompileOptions
from meshc.pipeline import compile as compile_model
from meshc.run import verify_phase

from .encoders import in_two, merged

LENGTH, ROOM, NEW = 5, 12, 5
PROMPT = [3, 17, 8]
STATES = np.random.default_rng(4).standard_normal((1, LENGTH, 12)).astype(np.float32)


def loop(first: Path, then: Path) -> list[int]:
    """Greedy decoding with ONNX Runtime."""
    sessions = [ort.InferenceSession(str(p)) for p in (first, then)]
    held: dict[str, Any] = {}
    fed, found = PROMPT, []
    for turn in range(NEW):
        s = sessions[min(turn, 1)]
        feeds: dict[str, Any] = {}
        for port in s.get_inputs():
            name = port.name
            present = name.replace("past_key_values", "present")
            if name == "input_ids":
                feeds[name] = np.array([fed], np.int64)
            elif name == "use_cache_branch":
                feeds[name] = np.array([turn > 0])
            elif name == "encoder_hidden_states":
                feeds[name] = STATES
            else:
                size = 0 if "decoder" in name else LENGTH
                feeds[name] = held.get(present, np.zeros((1, 2, size, 8), np.float32))
        names = [o.name for o in s.get_outputs()]
        results = dict(zip(names, s.run(names, feeds), strict=True))
        held.update(results)
        found.append(int(results["logits"][0, -1].argmax()))
        fed = found[-1:]
    return found


def built(path: Path, decode: Path | None = None, **more: Any) -> Compiled:
    options: dict[str, Any] = {
        "chip": "test4x4", "phase": "both", "prompt": len(PROMPT), "max_context": ROOM,
        "solver": "greedy", "grid": (2, 2), "dims": (("encoder_sequence_length", LENGTH),),
    }  # fmt: skip
    if decode is not None:
        options["decode_model"] = str(decode)
    done = compile_model(path, CompileOptions(**{**options, **more}))
    assert done is not None
    return done


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("two", [False, True])
def test_verified_and_generating(tmp_path: Path, two: bool, fused: bool) -> None:
    files = in_two(tmp_path, fused=fused) if two else (merged(tmp_path / "m.onnx", fused=fused),)
    done = built(files[0], files[1] if two else None)
    for phase in done.phases:
        verify = verify_phase(done, phase).verify
        assert verify is not None and verify["passed"], verify
    given = {"encoder_hidden_states": STATES}
    found = [g.token for g in generate(done, PROMPT, NEW, inputs=given)]
    assert found == loop(files[0], files[-1])
    assert len(set(found)) > 1
    with pytest.raises(InputError) as caught:
        generate(done, PROMPT, 1)
    assert str(caught.value) == (
        "Input 'encoder_hidden_states' of shape [1, 5, 12] is not the token ids, and nothing says "
        "what it holds; give it in an .npz file with --inputs."
    )


def test_a_later_step_alone_wants_the_cached_keys(tmp_path: Path) -> None:
    _, then = in_two(tmp_path)
    done = built(then, phase="decode", prompt=None, context=3)
    with pytest.raises(InputError, match=r"^Cache 'past_key_values\.0\.encoder\.key' of shape"):
        generate(done, PROMPT, 1)


def test_the_encoders_length_has_a_default(tmp_path: Path) -> None:
    model = frontend.load_model(merged(tmp_path / "m.onnx"))
    found = frontend.workloads(model, prompt=7)
    assert {w.dims for _, w in found.values()} == {(("encoder_sequence_length", 7),)}
    given = frontend.workloads(model, dims={"encoder_sequence_length": 3})
    assert {w.dims for _, w in given.values()} == {(("encoder_sequence_length", 3),)}
