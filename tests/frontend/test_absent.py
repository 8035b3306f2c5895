"""Weights that are not there: every form imports, the graph is the same, and nothing is read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from meshc.errors import InputError
from meshc.frontend import absent_weights, bind, load_model, workloads
from meshc.frontend.weights import read_tensor

from .decoders import Sizes, genai, standard, traced
from .models import info, weight, write

Edit = Callable[[Path, Any], None]
WEIGHTS = (TensorProto.FLOAT, TensorProto.FLOAT16)


def away(proto: Any, location: Callable[[int], str], keys: bool = True) -> dict[str, int]:
    """Move the weights into external files; returns the bytes that each file then needs."""
    ends: dict[str, int] = {}
    for i, t in enumerate(w for w in proto.graph.initializer if w.data_type in WEIGHTS):
        size, file = len(t.raw_data), location(i)
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        entries = {"location": file}
        if keys:
            entries |= {"offset": str(ends.get(file, 0)), "length": str(size)}
        for key, value in entries.items():
            t.external_data.add(key=key, value=value)
        ends[file] = ends.get(file, 0) + size if keys else max(ends.get(file, 0), size)
    return ends


def one_file(path: Path, proto: Any) -> None:
    away(proto, lambda i: "m.data")


def several_files(path: Path, proto: Any) -> None:
    away(proto, lambda i: f"part{i % 3}/w.bin")


def bare_location(path: Path, proto: Any) -> None:
    """No offset and no length: each weight is a file of its own."""
    away(proto, lambda i: f"w{i}.bin", keys=False)


def sparse(path: Path, proto: Any) -> None:
    for file, size in away(proto, lambda i: "m.data").items():
        with (path.parent / file).open("wb") as f:
            f.truncate(size)


def pipe(path: Path, proto: Any) -> None:
    """Something that would block or fail whoever reads it."""
    away(proto, lambda i: "m.data")
    os.mkfifo(path.parent / "m.data")


def no_data(path: Path, proto: Any) -> None:
    for t in proto.graph.initializer:
        if t.data_type in WEIGHTS:
            t.ClearField("raw_data")


def dangling(path: Path, proto: Any) -> None:
    kept = []
    for t in proto.graph.initializer:
        if t.data_type in WEIGHTS:
            entry = helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
            proto.graph.value_info.append(entry)
        else:
            kept.append(t)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)


FORMS: tuple[Edit, ...] = (
    one_file, several_files, bare_location, sparse, pipe, no_data, dangling,
)  # fmt: skip
DECODERS = {"genai": genai, "standard": standard, "traced": traced}
SIZES = Sizes(layers=3)


def edited(path: Path, edit: Edit | None, decoder: str = "genai") -> Path:
    DECODERS[decoder](path, SIZES)
    if edit is not None:
        proto = onnx.load(path)
        edit(path, proto)
        path.write_bytes(proto.SerializeToString())
    return path


def graphs(path: Path) -> dict[str, str]:
    model = load_model(path)
    return {p: bind(m, w).graph.dump() for p, (m, w) in workloads(model).items()}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_the_graph_needs_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Edit, decoder: str
) -> None:
    path = edited(tmp_path / "m.onnx", form, decoder)

    def unread(*args: Any, **options: Any) -> Any:
        raise AssertionError("a weight was read")

    monkeypatch.setattr(np, "memmap", unread)
    found = graphs(path)
    assert "3 ×" in found["decode"] or "body" in found["decode"]
    (tmp_path / "other").mkdir()
    other = edited(tmp_path / "other" / "m.onnx", sparse, decoder)
    monkeypatch.setattr(np, "memmap", unread)
    for phase, text in graphs(other).items():
        assert _nameless(text) == _nameless(found[phase])


def _nameless(dump: str) -> str:
    """A dump without the line that names the file's hash."""
    return "\n".join(line for line in dump.splitlines() if "sha256" not in line)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_values_are_missed_when_needed(tmp_path: Path, form: Edit) -> None:
    model = load_model(edited(tmp_path / "m.onnx", form))
    absent = absent_weights(model)
    m, workload = workloads(model, phase="decode")["decode"]
    data = bind(m, workload).data
    if form is sparse:
        assert absent.count == 0
        data.require()
        assert not data.read("head").any()
        return
    floats = sum(1 for t in load_model(edited(tmp_path / "whole.onnx", None)).initializers.values()
                 if t.data_type in WEIGHTS)  # fmt: skip
    assert (absent.count, absent.weights > floats) == (floats, True)
    with pytest.raises(InputError) as caught:
        data.require()
    text = str(caught.value)
    assert text.endswith("(timing alone needs no values).") and f"of model '{model.path}'" in text
    assert "Weight '" in text
    with pytest.raises(InputError):
        data.read("head")
    with pytest.raises(InputError):
        read_tensor(model, model.weight("head"))


def test_sentences(tmp_path: Path) -> None:
    def reason(form: Edit) -> str:
        model = load_model(edited(tmp_path / f"{form.__name__}.onnx", form))
        with pytest.raises(InputError) as caught:
            read_tensor(model, model.weight("head"))
        return str(caught.value).replace(str(model.path), "M").replace(str(tmp_path), "DIR")

    assert reason(one_file) == (
        "Weight 'head' of model 'M' is kept in 'm.data', which does not exist in 'DIR'; put the "
        "data file beside the model (timing alone needs no values)."
    )
    assert reason(no_data) == (
        "Weight 'head' of model 'M' has dimensions [24, 53] but not their data; export the model "
        "with its weights (timing alone needs no values)."
    )
    assert reason(dangling) == (
        "Weight 'head' of model 'M' has no initializer, only dimensions [24, 53] in value_info; "
        "export the model with its weights (timing alone needs no values)."
    )


def test_a_shape_that_is_absent_is_needed(tmp_path: Path) -> None:
    """Folding cannot go on without the values of a Reshape's sizes."""
    sizes = weight("sizes", np.array([6, 5], np.int64))
    node = helper.make_node("Reshape", ["x", "sizes"], ["y"], "view")
    path = write(tmp_path / "m.onnx", [node], [info("x", "float32", [3, 10])],
                 [info("y", "float32", [6, 5])], [sizes])  # fmt: skip
    proto = onnx.load(path)
    proto.graph.initializer[0].ClearField("raw_data")
    path.write_bytes(proto.SerializeToString())
    model = load_model(path)
    with pytest.raises(InputError, match=r"Weight 'sizes' of model .* not their data"):
        bind(model, workloads(model)["prefill"][1])


@pytest.mark.parametrize("known", [["n", 20], None], ids=["symbol", "nothing"])
def test_a_name_without_dimensions(tmp_path: Path, known: Any) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    path = write(tmp_path / "m.onnx", [node], [info("x", "float32", [3, 10])],
                 [info("y", "float32", [3, 20])])  # fmt: skip
    if known:
        proto = onnx.load(path)
        proto.graph.value_info.append(info("w", "float32", known))
        path.write_bytes(proto.SerializeToString())
    model = load_model(path)
    with pytest.raises(InputError) as caught:
        bind(model, workloads(model)["prefill"][1])
    assert str(caught.value) == (
        "Nodes of 'm.onnx' read 'w', which no node makes and for which there is neither an "
        "initializer nor a value_info with fixed dimensions; export the model with its weights."
    )


def test_links(tmp_path: Path) -> None:
    """Data that a link leads out of the directory to are refused, a hub's cache is not."""
    for name in ("blobs", "snap", "else"):
        (tmp_path / name).mkdir()
    edited(tmp_path / "blobs" / "model", sparse)
    (tmp_path / "blobs" / "m.data").rename(tmp_path / "blobs" / "data")
    (tmp_path / "snap" / "m.onnx").symlink_to("../blobs/model")
    (tmp_path / "snap" / "m.data").symlink_to("../blobs/data")
    assert absent_weights(load_model(tmp_path / "snap" / "m.onnx")).count == 0
    (tmp_path / "blobs" / "data").rename(tmp_path / "else" / "data")
    (tmp_path / "snap" / "m.data").unlink()
    (tmp_path / "snap" / "m.data").symlink_to("../else/data")
    with pytest.raises(InputError, match="outside the model's directory"):
        load_model(tmp_path / "snap" / "m.onnx")


def test_weights_of_two_files_without_reading(tmp_path: Path) -> None:
    """A weight in an external file is known by its name, type and shape."""
    models = [load_model(edited(tmp_path / f"{n}.onnx", one_file)) for n in "ab"]
    data = [bind(m, workloads(m, phase="decode")["decode"][1]).data for m in models]
    assert data[0].digest("head") == data[1].digest("head") != data[0].digest("embed")


def _seconds(path: Path) -> float:
    began = time.process_time()
    model = load_model(path)
    bind(model, workloads(model, phase="decode")["decode"][1])
    return time.process_time() - began


@pytest.mark.slow
@pytest.mark.parametrize("decoder", DECODERS)
def test_time_is_linear_in_layers(tmp_path: Path, decoder: str) -> None:
    """Eight times the layers take at most eight times as long, with room for noise."""
    tiny = {"heads": 2, "groups": 1, "head": 4, "hidden": 8, "inner": 8, "vocab": 16}
    paths = [DECODERS[decoder](tmp_path / f"{n}.onnx", Sizes(layers=n, **tiny)) for n in (60, 480)]
    short, long = (min(_seconds(p) for _ in range(2)) for p in paths)
    assert long < 8 * 2.5 * short, (short, long)
