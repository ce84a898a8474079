"""Lists of transforms: what is done at once, seeds, and what is refused."""

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, pipeline_def
from PIL import Image
from torchvision.transforms import functional as tv

from dali_storage.loaders.datasets.compose import decode, fused, seeded
from dali_storage.loaders.transforms import (
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
from tests.kit.pixels import decoded, delivered, difference

dali_torchvision = pytest.importorskip("nvidia.dali.experimental.torchvision")
NORMALIZE = Normalize((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


def same(images):
    return images


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_what_is_done_at_once_is_what_is_done_one_by_one(photographs, layout):
    crop, flip = RandomResizedCrop(100, seed=1), Flip(seed=2)
    common = {"batch_size": 6, "layout": layout}
    at_once = delivered(photographs, transforms=[crop, flip, NORMALIZE], **common)
    steps = [same, crop, same, flip, same, NORMALIZE, same]
    assert np.array_equal(at_once, delivered(photographs, transforms=steps, **common))
    assert at_once[0].shape == ((100, 100, 3) if layout == "HWC" else (3, 100, 100))


def test_a_flip_and_a_normalization_are_one_pass_and_nothing_is_none():
    flip = Flip(seed=1)
    assert len(fused((flip, NORMALIZE), "HWC", "CHW", "float16")) == 1
    assert len(fused((flip,), "HWC", "CHW", "uint8")) == 1
    assert len(fused((), "HWC", "CHW", "float32")) == 1
    assert fused((), "HWC", "HWC", "uint8") == ()
    assert len(fused((NORMALIZE, RandomErasing()), "HWC", "CHW", "float32")) == 2


def test_a_function_of_the_user_gets_rows_of_pixels_even_of_planes():
    seen = []

    def look(images):
        seen.append(fn.get_property(images, key="layout"))
        return images

    @pipeline_def(batch_size=1, num_threads=1, device_id=None)
    def define():
        images = fn.external_source(lambda: np.zeros((1, 3, 4, 5), np.uint8), layout="CHW")
        for step in fused((look, CentreCrop(2)), "CHW", "CHW", "uint8"):
            images = step(images)
        return images, *seen

    images, layout = define().run()
    assert bytes(np.array(layout[0])) == b"HWC"
    assert images.layout() == "CHW"
    assert images.shape() == [(3, 2, 2)]


def test_every_random_transform_gets_another_seed():
    steps = (Flip(), Flip(), PadCrop(32), CentreCrop(3), same, Flip(seed=7))
    seeds = [getattr(step, "seed", None) for step in seeded(steps, 1)]
    assert seeds[3:] == [None, None, 7]
    assert len(set(seeds[:3])) == 3
    assert seeded(steps, 1) == seeded(steps, 1)
    others = [getattr(step, "seed", None) for step in seeded(steps, 2)]
    assert not set(seeds[:3]) & set(others[:3])


@pytest.mark.long
def test_a_list_of_dalis_torchvision_and_ours_ends_as_asked_for(photographs):
    steps = [dali_torchvision.Resize((50, 60)), NORMALIZE, Flip(1.0)]
    options = {"layout": "CHW", "dtype": "float16", "batch_size": 4}
    ours = delivered(photographs, transforms=steps, **options)
    assert (ours[0].shape, ours[0].dtype) == ((3, 50, 60), np.float16)
    theirs = decoded(photographs, lambda image: image.resize((60, 50), Image.Resampling.BILINEAR))
    expected = [
        tv.normalize(tv.to_tensor(image[:, ::-1].copy()), NORMALIZE.mean, NORMALIZE.std).numpy()
        for image in theirs
    ]
    found = difference(ours, expected)  # of pixels, at most 1 but for borders
    assert (found.p99 < 0.04, found.mean < 0.01) == (True, True)


# On a GPU; without one, only the graph can be made


def test_all_transforms_can_follow_a_decoder_on_a_gpu():
    steps = (
        RandomResizedCrop(64),
        ColourJitter(0.4, 0.4, 0.4),
        ShorterSide(40),
        CentreCrop(32),
        PadCrop(32),
        Cutout(4),
        Flip(),
        NORMALIZE,
        RandomErasing(),
    )
    hints = {"preallocate_width_hint": 100}
    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=0)
    with pipeline:
        for start in (0, 1):
            encoded = fn.external_source(name=f"encoded{start}")
            images, left = decode(encoded, steps[start:], "gpu", hints)
            assert (images.device, left) == ("gpu", steps[1:])
            for step in fused(seeded(left, 1), "HWC", "CHW", "float32"):
                images = step(images)
                assert images.device == "gpu"
        with pytest.raises(KeyError, match="no_such_hint"):
            decode(encoded, (), "gpu", {"no_such_hint": 1})
