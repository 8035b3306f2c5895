"""A chip of one's own: write a TOML file, compile for it, generate tokens on it.

python examples/03_own_chip.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from meshc.generation import generate
from meshc.pipeline import CompileOptions, compile

MODEL = Path(__file__).parent / "llama-optimum-with_past.onnx"
CHIP = """
name = "mine"
source = "an example"
rows = 3
cols = 5
clock_hz = 1.2e9
dead_cores = [[1, 4]]

[core]
sram_bytes = 131_072
sram_bytes_per_cycle = 32
macs_per_cycle = { fp32 = 32, fp16 = 64 }
vector_ops_per_cycle = { fp32 = 8, fp16 = 16 }

[noc]
link_bytes_per_cycle = 16
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        chip = Path(folder) / "mine.toml"
        chip.write_text(CHIP)
        compiled = compile(MODEL, CompileOptions(chip=str(chip), prompt=8))
        assert compiled is not None
        for token in generate(compiled, [1, 2, 3], 5):
            print(f"token {token.token:>3} after {token.cycles:,.0f} cycles ({token.phase})")


if __name__ == "__main__":
    main()
