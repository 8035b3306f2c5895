"""A batch of messages on a chip's network alone, with finite or with unlimited buffers."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.batch import Batch, Times
from meshc.emulator.paths import Paths
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec
from meshc.ir.routing import Route

Floats = NDArray[np.float64]


def send_messages(chip: ChipSpec, batch: Batch, cycle_limit: int | None = None) -> Times:
    """When each message of a batch leaves and arrives.

    Where the chip's `buffer_flits` is 0, buffers are unlimited (`queues`); otherwise routers work
    flit by flit (`flits`). An exchange has no routers and so no buffers.

    Raises InputError where messages cross dead cores, wait for each other in a circle, or block
    each other's buffers for ever, and past the cycle limit.
    """
    check_paths(chip, batch)
    if finite(chip):
        from meshc.emulator.flits import run_flits

        times = run_flits(chip, batch, cycle_limit)
    else:
        from meshc.emulator.queues import run_queues

        times = run_queues(chip, batch, cycle_limit)
    if times.stuck:
        raise InputError(
            f"{times.stuck} messages block each other's buffers in a circle on chip '{chip.name}', "
            f"a {chip.noc.topology} with {chip.noc.virtual_channels} virtual channel(s); give it "
            "two or more, or buffer_flits = 0."
        )
    late = np.flatnonzero(times.arrive < 0)
    if len(late):
        raise CircleError(int(late[0]), len(late))
    return times


class CircleError(InputError):
    """Messages that wait for each other; `message` is the first of them."""

    def __init__(self, message: int, count: int, name: str | None = None) -> None:
        super().__init__(
            f"Message '{message if name is None else name}' and {count - 1} others never leave, "
            "because the messages in their `after` wait for them in turn; remove the circle."
        )
        self.message = message
        self.count = count


def finite(chip: ChipSpec) -> bool:
    """Whether routers have buffers that can be full."""
    return chip.noc.buffer_flits > 0 and chip.noc.topology != "exchange"


def check_paths(chip: ChipSpec, batch: Batch) -> None:
    """Refuse messages from, to or through dead cores."""
    if not chip.dead():
        return
    paths = Paths(chip)
    routes = [Route(network=n) for n in range(chip.noc.networks)]
    for network, source, target in np.unique(
        np.stack([batch.network, batch.source, batch.target]), axis=1
    ).T.tolist():
        blocked = paths.blocked(source, target, routes[network])
        if blocked is not None:
            raise InputError(
                f"The way from core {paths.text(source)} to core {paths.text(target)} uses core "
                f"{paths.text(blocked)}, which is dead on chip '{chip.name}'; send it elsewhere, "
                "or set dead_cores_forward = true if dead cores forward."
            )


def unloaded_arrivals(chip: ChipSpec, batch: Batch, alone: Floats) -> Floats:
    """When each message would arrive if no other were in its way: messages of a source still
    begin in order, and after those that they wait for.

    alone: cycles of each message in an empty network.
    """
    begin = batch.ready.astype(float)
    if not len(batch.later):
        return begin + alone
    queue, starts = batch.queues(chip.rows * chip.cols)
    following = np.full(len(batch), -1)
    following[queue[:-1]] = queue[1:]
    following[queue[starts[1:][starts[1:] > starts[:-1]] - 1]] = -1  # the last one of a source
    wake, first, waits = batch.wakes()
    waits = waits.copy()
    waits[following[following >= 0]] += 1
    free = deque(np.flatnonzero(waits == 0).tolist())
    arrive = np.full(len(batch), -1.0)
    while free:
        message = free.popleft()
        arrive[message] = begin[message] + alone[message]
        after = [(int(k), arrive[message]) for k in wake[first[message] : first[message + 1]]]
        if following[message] >= 0:
            after.append((int(following[message]), begin[message]))
        for other, time in after:
            begin[other] = max(begin[other], time)
            waits[other] -= 1
            if waits[other] == 0:
                free.append(other)
    return arrive


def links_used(chip: ChipSpec, batch: Batch) -> NDArray[np.int32]:
    """Links between routers that each message takes; one, and those between chips, where all
    cores are one hop apart."""
    noc = chip.noc
    row, col = np.divmod(batch.source, chip.cols)
    to_row, to_col = np.divmod(batch.target, chip.cols)
    total = np.zeros(len(batch), np.int32)
    for here, there, size in ((row, to_row, chip.rows), (col, to_col, chip.cols)):
        if noc.topology != "torus":
            total += np.abs(there - here)
            continue
        ahead = (there - here) % size
        if noc.one_way:
            total += np.where(batch.network % 2 == 0, ahead, (here - there) % size)
        else:
            total += np.where(2 * ahead <= size, ahead, size - ahead)
    if noc.topology == "exchange":
        total[:] = 1
        if chip.seams is not None:
            total += np.abs(to_row // chip.seams.rows - row // chip.seams.rows)
            total += np.abs(to_col // chip.seams.cols - col // chip.seams.cols)
    return total
