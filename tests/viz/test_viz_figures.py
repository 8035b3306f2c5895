"""The pictures show the numbers of the run, labelled, with no text cut off or on top of other
text."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from viz_runs import RUNS, write_run

from meshc.ir.trace import DIRECTIONS
from viz import RunData, load_run
from viz.data import phases
from viz.figures import FIGURES, links, placement, sram, timeline, utilization
from viz.mesh import draw_dead, window_of
from viz.style import styled


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunData]:
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for name, make in RUNS.items():
        make(folder / name)
        found[name] = load_run(folder / name, phases(folder / name)[0])
    return found


def axes_of(figure: Figure, label: str) -> Axes:
    return next(a for a in figure.axes if a.get_label() == label)


def texts_of(figure: Figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text)]


def shown(figure: Figure, label: str) -> np.ma.MaskedArray:
    return np.ma.asarray(axes_of(figure, label).images[0].get_array())


SHARES = [
    ("compute", "compute_cycles"),
    ("communication", "communication_cycles"),
    ("waiting", "wait_cycles"),
]


@pytest.mark.parametrize("name", ["one_region_4x4", "two_regions_8x8", "whole_64x64", "wafer"])
@pytest.mark.parametrize(("label", "array"), SHARES)
def test_utilization_maps_are_the_runs_numbers(
    runs: dict[str, RunData], name: str, label: str, array: str
) -> None:
    run = runs[name]
    window = window_of(run)
    image = shown(utilization(run), label)
    expected = window.crop(100 * getattr(run, array) / run.cycles)
    used = window.crop(run.used_mask)
    np.testing.assert_allclose(image.data[used], expected[used])
    np.testing.assert_array_equal(np.ma.getmaskarray(image), ~used)


@pytest.mark.parametrize("name", ["one_region_4x4", "two_networks_16x16", "wafer", "whole_wafer"])
def test_sram_map_is_the_peak_in_percent(runs: dict[str, RunData], name: str) -> None:
    run = runs[name]
    window = window_of(run)
    image = shown(sram(run), "occupancy")
    used = window.crop(run.used_mask)
    expected = window.crop(100 * run.sram_peak_bytes / run.sram_capacity_bytes)
    np.testing.assert_allclose(image.data[used], expected[used])


def test_cells_of_a_small_mesh_carry_their_numbers(runs: dict[str, RunData]) -> None:
    run = runs["one_region_4x4"]
    texts = axes_of(sram(run), "occupancy").texts
    found = {(round(t.get_position()[1]), round(t.get_position()[0])): t for t in texts}
    assert len(found) == 16
    peak = 100 * run.sram_peak_bytes[2, 1] / run.sram_capacity_bytes
    assert found[2, 1].get_text() == f"{peak:.0f}"


def test_placement_map_numbers_the_regions(runs: dict[str, RunData]) -> None:
    run = runs["two_regions_8x8"]
    image = shown(placement(run), "regions")
    assert image.mask[3, 3] and image.mask.sum() == 1
    assert (image[:, :3] == 0).all() and (image[:, 4:] == 1).all()


def test_placement_says_what_lives_where(runs: dict[str, RunData]) -> None:
    texts = texts_of(placement(runs["two_regions_8x8"]))
    assert "layers 0–2 + embedding" in texts
    assert "rows 0–7, columns 0–3: 8 × 4 − 1 dead = 31 cores" in texts
    assert "matmul ×6" in texts
    assert "stage1\nL3–5\nhead" in texts
    assert "dead core" in texts
    everything = " ".join(texts)
    assert all(op in everything for op in ("qkv_proj", "gate_up_proj", "down_proj", "lm_head"))


def test_placement_with_many_regions_lists_them(runs: dict[str, RunData]) -> None:
    texts = texts_of(placement(runs["pipeline_16x16"]))
    assert texts.count("stage7") == 1 and "layers 14–15" in texts
    assert "Ops of stage15" in texts


@pytest.mark.parametrize("name", ["whole_64x64", "line_1x64", "tall_64x2"])
def test_large_meshes_show_each_direction(runs: dict[str, RunData], name: str) -> None:
    run = runs[name]
    figure = links(run)
    for network in range(run.networks):
        share = 100 * run.link_busy_cycles[network] / run.cycles
        for d, direction in enumerate(DIRECTIONS):
            image = shown(figure, f"{direction} {network}")
            busy = ~np.ma.getmaskarray(image)
            np.testing.assert_allclose(image.data[busy], share[:, :, d][busy])
            assert (busy == ((share[:, :, d] > 0) & ~run.dead_mask)).all()


@pytest.mark.parametrize("name", ["one_region_4x4", "two_regions_8x8", "two_networks_16x16"])
def test_small_meshes_show_every_link_as_an_arrow(runs: dict[str, RunData], name: str) -> None:
    run = runs[name]
    figure = links(run)
    for network in range(run.networks):
        share = 100 * run.link_busy_cycles[network] / run.cycles
        arrows = next(
            c
            for c in axes_of(figure, f"arrows {network}").collections
            if c.get_label() == "busy links"
        )
        values = np.asarray(arrows.get_array())
        np.testing.assert_allclose(sorted(values), sorted(share[share > 0]))
        image = shown(figure, f"busiest {network}")
        busy = ~np.ma.getmaskarray(image)
        np.testing.assert_allclose(image.data[busy], share.max(axis=2)[busy])


def test_an_arrow_points_to_the_neighbour_it_feeds(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, 3, 3), "decode")
    for d, (down, right) in enumerate(((0, 1), (0, -1), (1, 0), (-1, 0))):
        run.link_busy_cycles[:] = 0
        run.link_busy_cycles[0, 1, 1, d] = 5
        axes = axes_of(links(run), "arrows 0")
        arrows = next(c for c in axes.collections if c.get_label() == "busy links")
        (path,) = arrows.get_paths()
        middle = path.vertices.mean(axis=0) - (1, 1)  # x, y from the core's centre
        assert middle @ (right, down) > 0.4
        assert abs(middle @ (down, right)) < 0.2


def test_colour_bars_name_their_unit(runs: dict[str, RunData]) -> None:
    run = runs["two_regions_8x8"]
    for picture, unit in (
        (utilization, "% of the step's time"),
        (sram, "peak SRAM in use (% of 512 KiB)"),
        (links, "busy share of the step (%)"),
    ):
        bars = [a for a in picture(run).axes if a.get_label() == "colour bar"]
        assert bars and all(unit in a.get_xlabel() for a in bars)


@pytest.mark.parametrize("picture", [placement, sram, utilization, links])
def test_a_small_region_of_a_wafer_is_zoomed(runs: dict[str, RunData], picture: object) -> None:
    figure = picture(runs["wafer"])  # type: ignore[operator]
    assert "whole chip: 750 × 994 cores" in texts_of(figure)
    mesh = next(a for a in figure.axes if a.get_xlabel() == "core column")
    assert mesh.get_xlim() == (407.5, 423.5) and mesh.get_ylim() == (313.5, 297.5)
    assert axes_of(figure, "locator").patches


@pytest.mark.parametrize("name", ["whole_64x64", "whole_wafer", "one_region_4x4"])
def test_other_meshes_are_shown_whole(runs: dict[str, RunData], name: str) -> None:
    figure = placement(runs[name])
    mesh = axes_of(figure, "regions")
    assert mesh.get_xlim() == (-0.5, runs[name].cols - 0.5)
    assert mesh.get_ylim() == (runs[name].rows - 0.5, -0.5)  # row 0 at the top
    assert "locator" not in [a.get_label() for a in figure.axes]


@pytest.mark.parametrize("name", list(RUNS))
def test_cells_are_square_and_ticks_are_whole_numbers(runs: dict[str, RunData], name: str) -> None:
    mesh = axes_of(placement(runs[name]), "regions")
    window = window_of(runs[name])
    if min(mesh.bbox.width, mesh.bbox.height) > 21:  # very thin meshes are drawn wider
        cell = mesh.bbox.width / window.cols, mesh.bbox.height / window.rows
        assert cell[0] == pytest.approx(cell[1])
    for ticks in (mesh.get_xticks(), mesh.get_yticks()):
        assert 1 <= len(ticks) <= 17 and all(t == int(t) for t in ticks)


def test_dead_cores_are_hatched(runs: dict[str, RunData]) -> None:
    run = runs["whole_64x64"]
    axes = Figure().add_subplot()
    draw_dead(axes, run, window_of(run))
    (dead,) = axes.collections
    assert dead.get_hatch()
    covered = np.zeros((64, 64), dtype=int)
    for path in dead.get_paths():
        (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
        covered[round(top + 0.5) : round(bottom + 0.5), round(left + 0.5) : round(right + 0.5)] += 1
    np.testing.assert_array_equal(covered, run.dead_mask)


def test_the_address_map_shows_every_buffer(runs: dict[str, RunData]) -> None:
    run = runs["one_region_4x4"]
    axes = axes_of(sram(run), "address map")
    boxes = [p.get_extents() for c in axes.collections for p in c.get_paths()]
    assert len(boxes) == sum(b.instances for b in run.buffers["all"])
    drawn = sorted((round(b.y0), round(b.height)) for b in boxes)
    assert drawn == sorted(
        (b.offset + i * b.stride, b.bytes) for b in run.buffers["all"] for i in range(b.instances)
    )
    texts = [t.get_text() for t in axes.texts]
    assert "capacity 512 KiB" in texts and "layer 1" in texts and "w_gate_up" in texts


def test_an_almost_empty_memory_is_magnified(runs: dict[str, RunData]) -> None:
    axes = axes_of(sram(runs["pipeline_16x16"]), "address map")
    assert axes.get_ylim()[1] < 0.3 * 524_288
    assert any("times the height of this map" in t.get_text() for t in axes.texts)


def test_the_timeline_shows_every_span_once(runs: dict[str, RunData]) -> None:
    run = runs["two_regions_8x8"]
    axes = axes_of(timeline(run), "overview")
    bars = [
        (p.get_extents().x0, p.get_extents().x1)
        for c in axes.collections
        if c.get_label() in {run.kind(s) for s in run.spans}
        for p in c.get_paths()
    ]
    assert sorted(bars) == sorted((s.start_cycle, s.end_cycle) for s in run.spans)
    assert axes.get_xlim() == (0, run.cycles)


def test_the_timeline_names_the_ops_of_one_layer(runs: dict[str, RunData]) -> None:
    run = runs["two_regions_8x8"]
    figure = timeline(run)
    rows = [t.get_text() for t in axes_of(figure, "layer").get_yticklabels()]
    assert rows == [s.name for s in run.spans if s.layer == 3]
    texts = texts_of(figure)
    assert "Layer 3 in detail (framed above)" in texts
    assert {"cycles", "µs", "layer 0", "layer 5", "reduce over cores", "matmul"} <= set(texts)


def test_a_long_timeline_is_summed_up_by_layer(runs: dict[str, RunData]) -> None:
    run = runs["whole_64x64"]
    assert len(run.spans) > 1900
    axes = axes_of(timeline(run), "overview")
    polygons = sum(
        len(c.get_paths()) for c in axes.collections if c.get_label() in ("matmul", "all-reduce")
    )
    assert 56 * 2 <= polygons <= 58 * 2


@pytest.mark.parametrize("picture", list(FIGURES))
@pytest.mark.parametrize("name", list(RUNS))
def test_no_text_is_cut_off_or_covers_other_text(
    runs: dict[str, RunData], name: str, picture: str
) -> None:
    figure = FIGURES[picture](runs[name])
    boxes = styled(_text_boxes)(figure)
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in boxes:
        inside = box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height
        assert inside, f"'{text}' leaves the picture"
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        across = min(a[2], b[2]) - max(a[0], b[0])
        down = min(a[3], b[3]) - max(a[1], b[1])
        assert across <= 1 or down <= 1, f"'{one}' covers '{other}'"


def _text_boxes(figure: Figure) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Every drawn text with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn: list[Text] = list(figure.texts)
    for axes in figure.axes:
        children = [axes, *axes.child_axes]
        for one in children:
            drawn += [*one.texts, one.xaxis.label, one.yaxis.label]
            for axis in (one.xaxis, one.yaxis):
                low, high = sorted(axis.get_view_interval())
                drawn += [
                    t
                    for t, at in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
                    if low <= at <= high
                ]
    boxes = []
    for text in drawn:
        if text.get_text().strip() and text.get_visible():
            box = text.get_window_extent(canvas.get_renderer())
            boxes.append((text.get_text(), (box.x0, box.y0, box.x1, box.y1)))
    return boxes


def test_empty_runs_are_drawn(tmp_path: Path) -> None:
    full = load_run(write_run(tmp_path, 3, 4), "decode")
    arrays = {
        n: np.zeros_like(getattr(full, n))
        for n in (
            "compute_cycles", "communication_cycles", "wait_cycles", "finish_cycles",
            "sram_peak_bytes", "sram_bytes", "macs",
        )
    }  # fmt: skip
    none = np.zeros((0, 3, 4, 4))
    empty = RunData(
        "m", "c", "decode", 3, 4, 0.0, 0.0, (), {}, {}, {}, (), 0, {},
        **arrays, link_busy_cycles=none, link_bytes=none,
    )  # fmt: skip
    for picture in FIGURES.values():
        styled(lambda f: FigureCanvasAgg(f).draw())(picture(empty))


def test_unknown_op_kinds_are_drawn_as_other(tmp_path: Path) -> None:
    path = write_run(tmp_path, 2, 2) / "trace-decode.json"
    path.write_text(path.read_text().replace('"fused"', '"einsum"'))
    texts = texts_of(timeline(load_run(tmp_path, "decode")))
    assert "other" in texts and "fused" not in texts
