"""Patterns of primitives that make a better kernel as one op, or are known under a name.

`rewrite` puts single ops in the place of whole patterns; `meshc.fusion` then builds kernels whose
limits the FORMS widen; `name` says what a kernel computes. Nothing depends on a pattern being
found: what is missed runs as the primitives that it is.
"""

from meshc.patterns.attention import rewrite as rewrite
from meshc.patterns.names import name as name

# kernels that may span a reduction, or regroup a product by heads:
#   attention: scores, softmax and the weighted sum of values   norm: statistics of a row and what
#   they scale   gated: the two products of a gated MLP and what joins them   heads: a product with
#   a weight and the view that joins or parts heads, along which the weight is then divided
FORMS = ("attention", "gated", "heads", "norm")
# one kernel for each primitive, where no other kernels fit into SRAM
PRIMITIVES = ("primitives",)

__all__ = ["FORMS", "PRIMITIVES", "name", "rewrite"]
