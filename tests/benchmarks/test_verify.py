"""--verify and the comparison of loaders find one wrong byte; a leg that differs is not timed."""

import re
from dataclasses import replace
from itertools import count

import pytest
import torch
from nvidia.dali import fn, types
from torchvision.datasets import ImageFolder

from benchmarks import loader_sets, peers, pipelines, verify
from benchmarks.legs import CONTAINER_LEGS, REFERENCE, TABLES, Leg
from benchmarks.workload import find
from dali_storage.loaders import transforms
from dali_storage.loaders.transforms import presets
from tests.benchmarks.conftest import make_shards


def altered(what, sample):
    """A leg that reads naively, in batches of 5, and changes one sample."""

    def batches(of):
        for first, (files, labels) in zip(count(0, 5), pipelines.naive_batches(of), strict=False):
            slot = sample - first
            if 0 <= slot < 5 and what == "byte":
                files[slot] = files[slot].copy()
                files[slot][11] ^= 1
            elif 0 <= slot < 5 and what == "length":
                files[slot] = files[slot][:-1]
            elif 0 <= slot < 5 and what == "label":
                labels[slot] = labels[slot] + 1
            yield files, labels

    def read(of):
        contents, labels = fn.external_source(source=batches(of), num_outputs=2, batch=True)
        return contents, labels

    return Leg("altered", REFERENCE.family, pipelines.reading(read))


@pytest.mark.parametrize(
    ("what", "said"),
    [("byte", "bytes: .* at 11"), ("length", "bytes: uint8"), ("label", "label: 2 instead of 1")],
)
def test_verification_finds_the_only_wrong_sample(what, said, small):
    (difference,) = verify.differences(altered(what, 13), small, lambda done: None)
    assert re.fullmatch(rf"sample 13, .*/c1/13\.jpg: {said}.*", difference)
    assert list(verify.differences(altered("nothing", 0), small, lambda done: None)) == []


def test_a_wrong_byte_in_a_container_is_found_in_every_leg_that_reads_it(tmp_path, bench):
    data = make_shards(tmp_path)
    with open(find(str(data), "webdataset").files[1], "r+b") as tar:
        tar.seek(512 + 11)
        byte = tar.read(1)
        tar.seek(512 + 11)
        tar.write(bytes([byte[0] ^ 1]))
    legs = ("--legs", "dali-webdataset,webdataset,records,dali-tfrecord", "--rounds", 1)
    options = ("--seed", 1, "--batchsize", 8, "--verify")
    done = bench("containers", "--datadir", data, *legs, *options)
    assert done.status == 1
    for name in ("dali-webdataset", "webdataset", "records"):
        assert re.search(rf"{name}: sample \d+, .*/c1/08\.jpg: bytes: \d+ .* at 11", done.err)
        assert f"{name}: failed: 1 differences from the files" in done.out
        assert f"round 1/1 {name}" not in done.err
    assert "verifying dali-tfrecord: the same as the files" in done.err


def test_a_leg_in_another_order_is_found(data, monkeypatch, bench):
    """A window of a whole shuffle, and the other way round."""
    (window,) = (leg for leg in CONTAINER_LEGS if leg.name == "dali-webdataset")
    wrong = replace(window, name="wrong", adapt=lambda workload: workload)
    monkeypatch.setitem(TABLES, "containers", (window, wrong))
    done = bench("containers", "--datadir", data, "--seed", 1, "--rounds", 1, "--verify")
    assert done.status == 1
    assert "verifying dali-webdataset: the same as the files" in done.err
    assert re.search(r"verifying wrong: \d+ differences from the files", done.err)


# Loaders


def brighter(images):
    return fn.brightness(images, brightness=1.02)


def swapped(images):
    return fn.color_space_conversion(images, image_type=types.RGB, output_type=types.BGR)


CROP, NORMALIZE = transforms.RandomResizedCrop, presets.IMAGENET_EVAL.transforms[-1]
EVAL, CIFAR = presets.IMAGENET_EVAL.transforms, presets.CIFAR10_EVAL.transforms
LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("name", "images", "steps", "said"),
    [
        pytest.param("imagenet-eval", "exact", [swapped, *EVAL], "pixels differ by up to",
                     marks=LONG),
        pytest.param("imagenet-eval", "exact", EVAL[:2],
                     r"images: torch.uint8\[64, 3, 224, 224\] instead of", marks=LONG),
        pytest.param("imagenet-train", "exact", [brighter, *EVAL], "pixels differ by up to",
                     marks=LONG),
        pytest.param("imagenet-train", "timed", [CROP(224), swapped, NORMALIZE],
                     "mean of the pixels of an image", marks=LONG),
        ("cifar10", "exact", [brighter, *CIFAR], "pixels differ by up to"),
        ("cifar10", "timed", CIFAR, "80 images have only 1 different crops"),
        pytest.param("cifar10", "timed", [transforms.PadCrop(32, padding=6), *CIFAR],
                     "are no crop of the", marks=LONG),
    ],
)  # fmt: skip
def test_a_loader_with_other_pixels_fails_and_is_not_timed(
    name, images, steps, said, photographs, cifar,
    monkeypatch, bench
):  # fmt: skip
    known = loader_sets.SETS[name]
    ours = presets.Preset(tuple(steps), "a mistake"), getattr(known, images)[1]
    monkeypatch.setitem(loader_sets.SETS, name, replace(known, **{images: ours}))
    directory, batch_size = (cifar, 40) if name == "cifar10" else (photographs, 32)
    options = ("--datadir", directory, "--batchsize", batch_size, "--rounds", 1, "--batches", 1)
    done = bench("loaders", "--set", name, *options, "--legs", "memory", "--workers", 0)
    assert done.status == 1
    assert re.search(f"comparing memory with torchvision: .*{said}", done.err)
    assert re.search(f"^memory: failed: .*{said}", done.out, re.M)
    assert "round 1/1 torchvision-0" in done.err
    assert "round 1/1 memory" not in done.err


def test_labels_and_types_of_loaders_are_compared():
    images, labels = torch.zeros(4, 3, 8, 8), torch.arange(4)
    assert peers.difference((images, labels), (images, labels), 0) is None
    found = peers.difference((images, labels.flip(0)), (images, labels), 0)
    assert found == "4 of 4 labels differ"
    found = peers.difference((images, labels.int()), (images, labels), 0)
    assert found == "labels: torch.int32[4] instead of torch.int64[4]"


@pytest.mark.long
def test_random_crops_of_torchvision_are_not_found_different(photographs):
    files = ImageFolder(str(photographs / "train")).samples
    dataset = peers.photographs(*zip(*files, strict=True), peers.IMAGENET_TRAIN)
    ours, *draws = [torch.stack([dataset[i][0] for i in range(64)]) for _ in range(3)]
    assert peers.compare_crops(ours, tuple(draws), None) is None
