"""Messages on a network with finite buffers: the state of `meshc.emulator.router` for a chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from meshc.emulator import router_state as rules
from meshc.emulator.batch import Batch, Times, flit_bytes, links_between
from meshc.emulator.network import cycle_limit_error
from meshc.emulator.router import advance
from meshc.emulator.router_paths import alone, count_flits
from meshc.emulator.router_sources import offer_to
from meshc.emulator.router_state import NONE, PACE, State
from meshc.emulator.sinks import Sink, run_batch
from meshc.emulator.spool import RECORD, Feed, Records, Spool
from meshc.emulator.waits import Waits, no_waits
from meshc.errors import InputError
from meshc.ir.chip import ChipSpec

NEWS_ROOM = 4096


@dataclass(frozen=True)
class Timing:
    """Cycles of a router's parts, from what a chip spec says.

    A hop of 4 cycles is allocation of a channel, allocation of the switch, the switch and the
    link; body flits take the last three. With 3, the first two run at the same time (speculation);
    with 5 or more, a head is routed in a cycle of its own; with 2 or 1, the switch is as much
    faster. What is beyond 5 is wire. A credit goes back through the wire and is counted one cycle
    later, by speculating routers at once.

    reach: from allocation of the switch to arrival in the next router (body flits).
    back: from there to use of the credit.   eject: from allocation of the switch to the core.
    inject: from core to router.   ahead: of a head in a router before it asks for the switch.
    lag, linger: the parts of ramps that are longer than a hop; they lie in the core, before the
    first and behind the last buffer, so that no credit has to cross them.
    late, late_per_hop: to add to arrivals, where ramps or hops are shorter than a router can be.
    """

    speculate: bool
    route: int
    reach: int
    back: int
    inject: int
    eject: int
    ahead: int
    lag: int
    linger: int
    late: int
    late_per_hop: int

    @staticmethod
    def of(hop: int, ramps: tuple[int, int]) -> Timing:
        ahead = min(max(hop - 3, 0), 2)  # stages that only heads take
        reach = max(hop - ahead, 1)
        back = max(reach - 1, 1) if ahead == 0 else reach
        into = max(ramps[0] - max(ahead, 1), 1)
        out = max(ramps[1] + max(ahead, 1) - ahead, 1)
        lag, linger = max(into - reach, 0), max(out - reach, 0)
        late = sum(ramps) - (into + ahead + out)
        return Timing(
            ahead == 0,
            max(ahead - 1, 0),
            reach,
            back,
            into - lag,
            out - linger,
            ahead,
            lag,
            linger,
            late,
            hop - ahead - reach,
        )

    @staticmethod
    def on(chip: ChipSpec) -> Timing:
        """Of a chip; raises InputError where its times are no whole cycles."""
        noc = chip.noc
        ramps = [_whole(chip, "noc.ramp_cycles", ramp) for ramp in noc.ramp_cycles]
        return Timing.of(_whole(chip, "noc.hop_cycles", noc.hop_cycles), (ramps[0], ramps[1]))


def _whole(chip: ChipSpec, name: str, value: float) -> int:
    if value != int(value):
        raise InputError(
            f"Chip '{chip.name}' has {name} = {value:g}, but a network with finite buffers works "
            "in whole cycles; give a whole number, or buffer_flits = 0."
        )
    return int(value)


@cache
def _turns() -> NDArray[np.uint8]:
    table = np.zeros(5 * 32, np.uint8)
    for start in range(5):
        for mask in range(1, 32):
            table[start << 5 | mask] = next(
                bit for k in range(5) if mask >> (bit := (start + k) % 5) & 1
            )
    return table


def neighbours(chip: ChipSpec) -> NDArray[np.int32]:
    """Of each core and direction (east, west, south, north) the neighbour, -1 at an edge."""
    rows, cols = chip.rows, chip.cols
    row, col = np.divmod(np.arange(rows * cols), cols)
    ends = np.full((rows * cols, 4), -1, np.int32)
    for direction, (down, across) in enumerate(((0, 1), (0, -1), (1, 0), (-1, 0))):
        to_row, to_col = row + down, col + across
        inside = (to_row >= 0) & (to_row < rows) & (to_col >= 0) & (to_col < cols)
        inside |= chip.noc.topology == "torus"
        ends[inside, direction] = (to_row % rows * cols + to_col % cols)[inside]
    return ends


def make_state(chip: ChipSpec) -> State:
    """The network at cycle 0, without messages."""
    noc = chip.noc
    if noc.virtual_channels > 32:
        raise InputError(
            f"Chip '{chip.name}' has {noc.virtual_channels} virtual channels, but a network with "
            "finite buffers is emulated with at most 32; lower noc.virtual_channels."
        )
    timing = Timing.on(chip)
    flit = flit_bytes(chip)
    plane = chip.rows * chip.cols
    routers = noc.networks * plane
    channels = noc.virtual_channels
    shift = (channels - 1).bit_length()
    depth = max(1, int(noc.buffer_flits * (noc.flit_bytes or flit) / flit))

    links = np.zeros(routers * 9, rules.LINK)
    ports = np.zeros(routers * 8, rules.PORT)
    slots = np.zeros((routers * 9) << shift, rules.SLOT)
    lanes = np.zeros(routers * 9, rules.LANE)
    links["open"] = (1 << channels) - 1
    links["reach"] = timing.reach
    links["back"] = timing.back
    ends = neighbours(chip)
    number = np.arange(routers)
    for direction in range(4):
        end = np.tile(ends[:, direction], noc.networks)
        real = number[end >= 0]
        link = real * 8 + direction
        port = (end[end >= 0] + real // plane * plane) * 8 + (direction ^ 1)
        links["first_buffer"][link] = port << shift
        ports["link"][port] = link
    _seams(chip, timing, flit, links, lanes, slots, ends)
    out, into = number * 8 + 4, routers * 8 + number
    links["reach"][out] = timing.eject
    inject, eject = chip.port_rates()
    lanes["pace"][out] = [_pace(flit, rate) for rate in eject] * noc.networks
    links["reach"][into] = links["back"][into] = timing.inject
    lanes["pace"][into] = [_pace(flit, rate) for rate in inject] * noc.networks
    links["first_buffer"][into] = out << shift
    ports["link"][out] = into
    ports["back"] = links["back"][ports["link"]]

    table = np.zeros(routers, rules.ROUTER)
    table["row"], table["col"] = np.divmod(number % plane, chip.cols)
    table["rows"], table["cols"] = chip.rows, chip.cols
    table["wraps"] = noc.topology == "torus"
    odd = number // plane % 2
    table["row_first"] = 1 - odd if noc.one_way else 1
    table["sense"] = 1 - 2 * odd if noc.one_way and noc.topology == "torus" else 0
    table["channel"] = channels - 1
    buffers = np.zeros((routers * 8) << shift, rules.BUFFER)

    longest = int((links["reach"] + links["back"]).max()) + timing.linger
    wheel = 1 << max(longest, 4).bit_length()
    clock = np.zeros(1, rules.CLOCK)
    clock["routers"], clock["channels"], clock["shift"] = routers, channels, shift
    clock["speculate"], clock["route_cycles"] = timing.speculate, timing.route
    clock["depth"] = depth
    clock["lag"], clock["linger"] = timing.lag, timing.linger
    if noc.topology == "torus" and channels > 1:
        clock["lower"] = (1 << (channels + 1) // 2) - 1
    clock["paced"], clock["wheel"] = bool((lanes["pace"] != PACE).any()), wheel

    def room(size: int) -> NDArray[np.uint32]:
        return np.zeros(size, np.uint32)

    def ends_of(each: int) -> NDArray[np.uint32]:
        return (np.arange(wheel) * routers * each).astype(np.uint32)

    state = State(
        clock=clock,
        turns=_turns(),
        messages=np.zeros(1, RECORD),
        rest=room(routers),
        waits=no_waits(),
        flights=np.zeros(0, rules.FLIGHT),
        links=links,
        routers=table,
        ports=ports,
        lanes=lanes,
        slots=slots,
        buffers=buffers,
        able=room(routers * 64),
        asking=room(routers * 64),
        late_asking=room(routers * 64),
        guessing=room(routers * 64),
        router_list=room(routers + 1),
        link_list=room(routers * 5),
        source_list=room(routers),
        fresh=room(routers * 5 * channels),
        guess=room(routers * 5),
        news=np.zeros(NEWS_ROOM + routers, rules.NEWS),
        chosen=room(64),
        sleep_time=np.zeros(routers + 1, np.int64),
        sleeper=room(routers + 1),
        flit_end=ends_of(8),
        flit_buffer=room(wheel * routers * 8),
        flit_flight=room(wheel * routers * 8),
        credit_end=ends_of(8),
        credit_slot=room(wheel * routers * 8),
        tail_end=ends_of(1),
        tail_flight=room(wheel * routers),
        route_end=ends_of(16),
        route_buffer=room(wheel * routers * 16 if timing.route else 1),
    )
    return more_flights(state)


def more_flights(state: State) -> State:
    """A state with room for more messages in the network."""
    clock = state.clock[0]
    have = len(state.flights)
    new = max(4 * int(clock["routers"]), have)
    flights = np.concatenate([state.flights, np.zeros(new, rules.FLIGHT)])
    flights["behind"][have:] = np.arange(have + 1, have + new + 1)
    flights["behind"][-1] = clock["free_flight"] if clock["free_flights"] else NONE
    clock["free_flight"] = have
    clock["free_flights"] += new
    return state._replace(flights=flights)


def _pace(flit: float, rate: float) -> int:
    """Time of a flit; a port that is faster than a link takes a flit per cycle."""
    return max(PACE, round(flit / rate * PACE))


def _seams(
    chip: ChipSpec,
    timing: Timing,
    flit: float,
    links: rules.Records,
    lanes: rules.Records,
    slots: rules.Records,
    ends: NDArray[np.int32],
) -> None:
    """Links between chips have their own rate and length, and buffers for their round trip."""
    noc, seams = chip.noc, chip.seams
    plane = chip.rows * chip.cols
    lanes["pace"] = _pace(flit, noc.link_bytes_per_cycle)
    if seams is None:
        return
    row, col = np.divmod(np.arange(plane), chip.cols)
    place = row // seams.rows * chip.cols + col // seams.cols
    extra = max(0, _whole(chip, "seams.hop_cycles", seams.hop_cycles) - int(noc.hop_cycles))
    shift = (noc.virtual_channels - 1).bit_length()
    for network in range(noc.networks):
        for direction in range(4):
            end = ends[:, direction]
            cut = np.flatnonzero((end >= 0) & (place != place[end]))
            link = (network * plane + cut) * 8 + direction
            lanes["pace"][link] = _pace(flit, seams.link_bytes_per_cycle)
            links["reach"][link] += extra
            links["back"][link] += extra
            for one in link:
                slots["spent"][one << shift : (one + 1) << shift] = -2 * extra


class Routers:
    """A chip's network with finite buffers."""

    def __init__(self, chip: ChipSpec) -> None:
        self.chip = chip
        self._state = make_state(chip)
        self._timing = Timing.on(chip)
        self._flits = np.zeros(len(self._state.links), np.int64)  # that each link carried

    def alone(self, records: Records) -> NDArray[np.float64]:
        """Cycles of each message in an empty network."""
        timing = self._timing
        cycles = np.zeros(len(records), np.int64)
        alone(self._state, records, timing.ahead, cycles)
        return (cycles + timing.lag + timing.linger + self._late(records)).astype(float)

    def _late(self, records: Records) -> NDArray[np.int64]:
        """Cycles to add to arrivals."""
        timing = self._timing
        late = np.full(len(records), timing.late)
        if timing.late_per_hop:
            late += timing.late_per_hop * links_between(
                self.chip, records["source"], records["target"]
            )
        return late

    def run(self, spool: Spool, waits: Waits, sink: Sink, cycle_limit: int | None) -> int:
        """Send all messages and tell the sink of those that arrive; returns how many are stuck."""
        state = self._state
        clock = state.clock[0]
        feed = Feed(spool, state.routers["place"], state.routers["place_end"], state.rest)
        state = state._replace(messages=feed.slots, waits=waits)
        offer_to(state, spool.sources.astype(np.int64), -1)
        until = (1 << 62) if cycle_limit is None else cycle_limit + 1
        while True:
            more = advance(state, until, NEWS_ROOM)
            if clock["news_count"]:
                self._tell(state, sink)
            if clock["hungry"]:
                clock["hungry"] = 0
                offer_to(state, np.array(feed.refill(), np.int64), clock["now"] - 1)
                more = True
            if not more:
                break
            if clock["free_flights"] < clock["routers"]:
                state = more_flights(state)
            elif clock["now"] >= until:
                raise cycle_limit_error(cycle_limit or 0)
        self._state = state
        self.unsent = feed.left()
        return int(clock["injected"] - clock["delivered"])

    def _tell(self, state: State, sink: Sink) -> None:
        """Tell of messages that have arrived."""
        news = state.news[: state.clock[0]["news_count"]]
        count_flits(state, news, self._flits)
        news["inject"] -= self._timing.lag
        news["arrive"] += self._late(news)
        sink.add(news)
        state.clock[0]["news_count"] = 0

    def busy(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Busy cycles of links, injection ports and ejection ports."""
        shape = (self.chip.noc.networks, self.chip.rows, self.chip.cols)
        routers = len(self._state.routers)
        busy = self._flits * (self._state.lanes["pace"] / PACE)
        out = busy[: routers * 8].reshape(*shape, 8)
        into = busy[routers * 8 :].reshape(shape)
        return out[..., :4].copy(), into.copy(), out[..., 4].copy()


def run_flits(chip: ChipSpec, batch: Batch, cycle_limit: int | None = None) -> Times:
    """Send a batch through a chip's network with finite buffers."""
    return run_batch(Routers(chip), batch, cycle_limit)
