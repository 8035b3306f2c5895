"""Nouns as JSON and back.

Frozen dataclasses become objects with their class name under "@"; tuples become lists and lists
are read back as tuples; ranges and special floats have marked forms. Keys keep their order, so
equal values give equal bytes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from meshc.ir import chip, compiled, graph, layout, placement, plan, program, routing, workload

_CLASSES: dict[str, type] = {
    c.__name__: c
    for module in (chip, compiled, graph, layout, placement, plan, program, routing, workload)
    for c in vars(module).values()
    if isinstance(c, type) and dataclasses.is_dataclass(c)
}


def encode(value: Any) -> Any:
    """A JSON-ready structure for a noun."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"@": type(value).__name__, **fields}
    if isinstance(value, float) and not math.isfinite(value):
        return {"@": "float", "value": str(value)}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        if all(isinstance(k, str) and k != "@" for k in value):
            return {k: encode(v) for k, v in value.items()}
        return {"@": "dict", "items": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, range):
        return {"@": "range", "value": [value.start, value.stop, value.step]}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{type(value).__name__} has no JSON form.")


def decode(value: Any) -> Any:
    """The noun that `encode` wrote."""
    if isinstance(value, list):
        return tuple(decode(v) for v in value)
    if not isinstance(value, dict):
        return value
    name = value.get("@")
    if name is None:
        return {k: decode(v) for k, v in value.items()}
    if name == "float":
        return float(value["value"])
    if name == "range":
        return range(*value["value"])
    if name == "dict":
        return {decode(k): decode(v) for k, v in value["items"]}
    return _CLASSES[name](**{k: decode(v) for k, v in value.items() if k != "@"})


def dumps(value: Any) -> str:
    """Canonical JSON text of a noun."""
    return json.dumps(encode(value), allow_nan=False, separators=(",", ":"))


def loads(text: str) -> Any:
    return decode(json.loads(text))
