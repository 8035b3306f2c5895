"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshc.frontend.builder import Builder, Value
from meshc.frontend.call import Call, Lowering, need, optional
from meshc.ir.dtypes import FLOATS

Values = Sequence[Value | None]


def matmul(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    return [product(b, need(x, 0), need(x, 1))]


def product(b: Builder, p: Value, q: Value) -> Value:
    """Numpy's meaning, vectors included."""
    return with_vectors(b, p, q, lambda m, n: multiplied(b, m, n))


def with_vectors(b: Builder, p: Value, q: Value, product: Callable[[Value, Value], Value]) -> Value:
    """`product` of two operands, of which a vector is a row on the left, a column on the right."""
    row, col = p.rank == 1, q.rank == 1
    if row:
        p = b.insert_axis(p, 0, "row")
    if col:
        q = b.insert_axis(q, 1, "column")
    out = product(p, q)
    if row or col:
        drop = {out.rank - 2} if row else set()
        drop |= {out.rank - 1} if col else set()
        kept = [i for i in range(out.rank) if i not in drop]
        out = b.reshape(out, [out.shape[i] for i in kept], [out.labels[i] for i in kept], "vector")
    return out


def multiplied(b: Builder, p: Value, q: Value) -> Value:
    """p [..., M, K] · q [..., K, N]. Whole numbers wider than a byte are multiplied and summed as
    vectors, which wraps as in their own type; cores multiply matrices of floats and bytes."""
    if p.dtype in FLOATS or p.dtype in ("int8", "uint8"):
        return b.matmul(p, q)
    left = b.insert_axis(p, p.rank, "rows")
    right = b.insert_axis(q, q.rank - 2, "columns")
    return b.reduce("sum", b.apply("mul", left, right, suffix="terms"), [-2], False, "sum")


def gemm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """alpha · A · B + beta · C."""
    out = b.matmul(
        need(x, 0), need(x, 1), bool(call.attr("transA", 0)), bool(call.attr("transB", 0))
    )
    return [_scaled_sum(b, call, out, optional(x, 2))]


def _scaled_sum(b: Builder, call: Call, out: Value, c: Value | None) -> Value:
    alpha, beta = float(call.attr("alpha", 1.0)), float(call.attr("beta", 1.0))
    if alpha != 1.0:
        out = b.apply("mul", out, alpha, suffix="alpha")
    if c is not None and beta != 0.0:
        if beta != 1.0:
            c = b.apply("mul", c, beta, suffix="beta")
        out = b.apply("add", out, c, suffix="add")
    return out


TABLE: dict[tuple[str, str], Lowering] = {
    ("", "MatMul"): matmul,
    ("", "Gemm"): gemm,
}
