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
    """The model does not fit the chip (exit code 3); says by how much and what would help."""

    exit_code = 3


class VerificationError(MeshcError):
    """The program's result disagrees with the oracle (exit code 4)."""

    exit_code = 4


class InvariantError(MeshcError):
    """A value breaks its own invariant: a bug in meshc, not in the input (exit code 1)."""

    exit_code = 1
