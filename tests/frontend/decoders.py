"""Decoders of any size in the spellings of three exporters, with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from .models import info, weight, write


@dataclass(frozen=True)
class Sizes:
    layers: int = 3
    heads: int = 4
    groups: int = 2
    head: int = 16
    hidden: int = 24
    inner: int = 40
    vocab: int = 53
    rows: int = 64  # of the position table


class Draft:
    """Nodes and weights of a graph; `op` adds a node and returns its output's name."""

    def __init__(self, sizes: Sizes, dtype: Any = np.float32) -> None:
        self.sizes, self.dtype = sizes, dtype
        self.rng = np.random.default_rng(5)
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.count = 0

    def op(self, kind: str, *inputs: str, out: str = "", domain: str = "", **attrs: Any) -> str:
        return self.ops(kind, *inputs, outs=(out,), domain=domain, **attrs)[0]

    def ops(
        self, kind: str, *inputs: str, outs: tuple[str, ...], domain: str = "", **attrs: Any
    ) -> list[str]:
        self.count += 1
        names = [o or f"{kind}_{self.count}_{i}" for i, o in enumerate(outs)]
        names = ["" if n == "-" else n for n in names]
        self.nodes.append(
            helper.make_node(kind, inputs, names, f"{kind}_{self.count}", domain=domain, **attrs)
        )
        return names

    def w(self, name: str, *shape: int, like: float = 0.0) -> str:
        array = like + self.rng.standard_normal(shape) / np.sqrt(shape[0])
        self.weights[name] = weight(name, array.astype(self.dtype))
        return name

    def ints(self, *numbers: int) -> str:
        name = "i" + "_".join(map(str, numbers))
        self.weights[name] = weight(name, np.array(numbers, np.int64))
        return name

    def number(self, value: float) -> str:
        name = f"c{value}"
        self.weights[name] = weight(name, np.array(value, self.dtype))
        return name

    def tables(self) -> tuple[str, str]:
        s = self.sizes
        angles = np.arange(s.rows)[:, None] / 100.0 ** (np.arange(s.head // 2) / s.head * 2)
        for name, array in (("cos_table", np.cos(angles)), ("sin_table", np.sin(angles))):
            self.weights[name] = weight(name, array.astype(self.dtype))
        return "cos_table", "sin_table"

    def mlp(self, x: str, layer: str) -> str:
        s = self.sizes
        gate = self.op("MatMul", x, self.w(f"{layer}.gate", s.hidden, s.inner))
        up = self.op("MatMul", x, self.w(f"{layer}.up", s.hidden, s.inner))
        act = self.op("Mul", gate, self.op("Sigmoid", gate))
        both = self.op("Mul", act, up)
        return self.op("MatMul", both, self.w(f"{layer}.down", s.inner, s.hidden))

    def save(self, path: Path, inputs: list[Any], outputs: list[Any], opset: int) -> Path:
        opsets = {"": opset, "com.microsoft": 1}
        return write(path, self.nodes, inputs, outputs, list(self.weights.values()), opsets)


def _ports(sizes: Sizes, kind: str, positions: bool, mask: bool) -> tuple[list[Any], list[Any]]:
    inputs = [info("input_ids", "int64", ["batch", "seq"])]
    if mask:
        inputs.append(info("attention_mask", "int64", ["batch", "total"]))
    if positions:
        inputs.append(info("position_ids", "int64", ["batch", "seq"]))
    outputs = [info("logits", kind, ["batch", "seq", sizes.vocab])]
    for i in range(sizes.layers):
        for part in ("key", "value"):
            cache = ["batch", sizes.groups, "past", sizes.head]
            inputs.append(info(f"past_key_values.{i}.{part}", kind, cache))
            outputs.append(info(f"present.{i}.{part}", kind, ["b", sizes.groups, "t", "d"]))
    return inputs, outputs


def genai(path: Path, sizes: Sizes, dtype: Any = np.float32) -> Path:
    """GroupQueryAttention with packed projections, lengths from the mask, skip norms."""
    s, d, ms = sizes, Draft(sizes, dtype), "com.microsoft"
    total = d.op("ReduceSum", "attention_mask", d.ints(1), keepdims=0)
    last = d.op("Cast", d.op("Sub", total, d.ints(1)), to=6)
    length = d.op("Gather", d.op("Shape", "attention_mask"), d.ints(1))
    length = d.op("Cast", d.op("Squeeze", length), to=6)
    tables = d.tables()
    x = d.op("Gather", d.w("embed", s.vocab, s.hidden), "input_ids")
    norm = d.op("SimplifiedLayerNormalization", x, d.w("n0", s.hidden, like=1), epsilon=1e-5)
    for i in range(s.layers):
        width = (s.heads + 2 * s.groups) * s.head
        qkv = d.op("MatMul", norm, d.w(f"{i}.qkv", s.hidden, width))
        past = (f"past_key_values.{i}.key", f"past_key_values.{i}.value")
        mix = d.ops(
            "GroupQueryAttention", qkv, "", "", *past, last, length, *tables,
            outs=("", f"present.{i}.key", f"present.{i}.value"), domain=ms, num_heads=s.heads,
            kv_num_heads=s.groups, do_rotary=1,
        )[0]  # fmt: skip
        out = d.op("MatMul", mix, d.w(f"{i}.o", s.heads * s.head, s.hidden))
        norm, _, _, x = d.ops(
            "SkipSimplifiedLayerNormalization", x, out, d.w(f"{i}.n1", s.hidden, like=1),
            outs=("", "-", "-", ""), domain=ms, epsilon=1e-5,
        )  # fmt: skip
        outs = ("",) if i == s.layers - 1 else ("", "-", "-", "")
        result = d.ops(
            "SkipSimplifiedLayerNormalization", x, d.mlp(norm, str(i)),
            d.w(f"{i}.n2", s.hidden, like=1), outs=outs, domain=ms, epsilon=1e-5,
        )  # fmt: skip
        norm, x = result[0], result[-1]
    d.op("MatMul", norm, d.w("head", s.hidden, s.vocab), out="logits")
    return d.save(path, *_ports(s, np.dtype(dtype).name, False, True), 21)


def standard(path: Path, sizes: Sizes, dtype: Any = np.float32) -> Path:
    """ai.onnx Attention, RotaryEmbedding and RMSNormalization of opset 24."""
    s, d = sizes, Draft(sizes, dtype)
    tables = [d.op("Gather", t, "position_ids") for t in d.tables()]
    mask = d.op("Unsqueeze", d.op("Cast", "attention_mask", to=9), d.ints(1))
    shape = [d.op("Shape", "input_ids"), d.op("Shape", "attention_mask", start=1, end=2)]
    mask = d.op("Expand", mask, d.op("Concat", *shape, axis=0))
    mask = d.op("Unsqueeze", mask, d.ints(1))
    x = d.op("Gather", d.w("embed", s.vocab, s.hidden), "input_ids")
    for i in range(s.layers):
        norm = d.op("RMSNormalization", x, d.w(f"{i}.n1", s.hidden, like=1), epsilon=1e-5)
        parts = []
        for part, heads in (("q", s.heads), ("k", s.groups), ("v", s.groups)):
            y = d.op("MatMul", norm, d.w(f"{i}.{part}", s.hidden, heads * s.head))
            y = y if part == "v" else d.op("RotaryEmbedding", y, *tables, num_heads=heads)
            parts.append(y)
        past = (f"past_key_values.{i}.key", f"past_key_values.{i}.value")
        mix = d.ops(
            "Attention", *parts, mask, *past, outs=("", f"present.{i}.key", f"present.{i}.value"),
            q_num_heads=s.heads, kv_num_heads=s.groups, is_causal=1,
        )[0]  # fmt: skip
        x = d.op("Add", x, d.op("MatMul", mix, d.w(f"{i}.o", s.heads * s.head, s.hidden)))
        norm = d.op("RMSNormalization", x, d.w(f"{i}.n2", s.hidden, like=1), epsilon=1e-5)
        x = d.op("Add", x, d.mlp(norm, str(i)))
    norm = d.op("RMSNormalization", x, d.w("n", s.hidden, like=1), epsilon=1e-5)
    d.op("MatMul", norm, d.w("head", s.hidden, s.vocab), out="logits")
    return d.save(path, *_ports(s, np.dtype(dtype).name, True, True), 24)


def traced(path: Path, sizes: Sizes, dtype: Any = np.float32, past: bool = True) -> Path:
    """Everything spelled out: shape arithmetic, masks from Range, repeated heads, scaled keys."""
    s, d = sizes, Draft(sizes, dtype)
    to = {"float32": 1, "float16": 10}[np.dtype(dtype).name]

    def dim(x: str, i: int) -> str:
        return d.op("Gather", d.op("Shape", x), d.ints(i), axis=0)

    batch, new = dim("input_ids", 0), dim("input_ids", 1)
    old = dim("past_key_values.0.key", 2) if past else d.ints(0)
    total = d.op("Add", old, new)
    scalar = [d.op("Squeeze", v) for v in (old, total, d.ints(0), d.ints(1))]
    rows = d.op("Unsqueeze", d.op("Range", scalar[0], scalar[1], scalar[3]), d.ints(1))
    cols = d.op("Unsqueeze", d.op("Range", scalar[2], scalar[1], scalar[3]), d.ints(0))
    seen = d.op("Unsqueeze", d.op("LessOrEqual", cols, rows), d.ints(0, 1))
    ones = d.op("Unsqueeze", d.op("Cast", "attention_mask", to=9), d.ints(1, 2))
    seen = d.op("And", seen, ones)
    full = d.op("Concat", batch, d.ints(1), new, total, axis=0)
    seen = d.op("Expand", seen, full)
    bias = d.op("Where", seen, d.number(0.0), d.number(-1e4))
    angles = [d.op("Gather", t, "position_ids") for t in d.tables()]
    cos, sin = (d.op("Unsqueeze", d.op("Concat", a, a, axis=-1), d.ints(1)) for a in angles)

    def turned(x: str) -> str:
        half = d.op("Div", dim(x, 3), d.ints(2))
        low = d.op("Slice", x, d.ints(0), half, d.ints(3))
        high = d.op("Slice", x, half, d.ints(2**63 - 1), d.ints(3))
        other = d.op("Concat", d.op("Neg", high), low, axis=-1)
        return d.op("Add", d.op("Mul", x, cos), d.op("Mul", other, sin))

    def norm_of(x: str, name: str) -> str:
        wide = d.op("Cast", x, to=1)
        d.weights["two"] = weight("two", np.array(2.0, np.float32))
        d.weights["eps"] = weight("eps", np.array(1e-5, np.float32))
        mean = d.op("ReduceMean", d.op("Pow", wide, "two"), d.ints(-1))
        root = d.op("Reciprocal", d.op("Sqrt", d.op("Add", mean, "eps")))
        return d.op(
            "Mul", d.w(name, s.hidden, like=1), d.op("Cast", d.op("Mul", wide, root), to=to)
        )

    def repeated(x: str) -> str:
        b, h, t, w = (dim(x, i) for i in range(4))
        wide = d.op("Concat", b, h, d.ints(s.heads // s.groups), t, w, axis=0)
        flat = d.op("Concat", b, d.ints(s.heads), t, w, axis=0)
        return d.op("Reshape", d.op("Expand", d.op("Unsqueeze", x, d.ints(2)), wide), flat)

    root = d.number(float(s.head) ** -0.25)
    x = d.op("Gather", d.w("embed", s.vocab, s.hidden), "input_ids")
    for i in range(s.layers):
        norm = norm_of(x, f"{i}.n1")
        parts = {}
        for part, heads in (("q", s.heads), ("k", s.groups), ("v", s.groups)):
            y = d.op("MatMul", norm, d.w(f"{i}.{part}", s.hidden, heads * s.head))
            shape = d.op("Concat", batch, new, d.ints(-1), d.ints(s.head), axis=0)
            y = d.op("Transpose", d.op("Reshape", y, shape), perm=[0, 2, 1, 3])
            parts[part] = y if part == "v" else turned(y)
        for part, name in (("k", "key"), ("v", "value")):
            out = f"present.{i}.{name}"
            if past:
                parts[part] = d.op(
                    "Concat", f"past_key_values.{i}.{name}", parts[part], out=out, axis=-2
                )
            else:
                d.op("Identity", parts[part], out=out)
        k = d.op("Transpose", repeated(parts["k"]), perm=[0, 1, 3, 2])
        scores = d.op("MatMul", d.op("Mul", parts["q"], root), d.op("Mul", k, root))
        weights = d.op("Softmax", d.op("Add", scores, bias), axis=-1)
        mix = d.op("Transpose", d.op("MatMul", weights, repeated(parts["v"])), perm=[0, 2, 1, 3])
        mix = d.op("Reshape", mix, d.op("Concat", batch, new, d.ints(-1), axis=0))
        x = d.op("Add", x, d.op("MatMul", mix, d.w(f"{i}.o", s.heads * s.head, s.hidden)))
        x = d.op("Add", x, d.mlp(norm_of(x, f"{i}.n2"), str(i)))
    d.op("MatMul", norm_of(x, "n"), d.w("head", s.hidden, s.vocab), out="logits")
    inputs, outputs = _ports(s, np.dtype(dtype).name, True, True)
    if not past:
        inputs = [p for p in inputs if not p.name.startswith("past")]
    return d.save(path, inputs, outputs, 18)
