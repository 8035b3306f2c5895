"""Files: all of them, whole, the same bytes for the same run."""

import json
import time
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from viz_runs import one_region_4x4, two_networks_16x16, two_phases_4x8, write_run

from meshc.errors import InputError
from viz import draw
from viz.figures import FIGURES


class Page(HTMLParser):
    """Collects images, links to other files and whether tags are closed."""

    VOID = ("meta", "img", "link", "br")

    def __init__(self) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "img":
            self.images.append(values)
        for name in ("src", "href"):
            value = values.get(name)
            if value and not value.startswith(("data:", "#")):
                self.outside.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_page(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text())
    assert page.open == []
    return page


def test_one_phase_gives_plain_names(tmp_path: Path) -> None:
    written = draw(one_region_4x4(tmp_path))
    names = [f"{p}.{suffix}" for p in FIGURES for suffix in ("png", "svg")] + ["report.html"]
    assert [p.name for p in written] == names
    assert all(p.parent == tmp_path and p.stat().st_size > 10_000 for p in written)
    for path in written:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n")
        elif path.suffix == ".svg":
            assert ElementTree.fromstring(path.read_bytes()).tag.endswith("}svg")


def test_two_phases_are_named_apart_and_go_where_asked(tmp_path: Path) -> None:
    run, dest = two_phases_4x8(tmp_path / "run"), tmp_path / "deep" / "pictures"
    before = sorted(p.name for p in run.iterdir())
    written = draw(run, dest)
    assert sorted(p.name for p in dest.iterdir()) == sorted(p.name for p in written)
    assert {p.stem for p in written} == {"report"} | {
        f"{p}-{phase}" for p in FIGURES for phase in ("prefill", "decode")
    }
    assert sorted(p.name for p in run.iterdir()) == before


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = one_region_4x4(tmp_path)
    first = {p.name: p.read_bytes() for p in draw(run, tmp_path / "a")}
    second = {p.name: p.read_bytes() for p in draw(run, tmp_path / "b")}
    assert first == second


def test_a_16x16_chip_is_drawn_in_seconds(tmp_path: Path) -> None:
    run = two_networks_16x16(tmp_path)
    start = time.perf_counter()
    draw(run)
    assert time.perf_counter() - start < 10


def test_the_page_stands_alone(tmp_path: Path) -> None:
    draw(two_phases_4x8(tmp_path))
    page = read_page(tmp_path / "report.html")
    assert page.outside == []
    assert len(page.images) == 2 * len(FIGURES)
    assert all(i["alt"] and i["src"] and i["src"].startswith("data:image/") for i in page.images)
    source = (tmp_path / "report.html").read_text()
    assert "prefers-color-scheme: dark" in source
    text = " ".join(page.text)
    for words in ("Prefill", "Decode", "latency (cycles)", "Verification: ", "HiGHS"):
        assert words in text


def test_the_page_escapes_what_it_shows(tmp_path: Path) -> None:
    bad = '<script>alert("x")</script>'
    draw(write_run(tmp_path, 2, 2, model=bad))
    source = (tmp_path / "report.html").read_text()
    assert "<script" not in source and "&lt;script&gt;" in source
    assert "reductions &lt;over&gt; cores" in source
    assert bad in "".join(read_page(tmp_path / "report.html").text)


def test_a_report_with_little_in_it_is_enough(tmp_path: Path) -> None:
    one_region_4x4(tmp_path)
    (tmp_path / "report.json").write_text("{}")
    assert len(draw(tmp_path)) == 2 * len(FIGURES) + 1


def test_dollars_and_braces_in_names_are_plain_text(tmp_path: Path) -> None:
    path = one_region_4x4(tmp_path) / "trace-decode.json"
    path.write_text(path.read_text().replace("qkv_proj", "a$\\\\frac$_{b}^"))
    report = json.loads((tmp_path / "report.json").read_text())
    report["model"]["name"] = "m$_{x$"
    (tmp_path / "report.json").write_text(json.dumps(report))
    draw(tmp_path)


def test_a_bad_second_phase_leaves_no_files(tmp_path: Path) -> None:
    run, dest = two_phases_4x8(tmp_path / "run"), tmp_path / "pictures"
    (run / "trace-decode.json").write_text("{")
    with pytest.raises(InputError):
        draw(run, dest)
    assert not dest.exists()


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        draw(tmp_path)
    assert str(error.value) == (
        f"The folder '{tmp_path}' has no traces to draw; run `meshc run {tmp_path}` first."
    )


def test_no_temporary_files_stay(tmp_path: Path) -> None:
    draw(one_region_4x4(tmp_path))
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
