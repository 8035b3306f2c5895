"""Reading a run: what is found, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from viz_runs import one_region_4x4, pipeline_16x16, two_phases_4x8, two_regions_8x8, write_run

from meshc.errors import InputError
from viz import load_run
from viz.data import SramBuffer, phases


def test_arrays_and_tables_come_back_as_written(tmp_path: Path) -> None:
    run = load_run(two_regions_8x8(tmp_path), "decode")
    with np.load(tmp_path / "trace-decode.npz") as npz:
        for name in npz.files:
            np.testing.assert_array_equal(getattr(run, name), npz[name])
    trace = json.loads((tmp_path / "trace-decode.json").read_text())
    assert (run.rows, run.cols, run.networks, run.chip) == (8, 8, 2, "test8x8")
    assert run.clock_hz == 1.1e9
    assert [run.dead_mask[3, 3], run.used_mask[3, 3], run.used_mask[3, 2]] == [True, False, True]
    assert [[s.name, s.start_cycle, s.wait_cycles] for s in run.spans] == [
        [s[1], s[6], s[10]] for s in trace["spans"]
    ]
    assert [b.name for b in run.buffers["stage1"]] == [b["name"] for b in trace["sram"]["stage1"]]


def test_regions_of_the_sram_table_may_be_grouped_under_buffers(tmp_path: Path) -> None:
    path = one_region_4x4(tmp_path) / "trace-decode.json"
    plain = load_run(tmp_path, "decode")
    trace = json.loads(path.read_text())
    trace["sram"] = {"capacity_bytes": 524_288, "buffers": {"all": trace["sram"]["all"]}}
    path.write_text(json.dumps(trace))
    assert load_run(tmp_path, "decode").buffers == plain.buffers


def test_hosted_names_layers_first(tmp_path: Path) -> None:
    run = load_run(pipeline_16x16(tmp_path), "decode")
    assert run.hosted("stage0") == "layers 0–1 + embedding"
    assert run.hosted("stage7") == "layers 14–15"
    assert run.hosted("stage15") == "layers 30–31 + head"
    assert run.hosted("unknown") == ""


def test_a_single_layer_and_segments_without_layers(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, 2, 2, layers=1), "decode")
    assert run.hosted("all") == "layer 0 + embedding, head"


def test_spans_are_sorted_into_lanes_and_kinds(tmp_path: Path) -> None:
    run = load_run(one_region_4x4(tmp_path), "decode")
    found = {s.name: (run.lane(s), run.kind(s)) for s in run.spans}
    assert found["qkv_proj"] == ("compute", "matmul")
    assert found["qkv_proj.sum"] == ("reduce", "all-reduce")
    assert found["qkv_proj.back"] == ("broadcast", "broadcast")
    assert found["attn_norm.mean"] == ("compute", "reduce")
    assert found["attn_norm.mean.all"] == ("reduce", "all-reduce")
    assert found["lm_head.gather"] == ("transfer", "transfer")


def test_resident_bytes_count_every_layers_instance(tmp_path: Path) -> None:
    run = load_run(one_region_4x4(tmp_path), "decode")
    always = [b for b in run.buffers["all"] if b.persistent]
    assert run.resident_bytes("all") == sum(b.bytes * b.instances for b in always)
    buffer = SramBuffer("w", "weight", "w", "layers", 0, 100, stride=400, layers=3)
    assert (buffer.persistent, buffer.instances, buffer.total_bytes) == (True, 3, 300)


def test_phases_in_order(tmp_path: Path) -> None:
    assert phases(two_phases_4x8(tmp_path)) == ["prefill", "decode"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        load_run(tmp_path, "decode")
    assert str(error.value) == (
        f"The folder '{tmp_path}' has no report.json; run `meshc run {tmp_path}` first."
    )


def test_a_missing_array_file_is_refused(tmp_path: Path) -> None:
    (one_region_4x4(tmp_path) / "trace-decode.npz").unlink()
    with pytest.raises(InputError) as error:
        load_run(tmp_path, "decode")
    assert str(error.value) == (
        f"The folder '{tmp_path}' has no trace-decode.npz; run `meshc run {tmp_path}` first."
    )


@pytest.mark.parametrize("text", ["", "[]", '{"chip": {}}', '{"chip": 3, "spans": []}'])
def test_a_damaged_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = one_region_4x4(tmp_path) / "trace-decode.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_run(tmp_path, "decode")
    assert str(error.value).startswith(f"The file '{path}' is not a trace that meshc can draw (")
    assert str(error.value).endswith(f"); run `meshc run {tmp_path}` again.")


def test_a_damaged_array_file_is_refused(tmp_path: Path) -> None:
    path = one_region_4x4(tmp_path) / "trace-decode.npz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="is not a trace that meshc can draw"):
        load_run(tmp_path, "decode")


def test_arrays_of_another_chip_are_refused(tmp_path: Path) -> None:
    one_region_4x4(tmp_path)
    write_run(tmp_path / "other", 4, 5)
    (tmp_path / "other" / "trace-decode.npz").replace(tmp_path / "trace-decode.npz")
    with pytest.raises(InputError) as error:
        load_run(tmp_path, "decode")
    assert str(error.value) == (
        "Array 'compute_cycles' of phase 'decode' has shape (4, 5), but the chip 'test4x4' has "
        "4 × 4 cores; run `meshc run` again."
    )


def test_a_region_off_the_chip_is_refused(tmp_path: Path) -> None:
    path = one_region_4x4(tmp_path) / "trace-decode.json"
    trace = json.loads(path.read_text())
    trace["regions"]["all"] = [0, 1, 4, 4]
    path.write_text(json.dumps(trace))
    with pytest.raises(InputError) as error:
        load_run(tmp_path, "decode")
    assert str(error.value) == (
        "Region 'all' covers rows 0 to 3 and columns 1 to 4, but the chip 'test4x4' has 4 × 4 "
        "cores; run `meshc run` again."
    )
