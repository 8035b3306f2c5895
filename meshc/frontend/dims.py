"""Symbolic dimensions: sums and products of names, such as `past_sequence_length + 1`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from meshc.frontend.labels import FIXED, MIXED, Label, add, divide, multiply

Sized = tuple[int, Label]


def names_of(dim: str) -> tuple[str, ...]:
    """Names in a dimension's expression; just the dimension itself where it is none."""
    if re.fullmatch(r"[\w.:/-]+", dim) and not re.fullmatch(r"\d.*|.*[-/]\d+", dim):
        return (dim,)
    tree = _parse(dim)
    if tree is None:
        return (dim,)
    return tuple(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))


def evaluate(dim: str, size_of: Callable[[str], Sized | None]) -> Sized | None:
    """Size and label of a dimension; None where it is no expression or a name is unknown."""
    tree = _parse(dim)
    if tree is None or isinstance(tree.body, ast.Name):
        return None
    try:
        return _value(tree.body, size_of)
    except (ValueError, ZeroDivisionError):
        return None


def _parse(dim: str) -> ast.Expression | None:
    try:
        return ast.parse(dim.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return None


def _value(node: ast.expr, size_of: Callable[[str], Sized | None]) -> Sized:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value, FIXED
    if isinstance(node, ast.Name):
        found = size_of(node.id)
        if found is None:
            raise ValueError(node.id)
        return found
    if isinstance(node, ast.BinOp):
        (a, la), (b, lb) = _value(node.left, size_of), _value(node.right, size_of)
        if isinstance(node.op, ast.Add):
            return a + b, add(la, lb, a, b)
        if isinstance(node.op, ast.Sub):
            return a - b, add(la, lb, a, b, -1)
        if isinstance(node.op, ast.Mult):
            return a * b, multiply(la, lb, a, b)
        if isinstance(node.op, (ast.FloorDiv, ast.Div)):
            return a // b, divide(la, lb, b) if la or lb else FIXED
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        args = [_value(a, size_of) for a in node.args]
        loose = any(label != FIXED for _, label in args)
        if node.func.id.lower() in ("max", "min") and args:
            pick = max if node.func.id.lower() == "max" else min
            return pick(n for n, _ in args), MIXED if loose else FIXED
    raise ValueError(ast.dump(node))
