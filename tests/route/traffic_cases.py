"""Random traffic for the routing tests, and the kinds of chips that it is tried on."""

from __future__ import annotations

import random

from meshc.ir.chip import ChipSpec, Coord
from meshc.route import Flow

TORUS = {"noc.topology": "torus"}
ONE_WAY = {"noc.topology": "torus", "noc.networks": "2", "noc.one_way": "true"}
SEAMS = {"seams.rows": "2", "seams.cols": "4", "seams.link_bytes_per_cycle": "4"}
EXCHANGE = {"noc.topology": "exchange", **SEAMS}
KINDS = {
    "mesh": {},
    "torus": TORUS,
    "one-way": ONE_WAY,
    "two networks": {"noc.networks": "2"},
    "seams": SEAMS,
    "exchange": EXCHANGE,
    "unicast": {"noc.multicast": "false"},
}


def random_flows(seed: int, chip: ChipSpec, count: int, most: int = 6) -> list[Flow]:
    rng = random.Random(seed)

    def core() -> Coord:
        return Coord(rng.randrange(chip.rows), rng.randrange(chip.cols))

    dead = chip.dead()
    flows = []
    for i in range(count):
        pairs = []
        for _ in range(rng.randint(1, most)):
            ends = [core() for _ in range(rng.choice((2, 2, 2, 4)))]
            if not dead & set(ends):
                pairs.append((ends[0], tuple(ends[1:]), float(rng.randint(1, 9) * 100)))
        flows.append(Flow(f"f{i}", tuple(pairs), float(rng.randint(1, 3))))
    return flows
