"""The compiled routers against the plain ones, in every mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshc.emulator.flits import run_flits
from meshc.ir.chip import Coord, Ports

from .handmade import chip
from .network_cases import random_batch
from .plain_router import Plain

FAST = {"hop_cycles": 3, "ramp_cycles": (3, 2)}
CASES: dict[str, dict[str, Any]] = {
    "single channel": {"virtual_channels": 1, "buffer_flits": 3},
    "three channels": {"virtual_channels": 3, "buffer_flits": 2},
    "eight channels": {"virtual_channels": 8, "buffer_flits": 4},
    "routed": {"virtual_channels": 2, "buffer_flits": 4, "hop_cycles": 5, "ramp_cycles": (4, 3)},
    "speculative": {"virtual_channels": 1, "buffer_flits": 4} | FAST,
    "speculative channels": {"virtual_channels": 3, "buffer_flits": 2} | FAST,
    "quick": {"virtual_channels": 2, "buffer_flits": 2, "hop_cycles": 1, "ramp_cycles": (2, 2)},
    "long": {"virtual_channels": 2, "buffer_flits": 5, "hop_cycles": 8, "ramp_cycles": (30, 20)},
    "torus": {"topology": "torus", "virtual_channels": 2, "buffer_flits": 3},
    "speculative torus": {"topology": "torus", "virtual_channels": 5, "buffer_flits": 2} | FAST,
    "one way": {
        "topology": "torus", "one_way": True, "networks": 2, "virtual_channels": 4,
        "buffer_flits": 2,
    },
    "slow ports": {
        "virtual_channels": 2, "buffer_flits": 3, "inject_bytes_per_cycle": 0.8,
        "eject_bytes_per_cycle": 0.7,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_plain_routers_find_the_same(name: str) -> None:
    for seed, (rows, cols) in enumerate(((3, 3), (2, 5))):
        spec = chip(rows, cols, **CASES[name])
        if name == "slow ports":
            spec = replace(spec, ports=(Ports((Coord(0, 1),), 0.5, 0.4),))
        messages = random_batch(seed, rows * cols, 80, networks=spec.noc.networks)
        if seed:
            pairs = np.random.default_rng(seed).integers(0, 80, (20, 2))
            pairs = pairs[pairs[:, 0] > pairs[:, 1]].astype(np.int32)
            messages = replace(messages, later=pairs[:, 0].copy(), earlier=pairs[:, 1].copy())
        times = run_flits(spec, messages)
        inject, arrive = Plain(spec, messages).run()
        assert times.inject.tolist() == inject
        assert times.arrive.tolist() == arrive
