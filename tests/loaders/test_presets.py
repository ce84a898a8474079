"""Presets: whole lists of transforms, compared with torchvision's."""

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def
from torchvision.transforms import InterpolationMode, v2

from dali_storage.loaders.datasets.compose import fused, seeded
from dali_storage.loaders.datasets.settings import Settings, chosen_transforms
from dali_storage.loaders.transforms import Normalize, RandomErasing, presets
from dali_storage.loaders.transforms.presets import Preset
from tests.kit.pixels import decoded, delivered, difference

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ALL = {name: each for name, each in vars(presets).items() if isinstance(each, Preset)}
LONG = pytest.mark.long  # DALI needs seconds for a pipeline with such a policy
TRAINED_ON = [
    ("IMAGENET_TRAIN", 224),
    pytest.param("IMAGENET_TRAIN_2", 176, marks=LONG),
    pytest.param("IMAGENET_TIMM", 224, marks=LONG),
    ("CIFAR10_FAST", 32),
]


@pytest.mark.parametrize(
    ("name", "resize", "mode", "most"),
    [
        ("IMAGENET_EVAL", 256, InterpolationMode.BILINEAR, 1),
        ("IMAGENET_EVAL_2", 232, InterpolationMode.BILINEAR, 1),
        ("IMAGENET_TIMM_EVAL", 256, InterpolationMode.BICUBIC, 8),
    ],
)
def test_images_for_evaluation_are_torchvisions(photographs, name, resize, mode, most):
    theirs = decoded(photographs, v2.Compose([v2.Resize(resize, mode), v2.CenterCrop(224)]))
    found = difference(delivered(photographs, preset=ALL[name], dtype="uint8"), theirs)
    assert (found.mean <= 0.2, found.p99 <= 1, found.most <= most) == (True, True, True)


@pytest.mark.parametrize(("name", "side"), TRAINED_ON)
def test_images_for_training_have_one_size_and_the_spread_of_the_data(photographs, name, side):
    ours = np.array(delivered(photographs, preset=ALL[name], batch_size=8, layout="CHW"))
    assert (ours.shape, ours.dtype) == ((24, 3, side, side), np.float32)
    assert abs(ours.mean()) < 1
    assert 0.3 < ours.std() < 2


@pytest.mark.parametrize("name", ["IMAGENET_EVAL", "IMAGENET_TRAIN", "CIFAR10_FAST"])
def test_pixels_of_a_preset_are_its_images_before_normalization(photographs, name):
    preset = ALL[name]
    ours = np.array(delivered(photographs, preset=preset, batch_size=8))
    pixels = np.array(delivered(photographs, preset=preset, batch_size=8, dtype="uint8"))
    assert pixels.dtype == np.uint8
    assert np.abs((pixels / 255 - preset.mean) / preset.std - ours).max() < 1e-6


def test_raw_images_are_as_decoded(jpegs):
    wide = delivered(jpegs, preset=presets.RAW, dtype="float32", layout="CHW")
    assert difference(wide, [each.transpose(2, 0, 1) for each in decoded(jpegs)]).most == 0
    assert wide[0].dtype == np.float32


# CIFAR, planes of 32 x 32 pixels without any decoding


def planes(steps, images, dtype="float32"):
    """What the loaders of CIFAR make of images, uint8, NCHW."""

    @pipeline_def(batch_size=len(images), num_threads=2, device_id=None)
    def define():
        result = fn.external_source(lambda: images, batch=True, layout="CHW")
        for step in fused(seeded(steps, 1), "CHW", "CHW", dtype):
            result = step(result)
        return result

    return np.array(define().run()[0].as_tensor())


def cifar(number):
    return np.random.default_rng(2).integers(0, 256, (number, 3, 32, 32), np.uint8)


# Colours after a normalization


def test_an_erased_part_has_the_mean_colour_in_pixels_too():
    preset = Preset((Normalize(MEAN, STD), RandomErasing(1.0, (0.3, 0.4))), "")
    images = np.full((50, 3, 32, 32), 7, np.uint8)
    normalised = (planes(preset.transforms, images) == 0).all(1)
    assert (normalised.mean((1, 2)) > 0.2).all()
    steps = chosen_transforms(Settings(batch_size=1, device="cpu", dtype="uint8"), preset)
    found = planes(steps, images, "uint8")
    pixels = (found == np.round(255 * np.array(MEAN))[:, None, None]).all(1)
    assert np.array_equal(pixels, normalised)  # the random numbers are the same
    assert (pixels | (found == 7).all(1)).all()


def test_half_precision_is_only_that_of_the_result():
    steps = (Normalize(MEAN, STD), RandomErasing(0.5))
    images = cifar(40)
    expected = planes(steps, images).astype(np.float16)
    found = planes(steps, images, "float16")
    assert found.dtype == np.float16
    assert np.array_equal(found, expected)
