"""benchmark.py loaders compares pixels before it measures, and measures the right things."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali import fn, types
from torchvision.datasets import ImageFolder

from benchmarks import environment, loader_sets, loaders, measure, peers
from benchmarks.arguments import LOADER_LEGS
from benchmarks.legs import REFERENCE, Leg
from benchmarks.measure import Result
from benchmarks.pipelines import Stream
from benchmarks.workload import Settings, Workload
from dali_storage.backends.memory import MemoryReader
from dali_storage.loaders import transforms
from dali_storage.loaders.transforms import presets
from tests.benchmarks.test_compare import ROOT, ignore
from tests.benchmarks.test_compare import run as run_benchmark
from tests.kit import devices
from tests.kit.cifar_archive import write_cifar10
from tests.kit.pictures import make_photographs


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photographs(tmp_path_factory.mktemp("photographs"), 128)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cifar")
    write_cifar10(root, rows=40)
    return root


def run(*arguments: object) -> int:
    return run_benchmark("loaders", *arguments)


def opened(name: str, directory: Path, **settings: Any) -> loader_sets.OpenSet:
    return loader_sets.OpenSet(name, str(directory), Settings(seed=0, **settings))


# Figures


@pytest.mark.parametrize(
    ("name", "workers", "legs"),
    [("imagenet-train", "0,1", ("dali", "python-file")), ("cifar10", "0", LOADER_LEGS)],
)
def test_all_legs_are_compared_and_measured(
    name: str, workers: str, legs: tuple[str, ...], photographs: Path, cifar: Path,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    kept, picture = tmp_path / "result.json", tmp_path / "result.png"
    status = run(
        *("--set", name, "--datadir", cifar if name == "cifar10" else photographs),
        *("--workers", workers, "--batchsize", 32, "--batches", 1, "--rounds", 2),
        *("--legs", ",".join(legs), "--json", kept, "--plot", picture),
    )
    shown = capsys.readouterr()
    assert status == 0, shown.err
    document = json.loads(kept.read_text())
    peers_of = [f"torchvision-{number}" for number in workers.split(",")]
    assert [*document["legs"]] == [*peers_of, *legs]
    ran = {key: leg for key, leg in document["legs"].items() if leg["skipped"] is None}
    always = {"dali", "no-loader", "python-file", "memory"}
    assert {*peers_of, *always.intersection(legs)} <= set(ran)
    for key, leg in ran.items():
        assert leg["failed"] is None
        assert f"comparing {key} with torchvision: the same\n" in shown.err
        assert re.search(rf"^{key} +[\d,]+ +[\d,]+ +[\d,]+ +[\d,]+ +\d+%", shown.out, re.M)
        for one in leg["rounds"]:
            assert (one["samples"], len(one["waits_seconds"])) == (32, 1)
            assert 0 < sum(one["waits_seconds"]) <= one["seconds"]
        ours = key not in (*peers_of, "dali", "no-loader")
        assert (leg["summary"]["storage_share"] is not None) == ours
    assert {"torch", "torchvision", "dali"} <= set(document["environment"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_first_batches_are_not_timed_and_the_model_takes_its_time(photographs: Path) -> None:
    @contextmanager
    def open_stream(of: Workload, exact: bool) -> Iterator[Stream]:
        def batches() -> Iterator[peers.Batch]:
            for number in range(6):
                time.sleep(0.2 if number < 4 else 0.01)
                stream.storage_seconds = 0.3 * (number + 1)
                yield torch.zeros(32, 3, 1, 1), torch.zeros(32)

        stream = Stream([], storage_seconds=0.0)
        stream.batches = batches()
        assert not exact
        yield stream

    work = opened("imagenet-eval", photographs, batch_size=32).workload()
    assert work.order.shape == (4 + 2, 32)
    leg = Leg("", REFERENCE.family, open_stream)
    one = measure.run_round(leg, work, Result(""), ignore)
    assert (one.samples, len(one.waits)) == (64, 2)
    assert 0.02 <= one.waits.sum() <= one.seconds < 0.2
    assert one.storage_seconds == pytest.approx(0.6)
    assert one.size_bytes == work.sizes[work.order[4:]].sum()
    one = measure.run_round(leg, replace(work, model=320), Result(""), ignore)
    assert one.seconds >= 0.2
    assert one.waits.sum() < 0.15


def test_what_is_waited_for_the_storage_is_summed_over_epochs(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MemoryReader.read

    def slow(*arguments: Any) -> None:
        time.sleep(0.1)
        read(*arguments)

    monkeypatch.setattr(MemoryReader, "read", slow)
    ours = opened("imagenet-eval", photographs, batch_size=4, batches=14)
    assert len(ours.workload().order) > 64 / 4
    (_, leg) = loaders.make_legs(ours, [0], 1, ["memory"])
    one = measure.run_round(leg, ours.workload(), Result(""), ignore)
    assert one.storage_seconds is not None
    assert 0.3 < one.storage_seconds < one.waits.sum()


def burn(seconds: float, done: Any) -> None:
    while time.process_time() < seconds:
        pass
    done.set()
    time.sleep(60)


def test_the_time_of_workers_counts_while_they_live() -> None:
    fork = multiprocessing.get_context("fork")
    done = fork.Event()
    before = measure.cpu_time()
    child = fork.Process(target=burn, args=(0.5, done))
    child.start()
    try:
        assert done.wait(60)
        assert measure.cpu_time() - before >= 0.45
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize(("name", "files"), [("imagenet-train", 40), ("cifar10", 5)])
def test_the_page_cache_is_filled_with_what_is_read(
    name: str, files: int, photographs: Path, cifar: Path
) -> None:
    directory = cifar if name == "cifar10" else photographs
    found = environment.files_of(opened(name, directory, batch_size=8, batches=1).workload())
    assert len({*found}) == len(found) == files  # of photographs, 4 + 1 batches


@pytest.mark.parametrize("name", ["imagenet-train", "imagenet-eval", "cifar10"])
def test_torchvision_reads_in_the_order_of_the_loader(
    name: str, photographs: Path, cifar: Path
) -> None:
    directory = cifar if name == "cifar10" else photographs
    ours = opened(name, directory, batch_size=16, batches=30)
    order = ours.workload().order
    with ours.loader(exact=True) as loader:
        epochs = chain.from_iterable(repeat(loader))
        given = [labels.tolist() for _, labels in islice(epochs, len(order))]
        assert len(order) > 2 * len(loader)
    assert given == ours.samples.labels[order].tolist()


@pytest.mark.parametrize("form", ["cifar-10-batches-py", "cifar-10-batches-bin"])
def test_torchvisions_side_has_the_images_of_the_archive(form: str, tmp_path: Path) -> None:
    written = write_cifar10(tmp_path, rows=30)["train"]
    files = sorted(map(str, (tmp_path / form).glob("data_batch_*")))
    records, labels = peers.read_cifar10(files)
    assert np.array_equal(records, written.pixels)
    assert labels == written.labels.tolist()
    image, label = peers.cifar10(files, [], lambda image: image)[77]
    assert np.array_equal(
        np.asarray(image), written.pixels[77].reshape(3, 32, 32).transpose(1, 2, 0)
    )
    assert label == labels[77]


def test_torchvisions_side_runs_no_code_of_an_archive(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(pickle.UnpicklingError, match=r"does not name posix\.mkdir"):
        peers.read_cifar10([str(tmp_path / "data_batch_1")])
    assert not (tmp_path / "made").exists()


# Comparison


def brighter(images: Any) -> Any:
    return fn.brightness(images, brightness=1.02)


def swapped(images: Any) -> Any:
    return fn.color_space_conversion(images, image_type=types.RGB, output_type=types.BGR)


CROP, NORMALIZE = transforms.RandomResizedCrop, presets.IMAGENET_EVAL.transforms[-1]
EVAL, CIFAR = presets.IMAGENET_EVAL.transforms, presets.CIFAR10_EVAL.transforms


@pytest.mark.parametrize(
    ("name", "images", "steps", "said"),
    [
        ("imagenet-eval", "exact", [swapped, *EVAL], "pixels differ by up to"),
        ("imagenet-eval", "exact", EVAL[:2], r"images: torch.uint8\[64, 3, 224, 224\] instead of"),
        ("imagenet-train", "exact", [brighter, *EVAL], "pixels differ by up to"),
        (
            "imagenet-train",
            "timed",
            [CROP(224), swapped, NORMALIZE],
            "mean of the pixels of an image",
        ),
        ("cifar10", "exact", [brighter, *CIFAR], "pixels differ by up to"),
        ("cifar10", "timed", CIFAR, "80 images have only 1 different crops"),
        ("cifar10", "timed", [transforms.PadCrop(32, padding=6), *CIFAR], "are no crop of the"),
    ],
)
def test_a_leg_with_other_pixels_fails_and_is_not_timed(
    name: str, images: str, steps: Any, said: str, photographs: Path, cifar: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    known = loader_sets.SETS[name]
    ours = presets.Preset(tuple(steps), "a mistake"), getattr(known, images)[1]
    monkeypatch.setitem(loader_sets.SETS, name, replace(known, **{images: ours}))
    directory, batch_size = (cifar, 40) if name == "cifar10" else (photographs, 32)
    arguments = ("--set", name, "--datadir", directory, "--batchsize", batch_size, "--rounds", 1)
    assert run(*arguments, "--legs", "memory", "--workers", 0, "--batches", 1) == 1
    shown = capsys.readouterr()
    assert re.search(f"comparing memory with torchvision: .*{said}", shown.err)
    assert re.search(f"^memory: failed: .*{said}", shown.out, re.M)
    assert "round 1/1 torchvision-0" in shown.err
    assert "round 1/1 memory" not in shown.err


def test_labels_and_types_are_compared() -> None:
    images, labels = torch.zeros(4, 3, 8, 8), torch.arange(4)
    assert peers.difference((images, labels), (images, labels), 0) is None
    found = peers.difference((images, labels.flip(0)), (images, labels), 0)
    assert found == "4 of 4 labels differ"
    found = peers.difference((images, labels.int()), (images, labels), 0)
    assert found == "labels: torch.int32[4] instead of torch.int64[4]"


def test_random_crops_of_torchvision_are_not_found_different(photographs: Path) -> None:
    files = ImageFolder(str(photographs / "train")).samples
    dataset = peers.photographs(*zip(*files, strict=True), peers.IMAGENET_TRAIN)
    ours, *draws = [torch.stack([dataset[i][0] for i in range(64)]) for _ in range(3)]
    assert peers.compare_crops(ours, tuple(draws), None) is None


def test_extents_are_read_through_a_map_made_for_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with devices.disk(tmp_path, size=64 << 20) as disk:
        write_cifar10(disk.mount, rows=40)
        os.sync()
        arguments = ("--set", "cifar10", "--datadir", disk.mount, "--batchsize", 32, "--workers", 0)
        assert run(*arguments, "--legs", "block", "--rounds", 1, "--batches", 1) == 0
    shown = capsys.readouterr().err
    assert "comparing block with torchvision: the same" in shown
    assert "round 1/1 block: " in shown


# Bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--set cifar10", "loaders needs --datadir DIR"),
        ("--datadir IMAGES", "the following arguments are required: --set"),
        ("--set imagenet-eval --datadir CIFAR", "--datadir CIFAR --set imagenet-eval: "),
        ("--set cifar10 --datadir CIFAR --workers 0,x", "an integer from 0 to 1024, not x"),
        ("--set cifar10 --datadir CIFAR --legs naive", "unknown leg 'naive'; known are dali, no-"),
        ("--set cifar10 --datadir CIFAR --batchsize 201", "make the batches smaller"),
        ("--set cifar10 --datadir CIFAR --decode", "--decode is not for loaders"),
        ("--set cifar10 --datadir CIFAR --legs memory --queues 2", "--queues is for the legs"),
        ("--set cifar10 --datadir CIFAR --cold", "--cold: "),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: str, said: str, photographs: Path, cifar: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = arguments.replace("IMAGES", str(photographs)).replace("CIFAR", str(cifar))
    assert run(*words.split()) == 2
    shown = capsys.readouterr()
    assert said.replace("CIFAR", str(cifar)) in shown.err.splitlines()[-1]
    assert "round" not in shown.out + shown.err.replace("--rounds", "")


def test_a_torchvision_that_cannot_be_imported_is_one_line(tmp_path: Path) -> None:
    for broken, said in (
        ("ModuleNotFoundError(name='torchvision')", r"pip install 'dali-storage\[examples\]'"),
        ("RuntimeError('operator torchvision::nms does not exist')", "download.pytorch.org"),
    ):
        (tmp_path / "torchvision.py").write_text(f"raise {broken}")
        command = [sys.executable, ROOT / "benchmark.py", "loaders", "--set=cifar10", "--datadir=x"]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert process.returncode == 2
        assert re.fullmatch(f"benchmark: .*{said}.*\n", process.stderr)
