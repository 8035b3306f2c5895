"""A batch of messages on a chip's network alone, with finite or with unlimited buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshc.emulator.batch import Batch, Times, links_between
from meshc.emulator.paths import Paths
from meshc.emulator.spool import records_of
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec
from meshc.ir.routing import Route

if TYPE_CHECKING:
    from meshc.emulator.sinks import Engine


def network_of(chip: ChipSpec) -> Engine:
    """A chip's network, empty.

    Where the chip's `buffer_flits` is 0, buffers are unlimited (`queues`); otherwise routers work
    flit by flit (`flits`). An exchange has no routers and so no buffers.
    """
    if finite(chip):
        from meshc.emulator.flits import Routers

        return Routers(chip)
    from meshc.emulator.queues import Unlimited

    return Unlimited(chip)


def check_sent(network: Engine, stuck: int) -> None:
    """Raise InputError if messages never arrived after a run."""
    chip = network.chip
    if stuck:
        raise InputError(
            f"{stuck} messages block each other's buffers in a circle on chip '{chip.name}', "
            f"a {chip.noc.topology} with {chip.noc.virtual_channels} virtual channel(s); give it "
            "two or more, or buffer_flits = 0."
        )
    count, first = network.unsent
    if count:
        raise CircleError(first, count)


def send_messages(chip: ChipSpec, batch: Batch, cycle_limit: int | None = None) -> Times:
    """When each message of a batch leaves and arrives, as `network_of` says.

    Raises InputError where messages cross dead cores, wait for each other in a circle, or block
    each other's buffers for ever, and past the cycle limit.
    """
    from meshc.emulator.sinks import run_batch

    check_paths(chip, batch)
    network = network_of(chip)
    times = run_batch(network, batch, cycle_limit)
    check_sent(network, times.stuck)
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


def links_used(chip: ChipSpec, batch: Batch) -> NDArray[np.int32]:
    """Links between routers that each message takes."""
    records = records_of(chip, batch)
    return links_between(chip, records["source"], records["target"])
