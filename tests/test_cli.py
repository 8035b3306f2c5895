"""The command line as its users meet it: exit codes, sentences, files, output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from meshc import chips, cli, frontend, store

Meshc = Callable[..., Any]
FLAGS = ("--solver", "greedy", "--grid", "2x2", "--phase", "decode", "--context", "4", "--quiet")
BOTH: dict[str, Any] = {"phase": "both", "prompt": 4, "grid": (2, 2)}
DECODE: dict[str, Any] = {"phase": "decode", "context": 4, "grid": (2, 2)}


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below a folder, byte for byte."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Callable[..., Path], example: Path
) -> Path:
    """A working directory with a finished OUT/ and files that are no models."""
    monkeypatch.chdir(tmp_path)
    folder("out", **DECODE)
    data = example.read_bytes()
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "short.onnx").write_bytes(data[:1000])
    (tmp_path / "cut.onnx").write_bytes(data[: len(data) // 2])
    (tmp_path / "text.onnx").write_text("This is a letter and not a model.\n")
    (tmp_path / "noise.onnx").write_bytes(np.random.default_rng(1).bytes(4096))
    (tmp_path / "directory.onnx").mkdir()
    (tmp_path / "file").write_text("a file\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("years of work\n")
    return tmp_path


def write_model(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], *domains: str
) -> Path:
    """A tiny model with an 8 × 4 table of ones."""
    table = helper.make_tensor("table", TensorProto.FLOAT, [8, 4], [1.0] * 32)
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, [table])
    opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(d, 1) for d in domains)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    return path


IDS = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])


def floats(name: str, *dims: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


# -- compile refuses, in one sentence, and leaves everything as it was --------------------------

CANNOT_PARSE = "cannot be parsed: it is truncated or not an ONNX file; export or copy it again."
MODELS = {
    "absent.onnx": "Model 'absent.onnx' does not exist; give the path of an .onnx file.",
    "empty.onnx": "Model 'empty.onnx' is empty (0 bytes); export or copy it again.",
    "short.onnx": f"Model 'short.onnx' (1000 bytes) {CANNOT_PARSE}",
    "cut.onnx": f"Model 'cut.onnx' (211770 bytes) {CANNOT_PARSE}",
    "text.onnx": f"Model 'text.onnx' (34 bytes) {CANNOT_PARSE}",
    "noise.onnx": f"Model 'noise.onnx' (4096 bytes) {CANNOT_PARSE}",
    "directory.onnx": "Model 'directory.onnx' is a directory; give the path of an .onnx file.",
}


@pytest.mark.parametrize("model", MODELS)
def test_a_file_that_is_no_model(model: str, bench: Path, meshc: Meshc) -> None:
    before = contents(bench)
    result = meshc("compile", model, "--chip", "test4x4", "-o", "out", *FLAGS)
    assert (result.code, result.sentence, result.out) == (2, MODELS[model], "")
    listed = meshc("ops", model)
    assert (listed.code, listed.sentence) == (2, MODELS[model])
    assert contents(bench) == before


KNOWN_CHIPS = ", ".join(chips.chip_names())
HELP = "; see meshc compile --help."
REFUSED: dict[str, tuple[int, str]] = {
    "--chip test9x9": (
        2,
        "chip test9x9 is neither a shipped name nor the path of a TOML file; the nearest shipped "
        f"name is test8x8; choose one of {KNOWN_CHIPS}, or give a path.",
    ),
    "--chip ./none.toml": (
        2,
        "chip spec ./none.toml cannot be read (No such file or directory); give the path of a TOML "
        f"file or one of the shipped names: {KNOWN_CHIPS}.",
    ),
    "--dim sequence=3": (
        2,
        "--dim sequence=3 names no dimension of the graph; known names: batch_size, "
        "past_sequence_length, past_sequence_length + sequence_length, sequence_length.",
    ),
    "--dim batch_size=3": (
        2,
        "--dim batch_size=3 contradicts the decode workload, which binds 'batch_size' to 1; leave "
        "it out or change --batch, --prompt or --context.",
    ),
    "--dim batch_size": (2, f"Argument --dim: 'batch_size' is not KEY=VALUE{HELP}"),
    "--dim batch_size=two": (
        2, f"Argument --dim: 'batch_size=two' is not NAME=N with a whole number N{HELP}",
    ),
    "--override core.sram_bytes": (
        2,
        "--override 'core.sram_bytes' is not FIELD=VALUE; write for example "
        "core.sram_bytes=98304.",
    ),
    "--override core.sram=98304": (
        2,
        "chip test4x4: core.sram is not a field of a chip spec; the nearest is core.sram_bytes.",
    ),
    "--override core.sram_byte=98304": (
        2,
        "chip test4x4: core.sram_byte is not a field of a chip spec; the nearest is "
        "core.sram_bytes.",
    ),
    "--override core.sram_bytes=-1": (
        2,
        "chip test4x4: core.sram_bytes is -1, but it must be a whole number of at least 1; correct "
        "it.",
    ),
    "--override core.sram_bytes=much": (
        2,
        'chip test4x4: core.sram_bytes is "much", but it must be a whole number of at least 1; '
        "correct it.",
    ),
    "--override core.sram_bytes=": (
        2,
        "chip test4x4: override core.sram_bytes= has no valid TOML value; write it as in a spec, "
        "such as core.sram_bytes=98304 or dead_cores=[[3,4]].",
    ),
    "--override dead_cores=[[0,1],[1,1],[1,0]]": (
        2,
        "chip test4x4: the dead cores cut the 13 working cores into 2 parts that cannot reach each "
        "other (the largest has 12, the smallest 1 around (0, 0)); set dead_cores_forward = true "
        "if dead cores still forward messages, or list the cores of the smaller parts in "
        "dead_cores too.",
    ),
    "--grid 4": (2, f"Argument --grid: '4' is not ROWSxCOLS, such as 8x8{HELP}"),
    "--grid 0x4": (2, f"Argument --grid: '0x4' is not ROWSxCOLS, such as 8x8{HELP}"),
    "--grid 4x-4": (2, f"Argument --grid: '4x-4' is not ROWSxCOLS, such as 8x8{HELP}"),
    "--batch 0": (2, "--batch 0 is below 1; give at least 1."),
    "--batch many": (2, f"Argument --batch: invalid int value: 'many'{HELP}"),
    "--prompt 0": (2, "--prompt 0 is below 1; give at least 1."),
    "--context -1": (2, "--context -1 is below 0; give at least 0."),
    "--max-context 3": (
        2,
        "--max-context 3 is below the 5 tokens that are cached when the decode step ends "
        "(context 4 + new 1); raise it or lower --context.",
    ),
    "--phase later": (
        2,
        "Argument --phase: invalid choice: 'later' (choose from 'prefill', 'decode', 'both')"
        + HELP,
    ),
    "--solver luck": (
        2,
        "Argument --solver: invalid choice: 'luck' (choose from 'ilp', 'greedy', 'anneal')" + HELP,
    ),
    "--gap -1": (2, f"Argument --gap: '-1' is not a number of at least 0{HELP}"),
    "--time-limit nan": (2, f"Argument --time-limit: 'nan' is not a number of at least 0{HELP}"),
    "--set ab": (2, f"Argument --set: 'ab' is not KEY=VALUE{HELP}"),
    "--until bogus": (
        2,
        "Argument --until: invalid choice: 'bogus' (choose from 'import', 'partition', 'place', "
        f"'emit', 'route'){HELP}",
    ),
    "--decode-model absent.onnx": (
        2, "Model 'absent.onnx' does not exist; give the path of an .onnx file.",
    ),
    "-o file": (2, "Output 'file' is a file, not a folder; give a folder with -o."),
    "-o foreign": (
        2,
        "Output folder 'foreign' holds files that meshc did not write; give an empty or new folder "
        "with -o.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("flags", REFUSED)
def test_compile_refuses(flags: str, bench: Path, meshc: Meshc, example: Path) -> None:
    """Later flags win, so that each case changes one thing of a command that would succeed."""
    code, sentence = REFUSED[flags]
    before = contents(bench)
    given = ("--chip", "test4x4", "-o", "out", *FLAGS, *flags.split())
    for extra in ((), ("--json",)):
        result = meshc("compile", example, *given, *extra)
        assert (result.code, result.sentence, result.out) == (code, sentence, "")
    assert contents(bench) == before


def test_an_unknown_strategy_names_those_there_are(
    bench: Path, meshc: Meshc, example: Path
) -> None:
    from meshc.partition import STRATEGIES

    result = meshc("compile", example, "--chip", "test4x4", "-o", "o", *FLAGS, "--strategy", "hope")
    assert (result.code, result.sentence) == (
        2,
        f"Strategy 'hope' is not available; this version has {', '.join(STRATEGIES)}.",
    )


def test_an_output_below_a_file(bench: Path, meshc: Meshc, example: Path) -> None:
    result = meshc("compile", example, "--chip", "test4x4", "-o", "file/out", *FLAGS)
    assert (result.code, result.sentence) == (
        2, f"Output 'file/out' lies below the file '{bench / 'file'}'; give another folder.",
    )  # fmt: skip


def test_missing_flags_and_commands(meshc: Meshc, example: Path) -> None:
    result = meshc("compile", example, "--chip", "test4x4")
    assert (result.code, result.sentence) == (
        2, "The following arguments are required: -o/--output; see meshc compile --help.",
    )  # fmt: skip
    result = meshc()
    assert (result.code, result.sentence) == (
        2, "The following arguments are required: COMMAND; see meshc --help.",
    )  # fmt: skip
    result = meshc("complie")
    assert result.code == 2 and result.sentence.startswith("Argument COMMAND: invalid choice")


def test_a_folder_that_cannot_be_written(
    bench: Path, meshc: Meshc, example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = bench / "locked"
    locked.mkdir()

    def refused(*args: Any, **more: Any) -> str:
        raise PermissionError(13, "Permission denied")

    # Root may write anywhere, so say what the system would say to anyone else.
    monkeypatch.setattr(store.tempfile, "mkdtemp", refused)
    result = meshc("compile", example, "--chip", "test4x4", "-o", "locked/out", *FLAGS)
    assert (result.code, result.sentence) == (
        2, f"'{locked}' cannot be written (Permission denied); give another place.",
    )  # fmt: skip
    assert list(locked.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system like /proc")
def test_a_file_system_that_takes_no_folders(meshc: Meshc, example: Path) -> None:
    result = meshc("compile", example, "--chip", "test4x4", "-o", "/proc/meshc-out", *FLAGS)
    assert result.code == 2, result.err
    assert "'/proc" in result.sentence


def test_all_unsupported_operators_are_listed_with_their_counts(bench: Path, meshc: Meshc) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("Det", ["x"], ["a"]),
        helper.make_node("GridSample", ["x", "x"], ["b"]),
        helper.make_node("Det", ["b"], ["c"]),
        helper.make_node("Quantum", ["a"], ["d"], domain="my.ops"),
        helper.make_node("Sum", ["a", "b", "c", "d"], ["y"]),
    ]
    write_model(bench / "odd.onnx", nodes, [IDS], [floats("y", "b", "s", 4)], "my.ops")
    before = contents(bench)
    result = meshc("compile", "odd.onnx", "--chip", "test4x4", "-o", "out", "--quiet")
    assert (result.code, result.sentence) == (
        2,
        "Model 'odd.onnx' has operators that are not supported: 'my.ops:Quantum' (1 node); "
        "operators in a form that is not supported: 'Det' because it solves equations or measures "
        "distances, which meshc does not compile (2 nodes), 'GridSample' because it resamples "
        "images, which no transformer needs at run time (1 node); export it without them ('meshc "
        "ops' lists what is supported).",
    )
    assert contents(bench) == before
    listed = meshc("ops", "odd.onnx", "--json")
    table = {row["op"]: (row["count"], row["status"]) for row in json.loads(listed.out)["ops"]}
    assert table["Gather"] == (1, "executed")
    assert table["my.ops:Quantum"] == (1, "unsupported")
    assert table["Det"][0] == 2 and table["Det"][1].startswith("unsupported")
    assert listed.code == 2
    assert listed.sentence == result.sentence


def test_an_unbound_dimension_names_the_flag_that_binds_it(bench: Path, meshc: Meshc) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "side"], ["y"]),
    ]
    ports = [IDS, floats("side", 4, "width")]
    write_model(bench / "wide.onnx", nodes, ports, [floats("y", "b", "s", "w")])
    command = ("compile", "wide.onnx", "--chip", "test4x4", "-o", "wide", "--solver", "greedy")
    result = meshc(*command)
    assert (result.code, result.sentence) == (
        2,
        "Dimensions 'width' of 'wide.onnx' are not determined by the workload; bind them with "
        "--dim width=N.",
    )
    assert meshc(*command, "--dim", "width=6", "--quiet").code == 0
    assert meshc("run", "wide", "--verify", "--quiet").code == 0
    twice = meshc(*command, "--dim", "width=6", "--dim", "width=7")
    assert twice.code == 2, "two values for one dimension"
    assert "width" in twice.sentence


# -- chip specs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "hop_cycles = 1",
            "hop_cycle = 1",
            "noc.hop_cycle is not a field of a chip spec; the nearest is noc.hop_cycles.",
        ),
        ("rows = 4\n", "row = 4\n", "row is not a field of a chip spec; the nearest is rows."),
        ("rows = 4\n", "", "rows is missing, and a chip spec needs it; add rows = … at the top."),
        (
            "rows = 4\n",
            "rows = 0\n",
            "rows is 0, but it must be a whole number of at least 1; correct it.",
        ),
        (
            "clock_hz = 1.0e9",
            "clock_hz = -1",
            "clock_hz is -1, but it must be a number above 0; correct it.",
        ),
        (
            "link_bytes_per_cycle = 32",
            "link_bytes_per_cycle = 0",
            "noc.link_bytes_per_cycle is 0, but it must be a number above 0; correct it.",
        ),
        (
            'topology = "mesh"',
            'topology = "ring"',
            'noc.topology is "ring", but it must be "mesh", "torus" or "exchange"; correct it.',
        ),
        (
            "reserved_bytes = 0",
            "reserved_bytes = 524_288",
            "core.reserved_bytes is 524288, which leaves nothing of the core's 524288 bytes of "
            "SRAM; lower it or raise core.sram_bytes.",
        ),
        (
            "rows = 4\n",
            "rows = 4\ndead_cores = [[9, 9]]\n",
            "dead core (9, 9) lies outside the mesh of 4 x 4; rows and cols count from 0, so "
            "remove or correct it.",
        ),
        (
            "rows = 4\n",
            "rows = 4\ndead_rows = [1]\n",
            "the dead cores cut the 12 working cores into 2 parts that cannot reach each other "
            "(the largest has 8, the smallest 4 around (0, 0)); set dead_cores_forward = true if "
            "dead cores still forward messages, or list the cores of the smaller parts in "
            "dead_cores too.",
        ),
        (
            "rows = 4\n",
            "rows = 4\ndead_rows = [0, 1, 2, 3]\n",
            "all 16 cores are dead, but at least one must work; shorten dead_cores, dead_rows or "
            "dead_cols.",
        ),
    ],
)
def test_a_wrong_chip_file(
    old: str, new: str, sentence: str, bench: Path, meshc: Meshc, example: Path
) -> None:
    text = chips.chip_text("test4x4")
    assert text.count(old) == 1
    (bench / "mine.toml").write_text(text.replace(old, new))
    before = contents(bench)
    result = meshc("compile", example, "--chip", "mine.toml", "-o", "out", *FLAGS)
    assert (result.code, result.sentence, result.out) == (2, f"chip mine.toml: {sentence}", "")
    assert contents(bench) == before


def test_a_chip_file_that_is_no_toml(bench: Path, meshc: Meshc, example: Path) -> None:
    (bench / "mine.toml").write_text("rows = = 4\n")
    result = meshc("compile", example, "--chip", "mine.toml", "-o", "out", *FLAGS)
    assert (result.code, result.sentence) == (
        2,
        "chip spec mine.toml is not valid TOML: Invalid value (at line 1, column 8); correct that "
        "line.",
    )


def test_a_chip_of_ones_own(bench: Path, meshc: Meshc, example: Path) -> None:
    text = chips.chip_text("test4x4").replace('"test4x4"', '"mine"').replace("cols = 4", "cols = 3")
    (bench / "mine.toml").write_text(text)
    assert meshc("compile", example, "--chip", "mine.toml", "-o", "mine", *FLAGS).code == 0
    (bench / "mine.toml").unlink()  # the compiled model carries its chip
    assert meshc("run", "mine", "--verify", "--quiet").code == 0
    report = json.loads((bench / "mine" / "report.json").read_text())
    assert report["chip"] == {"name": "mine", "rows": 4, "cols": 3, "cores": 12, "clock_hz": 1e9}


@pytest.mark.parametrize("field", ["core.macs_per_cycle", "core.vector_ops_per_cycle"])
def test_a_chip_that_cannot_compute_in_the_models_type(
    field: str, bench: Path, meshc: Meshc, example: Path
) -> None:
    before = contents(bench)
    override = ("--override", f"{field}={{int8=256}}")
    result = meshc("compile", example, "--chip", "test4x4", "-o", "out", *FLAGS, *override)
    assert result.code == 2, result.err
    assert "fp32" in result.sentence and "test4x4" in result.sentence
    assert contents(bench) == before


# -- what does not fit -------------------------------------------------------------------------

TOO_SMALL = re.compile(
    r"Model 'llama-optimum-with_past' does not fit (test4x4|the 1x2 grid): the best mapping found, "
    r"on (\d+) regions? of (\d+)x(\d+) cores, needs (?P<needs>\d+) bytes of SRAM per core where "
    r"(?P<usable>\d+) are usable, (?P<over>\d+) too many \(its weights take 328960 bytes and its "
    r"KV cache of (17 tokens 8704|80 tokens 40960)\); ((core\.sram_bytes of at least "
    r"(?P<sram>\d+)(, )?)?((or )?about (?P<times>[\d.]+) times as many cores(, )?)?(or a shorter "
    r"--max-context or smaller --batch)? would make it fit|more SRAM per core, .*)\."
)
SMALL = {
    "chip": ("--override", "core.sram_bytes=16384"),
    "reserved": ("--override", "core.sram_bytes=20000", "--override", "core.reserved_bytes=8000"),
    "grid": ("--grid", "1x2", "--override", "core.sram_bytes=65536"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.slow] if c == "reserved" else []) for c in SMALL]
)
def test_too_little_sram_says_how_much_would_do(
    case: str, bench: Path, meshc: Meshc, example: Path
) -> None:
    command = ("compile", example, "--chip", "test4x4", "-o", "out", "--solver", "greedy")
    command = (*command, "--phase", "decode", *SMALL[case])
    before = contents(bench)
    result = meshc(*command)
    assert (result.code, result.out) == (3, "")
    told = TOO_SMALL.fullmatch(result.sentence)
    assert told, result.err
    needs, usable, over = (int(told[k]) for k in ("needs", "usable", "over"))
    assert needs - usable == over
    assert contents(bench) == before
    assert told["sram"]
    # The advice works.
    enough = meshc(*command, "--override", f"core.sram_bytes={told['sram']}", "--quiet")
    assert enough.code == 0, enough.err
    assert meshc("run", "out", "--verify", "--quiet").code == 0


@pytest.mark.parametrize(
    ("case", "phase"),
    [
        ("grid", "decode"),
        *(
            pytest.param(case, phase, marks=pytest.mark.slow)
            for case in SMALL
            for phase in ("decode", "both")
            if (case, phase) != ("grid", "decode")
        ),
    ],
)
def test_too_few_cores_says_how_many_would_do(
    case: str, phase: str, bench: Path, meshc: Meshc, example: Path
) -> None:
    """Rounded up to whole rows or columns."""
    command = ("compile", example, "--chip", "test4x4", "-o", "out", "--solver", "greedy")
    command = (*command, "--phase", phase, *SMALL[case])
    told = TOO_SMALL.fullmatch(meshc(*command).sentence)
    assert told
    if not told["times"]:
        return  # what could not be tried in time is not advised
    times = float(told["times"])
    more = ("--override", f"cols={ceil(4 * times)}")
    if case == "grid":
        more = ("--grid", f"2x{ceil(times)}")
    larger = meshc(*command, *more, "--quiet")
    assert larger.code == 0, (more, larger.err)


def test_a_shorter_context_fits_where_a_long_one_does_not(
    bench: Path, meshc: Meshc, example: Path
) -> None:
    command = ("compile", example, "--chip", "test4x4", "-o", "new", "--solver", "greedy")
    command = (*command, "--phase", "decode", "--context", "16")
    refused = meshc(*command, "--max-context", "20000")
    assert refused.code == 3
    assert "shorter --max-context" in refused.sentence
    assert not (bench / "new").exists()
    assert meshc(*command, "--max-context", "200", "--quiet").code == 0


@pytest.mark.parametrize("grid", ["5x5", "1x5", "5x1"])
def test_a_grid_beyond_the_chip(grid: str, bench: Path, meshc: Meshc, example: Path) -> None:
    before = contents(bench)
    command = ("compile", example, "--chip", "test4x4", "-o", "out", *FLAGS)
    result = meshc(*command, "--grid", grid)
    assert (result.code, result.sentence) == (
        2,
        f"--grid {grid} is larger than the 4x4 mesh of test4x4; give a rectangle that lies within "
        "it.",
    )
    assert contents(bench) == before


# -- files appear whole or not at all ----------------------------------------------------------


def test_compile_replaces_its_own_folder(bench: Path, meshc: Meshc, example: Path) -> None:
    assert meshc("run", "out", "--quiet").code == 0
    before = contents(bench / "out")
    assert meshc("compile", example, "--chip", "test8x8", "-o", "out", *FLAGS).code == 0
    after = contents(bench / "out")
    assert set(after) == {"compiled.json", "meshc.json", "seconds.json"}  # no stale report
    assert after["compiled.json"] != before["compiled.json"]
    assert [p.name for p in bench.iterdir() if p.name.startswith(".")] == []


def test_compile_leaves_what_it_did_not_write(bench: Path, meshc: Meshc, example: Path) -> None:
    (bench / "out" / "notes.txt").write_text("mine\n")
    assert meshc("compile", example, "--chip", "test8x8", "-o", "out", *FLAGS).code == 0
    assert (bench / "out" / "notes.txt").read_text() == "mine\n"


@pytest.mark.parametrize("flaw", [KeyboardInterrupt, RuntimeError, OSError])
def test_an_interrupted_compile_leaves_the_old_folder(
    flaw: type[BaseException],
    bench: Path,
    meshc: Meshc,
    example: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = contents(bench)
    target = (store, "save_compiled") if flaw is OSError else (frontend, "bind")

    def broken(*args: Any, **more: Any) -> Any:
        raise flaw("on purpose")

    monkeypatch.setattr(*target, broken)
    result = meshc("compile", example, "--chip", "test4x4", "-o", "out", *FLAGS)
    assert result.code == (130 if flaw is KeyboardInterrupt else 1)
    if flaw is KeyboardInterrupt:
        assert result.sentence == "Interrupted; nothing was left half-written."
    assert contents(bench) == before


def test_an_interrupted_run_leaves_the_old_report(
    bench: Path, meshc: Meshc, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshc import report

    assert meshc("run", "out", "--quiet").code == 0
    before = contents(bench)

    def broken(*args: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "energy", broken)
    assert meshc("run", "out", "--quiet").code == 130
    assert contents(bench) == before


def test_an_empty_folder_is_taken_and_parents_are_made(
    bench: Path, meshc: Meshc, example: Path
) -> None:
    (bench / "blank").mkdir()
    for out in ("blank", "deep/er/out"):
        assert meshc("compile", example, "--chip", "test4x4", "-o", out, *FLAGS).code == 0
        assert (bench / out / "compiled.json").exists()
        assert (bench / out).stat().st_mode & 0o777 == 0o755


# -- run ---------------------------------------------------------------------------------------


def test_run_without_a_compiled_model(bench: Path, meshc: Meshc) -> None:
    remedy = "make it with: meshc compile MODEL.onnx --chip CHIP -o"
    for name, what in (
        ("absent", f"Folder 'absent' does not exist; {remedy} absent."),
        ("foreign", f"Folder 'foreign' holds no compiled model (compiled.json); {remedy} foreign."),
    ):
        for command in (
            ("run",),
            ("generate", "--ids", "1"),
            ("disasm", "--core", "0,0"),
            ("viz",),
        ):
            result = meshc(command[0], name, *command[1:])
            assert (result.code, result.sentence, result.out) == (2, what, "")
    (bench / "blank").mkdir()
    result = meshc("run", "blank")
    assert (result.code, result.sentence) == (
        2, f"Folder 'blank' holds no compiled model (compiled.json); {remedy} blank.",
    )  # fmt: skip
    assert list((bench / "blank").iterdir()) == []
    result = meshc("run", "file")
    assert (result.code, result.sentence) == (
        2, "'file' is a file; give the folder that meshc compile wrote.",
    )  # fmt: skip


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "an object": lambda data: b"{}",
    "a list": lambda data: b"[]",
    "no fields": lambda data: b'{"@":"Compiled"}',
    "an unknown class": lambda data: data.replace(b'"@":"Program"', b'"@":"Programme"'),
    "an unknown field": lambda data: data.replace(b'"load":', b'"lode":'),
    "not text": lambda data: b"\xb1\xff\x00" + data[:100],
    "an early NUL": lambda data: b"\x00" * 200,
    "a number for the schedule": lambda data: data.replace(b'"schedule":[', b'"schedule":[5,', 1),
    "a region beyond the chip": lambda data: data.replace(
        b'"row":0,"col":0,"rows":2,"cols":2', b'"row":3,"col":3,"rows":2,"cols":2'
    ),
    "a buffer that is not there": lambda data: data.replace(b'"kv present.0.key":{', b'"kv":{'),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_run_on_a_damaged_folder(damage: str, bench: Path, meshc: Meshc) -> None:
    file = bench / "out" / "compiled.json"
    data = DAMAGE[damage](file.read_bytes())
    assert data != file.read_bytes()
    file.write_bytes(data)
    before = contents(bench)
    result = meshc("run", "out")
    assert result.code == 2, result.err
    assert result.sentence == (
        "'out/compiled.json' is damaged or from another version of meshc; compile the model again."
    )
    assert contents(bench) == before


def test_a_folder_of_another_version(bench: Path, meshc: Meshc) -> None:
    file = bench / "out" / "compiled.json"
    data = re.sub(rb'"version":"[^"]*"', b'"version":"99.0"', file.read_bytes())
    assert data != file.read_bytes()
    file.write_bytes(data)
    result = meshc("run", "out")
    assert (result.code, result.sentence) == (
        2,
        "'out/compiled.json' is damaged or from another version of meshc; compile the model again.",
    )


def test_a_folder_without_times_still_runs(bench: Path, meshc: Meshc) -> None:
    (bench / "out" / "seconds.json").unlink()
    assert meshc("run", "out", "--quiet").code == 0
    report = json.loads((bench / "out" / "report.json").read_text())
    assert report["seconds"]["partition"] == 0 and report["seconds"]["emulate"] > 0


def test_a_model_that_has_gone_or_changed(bench: Path, meshc: Meshc, example: Path) -> None:
    model = bench / "mine.onnx"
    model.write_bytes(example.read_bytes())
    assert meshc("compile", "mine.onnx", "--chip", "test4x4", "-o", "mine", *FLAGS).code == 0
    proto = onnx.load(model)
    proto.doc_string = "changed"
    onnx.save(proto, model)
    for command in (
        ("run", "mine", "--verify"),
        ("generate", "mine", "--ids", "1", "--tokens", "1"),
    ):
        result = meshc(*command)
        assert (result.code, result.sentence) == (
            2, f"Model file '{model}' has changed since it was compiled; compile it again.",
        )  # fmt: skip
    model.unlink()
    result = meshc("run", "mine", "--verify")
    assert (result.code, result.sentence) == (
        2,
        f"Model file '{model}' is gone; put it back or compile the model again from its new place.",
    )
    assert meshc("run", "mine", "--quiet").code == 0  # timing needs no weights


def test_flags_of_run(bench: Path, meshc: Meshc) -> None:
    for flags, sentence in (
        (("--tokens", "0"), "--tokens 0 is below 1; ask for at least one step."),
        (
            ("--tokens", "9"),
            "--tokens 9 from context 4 needs 13 cached tokens where SRAM is reserved for 5; "
            "compile with --max-context 13 or give at most 1 tokens.",
        ),
        (
            ("--trace", "absent/t.json"),
            f"Folder '{bench / 'absent'}' does not exist; make it or give another place.",
        ),
        (("--trace", "foreign"), "'foreign' is a folder; give the name of a file."),
        (
            ("--engine", "magic"),
            "Argument --engine: invalid choice: 'magic' (choose from 'lanes', 'cores'); see meshc "
            "run --help.",
        ),
    ):
        result = meshc("run", "out", *flags)
        assert (result.code, result.sentence) == (2, sentence)


def test_decoding_several_steps(folder: Callable[..., Path], meshc: Meshc) -> None:
    out = folder(**BOTH)
    result = meshc("run", out, "--tokens", "5", "--json")
    report = json.loads(result.out)
    assert [s["context"] for s in report["steps"]] == [4, 5, 6, 7, 8]
    cycles = [s["latency_cycles"] for s in report["steps"]]
    assert cycles[0] == report["phases"]["decode"]["latency_cycles"]
    assert cycles == sorted(cycles)
    assert report["tpot_s"] == pytest.approx(sum(cycles) / 5 / report["chip"]["clock_hz"])
    only = folder("prefill", phase="prefill", prompt=4, grid=(2, 2))
    result = meshc("run", only, "--tokens", "2")
    assert (result.code, result.sentence) == (
        2,
        "--tokens decodes, and only the prefill was compiled; compile with --phase both or --phase "
        "decode.",
    )


def test_a_chrome_trace_has_a_track_per_core(bench: Path, meshc: Meshc) -> None:
    assert meshc("run", "out", "--trace", "t.json", "--quiet").code == 0
    events = json.loads((bench / "t.json").read_text())["traceEvents"]
    tracks = {e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    assert tracks == {"core 0,0", "core 0,1", "core 1,0", "core 1,1"}
    report = json.loads((bench / "out" / "report.json").read_text())
    told = report["phases"]["decode"]
    last = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert last == pytest.approx(told["latency_s"] * 1e6)
    levels = [(e["ts"], e["args"]["bytes per cycle"]) for e in events if e["ph"] == "C"]
    assert levels == sorted(levels, key=lambda level: level[0]) and levels[-1][1] == 0
    steps = pairwise(levels)
    carried = sum(rate * (after - at) for (at, rate), (after, _) in steps)
    clock = report["chip"]["clock_hz"] / 1e6
    assert carried * clock == pytest.approx(told["message_bytes"], rel=1e-3)


# -- given inputs ------------------------------------------------------------------------------


def past(tokens: int, batch: int = 1) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        f"past_key_values.{i}.{half}": random.standard_normal((batch, 2, tokens, 16), np.float32)
        for i in range(2)
        for half in ("key", "value")
    }


ONE = {"input_ids": np.array([[7]])}
WRONG_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "a missing past": (
        ONE,
        "input 'past_key_values.0.key' of shape [1, 2, 4, 16] is missing, add it to the file",
    ),
    "a wrong shape": (
        {"input_ids": np.array([[7, 8]]), **past(4)},
        "input 'input_ids' has shape [1, 2] where [1, 1] was compiled, compile with fitting "
        "--batch, --prompt and --context",
    ),
    "a longer past": (
        {**ONE, **past(5)},
        "input 'past_key_values.0.key' has shape [1, 2, 5, 16] where [1, 2, 4, 16] was compiled, "
        "compile with fitting --batch, --prompt and --context",
    ),
    "a mask that hides a token": (
        {**ONE, **past(4), "attention_mask": np.array([[0, 1, 1, 1, 1]])},
        "input 'attention_mask' contradicts what was folded for the workload, compile with "
        "--dynamic-mask to keep masks and positions as run-time inputs",
    ),
    "other positions": (
        {**ONE, **past(4), "position_ids": np.array([[9]])},
        "input 'position_ids' contradicts what was folded for the workload, compile with "
        "--dynamic-mask to keep masks and positions as run-time inputs",
    ),
    "an input that the model has not": (
        {**ONE, **past(4), "attention_maks": np.ones((1, 5))},
        "the model has no input 'attention_maks', it has 'input_ids', 'past_key_values.0.key', "
        "'past_key_values.0.value', 'past_key_values.1.key', 'past_key_values.1.value', "
        "'attention_mask', 'position_ids'",
    ),
    "an id beyond the vocabulary": (
        {"input_ids": np.array([[160]]), **past(4)},
        "input 'input_ids' holds 160 where 160 entries exist, give 0 to 159",
    ),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_wrong_inputs(case: str, bench: Path, meshc: Meshc) -> None:
    arrays, problem = WRONG_INPUTS[case]
    np.savez(bench / "in.npz", **arrays)
    before = contents(bench)
    result = meshc("run", "out", "--inputs", "in.npz")
    assert (result.code, result.out) == (2, "")
    assert problem in result.sentence
    assert result.sentence.startswith("The inputs in 'in.npz' do not suit the compiled model")
    assert contents(bench) == before


@pytest.mark.parametrize(
    "ids",
    [
        np.array([["seven"]]),
        np.array([[np.nan]]),
        np.array([[7.5]]),
        np.array([[7 + 0j]]),
        np.array([[2.0**70]]),
    ],
    ids=["text", "NaN", "a fraction", "complex", "beyond int64"],
)
def test_ids_that_are_no_whole_numbers(ids: Any, bench: Path, meshc: Meshc) -> None:
    np.savez(bench / "in.npz", input_ids=ids, **past(4))
    result = meshc("run", "out", "--inputs", "in.npz", "--quiet")
    assert result.code == 2, result.err
    assert "'input_ids'" in result.sentence


def test_a_file_that_is_no_npz(bench: Path, meshc: Meshc) -> None:
    np.savez(bench / "whole.npz", **ONE, **past(4))
    data = (bench / "whole.npz").read_bytes()
    (bench / "cut.npz").write_bytes(data[:700])
    (bench / "empty.npz").touch()
    (bench / "objects.npz").write_bytes(b"")
    np.savez(bench / "objects.npz", input_ids=np.array([[None]], dtype=object))
    np.save(bench / "lone.npy", np.zeros(3))
    for name in ("cut.npz", "empty.npz", "file", "foreign", "lone.npy", "objects.npz"):
        result = meshc("run", "out", "--inputs", name)
        assert result.code == 2
        assert re.fullmatch(
            rf"Input file '{name}' is not an \.npz of arrays \(\w+\); write it with numpy\.savez\.",
            result.sentence,
        )
    result = meshc("run", "out", "--inputs", "absent.npz")
    assert (result.code, result.sentence) == (
        2, "Input file 'absent.npz' does not exist; give an .npz with the model's inputs.",
    )  # fmt: skip


def test_right_inputs_give_outputs(bench: Path, meshc: Meshc, example: Path) -> None:
    import onnxruntime as ort

    feeds = {**ONE, **past(4)}
    full = {**feeds, "attention_mask": np.ones((1, 5), np.int64), "position_ids": np.array([[4]])}
    names = [o.name for o in onnx.load(example, load_external_data=False).graph.output]
    session = ort.InferenceSession(str(example), providers=["CPUExecutionProvider"])
    expected = dict(zip(names, session.run(names, full), strict=True))
    for arrays in (feeds, full, {**feeds, "input_ids": np.array([[7]], np.int32)}):
        np.savez(bench / "in.npz", **arrays)
        assert meshc("run", "out", "--inputs", "in.npz", "--quiet").code == 0
        with np.load(bench / "out" / "outputs.npz") as got:
            assert set(got.files) == set(names)
            for name, array in expected.items():
                assert got[name].dtype == array.dtype
                np.testing.assert_allclose(got[name], array, atol=1e-4)
        report = json.loads((bench / "out" / "report.json").read_text())
        assert report["verify"] is None
    assert meshc("run", "out", "--inputs", "in.npz", "--verify", "--quiet").code == 0
    report = json.loads((bench / "out" / "report.json").read_text())
    assert report["verify"]["passed"] is True
    np.savez(bench / "in.npz", **past(4), input_ids=np.array([[-153]]))  # counts from the end
    assert meshc("run", "out", "--inputs", "in.npz", "--quiet").code == 0
    with np.load(bench / "out" / "outputs.npz") as got:
        np.testing.assert_allclose(got["logits"], expected["logits"], atol=1e-4)


def test_a_mask_is_a_runtime_input_when_kept(
    folder: Callable[..., Path], meshc: Meshc, example: Path, tmp_path: Path
) -> None:
    import onnxruntime as ort

    out = folder(**DECODE, dynamic_mask=True)
    feeds = {
        **ONE, **past(4),
        "attention_mask": np.array([[0, 1, 0, 1, 1]]), "position_ids": np.array([[2]]),
    }  # fmt: skip
    np.savez(tmp_path / "in.npz", **feeds)
    session = ort.InferenceSession(str(example), providers=["CPUExecutionProvider"])
    expected = session.run(["logits"], feeds)[0]
    inputs = ("--inputs", tmp_path / "in.npz")
    assert meshc("run", out, *inputs, "--verify", "--quiet").code == 0
    with np.load(out / "outputs.npz") as got:
        np.testing.assert_allclose(got["logits"], expected, atol=1e-4)


def test_inputs_find_their_phase(folder: Callable[..., Path], meshc: Meshc, tmp_path: Path) -> None:
    out = folder(**BOTH)
    for tokens, shape in ((4, (1, 4, 160)), (1, (1, 1, 160))):
        ids = np.arange(tokens)[None]
        np.savez(tmp_path / "in.npz", input_ids=ids, **past(0 if tokens == 4 else 4))
        assert meshc("run", out, "--inputs", tmp_path / "in.npz", "--quiet").code == 0
        with np.load(out / "outputs.npz") as got:
            assert got["logits"].shape == shape
    np.savez(tmp_path / "in.npz", input_ids=np.arange(3)[None], **past(0))
    result = meshc("run", out, "--inputs", tmp_path / "in.npz")
    assert result.code == 2
    for shape in ("[1, 3]", "[1, 4]", "[1, 1]"):
        assert shape in result.sentence


# -- what is printed ---------------------------------------------------------------------------


def test_json_is_one_object_and_nothing_else(bench: Path, meshc: Meshc, example: Path) -> None:
    np.savez(bench / "in.npz", **ONE, **past(4))
    command = ("compile", example, "--chip", "test4x4", "-o", "new", *FLAGS[:-1])
    for argv in (
        command,
        (*command, "--until", "import", "--dump"),
        ("run", "out"),
        ("run", "out", "--verify", "--inputs", "in.npz", "--trace", "t.json"),
        ("run", "out", "--tokens", "1"),
        ("generate", "out", "--ids", "1", "--tokens", "1"),
        ("chips",),
        ("chips", "test4x4"),
        ("ops", example),
        ("disasm", "out", "--core", "0,0"),
    ):
        result = meshc(*argv, "--json")
        assert (result.code, result.err) == (0, ""), argv
        assert result.out.count("\n") == 1 and result.out.endswith("\n"), argv
        record = json.loads(result.out, parse_constant=lambda c: pytest.fail(f"{c} in JSON"))
        assert isinstance(record, dict)
        if argv[0] == "run":
            assert record == json.loads((bench / "out" / "report.json").read_text())


def test_quiet_says_nothing(bench: Path, meshc: Meshc, example: Path) -> None:
    for argv in (
        ("compile", example, "--chip", "test4x4", "-o", "new", *FLAGS),
        ("run", "out", "--verify", "--quiet"),
        ("ops", example, "--quiet"),
    ):
        result = meshc(*argv)
        assert (result.code, result.out, result.err) == (0, "", "")


def test_summaries(bench: Path, meshc: Meshc, example: Path) -> None:
    command = ("compile", example, "--chip", "test4x4", "-o", "new", *FLAGS[:-1])
    shown = meshc(*command)
    assert shown.code == 0 and shown.err == ""
    for word in ("decode", "predicted", "plan", "place", "route", "SRAM", "meshc run"):
        assert word in shown.out
    ran = meshc("run", "new", "--verify")
    for word in ("latency", "roofline", "held back by", "verify: passed against onnxruntime"):
        assert word in ran.out


def test_compile_json_tells_what_was_compiled(bench: Path, meshc: Meshc, example: Path) -> None:
    result = meshc("compile", example, "--chip", "test4x4", "-o", "new", *FLAGS, "--json")
    record = json.loads(result.out)
    assert record["output"] == "new" and record["chip"] == "test4x4"
    assert record["model"]["name"] == "llama-optimum-with_past"
    assert record["model"]["parameters"] == 82240
    assert list(record["phases"]) == ["decode"]
    assert record["phases"]["decode"]["workload"] == {
        "batch": 1, "prompt": 1, "context": 4, "max_context": 5,
    }  # fmt: skip
    assert record["phases"]["decode"]["predicted_cycles"] > 0
    assert 0 < record["memory"]["peak_bytes"] <= record["memory"]["sram_bytes_per_core"]


def test_defaults_of_the_contract(bench: Path, meshc: Meshc, example: Path) -> None:
    command = ("compile", example, "--chip", "test4x4", "-o", "new", "--solver", "greedy")
    command = (*command, "--grid", "1x1", "--json")
    for flags, wanted in (
        ((), {"prefill": (1, 16, 0, 80), "decode": (1, 1, 16, 80)}),
        (("--prompt", "3", "--batch", "2"), {"prefill": (2, 3, 0, 67), "decode": (2, 1, 3, 67)}),
        (("--phase", "prefill"), {"prefill": (1, 16, 0, 16)}),
        (("--phase", "decode"), {"decode": (1, 1, 16, 17)}),
        (("--phase", "decode", "--prompt", "1", "--context", "3"), {"decode": (1, 1, 3, 4)}),
        (("--phase", "prefill", "--prompt", "2", "--context", "5"), {"prefill": (1, 2, 5, 7)}),
    ):
        record = json.loads(meshc(*command, *flags).out)
        got = {n: tuple(p["workload"].values()) for n, p in record["phases"].items()}
        assert got == wanted, flags


def test_stages_and_their_dumps(bench: Path, meshc: Meshc, example: Path) -> None:
    expected: set[str] = {"meshc.json"}
    for stage, more in (
        ("import", {"decode.graph.txt"}),
        ("partition", {"decode.plan.txt"}),
        ("place", {"placement.txt"}),
        ("emit", {"decode.program.txt"}),
        ("route", {"decode.routing.txt"}),
    ):
        expected |= more
        command = ("compile", example, "--chip", "test4x4", "-o", stage, *FLAGS, "--until", stage)
        assert meshc(*command, "--dump").code == 0
        found = contents(bench / stage)
        assert set(found) - {"compiled.json", "seconds.json"} == expected, stage
        assert all(found[name] for name in more)
        assert ("compiled.json" in found) == (stage == "route")
        assert meshc(*command, "--dump").code == 0
        assert all(found[name] == contents(bench / stage)[name] for name in expected)
    command = ("compile", example, "--chip", "test4x4", "-o", "plain", *FLAGS)
    assert meshc(*command, "--until", "partition").code == 0
    assert set(contents(bench / "plain")) == {"meshc.json"}
    result = meshc("run", "plain")
    assert result.code == 2 and "holds no compiled model" in result.sentence


def test_disasm(bench: Path, meshc: Meshc) -> None:
    result = meshc("disasm", "out", "--core", "0,1")
    assert result.code == 0
    head, *body = result.out.splitlines()
    steps = [line for line in body if not line.startswith(" ")]
    assert head == f"# decode, core 0,1: {len(steps)} instructions"
    kinds = {line.split()[0] for line in steps}
    assert kinds <= {"compute", "reduce", "broadcast", "transfer", "move"}
    assert any("send" in line for line in body) and any("recv" in line for line in body)
    assert any("layer 1" in line for line in steps)
    record = json.loads(meshc("disasm", "out", "--core", "0,1", "--json").out)
    assert record["core"] == [0, 1]
    assert "\n".join(record["phases"]["decode"]) == "\n".join(body)
    idle = meshc("disasm", "out", "--core", "3,3")
    assert idle.out == "# decode, core 3,3: 0 instructions\n"
    for core, sentence in (
        ("9,0", "Core 9,0 is outside of test4x4, whose last core is 3,3."),
        ("0", "--core '0' is not R,C; give a row and a column, such as 0,1."),
        ("a,b", "--core 'a,b' is not R,C; give a row and a column, such as 0,1."),
    ):
        result = meshc("disasm", "out", "--core", core)
        assert (result.code, result.sentence) == (2, sentence)
    result = meshc("disasm", "out", "--core", "0,0", "--phase", "prefill")
    assert result.code == 2 and "'prefill' was not compiled" in result.sentence


def test_chips(meshc: Meshc) -> None:
    listed = json.loads(meshc("chips", "--json").out)["chips"]
    names = [c["name"] for c in listed]
    assert names == sorted(names)
    assert {"test4x4", "test8x8", "test16x16"} <= set(names)
    table = meshc("chips").out
    assert all(name in table for name in names)
    assert meshc("chips", "test4x4").out == chips.chip_text("test4x4")
    record = json.loads(meshc("chips", "test8x8", "--json").out)
    assert record["chip"]["rows"] == 8 and record["sources"][""]
    result = meshc("chips", "nothing")
    assert result.code == 2
    assert result.sentence.startswith("chip nothing is neither a shipped name nor the path")


def test_ops(meshc: Meshc, example: Path) -> None:
    result = meshc("ops", example)
    assert result.code == 0 and "MatMul" in result.out and "unsupported" not in result.out
    rows = json.loads(meshc("ops", example, "--json").out)["ops"]
    assert sum(r["count"] for r in rows) == 621
    assert {r["status"] for r in rows} <= {"fused", "executed", "folded"}


def test_viz_needs_a_report(bench: Path, meshc: Meshc) -> None:
    result = meshc("viz", "out")
    assert (result.code, result.sentence) == (
        2, "Folder 'out' has no report.json yet; run it first: meshc run out.",
    )  # fmt: skip


# -- the process -------------------------------------------------------------------------------


def process(*argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    script = "import sys; from meshc.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        shown = process("--help")
        seconds.append(time.perf_counter() - begin)
        assert shown.returncode == 0 and "usage: meshc" in shown.stdout and shown.stderr == ""
    assert min(seconds) < 0.5
    heavy = ["numpy", "onnx", "onnxruntime", "networkx", "pulp", "highspy", "matplotlib", "rich"]
    script = (
        "import sys\nfrom meshc import cli\n"
        "for argv in (['--help'], ['compile', '--help'], ['--version']):\n"
        "    try: cli.main(argv)\n"
        "    except SystemExit: pass\n"
        f"sys.exit([m for m in {heavy} if m in sys.modules] or 0)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_has_help_and_both_common_flags(meshc: Meshc) -> None:
    actions = cli.parser()._subparsers._group_actions  # type: ignore[union-attr]
    commands = list(actions[0].choices)  # type: ignore[arg-type]
    assert {"compile", "run", "generate", "viz", "chips", "ops", "disasm"} <= set(commands)
    for command in commands:
        shown = meshc(command, "--help")
        assert shown.code == 0 and "--json" in shown.out and "--quiet" in shown.out
    assert re.fullmatch(r"meshc \d+\.\d+\.\d+\n", meshc("--version").out)


def test_the_example_in_the_help_exists(meshc: Meshc, example: Path) -> None:
    shown = meshc("--help").out
    files = re.findall(r"examples/\S+", shown)
    assert files and all((example.parents[1] / f).exists() for f in files)


def test_a_real_process(tmp_path: Path, example: Path) -> None:
    """Exit codes and streams as a shell sees them; the model is found from another folder."""
    given = (str(example), "--chip", "test4x4", "-o", "out", *FLAGS)
    done = process("compile", *given, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = process("run", str(tmp_path / "out"), "--verify", "--json", cwd=tmp_path.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verify"]["passed"] is True
    done = process("compile", *given, "--override", "core.sram_bytes=9000", cwd=tmp_path)
    assert done.returncode == 3 and done.stdout == "" and done.stderr.count("\n") == 1


def test_a_reader_that_leaves_early_is_no_error(
    tmp_path: Path, folder: Callable[..., Path]
) -> None:
    out = folder(**DECODE)
    script = "import sys; from meshc.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "disasm", str(out), "--core", "0,0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.wait() == 0
        assert child.stderr.read() == b""
