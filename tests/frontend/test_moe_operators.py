"""MoE and QMoE against ONNX Runtime, which computes them on the CPU, and against numpy where it
does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from meshc.frontend import bind, load_model
from meshc.fusion import fuse

from .harness import Step, check, f32, op, refuses, tensor, write
from .models import step

T, H, WIDE, E = 5, 16, 32, 4
RNG = np.random.default_rng(5)
MIX = "com.microsoft"


def r(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.4).astype(np.float32)


def inputs(width: int = H) -> dict[str, Any]:
    return {"x": f32("batch", "sequence", width), "p": f32("batch", "sequence", E)}


def routed(kind: str, names: str, **attrs: Any) -> list[Any]:
    """The operator behind a reshape of the scores to one row per token."""
    return [
        op("Reshape", "p,rows", "scores"),
        op(kind, names, "y", MIX, **attrs),
    ]


ROWS = {"rows": np.array([-1, E], np.int64)}


@pytest.mark.parametrize("attrs", [
    {"activation_type": "relu"}, {"activation_type": "silu", "k": 2},
    {"activation_type": "gelu", "k": 3, "normalize_routing_weights": 1},
    {"activation_type": "identity", "k": 2, "normalize_routing_weights": 1},
], ids=str)  # fmt: skip
def test_moe(tmp_path: Path, attrs: dict[str, Any]) -> None:
    weights = {"w1": r(E, WIDE, H), "b1": r(E, WIDE), "w2": r(E, H, WIDE), "b2": r(E, H)}
    check(tmp_path, routed("MoE", "x,scores,w1,b1,w2,b2", **attrs), inputs(), {**weights, **ROWS})


@pytest.mark.parametrize(
    "attrs", [{}, {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.5}], ids=str
)
def test_moe_with_interleaved_gate(tmp_path: Path, attrs: dict[str, Any]) -> None:
    weights = {"w1": r(E, 2 * WIDE, H), "b1": r(E, 2 * WIDE), "w2": r(E, H, WIDE)}
    nodes = routed("MoE", "x,scores,w1,b1,w2", activation_type="swiglu", swiglu_fusion=1, k=2,
                   normalize_routing_weights=1, **attrs)  # fmt: skip
    check(tmp_path, nodes, inputs(), {**weights, **ROWS})


def test_moe_of_weights_declared_the_old_way_round(tmp_path: Path) -> None:
    weights = {"w1": r(E, H, WIDE), "w2": r(E, WIDE, H)}
    check(tmp_path, routed("MoE", "x,scores,w1,,w2", k=2), inputs(), {**weights, **ROWS})


def test_moe_prefers_later_experts_among_equals(tmp_path: Path) -> None:
    given = {**inputs(), "p": f32("batch", "sequence", E, make=lambda g, s: g.integers(0, 2, s))}
    weights = {"w1": r(E, WIDE, H), "w2": r(E, H, WIDE)}
    check(tmp_path, routed("MoE", "x,scores,w1,,w2", k=2), given, {**weights, **ROWS})


def _quantised(w: np.ndarray, bits: int, block: int, own_zero: bool) -> list[np.ndarray]:
    """Codes, scales and zero points as QMoE stores them."""
    count, n, k = w.shape
    blocks = w.reshape(count, n, -1, block or k)
    top = 2**bits
    if own_zero:
        low, high = blocks.min(-1), blocks.max(-1)
        scale = (high - low) / (top - 1)
        zero = np.clip(np.round(-low / scale), 0, top - 1)
    else:
        scale = np.abs(blocks).max(-1) / (top / 2 - 1)
        zero = np.full(scale.shape, top // 2)
    codes = np.clip(np.round(blocks / scale[..., None]) + zero[..., None], 0, top - 1)
    per = 8 // bits

    def packed(a: np.ndarray) -> np.ndarray:
        a = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, -a.shape[-1] % per)]).astype(np.uint8)
        return sum((a[..., i::per] << (bits * i) for i in range(per)), np.zeros((), np.uint8))

    scales = scale.astype(np.float32) if block else scale[..., 0].astype(np.float32)
    zeros = packed(zero) if block else packed(zero[..., 0])
    return [packed(codes.reshape(count, n, k)), scales, zeros]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize(("zeros", "mixing", "attrs"), [
    (False, False, {"activation_type": "silu"}),
    (True, False, {"activation_type": "relu", "normalize_routing_weights": 1}),
    (True, True, {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.702,
                  "activation_beta": 1.0, "swiglu_limit": 0.7}),
    (False, True, {"activation_type": "gelu", "normalize_routing_weights": 1}),
])  # fmt: skip
def test_qmoe(
    tmp_path: Path, bits: int, block: int, zeros: bool, mixing: bool, attrs: dict[str, Any]
) -> None:
    wide = 2 * WIDE if attrs["activation_type"] == "swiglu" else WIDE
    c1, s1, z1 = _quantised(r(E, wide, 32), bits, block, zeros)
    c2, s2, z2 = _quantised(r(E, 32, WIDE), bits, block, zeros)
    constants = {"c1": c1, "s1": s1, "c2": c2, "s2": s2, "b2": r(E, 32), **ROWS}
    names = "x,scores,c1,s1,,c2,s2,b2,,,," + ("z1,z2,," if zeros else ",,,")
    if zeros:
        constants |= {"z1": z1, "z2": z2}
    given = inputs(32)
    nodes = routed("QMoE", names + ("shares" if mixing else ""), k=2, expert_weight_bits=bits,
                   **({"block_size": block} if block else {}), **attrs)  # fmt: skip
    if mixing:
        given["m"] = f32("batch", "sequence", E, make=lambda g, s: g.random(s) + 0.1)
        nodes.insert(0, op("Reshape", "m,rows", "shares"))
    # ONNX Runtime rounds the activations to 8 bits where blocks of 8-bit weights are constant.
    limit = 2e-2 if bits == 8 and block else None
    steps = (Step(2, 3, (2, 2)), Step(3, 1, (2, 3)))
    for bound in check(tmp_path, nodes, given, constants, steps=steps, limit=limit):
        products = [o for _, o in fuse(bound.graph).ops() if o.core == "experts"]
        assert {o.attr("quantised") for o in products} == {bits}  # packed in SRAM


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("kind", ["fc3", "swiglu", "swiglu fc3", "geglu", "late limit", "relu2"])
def test_forms_that_only_the_gpu_has(tmp_path: Path, kind: str) -> None:
    """The whole expert folds where all is known, so that numpy can say what it should be."""
    attrs: dict[str, Any] = {"k": E, "activation_type": "silu", "normalize_routing_weights": 1}
    third = kind in ("fc3", "swiglu fc3")
    wide = WIDE if third or kind == "relu2" else 2 * WIDE
    x, p = r(T, H) * 4, r(T, E)
    w1, w2, w3 = r(E, wide, H), r(E, H, WIDE), r(E, WIDE, H)
    g, u = (
        np.einsum("th,eih->tei", x, w1[:, :WIDE]),
        np.einsum("th,eih->tei", x, w1[:, wide - WIDE :]),
    )
    if third:
        u = np.einsum("th,eih->tei", x, w3)
    h = _silu(g) * u
    if kind == "relu2":
        attrs["activation_type"], h = "relu2", np.maximum(g, 0) ** 2
    elif kind == "geglu":
        attrs |= {"activation_type": "geglu", "swiglu_fusion": 2}
        h = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3))) * u
    elif kind == "late limit":
        attrs |= {"activation_type": "swiglu", "swiglu_fusion": 2, "swiglu_limit": 0.5,
                  "swiglu_limit_after_activation": 1}  # fmt: skip
        h = np.minimum(_silu(g), 0.5) * np.clip(u, -0.5, 0.5)
    elif kind != "fc3":
        attrs |= {"activation_type": "swiglu", "swiglu_fusion": 0 if third else 2}
    share = np.exp(p) / np.exp(p).sum(1, keepdims=True)
    want = np.einsum("te,tei,ehi->th", share, h, w2)
    constants = {"x": x, "p": p, "w1": w1, "w2": w2, **({"w3": w3} if third else {})}
    names = "x,p,w1,,w2" + (",,w3" if third else "")
    nodes = [op("MoE", names, "m", MIX, **attrs), op("Add", "m,zero", "y")]
    path = write(tmp_path / "g.onnx", nodes, {"zero": f32("batch", H)}, constants)
    proto = onnx.load(path)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, ["batch", H]))
    onnx.save(proto, path)
    bound = bind(load_model(path), step(T, 1))
    (name,) = [n for n in bound.data.consts if bound.data.consts[n].shape == (T, H)]
    np.testing.assert_allclose(bound.data.read(name), want, 1e-4, 1e-4)


@pytest.mark.parametrize(("attrs", "reason"), [
    ({"use_sparse_mixer": 1}, "with use_sparse_mixer"),
    ({"activation_type": "tanh"}, "with activation_type 'tanh'"),
    ({"k": 5}, "with k = 5 of 4 experts"),
    ({"activation_type": "swiglu", "swiglu_fusion": 0}, "fc3 weights"),
])  # fmt: skip
def test_what_is_refused(tmp_path: Path, attrs: dict[str, Any], reason: str) -> None:
    weights = {"w1": r(E, WIDE, H), "w2": r(E, H, WIDE)}
    given = {"x": f32("batch", H), "p": f32("batch", E)}
    refuses(tmp_path, [op("MoE", "x,p,w1,,w2", "y", MIX, **attrs)], given, reason, weights)


def test_quantisations_other_than_integers_are_refused(tmp_path: Path) -> None:
    codes = np.zeros((E, WIDE, H), np.uint8)
    given = {"x": f32("batch", H), "p": f32("batch", E), "q": tensor("uint8", E, H, WIDE)}
    node = op("QMoE", "x,p,c,s,,q,s", "y", MIX, quant_type="fp8")
    constants = {"c": codes, "s": r(E, WIDE)}
    refuses(tmp_path, [node], given, "with quant_type 'fp8'", constants)
