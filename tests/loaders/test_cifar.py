"""CIFAR-10 and CIFAR-100 out of archives like the original ones. The oracle is torchvision."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchvision.datasets import CIFAR10, CIFAR100
from torchvision.transforms import v2

from dali_storage.backends.memory import MemoryReader
from dali_storage.contract import registry
from dali_storage.dali import catalog
from dali_storage.loaders import Loader, Shard, cifar10, cifar100
from dali_storage.loaders.datasets.cifar_files import CIFAR10 as ARCHIVES
from dali_storage.loaders.transforms import presets
from dali_storage.testing import nothing_is_left
from tests.kit.cifar_archive import (
    CLASSES,
    FINE_CLASSES,
    SUPERCLASSES,
    Images,
    batch_of_python,
    make_images,
    pickled,
    write_cifar10,
    write_cifar100,
)
from tests.kit.layouts import make_map
from tests.kit.mapped import NEEDS_ROOT

ROWS = 60  # in a file of the small archive
FORM = ["cifar-10-batches-py", "cifar-10-batches-bin"]
ALL = {"device": "cpu", "num_threads": 1, "to": "numpy"}
RAW = {**ALL, "preset": presets.RAW, "shuffle": False, "last_batch": "partial"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Images]]:
    """Both forms of a small CIFAR-10, which no test changes, and what is in them."""
    root = tmp_path_factory.mktemp("cifar10")
    return root, write_cifar10(root, rows=ROWS)


@pytest.fixture(scope="module")
def root(archive: tuple[Path, dict[str, Images]]) -> Path:
    return archive[0]


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy of the archive that a test may change."""
    shutil.copytree(root, tmp_path / "root")
    return tmp_path / "root"


def by_torchvision(root: Path, split: str, of: type[CIFAR10] = CIFAR10) -> Images:
    """What torchvision reads, except that it does not compare hashes."""

    class Unchecked(of):  # type: ignore[misc, valid-type]
        train_list = [(name, None) for name, _ in of.train_list]  # noqa: RUF012
        test_list = [(name, None) for name, _ in of.test_list]  # noqa: RUF012
        meta = {**of.meta, "md5": None}  # noqa: RUF012

    data = Unchecked(root, train=split == "train")
    return Images(data.data.transpose(0, 3, 1, 2).reshape(-1, 3072), np.array(data.targets))


def taken(loader: Loader) -> Images:
    """One epoch."""
    images, labels = zip(*loader, strict=True)
    assert all(each.dtype == np.int64 and each.ndim == 1 for each in labels)
    pixels = np.concatenate(images)
    assert pixels.shape[1:] == (3, 32, 32)
    return Images(pixels.reshape(-1, 3072), np.concatenate(labels))


def require_equal(found: Images, expected: Images) -> None:
    assert found.pixels.dtype == np.uint8
    assert np.array_equal(found.pixels, expected.pixels)
    assert np.array_equal(found.labels, expected.labels)


# The archive that the tests write


def test_names_of_classes_are_written_byte_for_byte_as_in_the_original(tmp_path: Path) -> None:
    """torchvision knows the hashes of the original files."""
    names = pickled({"num_cases_per_batch": 10_000, "label_names": CLASSES, "num_vis": 3072})
    assert hashlib.md5(names).hexdigest() == CIFAR10.meta["md5"]
    names = pickled({"fine_label_names": FINE_CLASSES, "coarse_label_names": SUPERCLASSES})
    assert hashlib.md5(names).hexdigest() == CIFAR100.meta["md5"]


def test_torchvision_and_pickle_read_the_archive(archive: tuple[Path, dict[str, Images]]) -> None:
    root, expected = archive
    for split, images in expected.items():
        require_equal(by_torchvision(root, split), images)
    with open(root / FORM[0] / "data_batch_2", "rb") as file:
        batch = pickle.load(file, encoding="latin1")
    assert batch["batch_label"] == "training batch 2 of 5"
    assert batch["labels"] == expected["train"].labels[ROWS : 2 * ROWS].tolist()
    assert len(batch["filenames"]) == ROWS


# What is read


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("form", FORM)
def test_images_and_labels_are_those_of_torchvision(root: Path, form: str, split: Any) -> None:
    with cifar10(root / form, split, batch_size=32, **RAW) as loader:
        require_equal(taken(loader), by_torchvision(root, split))
        assert loader.classes == CLASSES
        assert repr(loader) == f"<Loader: {split} of {str(root / form)!r}, 10 classes>"


@pytest.mark.parametrize("form", ["cifar-100-python", "cifar-100-binary"])
def test_cifar_100_has_the_fine_labels_of_torchvision(tmp_path: Path, form: str) -> None:
    write_cifar100(tmp_path, rows=150)
    for split in ("train", "test"):
        with cifar100(tmp_path / form, split, batch_size=32, **RAW) as loader:
            found = taken(loader)
            assert loader.classes == FINE_CLASSES
        require_equal(found, by_torchvision(tmp_path, split, CIFAR100))
        assert found.labels.max() > 20


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "memory"},
        {"backend": "python-file"},
        {"backend": "python-file", "backend_options": {"direct": True, "lanes": 1}},
    ],
    ids=["memory", "python-file", "direct"],
)
@pytest.mark.parametrize("form", FORM)
def test_every_backend_gives_the_same(root: Path, form: str, options: dict[str, Any]) -> None:
    with cifar10(root / form, "train", batch_size=50, **RAW, **options) as loader:
        require_equal(taken(loader), by_torchvision(root, "train"))


@NEEDS_ROOT
@pytest.mark.usefixtures("ext4")
def test_the_block_backend_gives_the_same(ext4: Any, root: Path, tmp_path: Path) -> None:
    on_disk = shutil.copytree(root, ext4.mount / "cifar")
    options = {"bmap": make_map(on_disk, tmp_path / "bmap.json")}
    for form in FORM:
        with cifar10(
            on_disk / form, "train", batch_size=50, backend="block", backend_options=options, **RAW
        ) as loader:
            require_equal(taken(loader), by_torchvision(root, "train"))


def test_the_directory_above_is_taken_too_and_of_both_forms_that_of_python(copy: Path) -> None:
    with cifar10(str(copy), "test", batch_size=32, **RAW) as loader:
        require_equal(taken(loader), by_torchvision(copy, "test"))
    for name in (copy / FORM[1]).iterdir():
        name.write_bytes(b"")
    with cifar10(os.fsencode(copy), "test", batch_size=32, **RAW) as loader:
        require_equal(taken(loader), by_torchvision(copy, "test"))


def test_links_relative_paths_and_a_slash_at_the_end(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(tmp_path)
    for place in ("link", f"link/{FORM[1]}/", b"./link/"):
        with cifar10(place, "test", batch_size=32, **RAW) as loader:
            require_equal(taken(loader), by_torchvision(root, "test"))


def test_files_of_10000_images(tmp_path: Path) -> None:
    images = make_images(10_000, 10, seed=3)
    (tmp_path / "test_batch").write_bytes(batch_of_python("testing batch 1 of 1", images))
    (tmp_path / "batches.meta").write_bytes(pickled({"label_names": CLASSES}))
    with cifar10(tmp_path, "test", batch_size=500, **RAW) as loader:
        require_equal(taken(loader), images)
        samples = catalog(loader.pipeline, "Reader")
        assert samples.path(17) == os.fsencode(tmp_path / "test_batch")
        assert re.fullmatch(r"sample 17: 3,072 bytes at [0-9,]+", samples.where(17))


def test_records_are_named_by_their_file(root: Path) -> None:
    with cifar10(root, "train", batch_size=50, **RAW) as loader:
        samples = catalog(loader.pipeline, "Reader")
        assert samples.name(ROWS + 7) == b"data_batch_2"
        assert len(samples) == 5 * ROWS


def test_an_array_in_fortrans_order(tmp_path: Path) -> None:
    images = make_images(40, 10, seed=1)
    transposed = Images(np.asfortranarray(images.pixels), images.labels)
    (tmp_path / "test_batch").write_bytes(batch_of_python("", transposed))
    (tmp_path / "batches.meta").write_bytes(pickled({"label_names": CLASSES}))
    with cifar10(tmp_path, "test", batch_size=7, **RAW) as loader:
        require_equal(taken(loader), images)


def test_an_array_in_fortrans_order_is_not_read_by_another_backend(tmp_path: Path) -> None:
    images = make_images(40, 10, seed=1)
    transposed = Images(np.asfortranarray(images.pixels), images.labels)
    (tmp_path / "test_batch").write_bytes(batch_of_python("", transposed))
    (tmp_path / "batches.meta").write_bytes(pickled({"label_names": CLASSES}))
    with (
        cifar10(tmp_path, "test", batch_size=7, backend="python-file", **RAW) as loader,
        pytest.raises(ValueError, match=r"test_batch': .* Fortran's order.* leave out backend"),
    ):
        len(loader)


class OnAGpu(MemoryReader):
    device = "gpu"


class WholeFiles(MemoryReader):
    reads_ranges = False


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (OnAGpu, r"backend 'memory' reads into GPU memory: .* \(mem='cpu'\)"),
        (WholeFiles, "backend 'memory' reads whole files only"),
    ],
)
def test_a_backend_that_cannot_read_the_images_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, reader: type[MemoryReader], message: str
) -> None:
    monkeypatch.setattr(registry, "load", lambda name: reader)
    with (
        cifar10(root, "test", batch_size=2, **RAW) as loader,
        nothing_is_left(),
        pytest.raises(ValueError, match=message),
    ):
        len(loader)


def test_the_contents_of_the_files_are_not_the_users(root: Path) -> None:
    options = {"backend_options": {"contents": [b"x"]}}
    with (
        cifar10(root, "test", batch_size=2, **RAW, **options) as loader,
        pytest.raises(ValueError, match="backend_options must be empty for memory"),
    ):
        len(loader)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_batch_that_python_3_pickled_is_refused_with_the_remedy(
    copy: Path, protocol: int
) -> None:
    path = copy / FORM[0] / "test_batch"
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes(), encoding="latin1"), protocol))
    with pytest.raises(ValueError, match=f"^'{path}': .* Python 3 perhaps: extract the original"):
        open_test_split(copy)


@pytest.mark.skipif("CIFAR10_ROOT" not in os.environ, reason="CIFAR10_ROOT names no CIFAR-10")
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_original_archive(split: Any) -> None:
    root = Path(os.environ["CIFAR10_ROOT"])
    with cifar10(root, split, batch_size=500, **RAW) as loader:
        found = taken(loader)
    assert len(found.labels) == {"train": 50_000, "test": 10_000}[split]
    assert (np.bincount(found.labels) == len(found.labels) / 10).all()
    require_equal(found, by_torchvision(root, split))


# Order, shards, states


def test_training_is_shuffled_in_every_epoch_and_complete(root: Path) -> None:
    expected = by_torchvision(root, "train").pixels
    options = {**ALL, "preset": presets.RAW, "last_batch": "partial"}
    with cifar10(root, "train", batch_size=64, **options) as loader:
        epochs = [taken(loader).pixels for _ in range(3)]
    assert not np.array_equal(epochs[0], epochs[1])
    for epoch in epochs:
        assert not np.array_equal(epoch, expected)
        assert sorted(map(bytes, epoch)) == sorted(map(bytes, expected))


@pytest.mark.parametrize("form", FORM)
def test_the_shards_have_every_image_once(root: Path, form: str) -> None:
    expected = by_torchvision(root, "train")
    found = []
    for rank in range(3):
        options: Any = {**ALL, "preset": presets.RAW, "last_batch": "partial"}
        shard = Shard(rank, 3, rank)
        with cifar10(root / form, "train", batch_size=32, shard=shard, **options) as loader:
            found.append(taken(loader))
    pairs = [(bytes(p), y) for each in found for p, y in zip(each.pixels, each.labels, strict=True)]
    wanted = [(bytes(p), y) for p, y in zip(expected.pixels, expected.labels, strict=True)]
    assert sorted(pairs) == sorted(wanted)


@pytest.mark.parametrize("form", FORM)
def test_a_state_goes_on_bit_for_bit(root: Path, form: str) -> None:
    def open_loader() -> Loader:
        return cifar10(root / form, "train", batch_size=32, **ALL)

    with open_loader() as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        expected = [*batches, *loader]
    with open_loader() as loader:
        loader.load_state_dict(state)
        found = [*loader, *loader]
    assert len(found) == len(expected) == 5 + 9
    for (images, labels), (same_images, same_labels) in zip(found, expected, strict=True):
        assert np.array_equal(images, same_images)
        assert np.array_equal(labels, same_labels)


def test_of_training_incomplete_batches_are_dropped_and_else_delivered(root: Path) -> None:
    for split, batches in (("train", [64] * 4), ("test", [60])):
        with cifar10(root, split, batch_size=64, **ALL) as loader:  # type: ignore[arg-type]
            assert [len(labels) for _, labels in loader] == batches


# Pixels


def test_evaluation_is_normalised_as_by_torchvision(root: Path) -> None:
    with cifar10(root, "test", batch_size=60, device="cpu") as loader:
        ((images, _),) = loader
    raw = torch.from_numpy(by_torchvision(root, "test").pixels.reshape(-1, 3, 32, 32))
    expected = _normalised(raw, presets.CIFAR10_EVAL)
    assert images.dtype == torch.float32
    assert (images - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("number", ["10", "100"])
def test_training_images_are_crops_and_flips_of_torchvision(tmp_path: Path, number: str) -> None:
    """Each is one of the 81 crops, or its mirror image: that of the same draw."""
    preset: presets.Preset = getattr(presets, f"CIFAR{number}_TRAIN")
    if number == "10":
        write_cifar10(tmp_path, rows=60)
        loader = cifar10(tmp_path, "train", batch_size=100, shuffle=False, device="cpu")
        data = by_torchvision(tmp_path, "train")
    else:
        write_cifar100(tmp_path, rows=300)
        loader = cifar100(tmp_path, "train", batch_size=100, shuffle=False, device="cpu")
        data = by_torchvision(tmp_path, "train", CIFAR100)
    with loader:
        images = torch.cat([images for images, _ in loader])
    mean, std = (torch.tensor(each).reshape(3, 1, 1) for each in (preset.mean, preset.std))
    pixels = ((images * std + mean) * 255).round().to(torch.uint8)
    padded = v2.functional.pad(torch.from_numpy(data.pixels.reshape(-1, 3, 32, 32)), [4]).numpy()
    crops = np.lib.stride_tricks.sliding_window_view(padded, (32, 32), axis=(2, 3))
    draws, expected = [], []
    for found, each in zip(pixels.numpy(), crops, strict=True):
        upright = each.transpose(1, 2, 0, 3, 4).reshape(81, 3, 32, 32)
        candidates = np.concatenate([upright, upright[..., ::-1]])
        (draw,) = np.flatnonzero((candidates == found).all(axis=(1, 2, 3))).tolist()
        draws.append(draw)
        expected.append(candidates[draw])
    normalised = _normalised(torch.from_numpy(np.stack(expected)), preset)
    assert (images - normalised).abs().max() <= 1e-6
    assert len(set(draws)) > 100  # 300 draws of 162
    assert {draw % 81 // 9 for draw in draws} == {draw % 9 for draw in draws} == set(range(9))
    assert 0.4 < np.mean(np.array(draws) >= 81) < 0.6


def _normalised(images: torch.Tensor, preset: presets.Preset) -> torch.Tensor:
    scaled = v2.functional.to_dtype(images, torch.float32, scale=True)
    return v2.functional.normalize(scaled, list(preset.mean), list(preset.std))


# What is refused


def open_test_split(directory: Path) -> None:
    """Read the files; no pipeline is needed for that."""
    with cifar10(directory, "test", batch_size=2, **RAW) as loader:
        len(loader)


def test_missing_files_are_named(copy: Path) -> None:
    for name in ("data_batch_3", "data_batch_5"):
        (copy / FORM[0] / name).unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_3, data_batch_5 missing") as caught:
        cifar10(copy, "train", batch_size=2, **RAW)
    assert "cifar-10-python.tar.gz" in str(caught.value)
    assert caught.value.filename == str(copy / FORM[0])
    open_test_split(copy)
    (copy / FORM[0] / "batches.meta").unlink()
    with pytest.raises(FileNotFoundError, match=r"batches\.meta missing"):
        cifar10(copy, "test", batch_size=2, **RAW)


def test_a_root_without_the_data_set_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no CIFAR-10 here: no cifar-10-batches-py or"):
        cifar10(tmp_path, "test", batch_size=2, **RAW)
    with pytest.raises(FileNotFoundError, match="no CIFAR-100 here: no cifar-100-python or"):
        cifar100(root, "test", batch_size=2, **RAW)
    with pytest.raises(FileNotFoundError) as caught:
        cifar10(tmp_path / "absent", "test", batch_size=2, **RAW)
    assert caught.value.filename == str(tmp_path / "absent")


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"])
def test_a_packed_archive_is_refused_with_the_command_that_extracts_it(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    packed = folder / name
    packed.write_bytes(b"\x1f\x8b\x08")
    command = f"tar xf '{packed}' -C '{folder}'"
    for root in (packed, folder):
        with pytest.raises(ValueError, match=f"{re.escape(command)}$"):
            cifar10(root, "test", batch_size=2, **RAW)


def test_a_file_as_root_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="root must be a directory, not the file"):
        cifar10(root / FORM[0] / "test_batch", "test", batch_size=2, **RAW)


def test_more_shards_than_images_are_refused(root: Path) -> None:
    with (
        cifar10(root, "test", batch_size=2, shard=Shard(0, ROWS + 1, 0), **RAW) as loader,
        pytest.raises(ValueError, match=f"num_shards must be at most {ROWS}"),
    ):
        next(iter(loader))


def test_only_an_archive_as_root_is_said_to_be_packed(root: Path) -> None:
    with pytest.raises(ValueError, match=r"not the file '.*meta\.txt'; give the directory"):
        cifar10(root / FORM[1] / "batches.meta.txt", "test", batch_size=2, **RAW)


@pytest.mark.parametrize("name", ["test_batch", "batches.meta"])
def test_what_is_no_file_is_missing(copy: Path, name: str) -> None:
    """A FIFO, which open() would wait for, or a directory."""
    path = copy / FORM[0] / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileNotFoundError, match=f"{name} missing"):
        open_test_split(copy)
    path.unlink()
    path.mkdir()
    with pytest.raises(FileNotFoundError, match=f"{name} missing"):
        open_test_split(copy)


@pytest.mark.parametrize("name", ["", "test_batch", "batches.meta"])
def test_what_cannot_be_looked_at_is_named_and_not_called_missing(copy: Path, name: str) -> None:
    path = copy / FORM[0] / name
    path.rename(path.with_name("moved"))
    path.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links") as caught:
        open_test_split(copy)
    assert caught.value.filename.startswith(str(path))


@pytest.mark.parametrize("name", ["test_batch", "batches.meta"])
def test_a_file_of_a_terabyte_is_refused_at_once(copy: Path, name: str) -> None:
    path = copy / FORM[0] / name
    os.truncate(path, 1 << 40)
    with pytest.raises(ValueError, match=f"^'{path}': no file of CIFAR has 1099511627776 bytes"):
        cifar10(copy, "test", batch_size=2, **RAW)


def test_wrong_arguments_are_refused_by_name(root: Path) -> None:
    with pytest.raises(ValueError, match="split must be 'train' or 'test', not 'val'"):
        cifar10(root, "val", batch_size=2, **RAW)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"root must be str, bytes or os\.PathLike, not 10"):
        cifar10(10, "test", batch_size=2, **RAW)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"cifar10\(\): .*'cutout'"):
        cifar10(root, "test", batch_size=2, cutout=4, **RAW)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="batch_size"):
        cifar100(root, "test", batch_size=0, **RAW)
    with pytest.raises(ValueError, match="unknown backend 'disc'"):
        cifar10(root, "test", batch_size=2, backend="disc", **RAW)
    with pytest.raises(TypeError, match="has no option speed"):
        cifar10(root, "test", batch_size=2, backend_options={"speed": 9}, **RAW)


@pytest.mark.parametrize("name", ["test_batch", "batches.meta"])
def test_a_pickle_that_runs_a_command_is_refused_by_name_and_not_run(
    copy: Path, tmp_path: Path, name: str
) -> None:
    path, proof = copy / FORM[0] / name, tmp_path / "ran"
    command = b"touch %s" % os.fsencode(proof)
    call = b"cposix\nsystem\nU%c%s\x85R" % (len(command), command)
    path.write_bytes(path.read_bytes()[:-2] + b"U\x04codeq\x00" + call + b"u.")
    message = f"^'{path}': byte [0-9]+: 'posix.system' .*extract the original archive again$"
    with pytest.raises(ValueError, match=message):
        open_test_split(copy)
    assert not proof.exists()
    pickle.loads(path.read_bytes(), encoding="latin1")
    assert proof.exists(), "this pickle would not have run"


_BATCH = make_images(4, 10, seed=0)
_WRONG = {
    "no data": ({"labels": [1, 2, 3, 4]}, "'data' must be an array of n x 3072 bytes"),
    "data that is a list": (
        {"labels": [1, 2], "data": [1, 2]},
        "'data' must be an array of n x 3072 bytes",
    ),
    "records of another size": (
        {"labels": [1, 2], "data": np.zeros((2, 3071), np.uint8)},
        "'data' must be an array of n x 3072 bytes",
    ),
    "three dimensions": (
        {"labels": [1, 2], "data": np.zeros((2, 32, 96), np.uint8)},
        "'data' must be an array of n x 3072 bytes",
    ),
    "no images": (
        {"labels": [], "data": np.zeros((0, 3072), np.uint8)},
        "'labels' must be a list of integers",
    ),
    "no labels": ({"data": _BATCH.pixels}, "'labels' must be a list of integers"),
    "labels of CIFAR-100": (
        {"fine_labels": [1, 2, 3, 4], "data": _BATCH.pixels},
        "'labels' must be a list of integers",
    ),
    "labels that are text": (
        {"labels": ["1", "2", "3", "4"], "data": _BATCH.pixels},
        "'labels' must be a list of integers",
    ),
    "too few labels": (
        {"labels": [1, 2, 3], "data": _BATCH.pixels},
        "there are 4 images, but 3 labels",
    ),
    "too many labels": (
        {"labels": [1, 2, 3, 4, 5], "data": _BATCH.pixels},
        "there are 4 images, but 5 labels",
    ),
    "a label out of range": (
        {"labels": [1, 2, 10, 4], "data": _BATCH.pixels},
        "record 2 has the label 10, and there are 10 classes",
    ),
}


@pytest.mark.parametrize("case", _WRONG)
def test_wrong_contents_are_refused_by_the_name_of_the_file(copy: Path, case: str) -> None:
    items, message = _WRONG[case]
    path = copy / FORM[0] / "test_batch"
    path.write_bytes(pickled(items))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^'{path}': {message}"):
        open_test_split(copy)


@pytest.mark.parametrize("names", [pickled({"num_vis": 3072}), pickled({"label_names": [1, 2]})])
def test_classes_without_names_are_refused(copy: Path, names: bytes) -> None:
    path = copy / FORM[0] / "batches.meta"
    path.write_bytes(names)
    with pytest.raises(ValueError, match=f"^'{path}': 'label_names' must be a list of names"):
        open_test_split(copy)


@pytest.mark.parametrize("count", [0, 9, 11])
@pytest.mark.parametrize("form", FORM)
def test_a_wrong_number_of_classes_is_refused_by_name(copy: Path, form: str, count: int) -> None:
    names = [*CLASSES, "tram"][:count]
    path = copy / form / ("batches.meta" if form == FORM[0] else "batches.meta.txt")
    is_text = path.suffix == ".txt"
    path.write_bytes("\n".join(names).encode() if is_text else pickled({"label_names": names}))
    message = f"it names {count} classes, not 10" if count or is_text else "must be a list of names"
    with pytest.raises(ValueError, match=f"^'{path}': .*{message}"):
        open_test_split(copy / form)


def test_a_name_in_a_text_file_is_a_line(copy: Path) -> None:
    names = ["fire truck", *CLASSES[1:]]
    (copy / FORM[1] / "batches.meta.txt").write_text("\r\n".join([*names, "", " "]))
    with cifar10(copy / FORM[1], "test", batch_size=2, **RAW) as loader:
        assert loader.classes == tuple(names)
    (copy / FORM[1] / "batches.meta.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"batches\.meta\.txt': 'utf-8' codec"):
        open_test_split(copy / FORM[1])


@pytest.mark.parametrize("left", [0, 1, 3072, ROWS * 3073 - 1])
def test_a_truncated_binary_file_is_refused(copy: Path, left: int) -> None:
    path = copy / FORM[1] / "test_batch.bin"
    os.truncate(path, left)
    with pytest.raises(ValueError, match=f"^'{path}': its {left} bytes are not .* of 3073 bytes"):
        open_test_split(copy / FORM[1])


def test_a_wrong_label_in_a_binary_file_is_refused(copy: Path) -> None:
    path = copy / FORM[1] / "test_batch.bin"
    with open(path, "r+b") as file:
        file.seek(5 * 3073)
        file.write(b"\x0a")
    with pytest.raises(ValueError, match=f"^'{path}': record 5 has the label 10"):
        open_test_split(copy / FORM[1])


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.999])
def test_a_truncated_pickle_is_refused_by_name(copy: Path, share: float) -> None:
    path = copy / FORM[0] / "test_batch"
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(ValueError, match=f"^'{path}': byte [0-9]+: .*truncated"):
        open_test_split(copy)


def test_after_an_error_the_loader_can_be_used_when_the_file_is_mended(copy: Path) -> None:
    path = copy / FORM[0] / "test_batch"
    content = path.read_bytes()
    path.write_bytes(content[:-1000])
    with cifar10(copy, "test", batch_size=32, **RAW) as loader:
        with pytest.raises(ValueError, match="truncated"):
            next(iter(loader))
        path.write_bytes(content)
        require_equal(taken(loader), by_torchvision(copy, "test"))


_GOOD = batch_of_python("testing batch 1 of 1", _BATCH)
_PLACES = st.integers(0, 80) | st.integers(len(_GOOD) - 200, len(_GOOD) - 1)
_CHANGES = st.lists(
    st.tuples(_PLACES | st.integers(0, len(_GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=3
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=_CHANGES, cut=st.integers(0, len(_GOOD)) | st.none())
def test_a_damaged_batch_is_refused_or_read_as_pickle_does(
    changes: list[tuple[int, int]], cut: int | None
) -> None:
    content = bytearray(_GOOD[:cut])
    for place, value in changes:
        content[place : place + 1] = bytes([value])[: len(content) - place]
    try:
        found = ARCHIVES[0].records(bytes(content))
    except ValueError:
        return
    batch = pickle.loads(content, encoding="latin1")
    rows = found.content[found.starts[:, None] + np.arange(3072)]
    require_equal(Images(rows, found.labels), Images(batch["data"], np.array(batch["labels"])))
