"""image_folder(): options, order, labels, backends, errors."""

import inspect
import os
import shutil
from itertools import product
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from nvidia.dali import fn
from nvidia.dali.pipeline import pipeline_def
from PIL import Image

from dali_storage.loaders import Shard, cifar10, image_folder, imagenet
from dali_storage.loaders.datasets.settings import Options, Settings
from dali_storage.loaders.transforms import CentreCrop, Flip, RandomResizedCrop
from tests.kit.layouts import make_map
from tests.kit.mapped import NEEDS_ROOT
from tests.kit.pixels import delivered

SMALL: dict[str, Any] = {"device": "cpu", "num_threads": 1, "transforms": [CentreCrop(8)]}


def labels_of(root, epochs=1, **options):
    """The labels that a loader gives in each epoch."""
    with image_folder(root, **{"batch_size": 4, **SMALL, **options}) as loader:
        return [[int(each) for _, labels in loader for each in labels] for _ in range(epochs)]


def numbered(root, count):
    """As many classes with one image each, so that a label names its image."""
    for number in range(count):
        (root / f"{number:03d}").mkdir(parents=True)
        pixels = np.full((8, 8, 3), number, np.uint8)
        Image.fromarray(pixels).save(root / f"{number:03d}" / "image.png")
    return root


# Options


def test_settings_and_options_have_the_same_names_and_types():
    assert get_type_hints(Options) == get_type_hints(Settings)
    required = [
        name
        for name, parameter in inspect.signature(Settings).parameters.items()
        if parameter.default is parameter.empty
    ]
    assert sorted(Options.__required_keys__) == required == ["batch_size"]


@pytest.mark.parametrize("function", [image_folder, imagenet, cifar10])
def test_the_signature_shows_every_option_and_its_default(function):
    shown = inspect.signature(function).parameters
    common = inspect.signature(Settings).parameters
    assert list(shown)[-len(common) :] == list(common)
    assert {name: shown[name].default for name in common} == {
        name: parameter.default for name, parameter in common.items()
    }
    assert "options" not in shown
    assert function.__doc__


# Batches


def test_layout_and_type_are_as_asked_for(jpegs):
    shapes = {"CHW": (2, 3, 8, 8), "HWC": (2, 8, 8, 3)}
    for layout, dtype in product(shapes, ("float32", "float16", "uint8", None)):
        options = {"layout": layout, "dtype": dtype, **SMALL}
        with image_folder(jpegs, train=False, batch_size=2, **options) as loader:
            images, _ = next(iter(loader))
        assert tuple(images.shape) == shapes[layout]
        assert images.dtype == getattr(torch, dtype or "uint8")
        assert images.max() > 100  # nothing has normalised them


def test_the_pipeline_has_the_threads_queue_seed_and_shard_that_were_asked_for(jpegs):
    options = {**SMALL, "num_threads": 3, "prefetch_queue_depth": 4, "seed": 7}
    shard = Shard(1, 2, 1)
    with image_folder(jpegs, train=True, batch_size=5, shard=shard, **options) as loader:
        pipeline = loader.pipeline
        assert (pipeline.num_threads, pipeline.prefetch_queue_depth) == (3, 4)
        assert (pipeline.max_batch_size, pipeline.seed) == (5, 8)
        assert pipeline.device_id is None
        assert pipeline.reader_meta("Reader")["number_of_shards"] == 2


# Order


def test_training_is_shuffled_anew_in_every_epoch(tmp_path):
    root = numbered(tmp_path, 40)
    first, second = labels_of(root, 2, train=True)
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
    assert first not in (list(range(40)), labels_of(root, train=True, seed=1)[0])
    for options in ({}, {"shuffle": True}, {"shuffle": "epoch"}):
        assert labels_of(root, 2, train=True, **options) == [first, second]


def test_evaluation_keeps_the_order_of_the_names(tmp_path):
    root = numbered(tmp_path, 10)
    assert labels_of(root, 2, train=False) == [list(range(10))] * 2
    assert labels_of(root, train=True, shuffle=False) == [list(range(8))]


def test_shuffle_by_a_window_is_dalis_default_shuffle(tmp_path):
    root = numbered(tmp_path, 40)

    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_checkpointing=True)
    def define():
        return fn.readers.file(
            file_root=str(root), random_shuffle=True, seed=5, pad_last_batch=True
        )[1]

    pipeline = define()
    expected = [np.array(pipeline.run()[0].as_tensor()).ravel().tolist() for _ in range(20)]
    found = labels_of(root, 2, train=True, shuffle="window", seed=5)
    assert [*found[0], *found[1]] == [label for batch in expected for label in batch]


def flips(root, **options):
    """Of images that are black to the left and white to the right: which are flipped."""
    steps = [Flip()]
    found = delivered(root, train=True, batch_size=20, **{"transforms": steps, **options})
    return [int(image[0, 0, 0]) // 255 for image in found]


def test_random_transforms_change_with_every_batch_rank_and_seed(tmp_path):
    (tmp_path / "class").mkdir()
    half = np.repeat(np.array([0, 255], np.uint8), 4)
    image = Image.fromarray(np.broadcast_to(half[:, None], (8, 8, 3)).copy())
    for number in range(80):
        image.save(tmp_path / "class" / f"{number}.png")
    ranks = [flips(tmp_path, shard=Shard(rank, 2, rank)) for rank in (0, 1)]
    assert ranks[0] != ranks[1]
    assert all(10 < sum(rank) < 30 for rank in ranks)
    assert ranks[0][:20] != ranks[0][20:]
    assert flips(tmp_path, shard=Shard(0, 2, 0)) == ranks[0]
    assert flips(tmp_path, shard=Shard(0, 2, 0), seed=5) != ranks[0]
    drawn = [
        flips(tmp_path, transforms=[flip_by_default_seed], shard=Shard(rank, 2, rank))
        for rank in (0, 1)
    ]
    assert drawn[0] != drawn[1]


def flip_by_default_seed(images):
    return fn.flip(images, horizontal=fn.random.coin_flip())


# Classes


def test_classes_are_the_directories_in_byte_order(tmp_path):
    for name in ("b", "a", "B", "a b", "é", "10", "9"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "image.jpg")
    expected = ["10", "9", "B", "a", "a b", "b", "é"]
    root = os.fsencode(tmp_path)
    with image_folder(root, train=False, batch_size=7, classes=expected, **SMALL) as loader:
        assert loader.classes == tuple(expected)
        assert next(iter(loader))[1].tolist() == list(range(7))
        assert repr(loader) == f"<Loader: image_folder of {str(tmp_path)!r}, 7 classes>"


def test_a_class_without_images_is_refused_by_name(jpegs, tmp_path):
    root = shutil.copytree(jpegs, tmp_path / "root")
    (root / "empty").mkdir()
    (root / "other").mkdir()
    (root / "other" / "image.heic").write_bytes(b"x")
    message = r"no images in .* 'empty', 'other' of .*\*\.jpg"
    with (
        image_folder(root, train=True, batch_size=4, **SMALL) as loader,
        pytest.raises(ValueError, match=message),
    ):
        len(loader)


# Backends


@NEEDS_ROOT
def test_a_backend_that_knows_the_files_needs_no_root(root, jpegs, tmp_path):
    copied = shutil.copytree(jpegs, root / "copy")
    bmap = {"bmap": str(make_map(copied, tmp_path / "bmap.json"))}
    options = {"backend": "block", "backend_options": bmap}
    common = {"train": True, "batch_size": 4, "transforms": [RandomResizedCrop(16)]}
    expected = delivered(jpegs, **common)
    for place in (copied, None):
        assert np.array_equal(delivered(place, **common, **options), expected)
    with image_folder(None, train=False, batch_size=4, **options, **SMALL) as loader:
        assert loader.classes == ("c0", "c1", "c2")
        assert repr(loader) == "<Loader: image_folder of the map, 3 classes>"
