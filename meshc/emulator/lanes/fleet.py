"""What all cores know and did, as arrays by core, and the steps they have in common, compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.compiled import compiled, inlined
from meshc.ir.chip import ChipSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FEWEST_SENDS, MOST_SENDS = 6, 64  # of one core that may still read its SRAM and are told apart

# Places in Fleet.tally
START, END, COMPUTE, COMMUNICATION, WAIT, CORES, MESSAGES, BYTES, ACTIONS, SERIAL = range(10)


class Fleet(NamedTuple):
    """Every array is by core (row · cols + col). Times in cycles.

    clock: until when a core is done.   begin, work, held: of the step at hand, when it was entered,
    and the time in kernels and in waiting for others.
    pending: how many sends may still read SRAM; reads: the bytes that they read, of shape (cores,
    sends, 2); leaves: when they depart and have left, of the same shape.
    mark: the last instruction that a core entered.   tally: sums of the instruction at hand.
    post: when receives are posted, of shape (cores, 2); sent, last: when a send is handed over, and
    when the last of it is there.
    """

    overlap: int
    message_cycles: float
    sync_cycles: float
    clock: Floats
    compute: Floats
    communication: Floats
    wait: Floats
    mac_cycles: Floats
    macs: Ints
    sram_bytes: Ints
    begin: Floats
    work: Floats
    held: Floats
    pending: NDArray[np.int32]
    reads: Ints
    leaves: Floats
    mark: Ints
    tally: Floats
    post: Floats
    sent: Floats
    last: Floats


@inlined
def until_read(f: Fleet, core: int, first: int, end: int) -> None:
    """Wait until no send reads bytes [first, end) any more."""
    while f.pending[core] > 0:
        time = f.clock[core]
        left = 0
        found = -1
        for k in range(f.pending[core]):
            if f.leaves[core, k, 1] > time:
                f.reads[core, left, 0], f.reads[core, left, 1] = (
                    f.reads[core, k, 0],
                    f.reads[core, k, 1],
                )
                f.leaves[core, left, 0], f.leaves[core, left, 1] = (
                    f.leaves[core, k, 0],
                    f.leaves[core, k, 1],
                )
                if found < 0 and f.reads[core, left, 0] < end and first < f.reads[core, left, 1]:
                    found = left
                left += 1
        f.pending[core] = left
        if found < 0:
            return
        f.held[core] += max(0.0, f.leaves[core, found, 0] - time)
        f.clock[core] = f.leaves[core, found, 1]


@inlined
def sent(f: Fleet, core: int, first: int, end: int, depart: float, left: float) -> None:
    """A core has handed over a message that reads [first, end) until it has left."""
    if f.overlap == 0:
        f.held[core] += max(0.0, depart - f.clock[core])
        f.clock[core] = max(f.clock[core], left)
        return
    if left <= f.clock[core]:
        return
    k = f.pending[core]
    if k < f.leaves.shape[1]:
        f.reads[core, k, 0], f.reads[core, k, 1] = first, end
        f.leaves[core, k, 0], f.leaves[core, k, 1] = depart, left
        f.pending[core] = k + 1
        return
    k -= 1  # the last place stands for several
    f.reads[core, k, 0] = min(f.reads[core, k, 0], first)
    f.reads[core, k, 1] = max(f.reads[core, k, 1], end)
    f.leaves[core, k, 0] = max(f.leaves[core, k, 0], depart)
    f.leaves[core, k, 1] = max(f.leaves[core, k, 1], left)


@inlined
def enter(f: Fleet, core: int) -> None:
    """A core enters a step."""
    f.begin[core] = f.clock[core]
    f.work[core] = 0.0
    f.held[core] = 0.0
    f.tally[START] = min(f.tally[START], f.clock[core])


@inlined
def leave(f: Fleet, core: int) -> None:
    """A core leaves the step that it entered last."""
    communication = f.clock[core] - f.begin[core] - f.work[core] - f.held[core]
    f.compute[core] += f.work[core]
    f.wait[core] += f.held[core]
    f.communication[core] += communication
    f.tally[END] = max(f.tally[END], f.clock[core])
    f.tally[COMPUTE] += f.work[core]
    f.tally[COMMUNICATION] += communication
    f.tally[WAIT] += f.held[core]
    serial = np.int64(f.tally[SERIAL])
    if f.mark[core] != serial:
        f.mark[core] = serial
        f.tally[CORES] += 1


@inlined
def take(f: Fleet, core: int, depart: float, arrived: float, size: int) -> None:
    """A core receives a message."""
    if arrived > f.clock[core]:
        if depart > f.clock[core]:
            f.held[core] += depart - f.clock[core]
        f.clock[core] = arrived
    f.clock[core] += f.message_cycles
    f.sram_bytes[core] += size


@inlined
def give(f: Fleet, core: int, size: int) -> None:
    """A core hands over a message."""
    f.clock[core] += f.message_cycles
    f.sram_bytes[core] += size
    f.tally[MESSAGES] += 1
    f.tally[BYTES] += size


@inlined
def write(f: Fleet, core: int, first: int, end: int, cycles: float) -> None:
    """A core works for so many cycles on what it writes to [first, end)."""
    until_read(f, core, first, end)
    f.clock[core] += cycles
    f.work[core] += cycles


@compiled
def run_kernels(
    f: Fleet,
    cols: int,
    row: int,
    col: int,
    rows: int,
    width: int,
    kind: NDArray[np.int32],
    cycles: Floats,
    mac_cycles: Floats,
    macs: Ints,
    sram_bytes: Ints,
    first: int,
    end: int,
) -> None:
    """Every lane of a region runs a kernel. kind: of each lane, its place in the costs."""
    for r in range(rows):
        for c in range(width):
            core = (row + r) * cols + col + c
            k = kind[r * width + c]
            enter(f, core)
            write(f, core, first, end, cycles[k])
            f.sram_bytes[core] += sram_bytes[k]
            f.mac_cycles[core] += mac_cycles[k]
            f.macs[core] += macs[k]
            f.tally[ACTIONS] += 1
            leave(f, core)


def make_fleet(chip: ChipSpec) -> Fleet:
    """All cores at the beginning."""
    n = chip.rows * chip.cols
    # On large meshes the sends of a core that are still on their way beyond a few are taken
    # together: only how its waiting is divided between others and the network depends on that.
    sends = min(MOST_SENDS, max(FEWEST_SENDS, (1 << 22) // n))
    return Fleet(
        overlap=int(chip.core.overlap),
        message_cycles=float(chip.noc.message_cycles),
        sync_cycles=float(chip.noc.sync_cycles),
        clock=np.zeros(n),
        compute=np.zeros(n),
        communication=np.zeros(n),
        wait=np.zeros(n),
        mac_cycles=np.zeros(n),
        macs=np.zeros(n, np.int64),
        sram_bytes=np.zeros(n, np.int64),
        begin=np.zeros(n),
        work=np.zeros(n),
        held=np.zeros(n),
        pending=np.zeros(n, np.int32),
        reads=np.zeros((n, sends, 2), np.int64),
        leaves=np.zeros((n, sends, 2)),
        mark=np.zeros(n, np.int64),
        tally=np.zeros(10),
        post=np.zeros((n, 2)),
        sent=np.zeros(n),
        last=np.zeros(n),
    )
