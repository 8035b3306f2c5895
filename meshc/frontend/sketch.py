"""Decoder layers as an ONNX graph whose weights are known by shape only.

What published mappings were measured on: identical layers of one-head attention and a gated MLP,
without embedding, rotation and head. Such a graph can be timed, not computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, save


@dataclass(frozen=True)
class Layers:
    """Sizes of the layers. Weights and activations are fp16."""

    layers: int
    hidden: int
    inner: int

    def write(self, path: Path, rng: np.random.Generator | None = None) -> None:
        """Write the graph: inputs hidden [1, tokens, hidden] and the layers' caches [1, 1, past,
        hidden]; outputs of the same names.

        rng: weights are drawn from it and kept in the file; without it they are absent.
        """
        draft = _Draft(self, rng)
        half, h = TensorProto.FLOAT16, self.hidden
        inputs = [helper.make_tensor_value_info("hidden", half, [1, "tokens", h])]
        outputs = []
        x = "hidden"
        for n in range(self.layers):
            cache = [f"past_{kind}_{n}" for kind in ("key", "value")]
            made = [f"present_{kind}_{n}" for kind in ("key", "value")]
            for name in cache:
                inputs.append(helper.make_tensor_value_info(name, half, [1, 1, "past", h]))
            for name in made:
                outputs.append(helper.make_tensor_value_info(name, half, [1, 1, "total", h]))
            x = draft.layer(n, x, cache, made)
        draft.node("Identity", [x], ["output"])
        outputs.insert(0, helper.make_tensor_value_info("output", half, [1, "tokens", h]))
        graph = helper.make_graph(draft.nodes, "layers", inputs, outputs, draft.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
        save(model, path)


class _Draft:
    """Nodes and weights of the graph so far."""

    def __init__(self, sizes: Layers, rng: np.random.Generator | None) -> None:
        self.sizes, self.rng = sizes, rng
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.at = 0

    def node(self, kind: str, inputs: list[str], outputs: list[str], **attrs: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, outputs or [name], name, **attrs))
        return (outputs or [name])[0]

    def weight(self, name: str, *shape: int) -> str:
        if self.rng is not None:
            scale = 1.0 / np.sqrt(shape[0]) if len(shape) > 1 else 1.0
            array = (self.rng.standard_normal(shape) * scale).astype(np.float16)
            self.weights.append(helper.make_tensor(name, TensorProto.FLOAT16, shape,
                                                   array.tobytes(), raw=True))  # fmt: skip
            return name
        size = 2 * int(np.prod(shape))
        t = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT16)
        t.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "absent.data"), ("offset", self.at), ("length", size)):
            t.external_data.add(key=key, value=str(value))
        self.at += size
        self.weights.append(t)
        return name

    def layer(self, n: int, x: str, cache: list[str], made: list[str]) -> str:
        h, f = self.sizes.hidden, self.sizes.inner
        normed = self.node("RMSNormalization", [x, self.weight(f"{n}.norm1", h)], [], axis=-1)
        q, k, v = (
            self.node("MatMul", [normed, self.weight(f"{n}.{name}", h, h)], []) for name in "qkv"
        )
        mixed = self.node(
            "Attention",
            [q, k, v, "", *cache],
            [f"mixed_{n}", *made],
            q_num_heads=1,
            kv_num_heads=1,
            is_causal=1,
        )
        x = self.node("Add", [x, self.node("MatMul", [mixed, self.weight(f"{n}.o", h, h)], [])], [])
        normed = self.node("RMSNormalization", [x, self.weight(f"{n}.norm2", h)], [], axis=-1)
        gate, up = (
            self.node("MatMul", [normed, self.weight(f"{n}.{name}", h, f)], [])
            for name in ("gate", "up")
        )
        act = self.node("Mul", [gate, self.node("Sigmoid", [gate], [])], [])
        both = self.node("Mul", [act, up], [])
        down = self.node("MatMul", [both, self.weight(f"{n}.down", f, h)], [])
        return self.node("Add", [x, down], [])
