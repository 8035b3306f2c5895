"""All operators that meshc can lower, by (domain, type)."""

from __future__ import annotations

from meshc.frontend import (
    control,
    lower_activation,
    lower_attention,
    lower_cache,
    lower_contrib,
    lower_contrib_matmul,
    lower_conv,
    lower_einsum,
    lower_elementwise,
    lower_fold,
    lower_gated,
    lower_grouped,
    lower_index,
    lower_integer,
    lower_layout,
    lower_matmul,
    lower_moe,
    lower_norm,
    lower_quant,
    lower_reduce,
    lower_rotary,
    lower_shape,
    lower_statistics,
)
from meshc.frontend.call import Lowering
from meshc.frontend.standard import defined

LOWERINGS: dict[tuple[str, str], Lowering] = {
    **lower_elementwise.TABLE,
    **lower_shape.TABLE,
    **lower_activation.TABLE,
    **lower_layout.TABLE,
    **lower_conv.TABLE,
    **lower_matmul.TABLE,
    **lower_einsum.TABLE,
    **lower_contrib_matmul.TABLE,
    **lower_gated.TABLE,
    **lower_reduce.TABLE,
    **lower_norm.TABLE,
    **lower_statistics.TABLE,
    **lower_rotary.TABLE,
    **lower_attention.TABLE,
    **lower_grouped.TABLE,
    **lower_quant.TABLE,
    **lower_integer.TABLE,
    **lower_contrib.TABLE,
    **lower_fold.TABLE,
    **lower_index.TABLE,
    **lower_moe.TABLE,
    **lower_cache.TABLE,
}
# Contrib operators that are the standard's by another name.
LOWERINGS.update(
    {("com.microsoft", op): LOWERINGS["", op] for op in ("Trilu", "Range", "GatherND")}
)
LOWERINGS["", "Scatter"] = LOWERINGS["", "ScatterElements"]  # its name before opset 11
CONTROL = frozenset(("", n) for n in ("Constant", *control.CONTROL, *control.SEQUENCES))


def supported(domain: str, op: str, opset: int = 24) -> bool:
    """Whether an operator can be compiled in some form, without looking at its operands."""
    key = (domain, op)
    return key in LOWERINGS or key in CONTROL or defined(domain, op, opset)


def known_operators() -> list[tuple[str, str]]:
    """(domain, operator) of everything that can be left for run time."""
    from onnx import defs

    own = {s.name for s in defs.get_all_schemas() if not s.domain and defined("", s.name, 24)}
    return sorted({*LOWERINGS, *CONTROL, *(("", n) for n in own)})
