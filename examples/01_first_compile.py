"""Compile the Llama decoder of this folder for an 8×8 chip, run it, and prove the result.

python examples/01_first_compile.py
"""

from __future__ import annotations

from pathlib import Path

from meshc.pipeline import CompileOptions, compile
from meshc.run import verify_phase

MODEL = Path(__file__).parent / "llama-optimum-with_past.onnx"


def main() -> None:
    # Prefill of 16 tokens and decode of one more, sharing weights and KV cache on the cores.
    compiled = compile(MODEL, CompileOptions(chip="test8x8", prompt=16))
    assert compiled is not None
    for phase, step in compiled.phases.items():
        result = verify_phase(compiled, phase)
        assert result.verify is not None
        regions = ", ".join(f"{r.rows}x{r.cols}" for r in step.program.regions.values())
        print(
            f"{phase}: {result.trace.cycles:,.0f} cycles on {regions} cores "
            f"(predicted {step.predicted_cycles:,.0f}, without contention "
            f"{result.free.cycles:,.0f}); agrees with {result.verify['oracle']}: "
            f"{result.verify['passed']}"
        )


if __name__ == "__main__":
    main()
