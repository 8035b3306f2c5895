"""Flags to workloads: the contract's defaults, what graphs fix, what contradicts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from meshc.errors import InputError
from meshc.frontend import Model, bind, load_model, workloads
from meshc.ir.workload import Workload

from .decoders import Sizes, genai, standard, traced
from .models import info, write

SMALL = Sizes(layers=2, rows=64)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return load_model(traced(tmp_path / "m.onnx", Sizes(layers=2, rows=256)))


def frozen(tmp_path: Path, has_past: bool = True, **sizes: int) -> Model:
    """A decoder whose symbols are replaced by numbers."""
    path = traced(tmp_path / "f.onnx", SMALL, past=has_past)
    proto = onnx.load(path)
    for port in (*proto.graph.input, *proto.graph.output):
        for dim in port.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    onnx.save(proto, path)
    return load_model(path)


def refused(model: Model, **flags: Any) -> str:
    with pytest.raises(InputError) as caught:
        workloads(model, **flags)
    return str(caught.value)


def only(model: Model, **flags: Any) -> Workload:
    ((_, workload),) = workloads(model, **flags).values()
    return workload


def test_defaults_of_both_phases(model: Model) -> None:
    found = workloads(model)
    assert list(found) == ["prefill", "decode"]
    assert found["prefill"][1] == Workload("prefill", 1, 16, 0, 80)
    assert found["decode"][1] == Workload("decode", 1, 1, 16, 80)


def test_given_values_of_both_phases(model: Model) -> None:
    found = workloads(model, batch=3, prompt=5, context=9)
    assert found["prefill"][1] == Workload("prefill", 3, 5, 0, 69)
    assert found["decode"][1] == Workload("decode", 3, 1, 9, 69)
    assert workloads(model, prompt=5, context=90)["decode"][1].max_context == 91
    assert {w.max_context for _, w in workloads(model, max_context=33).values()} == {33}


def test_defaults_of_one_phase(model: Model) -> None:
    assert only(model, phase="prefill") == Workload("prefill", 1, 16, 0, 16)
    assert only(model, phase="prefill", prompt=4, context=6) == Workload("prefill", 1, 4, 6, 10)
    assert only(model, phase="decode") == Workload("decode", 1, 1, 16, 17)
    assert only(model, phase="decode", prompt=1) == Workload("decode", 1, 1, 16, 17)
    assert only(model, phase="decode", prompt=30) == Workload("decode", 1, 1, 30, 31)
    assert only(model, phase="decode", context=0) == Workload("decode", 1, 1, 0, 1)


def test_graph_without_past(tmp_path: Path) -> None:
    model = load_model(traced(tmp_path / "m.onnx", SMALL, past=False))
    assert only(model) == Workload("prefill", 1, 16, 0, 16)
    assert refused(model, context=4) == (
        "--context 4 needs a graph with a past input, which 'm.onnx' does not have; give "
        "--context 0 or a graph with a past."
    )
    assert refused(model, phase="decode") == (
        "Model 'm.onnx' cannot decode: it has no past input; give --phase prefill, or the decode "
        "graph."
    )
    assert refused(model, phase="both") == (
        "Model 'm.onnx' cannot decode: it has no past input; give --phase prefill, or the decode "
        "graph with --decode-model."
    )


def test_frozen_batch_and_prompt(tmp_path: Path) -> None:
    model = frozen(tmp_path, has_past=False, batch=2, seq=4, total=4)
    assert only(model) == Workload("prefill", 2, 4, 0, 4)
    assert only(model, batch=2, prompt=4) == only(model)
    assert refused(model, batch=3) == (
        "--batch 3 contradicts 'f.onnx', whose graph is frozen to 2; give --batch 2 or export it "
        "with a free dimension."
    )
    assert refused(model, prompt=5) == (
        "--prompt 5 contradicts 'f.onnx', whose graph is frozen to 4; give --prompt 4 or export it "
        "with a free dimension."
    )


def test_frozen_token_axis_means_decode(tmp_path: Path) -> None:
    model = frozen(tmp_path, seq=1)
    assert (model.default_phase, model.phases) == ("decode", ("decode",))
    assert only(model) == Workload("decode", 1, 1, 16, 17)
    assert refused(model, phase="prefill") == (
        "Model 'f.onnx' cannot prefill: its token axis is frozen at 1; give --phase decode, or "
        "export it with a free token axis."
    )


def test_frozen_cache(tmp_path: Path) -> None:
    model = frozen(tmp_path, seq=1, past=7, total=8)
    assert only(model) == Workload("decode", 1, 1, 7, 8)
    assert refused(model, context=9) == (
        "--context 9 contradicts 'f.onnx', whose graph is frozen to 7; give --context 7 or export "
        "it with a free dimension."
    )
    bind(model, only(model))


def test_position_table_caps_defaults_and_refuses_more(tmp_path: Path) -> None:
    for spell in (genai, standard, traced):
        model = load_model(spell(tmp_path / "m.onnx", SMALL))
        assert {w.max_context for _, w in workloads(model).values()} == {64}
        assert {w.max_context for _, w in workloads(model, max_context=64).values()} == {64}
        assert refused(model, max_context=65) == (
            "--max-context 65 exceeds the 64 positions of the table in 'm.onnx'; give at most 64."
        )
        assert refused(model, prompt=65) == (
            "A prefill of 65 new tokens after 0 cached ones needs 65 positions, more than the 64 "
            "that the position table of 'm.onnx' has; lower --prompt or --context."
        )
    tiny = load_model(genai(tmp_path / "m.onnx", Sizes(rows=8)))
    found = workloads(tiny)
    assert found["prefill"][1] == Workload("prefill", 1, 7, 0, 8)
    assert found["decode"][1] == Workload("decode", 1, 1, 7, 8)


@pytest.mark.parametrize("flags", [
    {"batch": 0}, {"prompt": 0}, {"context": -1}, {"max_context": 0},
])  # fmt: skip
def test_numbers_below_their_least(model: Model, flags: dict[str, int]) -> None:
    ((name, value),) = flags.items()
    least = 0 if name == "context" else 1
    flag = name.replace("_", "-")
    assert refused(model, **flags) == f"--{flag} {value} is below {least}; give at least {least}."


def test_max_context_below_the_step(model: Model) -> None:
    assert refused(model, phase="decode", context=20, max_context=20) == (
        "--max-context 20 is below the 21 tokens that are cached when the decode step ends "
        "(context 20 + new 1); raise it or lower --context."
    )


def test_dims(model: Model) -> None:
    assert only(model, phase="decode", dims={"batch": 1}).dims == (("batch", 1),)
    assert refused(model, phase="decode", dims={"batch": 2}) == (
        "--dim batch=2 contradicts the decode workload, which binds 'batch' to 1; leave it out or "
        "change --batch, --prompt or --context."
    )
    assert refused(model, phase="decode", dims={"bach": 1}) == (
        "--dim bach=1 names no dimension of the graph; known names: batch, past, seq, total."
    )


def test_dims_of_other_inputs(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Add", ["x", "y"], ["z"])
    ports = [info(n, "float32", ["height", "width"]) for n in "xyz"]
    model = load_model(write(tmp_path / "m.onnx", [node], ports[:2], ports[2:]))
    ((found, workload),) = workloads(model).values()
    with pytest.raises(InputError) as caught:
        bind(found, workload)
    assert str(caught.value) == (
        "Dimensions 'height', 'width' of 'm.onnx' are not determined by the workload; bind them "
        "with --dim height=N --dim width=N."
    )
    ((found, workload),) = workloads(model, dims={"height": 2, "width": 5}).values()
    assert bind(found, workload).graph.tensors["z"].shape == (2, 5)


def test_cache_dimensions_come_from_their_consumer(tmp_path: Path) -> None:
    path = genai(tmp_path / "m.onnx", SMALL)
    proto = onnx.load(path)
    for port in proto.graph.input:
        if port.name.startswith("past"):
            port.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    onnx.save(proto, path)
    model = load_model(path)
    bound = bind(model, Workload("decode", 2, 1, 5, 6))
    assert bound.caches[0][2] == (2, 2, 5, 16)
    assert only(model, phase="decode", dims={"kv_cache_dim": 16}).dims == (("kv_cache_dim", 16),)


def test_positions_beyond_a_table_are_refused_when_binding(tmp_path: Path) -> None:
    model = load_model(genai(tmp_path / "m.onnx", Sizes(layers=1, rows=8)))
    with pytest.raises(InputError) as caught:
        bind(model, Workload("decode", 1, 1, 8, 9))
    assert str(caught.value) == (
        "Node 'GroupQueryAttention_11' needs position 8 of the table 'cos_table', which has 8 "
        "rows; lower --context, --prompt or --max-context."
    )


def test_odd_symbol_names_bind_by_position(tmp_path: Path) -> None:
    path = standard(tmp_path / "m.onnx", SMALL)
    proto = onnx.load(path)
    names = {"batch": "s17", "seq": "s1", "past": "s53", "total": "s53 + s1"}
    for port in proto.graph.input:
        for dim in port.type.tensor_type.shape.dim:
            dim.dim_param = names.get(dim.dim_param, dim.dim_param) if dim.dim_param else ""
    onnx.save(proto, path)
    bound = bind(load_model(path), Workload("prefill", 2, 3, 4, 7))
    assert bound.graph.tensors["logits"].shape == (2, 3, 53)
    assert np.all(bound.folded["attention_mask"] == 1)
