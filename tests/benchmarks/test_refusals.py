"""Bad input is refused in one line, before anything is measured."""

import os
import shutil

import pytest

from tests.kit.pictures import make_pictures

GPU = "needs a GPU in the pipeline: --device-id N"
MAPPED = "--datadir DATA --bmap"

# DATA has pictures and containers, IMAGES only pictures; FEWER has a picture less than its
# containers, BROKEN a file that is none. NOTHING is an empty directory.
REFUSED = [
    ("compare", "compare needs --datadir DIR or --bmap FILE"),
    ("compare --datadir /does/not/exist", "No such file or directory: /does/not/exist"),
    ("compare --datadir NOTHING", "no files found"),
    ("--batches 0 compare --datadir DATA", "--batches: must be an integer from 1 to "),
    ("dali --seed 9223372036854775808 --datadir DATA", " to 9223372036854775807, not 92233"),
    ("compare --datadir DATA --readers dali,foo", "unknown reader 'foo'; known are dali, dali-no"),
    ("foo --datadir DATA", "python-file-direct"),
    ("compare --datadir DATA --seconds -1", "--seconds: must be from 0 to 3600, not -1"),
    ("compare --datadir DATA --in hot,warm", "unknown situation 'warm'; known are hot, cold, "),
    ("compare --datadir DATA --in hot,cold --plot x.png", "--plot is for one situation: name one"),
    ("dali --datadir DATA --json /does/not/exist/x", "--json: cannot write"),
    ("dali --datadir DATA --plot NOTHING", "--plot: cannot write"),
    ("demo --datadir DATA", "demo makes its own data"),
    ("demo --cold", "demo makes its own data and disk, and takes no --cold; to measure yours"),
    ("--cold dali --datadir DATA", "needs root"),
    ("dali --datadir BROKEN --batchsize 2", "BROKEN/c/1.jpg is not an image that fn."),
    ("dali --datadir BROKEN --batchsize 2 --decode", "BROKEN/c/1.jpg is not an image that fn."),
    # options that no reader uses
    ("dali --bmap bmap.json --datadir DATA",
     "--bmap is for the readers block, xnvme-block and xnvme-bam, and none of them is to run"),
    ("dali --mem pinned --device-id 0 --datadir DATA",
     "--mem is for the readers xnvme-block and xnvme-bam, and none of them is to run"),
    ("dali --copying-lanes 1 --datadir DATA",
     "--copying-lanes is for the readers python-file, python-file-direct, xnvme-file and decoded,"),
    # maps
    (f"compare {MAPPED} NOTHING/x.json", "--bmap NOTHING/x.json: FileNotFoundError: No such file"),
    (f"compare {MAPPED} BROKEN/map.json", "--bmap BROKEN/map.json: MapFormatError"),
    # containers
    ("containers --bmap map.json", "containers needs --datadir DIR"),
    ("containers --datadir IMAGES", "No such file or directory: IMAGES/shards/webdataset; python "),
    ("containers --datadir FEWER", "24 samples in webdataset of 23 files in FEWER/train; python "),
    # GPUs
    ("compare --mem gpu --datadir DATA", f"--mem gpu {GPU}"),
    ("compare --mem pinned --datadir DATA", f"--mem pinned {GPU}"),
    ("compare --pinned yes --datadir DATA", f"--pinned yes {GPU}"),
    ("compare --mem gpu --device-id 0 --decode --datadir DATA",
     "DALI decodes them from there: use --mem pinned"),
]  # fmt: skip


@pytest.fixture(scope="module")
def places(data, tmp_path_factory):
    fewer, broken = (tmp_path_factory.mktemp(name) for name in ("fewer", "broken"))
    shutil.copytree(data, fewer, dirs_exist_ok=True)
    (fewer / "train" / "c0" / "00.jpg").unlink()
    picture = next(make_pictures(broken / "some").rglob("*.jpg"))
    (broken / "c").mkdir()
    picture.rename(broken / "c" / "0.jpg")
    shutil.rmtree(broken / "some")
    (broken / "c" / "1.jpg").write_text("not an image")
    (broken / "map.json").write_text("{}")
    paths = {"DATA": data, "FEWER": fewer, "BROKEN": broken, "IMAGES": data / "train"}
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_bad_input_is_refused_before_any_measurement(
    arguments, said, places, tmp_path,
    monkeypatch, bench
):  # fmt: skip
    for name, path in (places | {"NOTHING": str(tmp_path)}).items():
        arguments, said = arguments.replace(name, path), said.replace(name, path)
    if "--cold dali" in arguments:
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = bench(*arguments.split())
    assert done.status == 2
    *before, line = done.err.splitlines()
    assert said in line
    assert before == [] or before[0].startswith("usage: ")
    assert "round 1/" not in done.out + done.err
    assert not list(tmp_path.iterdir())
