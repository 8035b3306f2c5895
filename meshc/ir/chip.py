"""The chip specification: a mesh of cores with private SRAM, as numbers with sources.

Field names and meanings are those of the chip spec TOML (one file per chip in `chipspecs/`).
Derived quantities are methods; numbers about hardware are never written in code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, order=True)
class Coord:
    """A core's position, row first."""

    row: int
    col: int


@dataclass(frozen=True)
class Array:
    """A systolic array: rows × cols processing elements and its dataflow."""

    rows: int
    cols: int
    dataflow: Literal["ws", "os", "is"] = "ws"
    overlap_load: bool = True


@dataclass(frozen=True)
class CoreSpec:
    """One core. Rates are per cycle; `macs_per_cycle` and `vector_ops_per_cycle` by dtype."""

    sram_bytes: int
    sram_bytes_per_cycle: float
    vector_ops_per_cycle: dict[str, float]
    macs_per_cycle: dict[str, float] = field(default_factory=dict)
    mac_tile: tuple[int, int, int] = (1, 1, 1)
    matvec_macs_per_cycle: dict[str, float] = field(default_factory=dict)  # of a single row
    mac_start_cycles: float = 0  # before rows stream past a k × n tile held in the engine
    mac_operand_bytes_per_cycle: float = 0  # both tiles read anew for every product; 0: no limit
    array: Array | None = None
    reserved_bytes: int = 0
    kernel_cycles: float = 10
    overlap: bool = True

    @property
    def usable_bytes(self) -> int:
        """SRAM that programs may use."""
        return self.sram_bytes - self.reserved_bytes


@dataclass(frozen=True)
class NocSpec:
    """The network on chip. Link rates are per direction."""

    link_bytes_per_cycle: float
    topology: Literal["mesh", "torus", "exchange"] = "mesh"
    networks: int = 1
    one_way: bool = False  # torus: network 0 goes east and south only, network 1 west and north
    hop_cycles: float = 1
    ramp_cycles: tuple[float, float] = (2, 2)  # core to router, router to core
    message_cycles: float = 0
    collective_cycles: float = 0  # of a core's program, before it takes part in a reduction
    streaming_reduce: bool = False  # partial results are combined and passed on flit by flit
    step_cycles: float = 0  # before a core combines a partial result that came with its own
    shift_cycles: float = 0  # before a core passes its tiles on round a line
    virtual_channels: int = 1
    flit_bytes: float = 0
    buffer_flits: int = 0
    inject_bytes_per_cycle: float = 0
    eject_bytes_per_cycle: float = 0
    max_routes: int = 0
    multicast: bool = True
    sync_cycles: float = 0


@dataclass(frozen=True)
class DramChannel:
    row: int
    col: int
    bytes_per_cycle: float
    latency_cycles: float
    capacity_bytes: int


@dataclass(frozen=True)
class Ports:
    """Cores (or tiles of other kinds) whose ports have rates of their own; 0 is the network's."""

    cores: tuple[Coord, ...]
    inject_bytes_per_cycle: float = 0
    eject_bytes_per_cycle: float = 0


@dataclass(frozen=True)
class Seams:
    """The mesh is cut into chips of rows × cols; crossing a cut costs these."""

    rows: int
    cols: int
    link_bytes_per_cycle: float
    hop_cycles: float


@dataclass(frozen=True)
class EnergySpec:
    mac_pj: dict[str, float] = field(default_factory=dict)
    sram_pj_per_byte: float = 0.0
    hop_pj_per_byte: float = 0.0
    dram_pj_per_byte: float = 0.0
    idle_watts: float = 0.0


@dataclass(frozen=True)
class ChipSpec:
    """A whole chip."""

    name: str
    source: str
    rows: int
    cols: int
    clock_hz: float
    core: CoreSpec
    noc: NocSpec
    dram: tuple[DramChannel, ...] = ()
    ports: tuple[Ports, ...] = ()
    seams: Seams | None = None
    energy: EnergySpec | None = None
    dead_cores: tuple[Coord, ...] = ()
    dead_rows: tuple[int, ...] = ()
    dead_cols: tuple[int, ...] = ()
    dead_cores_forward: bool = False

    def dead(self) -> frozenset[Coord]:
        """Every core that does not compute."""
        cores = set(self.dead_cores)
        for r in self.dead_rows:
            cores |= {Coord(r, c) for c in range(self.cols)}
        for c in self.dead_cols:
            cores |= {Coord(r, c) for r in range(self.rows)}
        return frozenset(cores)

    @property
    def cores(self) -> int:
        """Number of working cores."""
        return self.rows * self.cols - len(self.dead())

    def port_rates(self) -> tuple[list[float], list[float]]:
        """Bytes per cycle of each core's ports into and out of a network, row by row."""
        noc = self.noc
        pair = (noc.inject_bytes_per_cycle, noc.eject_bytes_per_cycle)
        inject, eject = (
            [float(rate or noc.link_bytes_per_cycle)] * (self.rows * self.cols) for rate in pair
        )
        for ports in self.ports:
            for core in ports.cores:
                at = core.row * self.cols + core.col
                inject[at] = ports.inject_bytes_per_cycle or inject[at]
                eject[at] = ports.eject_bytes_per_cycle or eject[at]
        return inject, eject
