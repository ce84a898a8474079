"""Archives of CIFAR that are packed, incomplete, damaged or hostile, and wrong arguments."""

import operator
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.memory import MemoryReader
from dali_storage.contract import registry
from dali_storage.loaders import Shard, cifar10
from dali_storage.loaders.transforms import presets
from tests.kit.cifar_archive import (
    BINARY,
    CLASSES,
    PYTHON,
    ROWS,
    make_images,
    pickled,
)
from tests.kit.process import descriptors, lanes

RAW: dict[str, Any] = {"device": "cpu", "num_threads": 1, "to": "numpy", "preset": presets.RAW}
BATCH = make_images(4, 10, seed=0)


def open_test_split(directory):
    """Read the files; no pipeline is needed for that."""
    with cifar10(directory, "test", batch_size=2, **RAW) as loader:
        len(loader)


# Contents


def batch(**changes):
    """A batch of 4 images with other items; those that are None are left out."""
    items = {"labels": [1, 2, 3, 4], "data": BATCH.pixels} | changes
    return pickled({key: value for key, value in items.items() if value is not None})


TEST, NAMES, TEXT = "test_batch", "batches.meta", "batches.meta.txt"
ARRAY = "'data' must be an array of n x 3072 bytes"
LABELS = "'labels' must be a list of integers"
LIST = "'label_names' must be a list of names"
SHORT = "its {} bytes are not .* of 3073 bytes"
WRONG: list[tuple[str, bytes | Callable[[bytes], bytes], str]] = [
    (TEST, batch(data=None), ARRAY),
    (TEST, batch(labels=[1, 2], data=[1, 2]), ARRAY),
    (TEST, batch(data=np.zeros((4, 3071), np.uint8)), ARRAY),
    (TEST, batch(data=np.zeros((4, 32, 96), np.uint8)), ARRAY),
    (TEST, batch(labels=[], data=np.zeros((0, 3072), np.uint8)), ARRAY),
    (TEST, batch(labels=[]), LABELS),
    (TEST, batch(labels=None), LABELS),
    (TEST, batch(labels=None, fine_labels=[1, 2, 3, 4]), LABELS),  # of CIFAR-100
    (TEST, batch(labels=["1", "2", "3", "4"]), LABELS),
    (TEST, batch(labels=[1, 2, 3]), "there are 4 images, but 3 labels"),
    (TEST, batch(labels=[1, 2, 3, 4, 5]), "there are 4 images, but 5 labels"),
    (TEST, batch(labels=[1, 2, 10, 4]), "record 2 has the label 10, but there are 10"),
    (NAMES, pickled({"num_vis": 3072}), LIST),
    (NAMES, pickled({"label_names": [1, 2]}), LIST),
    (NAMES, pickled({"label_names": []}), LIST),
    (NAMES, pickled({"label_names": CLASSES[:9]}), "it names 9 classes, not 10"),
    (NAMES, pickled({"label_names": [*CLASSES, "tram"]}), "it names 11 classes, not 10"),
    (TEXT, b"", "it names 0 classes, not 10"),
    (TEXT, "\n".join([*CLASSES, "tram"]).encode(), "it names 11 classes, not 10"),
    (TEXT, b"\xff\xfe", "'utf-8' codec"),
    *(
        (f"{TEST}.bin", operator.itemgetter(slice(left)), SHORT.format(left))
        for left in (0, 1, 3072, ROWS * 3073 - 1)
    ),
    (f"{TEST}.bin", lambda it: it[:15365] + b"\x0a" + it[15366:], "record 5 has the label 10"),
]


@pytest.mark.parametrize(("name", "change", "message"), WRONG)
def test_wrong_contents_are_refused_by_the_name_of_the_file(copy, name, change, message):
    path = copy / (BINARY if name.endswith((".bin", ".txt")) else PYTHON) / name
    path.write_bytes(change if isinstance(change, bytes) else change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"^'{path}': {message}"):
        open_test_split(path.parent)


def test_a_name_in_a_text_file_is_a_line(copy):
    names = ["fire truck", *CLASSES[1:]]
    (copy / BINARY / TEXT).write_text("\r\n".join([*names, "", " "]))
    with cifar10(copy / BINARY, "test", batch_size=2, **RAW) as loader:
        assert loader.classes == tuple(names)


# Files and directories


@pytest.mark.parametrize("name", [TEST, NAMES])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (Path.unlink, FileNotFoundError, "{name} missing"),
        (lambda it: (it.unlink(), os.mkfifo(it)), FileNotFoundError, "{name} missing"),
        (lambda it: (it.unlink(), it.mkdir()), FileNotFoundError, "{name} missing"),
        (lambda it: (it.unlink(), it.symlink_to(it)), OSError, "symbolic links: '{path}"),
        (lambda it: os.truncate(it, 1 << 40), ValueError, "^'{path}': 1099511627776 bytes are to"),
    ],
)
def test_a_file_that_is_missing_or_cannot_be_read_is_refused_by_its_name(
    copy, change, error, message, name
):
    path = copy / PYTHON / name
    change(path)
    with pytest.raises(error, match=message.format(name=name, path=path)):
        cifar10(path.parent, "test", batch_size=2, **RAW)


def test_all_missing_files_of_the_split_are_named(copy):
    for name in ("data_batch_3", "data_batch_5"):
        (copy / PYTHON / name).unlink()
    with pytest.raises(FileNotFoundError, match="data_batch_3, data_batch_5 missing") as caught:
        cifar10(copy, "train", batch_size=2, **RAW)
    assert "cifar-10-python.tar.gz" in str(caught.value)
    assert caught.value.filename == str(copy / PYTHON)
    open_test_split(copy)


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"])
def test_a_packed_archive_is_refused_with_the_command_that_extracts_it(tmp_path, name):
    folder = tmp_path / "my data"
    folder.mkdir()
    packed = folder / name
    packed.write_bytes(b"\x1f\x8b\x08")
    command = f"tar xf '{packed}' -C '{folder}'"
    for root in (packed, folder):
        with pytest.raises(ValueError, match=f"{re.escape(command)}$"):
            cifar10(root, "test", batch_size=2, **RAW)


class OnAGpu(MemoryReader):
    device = "gpu"


class WholeFiles(MemoryReader):
    reads_ranges = False


@pytest.mark.parametrize(
    ("reader", "options", "message"),
    [
        (OnAGpu, {}, r"backend 'memory' reads into GPU memory: .* \(mem='cpu'\)"),
        (WholeFiles, {}, "backend 'memory' reads whole files only"),
        (MemoryReader, {"backend_options": {"contents": [b"x"]}}, "must be empty for memory"),
        (MemoryReader, {"shard": Shard(0, ROWS + 1, 0)}, f"num_shards must be at most {ROWS}"),
    ],
)
def test_a_backend_or_shard_that_cannot_read_the_images_is_refused_at_the_first_use(
    cifar, monkeypatch, reader, options, message
):
    monkeypatch.setattr(registry, "load", lambda name: reader)
    before = lanes()
    with (
        cifar10(cifar, "test", batch_size=2, **RAW, **options) as loader,
        pytest.raises(ValueError, match=message),
    ):
        next(iter(loader))
    assert lanes() <= before
    assert not descriptors(below=cifar)
