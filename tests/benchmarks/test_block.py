"""The legs of benchmark.py that read extents or use libxnvme, the extent map, and fio."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bmap_tools import create
from dali_storage.backends.xnvme.library import Library
from dali_storage.contract.errors import MapNotChecked
from tests.benchmarks.test_compare import run
from tests.kit import devices
from tests.kit.devices import Disk
from tests.kit.pictures import IMAGES, make_pictures

FIO_OUTPUT = """note: a remark
{ "jobs": [{"read": {"io_bytes": 2000000000, "runtime": 500}, "job_runtime": 1000,
            "usr_cpu": 5.0, "sys_cpu": 35.0}] }
"""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """A disk with the images on its first partition."""
    with devices.disk(tmp_path_factory.mktemp("disk"), size=64 << 20, partition=True) as made:
        make_pictures(made.mount / "data")
        os.sync()
        yield made


@pytest.fixture
def data(disk: Disk) -> Path:
    return disk.mount / "data"


@pytest.fixture
def bmap(data: Path, tmp_path: Path) -> Path:
    path = tmp_path / "bmap.json"
    assert create.run(str(data), str(path), threads=1) == 0
    return path


@pytest.fixture
def no_fio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def fake_fio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the output of fio, after a line with its exit status."""
    program, words = tmp_path / "bin" / "fio", tmp_path / "words"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nread status < "{words}"\ntail -n +2 "{words}"\nexit $status\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return words


# The leg block


def test_block_is_measured_with_a_map_made_for_the_run_and_compared_with_fio(
    data: Path, disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices.require("fio")
    kept = tmp_path / "result.json"
    names = ("--legs", "dali-nommap,block", "--rounds", 2, "--batchsize", 8, "--json", kept)
    assert run("compare", "--datadir", data, "--verify", "--cold", *names) == 0
    shown = capsys.readouterr()
    document = json.loads(kept.read_text())
    assert "verifying block: the same as fn.readers.file" in shown.err
    turns = re.findall(r"round \d/2 (\S+): [\d.,]+ (\S+)", shown.err)
    first = [("dali-nommap", "img/s"), ("block", "img/s"), ("fio", "GB/s")]
    assert turns == first + first[1:] + first[:1]
    rounds, figures = document["fio"]["rounds"], document["fio"]["summary"]
    ours = [one["bytes"] / one["seconds"] for one in document["legs"]["block"]["rounds"]]
    its = [one["bytes"] / one["seconds"] for one in rounds]
    assert figures["gb_per_s"] == pytest.approx(np.median(its) / 1e9)
    assert figures["block_share"] == pytest.approx(np.median(np.array(ours) / its))
    assert f"from {disk.device}, queue depth 32, O_DIRECT" in shown.out


@pytest.mark.parametrize("storage", ["image", "device"])
def test_block_uses_the_map_and_the_device_of_the_user(
    data: Path, disk: Disk, bmap: Path, storage: str, no_fio: None,
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:  # fmt: skip
    kept, device = tmp_path / "result.json", getattr(disk, storage)
    options = ("--datadir", data, "--bmap", bmap, "--uri", device, "--json", kept)
    assert run("block", "--verify", *options) == 0
    shown = capsys.readouterr()
    assert "verifying block: the same as fn.readers.file" in shown.err
    assert "fio: not installed (apt-get install fio)" in shown.out
    document = json.loads(kept.read_text())
    assert document["settings"]["bmap"] == str(bmap)
    assert (document["fio"]["summary"], document["fio"]["rounds"]) == (None, [])
    given = dict(re.findall(r"--(\w+)=(\d+)", " ".join(document["fio"]["command"])))
    with open(device, "rb") as opened:
        opened.seek(int(given["offset"]))
        read_by_fio = opened.read(int(given["size"]))
    assert all(path.read_bytes() in read_by_fio for path in data.glob("*/*"))
    assert len(read_by_fio) < 4 << 20  # and not the whole device


def test_a_map_suffices_if_nothing_is_mounted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bmap, copy, above, kept = (tmp_path / name for name in ("b.json", "copy.img", "above", "kept"))
    with devices.disk(tmp_path, size=64 << 20) as made:
        sizes = [path.stat().st_size for path in make_pictures(made.mount / "data").glob("*/*")]
        assert create.run(str(made.mount / "data"), str(bmap), threads=1) == 0
        assert create.run(str(made.mount), str(above), threads=1) == 0
    shutil.copyfile(made.image, copy)
    options = ("--rounds", 1, "--batchsize", 8, "--bmap", bmap, "--uri", copy)
    with pytest.warns(MapNotChecked, match="not mounted"):
        assert run("compare", "--legs", "dali,block", *options, "--json", kept) == 0
    unmounted = "dali: not run: it reads files, and their file system is not mounted"
    assert unmounted in capsys.readouterr().out
    document = json.loads(kept.read_text())
    (one,) = document["legs"]["block"]["rounds"]
    assert (one["samples"], one["bytes"]) == (IMAGES, sum(sizes))
    assert document["environment"]["file_system"] == "not mounted"
    assert run("block", "--verify", *options) == run("block", "--bmap", above) == 2
    shown = capsys.readouterr().err
    assert "--verify reads the files, and their file system is not mounted" in shown
    assert f"--bmap {above}: ValueError: " in shown


def test_an_unsuitable_map_is_refused(
    data: Path, bmap: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_pictures(tmp_path / "data")
    (tmp_path / "empty.json").write_text("{}")
    for directory, path, said in (
        (data, tmp_path / "missing.json", "No such file or directory"),
        (data, tmp_path / "empty.json", "MapFormatError"),
        (other, bmap, "StaleMapError"),
    ):
        assert run("compare", "--datadir", directory, "--bmap", path) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"benchmark: --bmap {path}: ")
        assert said in message


@pytest.mark.parametrize(
    ("option", "legs"),
    [
        ("--bmap bmap.json", "block, xnvme-gds and xnvme-bam"),
        ("--mem pinned --device-id 0", "xnvme-gds and xnvme-bam"),
        ("--copying-lanes 1", "python-file, python-file-direct and xnvme-file"),
    ],
)
def test_an_option_that_no_leg_uses_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str], option: str, legs: str
) -> None:
    name, *_ = words = option.split()
    assert run("dali", "--datadir", data, *words) == 2
    message = f"benchmark: {name} is for the legs {legs}, and none of them is to run\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("uri", ["0000:00:04.0", "/dev/null"])
def test_block_does_not_run_on_devices_that_take_nvme_commands_only(
    data: Path, bmap: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--legs", "dali,block", "--rounds", 1, "--datadir", data, "--bmap", bmap)
    assert run("compare", *options, "--uri", uri) == 0
    shown = capsys.readouterr().out
    assert f"block: not run: --uri {uri} is neither a block device nor an image" in shown
    assert "fio" not in shown


# The legs that use libxnvme


def test_all_legs_that_read_extents_or_use_libxnvme_are_measured(
    data: Path, xnvme: Library, no_fio: None, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    maps: list[str] = []

    def count(root: str, path: str, **more: int) -> int:
        maps.append(path)
        return really(root, path, **more)

    really = create.run
    monkeypatch.setattr(create, "run", count)
    kept, names = tmp_path / "result.json", ["xnvme-file", "block", "xnvme-gds"]
    options = ("--rounds", 2, "--batchsize", 8, "--io", "thrpool", "--json", kept)
    assert run("compare", "--datadir", data, "--verify", "--legs", ",".join(names), *options) == 0
    shown = capsys.readouterr()
    for name in names:
        assert f"verifying {name}: the same as fn.readers.file" in shown.err
    document = json.loads(kept.read_text())
    assert [len(document["legs"][name]["rounds"]) for name in names] == [2, 2, 2]
    assert document["fio"]["leg"] == "block"
    assert len(maps) == 1  # one map for all


def test_xnvme_gds_needs_only_a_device_and_its_map(
    disk: Disk, bmap: Path, xnvme: Library, fake_fio: Path,
    capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    fake_fio.write_text(f"0\n{FIO_OUTPUT}")
    options = ("--uri", disk.device, "--mem", "cpu", "--io", "emu", "--bmap", bmap)
    assert run("xnvme-gds", "--verify", *options) == 0
    shown = capsys.readouterr()
    assert "verifying xnvme-gds: the same as fn.readers.file" in shown.err
    assert re.search(rf"fio: 4.00 GB/s.* from {disk.device}.*; xnvme-gds reaches ", shown.out)


def test_an_unsuitable_io_is_refused(
    data: Path, bmap: Path, xnvme: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("xnvme-file", "--datadir", data, "--io", "posix") == 2
    assert "xnvme-file: io must be one of io_uring, " in capsys.readouterr().err
    assert run("xnvme-gds", "--bmap", bmap, "--io", "io_uring_cmd") == 2
    message = capsys.readouterr().err
    assert message.startswith(f"benchmark: --bmap {bmap} --io io_uring_cmd: ValueError: ")


# fio


@pytest.mark.parametrize(
    ("status", "words", "said"),
    [
        (
            0,
            FIO_OUTPUT,
            r"4.00 GB/s, 0.20 CPU s/GB: .*; block reaches \d+% of its GB/s in the same",
        ),
        (
            1,
            "fio: engine libaio not loadable\nmore",
            "failed: RuntimeError: fio: engine libaio not",
        ),
        (3, "", "failed: RuntimeError: exit status 3"),
        (0, "{}", "failed: KeyError"),
    ],
)
def test_the_output_of_fio_is_parsed_and_its_failure_does_not_fail_the_benchmark(
    data: Path, bmap: Path, fake_fio: Path, status: int, words: str, said: str,
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    fake_fio.write_text(f"{status}\n{words}\n")
    kept = tmp_path / "result.json"
    assert run("block", "--datadir", data, "--bmap", bmap, "--json", kept) == 0
    assert re.search(f"^fio: {said}", capsys.readouterr().out, re.MULTILINE)
    rounds = json.loads(kept.read_text())["fio"]["rounds"]
    parsed = [{"seconds": 0.5, "cpu_seconds": pytest.approx(0.4), "bytes": 2 * 10**9}]
    assert rounds == (parsed if words == FIO_OUTPUT else [])
