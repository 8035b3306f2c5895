"""The primitive operations: one record per kind.

| kind | operands | attributes |
|---|---|---|
| map | any number, broadcast like numpy | steps: a small expression, see `meshc.ops.elementwise` |
| matmul | a [..., M, K], b [..., K, N] (b [..., N, K] if transpose_b) | transpose_a, transpose_b |
| reduce | one | fn: sum, mean, max, min, prod, l2 or sumsquare; axes (non-negative); keepdims |
| transpose | one | perm |
| reshape | one | none: the output tensor's shape says it (also Squeeze, Unsqueeze, Flatten) |
| expand | one | none: broadcast to the output tensor's shape |
| slice | one | axis, start (non-negative), step; the length is the output's |
| concat | several | axis |
| gather | data, indices | axis; batch: leading dimensions in common; negatives count from the end |
| append | past, new (or only new) | axis: the output is past with new behind it, in its memory |
| topk | one | axis, largest, last, result: values or indices; the length is the output's |
| scan | one | running sums: axis, exclusive, reverse |
| scatter | data, indices, updates | batch, reduction |
| experts | rows, weights of every expert, expert of each row | transpose_b, counts |
| unpack | one, bytes | bits (2 or 4), signed: small integers of the bytes, low bits first |
| restore | one, blocks of a stored format | format, to: the floats of the blocks in type `to` |
| attend | scores [..., S, T], values [..., T, D] ([..., D, T] if transpose_v) | transpose_v |
| fused | any number | the Op's body |
"""

from meshc.ops.registry import (
    RECORDS,
    IterDim,
    OpRecord,
    Space,
    Use,
    Work,
    evaluate,
    scratch,
    share,
    space,
    uneven,
    work,
)

__all__ = [
    "RECORDS",
    "IterDim",
    "OpRecord",
    "Space",
    "Use",
    "Work",
    "evaluate",
    "scratch",
    "share",
    "space",
    "uneven",
    "work",
]
