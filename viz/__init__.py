"""Pictures of a run: where a model lies on the chip, how the chip is used, where the time goes.

The only user of matplotlib. It reads what `meshc run` left in a folder (report.json and one
trace per phase) and never runs the compiler.
"""

from .data import RunData, load_run
from .write import draw

__all__ = ["RunData", "draw", "load_run"]
