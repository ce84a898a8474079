"""Wrong calls, refused before anything is opened; and pipelines, refused at the first use."""

import sys
from typing import Any

import pytest
from nvidia.dali import fn, pipeline_def
from torchvision.transforms import v2

import dali_storage.loaders.datasets.images as images_module
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.loaders import Loader, Shard, cifar10, cifar100, image_folder, imagenet
from dali_storage.loaders.transforms import Auto, Flip, Normalize, presets
from dali_storage.loaders.transforms.presets import Preset
from tests.kit.cifar_archive import BINARY, PYTHON
from tests.kit.loading import FILE, Make, two_readers

dali_torchvision = pytest.importorskip("nvidia.dali.experimental.torchvision")

OPTIONS: dict[str, Any] = {"batch_size": 4, "device": "cpu"}
GIVEN: dict[Any, dict[str, Any]] = {
    image_folder: {"root": "jpegs", "train": True, **OPTIONS},
    imagenet: {"root": "jpegs", "split": "train", **OPTIONS},
    cifar10: {"root": f"cifar/{PYTHON}", "split": "test", **OPTIONS},
    cifar100: {"root": f"cifar/{PYTHON}", "split": "test", **OPTIONS},
    Loader: {"make": Make(), "to": "numpy"},
    Auto: {},
}
NO_TRANSFORM: list[tuple[Any, str]] = [
    (v2.Resize(8), r"Resize.* is not a function of a DataNode; .*dali_storage.loaders.transforms"),
    (Flip, "Flip.* is not a function of a DataNode"),
    ("flip", "'flip' is not a function"),
    (dali_torchvision.Resize(8, device="gpu"), "device='gpu', but .* cpu: .* device='cpu'"),
]
CALLS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [  # ...: left out
    (image_folder, {"batchsize": 3}, TypeError, r"image_folder\(\): .*unexpected .*'batchsize'"),
    (image_folder, {"batch_size": ...}, TypeError, r"image_folder\(\): missing .*'batch_size'"),
    (image_folder, {"train": ...}, TypeError, r"image_folder\(\): missing .*'train'"),
    *(
        (image_folder, {name: value}, ValueError, f"{name} must be .* not {value!r}")
        for name, value in (
            *(("batch_size", 0), ("num_threads", 0), ("prefetch_queue_depth", 0), ("seed", -1)),
            *(("device", "cuda"), ("device_id", -1), ("shuffle", "always"), ("dtype", "float64")),
            *(("layout", "NCHW"), ("on_error", "skip")),
        )
    ),
    (image_folder, {"max_replaced": 3}, ValueError, "max_replaced needs on_error='replace'"),
    (image_folder, {"preset": "RAW"}, TypeError, "preset must be a Preset or None, not 'RAW'"),
    (
        image_folder,
        {"preset": presets.RAW, "transforms": []},
        ValueError,
        "preset and transforms cannot both",
    ),
    (image_folder, {"backend": "gds"}, ValueError, "unknown backend 'gds'"),
    (image_folder, {"backend_options": {"depth": 3}}, TypeError, "python-file' has no option dept"),
    (
        image_folder,
        {"dtype": "uint8", "transforms": [Normalize((0.5,), (0.5,))]},
        ValueError,
        "dtype='uint8' .* leave Normalize out of transforms",
    ),
    *((image_folder, {"transforms": [Flip(), it]}, TypeError, says) for it, says in NO_TRANSFORM),
    (image_folder, {"preset": Preset((Flip,), "")}, TypeError, NO_TRANSFORM[1][1]),
    *(
        (image_folder, {"classes": classes}, ValueError, words)
        for classes, words in (
            (["c0", "c1", "c2", "c3"], r"class directories of '.*': missing: 'c3'$"),
            (["c0", "c2"], r": not expected: 'c1'$"),
            (["c0", "c1", "d"], r": missing: 'd'; not expected: 'c2'$"),
            (["c2", "c1", "c0"], "in the order of the labels, which is 'c0', 'c1', 'c2'"),
            ([f"{n}" for n in range(9)], "missing: '0', '1', '2', '3', '4' and 4 more"),
        )
    ),
    *(
        (image_folder, {"root": root}, error, words)
        for root, error, words in (
            ("empty", ValueError, r"has no class directories: expected root/class/image"),
            ("jpegs/c0/0.jpg", ValueError, r"0\.jpg' is neither a directory nor an index"),
            ("nowhere", FileNotFoundError, "nowhere"),
            ("S3://images", ValueError, r"^root must be a local path or a URL .*: write s3://"),
            (None, ValueError, "root=None, but backend 'python-file' does not know"),
        )
    ),
    (imagenet, {"split": "test"}, ValueError, "split must be 'train' or 'val', not 'test'"),
    (imagenet, {"classes": ["n01440764"]}, TypeError, r"imagenet\(\): .*'classes'"),
    (imagenet, {"root": f"cifar/{PYTHON}/test_batch"}, NotADirectoryError, "test_batch"),
    (imagenet, {"root": "nowhere"}, FileNotFoundError, "nowhere"),
    (cifar10, {"split": "val"}, ValueError, "split must be 'train' or 'test', not 'val'"),
    (cifar10, {"root": 10}, TypeError, r"root must be str, bytes or os\.PathLike, not 10"),
    (cifar10, {"cutout": 4}, TypeError, r"cifar10\(\): .*'cutout'"),
    (cifar10, {"root": "cifar/cifar-100-python"}, FileNotFoundError, "no CIFAR-10 here: no cifar-"),
    (cifar10, {"root": "absent"}, FileNotFoundError, "absent'"),
    (cifar10, {"root": f"cifar/{PYTHON}/test_batch"}, ValueError, "be a directory, not the file"),
    # Only an archive is said to be packed.
    (cifar10, {"root": f"cifar/{BINARY}/batches.meta.txt"}, ValueError, r"t'; give the directory"),
    (cifar10, {"weights": "balanced"}, ValueError, "weights is for images in files of their own"),
    (cifar10, {"check": True}, ValueError, "check is for images in files of their own"),
    (cifar100, {}, FileNotFoundError, "no CIFAR-100 here: no cifar-100-python or"),
    (Loader, {"make": 5}, TypeError, "make must be callable, not 5"),
    (
        Loader,
        {"last_batch": "fill"},
        ValueError,
        "last_batch must be .*, .drop., .pad., not",
    ),
    (Loader, {"to": "paddle"}, ValueError, "to must be 'torch', 'jax', 'numpy' or callable, not"),
    (Loader, {"shard": 1}, TypeError, "shard must be a Shard, not 1"),
    (Loader, {"to": "torch"}, BackendUnavailable, "pip install torch"),
    (Loader, {"to": "jax"}, BackendUnavailable, "pip install jax"),
    (Auto, {"policy": "ta_wide"}, ValueError, r"policy must be one of .*, not 'ta_wide'"),
]


@pytest.mark.parametrize(("call", "change", "error", "words"), CALLS)
def test_a_wrong_call_is_refused_at_once(
    jpegs, cifar, tmp_path, monkeypatch, call, change, error, words
):
    (tmp_path / "jpegs").symlink_to(jpegs)
    (tmp_path / "cifar").symlink_to(cifar)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "jax", None)
    if change == {"to": "torch"}:  # others need it
        monkeypatch.setitem(sys.modules, "torch", None)
    given = {name: it for name, it in (GIVEN[call] | change).items() if it is not ...}
    with pytest.raises(error, match=words):
        call(**given)


@pytest.mark.parametrize("epoch", [-1, 1.0, True, "1", None])
def test_an_epoch_that_is_no_natural_number_is_refused(loader, epoch):
    with pytest.raises(ValueError, match="epoch must be an integer from 0 on"):
        loader(Make()).set_epoch(epoch)


def test_a_gpu_that_is_not_there_is_refused_before_dali_fails(jpegs, monkeypatch):
    with pytest.raises(BackendUnavailable, match="finds no GPU here; give device='cpu'"):
        image_folder(jpegs, train=True, batch_size=4)
    monkeypatch.setattr(images_module, "GetCUDADeviceCount", lambda: 2)
    with pytest.raises(BackendUnavailable, match="device_id=2: CUDA finds only 2"):
        image_folder(jpegs, train=True, batch_size=4, device_id=2)
    loader = image_folder(jpegs, train=True, batch_size=4, shard=Shard(2, 3, 2))
    with pytest.raises(BackendUnavailable, match="device_id=2: CUDA finds only 2"):
        len(loader)
    # The GPU is that of the shard, and DALI is asked for it.
    loader = image_folder(jpegs, train=True, batch_size=4, shard=Shard(1, 3, 1))
    with pytest.raises(RuntimeError, match=r"CUDA is not available|InsufficientDriver"):
        len(loader)


def of_another_shard(checkpoint, **_):
    return Make()(checkpoint=checkpoint, shard_id=1, num_shards=2)


PIPELINES: list[tuple[Any, str, int]] = [  # the last: how many readers it has
    (Make(order={"pad_last_batch": False}), "pad_last_batch=True", 1),
    (Make(options={"exec_dynamic": False}), "exec_dynamic=False", 1),
    (Make(options={"exec_async": False}), "exec_async=False", 1),
    (Make(options={"enable_checkpointing": False}), "enable_checkpointing=True", 1),
    (Make(file=fn.readers.file), "no reader 'Reader' of dali_storage", 0),
    (Make(samples=3), "last_batch='drop'.*3 samples.* of 4", 1),
    (of_another_shard, r"shard_id=0, num_shards=1, .*shard_id=1, num_shards=2", 1),
    (two_readers(Make(), files=[str(FILE)] * 21, labels=None), "'epoch_size': 21", 2),
    (two_readers(Make(), num_shards=2), "'number_of_shards': 2", 2),
    (two_readers(Make(), fn.readers.file), "no reader 'Masks' of dali_storage", 1),
    (
        two_readers(Make(order={"on_error": "replace", "pad_last_batch": True})),
        "works on one reader.*'Reader', 'Masks' belong together",  # an image and its mask
        2,
    ),
]


@pytest.mark.parametrize(("make", "words", "readers"), PIPELINES, ids=[it[1] for it in PIPELINES])
def test_a_pipeline_that_cannot_be_used_is_refused_and_its_readers_closed(
    loader, closed, make, words, readers
):
    one = loader(make, last_batch="drop")
    with pytest.raises(ValueError, match=words) as raised:
        len(one)
    assert len(closed) == readers  # although the traceback refers to the pipeline
    assert raised.traceback


@pytest.mark.parametrize(
    "make",
    [
        lambda: None,
        lambda checkpoint: None,
        lambda checkpoint, shard_id: None,
        pipeline_def(lambda: None, batch_size=1, num_threads=1, device_id=None),
    ],
)
def test_a_make_that_does_not_take_its_arguments_is_refused_with_their_names(loader, make):
    with pytest.raises((TypeError, AssertionError)) as raised:
        len(loader(make))
    assert "make(checkpoint=" in raised.value.__notes__[0]


def test_a_make_without_a_pipeline_is_refused(loader):
    with pytest.raises(TypeError, match=r"make\(\) must return a pipeline of DALI, not 5"):
        len(loader(lambda **_: 5))
