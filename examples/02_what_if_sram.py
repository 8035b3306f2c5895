"""What if the SRAM were smaller? Decode latency and longest context over SRAM sizes.

python examples/02_what_if_sram.py
"""

from __future__ import annotations

from pathlib import Path

from meshc.emulator import emulate
from meshc.errors import DoesNotFitError
from meshc.pipeline import CompileOptions, compile
from meshc.report import max_context_tokens

MODEL = Path(__file__).parent / "llama-optimum-with_past.onnx"


def main() -> None:
    print("SRAM per core   decode cycles   region   longest context")
    for size in (16_384, 32_768, 65_536, 524_288):
        options = CompileOptions(
            chip="test4x4", phase="decode", context=32, overrides=(f"core.sram_bytes={size}",)
        )
        try:
            compiled = compile(MODEL, options)
        except DoesNotFitError as error:
            print(f"{size:>13,}   {str(error).split(', needs ')[0]}")
            continue
        assert compiled is not None
        step = compiled.phases["decode"]
        cycles = emulate(step.program, compiled.chip).cycles
        region = next(iter(step.program.regions.values()))
        tokens = max_context_tokens(step.program, compiled.chip, step.workload)
        print(f"{size:>13,}   {cycles:>13,.0f}   {region.rows}x{region.cols:<6} {tokens:>15,}")


if __name__ == "__main__":
    main()
