"""How long a core computes: the one account that the planner and the emulator share.

A matrix engine is a systolic array, or a rate by dtype with a tile that ragged sizes are padded
to. Everything is in cycles of the chip's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf

from meshc.ir.chip import Array, CoreSpec
from meshc.ir.dtypes import FLOATS, size_bytes
from meshc.ops.combine import COMBINES
from meshc.ops.record import Work

# Bytes of an element of a type that is only stored: 16 elements share an exponent of 8 bits.
PACKED_BYTES = {"bfp8": 8.5 / 8, "bfp4": 4.5 / 8, "int4": 0.5, "uint4": 0.5, "fp8": 1.0}
WIDER = {"fp16": "fp32", "bf16": "fp32", "fp32": "fp64"}


def array_cycles(array: Array, m: int, k: int, n: int, count: int = 1) -> int:
    """Cycles of `count` matmuls [m, k] × [k, n] on a systolic array.

    Without overlap_load the closed forms of SCALE-Sim: each tile is filled, streamed and drained.
    With it the next tile's stationary operand is loaded while a tile streams (as in ONNXim and
    Gemmini), so a tile takes as long as streaming or loading, and filling and draining is paid
    once.
    """
    rows, cols = array.rows, array.cols
    if array.dataflow == "ws":
        tiles, stream, fill = -(-k // rows) * -(-n // cols), m, 2 * rows + cols - 2
    elif array.dataflow == "os":
        tiles, stream, fill = -(-m // rows) * -(-n // cols), k, rows + cols - 2
    else:
        tiles, stream, fill = -(-k // rows) * -(-m // cols), n, 2 * rows + cols - 2
    if tiles == 0 or count == 0 or stream == 0:
        return 0
    if array.overlap_load:
        return (tiles * count - 1) * max(stream, rows) + stream + fill - 1
    return count * (tiles * (stream + fill) - 1)


def rate_dtype(rates: Mapping[str, float], dtype: str) -> str | None:
    """The type that work in `dtype` runs as: itself or the next wider float with a rate."""
    found: str | None = dtype
    while found is not None and found not in rates:
        found = WIDER.get(found)
    return found


def vector_dtype(core: CoreSpec, dtype: str) -> str | None:
    """The vector rate that elementwise work in `dtype` uses; integers and bools use fp32's."""
    return rate_dtype(core.vector_ops_per_cycle, dtype if dtype in FLOATS else "fp32")


def engine_dtype(core: CoreSpec, work: Work) -> str | None:
    """The type that the matrix engine multiplies in: that of the stored weights where it has a
    rate for it, else that of the activations or a wider one; None where it has no rate."""
    if core.array is None and work.stored in core.macs_per_cycle:
        return work.stored
    return rate_dtype(core.macs_per_cycle, work.dtype)


def mac_rate(core: CoreSpec, dtype: str) -> float:
    """Multiply-accumulates per cycle in a dtype of a core without an array; 0 where it has none."""
    found = rate_dtype(core.macs_per_cycle, dtype)
    return core.macs_per_cycle[found] if found is not None else 0.0


def vector_rate(core: CoreSpec, dtype: str) -> float:
    """Vector operations per cycle in a dtype; 0 where the core has none."""
    found = vector_dtype(core, dtype)
    return core.vector_ops_per_cycle[found] if found is not None else 0.0


def operand_bytes(dtype: str) -> float:
    """Bytes of one element that the matrix engine reads, of a packed type too."""
    return PACKED_BYTES[dtype] if dtype in PACKED_BYTES else size_bytes(dtype)


def matmul_cycles(core: CoreSpec, work: Work) -> float:
    """Cycles of the matrix engine; infinite where it has no rate for the dtype.

    Tiles of k and n stay in the engine while the rows of a stream past them; beginning such a
    stream costs mac_start_cycles. An engine with a mac_operand_bytes_per_cycle keeps none: it reads
    a tile of each operand for every product of tiles. A single row, whose product uses no weight
    twice, has a rate of its own where the core has a matvec_macs_per_cycle.
    """
    if not work.macs:
        return 0
    if core.array is not None:
        array = core.array
        return sum(array_cycles(array, *matmul) for matmul in work.matmuls)
    engine = engine_dtype(core, work)
    if engine is None:
        return inf
    tm, tk, tn = core.mac_tile
    rate = core.macs_per_cycle[engine]
    single = core.matvec_macs_per_cycle.get(engine, rate)
    product = tm * tk * tn / rate
    if core.mac_operand_bytes_per_cycle:
        weights = engine if engine == work.stored else work.dtype
        read = tm * tk * operand_bytes(work.dtype) + tk * tn * operand_bytes(weights)
        product = max(product, read / core.mac_operand_bytes_per_cycle)
    cycles = 0.0
    for m, k, n, count in work.matmuls:
        tiles = -(-k // tk) * -(-n // tn) * count
        stream = product * (rate / single if m == 1 else 1)
        cycles += tiles * (-(-m // tm) * stream + core.mac_start_cycles)
    return cycles


def compute_cycles(core: CoreSpec, work: Work) -> float:
    """Cycles of a kernel's arithmetic; infinite where the core lacks a rate."""
    cycles = matmul_cycles(core, work)
    todo = vector_ops(core, work)
    if todo:
        rate = vector_rate(core, work.vector_dtype)
        cycles += todo / rate if rate else inf
    return cycles


def vector_ops(core: CoreSpec, work: Work) -> float:
    """Vector operations of a kernel, those included that restore weights for an engine that cannot
    multiply them as they are stored."""
    native = core.array is None and work.stored in core.macs_per_cycle
    return work.vector_ops + (0 if native else work.restore_ops)


def kernel_cycles(core: CoreSpec, work: Work) -> float:
    """Cycles of a kernel from its start: arithmetic while operands move to and from SRAM."""
    return core.kernel_cycles + max(
        compute_cycles(core, work), work.sram_bytes / core.sram_bytes_per_cycle
    )


def copy_cycles(core: CoreSpec, size_bytes_: float) -> int:
    """Whole cycles of copying that many bytes within the core: each is read and written."""
    return ceil(2 * size_bytes_ / core.sram_bytes_per_cycle)


def combine_cycles(core: CoreSpec, how: str, dtype: str, elements: int) -> int:
    """Whole cycles of combining two partial results into one of them. The core must have a vector
    rate for dtype."""
    vector = COMBINES[how].vector_ops * elements / vector_rate(core, dtype)
    traffic = 3 * elements * size_bytes(dtype) / core.sram_bytes_per_cycle
    return ceil(max(vector, traffic))
