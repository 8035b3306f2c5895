"""Write every picture of a run, and a page that shows them."""

from __future__ import annotations

import io
import os
from pathlib import Path

from matplotlib.figure import Figure

from meshc.errors import InputError

from .data import load_run, phases
from .figures import FIGURES
from .page import Picture, page
from .style import styled

DPI = 150


def draw(out_dir: Path | str, dest: Path | str | None = None) -> list[Path]:
    """Draw the run in `out_dir` into `dest` (default: `out_dir`); returns the files written.

    Names are `<picture>.png` and `.svg` for a run of one phase, `<picture>-<phase>.…` for several,
    and report.html. All pictures are drawn before the first file is written, and each file
    replaces its predecessor whole. Raises InputError when the folder has no traces.
    """
    folder = Path(out_dir)
    target = Path(dest) if dest is not None else folder
    found = phases(folder)
    if not found:
        raise InputError(
            f"The folder '{folder}' has no traces to draw; run `meshc run {folder}` first."
        )
    files: dict[str, bytes] = {}
    pictures: list[Picture] = []
    report = {}
    for phase in found:
        run = load_run(folder, phase)
        report = run.report
        for name, picture in FIGURES.items():
            stem = name if len(found) == 1 else f"{name}-{phase}"
            figure = picture(run)
            files[f"{stem}.png"], files[f"{stem}.svg"] = render(figure)
            pictures.append(Picture(name, phase, stem, files[f"{stem}.svg"], files[f"{stem}.png"]))
    files["report.html"] = page(report, pictures).encode()
    target.mkdir(parents=True, exist_ok=True)
    return [_replace(target / name, content) for name, content in files.items()]


@styled
def render(figure: Figure) -> tuple[bytes, bytes]:
    """The figure as PNG and as SVG; the same figure gives the same bytes."""
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    figure.savefig(svg, format="svg", dpi=DPI, metadata={"Date": None})
    return png.getvalue(), svg.getvalue()


def _replace(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
