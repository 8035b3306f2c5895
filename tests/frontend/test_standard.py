"""The whole list of the standard's operators, what is refused and why, and random expressions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import defs

from meshc.errors import InputError
from meshc.frontend import bind, load_model
from meshc.frontend.operators import CONTROL, LOWERINGS
from meshc.frontend.standard import REASONS, defined

from .harness import STEPS, Step, check, f32, op, refuses, tensor, write
from .models import step

X = f32("batch", "sequence", 8)
MS = "com.microsoft"


def test_every_operator_has_a_lowering_or_a_definition_or_a_reason() -> None:
    for schema in defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        if schema.domain or schema.since_version > 24 or key in CONTROL:
            continue
        known = key in LOWERINGS or key in REASONS or defined("", schema.name, 24)
        assert known, f"{schema.name}-{schema.since_version} is neither lowered nor refused"
        assert key not in LOWERINGS or key not in REASONS, schema.name


@pytest.mark.parametrize(("node", "reason"), [
    (op("LSTM", "x,x,x"), "recurrent"), (op("Multinomial", "x"), "random numbers"),
    (op("StringNormalizer", "x"), "works on strings"), (op("STFT", "x,x"), "transforms signals"),
    (op("NonMaxSuppression", "x,x"), "depends on run-time data"),
    (op("Resize", "x,,x"), "resamples images"), (op("SequenceMap", "x"), "sequences"),
    (op("BeamSearch", "x", "y", MS), "use 'meshc generate'"),
    (op("Sampling", "x", "y", MS), "use 'meshc generate'"),
    (op("RemovePadding", "x,x", "y", MS), "export without it"),
    (op("Inverse", "x", "y", MS), "solves equations"), (op("NhwcConv", "x,x", "y", MS), "layout"),
])  # fmt: skip
def test_what_is_out_of_scope_says_why(tmp_path: Path, node: Any, reason: str) -> None:
    refuses(tmp_path, [node], {"x": X}, reason, opset=17)


def test_everything_unsupported_is_listed_at_once(tmp_path: Path) -> None:
    nodes = [
        op("STFT", "x,x", "a"), op("STFT", "x,x", "b"), op("Foo", "a,b", "c", "my.ops"),
        op("Pad", "x,p", "d", mode="mirror"), op("Gelu", "d", "e"), op("Add", "c,e", "f"),
        op("Gelu", "x", "g", approximate="fast"), op("Sum", "f,g", "y"),
    ]  # fmt: skip
    text = refuses(tmp_path, [*nodes, op("Det", "x", "z")], {"x": X}, "",
                   {"p": np.zeros(6, np.int64)}, 20)  # fmt: skip
    assert text == (
        "Model 'refused.onnx' has operators that are not supported: 'my.ops:Foo' (1 node); "
        "operators in a form that is not supported: 'Det' because it solves equations or measures "
        "distances, which meshc does not compile (1 node), "
        "'Gelu' with approximate 'fast' (1 node), "
        "'Pad' with mode 'mirror' (1 node), 'STFT' because it transforms signals, which meshc does "
        "not compile (2 nodes); export it without them ('meshc ops' lists what is "
        "supported)."
    )


def test_folded_operators_need_no_lowering(tmp_path: Path) -> None:
    """Whatever has constant operands is evaluated by ONNX's own reference."""
    nodes = [op("Det", "c", "d"), op("HannWindow", "n", "h"), op("Resize", "i,,s", "r"),
             op("Add", "x,d", "p"), op("Mul", "x,h", "q"), op("Add", "r,r", "t")]  # fmt: skip
    given_ = {"c": np.eye(3, dtype=np.float32) * 2, "n": np.int64(8),
              "i": np.ones((1, 1, 2, 2), np.float32), "s": np.float32([1, 1, 2, 2])}  # fmt: skip
    check(tmp_path, nodes, {"x": X}, given_, outputs=("p", "q"), steps=STEPS[:2])
    refuses(tmp_path, [op("RandomNormalLike", "c", "r"), op("Add", "x,r", "y")][:1], {"x": X},
            "random numbers", given_)  # fmt: skip


def test_constants_that_are_no_tensors(tmp_path: Path) -> None:
    nodes = [op("Constant", "", "c", value_string="words"), op("Add", "x,c")]
    refuses(tmp_path, [nodes[1], nodes[0]], {"x": X}, "'Constant' with value_string (1 node)",
            outputs=("y",))  # fmt: skip
    values = [op("Constant", "", "a", value_float=2.0),
              op("Constant", "", "n", value_ints=[0, 0, -1]), op("Mul", "x,a", "m"),
              op("Reshape", "m,n")]  # fmt: skip
    check(tmp_path, values, {"x": X}, steps=STEPS[:1])


def test_unread_attributes_refuse(tmp_path: Path) -> None:
    """An attribute that no lowering looks at must have its default value."""
    refuses(tmp_path, [op("Transpose", "x", order=[0])], {"x": X}, "with order")
    refuses(tmp_path, [op("FastGelu", "x", "y", MS, exact=1)], {"x": X}, "with exact")
    path = write(tmp_path / "old.onnx", [op("Add", "x,x", axis=1)], {"x": X})
    with pytest.raises(InputError):
        bind(load_model(path), step(1, 1))


def test_gated_operators_of_recent_decoders(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    consts = {"s": np.float32(0.7), "c": rng.standard_normal(4).astype(np.float32),
              "w": rng.standard_normal((2, 4)).astype(np.float32)}  # fmt: skip
    nodes = [op("ScaledSiLU", "x", "a", MS, alpha=0.5), op("ScaledSiLU", "x,s", "b", MS),
             op("GatedRMSNorm", "x,c,z", "d", MS, epsilon=1e-3),
             op("GatedRMSNorm", "x,c,z", "e", MS, activation="sigmoid"),
             op("BranchwiseRMSNorm", "x,w", "f", MS, num_branches=2),
             op("BranchwiseRMSNorm", "x", "g", MS, num_branches=4),
             op("GatedAdd", "x,z,u", "h", MS)]  # fmt: skip
    inputs = {"x": X, "z": X, "u": f32("batch", "sequence", 1)}
    check(tmp_path, nodes, inputs, consts)
    refuses(tmp_path, [op("GatedRMSNorm", "x,c,z", "y", MS, activation="relu")], inputs,
            "with activation 'relu'", consts)  # fmt: skip


# -- random expressions ------------------------------------------------------------------------

SMOOTH = ("Tanh", "Sigmoid", "Neg", "Abs", "Sin", "Relu", "Softsign", "Elu", "Erf", "Identity")
KINDS = ("one", "two", "const", "reduce", "softmax", "matmul", "slice", "concat", "turn", "heads",
         "pad", "norm", "split")  # fmt: skip
PAIRS = ("Add", "Sub", "Mul", "Max", "Min")


@st.composite
def expressions(draw: st.DrawFn) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Nodes over `x` [batch, sequence, 8] and constants; every value keeps three dimensions."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    widths = {"x": 8}
    nodes: list[Any] = []
    consts: dict[str, np.ndarray] = {}

    def const(array: Any) -> str:
        name = f"k{len(consts)}"
        consts[name] = np.asarray(array)
        return name

    def ints(*numbers: int) -> str:
        return const(np.array(numbers, np.int64))

    for i in range(draw(st.integers(1, 7))):
        a = draw(st.sampled_from(sorted(widths)))
        n, out = widths[a], f"v{i}"
        kind = draw(st.sampled_from(KINDS))
        if kind == "one":
            made, width = op(draw(st.sampled_from(SMOOTH)), a, out), n
        elif kind == "two":
            same = [k for k, m in widths.items() if m in (1, n)]
            made = op(draw(st.sampled_from(PAIRS)), f"{a},{draw(st.sampled_from(same))}", out)
            width = n
        elif kind == "const":
            shape = draw(st.sampled_from(((n,), (1, n), (), (1, 1, 1))))
            k = const(rng.standard_normal(shape).astype(np.float32))
            made, width = op(draw(st.sampled_from(PAIRS)), f"{k},{a}", out), n
        elif kind == "reduce":
            fn = draw(st.sampled_from(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2")))
            made, width = op(fn, f"{a},{ints(-1)}", out), 1
        elif kind == "softmax":
            made, width = op("Softmax", a, out, axis=draw(st.sampled_from((-1, 1)))), n
        elif kind == "matmul":
            width = draw(st.sampled_from((1, 3, 8)))
            k = const((rng.standard_normal((n, width)) / np.sqrt(n)).astype(np.float32))
            made = op("MatMul", f"{a},{k}", out)
        elif kind == "slice":
            step_ = draw(st.sampled_from((-1, 1, 2)))
            start = draw(st.integers(0, n - 1))
            made = op("Slice", f"{a},{ints(start)},{ints(n if step_ > 0 else -n - 1)},{ints(2)},"
                      f"{ints(step_)}", out)  # fmt: skip
            width = len(range(start, n if step_ > 0 else -1, step_))
        elif kind == "concat":
            c = draw(st.sampled_from(sorted(widths)))
            made, width = op("Concat", f"{a},{c}", out, axis=-1), n + widths[c]
        elif kind == "turn":
            nodes.append(op("Transpose", a, f"{out}t", perm=[0, 2, 1]))
            nodes.append(op("Softmax", f"{out}t", f"{out}s", axis=draw(st.sampled_from((1, 2)))))
            made, width = op("Transpose", f"{out}s", out, perm=[0, 2, 1]), n
        elif kind == "heads":
            parts = next(p for p in (4, 3, 2, 1) if n % p == 0)
            nodes.append(op("Reshape", f"{a},{ints(0, 0, parts, n // parts)}", f"{out}h"))
            nodes.append(op("Transpose", f"{out}h", f"{out}t", perm=[0, 1, 3, 2]))
            made, width = op("Reshape", f"{out}t,{ints(0, 0, -1)}", out), n
        elif kind == "pad":
            k = ints(draw(st.integers(0, 2)), draw(st.integers(0, 2)))
            made = op("Pad", f"{a},{k},,{ints(2)}", out)
            width = n + int(consts[k].sum())
        elif kind == "norm":
            made = op("LayerNormalization", f"{a},{const(np.ones(n, np.float32))}", out)
            width = n
        else:
            k = ints(n // 2, n - n // 2)
            made, width = op("Split", f"{a},{k}", f"{out}l,{out}", axis=2), n - n // 2
        nodes.append(made)
        widths[out] = width
    return nodes, consts


def _agrees(folder: Path, graph: tuple[list[Any], dict[str, np.ndarray]], at: Step) -> None:
    nodes, consts = graph
    check(folder, nodes, {"x": X}, consts, 22, steps=(at,), outputs=(nodes[-1].output[-1],),
          least=0.1)  # fmt: skip


FEW = settings(max_examples=25, deadline=None, derandomize=True,
               suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip


@FEW
@given(graph=expressions(), at=st.sampled_from(STEPS))
def test_random_expressions(tmp_path: Path, graph: Any, at: Step) -> None:
    _agrees(tmp_path, graph, at)


@pytest.mark.slow
@settings(FEW, max_examples=600)
@given(graph=expressions(), at=st.sampled_from(STEPS))
def test_many_random_expressions(tmp_path: Path, graph: Any, at: Step) -> None:
    _agrees(tmp_path, graph, at)


def test_inputs_of_other_types_reach_the_oracle(tmp_path: Path) -> None:
    ids = tensor("int64", "batch", "sequence", make=lambda r, s: r.integers(0, 5, s))
    table = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    check(tmp_path, [op("Gather", "w,input_ids")], {"input_ids": ids}, {"w": table})
