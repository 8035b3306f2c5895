"""All operators that meshc can lower, by (domain, type)."""

from __future__ import annotations

from meshc.frontend import (
    lower_activation,
    lower_attention,
    lower_contrib,
    lower_elementwise,
    lower_fold,
    lower_index,
    lower_integer,
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
    **lower_matmul.TABLE,
    **lower_reduce.TABLE,
    **lower_norm.TABLE,
    **lower_statistics.TABLE,
    **lower_rotary.TABLE,
    **lower_attention.TABLE,
    **lower_quant.TABLE,
    **lower_integer.TABLE,
    **lower_contrib.TABLE,
    **lower_fold.TABLE,
    **lower_index.TABLE,
    **lower_moe.TABLE,
}
CONTROL = frozenset([("", "Constant"), ("", "If")])
