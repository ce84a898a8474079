"""CIFAR-10 and CIFAR-100 out of archives like the original ones. The oracle is torchvision."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.transforms import v2

from dali_storage.dali.queries import catalog
from dali_storage.loaders import cifar10, cifar100
from dali_storage.loaders.transforms import presets
from tests.kit.cifar_archive import (
    BINARY,
    CLASSES,
    FINE_CLASSES,
    PYTHON,
    ROWS,
    Images,
    batch_of_python,
    make_images,
    pickled,
)

FORMS = [PYTHON, BINARY]
RAW = {"device": "cpu", "num_threads": 1, "to": "numpy", "last_batch": "partial"}
RAW |= {"preset": presets.RAW, "shuffle": False}
LOADERS: dict[int, Any] = {10: cifar10, 100: cifar100}


def by_torchvision(root, split, classes=10):
    """What torchvision reads, except that it does not compare hashes."""
    of = CIFAR100 if classes == 100 else CIFAR10

    class Unchecked(of):
        train_list = [(name, None) for name, _ in of.train_list]  # noqa: RUF012
        test_list = [(name, None) for name, _ in of.test_list]  # noqa: RUF012
        meta = {**of.meta, "md5": None}  # noqa: RUF012

    data = Unchecked(root, train=split == "train")
    return Images(data.data.transpose(0, 3, 1, 2).reshape(-1, 3072), np.array(data.targets))


def taken(loader):
    """One epoch."""
    images, labels = zip(*loader, strict=True)
    assert all(each.dtype == np.int64 and each.ndim == 1 for each in labels)
    pixels = np.concatenate(images)
    assert pixels.shape[1:] == (3, 32, 32)
    return Images(pixels.reshape(-1, 3072), np.concatenate(labels))


def require_equal(found, expected):
    assert found.pixels.dtype == np.uint8
    assert np.array_equal(found.pixels, expected.pixels)
    assert np.array_equal(found.labels, expected.labels)


# The archive that the tests write


def test_names_of_classes_are_pickled_as_in_the_original_archive_of_cifar10():
    """Byte for byte: torchvision knows the hashes of the original files."""
    names = pickled({"num_cases_per_batch": 10_000, "label_names": CLASSES, "num_vis": 3072})
    assert hashlib.md5(names).hexdigest() == CIFAR10.meta["md5"]


# What is read


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("form", [*FORMS, "cifar-100-python", "cifar-100-binary"])
def test_images_and_fine_labels_are_those_of_torchvision(cifar, form, split):
    classes = 100 if "100" in form else 10
    with LOADERS[classes](cifar / form, split, batch_size=32, **RAW) as loader:
        found = taken(loader)
        assert loader.classes == (FINE_CLASSES if classes == 100 else CLASSES)
        assert repr(loader) == f"<Loader: {split} of {str(cifar / form)!r}, {classes} classes>"
    require_equal(found, by_torchvision(cifar, split, classes))
    assert (found.labels > 20).any() == (classes == 100)


def test_the_directory_above_links_relative_paths_and_bytes_are_roots_and_python_comes_first(
    copy, monkeypatch
):
    expected = by_torchvision(copy, "test")
    (copy.parent / "link").symlink_to(copy)
    monkeypatch.chdir(copy.parent)
    for place in (str(copy), "link", f"link/{BINARY}/", b"./link/"):
        with cifar10(place, "test", batch_size=32, **RAW) as loader:
            require_equal(taken(loader), expected)
    for name in (copy / BINARY).iterdir():
        name.write_bytes(b"")
    with cifar10(copy, "test", batch_size=32, **RAW) as loader:
        require_equal(taken(loader), expected)


def write_test_split(root, images):
    (root / "test_batch").write_bytes(batch_of_python("testing batch 1 of 1", images))
    (root / "batches.meta").write_bytes(pickled({"label_names": CLASSES}))
    return images


def test_a_file_of_10000_images_is_read_and_records_are_named_by_file_and_place(cifar, tmp_path):
    images = write_test_split(tmp_path, make_images(10_000, 10, seed=3))
    with cifar10(tmp_path, "test", batch_size=500, **RAW) as loader:
        require_equal(taken(loader), images)
        samples = catalog(loader.pipeline, "Reader")
        assert samples.path(17) == os.fsencode(tmp_path / "test_batch")
        assert re.fullmatch(r"sample 17: 3,072 bytes at [0-9,]+", samples.where(17))
    with cifar10(cifar, "train", batch_size=50, **RAW) as loader:
        samples = catalog(loader.pipeline, "Reader")
        assert samples.name(ROWS + 7) == b"data_batch_2"
        assert len(samples) == 5 * ROWS


def test_an_array_in_fortrans_order_is_read_but_not_by_another_backend(tmp_path):
    images = make_images(40, 10, seed=1)
    write_test_split(tmp_path, Images(np.asfortranarray(images.pixels), images.labels))
    with cifar10(tmp_path, "test", batch_size=7, **RAW) as loader:
        require_equal(taken(loader), images)
    with (
        cifar10(tmp_path, "test", batch_size=7, backend="python-file", **RAW) as loader,
        pytest.raises(ValueError, match=r"test_batch': .* Fortran's order.* leave out backend"),
    ):
        len(loader)


@pytest.mark.skipif(
    "CIFAR10_ROOT" not in os.environ,
    reason="no original CIFAR-10: extract cifar-10-python.tar.gz, and name it by CIFAR10_ROOT",
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_original_archive_is_read_as_by_torchvision(split):
    root = Path(os.environ["CIFAR10_ROOT"])
    with cifar10(root, split, batch_size=500, **RAW) as loader:
        found = taken(loader)
    assert len(found.labels) == {"train": 50_000, "test": 10_000}[split]
    assert (np.bincount(found.labels) == len(found.labels) / 10).all()
    require_equal(found, by_torchvision(root, split))


# Pixels


def normalised(images, preset):
    scaled = v2.functional.to_dtype(images, torch.float32, scale=True)
    return v2.functional.normalize(scaled, list(preset.mean), list(preset.std))


@pytest.mark.parametrize("classes", LOADERS)
def test_images_for_evaluation_are_normalised_as_by_torchvision(cifar, classes):
    with LOADERS[classes](cifar, "test", batch_size=60, device="cpu") as loader:
        ((images, _),) = loader
    raw = torch.from_numpy(by_torchvision(cifar, "test", classes).pixels.reshape(-1, 3, 32, 32))
    assert images.dtype == torch.float32
    expected = normalised(raw, getattr(presets, f"CIFAR{classes}_EVAL"))
    assert (images - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("classes", LOADERS)
def test_images_for_training_are_padded_crops_and_flips_of_torchvision(cifar, classes):
    """Each is one of the 81 crops, or its mirror image: that of the same draw."""
    preset = getattr(presets, f"CIFAR{classes}_TRAIN")
    data = by_torchvision(cifar, "train", classes).pixels.reshape(-1, 3, 32, 32)
    epochs = 300 // len(data)
    with LOADERS[classes](cifar, "train", batch_size=60, shuffle=False, device="cpu") as loader:
        images = torch.cat([images for _ in range(epochs) for images, _ in loader])
    mean, std = (torch.tensor(each).reshape(3, 1, 1) for each in (preset.mean, preset.std))
    pixels = ((images * std + mean) * 255).round().to(torch.uint8)
    padded = v2.functional.pad(torch.from_numpy(np.tile(data, (epochs, 1, 1, 1))), [4]).numpy()
    crops = np.lib.stride_tricks.sliding_window_view(padded, (32, 32), axis=(2, 3))
    draws, expected = [], []
    for found, each in zip(pixels.numpy(), crops, strict=True):
        upright = each.transpose(1, 2, 0, 3, 4).reshape(81, 3, 32, 32)
        candidates = np.concatenate([upright, upright[..., ::-1]])
        (draw,) = np.flatnonzero((candidates == found).all(axis=(1, 2, 3))).tolist()
        draws.append(draw)
        expected.append(candidates[draw])
    assert (images - normalised(torch.from_numpy(np.stack(expected)), preset)).abs().max() <= 1e-6
    assert len(set(draws)) > 100  # 300 draws of 162
    assert {draw % 81 // 9 for draw in draws} == {draw % 9 for draw in draws} == set(range(9))
    assert 0.4 < np.mean(np.array(draws) >= 81) < 0.6
