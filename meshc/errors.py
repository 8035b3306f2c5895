"""The errors that meshc raises, each tied to the exit code of the command line.

Every message is one full sentence that names the thing, the value, the limit and the remedy.
"""

from __future__ import annotations


class MeshcError(Exception):
    """Base of all expected failures; `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(MeshcError):
    """The user's input cannot be accepted (exit code 2)."""

    exit_code = 2


class DoesNotFitError(MeshcError):
    """The model does not fit the chip (exit code 3); says by how much and what would help.

    sram_bytes, times: core.sram_bytes, or how many times as many cores, that should do; 0 where
    the text says all. The text is then the sentence up to the remedy.   shorter: whether less
    cache and smaller batches could do, which they cannot where the weights alone are too many.
    """

    exit_code = 3

    def __init__(
        self, text: str, sram_bytes: int = 0, times: float = 0.0, shorter: bool = True
    ) -> None:
        self.text, self.sram_bytes, self.times, self.shorter = text, sram_bytes, times, shorter
        remedies = [
            f"core.sram_bytes of at least {sram_bytes}" if sram_bytes else "",
            f"about {times:.1f} times as many cores" if times else "",
            "a shorter --max-context or smaller --batch" if shorter else "",
        ]
        known = [r for r in remedies if r]
        listed = known[0] if len(known) == 1 else f"{', '.join(known[:-1])}, or {known[-1]}"
        super().__init__(f"{text}; {listed} would make it fit." if sram_bytes or times else text)


class VerificationError(MeshcError):
    """The program's result disagrees with the oracle (exit code 4)."""

    exit_code = 4


class InvariantError(MeshcError):
    """A value breaks its own invariant: a bug in meshc, not in the input (exit code 1)."""

    exit_code = 1
