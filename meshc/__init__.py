"""meshc: a compiler and emulator for LLMs on meshes of cores with private SRAM."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_API = {
    "load_model": "meshc.frontend",
    "load_chip": "meshc.chips",
    "compile": "meshc.pipeline",
    "emulate": "meshc.emulator",
    "measure": "meshc.report",
}

__all__ = ["__version__", *_API]


def __getattr__(name: str) -> Any:
    """The public functions, imported when first used so that `import meshc` stays quick."""
    if name in _API:
        from importlib import import_module

        return getattr(import_module(_API[name]), name)
    raise AttributeError(f"module 'meshc' has no attribute '{name}'")
