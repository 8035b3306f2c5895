"""Operators that move data, at run time, through the compiler, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .harness import STEPS, Step, check, f32, op, refuses, tensor

X = f32("batch", "sequence", 8)
FAR, NEAR = 2**63 - 1, -(2**63)


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def ints(**given: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {n: i64(*v) for n, v in given.items()}


def test_reshape(tmp_path: Path) -> None:
    shapes = ints(a=(0, 0, 2, 4), b=(0, -1), c=(-1, 8), d=(0, 0, 2, -1), e=(-1,), f=(1, 0, -1, 8))
    nodes = [op("Reshape", f"x,{n}", f"y{n}") for n in "abcde"]
    check(tmp_path, nodes, {"x": X}, shapes, 13)
    check(tmp_path, [op("Reshape", "x,f")], {"x": f32("batch", 3, 8)}, ints(f=(0, 3, 2, -1)))
    none = f32("batch", 0, 4)
    check(tmp_path, [op("Reshape", "x,s", allowzero=1)], {"x": none}, ints(s=(4, 0, 3)), 14)
    check(tmp_path, [op("Reshape", "x,s")], {"x": none}, ints(s=(0, 0, 7)), 14)
    refuses(tmp_path, [op("Reshape", "x,s")], {"x": X}, "another number of elements",
            ints(s=(5, 7)))  # fmt: skip


def test_axes_come_and_go(tmp_path: Path) -> None:
    x = f32("batch", 1, "sequence", 1, 4)
    axes = ints(a=(1,), b=(-2, 1), c=(0, -1), d=(2, 0))
    nodes = [op("Squeeze", "x,a", "p"), op("Squeeze", "x,b", "q"), op("Unsqueeze", "x,c", "r"),
             op("Unsqueeze", "x,d", "s"), op("Flatten", "x", "t", axis=3),
             op("Flatten", "x", "u", axis=0), op("Flatten", "x", "v", axis=-1),
             op("Flatten", "x", "w", axis=5)]  # fmt: skip
    check(tmp_path, nodes, {"x": x}, axes, 13)
    old = [op("Squeeze", "x", "p", axes=[1, -2]), op("Unsqueeze", "x", "q", axes=[0])]
    check(tmp_path, old, {"x": x}, opset=11, steps=STEPS[:1])
    check(tmp_path, [op("Squeeze", "x")], {"x": f32(3, 1, 2)}, steps=STEPS[:1])
    check(tmp_path, [op("Flatten", "x", axis=0)], {"x": f32()}, opset=13, steps=STEPS[:1])
    refuses(tmp_path, [op("Squeeze", "x,a")], {"x": X}, "axis 2", ints(a=(2,)))


def test_transpose_and_expand(tmp_path: Path) -> None:
    nodes = [op("Transpose", "x", "p"), op("Transpose", "x", "q", perm=[1, 0, 2]),
             op("Expand", "x,a", "r"), op("Expand", "z,b", "s")]  # fmt: skip
    check(tmp_path, nodes, {"x": X, "z": f32("batch", 1, 4)}, ints(a=(2, 1, 1, 8), b=(3, 4)))


def test_tile_concat_split(tmp_path: Path) -> None:
    nodes = [op("Tile", "x,a", "p"), op("Concat", "x,x,z", "q", axis=-1),
             op("Concat", "x,z", "r", axis=2), op("Concat", "x", "s", axis=0)]  # fmt: skip
    check(tmp_path, nodes, {"x": X, "z": f32("batch", "sequence", 3)}, ints(a=(2, 1, 3)))
    nodes = [op("Split", "x,a", "p,q", axis=-1), op("Split", "x", "r,s,t", axis=2, num_outputs=3)]
    check(tmp_path, nodes, {"x": X}, ints(a=(3, 5)), 18)
    check(tmp_path, [op("Split", "x", "p,q", axis=2)], {"x": X}, opset=13, steps=STEPS[:1])
    check(tmp_path, [op("Split", "x", "p,q", axis=1, split=[1, 4])], {"x": f32("batch", 5)},
          opset=11, steps=STEPS[:1])  # fmt: skip
    uneven = [op("Split", "x", "p,q,r,s", axis=1, num_outputs=4)]
    check(tmp_path, uneven, {"x": f32("batch", 10)}, opset=18, steps=STEPS[:1])
    refuses(tmp_path, [op("Split", "x,a", "p,q", axis=-1)], {"x": X}, "sum to 7", ints(a=(3, 4)))


@pytest.mark.parametrize("part", [
    ((0,), (FAR,), (1,), (1,)), ((-1,), (NEAR,), (2,), (-1,)), ((-3,), (-1,), (2,), (1,)),
    ((FAR,), (NEAR,), (2,), (-3,)), ((1,), (-1,), (-1,), (2,)), ((5,), (2,), (2,), (-1,)),
    ((0, -2), (1, FAR), (0, 2), (1, 1)), ((7,), (3,), (2,), (1,)), ((-20,), (20,), (2,), (3,)),
    ((-1,), (NEAR,), (1,), (-1,)),
])  # fmt: skip
def test_slices(tmp_path: Path, part: Any) -> None:
    names = dict(zip("sead", part, strict=True))
    steps = STEPS if part[2] == (1,) else STEPS[:1]
    check(tmp_path, [op("Slice", "x,s,e,a,d")], {"x": X}, ints(**names), 13, steps=steps)


def test_slices_of_other_versions(tmp_path: Path) -> None:
    check(tmp_path, [op("Slice", "x,s,e")], {"x": X}, ints(s=(0, 0, 2), e=(1, FAR, -1)))
    node = op("Slice", "x", starts=[1], ends=[FAR], axes=[2])
    check(tmp_path, [node], {"x": X}, opset=9, steps=STEPS[:1])


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pads(tmp_path: Path, mode: str) -> None:
    pads = ints(a=(0, 0, 2, 0, 0, 1), b=(1, -2), c=(2,))
    nodes = [op("Pad", "x,a", "p", mode=mode), op("Pad", "x,b,,c", "q", mode=mode)]
    check(tmp_path, nodes, {"x": X}, pads, 19)
    old = [op("Pad", "x", mode=mode, pads=[0, 0, 1, 0, 0, 3])]
    if mode != "wrap":
        check(tmp_path, old, {"x": X}, opset=10, steps=STEPS[:1])


def test_pads_with_a_value(tmp_path: Path) -> None:
    given: dict[str, Any] = {**ints(a=(1, 0, 0, 0, 1, 0)), "v": np.float32(-1.5)}
    nodes = [op("Pad", "x,a,v", "p"), op("Pad", "x,a,z", "q")]
    check(tmp_path, nodes, {"x": X, "z": f32()}, given, 13)
    whole = tensor("int64", "batch", "sequence", 3)
    check(tmp_path, [op("Pad", "x,a")], {"x": whole}, given, steps=STEPS[1:])
    refuses(tmp_path, [op("Pad", "x,a", mode="mirror")], {"x": X}, "with mode 'mirror'", given)


def test_blocks(tmp_path: Path) -> None:
    deep, tall = f32("batch", 8, "sequence", 3), f32("batch", 3, 4, 6)
    nodes = [op("DepthToSpace", "x", f"y{m}", blocksize=2, mode=m) for m in ("DCR", "CRD")]
    check(tmp_path, nodes, {"x": deep}, opset=13)
    check(tmp_path, [op("SpaceToDepth", "x", blocksize=2)], {"x": tall}, opset=13, steps=STEPS[:1])


def test_what_is_known_when_compiling(tmp_path: Path) -> None:
    x = f32(4, "batch", 3)
    lengths = {"l": i64(2)}
    node = op("ReverseSequence", "x,l")
    check(tmp_path, [node], {"x": f32(4, 1, 3)}, lengths, steps=STEPS[:1])
    node = op("ReverseSequence", "x,l", time_axis=1, batch_axis=0)
    check(tmp_path, [node], {"x": f32(3, 4, "sequence")}, {"l": i64(2, 4, 1)})
    chosen = {"c": np.array([True, False, True])}
    check(
        tmp_path, [op("Compress", "x,c", "p", axis=0), op("Compress", "x,c", "q")], {"x": x}, chosen
    )
    nodes = [op("EyeLike", "z", "e", k=1, dtype=7), op("Add", "z,z", "s"), op("Size", "x", "n"),
             op("Shape", "x", "h", start=-2), op("Shape", "x", "g", start=0, end=-1)]  # fmt: skip
    check(tmp_path, nodes, {"x": x, "z": f32("batch", 5)}, opset=15)
    refuses(tmp_path, [op("Compress", "x,c")], {"x": X, "c": tensor("bool", 3)}, "run-time data")


def test_definitions_of_the_standard_stand_in(tmp_path: Path) -> None:
    """CenterCropPad has no lowering: the standard explains it by other operators."""
    node = op("CenterCropPad", "x,s", axes=[1, 2])
    check(tmp_path, [node], {"x": f32("batch", 7, 4)}, ints(s=(4, 6)), oracle="reference")


def test_new_axes_of_contrib(tmp_path: Path) -> None:
    nodes = [op("ExpandDims", "x,a", "y", "com.microsoft")]
    check(tmp_path, nodes, {"x": X}, {"a": np.array(-1, np.int32)}, steps=STEPS[:2])


def test_sizes_that_the_workload_decides(tmp_path: Path) -> None:
    """Pads, repeats, bounds and blocks that follow from the number of tokens."""
    x = {"x": f32("batch", 4, "sequence")}
    steps = (Step(1, 8, (2, 3)), Step(3, 6, (2, 2), fusion=False))
    size = op("Shape", "x", "n", start=2)
    given: dict[str, Any] = ints(o=(0, 0), p=(0, 0, 1), one=(1,), two=(2,), m=(-1,), last=(NEAR,),
                                 k=(0, 2, 2, -1), h=(0, -1, 2, 3))  # fmt: skip
    given["f"] = np.random.default_rng(0).standard_normal((6, 4, 3)).astype(np.float32)
    nodes = [
        size, op("Concat", "o,n,p", "a", axis=0), op("Pad", "x,a", "p1"),
        op("Concat", "one,one,n", "r", axis=0), op("Tile", "x,r", "t1"),
        op("Sub", "n,one", "e"), op("Slice", "x,one,e,two", "s1"),
        op("Slice", "x,m,last,two,m", "s2"), op("Split", "x", "l,r1", axis=2, num_outputs=2),
        op("Reshape", "x,k", "h1"), op("Conv", "x,f", "c", pads=[1, 1], strides=[2]),
        op("Transpose", "c", "ct", perm=[0, 2, 1]), op("Reshape", "ct,h", "ch"),
        op("Softmax", "ch", "c1"),
    ]  # fmt: skip
    ends = ("p1", "t1", "s1", "s2", "l", "r1", "h1", "c1")
    check(tmp_path, nodes, x, given, 18, steps=steps, outputs=ends)
