"""The time that one core takes for kernels and local copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from meshc import ops as op_records
from meshc.emulator.sizes import ITEM_BYTES, array_bytes
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec
from meshc.ir.dtypes import FLOATS
from meshc.ir.graph import Op
from meshc.ir.program import Compute, Program, Run
from meshc.ir.stream import Kernel, View
from meshc.ops import timing


@dataclass(frozen=True, slots=True)
class Cost:
    """What one kernel costs.

    cycles: whole cycles from its start to its end.   mac_cycles: cycles of its matmuls.
    sram_bytes: read and written.   array_bytes: bytes of each operand's array, output last.
    """

    cycles: int
    mac_cycles: float
    macs: int
    mac_dtype: str
    sram_bytes: int
    array_bytes: tuple[int, ...]


class CoreTimer:
    """Times of one chip's core. Kernels of equal op, shapes and dtypes share one Cost."""

    def __init__(self, chip: ChipSpec, ops: Mapping[str, Op]) -> None:
        self.chip = chip
        self.core = chip.core
        self.ops = ops
        self.uneven = {name for name, op in ops.items() if op_records.uneven(op)}
        self._costs: dict[object, Cost] = {}
        self._combines: dict[tuple[str, str, int], int] = {}

    def kernel(self, kernel: Kernel) -> Cost:
        """Cost of a kernel; raises InputError if the core cannot compute in its types."""
        views = (*kernel.inputs, kernel.output)
        key: tuple[object, ...] = (
            kernel.op,
            *[(v.dtype, v.extent, *map(len, v.ranges)) for v in views],
        )
        if kernel.ranges and kernel.op in self.uneven:
            key = (*key, kernel.ranges, kernel.layer)  # equal shapes may be unequal work
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = self._cost(kernel, views)
        return cost

    def _cost(self, kernel: Kernel, views: tuple[View, ...]) -> Cost:
        sizes = tuple(array_bytes(v) for v in views)
        if kernel.output.elements == 0:
            return Cost(0, 0, 0, "", 0, sizes)
        shapes = [tuple(map(len, v.ranges)) for v in views]
        dtypes = [v.dtype for v in views]
        op = self.ops[kernel.op]
        if kernel.op in self.uneven and kernel.ranges:
            parts = kernel.ranges
            work = op_records.share(
                op, parts[:-1], parts[-1], dtypes[:-1], dtypes[-1], kernel.layer
            )
        else:
            work = op_records.work(op, shapes[:-1], shapes[-1], dtypes[:-1], dtypes[-1])
        mac_dtype = self._check(work, op.name)
        cycles = ceil(timing.kernel_cycles(self.core, work))
        mac_cycles = timing.matmul_cycles(self.core, work)
        return Cost(cycles, mac_cycles, work.macs, mac_dtype, work.sram_bytes, sizes)

    def _check(self, work: op_records.Work, name: str) -> str:
        """The type that the op multiplies in, "" if it does not; InputError if the core lacks a
        rate for its types."""
        core = self.core
        self.vector_cycles(timing.vector_ops(core, work), work.vector_dtype, name)
        if not work.macs:
            return ""
        if core.array is not None:
            return work.dtype
        dtype = timing.engine_dtype(core, work)
        if dtype is None:
            raise InputError(
                f"Op '{name}' multiplies in {work.dtype}, but a core of chip '{self.chip.name}' "
                f"multiplies only {', '.join(core.macs_per_cycle) or 'nothing'}; add "
                f"core.macs_per_cycle.{work.dtype} to the chip or compile with another --dtype."
            )
        return dtype

    def vector_cycles(self, operations: float, dtype: str, name: str) -> float:
        """Cycles of elementwise operations of the op `name`."""
        if not operations:
            return 0
        rate = timing.vector_rate(self.core, dtype)
        if not rate:
            raise InputError(
                f"Op '{name}' computes in {dtype}, but a core of chip '{self.chip.name}' computes "
                f"only in {', '.join(self.core.vector_ops_per_cycle) or 'nothing'}; add "
                f"core.vector_ops_per_cycle.{dtype if dtype in FLOATS else 'fp32'} to the chip."
            )
        return operations / rate

    def copy_cycles(self, size: int) -> int:
        """Cycles of copying `size` bytes within the core."""
        return timing.copy_cycles(self.core, size)

    def combine_cycles(self, how: str, dtype: str, size: int) -> int:
        """Cycles of combining two views of `size` bytes into one of them."""
        key = (how, dtype, size)
        cycles = self._combines.get(key)
        if cycles is None:
            elements = size // ITEM_BYTES[dtype]
            self.vector_cycles(elements, dtype, "combine")  # refuses a type without a rate
            cycles = timing.combine_cycles(self.core, how, dtype, elements)
            cycles += ceil(self.chip.noc.step_cycles)
            self._combines[key] = cycles
        return cycles

    def first_cycles(self, how: str, dtype: str, size: int) -> int:
        """Cycles until the first flit of two views of `size` bytes is combined."""
        return self.combine_cycles(how, dtype, min(size, self.flit_bytes(dtype)))

    def flit_bytes(self, dtype: str) -> int:
        """Bytes of whole elements that one flit carries, of one at least."""
        item = ITEM_BYTES[dtype]
        return max(item, int(self.chip.noc.flit_bytes) // item * item)


def check_chip_runs(program: Program, chip: ChipSpec) -> None:
    """Raise InputError if the chip's cores cannot compute in the types of some op."""
    timer = CoreTimer(chip, program.ops)
    for entry in program.schedule:
        if not isinstance(entry, Run):
            continue
        region = program.regions[entry.region]
        for instruction in program.bodies[entry.body]:
            if isinstance(instruction, Compute):
                op = program.ops[instruction.op]
                names = (*instruction.inputs, instruction.output)
                layouts = (*instruction.layouts, program.buffers[instruction.output].layout)
                views = []
                for name, tensor, layout in zip(
                    names, (*op.inputs, op.output), layouts, strict=True
                ):
                    shape = program.tensor_shapes[tensor]
                    ranges = layout.shard(shape, 0, 0, region.rows, region.cols)
                    extent = tuple(len(r) for r in ranges)
                    views.append(View(0, extent, ranges, program.buffers[name].dtype))
                timer.kernel(Kernel(op.name, tuple(views[:-1]), views[-1], ()))
