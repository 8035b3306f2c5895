"""The traffic of a program, as flows for the router, and their routes put back."""

from __future__ import annotations

from dataclasses import replace

from meshc.expand import POSITIONS, Expander
from meshc.ir.chip import Coord
from meshc.ir.program import Broadcast, Instruction, Move, Program, Reduce, Run, Transfer
from meshc.ir.routing import Routing
from meshc.ir.stream import Pass, Send
from meshc.route import Flow


def flow_name(i: Reduce | Broadcast | Transfer, body: str) -> str:
    """Flows are named after their body and instruction."""
    return f"{body}: {i.name}"


def flows(program: Program) -> list[Flow]:
    """One flow per communication instruction: who sends how many bytes to whom, and how often."""
    pairs: dict[str, list[tuple[Coord, tuple[Coord, ...], int]]] = {}
    weights: dict[str, int] = {}
    names: dict[int, str] = {}
    for index, entry in enumerate(program.schedule):
        if isinstance(entry, Move):
            name = flow_name(entry.transfer, f"move {index}")
            names[index * POSITIONS] = name
            weights[name] = 1
            continue
        for number, i in enumerate(program.bodies[entry.body]):
            if isinstance(i, Reduce | Broadcast | Transfer):
                name = flow_name(i, entry.body)
                names[index * POSITIONS + number] = name
                weights[name] = max(weights.get(name, 0), entry.last - entry.first)
    expander = Expander(once(program))
    for core in expander.cores():
        for step in expander.stream(core):
            flow = names.get(step.position)
            if flow is None:
                continue
            for action in step.actions:
                if isinstance(action, Pass):
                    action = action.send
                if isinstance(action, Send):
                    pairs.setdefault(flow, []).append((core, action.to, action.view.bytes))
    return [Flow(name, tuple(found), weights[name]) for name, found in sorted(pairs.items())]


def once(program: Program) -> Program:
    """The program with every repeated run done once."""
    schedule = tuple(
        replace(e, last=min(e.last, e.first + 1)) if isinstance(e, Run) else e
        for e in program.schedule
    )
    return replace(program, schedule=schedule)


def attach(program: Program, routing: Routing) -> Program:
    """The program with each instruction's route."""

    def routed(i: Instruction, body: str) -> Instruction:
        if isinstance(i, Reduce | Broadcast | Transfer):
            route = routing.routes.get(flow_name(i, body))
            return replace(i, route=route) if route is not None else i
        return i

    schedule: list[Run | Move] = []
    for index, e in enumerate(program.schedule):
        if isinstance(e, Move):
            transfer = routed(e.transfer, f"move {index}")
            assert isinstance(transfer, Transfer)
            schedule.append(replace(e, transfer=transfer))
        else:
            schedule.append(e)
    bodies = {n: tuple(routed(i, n) for i in b) for n, b in program.bodies.items()}
    return replace(program, bodies=bodies, schedule=tuple(schedule))
