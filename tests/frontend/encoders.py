"""Small encoder-decoders: the decoder in one file with a branch, or one file per step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from .caches import SMALL
from .decoders import Draft, Sizes
from .models import info, weight, write

PARTS = [(side, half) for side in ("decoder", "encoder") for half in ("key", "value")]


class CrossDecoder(Draft):
    """Nodes of a decoder with cross attention; fused: by MultiHeadAttention operators."""

    def __init__(self, sizes: Sizes, fused: bool) -> None:
        super().__init__(sizes)
        self.fused = fused

    def w(self, name: str, *shape: int, like: float = 0.0) -> str:
        """The same weight in both files."""
        self.rng = np.random.default_rng([7, *name.encode()])
        return super().w(name, *shape, like=like)

    def heads(self, x: str, name: str) -> str:
        s = self.sizes
        y = self.op("MatMul", x, self.w(name, s.hidden, s.heads * s.head))
        y = self.op("Reshape", y, self.ints(0, 0, s.heads, s.head))
        return self.op("Transpose", y, perm=[0, 2, 1, 3])

    def mix(self, q: str, k: str, v: str, bias: str = "") -> str:
        s = self.sizes
        if self.fused and not bias:
            flat = self.op("Transpose", q, perm=[0, 2, 1, 3])
            flat = self.op("Reshape", flat, self.ints(0, 0, s.heads * s.head))
            return self.op("MultiHeadAttention", flat, k, v, domain="com.microsoft",
                           num_heads=s.heads)  # fmt: skip
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = self.op("Div", scores, self.number(float(s.head) ** 0.5))
        scores = self.op("Add", scores, bias) if bias else scores
        out = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        out = self.op("Transpose", out, perm=[0, 2, 1, 3])
        return self.op("Reshape", out, self.ints(0, 0, s.heads * s.head))

    def size(self, x: str, axis: int) -> str:
        return self.op("Squeeze", self.op("Gather", self.op("Shape", x), self.ints(axis)))

    def bias(self, keys: str) -> str:
        for n in (0, 1):
            self.weights[f"n{n}"] = weight(f"n{n}", np.array(n, np.int64))
        total, new = self.size(keys, 2), self.size("input_ids", 1)
        rows = self.op("Range", self.op("Sub", total, new), total, "n1")
        cols = self.op("Range", "n0", total, "n1")
        seen = self.op("LessOrEqual", self.op("Unsqueeze", cols, self.ints(0)),
                       self.op("Unsqueeze", rows, self.ints(1)))  # fmt: skip
        return self.op("Where", seen, self.number(0.0), self.number(-1e9))

    def decode(self, cached: bool, tag: str = "", own: bool = True) -> dict[str, str]:
        """All layers; results by the outputs' names. own: encoder presents are put out."""
        s = self.sizes
        outs: dict[str, str] = {}
        x = self.op("Gather", self.w("embed", s.vocab, s.hidden), "input_ids")
        for i in range(s.layers):
            q, k, v = (self.heads(x, f"{i}.{p}") for p in "qkv")
            if cached:
                k, v = (self.op("Concat", f"past_key_values.{i}.decoder.{h}", y, axis=2)
                        for h, y in (("key", k), ("value", v)))  # fmt: skip
            outs[f"present.{i}.decoder.key"], outs[f"present.{i}.decoder.value"] = k, v
            y = self.mix(q, k, v, self.bias(k))
            x = self.op(
                "Add", x, self.op("MatMul", y, self.w(f"{i}.o", s.heads * s.head, s.hidden))
            )
            q = self.heads(x, f"{i}.cq")
            if cached:
                k, v = (f"past_key_values.{i}.encoder.{h}" for h in ("key", "value"))
            else:
                k, v = (self.heads("encoder_hidden_states", f"{i}.c{p}") for p in "kv")
            if own:
                for half, z in (("key", k), ("value", v)):
                    outs[f"present.{i}.encoder.{half}"] = self.op("Identity", z) if cached else z
            y = self.mix(q, k, v)
            x = self.op(
                "Add", x, self.op("MatMul", y, self.w(f"{i}.co", s.heads * s.head, s.hidden))
            )
            x = self.op("Add", x, self.mlp(x, str(i)))
        outs["logits"] = self.op("MatMul", x, self.w("head", s.hidden, s.vocab))
        return outs

    def ports(self, past: bool, present: bool, encoder: bool) -> tuple[list[Any], list[Any]]:
        s = self.sizes
        inputs = [info("input_ids", "int64", ["batch", "sequence_length"])]
        outputs = [info("logits", "float32", ["batch", "sequence_length", s.vocab])]
        if encoder:
            shape = ["batch", "encoder_sequence_length", s.hidden]
            inputs.append(info("encoder_hidden_states", "float32", shape))
        for i in range(s.layers):
            for side, half in PARTS:
                size = "past" if side == "decoder" else "encoder_sequence_length"
                dims = ["batch", s.heads, size, s.head]
                if past:
                    inputs.append(info(f"past_key_values.{i}.{side}.{half}", "float32", dims))
                if present or side == "decoder":
                    dims = ["batch", s.heads, f"{side}_out", s.head]
                    outputs.append(info(f"present.{i}.{side}.{half}", "float32", dims))
        return inputs, outputs


def _named(d: CrossDecoder, outs: dict[str, str]) -> None:
    for name, value in outs.items():
        d.nodes.append(helper.make_node("Identity", [value], [name], f"out {name}"))


def in_two(folder: Path, sizes: Sizes = SMALL, fused: bool = False) -> tuple[Path, Path]:
    """The first step, which makes the encoder's keys and values, and the others, which only read
    them: two files of the same weights."""
    paths = folder / "first.onnx", folder / "next.onnx"
    for path, cached in zip(paths, (False, True), strict=True):
        d = CrossDecoder(sizes, fused)
        outs = d.decode(cached, own=not cached)
        _named(d, outs)
        d.save(path, *d.ports(cached, not cached, not cached), 18)
    return paths


def merged(path: Path, sizes: Sizes = SMALL, fused: bool = False) -> Path:
    """Both steps as branches on use_cache_branch, in one file."""
    branches = {}
    d = CrossDecoder(sizes, fused)
    for name, cached in (("else_branch", False), ("then_branch", True)):
        d.nodes = []
        outs = d.decode(cached, own=True)
        _, outputs = d.ports(True, True, True)
        ends = [helper.make_empty_tensor_value_info(outs[o.name]) for o in outputs]
        branches[name] = helper.make_graph(d.nodes, name, [], ends)
    inputs, outputs = d.ports(True, True, True)
    inputs.append(info("use_cache_branch", "bool", [1]))
    node = helper.make_node("If", ["use_cache_branch"], [o.name for o in outputs], **branches)
    opsets = {"": 18, "com.microsoft": 1}
    return write(path, [node], inputs, outputs, list(d.weights.values()), opsets)
