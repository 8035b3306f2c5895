"""`meshc noc`: files of messages, what is refused, and recorded traffic of real chips."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshc import arrivals, chips, cli, noc, traffic
from meshc.emulator import spool
from meshc.emulator.batch import Batch
from meshc.ir.chip import ChipSpec
from meshc.traffic import TrafficReader

WORMHOLE = Path(__file__).parents[2] / "shared" / "groundtruth" / "wormhole"
HEADER = "id,ready_cycle,src_row,src_col,dst_row,dst_col,bytes"
TRANSFERS = "start_cycle,src_x,src_y,dst_x,dst_y,noc,bytes,kind"
NUMBER = "but it must be a whole number from"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def file(text: str) -> Path:
        Path("t.csv").write_text(text)
        return Path("t.csv")

    return file


def read_traffic(path: Path, spec: ChipSpec) -> Batch:
    """A file of one block."""
    (batch,) = TrafficReader(path, spec).batches()
    return batch


def test_rows_come_back_with_their_times(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        f"{HEADER},after\na,0,0,0,0,2,64,\n b ,0,1,1,1,1,32,a\n\nc,3,0,0,3,0,1,a;b\nd,2,3,3,3,2,5\n"
    )
    assert cli.main(["noc", "t.csv", "--chip", "test4x4", "-o", "o.csv", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    # Hop 1, ramps 2 and 32 B/cycle: a takes 4 + 2 hops + 2 - 1 cycles.
    assert Path("o.csv").read_text().splitlines() == [
        f"{HEADER},after,inject_cycle,arrive_cycle,hops",
        "a,0,0,0,0,2,64,,0,7,2",
        " b ,0,1,1,1,1,32,a,7,11,0",
        "c,3,0,0,3,0,1,a;b,11,18,3",
        "d,2,3,3,3,2,5,,2,7,1",
    ]
    assert record["makespan_cycles"] == record["no_contention_makespan_cycles"] == 18
    assert record["mean_latency_cycles"] == (7 + 4 + 7 + 5) / 4
    assert record["max_latency_cycles"] == 7
    assert record["utilization"]["links_max"] == 2 / 18
    assert record["utilization"]["links_mean"] == pytest.approx((4 + 3 + 1) / 18 / 48)
    assert cli.main(["noc", "t.csv", "--chip", "test4x4", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main(["noc", "t.csv", "--chip", "test4x4"]) == 0
    assert "no contention makespan" in capsys.readouterr().out


def test_columns_in_any_order_and_both_ways_of_reading_agree(write: Write) -> None:
    spec = chips.load_chip("test4x4")
    rows = [(k, 3 * k, k % 4, k // 4, 3, k % 3, 5 + k) for k in range(16)]
    quick = read_traffic(
        write(f"{HEADER}\n" + "".join(f"{str(r)[1:-1]}\n".replace(" ", "") for r in rows)), spec
    )
    turned = "bytes,dst_col,dst_row,src_col,src_row,ready_cycle,id"
    slow = "".join(", ".join(map(str, reversed(r))) + "\r\n" for r in rows)
    other = read_traffic(write(f"{turned}\r\n{slow}"), spec)
    for name in ("ready", "source", "target", "bytes", "network"):
        assert getattr(quick, name).tolist() == getattr(other, name).tolist()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", f"Traffic file t.csv is empty; begin it with {HEADER}."),
        (f"{HEADER}\n", "Traffic file t.csv has no messages; give it at least one line."),
        (
            "id,ready,bytes\n",
            "t.csv, line 1: 'ready' is not a column of a traffic file; the nearest is ready_cycle, "
            f"and the header is {HEADER}[,after].",
        ),
        (
            "id,ready_cycle,bytes\n",
            f"t.csv, line 1: the header lacks src_row; begin the file with {HEADER}[,after].",
        ),
        (f"{HEADER},bytes\n", "t.csv, line 1: column bytes stands twice; remove one."),
        (
            f"{HEADER}\n1,0,0,0,1,1\n",
            "t.csv, line 2: this line has 6 fields, but the header has 7 columns; give one for "
            "each.",
        ),
        (
            f"{HEADER}\n1,0,0,0,1,1,9\n2,0,0,0,1,1,x\n",
            f"t.csv, line 3: bytes is 'x', {NUMBER} 1 to 9007199254740992; correct it.",
        ),
        (
            f"{HEADER}\n1,0,0,0,1,1,9\n2,0,0,0,1,1,0\n",
            f"t.csv, line 3: bytes is '0', {NUMBER} 1 to 9007199254740992; correct it.",
        ),
        (
            f"{HEADER}\n1,0.5,0,0,1,1,9\n",
            f"t.csv, line 2: ready_cycle is '0.5', {NUMBER} 0 to 1099511627776; correct it.",
        ),
        (
            f"{HEADER}\n1,0,0,0,4,1,9\n",
            "t.csv, line 2: dst_row is 4, but chip 'test4x4' has them from 0 to 3; correct it or "
            "take another chip.",
        ),
        (
            f"{HEADER}\n1,0,0,0,1,1,9\n1,0,0,0,1,1,9\n",
            "t.csv, line 3: id '1' was used before; give each message its own.",
        ),
        (
            f"{HEADER}\nx,0,0,0,1,1,9\nx,0,0,0,1,1,9\n",
            "t.csv, line 3: id 'x' was used before; give each message its own.",
        ),
        (
            f"{HEADER},after\n1,0,0,0,1,1,9,2\n",
            "t.csv, line 2: the message comes after '2', but there is no such id; name other "
            "messages of the file, separated by semicolons.",
        ),
        (
            f"{HEADER},after\na,0,0,0,1,1,4,b\nb,0,0,0,1,1,4,a\n",
            "Message 'a' and 1 others never leave, because the messages in their `after` wait for "
            "them in turn; remove the circle.",
        ),
        (
            f'{HEADER}\n"1,0,0,0,1,1,9\n',
            "t.csv, line 2: the quotes of this line do not match; correct it.",
        ),
        (
            f"{TRANSFERS}\n0,1,1,2,2,1,64,R\n",
            "t.csv, line 2: noc is 1, but chip 'test4x4' has them from 0 to 0; correct it or take "
            "another chip.",
        ),
        (
            f"{HEADER}\n1,0,0,0,1,1,99999999999999\n",
            "t.csv, line 2: bytes is 99999999999999, which takes more than 2147483648 cycles on a "
            "link of chip 'test4x4'; split the message.",
        ),
    ],
)  # fmt: skip
def test_bad_files_are_refused(
    write: Write, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    write(text)
    assert cli.main(["noc", "t.csv", "--chip", "test4x4", "-o", "o.csv"]) == 2
    assert capsys.readouterr().err.strip() == sentence
    assert not Path("o.csv").exists()


def test_files_that_cannot_be_read_or_written(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(f"{HEADER}\n1,0,0,0,1,1,9\n")
    Path("t.csv.gz").write_text("not packed")
    for name in ("none.csv", ".", "t.csv.gz"):
        assert cli.main(["noc", name, "--chip", "test4x4"]) == 2
        assert "cannot be read" in capsys.readouterr().err
    assert cli.main(["noc", "t.csv", "--chip", "test4x4", "-o", "none/o.csv"]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_transfers_on_wormhole_are_near_silicon() -> None:
    """tt-npe's own mean error is 3.04 %, its worst 11.8 %."""
    if not (WORMHOLE / "index.json").exists():
        pytest.skip(f"{WORMHOLE} is not there: measured transfers cannot be compared")
    spec = chips.load_chip("wormhole-noc")
    errors = []
    for truth in json.loads((WORMHOLE / "index.json").read_text())["traces"]:
        result = noc.run_file(WORMHOLE / f"{truth['trace']}.csv.gz", spec)
        errors.append(abs(result.makespan_cycles / truth["golden_cycles"] - 1))
        assert max(result.utilization().values()) <= 1
    assert len(errors) == 40
    assert sum(errors) / len(errors) < 0.03
    assert max(errors) < 0.12


def test_packed_transfers_are_written_with_their_times(write: Write) -> None:
    write("")
    with gzip.open("w.csv.gz", "wt") as file:
        file.write(f"{TRANSFERS}\n5,1,1,1,2,0,281,R\n5,1,2,1,1,0,281,R\n")
    noc.run_file(Path("w.csv.gz"), chips.load_chip("wormhole-noc"), Path("o.csv"))
    rows = list(csv.DictReader(Path("o.csv").read_text().splitlines()))
    # Network 0 goes south only: one hop down, eleven back up around the ring.
    assert [r["hops"] for r in rows] == ["1", "11"]
    assert [r["kind"] for r in rows] == ["R", "R"]
    # Nine flits of 32 B at 28.1 B/cycle, and ramps of 5 and 105.
    assert [int(r["arrive_cycle"]) for r in rows] == [5 + 110 + int(8 * 32 / 28.1)] * 2


def test_the_compiler_is_not_loaded_for_other_commands() -> None:
    code = (
        "import sys; from meshc import cli, emulator; cli.parser(); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_fractions_of_cycles_are_written(write: Write) -> None:
    """Where buffers are unlimited, hops need not be whole."""
    write(f"{HEADER}\na,0,0,0,0,1,8\n\nb,1,0,0,0,0,8\n")
    spec = chips.load_chip("test4x4", {"noc.hop_cycles": "1.5"})
    noc.run_file(Path("t.csv"), spec, Path("o.csv"))
    assert Path("o.csv").read_text().splitlines()[1:] == [
        "a,0,0,0,0,1,8,0,5.5,1",
        "b,1,0,0,0,0,8,1,5,0",
    ]


@pytest.mark.parametrize("finite", [0, 4])
def test_what_does_not_fit_into_memory_gives_the_same(
    write: Write, monkeypatch: pytest.MonkeyPatch, finite: int
) -> None:
    """Blocks, runs, slots and parts of a few messages against all at once; ids in no order,
    messages in no order of time, some of them after others."""
    rng = np.random.default_rng(3)
    ids = rng.permutation(2000)
    ready = np.sort(rng.integers(0, 4000, 2000))
    lines = []
    for k in rng.permutation(2000).tolist():
        waits = ";".join(str(ids[n]) for n in {max(0, k - 9), max(0, k - 30)} if k > 50 and k % 4)
        row = [ids[k], ready[k] + 8 * k, *rng.integers(0, 4, 4), rng.integers(1, 90), waits]
        lines.append(",".join(map(str, row)) + "\n")
    write(f"{HEADER},after\n" + "".join(lines))
    spec = chips.load_chip("test4x4", {"noc.buffer_flits": str(finite)})
    whole = noc.run_file(Path("t.csv"), spec, Path("whole.csv"))
    monkeypatch.setattr(traffic, "BLOCK_BYTES", 3000)
    monkeypatch.setattr(spool, "RUN", 100)
    monkeypatch.setattr(spool, "SLOTS", 100)
    monkeypatch.setattr(arrivals, "PART", 64)
    parts = noc.run_file(Path("t.csv"), spec, Path("parts.csv"))
    assert Path("parts.csv").read_bytes() == Path("whole.csv").read_bytes()
    keep = ("seconds",)
    assert [v for k, v in parts.record().items() if k not in keep] == [
        v for k, v in whole.record().items() if k not in keep
    ]


def test_lists_of_ids_are_read_at_once_and_line_by_line_alike(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = chips.load_chip("test4x4")
    text = f"{HEADER},after\n7,0,0,0,1,1,9,\n8,0,0,0,1,1,9\n3,0,0,0,1,1,9,7;8\n4,0,0,0,1,1,9,8\n"
    found = []
    for body in (text, text.replace("\n", "\r\n"), text.replace(";", " ; ")):
        reader = TrafficReader(write(body), spec)
        assert sum(map(len, reader.batches())) == 4
        found.append([pair.tolist() for pair in reader.pairs()])
    assert found == [[[2, 2, 3], [0, 1, 1]]] * 3


@pytest.mark.slow
def test_memory_does_not_grow_with_the_messages(tmp_path: Path) -> None:
    """Three times as many messages, in a process of their own, take no more than 20 MB more."""
    peaks = []
    for count in (700_000, 2_100_000):
        rng = np.random.default_rng(1)
        ready = np.arange(count) // 6
        ends = rng.integers(0, 16, (4, count))
        table = np.stack([np.arange(count), ready, *ends, np.full(count, 4)], axis=1)
        file = tmp_path / "t.csv"
        np.savetxt(file, table, "%d", ",", header=HEADER, comments="")
        # A new process begins with the peak of the one that starts it; one between is small.
        between = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
        command = [sys.executable, "-m", "meshc.cli", "noc", str(file), "--chip", "test16x16"]
        done = subprocess.run(
            [sys.executable, "-c", between, *command, "--json", "-o", str(tmp_path / "o.csv")],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(json.loads(done.stdout)["peak_rss_bytes"])
    assert peaks[1] < peaks[0] + 20e6
