"""Transforms: their pixels and random numbers are those of Pillow and torchvision."""

import itertools
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.auto_aug import auto_augment, rand_augment, trivial_augment
from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as tv

from dali_storage.loaders.transforms import (
    Auto,
    CentreCrop,
    ColourJitter,
    Cutout,
    Flip,
    Normalize,
    PadCrop,
    RandomErasing,
    RandomResizedCrop,
    ShorterSide,
)
from tests.kit.pixels import decoded, delivered, difference, files
from tests.kit.tiers import by_tier

CUBIC = InterpolationMode.BICUBIC
LONG = pytest.mark.long
LAYOUTS: list[Any] = ["HWC", "CHW"]


def apply(step, images, layout="HWC", *, repeat=1):
    """The results of a transform for images of one size, HWC, which it gets in one batch."""
    planes = layout == "CHW"
    batch = [np.ascontiguousarray(each.transpose(2, 0, 1)) for each in images] if planes else images

    @pipeline_def(batch_size=len(batch), num_threads=2, device_id=None)
    def define():
        return step(fn.external_source(lambda: batch, batch=True, layout=layout))

    pipeline = define()
    found = np.concatenate([np.array(pipeline.run()[0].as_tensor()) for _ in range(repeat)])
    return found.transpose(0, 2, 3, 1) if planes else found


def noise(number, *shape, seed=0):
    return list(np.random.default_rng(seed).integers(1, 256, (number, *shape), np.uint8))


def largest_gap(ours, theirs):
    """The statistic of Kolmogorov and Smirnov: between two empirical distributions."""
    ours, theirs = np.sort(ours), np.sort(theirs)
    at = np.concatenate([ours, theirs])
    below = [np.searchsorted(each, at, "right") / len(each) for each in (ours, theirs)]
    return float(np.abs(below[0] - below[1]).max())


# Sizes


@pytest.mark.parametrize("sides", [(1, 1), (5, 1000), (333, 100), (99, 100), (2500, 33)])
def test_the_longer_side_is_cut_off_as_in_torchvision(sides):
    (image,) = noise(1, *sides, 3)
    for size in (7, 100, 101):
        expected = v2.Resize(size)(Image.fromarray(image)).size[::-1]
        for layout in LAYOUTS:
            found = apply(ShorterSide(size, layout=layout), [image], layout)
            assert found.shape[1:3] == expected


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, *range(7, 17), 30, 31])
def test_the_centre_is_torchvisions(size, layout):
    images = [noise(1, *sides, 3)[0] for sides in ((9, 14), (10, 13), (11, 12), (12, 11), (30, 7))]
    expected = [np.asarray(v2.CenterCrop(size)(Image.fromarray(image))) for image in images]
    assert np.array_equal(apply(CentreCrop(size, layout=layout), images, layout), expected)


# Random parts


def windows(crop, sides, draws):
    """The starts and sizes that DALI draws."""

    @pipeline_def(batch_size=500, num_threads=2, device_id=None)
    def define():
        shape = types.Constant(np.array(sides, np.int64))
        return tuple(fn.random_crop_generator(shape, **crop.window()))

    pipeline = define()
    runs = [pipeline.run() for _ in range(draws // 500)]
    starts, sizes = (np.concatenate([np.array(run[k].as_tensor()) for run in runs]) for k in (0, 1))
    return starts, sizes


@pytest.mark.parametrize("cubic", [False, True])
def test_a_random_part_has_the_pixels_of_torchvision(photographs, cubic):
    crop = RandomResizedCrop(224, cubic=cubic, seed=5)
    mode = CUBIC if cubic else InterpolationMode.BILINEAR
    ours = delivered(photographs, transforms=[crop])
    theirs = []
    images = iter(decoded(photographs))

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def define():
        image = fn.external_source(lambda: next(images), batch=False)
        return image, *fn.random_crop_generator(image.shape()[:2], **crop.window())

    pipeline = define()
    for _ in files(photographs):
        image, start, size = (np.array(output[0]) for output in pipeline.run())
        theirs.append(tv.resized_crop(Image.fromarray(image), *start, *size, [224, 224], mode))
    found = difference(ours, [np.asarray(each) for each in theirs])
    assert (found.mean < 0.2, found.p99 <= 1, found.most <= 16) == (True, True, True)


@pytest.mark.parametrize("sides", [(375, 500), pytest.param((224, 224), marks=LONG)])
def test_random_parts_are_distributed_as_torchvisions(sides):
    draws = by_tier(5_000, 20_000)
    starts, sizes = windows(RandomResizedCrop(224, seed=11), sides, draws)
    torch.manual_seed(0)
    image = Image.new("RGB", sides[::-1])
    drawn = [v2.RandomResizedCrop(224).make_params([image]) for _ in range(draws)]
    theirs = np.array([[p["top"], p["left"], p["height"], p["width"]] for p in drawn])
    for ours, other in (
        (sizes.prod(1), theirs[:, 2] * theirs[:, 3]),
        (sizes[:, 1] / sizes[:, 0], theirs[:, 3] / theirs[:, 2]),
        (starts[:, 0], theirs[:, 0]),
        (starts[:, 1], theirs[:, 1]),
    ):
        assert largest_gap(ours, other) < 2.8 / draws**0.5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_padded_crop_is_any_square_of_the_padded_image(layout):
    (image,) = noise(1, 8, 8, 3)
    fill = (9.0, 99.0, 199.0)
    padded = np.asarray(tv.pad(Image.fromarray(image), 2, (9, 99, 199)))
    step = PadCrop(8, padding=2, fill=fill, layout=layout, seed=3)
    found = apply(step, [image] * 500, layout, repeat=5)
    places = itertools.product(range(5), range(5))
    squares = {padded[y : y + 8, x : x + 8].tobytes(): (y, x) for y, x in places}
    counts = Counter(squares[each.tobytes()] for each in found)
    assert len(counts) == 25
    assert min(counts.values()) > 60  # 100 each, with a standard deviation of 10
    assert max(counts.values()) < 140


# Flips, colours


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_flip_exchanges_left_and_right_of_some_images(layout):
    images = noise(400, 5, 7, 3)
    for probability in (0.0, 0.5, 0.25, 1.0):
        found = apply(Flip(probability, seed=7), images, layout)
        flipped = [np.array_equal(a, b[:, ::-1]) for a, b in zip(found, images, strict=True)]
        same = [np.array_equal(a, b) for a, b in zip(found, images, strict=True)]
        assert np.logical_xor(flipped, same).all()
        assert abs(np.mean(flipped) - probability) < 0.08


def test_normalization_is_torchvisions():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    images = noise(3, 20, 30, 3)
    expected = [tv.normalize(tv.to_tensor(image), mean, std) for image in images]
    found = apply(Normalize(mean, std), images)
    assert found.dtype == np.float32
    assert np.abs(found - torch.stack(expected).permute(0, 2, 3, 1).numpy()).max() <= 1e-6


JITTERS: dict[str, Any] = {
    "brightness": tv.adjust_brightness,
    "contrast": tv.adjust_contrast,
    "saturation": tv.adjust_saturation,
}


@pytest.mark.parametrize("kind", JITTERS)
def test_jittered_colours_are_those_of_pillow(photographs, kind):
    images = decoded(photographs, lambda image: image.resize((200, 150)))
    step = ColourJitter(**{kind: 0.6}, seed=21)
    number = list(JITTERS).index(kind)

    @pipeline_def(batch_size=len(images), num_threads=1, device_id=None)
    def factors():
        return fn.random.uniform(range=(0.4, 1.6), seed=21 + number)

    drawn = np.array(factors().run()[0].as_tensor()).tolist()
    assert (min(drawn) < 0.6, max(drawn) > 1.4) == (True, True)
    theirs = [
        np.asarray(JITTERS[kind](Image.fromarray(image), factor))
        for image, factor in zip(images, drawn, strict=True)
    ]
    assert difference(list(apply(step, images)), theirs).most <= (2 if kind == "saturation" else 1)


def test_all_colours_are_jittered_one_after_another():
    images = noise(20, 30, 30, 3)
    together = apply(ColourJitter(0.4, 0.4, 0.4, seed=3), images)
    for kind in JITTERS:
        images = list(apply(ColourJitter(**{kind: 0.4}, seed=3), images))
    assert np.array_equal(together, images)
    assert not np.array_equal(together, noise(20, 30, 30, 3))


def shrink(images):
    return fn.resize(images, size=(48.0, 64.0))


BINS = {"num_magnitude_bins": 13}
POLICIES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "trivial_augment_wide": (trivial_augment, "trivial_augment_wide", BINS),
    "rand_augment": (rand_augment, "rand_augment", {"n": 3, "m": 11, **BINS}),
    "auto_augment": (auto_augment, "auto_augment_image_net", {}),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_calls_dalis_with_its_options(monkeypatch, policy):
    module, name, options = POLICIES[policy]
    monkeypatch.setattr(module, name, lambda images, **given: (images, given))
    step = Auto(policy, operations=3, magnitude=11, bins=13, fill=7, seed=4)
    assert step("images") == ("images", {"fill_value": 7, "seed": 4, **options})


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_images_of_a_policy_are_dalis_and_no_warning_of_dali_is_seen(photographs, policy):
    module, name, options = POLICIES[policy]
    images = delivered(photographs, transforms=[shrink])

    @pipeline_def(batch_size=24, num_threads=2, device_id=None, enable_conditionals=True)
    def define():
        source = fn.external_source(lambda: images, layout="HWC")
        return getattr(module, name)(source, fill_value=7, seed=4, **options)

    with warnings.catch_warnings(record=True):  # of operators that DALI uses, and deprecates
        pipeline = define()
    theirs = np.array(pipeline.run()[0].as_tensor())
    step = Auto(policy, operations=3, magnitude=11, bins=13, fill=7, seed=4)
    with warnings.catch_warnings(record=True) as caught:
        ours = delivered(photographs, batch_size=24, transforms=[shrink, step])
    assert [str(each.message) for each in caught] == []
    assert np.array_equal(ours, theirs)
    assert not np.array_equal(ours, images)


# Parts replaced by a colour


def boxes(found):
    """Of images without zeros: the part that has become zero; (n, 4): y, x, height, width."""
    result = []
    for image in found:
        black = (image == 0).all(-1)
        rows, columns = np.flatnonzero(black.any(1)), np.flatnonzero(black.any(0))
        if not rows.size:
            result.append((0, 0, 0, 0))
            continue
        box = (rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1)
        assert black.sum() == box[2] * box[3]
        result.append(box)
    return np.array(result)


@pytest.mark.long
def test_erased_rectangles_are_distributed_as_torchvisions():
    draws, sides = 6000, (60, 48)
    found = boxes(apply(RandomErasing(1.0, seed=9), noise(500, *sides, 3), repeat=draws // 500))
    torch.manual_seed(0)
    image = torch.ones(3, *sides)
    drawn = [v2.RandomErasing(1.0).make_params([image]) for _ in range(draws)]
    theirs = np.array([[p["i"], p["j"], p["h"], p["w"]] for p in drawn])
    for ours, other in (
        (found[:, 2] * found[:, 3], theirs[:, 2] * theirs[:, 3]),
        (found[:, 2] / found[:, 3], theirs[:, 2] / theirs[:, 3]),
        (found[:, 0], theirs[:, 0]),
        (found[:, 1], theirs[:, 1]),
    ):
        assert largest_gap(ours, other) < 0.03


@pytest.mark.parametrize("layout", LAYOUTS)
def test_as_many_images_as_asked_for_have_an_erased_part(layout):
    step = RandomErasing(0.25, fill=(0, 0, 0), layout=layout, seed=9)
    found = apply(step, noise(1000, 20, 30, 3), layout)
    assert abs((boxes(found)[:, 2] > 0).mean() - 0.25) < 0.04


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_out_square_is_anywhere_in_the_image(layout):
    found = apply(Cutout(4, layout=layout, seed=2), noise(1500, 8, 9, 3), layout)
    counts = Counter(map(tuple, boxes(found).tolist()))
    assert set(counts) == {(y, x, 4, 4) for y in range(5) for x in range(6)}
    assert min(counts.values()) > 25  # 50 each, with a standard deviation of 7


def test_parts_are_filled_with_the_colour_given():
    images = noise(50, 8, 8, 3)
    for fill in ((1.0, 2.0, 250.0), (77.0,)):
        assert (apply(Cutout(8, fill), images) == np.broadcast_to(fill, 3)).all()
    found = apply(RandomErasing(1.0, fill=(1.0, 2.0, 250.0), seed=1), images)
    erased = (found == [1, 2, 250]).all(-1)
    assert (erased | (found == np.array(images)).all(-1)).all()
    assert erased.any((1, 2)).all()
