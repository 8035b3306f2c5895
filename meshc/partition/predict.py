"""The cost model's time for a whole program: the sum over its instructions."""

from __future__ import annotations

from meshc.ir.chip import ChipSpec
from meshc.ir.program import Broadcast, Compute, Instruction, Move, Program, Reduce
from meshc.ops import work
from meshc.partition.cost import CostModel


def predict(program: Program, chip: ChipSpec) -> float:
    """Predicted cycles of one step: instructions one after the other, each at its price."""
    model = CostModel(chip)
    total = 0.0
    priced: dict[str, float] = {}
    for entry in program.schedule:
        region = program.regions[entry.region]
        rows, cols = region.rows, region.cols
        if isinstance(entry, Move):
            b = program.buffers[entry.transfer.source]
            total += model.message(b.bytes, _distance(program, entry))
            continue
        if entry.body not in priced:
            priced[entry.body] = sum(
                _price(program, model, i, rows, cols) for i in program.bodies[entry.body]
            )
        total += priced[entry.body] * (entry.last - entry.first)
    return total


def _price(program: Program, model: CostModel, i: Instruction, rows: int, cols: int) -> float:
    if isinstance(i, Compute):
        op = program.ops[i.op]
        shapes = [program.tensor_shapes[n] for n in (*op.inputs, op.output)]
        dtypes = [program.tensor_dtypes[n] for n in (*op.inputs, op.output)]
        layouts = [*i.layouts, program.buffers[i.output].layout]
        local = [
            layout.largest(shape, rows, cols) for layout, shape in zip(layouts, shapes, strict=True)
        ]
        return model.kernel(work(op, local[:-1], local[-1], dtypes[:-1], dtypes[-1]))
    if isinstance(i, Broadcast):
        return 0.0  # priced with its Reduce
    if isinstance(i, Reduce):
        b = program.buffers[i.buffer]
        elements = 1
        for n in b.layout.largest(b.shape, rows, cols):
            elements *= n
        lanes = rows if i.axis == "row" else cols
        return model.all_reduce(elements, b.dtype, lanes, i.groups, model.pitch(i.axis))
    source, target = program.buffers[i.source], program.buffers[i.destination]
    return model.reshard(source.layout, target.layout, target.shape, source.dtype, rows, cols)


def _distance(program: Program, entry: Move) -> int:
    a, b = program.regions[entry.region], program.regions[entry.to_region]
    return abs(a.row - b.row) + abs(a.col - b.col)
