"""Random graphs of readers and random operators: each draws the same as with DALI's readers."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, ops, pipeline_def, types
from nvidia.dali.pipeline import do_not_convert

from dali_storage import readers
from dali_storage.ops.readers import File
from tests.kit import versions
from tests.kit.parity import numbered, seeds, some_options, some_order, take
from tests.kit.pictures import make_pictures
from tests.kit.tiers import by_tier

pytestmark = pytest.mark.usefixtures("no_deprecations")

OF_FILES = ["coco", "file", "nemo_asr", "numpy", "sequence"]
OF_CONTAINERS = ["webdataset", "tfrecord", "mxnet", *["caffe", "caffe2"] * versions.has("2.4")]
SAMPLES, BATCHES = 24, 7  # as many as there are pictures
MOST_SHARDS = SAMPLES - 1  # of which `some_order()` may give one more

DRAWS = [
    partial(fn.random.uniform, range=(-1, 1), shape=(2, 3)),
    partial(fn.random.normal, mean=2.0),
    partial(fn.random.coin_flip, probability=0.3),
    partial(fn.random.beta, alpha=2.0),
    partial(fn.random.choice, 9),
    fn.batch_permutation,
    partial(fn.roi_random_crop, roi_start=[1, 2], roi_end=[9, 12], crop_shape=[4, 5]),
]
OF_NUMBERS = [fn.random.coin_flip, fn.random.normal, fn.random.uniform]
OF_MASKS = [fn.segmentation.random_mask_pixel, fn.segmentation.random_object_bbox]
OF_JPEGS = [
    fn.decoders.image_random_crop,
    lambda jpegs, **own: fn.random_crop_generator(fn.peek_image_shape(jpegs), **own),
]
OF_IMAGES = [
    partial(fn.random_resized_crop, size=(8, 9)),
    partial(fn.noise.gaussian, stddev=9.0),
    partial(fn.noise.salt_and_pepper, prob=0.3),
    fn.noise.shot,
]
BOXES = np.array([[0.1, 0.2, 0.6, 0.9], [0.3, 0.1, 0.8, 0.5]], np.float32)

DALIS, OURS = (fn.readers, ops.readers.File), (readers, File)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A maker of each reader by its name, and a directory of pictures."""
    root = tmp_path_factory.mktemp("data")
    made = {it: numbered(it, root / it, [SAMPLES]) for it in OF_FILES + OF_CONTAINERS}
    return made | {"pictures": str(make_pictures(root / "pictures"))}


class Graph:
    """A random graph; with the same random numbers it is the same with the readers of each side."""

    def __init__(self, random: Random, data: dict[str, Any], side: tuple[Any, Any]) -> None:
        self.random, self.data, (self.readers, self.file) = random, data, side
        self.jpegs: list[Any] = []
        self.numbers: list[Any] = []  # scalars of type float
        self.outputs: list[Any] = []

    def define(self, conditional: bool) -> tuple[Any, ...]:
        """Add operators to the current pipeline, and return its outputs."""
        steps = [self.read_numbers] * 2 + [self.read_pictures, self.feed, self.draw, self.draw]
        steps += [self.draw_by_numbers, self.draw_by_pictures, self.draw_apart]
        steps = [*map(do_not_convert, steps)]  # which would take most of the time
        steps += [self.choose] * conditional
        count = self.random.randint(3, 10)
        for step in [steps[2], *do_not_convert(self.random.choices)(steps, k=count)]:
            step()
        self.outputs.append(self.numbers[-1])
        do_not_convert(self.random.shuffle)(self.outputs)
        return tuple(self.outputs)

    def own(self) -> dict[str, Any]:
        """A seed for a few operators."""
        return {"seed": self.random.choice([1, 99])} if self.random.random() < 0.15 else {}

    def add(self, found: Any, number: Any = None) -> None:
        """Deliver most of what an operator returns; others may use the number."""
        if self.random.random() < 0.8:  # DALI drops what is not used
            self.outputs += found if isinstance(found, (list, tuple)) else [found]
        if number is not None:
            self.numbers.append(scalar(number))

    def read(self) -> Any:
        """Numbers by a reader."""
        kind = self.random.choice(OF_FILES + OF_CONTAINERS)
        by_epoch = kind != "sequence" and not kind.startswith("caffe")
        contained = kind in OF_CONTAINERS
        order = some_order(self.random, MOST_SHARDS, by_container=contained, by_epoch=by_epoch)
        return self.data[kind](self.readers)(**order)

    def read_numbers(self) -> None:
        found = self.read()
        self.add(found, found)

    def read_pictures(self) -> None:
        given = some_order(self.random, MOST_SHARDS, by_container=False)
        given["file_root"] = self.data["pictures"]
        by_class = self.random.random() < 0.5
        jpegs, labels = self.file(**given)() if by_class else self.readers.file(**given)
        self.jpegs.append(jpegs)
        self.add(labels, labels)

    def feed(self) -> None:
        self.add([], fn.external_source(of_user, batch=False, dtype=types.FLOAT, ndim=0))

    def draw(self) -> None:
        found = self.random.choice(DRAWS)(**self.own())
        self.add(found, found)

    def draw_apart(self) -> None:
        """Of constants, which lead to no reader."""
        masks = fn.copy(types.Constant(np.arange(30, dtype=np.int32).reshape(5, 6) % 4))
        self.add(self.random.choice(OF_MASKS)(masks, **self.own()))
        labels = types.Constant(np.array([1, 2], np.int32))
        self.add(fn.random_bbox_crop(fn.copy(types.Constant(BOXES)), labels, **self.own()))

    def draw_by_numbers(self) -> None:
        number = self.random.choice(self.numbers)
        found = self.random.choice(OF_NUMBERS)(number, **self.own())
        self.add(found * fn.random.uniform(range=(1, 2)), found)

    def draw_by_pictures(self) -> None:
        jpegs = self.random.choice(self.jpegs)
        if self.random.random() < 0.3:
            return self.add(self.random.choice(OF_JPEGS)(jpegs, **self.own()))
        image = fn.decoders.image(jpegs)
        several = [image, fn.flip(image)] if self.random.random() < 0.3 else image
        return self.add(self.random.choice(OF_IMAGES)(several, **self.own()))

    def choose(self) -> None:
        number, other = self.random.choices(self.numbers, k=2)
        flips = fn.random.coin_flip(dtype=types.BOOL)
        found = one_of(flips, other > 2.0, number, do_not_convert(self.read))
        self.add(found, found)


@do_not_convert
def of_user(info: types.SampleInfo) -> Any:
    return np.float32(info.idx_in_epoch)


def one_of(flips: Any, large: Any, number: Any, read: Callable[[], Any]) -> Any:
    """Readers and random operators in branches, for each sample."""
    if flips:
        number = scalar(read()) + fn.random.uniform(seed=5)
    elif large:
        number = number * fn.random.normal()
    else:
        number = number + fn.random.uniform()
    return number


def scalar(found: Any) -> Any:
    return fn.reductions.max(fn.cast(found, dtype=types.FLOAT))


@pytest.mark.parametrize("seed", seeds(by_tier(20, 500)))
def test_each_operator_draws_as_with_dalis_readers(seed: int, data: dict[str, Any]) -> None:
    random = Random(seed)
    conditional, cut = random.random() < 0.5, random.randint(0, BATCHES)
    options = some_options(random) | {"batch_size": random.randint(1, 6), "num_threads": 2}
    if conditional and not options["exec_dynamic"]:
        # Restored there, also DALI's own pipelines differ, or fail with "bad any_cast".
        options["enable_checkpointing"] = False

    def make(side: tuple[Any, Any], **more: Any) -> Pipeline:
        @pipeline_def(device_id=None, enable_conditionals=conditional, **options, **more)
        def define() -> Any:
            return Graph(Random(seed), data, side).define(conditional)

        return define()

    expected, pipeline = take(make(DALIS), BATCHES), make(OURS)
    found = take(pipeline, cut)
    if options["enable_checkpointing"]:
        pipeline = make(OURS, checkpoint=pipeline.checkpoint())
    assert found + take(pipeline, BATCHES - cut) == expected
