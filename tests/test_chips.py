"""Chip specs: what is read, what is refused and in which words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshc.chips import chip_names, chip_sources, chip_text, load_chip
from meshc.errors import InputError
from meshc.ir.chip import Array, Coord, DramChannel, EnergySpec, Seams

SHIPPED = (
    *("test4x4", "test8x8", "test16x16", "wse2", "wse3", "gc200", "pod4", "n150", "n300", "p150"),
    *("dojo-d1", "mtia2", "xdna2", "groq1", "wormhole-noc"),
)

MINIMAL = """\
name = "mine"
source = "nowhere"
rows = 4
cols = 6
clock_hz = 1e9
[core]
sram_bytes = 1000
sram_bytes_per_cycle = 64
macs_per_cycle = { fp32 = 64 }
vector_ops_per_cycle = { fp32 = 16 }
[noc]
link_bytes_per_cycle = 24
"""


@pytest.fixture
def write(tmp_path: Path):
    def save(text: str) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return save


def refused(path: str, overrides: dict[str, str] | None = None) -> str:
    """The message without the file's name."""
    with pytest.raises(InputError) as error:
        load_chip(path, overrides or {})
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message.removeprefix(f"chip {path}: ")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_chips_load(name: str) -> None:
    assert name in chip_names()
    chip = load_chip(name)
    assert chip.name == name
    assert chip_sources(name)[""] == chip.source
    assert f'name = "{name}"' in chip_text(name)


@pytest.mark.parametrize("name", [n for n in SHIPPED if not n.startswith("test")])
def test_numbers_of_real_chips_have_sources(name: str) -> None:
    sources = chip_sources(name)
    for field in ("rows", "clock_hz", "core.sram_bytes", "noc.link_bytes_per_cycle"):
        assert re.match(r"\[[PRSD]\]|assumed", sources[field]), field
    assert any(f.startswith("core.macs_per_cycle.") for f in sources)
    assert all(re.match(r"\[[PRSD]\]|assumed", s) for f, s in sources.items() if f)


def test_facts() -> None:
    wse2, n150 = load_chip("wse2"), load_chip("n150")
    assert (wse2.rows, wse2.cols, wse2.core.sram_bytes) == (750, 994, 49_152)
    assert (wse2.noc.max_routes, wse2.noc.ramp_cycles, wse2.clock_hz) == (24, (2, 2), 1.1e9)
    assert n150.core.usable_bytes == 1364 * 1024
    assert (n150.noc.networks, n150.noc.one_way, n150.noc.topology) == (2, True, "torus")
    assert sum(d.bytes_per_cycle for d in n150.dram) == 267.0
    assert load_chip("gc200").cores == 1472
    assert load_chip("dojo-d1").cores == 354


def test_test_chips_are_the_documented_example() -> None:
    chip = load_chip("test8x8")
    assert chip.core.macs_per_cycle == {"fp32": 64, "fp16": 128, "int8": 256}
    assert chip.dram == (DramChannel(0, 0, 32, 100, 12_000_000_000),)
    assert chip.energy == EnergySpec({"fp16": 0.5}, 1.0, 0.2, 20.0, 0.0)
    assert chip.seams is None
    assert not chip.dead()
    for size in (4, 16):
        other = load_chip(f"test{size}x{size}")
        assert (other.rows, other.cols) == (size, size)
        assert (other.core, other.noc, other.dram) == (chip.core, chip.noc, chip.dram)


def test_defaults(write) -> None:
    chip = load_chip(write(MINIMAL))
    assert (chip.core.mac_tile, chip.core.kernel_cycles, chip.core.overlap) == ((1, 1, 1), 10, True)
    noc = chip.noc
    assert (noc.topology, noc.hop_cycles, noc.ramp_cycles, noc.flit_bytes) == (
        "mesh",
        1,
        (2, 2),
        24,
    )
    assert (noc.max_routes, noc.multicast, noc.sync_cycles) == (0, True, 0)
    assert (chip.dram, chip.seams, chip.energy, chip.dead_cores) == ((), None, None, ())


def test_numbers_with_sources(write) -> None:
    text = MINIMAL.replace("rows = 4", 'rows = { value = 4, source = "a" }').replace(
        "fp32 = 64", 'fp32 = { value = 64, source = "b" }'
    )
    text += 'ramp_cycles = { value = [1, 3], source = "c" }\n'
    text += '[[dram]]\nrow = { value = 1, source = "d" }\n'
    path = write(text)
    assert load_chip(path).noc.ramp_cycles == (1, 3)
    assert chip_sources(path) == {
        "": "nowhere",
        "rows": "a",
        "core.macs_per_cycle.fp32": "b",
        "noc.ramp_cycles": "c",
        "dram.0.row": "d",
    }


def test_overrides() -> None:
    chip = load_chip(
        "test8x8",
        {
            "core.sram_bytes": "98_304",
            "dead_cores": "[[3,4]]",
            "noc.ramp_cycles": "[3,3.5]",
            "dram.0.bytes_per_cycle": "64",
            "noc.topology": "torus",
            "core.macs_per_cycle.bf16": "100",
            "seams.rows": "4",
            "name": '"other"',
            "clock_hz": '{ value = 2e9, source = "x" }',
        },
    )
    assert chip.core.sram_bytes == 98_304
    assert chip.dead() == {Coord(3, 4)}
    assert chip.noc.ramp_cycles == (3, 3.5)
    assert chip.dram[0].bytes_per_cycle == 64
    assert chip.noc.topology == "torus"
    assert chip.core.macs_per_cycle["bf16"] == 100
    assert chip.seams == Seams(4, 8, 4, 200)
    assert (chip.name, chip.clock_hz) == ("other", 2e9)


def test_array(write) -> None:
    text = MINIMAL.replace(
        "macs_per_cycle = { fp32 = 64 }", 'array = { rows = 16, cols = 8, dataflow = "os" }'
    )
    assert load_chip(write(text)).core.array == Array(16, 8, "os", True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "sram_bytes = 1000",
            "sram_byte = 1000",
            "core.sram_byte is not a field of a chip spec; the nearest is core.sram_bytes.",
        ),
        ("rows = 4", "rows = 4\nsram_bytes = 1", "sram_bytes is not a field of a chip spec; "
         "the nearest is core.sram_bytes."),
        ("[noc]", "[nocs]", "nocs is not a field of a chip spec; the nearest is noc."),
        ("fp32 = 64", "fp23 = 64", "core.macs_per_cycle.fp23 is not a field of a chip spec; "
         "the nearest is core.macs_per_cycle.fp32."),
        ("rows = 4", "rows = 0", "rows is 0, but it must be a whole number of at least 1; "
         "correct it."),
        ("rows = 4", "rows = 4.5", "rows is 4.5, but it must be a whole number of at least 1; "
         "correct it."),
        ("rows = 4", "rows = true", "rows is true, but it must be a whole number of at least 1; "
         "correct it."),
        ("rows = 4", 'rows = "4"', 'rows is "4", but it must be a whole number of at least 1; '
         "correct it."),
        ("rows = 4", f"rows = {10**400}", f"rows is {str(10**400)[:57]}…, but it must be a whole "
         "number from 1 to 9007199254740992; correct it."),
        ("1e9", "nan", "clock_hz is nan, but it must be a number above 0; correct it."),
        ("1e9", "inf", "clock_hz is inf, but it must be a number above 0; correct it."),
        ("= 24", "= -24", "noc.link_bytes_per_cycle is -24, but it must be a number above 0; "
         "correct it."),
        ("rows = 4\n", "", "rows is missing, and a chip spec needs it; add rows = … at the top."),
        ("sram_bytes = 1000\n", "", "core.sram_bytes is missing, and a chip spec needs it; "
         "add sram_bytes = … to [core]."),
        ("[noc]\nlink_bytes_per_cycle = 24\n", "", "the table [noc] is missing, and a chip spec "
         "needs it; add it as in the shipped specs (meshc chips test8x8)."),
        ("{ fp32 = 64 }", "{}", "core.macs_per_cycle is empty, but it must have a rate for at "
         "least one dtype; add one, such as fp32 = 16."),
        ("{ fp32 = 64 }", "64", "core.macs_per_cycle is 64, but it must be a table; write its "
         "fields, such as fp32, under it."),
        ("macs_per_cycle = { fp32 = 64 }\n", "", "core has neither macs_per_cycle nor array, "
         "but exactly one of them describes the matrix engine; add one."),
        ("[noc]", "array = { rows = 1, cols = 1 }\n[noc]", "core has both macs_per_cycle and "
         "array, but exactly one of them describes the matrix engine; remove one."),
        ("[noc]", "mac_tile = [1, 2]\n[noc]", "core.mac_tile is [1, 2], but it must be three whole "
         "numbers of at least 1: [m, k, n]; correct it."),
        ("macs_per_cycle = { fp32 = 64 }", "array = { rows = 1, cols = 1 }\nmac_start_cycles = 1",
         "core has both mac_start_cycles and array, but how long an array takes to fill follows "
         "from its size; remove mac_start_cycles."),
        ("[noc]", "reserved_bytes = 1000\n[noc]", "core.reserved_bytes is 1000, which leaves "
         "nothing of the core's 1000 bytes of SRAM; lower it or raise core.sram_bytes."),
        ("= 24", '= 24\ntopology = "ring"', 'noc.topology is "ring", but it must be "mesh", '
         '"torus" or "exchange"; correct it.'),
        ("= 24", "= 24\none_way = true", "noc.one_way is true on a mesh with networks = 1, but "
         'one-way links reach every core only on a torus with two networks; set topology = "torus" '
         "and networks = 2, or one_way = false."),
        ("= 24", "= 24\nramp_cycles = [1, 2, 3]", "noc.ramp_cycles is [1, 2, 3], but it must be a "
         "number of at least 0, or two of them as [in, out]; correct it."),
        ("[core]", "dead_cores = [[4, 0]]\n[core]", "dead core (4, 0) lies outside the mesh of "
         "4 x 6; rows and cols count from 0, so remove or correct it."),
        ("[core]", "dead_cores = [3, 4]\n[core]", "dead_cores is [3, 4], but it must be a list of "
         "[row, col] pairs of whole numbers from 0; correct it."),
        ("[core]", "dead_cols = [6]\n[core]", "dead col 6 lies outside the mesh of 4 x 6; cols "
         "count from 0 to 5, so remove or correct it."),
        ("[core]", "dead_rows = [0, 1, 2, 3]\n[core]", "all 24 cores are dead, but at least one "
         "must work; shorten dead_cores, dead_rows or dead_cols."),
        ("= 24", "= 24\n[[dram]]\nrow = 4", "dram.0 at (4, 0) lies outside the mesh of 4 x 6; "
         "move it to a core of the mesh."),
        ("= 24", "= 24\n[dram]\nrow = 1", "dram is a table, but it must be a list of channels; "
         "write each one under [[dram]]."),
        ("= 24", "= 24\n[seams]\nrows = 3\ncols = 3", "seams.rows is 3, which does not divide the "
         "4 rows of the mesh; choose a divisor of 4."),
        ("rows = 4", 'rows = { source = "x" }', "rows has a source but no value; "
         "add value = … to it."),
        ("rows = 4", "rows = { value = 4, source = 3 }", "rows.source is 3, but it must be text in "
         "quotes; say where the number comes from."),
        ("macs_per_cycle = { fp32 = 64 }", 'array = { value = { rows = 1 }, source = "x" }',
         "core.array is a table, but only numbers and lists of numbers may be written as "
         "{ value = …, source = … }; put value and source inside, on its numbers."),
        ("rows = 4\ncols = 6", "rows = 4000\ncols = 6000", "the mesh of 4000 x 6000 has 24,000,000 "
         "cores, above the limit of 10,000,000; lower rows or cols."),
    ],
)  # fmt: skip
def test_refused(write, old: str, new: str, message: str) -> None:
    assert old in MINIMAL
    assert refused(write(MINIMAL.replace(old, new, 1))) == message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"core.sram_byte": "1"}, "core.sram_byte is not a field of a chip spec; the nearest is "
         "core.sram_bytes."),
        ({"rows": "4 4"}, "override rows=4 4 has no valid TOML value; write it as in a spec, such "
         "as core.sram_bytes=98304 or dead_cores=[[3,4]]."),
        ({"dram.1.row": "0"}, "override dram.1.row names entry 1 of dram, which has 1; number its "
         "entries from 0, or give the whole list."),
        ({"rows.x": "1"}, "override rows.x goes into rows, which is a value and not a table; "
         "override rows itself."),
        ({"rows": "abc"}, 'rows is "abc", but it must be a whole number of at least 1; '
         "correct it."),
    ],
)  # fmt: skip
def test_refused_overrides(overrides: dict[str, str], message: str) -> None:
    assert refused("test8x8", overrides) == message


@pytest.mark.parametrize("cut", [10, 60, 100, 150])
def test_truncated_file_names_its_line(write, cut: int) -> None:
    with pytest.raises(InputError, match=r"line \d+|missing|neither"):
        load_chip(write(MINIMAL[:cut]))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        load_chip("n15")
    assert "n15 is neither a shipped name nor the path of a TOML file; the nearest shipped name is "
    assert "is n150; choose one of" in str(error.value)
    with pytest.raises(InputError, match="cannot be read"):
        load_chip(str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match="cannot be read"):
        load_chip(str(tmp_path))
    odd = tmp_path / "odd.toml"
    odd.write_bytes(b'name = "x"\n\xff')
    with pytest.raises(InputError, match="is not UTF-8 text at line 2"):
        load_chip(str(odd))
    odd.write_text("a = " + "[" * 5000)
    with pytest.raises(InputError, match=r"nested too deeply|line 1"):
        load_chip(str(odd))


def test_parts_that_are_cut_off() -> None:
    cut = {"dead_cores": "[[0,1],[1,0],[1,1]]"}
    assert refused("test4x4", cut) == (
        "the dead cores cut the 13 working cores into 2 parts that cannot reach each other (the "
        "largest has 12, the smallest 1 around (0, 0)); set dead_cores_forward = true if dead "
        "cores still forward messages, or list the cores of the smaller parts in dead_cores too."
    )
    assert load_chip("test4x4", {**cut, "dead_cores_forward": "true"}).cores == 13
    assert load_chip("test4x4", {**cut, "noc.topology": "torus"}).cores == 13
    assert load_chip("test4x4", {**cut, "noc.topology": "exchange"}).cores == 13
    assert load_chip("test4x4", {"dead_rows": "[3]"}).cores == 12
    assert "into 2 parts" in refused("test4x4", {"dead_rows": "[2]"})
    assert load_chip("test4x4", {"dead_rows": "[2]", "noc.topology": "torus"}).cores == 12
    both = {"dead_rows": "[0,2]", "noc.topology": "torus"}
    assert "into 2 parts" in refused("test4x4", both)


def test_large_meshes_are_checked_quickly() -> None:
    wafer = {"rows": "750", "cols": "994", "dead_cores": "[[1,1],[2,2],[300,400]]"}
    assert load_chip("test4x4", wafer).cores == 750 * 994 - 3
