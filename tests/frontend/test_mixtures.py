"""Mixtures of experts in every spelling, recognised and not, against ONNX Runtime; what depends on
data in another way is refused."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshc.errors import InputError
from meshc.frontend import Bound, bind, read_load
from meshc.frontend.expertload import split

from . import mixtures
from .harness import check, f32, op, refuses

X = {"x": f32("batch", "sequence", mixtures.HIDDEN)}
SPELLINGS = {
    "masked": lambda: mixtures.masked(4, 2, "gated", range(4)),
    "masked, one of five": lambda: mixtures.masked(5, 1, "Relu", range(5)),
    "masked, some missing": lambda: mixtures.masked(6, 3, "Sigmoid", (0, 2, 5)),
    "picked": lambda: mixtures.picked(4, 2, "gated", range(4)),
    "picked, biases": lambda: mixtures.picked(3, 2, "Tanh", range(3)),
    "picked, some missing": lambda: mixtures.picked(5, 2, "Relu", (4, 1, 3)),
    "picked, added": lambda: mixtures.picked(4, 2, "gated", range(4), "add"),
    "picked, added by places": lambda: mixtures.picked(4, 3, "Relu", range(4), "nd"),
    "grouped": lambda: mixtures.grouped(4, 2),
    "grouped, counted one by one": lambda: mixtures.grouped(5, 3, "onehot"),
}


def kinds(bound: Bound) -> Counter[str]:
    return Counter(o.kind for _, op in bound.graph.ops() for o in (op.body or (op,)))


@pytest.mark.parametrize("recognised", [True, False])
@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling(
    tmp_path: Path, name: str, recognised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not recognised:
        module = sys.modules["meshc.frontend.bind"]
        monkeypatch.setattr(module, "recognise_experts", lambda net, b: 0)
    g = SPELLINGS[name]()
    for bound in check(tmp_path, g.nodes, X, g.constants, outputs=["y"]):
        found = kinds(bound)
        if not recognised:
            assert found["experts"] == 0
            continue
        assert found["experts"] == (3 if "gated" in str(g.constants) or "e1.gate" in g.constants
                                    else 2)  # fmt: skip
        assert found["matmul"] == 1  # the router


REFUSED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("a count", [op("NonZero", "x", "nz"), op("Size", "nz", "y")], {}, "on rows that"),
    ("a sum over picked rows",
     [op("NonZero", "x", "nz"), op("ReduceSum", "nz,axis", "y", keepdims=0)],
     {"axis": np.array([1])}, "on rows that"),
    ("picked and all rows",
     [op("NonZero", "x", "nz"), op("Add", "nz,numbers", "y")],
     {"numbers": np.arange(12).reshape(2, 6)}, "together with all rows"),
    ("a squeeze that may meet one row", [op("NonZero", "x", "nz"), op("Squeeze", "nz", "y")], {},
     "on rows that"),
    ("two masks", [op("NonZero", "x", "a"), op("NonZero", "z", "b"), op("Add", "a,b", "y")], {},
     "on different choices of rows"),
    ("one mask's rows behind another's",
     [op("NonZero", "x", "a"), op("NonZero", "z", "b"), op("Concat", "a,b", "y", axis=1)], {},
     "under different masks"),
    ("a range up to a number that may be anything",
     [op("ReduceMax", "x", "n", keepdims=0), op("Cast", "n", "i", to=7),
      op("Range", "zero,i,one", "y")],
     {"zero": np.array(0), "one": np.array(1)}, "that are no running sums"),
    ("a range between sums of what may be negative",
     [op("Cast", "x", "i", to=7), op("Reshape", "i,flat", "f"), op("CumSum", "f,zero", "c"),
      op("Gather", "c,one", "e", axis=0), op("Range", "zero,e,one", "y")],
     {"zero": np.array(0), "one": np.array(1), "flat": np.array([-1])}, 
     "that nothing known limits"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "constants", "reason"), [r[1:] for r in REFUSED],
                         ids=[r[0] for r in REFUSED])  # fmt: skip
def test_other_data_dependence_is_refused(
    tmp_path: Path, nodes: list[Any], constants: dict[str, Any], reason: str
) -> None:
    given = {"x": f32(2, 6), "z": f32(2, 6)}
    refuses(tmp_path, nodes, given, reason, constants, outputs=["y"])


@pytest.mark.parametrize(("rows", "shares", "counts"), [
    (8, (1.0,) * 4, (2, 2, 2, 2)), (10, (1.0,) * 4, (3, 3, 2, 2)), (6, (10, 1, 1, 0), (5, 1, 0, 0)),
    (3, (0.6, 0.2, 0.2), (2, 1, 0)), (0, (1, 2), (0, 0)), (7, (3, 4), (3, 4)),
])  # fmt: skip
def test_rows_are_split_in_the_ratio(rows: int, shares: Any, counts: Any) -> None:
    assert split(rows, shares) == counts


@pytest.mark.parametrize(("text", "reason"), [
    ("{", "is not JSON"), ("3", "holds int data"), ("[]", "holds list data"),
    ("[1, -1]", "has -1 among its numbers"), ('["a"]', 'has "a" among its numbers'),
    ("[0, 0]", "gives no expert any rows"), ("[[1], 2]", "holds int data"),
    ("[true, 1]", "has true among its numbers"),
])  # fmt: skip
def test_files_of_another_form_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "load.json"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_load(str(path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_load(str(tmp_path / "none.json"))


def _bound(tmp_path: Path, load: Any, spelling: str = "masked") -> Bound:
    from dataclasses import replace

    from meshc.frontend import load_model

    from .harness import Step, _answers, _declare, write
    from .models import step

    g = SPELLINGS[spelling]()
    path = write(tmp_path / "g.onnx", g.nodes, X, g.constants, outputs=["y"])
    feeds = [{"x": np.zeros((2, 3, mixtures.HIDDEN), np.float32)}]
    _declare(path, _answers(path, feeds, "onnxruntime")[0], ["y"])
    del Step
    return bind(load_model(path), replace(step(2, 3), experts=load))


def test_counts_are_in_the_ops(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    file.write_text(json.dumps([6, 3, 3, 0]))
    bound = _bound(tmp_path, read_load(str(file)))
    found = [o for _, o in bound.graph.ops() if o.kind == "experts"]
    assert [o.attr("counts") for o in found] == [((6, 3, 3, 0),)] * 3
    assert [o.attr("rows") for o in found] == [12] * 3
    even = [o for _, o in _bound(tmp_path, ()).graph.ops() if o.kind == "experts"]
    assert even[0].attr("counts") == ((3, 3, 3, 3),)


def test_counts_of_missing_experts_are_left_out(tmp_path: Path) -> None:
    bound = _bound(tmp_path, ((8, 1, 4, 1, 2, 2),), "masked, some missing")
    found = [o for _, o in bound.graph.ops() if o.kind == "experts"]
    assert found[0].attr("counts") == ((8, 4, 2),)


@pytest.mark.parametrize(("load", "reason"), [
    (((1.0, 1.0),), "has 2 numbers for mixture-of-experts layer 0 .* which has 4 experts"),
    (((1.0,) * 4,) * 3, "has 3 lists, but .* has 1 mixture-of-experts layers"),
])  # fmt: skip
def test_loads_that_do_not_fit_are_refused(tmp_path: Path, load: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        _bound(tmp_path, load)
