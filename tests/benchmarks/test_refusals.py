"""Bad input is refused in one line, before anything is measured."""

import os
import shutil

import pytest

from tests.kit.pictures import make_pictures

GPU = "needs a GPU in the pipeline: --device-id N"
MAPPED, CIFAR10 = "--datadir DATA --bmap", "loaders --set cifar10 --datadir CIFAR"

# DATA has pictures and containers, IMAGES and CIFAR what loaders read; FEWER has a picture less
# than its containers, BROKEN a file that is none. NOTHING is an empty directory.
REFUSED = [
    ("compare", "compare needs --datadir DIR or --bmap FILE"),
    ("compare --datadir /does/not/exist", "No such file or directory: /does/not/exist"),
    ("compare --datadir NOTHING", "no files found"),
    ("--batches 0 compare --datadir DATA", "--batches: must be an integer from 1 to "),
    ("dali --seed 9223372036854775808 --datadir DATA", " to 9223372036854775807, not 92233"),
    ("compare --datadir DATA --legs dali,foo", "unknown leg 'foo'; known are dali, dali-no"),
    ("foo --datadir DATA", "python-file-direct"),
    ("dali --datadir DATA --json /does/not/exist/x", "--json: cannot write"),
    ("dali --datadir DATA --plot NOTHING", "--plot: cannot write"),
    ("demo --datadir DATA", "demo makes its own data"),
    ("demo --cold", "demo makes its own data and disk, and takes no --cold; to measure yours"),
    ("--cold dali --datadir DATA", "needs root"),
    ("dali --datadir BROKEN --batchsize 2", "BROKEN/c/1.jpg is not an image that fn."),
    ("dali --datadir BROKEN --batchsize 2 --decode", "BROKEN/c/1.jpg is not an image that fn."),
    # options that no leg uses
    ("dali --bmap bmap.json --datadir DATA",
     "--bmap is for the legs block, xnvme-gds and xnvme-bam, and none of them is to run"),
    ("dali --mem pinned --device-id 0 --datadir DATA",
     "--mem is for the legs xnvme-gds and xnvme-bam, and none of them is to run"),
    ("dali --copying-lanes 1 --datadir DATA",
     "--copying-lanes is for the legs python-file, python-file-direct and xnvme-file, and none"),
    # maps
    (f"compare {MAPPED} NOTHING/x.json", "--bmap NOTHING/x.json: FileNotFoundError: No such file"),
    (f"compare {MAPPED} BROKEN/map.json", "--bmap BROKEN/map.json: MapFormatError"),
    # containers
    ("containers --bmap map.json", "containers needs --datadir DIR"),
    ("containers --datadir IMAGES", "No such file or directory: IMAGES/shards/webdataset; python "),
    ("containers --datadir FEWER", "24 samples in webdataset of 23 files in FEWER/train; python "),
    ("readers --bmap map.json", "readers needs --datadir DIR"),
    # GPUs
    ("compare --mem gpu --datadir DATA", f"--mem gpu {GPU}"),
    ("compare --mem pinned --datadir DATA", f"--mem pinned {GPU}"),
    ("compare --pinned yes --datadir DATA", f"--pinned yes {GPU}"),
    ("compare --mem gpu --device-id 0 --decode --datadir DATA",
     "DALI decodes them from there: use --mem pinned"),
    # loaders
    ("loaders --set cifar10", "loaders needs --datadir DIR"),
    ("loaders --datadir IMAGES", "the following arguments are required: --set"),
    ("loaders --set imagenet-eval --datadir CIFAR", "--datadir CIFAR --set imagenet-eval: "),
    (f"{CIFAR10} --workers 0,x", "an integer from 0 to 1024, not x"),
    (f"{CIFAR10} --legs naive", "unknown leg 'naive'; known are dali, no-"),
    (f"{CIFAR10} --batchsize 201", "make the batches smaller"),
    (f"{CIFAR10} --decode", "--decode is not for loaders"),
    (f"{CIFAR10} --legs memory --queues 2", "--queues is for the legs"),
    (f"{CIFAR10} --cold", "--cold: "),
]  # fmt: skip


@pytest.fixture(scope="module")
def places(data, photographs, cifar, tmp_path_factory):
    fewer, broken = (tmp_path_factory.mktemp(name) for name in ("fewer", "broken"))
    shutil.copytree(data, fewer, dirs_exist_ok=True)
    (fewer / "train" / "c0" / "00.jpg").unlink()
    picture = next(make_pictures(broken / "some").rglob("*.jpg"))
    (broken / "c").mkdir()
    picture.rename(broken / "c" / "0.jpg")
    shutil.rmtree(broken / "some")
    (broken / "c" / "1.jpg").write_text("not an image")
    (broken / "map.json").write_text("{}")
    paths = {"DATA": data, "FEWER": fewer, "BROKEN": broken, "IMAGES": photographs, "CIFAR": cifar}
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
