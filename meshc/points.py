"""One published number beside ours, as `meshc.validation` collects them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One published number and ours. group: what is averaged together.   unit: cycles and so on."""

    group: str
    name: str
    published: float
    emulated: float
    unit: str
    source: str

    @property
    def error(self) -> float:
        """Relative to the published number."""
        return self.emulated / self.published - 1
