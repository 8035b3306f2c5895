"""One small decoder whose cache is spelled in each of the ways that exporters have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .decoders import Draft, Sizes
from .models import info, weight

SMALL = Sizes(layers=2, heads=2, groups=2, head=8, hidden=12, inner=10, vocab=41)
WINDOW = 4


@dataclass(frozen=True)
class Spelling:
    """key, value: order of a cached key's and value's dimensions.   write: how new tokens get in.
    stack: dimensions in front, none, "layer" ([2, …]) or "model" ([layers, 2, …])."""

    key: str = "bhsd"
    value: str = "bhsd"
    write: str = "concat"
    stack: str = ""
    turned: bool = False  # the cache is turned to bhsd before tokens are appended
    names: tuple[str, str] = ("past_key_values.{i}.{part}", "present.{i}.{part}")
    symbols: tuple[str, str] = ("past", "total")
    opset: int = 18

    @property
    def static(self) -> bool:
        return self.write in ("elements", "nd", "tensor", "ring", "onehot", "slices")


SPELLINGS: dict[str, Spelling] = {
    "bhsd": Spelling(),
    "bshd": Spelling("bshd", "bshd"),
    "keys bhds": Spelling("bhds"),
    "turned": Spelling("bshd", "bshd", turned=True),
    "flat": Spelling("bsw", "bsw"),
    "heads in batch": Spelling("wds", "wsd"),
    "odd names": Spelling(names=("in_{n}", "out_{n}"), symbols=("s5", "s9")),
    "layer stacks": Spelling(stack="layer"),
    "model stack": Spelling(stack="model"),
    "stack of bshd": Spelling("bshd", "bshd", stack="layer"),
    "scatter elements": Spelling(write="elements"),
    "scatter nd": Spelling(write="nd"),
    "tensor scatter": Spelling(write="tensor", opset=24),
    "one-hot": Spelling(write="onehot"),
    "slices": Spelling(write="slices"),
    "window": Spelling(write="window", symbols=("window", "window")),
}


class Decoder(Draft):
    """The graph under construction."""

    def __init__(self, spelling: Spelling, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.how = spelling
        self.inputs = [info("input_ids", "int64", ["batch", "seq"])]
        self.outputs: list[Any] = []
        self.new = self.dim("input_ids", 1)
        self.batch = self.dim("input_ids", 0)
        if spelling.static:
            self.inputs.append(info("cache_position", "int64", ["seq"]))

    def dim(self, x: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", x), self.ints(axis))

    def size(self, letter: str) -> Any:
        s = self.sizes
        grown = self.how.symbols[0]
        return {
            "b": "batch", "h": s.groups, "s": "buffer" if self.how.static else grown, "d": s.head,
        }[letter]  # fmt: skip

    def dims(self, order: str, present: bool = False) -> list[Any]:
        s, grown = self.sizes, self.how.symbols[1 if present else 0]
        if order == "bsw":
            return ["batch", grown, s.groups * s.head]
        if order[0] == "w":
            return ["rows" if present else f"batch*{s.groups}", *(
                grown if c == "s" else s.head for c in order[1:])]  # fmt: skip
        return [grown if c == "s" and present and not self.how.static else self.size(c)
                for c in order]  # fmt: skip

    def turn(self, x: str, old: str, new: str) -> str:
        """Transposed from one order of letters to another; "w" joins heads with their neighbour."""
        s = self.sizes
        if old == new:
            return x
        if new == "bsw":
            x = self.turn(x, old, "bshd")
            return self.op("Reshape", x, self.ints(0, 0, s.groups * s.head))
        if old == "bsw":
            return self.turn(self.op("Reshape", x, self.ints(0, 0, s.groups, s.head)), "bshd", new)
        if new[0] == "w":
            x = self.turn(x, old, f"bh{new[1:]}")
            rest = [s.head if c == "d" else -1 for c in new[1:]]
            rows = self.op("Mul", self.batch, self.ints(s.groups))
            return self.op("Reshape", x, self.op("Concat", rows, self.ints(*rest), axis=0))
        if old[0] == "w":
            rest = [s.head if c == "d" else -1 for c in old[1:]]
            shape = self.op("Concat", self.batch, self.ints(s.groups, *rest), axis=0)
            return self.turn(self.op("Reshape", x, shape), f"bh{old[1:]}", new)
        return self.op("Transpose", x, perm=[old.index(c) for c in new])

    def put(self, past: str, new: str, order: str, out: str) -> str:
        """The cache with the new tokens in it, both in `order`."""
        axis = order.index("s")
        if self.how.write == "concat":
            return self.op("Concat", past, new, out=out, axis=axis)
        if self.how.write == "window":
            both = self.op("Concat", past, new, axis=axis)
            self.op("Slice", both, self.ints(-WINDOW), self.ints(2**63 - 1), self.ints(axis),
                    out=out)  # fmt: skip
            return both
        at = "cache_position"
        if self.how.write == "elements":
            shape = self.op("Shape", new)
            column = self.op("Reshape", at, self.ints(1, 1, -1, 1))
            where = self.op("Expand", column, shape)
            return self.op("ScatterElements", past, where, new, out=out, axis=axis)
        if self.how.write == "nd":
            perm = [axis, *(i for i in range(4) if i != axis)]
            back = [perm.index(i) for i in range(4)]
            turned = [self.op("Transpose", x, perm=perm) for x in (past, new)]
            rows = self.op("Unsqueeze", at, self.ints(1))
            done = self.op("ScatterND", turned[0], rows, turned[1])
            return self.op("Transpose", done, out=out, perm=back)
        if self.how.write == "tensor":
            first = self.op("Slice", at, self.ints(0), self.ints(1), self.ints(0))
            start = self.op("Expand", first, self.batch)
            return self.op("TensorScatter", past, new, start, out=out, axis=axis)
        if self.how.write == "onehot":
            size = self.op("Squeeze", self.dim(past, axis))
            cols = self.op("Range", self.scalar(0), size, self.scalar(1))
            hit = self.op("Equal", self.op("Unsqueeze", cols, self.ints(0)),
                          self.op("Unsqueeze", at, self.ints(1)))  # fmt: skip
            spread = self.op("Transpose", self.op("Cast", hit, to=1), perm=[1, 0])
            wide = self.op("MatMul", spread, new)
            any_ = self.op("ReduceMax", self.op("Cast", hit, to=6), self.ints(0), keepdims=0)
            column = self.op("Reshape", self.op("Cast", any_, to=9), self.ints(1, 1, -1, 1))
            return self.op("Where", column, wide, past, out=out)
        first = self.op("Slice", at, self.ints(0), self.ints(1), self.ints(0))
        end = self.op("Add", first, self.new)
        before = self.op("Slice", past, self.ints(0), first, self.ints(axis))
        after = self.op("Slice", past, end, self.ints(2**63 - 1), self.ints(axis))
        return self.op("Concat", before, new, after, out=out, axis=axis)

    def scalar(self, value: int) -> str:
        name = f"scalar{value}"
        self.weights[name] = weight(name, np.array(value, np.int64))
        return name

    def bias(self, total: str, past: str) -> str:
        """Causal: column j is seen by row i up to i + past."""
        zero, one = self.scalar(0), self.scalar(1)
        cols = self.op("Range", zero, self.op("Squeeze", total), one)
        rows = "cache_position"
        if not self.how.static:
            rows = self.op("Add", self.op("Range", zero, self.op("Squeeze", self.new), one), past)
        seen = self.op("LessOrEqual", self.op("Unsqueeze", cols, self.ints(0)),
                       self.op("Unsqueeze", rows, self.ints(1)))  # fmt: skip
        return self.op("Where", seen, self.number(0.0), self.number(-1e9))


def spelled(path: Path, spelling: Spelling, sizes: Sizes = SMALL) -> Path:
    """The decoder as a file."""
    d, s = Decoder(spelling, sizes), sizes
    orders = {"key": spelling.key, "value": spelling.value}
    parts: dict[tuple[int, str], str] = {}
    outs: dict[tuple[int, str], str] = {}
    stacks: list[tuple[str, str, list[tuple[int, str]]]] = []
    slots = [(i, p) for i in range(s.layers) for p in ("key", "value")]
    for n, (i, part) in enumerate(slots):
        old, new = (t.format(i=i, part=part, n=n) for t in spelling.names)
        parts[i, part], outs[i, part] = old, new
        if not spelling.stack:
            d.inputs.append(info(old, "float32", d.dims(orders[part])))
            d.outputs.append(info(new, "float32", d.dims(orders[part], present=True)))
    if spelling.stack:
        layers = [[i] for i in range(s.layers)]
        if spelling.stack == "model":
            layers = [list(range(s.layers))]
        for group in layers:
            lead = [s.layers, 2] if spelling.stack == "model" else [2]
            name = "past" if spelling.stack == "model" else f"past_{group[0]}"
            out = name.replace("past", "present")
            d.inputs.append(info(name, "float32", [*lead, *d.dims(spelling.key)]))
            d.outputs.append(info(out, "float32", [*lead, *d.dims(spelling.key, present=True)]))
            stacks.append((name, out, [x for x in slots if x[0] in group]))
            for i, part in stacks[-1][2]:
                half = d.scalar(0 if part == "key" else 1)
                x = name
                if spelling.stack == "model":
                    x = d.op("Gather", x, d.scalar(i), axis=0)
                parts[i, part] = d.op("Gather", x, half, axis=0)
    x = d.op("Gather", d.w("embed", s.vocab, s.hidden), "input_ids")
    made: dict[tuple[int, str], str] = {}
    for i in range(s.layers):
        heads = {}
        for part in ("query", "key", "value"):
            y = d.op("MatMul", x, d.w(f"{i}.{part}", s.hidden, s.heads * s.head))
            y = d.op("Reshape", y, d.ints(0, 0, s.heads, s.head))
            if part == "query":
                heads[part] = d.turn(y, "bshd", "bhsd")
                continue
            order, past = orders[part], parts[i, part]
            out = outs[i, part] if not spelling.stack else ""
            if spelling.turned:
                past = d.turn(past, order, "bhsd")
                whole = d.put(past, d.turn(y, "bshd", "bhsd"), "bhsd", "")
                perm = ["bhsd".index(c) for c in order]
                made[i, part] = d.op("Transpose", whole, out=out, perm=perm)
                heads[part] = whole
            else:
                whole = d.put(past, d.turn(y, "bshd", order), order, out)
                made[i, part] = whole
                heads[part] = d.turn(whole, order, "bhsd")
        k, v = heads["key"], heads["value"]
        total = d.dim(k, 2)
        bias = d.bias(total, d.op("Sub", total, d.new))
        scores = d.op("MatMul", heads["query"], d.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = d.op("Div", scores, d.number(float(s.head) ** 0.5))
        weights = d.op("Softmax", d.op("Add", scores, bias), axis=-1)
        mix = d.op("Transpose", d.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        mix = d.op("Reshape", mix, d.ints(0, 0, s.heads * s.head))
        x = d.op("Add", x, d.op("MatMul", mix, d.w(f"{i}.o", s.heads * s.head, s.hidden)))
        x = d.op("Add", x, d.mlp(x, str(i)))
    d.op("MatMul", x, d.w("head", s.hidden, s.vocab), out="logits")
    for _, out, members in stacks:
        wide = {m: d.op("Unsqueeze", made[m], d.ints(0)) for m in members}
        if spelling.stack == "layer":
            d.op("Concat", *wide.values(), out=out, axis=0)
            continue
        layers = [d.op("Concat", *(wide[m] for m in members if m[0] == i), axis=0)
                  for i in range(s.layers)]  # fmt: skip
        d.op("Concat", *(d.op("Unsqueeze", y, d.ints(0)) for y in layers), out=out, axis=0)
    outputs = [info("logits", "float32", ["batch", "seq", s.vocab]), *d.outputs]
    return d.save(path, d.inputs, outputs, spelling.opset)


Spell = Callable[[Path], Path]
