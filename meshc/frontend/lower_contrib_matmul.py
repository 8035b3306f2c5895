"""ONNX Runtime's fused products and sums."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.frontend.builder import Builder, Unsupported, Value
from meshc.frontend.call import Call, Lowering, known, need, optional
from meshc.frontend.formula import Formula, Term, formula, inner_dtype
from meshc.frontend.labels import FIXED, divide
from meshc.frontend.lower_activation import activated
from meshc.frontend.lower_matmul import gemm, product
from meshc.frontend.lower_reduce import softmax_over

Values = Sequence[Value | None]


def fused_matmul(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Transposes of the last two dimensions, of the batch, and a factor.

    transBatch: the operand is [M, batch…, K]; its first dimension goes before the last.
    """
    operands = []
    for i, side in enumerate("AB"):
        v = need(x, i)
        if call.attr(f"transBatch{side}", 0):
            if v.rank < 3:
                raise Unsupported(f"with transBatch{side} on {v.rank} dimensions")
            v = b.transpose(v, (*range(1, v.rank - 1), 0, v.rank - 1), f"batch{side}")
        operands.append(v)
    p, q = operands
    if min(p.rank, q.rank) < 2:  # a vector has nothing to transpose
        out = product(b, p, q)
    else:
        out = b.matmul(p, q, bool(call.attr("transA", 0)), bool(call.attr("transB", 0)))
    call.ignore("transA", "transB")
    alpha = float(call.attr("alpha", 1.0))
    return [b.apply("mul", out, alpha, suffix="alpha") if alpha != 1.0 else out]


def _activation(b: Builder, call: Call, v: Value) -> Value:
    """What `activation` and its parameters name."""
    name = call.attr("activation", "")
    given = [call.attr(f"activation_{n}") for n in ("alpha", "beta", "gamma")]
    return activated(b, v, name, [float(n) for n in given if n is not None]) if name else v


def fused_matmul_activation(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    (out,) = fused_matmul(b, call, x)
    assert out is not None
    axis = call.attr("activation_axis")
    if call.attr("activation") == "Softmax":
        return [b.softmax(out, -1 if axis is None else int(axis), out.dtype, out.dtype)]
    return [_activation(b, call, out)]


def fused_gemm(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    (out,) = gemm(b, call, x)
    assert out is not None
    return [_activation(b, call, out)]


def gemm_fast_gelu(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    out, bias = b.matmul(need(x, 0), need(x, 1)), optional(x, 2)
    if bias is None:
        return [b.apply("gelu_tanh", out)]
    return [formula(b, [out, bias], lambda f, a, c: f("gelu_tanh", f("add", a, c)))]


def bias_add(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """X + bias + skip."""
    operands = [need(x, i) for i in range(3)]
    return [formula(b, operands, lambda f, v, c, s: f("add", f("add", v, c), s))]


def bias_split_gelu(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """The left half of X + bias times the Gelu of the right half."""
    total = b.apply("add", need(x, 0), need(x, 1), suffix="sum")
    width, label = total.shape[-1] // 2, divide(total.labels[-1], FIXED, 2)
    left = b.slice(total, -1, 0, width, label, suffix="left")
    right = b.slice(total, -1, width, width, label, suffix="right")

    def write(f: Formula, p: Term, q: Term) -> None:
        f("mul", p, f("gelu", q))

    return [formula(b, [left, right], write, inner=inner_dtype(total.dtype))]


def bias_dropout(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Inference: data + bias + residual."""
    call.ignore("seed")
    if call.wants(1) or (optional(x, 4) is not None and known(x, 4).array().any()):
        raise Unsupported("in training mode")
    total = b.apply("add", need(x, 0), need(x, 1), suffix="sum")
    residual = optional(x, 2)
    return [total if residual is None else b.apply("add", total, residual)]


def bias_softmax(b: Builder, call: Call, x: Values) -> Sequence[Value | None]:
    """Softmax of data + bias over all axes from `axis` on."""
    call.ignore("is_inner_broadcast")  # says how the bias broadcasts, which its shape does too
    total = b.apply("add", need(x, 0), need(x, 1), suffix="sum")
    return [softmax_over(b, total, int(call.attr("axis", 1)))]


MS = "com.microsoft"
TABLE: dict[tuple[str, str], Lowering] = {
    (MS, "FusedMatMul"): fused_matmul,
    (MS, "TransposeMatMul"): fused_matmul,
    (MS, "FusedMatMulActivation"): fused_matmul_activation,
    (MS, "FusedGemm"): fused_gemm,
    (MS, "GemmFastGelu"): gemm_fast_gelu,
    (MS, "BiasAdd"): bias_add,
    (MS, "BiasSplitGelu"): bias_split_gelu,
    (MS, "BiasDropout"): bias_dropout,
    (MS, "BiasSoftmax"): bias_softmax,
}
