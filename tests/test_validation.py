"""The page of published against emulated numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshc import validation
from meshc.errors import InputError
from meshc.points import Point

SHARED = Path(__file__).parents[2] / "shared" / "groundtruth"
PAGE = Path(__file__).parents[1] / "chipspecs" / "VALIDATION.md"


def test_errors_are_averaged_by_group_and_every_point_is_shown() -> None:
    points = [
        Point("a", "one", 100, 90, "cycles", "x"),
        Point("a", "two", 100, 130, "cycles", "x"),
        Point("b", "three", 4, 4, "cycles", "y"),
    ]
    assert "| a | 2 | 20.00 % | 30.00 % |\n| b | 1 | 0.00 % | 0.00 % |\n" in validation.summary(
        points
    )
    assert "| a | two | 100 | 130 | cycles | +30.00 % | x |\n" in validation.table(points)


def test_recorded_traffic_is_compared_from_a_folder(tmp_path: Path) -> None:
    small = Path(__file__).parent / "data" / "network"
    (tmp_path / "network").mkdir()
    entry = {"trace": "hol_4x4", "k": 4, "router": "wh1", "makespan": 552}
    for file in small.glob("hol_4x4*"):
        (tmp_path / "network" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "network" / "index.json").write_text(
        json.dumps([entry | {"mean_packet_latency": 301.05}])
    )
    text = validation.page(tmp_path, ["traffic"])
    assert "| makespan, wh1 | 1 | 0.00 % | 0.00 % |" in text
    assert "| mean latency, wh1 | hol_4x4 | 301.05 | 301.05 | cycles |" in text


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lacks"):
        validation.main([str(tmp_path)])


def test_the_page_is_what_the_data_give() -> None:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not there: chipspecs/VALIDATION.md cannot be made again")
    text = PAGE.read_text()
    for name in ("traffic", "wormhole", "systolic", "ipu", "tenstorrent"):
        points = list(validation.SECTIONS[name][1](SHARED))
        assert validation.summary(points) in text
        assert validation.table(points) in text
