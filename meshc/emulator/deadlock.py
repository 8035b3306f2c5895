"""Why a run cannot go on: messages without a partner and circles of waiting cores."""

from __future__ import annotations

from collections.abc import Sequence

from meshc.emulator.flight import Core, Delivery, Flight, Meetings
from meshc.errors import InvariantError


def _waits_for(core: Core, meetings: Meetings) -> list[int]:
    """Indices of the cores that must act before this one can go on."""
    blocked = core.blocked
    if isinstance(blocked, Delivery):
        flight = blocked.flight
        if flight.send is None:
            source = blocked.recv.source
            return [source.row * meetings.cols + source.col]
    elif isinstance(blocked, Flight):
        flight = blocked
    else:
        return []
    ready = {d.core.index for d in flight.deliveries}
    return [c for c in flight.path.destinations if c not in ready]


def _story(core: Core) -> str:
    """What a blocked core is doing."""
    step = core.step
    where = f"step '{step.name}'" if step is not None else "no step"
    if step is not None and step.layer >= 0:
        where += f" of layer {step.layer}"
    blocked = core.blocked
    if isinstance(blocked, Delivery):
        flight, what = blocked.flight, "to receive"
    elif isinstance(blocked, Flight):
        flight, what = blocked, "to have sent"
    else:
        return f"core {core.name} in {where} has not begun"
    return f"core {core.name} in {where} waits {what} message {flight.key}"


def stuck_error(cores: Sequence[Core], meetings: Meetings) -> InvariantError:
    """The error for cores that are left when no event is: names a circle of waiting cores or the
    core that waits for one that is done."""
    left = {c.index: c for c in cores if not c.done}
    for core in left.values():
        for other in _waits_for(core, meetings):
            if other not in left:
                return InvariantError(
                    f"The program is stuck: {_story(core)}, but its partner core "
                    f"{meetings.paths.text(other)} has finished without it."
                )
    seen: list[int] = []
    at = min(left)
    while at not in seen:
        seen.append(at)
        at = min(_waits_for(left[at], meetings), default=at)
    circle = seen[seen.index(at) :]
    stories = "; ".join(_story(left[i]) for i in circle[:8])
    more = f"; and {len(circle) - 8} more" if len(circle) > 8 else ""
    return InvariantError(
        f"The program is in a deadlock: {len(left)} cores wait for each other in a circle: "
        f"{stories}{more}."
    )


def unmatched_error(meetings: Meetings) -> InvariantError:
    """The error for messages that were sent and never received."""
    flight = min(meetings.open.values(), key=lambda f: f.key)
    sender = flight.sender.name if flight.sender is not None else "?"
    ready = {d.core.index for d in flight.deliveries}
    missing = [c for c in flight.path.destinations if c not in ready]
    return InvariantError(
        f"Core {sender} sends message {flight.key}, but core "
        f"{meetings.paths.text(missing[0])} never receives it; {len(meetings.open)} messages are "
        "left over."
    )
