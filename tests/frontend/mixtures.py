"""Mixtures of experts as exporters write them, for any number of experts and any activation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .harness import op

HIDDEN, WIDE = 8, 12
I64 = np.int64


class Graph:
    """Collects nodes and constants."""

    def __init__(self, seed: int = 3) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.rng = np.random.default_rng(seed)

    def add(self, kind: str, inputs: str, output: str, **attrs: Any) -> str:
        self.nodes.append(op(kind, inputs, output, **attrs))
        return output.split(",")[0]

    def const(self, name: str, value: Any, dtype: Any = I64) -> str:
        self.constants[name] = np.asarray(value, dtype)
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.const(name, self.rng.standard_normal(shape) * 0.4, np.float32)

    def router(self, count: int, k: int, normalised: bool = True) -> None:
        """tokens [T, H], ids and shares [T, k]."""
        self.const("flat", [-1, HIDDEN])
        self.const("k", [k])
        self.const("last", [-1])
        self.add("Reshape", "x,flat", "tokens")
        self.add("MatMul", f"tokens,{self.weight('router', HIDDEN, count)}", "scores")
        self.add("Softmax", "scores", "probabilities", axis=-1)
        self.add("TopK", "probabilities,k", "best,ids")
        if normalised:
            self.add("ReduceSum", "best,last", "sum", keepdims=1)
            self.add("Div", "best,sum", "shares")
        else:
            self.add("Identity", "best", "shares")

    def expert(self, rows: str, e: int, kind: str) -> str:
        """One expert on some rows: gated, plain with biases, or plain."""
        p = f"e{e}"
        up = self.add("MatMul", f"{rows},{self.weight(f'{p}.up', HIDDEN, WIDE)}", f"{p}.u")
        if kind == "gated":
            gate = self.add("MatMul", f"{rows},{self.weight(f'{p}.gate', HIDDEN, WIDE)}", f"{p}.g")
            soft = self.add("Sigmoid", gate, f"{p}.s")
            hot = self.add("Mul", f"{gate},{soft}", f"{p}.hot")
            up = self.add("Mul", f"{hot},{up}", f"{p}.h")
        else:
            up = self.add("Add", f"{up},{self.weight(f'{p}.b', WIDE)}", f"{p}.biased")
            up = self.add(kind, up, f"{p}.h")
        down = self.add("MatMul", f"{up},{self.weight(f'{p}.down', WIDE, HIDDEN)}", f"{p}.d")
        if kind == "gated":
            return down
        return self.add("Add", f"{down},{self.weight(f'{p}.c', HIDDEN)}", f"{p}.out")

    def close(self, total: str) -> None:
        self.add("Shape", "x", "shape")
        self.add("Reshape", f"{total},shape", "y")


def masked(count: int, k: int, kind: str, experts: Sequence[int]) -> Graph:
    """Every expert on all tokens, times the weight that the tokens give it."""
    g = Graph()
    g.router(count, k)
    total = ""
    for e in experts:
        g.const(f"n{e}", e)
        out = g.expert("tokens", e, kind)
        here = g.add("Equal", f"ids,n{e}", f"m{e}")
        number = g.add("Cast", here, f"c{e}", to=1)
        share = g.add("Mul", f"shares,{number}", f"w{e}")
        weight = g.add("ReduceSum", f"{share},last", f"t{e}", keepdims=1)
        part = g.add("Mul", f"{out},{weight}", f"p{e}")
        total = g.add("Add", f"{total},{part}", f"sum{e}") if total else part
    g.close(total)
    return g


def picked(
    count: int, k: int, kind: str, experts: Sequence[int], scatter: str = "elements"
) -> Graph:
    """NonZero of every expert's mask, its rows looked up, and added into zeros.

    scatter: "elements" (set in zeros and added), "add" (ScatterElements with add) or "nd".
    """
    g = Graph()
    g.router(count, k)
    g.const("count", count)
    g.const("on", [0, 1])
    g.const("one", [1])
    g.const("zero", [0])
    g.add("OneHot", "ids,count,on", "hot", axis=-1)
    g.add("Transpose", "hot", "byexpert", perm=[2, 1, 0])
    g.add("Shape", "tokens", "all")
    total = g.add("ConstantOfShape", "all", "zeros")
    for e in experts:
        g.const(f"n{e}", e)
        mask = g.add("Gather", f"byexpert,n{e}", f"m{e}", axis=0)
        places = g.add("NonZero", mask, f"nz{e}")
        g.add("Split", places, f"slot{e},token{e}", axis=0, num_outputs=2)
        slot = g.add("Squeeze", f"slot{e},zero", f"s{e}")
        token = g.add("Squeeze", f"token{e},zero", f"i{e}")
        rows = g.add("Gather", f"tokens,{token}", f"r{e}", axis=0)
        out = g.expert(rows, e, kind)
        both = g.add("Concat", f"{g.add('Unsqueeze', f'{token},one', f'a{e}')},"
                     f"{g.add('Unsqueeze', f'{slot},one', f'b{e}')}", f"ab{e}", axis=1)  # fmt: skip
        share = g.add("GatherND", f"shares,{both}", f"w{e}")
        part = g.add("Mul", f"{out},{g.add('Unsqueeze', f'{share},one', f'wu{e}')}", f"p{e}")
        if scatter == "nd":
            total = g.add("ScatterND", f"{total},a{e},{part}", f"sum{e}", reduction="add")
            continue
        wide = g.add("Expand", f"a{e},{g.add('Shape', part, f'sh{e}')}", f"ix{e}")
        if scatter == "add":
            total = g.add("ScatterElements", f"{total},{wide},{part}", f"sum{e}", axis=0,
                          reduction="add")  # fmt: skip
        else:
            put = g.add("ScatterElements", f"zeros,{wide},{part}", f"put{e}", axis=0)
            total = g.add("Add", f"{total},{put}", f"sum{e}")
    g.close(total)
    return g


def grouped(count: int, k: int, counts: str = "scatter") -> Graph:
    """Rows sorted by expert, and every expert's product on the rows between running sums.

    counts: how the rows of each expert are counted: "scatter" or "onehot".
    """
    g = Graph()
    g.router(count, k)
    g.const("one", 1)
    g.const("zero", 0)
    g.const("first", [0])
    g.const("kk", k)
    g.add("Reshape", "ids,last", "slots")
    g.add("Shape", "slots", "many")
    g.add("TopK", "slots,many", "sorted,order", largest=0)
    g.add("Div", "order,kk", "owner")
    g.add("Gather", "tokens,owner", "rows", axis=0)
    if counts == "scatter":
        g.const("none", np.zeros(count), np.float32)
        g.add("Expand", f"{g.const('o', 1, np.float32)},many", "ones")
        g.add("ScatterElements", "none,slots,ones", "per", axis=0, reduction="add")
        g.add("Cast", "per", "counted", to=7)
    else:
        g.add("OneHot", f"slots,{g.const('depth', count)},{g.const('on', [0, 1])}", "hot", axis=-1)
        g.add("ReduceSum", "hot,first", "counted", keepdims=0)
    g.add("CumSum", "counted,zero", "ends")
    g.add("Split", "ends", ",".join(f"end{e}" for e in range(count)), num_outputs=count)
    previous = "zero"
    bounds = []
    for e in range(count):
        stop = g.add("Squeeze", f"end{e},first", f"stop{e}")
        bounds.append(g.add("Range", f"{previous},{stop},one", f"range{e}"))
        previous = stop

    def product(rows: str, name: str, depth: int, width: int) -> str:
        parts = []
        for e, r in enumerate(bounds):
            own = g.add("Gather", f"{rows},{r}", f"{name}.r{e}", axis=0)
            weight = g.weight(f"{name}.w{e}", depth, width)
            parts.append(g.add("MatMul", f"{own},{weight}", f"{name}.p{e}"))
        return g.add("Concat", ",".join(parts), name, axis=0)

    up = g.add("Relu", product("rows", "up", HIDDEN, WIDE), "active")
    down = product(up, "down", WIDE, HIDDEN)
    g.add("Reshape", "shares,last", "weights")
    g.add("Gather", "weights,order", "own", axis=0)
    g.add("Mul", f"{down},{g.add('Unsqueeze', 'own,last', 'column')}", "mixed")
    g.add("Range", f"zero,{g.add('Squeeze', 'many,first', 'n')},one", "numbers")
    g.add("Unsqueeze", "order,last", "places")
    g.add("ScatterND", "order,places,numbers", "back")
    g.add("Gather", "mixed,back", "inorder", axis=0)
    g.add("Reshape", f"inorder,{g.const('cut', [-1, k, HIDDEN])}", "each")
    g.close(g.add("ReduceSum", f"each,{g.const('middle', [1])}", "total", keepdims=0))
    return g
