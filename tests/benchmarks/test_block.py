"""The legs of benchmark.py that read extents or use libxnvme, the extent map, and fio."""

import os
import re
import shutil

import numpy as np
import pytest

from benchmarks.legs import CONTAINER_LEGS
from bmap_tools import create
from dali_storage.contract.errors import MapNotChecked
from tests.kit import devices
from tests.kit.pictures import IMAGES, make_pictures
from tests.kit.tiers import by_tier

FIO_OUTPUT = """note: a remark
{ "jobs": [{"read": {"io_bytes": 2000000000, "runtime": 500}, "job_runtime": 1000,
            "usr_cpu": 5.0, "sys_cpu": 35.0}] }
"""
SAME = "the same as fn.readers.file"


@pytest.fixture
def pictures(disk):
    return disk.mount / "data" / "train"


@pytest.fixture
def no_fio(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def fake_fio(tmp_path, monkeypatch):
    """The file with the output of fio, after a line with its exit status."""
    program, words = tmp_path / "bin" / "fio", tmp_path / "words"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nread status < "{words}"\ntail -n +2 "{words}"\nexit $status\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return words


@pytest.mark.long
def test_block_is_measured_with_a_map_made_for_the_run_and_compared_with_fio(pictures, disk, bench):
    devices.require("fio")
    options = ("--readers", "dali-nommap,block", "--rounds", 2, "--batchsize", 8)
    done = bench("compare", "--datadir", pictures, "--verify", "--cold", *options)
    assert done.status == 0
    assert f"verifying block: {SAME}" in done.err
    turns = re.findall(r"round \d/2 (\S+): [\d.,]+ (\S+)", done.err)
    first = [("dali-nommap", "img/s"), ("block", "img/s"), ("fio", "GB/s")]
    assert turns == first + first[1:] + first[:1]
    ours, its = (
        np.median([one["bytes"] / one["seconds"] for one in each["rounds"]])
        for each in (done.kept["readers"]["block"], done.kept["fio"])
    )
    figures = done.kept["fio"]["summary"]
    assert figures["gb_per_s"] == pytest.approx(its / 1e9)
    assert figures["block_share"] == pytest.approx(ours / its)
    assert f"from {disk.device}, queue depth 32, O_DIRECT" in done.out


@pytest.mark.parametrize("storage", ["image", "device"])
def test_block_uses_the_map_and_the_device_of_the_user(
    pictures, disk, bmap, storage, no_fio, bench
):
    device = getattr(disk, storage)
    done = bench("block", "--verify", "--datadir", pictures, "--bmap", bmap, "--uri", device)
    assert done.status == 0
    assert f"verifying block: {SAME}" in done.err
    assert "fio: not installed (apt-get install fio)" in done.out
    assert done.kept["settings"]["bmap"] == str(bmap)
    fio = done.kept["fio"]
    assert (fio["summary"], fio["rounds"]) == (None, [])
    given = dict(re.findall(r"--(\w+)=(\d+)", " ".join(fio["command"])))
    with open(device, "rb") as opened:
        opened.seek(int(given["offset"]))
        read_by_fio = opened.read(int(given["size"]))
    assert all(path.read_bytes() in read_by_fio for path in pictures.glob("*/*"))
    assert len(read_by_fio) < 4 << 20  # and not the whole device


def test_block_reads_containers_by_a_map_made_for_the_run(disk, bench):
    legs = [leg.name for leg in CONTAINER_LEGS if "block" in leg.name][: by_tier(1, 9)]
    options = ("--datadir", disk.mount / "data", "--seed", 1, "--rounds", 1, "--verify")
    done = bench("containers", *options, "--readers", ",".join(legs))
    assert done.status == 0
    assert [leg for leg in legs if f"verifying {leg}: the same as the files" in done.err] == legs


def test_a_map_suffices_if_nothing_is_mounted(tmp_path, bench):
    bmap, copy, above = (tmp_path / name for name in ("b.json", "copy.img", "above"))
    with devices.disk(tmp_path, size=64 << 20) as made:
        sizes = [path.stat().st_size for path in make_pictures(made.mount / "data").glob("*/*")]
        assert create.run(str(made.mount / "data"), str(bmap), threads=1) == 0
        assert create.run(str(made.mount), str(above), threads=1) == 0
    shutil.copyfile(made.image, copy)
    options = ("--rounds", 1, "--batchsize", 8, "--bmap", bmap, "--uri", copy)
    with pytest.warns(MapNotChecked, match="not mounted"):
        done = bench("compare", "--readers", "dali,block", *options)
    assert done.status == 0
    assert "dali: not run: it reads files, and their file system is not mounted" in done.out
    for one in done.kept["readers"]["block"]["rounds"]:
        assert (one["samples"], one["bytes"]) == (
            10 * 8,
            pytest.approx(8 * 10 / IMAGES * sum(sizes), rel=0.2),
        )
    assert done.kept["environment"]["file_system"] == "not mounted"
    refused = bench("block", "--verify", *options), bench("block", "--bmap", above)
    assert [each.status for each in refused] == [2, 2]
    assert "--verify reads the files, and their file system is not mounted" in refused[0].err
    assert f"--bmap {above}: ValueError: " in refused[1].err


def test_all_legs_that_read_extents_or_use_libxnvme_are_measured(pictures, xnvme, no_fio, bench):
    names = ["xnvme-file", "block", "xnvme-block"]
    options = ("--rounds", 2, "--batchsize", 8, "--io", "thrpool", "--readers", ",".join(names))
    done = bench("compare", "--datadir", pictures, "--verify", *options)
    assert done.status == 0
    for name in names:
        assert f"verifying {name}: {SAME}" in done.err
    assert all(len(done.kept["readers"][name]["rounds"]) in (16, 32) for name in names)
    assert done.kept["fio"]["reader"] == "block"


@pytest.mark.parametrize(
    ("status", "words", "said"),
    [
        (0, FIO_OUTPUT, r"4.00 GB/s, 0.20 CPU s/GB: .*; block reaches \d+% of its GB/s$"),
        (1, "fio: engine libaio not loadable\nmore", "failed: RuntimeError: fio: engine libaio no"),
        (3, "", "failed: RuntimeError: exit status 3"),
        (0, "{}", "failed: KeyError"),
    ],
)
def test_the_output_of_fio_is_parsed_and_its_failure_does_not_fail_the_benchmark(
    pictures, bmap, fake_fio, status, words, said, bench
):
    fake_fio.write_text(f"{status}\n{words}\n")
    done = bench("block", "--datadir", pictures, "--bmap", bmap)
    assert done.status == 0
    assert re.search(f"^fio: {said}", done.out, re.MULTILINE)
    parsed = {"seconds": 0.5, "cpu_seconds": pytest.approx(0.4), "bytes": 2 * 10**9}
    rounds = done.kept["fio"]["rounds"]
    assert all(one == parsed for one in rounds)
    assert bool(rounds) == (words == FIO_OUTPUT)
