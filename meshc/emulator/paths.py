"""Which links a message takes: paths on a mesh, a torus or an exchange, and multicast trees.

A link is an index into arrays of shape (networks, rows, cols, 4): the router that it leaves and
its direction in the order of `meshc.ir.trace.DIRECTIONS`. Cores are indices row · cols + col.
"""

from __future__ import annotations

from meshc.errors import InvariantError
from meshc.ir.chip import ChipSpec, Coord
from meshc.ir.routing import Route

EAST, WEST, SOUTH, NORTH = range(4)


class Path:
    """The links of one message and where they lead.

    links: one per node of the tree, parents before children; a unicast's are in order.
    roots: nodes that leave the source.   children: of each node; None for a unicast.
    sinks: of each node the ordinals of the destinations that leave the network behind it.
    local: ordinals of destinations on the source's own router.
    destinations: core of each ordinal.
    port, exits: the source's injection port and each ordinal's ejection port, as the index
    network · rows · cols + core.
    head_cycles: of each ordinal, the time from leaving the source core to reaching the
    destination core in an empty network.
    uses: of each ordinal, whether its way has links within chips, and seams.
    hops: links used, for energy.   route: kept, so that its identity stays its own.
    """

    __slots__ = (
        "children",
        "destinations",
        "exits",
        "head_cycles",
        "hops",
        "links",
        "local",
        "port",
        "roots",
        "route",
        "sinks",
        "source",
        "uses",
    )

    def __init__(self, source: int, destinations: tuple[int, ...], route: Route) -> None:
        self.route = route
        self.source = source
        self.destinations = destinations
        self.links: tuple[int, ...] = ()
        self.roots: tuple[int, ...] = ()
        self.children: tuple[tuple[int, ...], ...] | None = None
        self.sinks: tuple[tuple[int, ...], ...] = ()
        self.local: tuple[int, ...] = ()
        self.head_cycles: tuple[float, ...] = ()
        self.uses: tuple[tuple[bool, bool], ...] = ()
        self.hops = 0
        self.port = source
        self.exits = destinations


class Paths:
    """Paths of one chip, each made once."""

    def __init__(self, chip: ChipSpec) -> None:
        self.chip = chip
        self.rows, self.cols = chip.rows, chip.cols
        self.exchange = chip.noc.topology == "exchange"
        dead = {c.row * chip.cols + c.col for c in chip.dead()}
        self._dead_ends = frozenset(dead)
        forwarding = chip.dead_cores_forward or self.exchange
        self._dead_routers = frozenset() if forwarding else frozenset(dead)
        self._unicasts: dict[tuple[int, int, int], Path] = {}
        self._multicasts: dict[tuple[int, int, tuple[int, ...]], Path] = {}

    @property
    def link_count(self) -> int:
        return self.chip.noc.networks * self.rows * self.cols * 4

    def unicast(self, source: int, destination: int, route: Route) -> Path:
        """The path from one core to another."""
        # A Route is looked up by identity, because hashing one costs more than a message.
        path = self._unicasts.get((id(route), source, destination))
        if path is None:
            path = self._tree(source, (destination,), route)
            self._unicasts[id(route), source, destination] = path
        return path

    def multicast(self, source: int, destinations: tuple[int, ...], route: Route) -> Path:
        """The union of the paths to each destination: every link once."""
        path = self._multicasts.get((id(route), source, destinations))
        if path is None:
            path = self._tree(source, destinations, route)
            self._multicasts[id(route), source, destinations] = path
        return path

    def crosses_seam(self, link: int) -> bool:
        """Whether a link leads from one chip to another."""
        seams = self.chip.seams
        if seams is None:
            return False
        core = (link >> 2) % (self.rows * self.cols)
        row, col = divmod(core, self.cols)
        to_row, to_col = divmod(self._neighbour(core, link & 3), self.cols)
        return (
            row // seams.rows != to_row // seams.rows or col // seams.cols != to_col // seams.cols
        )

    def hop_cycles(self, link: int) -> float:
        """Cycles from a router to the next one over a link."""
        if self.chip.seams is not None and self.crosses_seam(link):
            return self.chip.seams.hop_cycles
        return self.chip.noc.hop_cycles

    def _neighbour(self, core: int, direction: int) -> int:
        row, col = divmod(core, self.cols)
        if direction == EAST:
            col = (col + 1) % self.cols
        elif direction == WEST:
            col = (col - 1) % self.cols
        elif direction == SOUTH:
            row = (row + 1) % self.rows
        else:
            row = (row - 1) % self.rows
        return row * self.cols + col

    def _moves(self, start: int, end: int, size: int, network: int) -> tuple[bool, int]:
        """Whether to go in the direction of growing positions, and how many hops."""
        noc = self.chip.noc
        if noc.topology != "torus":
            return end >= start, abs(end - start)
        forward = (end - start) % size
        if noc.one_way:
            return (True, forward) if network % 2 == 0 else (False, (start - end) % size)
        return (True, forward) if 2 * forward <= size else (False, size - forward)

    def _leg(
        self, source: int, destination: int, policy: str, network: int, check: bool = True
    ) -> list[int]:
        """Links from one core to another, along the row first ("xy") or the column first."""
        row, col = divmod(source, self.cols)
        to_row, to_col = divmod(destination, self.cols)
        if self.chip.noc.one_way:
            policy = "xy" if network % 2 == 0 else "yx"
        east, across = self._moves(col, to_col, self.cols, network)
        south, down = self._moves(row, to_row, self.rows, network)
        along_row = [EAST if east else WEST] * across
        along_col = [SOUTH if south else NORTH] * down
        links = []
        at = source
        base = network * self.rows * self.cols
        for direction in along_col + along_row if policy == "yx" else along_row + along_col:
            if check and at in self._dead_routers:
                self._refuse_dead(source, destination, at)
            links.append((base + at) * 4 + direction)
            at = self._neighbour(at, direction)
        for end in (source, destination):
            if check and end in self._dead_ends:
                self._refuse_dead(source, destination, end)
        return links

    def blocked(self, source: int, destination: int, route: Route) -> int | None:
        """A dead core that a message would use, if any."""
        for end in (source, destination):
            if end in self._dead_ends:
                return end
        legs = self._leg(source, destination, route.policy, route.network, check=False)
        cores = ((link >> 2) % (self.rows * self.cols) for link in legs)
        return next((core for core in cores if core in self._dead_routers), None)

    def _refuse_dead(self, source: int, destination: int, dead: int) -> None:
        raise InvariantError(
            f"The path from core {self.text(source)} to core {self.text(destination)} uses core "
            f"{self.text(dead)}, which is dead on chip '{self.chip.name}' and does not forward."
        )

    def text(self, core: int) -> str:
        """A core's position for messages."""
        row, col = divmod(core, self.cols)
        return f"({row},{col})"

    def index(self, core: Coord) -> int:
        """Index of a core; raises InvariantError outside of the mesh."""
        if not (0 <= core.row < self.rows and 0 <= core.col < self.cols):
            raise InvariantError(
                f"Core ({core.row},{core.col}) lies outside of the {self.rows}x{self.cols} mesh."
            )
        return core.row * self.cols + core.col

    def links(self, source: int, destination: int, route: Route) -> list[int]:
        """Links from one core to another in order; of an exchange only those between chips."""
        if route.policy == "via" and route.waypoint is not None:
            way = self.index(route.waypoint)
            links = self._leg(source, way, "xy", route.network)
            links += self._leg(way, destination, "xy", route.network)
        else:
            links = self._leg(source, destination, route.policy, route.network)
        return [k for k in links if self.crosses_seam(k)] if self.exchange else links

    def _tree(self, source: int, destinations: tuple[int, ...], route: Route) -> Path:
        noc = self.chip.noc
        if not 0 <= route.network < noc.networks:
            raise InvariantError(
                f"A route names network {route.network}, but chip '{self.chip.name}' has "
                f"{noc.networks}."
            )
        links: list[int] = []
        roots: list[int] = []
        children: list[list[int]] = []
        sinks: list[list[int]] = []
        local: list[int] = []
        heads: list[float] = []
        uses: list[tuple[bool, bool]] = []
        for ordinal, destination in enumerate(destinations):
            head = noc.ramp_cycles[0] + noc.ramp_cycles[1]
            if self.exchange:
                head += noc.hop_cycles
            node = -1
            plain = cross = False
            for link in self.links(source, destination, route):
                head += self.hop_cycles(link)
                if self.crosses_seam(link):
                    cross = True
                else:
                    plain = True
                siblings = roots if node < 0 else children[node]
                known = [n for n in siblings if links[n] == link]
                if known:
                    node = known[0]
                else:
                    siblings.append(len(links))
                    node = len(links)
                    links.append(link)
                    children.append([])
                    sinks.append([])
            (local if node < 0 else sinks[node]).append(ordinal)
            heads.append(head)
            uses.append((plain, cross))
        path = Path(source, destinations, route)
        base = route.network * self.rows * self.cols
        path.port = base + source
        path.exits = tuple(base + d for d in destinations)
        path.links, path.roots, path.local = tuple(links), tuple(roots), tuple(local)
        path.sinks = tuple(map(tuple, sinks))
        path.children = tuple(map(tuple, children)) if len(destinations) > 1 else None
        path.head_cycles, path.uses = tuple(heads), tuple(uses)
        path.hops = len(links) + (1 if self.exchange else 0)
        return path
