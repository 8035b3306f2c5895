"""All operators that meshc can lower, by (domain, type)."""

from __future__ import annotations

from meshc.frontend import (
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
CONTROL = frozenset([("", "Constant"), ("", "If")])
