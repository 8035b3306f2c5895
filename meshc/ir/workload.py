"""What one program computes: phase, batch and token counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshc.errors import InputError

Phase = Literal["prefill", "decode"]
MOST_SEQUENCES = 1 << 16
MOST_TOKENS = 1 << 22


@dataclass(frozen=True)
class Workload:
    """One step of a model.

    batch: sequences.   prompt: new tokens of the step.   context: tokens already cached when it
    begins.   max_context: cached tokens that SRAM is reserved for.
    dims: other symbolic dimensions by name.   experts: how a mixture's rows spread over its
    experts, as counts or shares, for all layers or per layer; () evenly.
    kept: entries that the graph's caches keep of any number of tokens (a sliding window); None
    where they keep all.
    """

    phase: Phase
    batch: int
    prompt: int
    context: int
    max_context: int
    dims: tuple[tuple[str, int], ...] = ()
    experts: tuple[tuple[float, ...], ...] = ()
    kept: int | None = None

    @property
    def reserved(self) -> int:
        """Entries per sequence that SRAM is reserved for."""
        return self.max_context if self.kept is None else self.kept

    def verify(self) -> None:
        for name, value, least in (
            ("batch", self.batch, 1),
            ("prompt", self.prompt, 1),
            ("context", self.context, 0),
        ):
            if value < least:
                raise InputError(f"--{name} {value} is below {least}; give at least {least}.")
        for name, value, most in (
            ("batch", self.batch, MOST_SEQUENCES),
            ("max-context", self.max_context, MOST_TOKENS),
        ):
            if value > most:
                raise InputError(f"--{name} {value} is above {most}; give at most {most}.")
        if self.max_context < self.context + self.prompt:
            raise InputError(
                f"--max-context {self.max_context} is below the {self.context + self.prompt} "
                f"tokens that are cached when the {self.phase} step ends "
                f"(context {self.context} + new {self.prompt}); raise it or lower --context."
            )
