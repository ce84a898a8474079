"""The transforms of well-known data sets, with the source of each number."""

from dataclasses import dataclass

from ._types import Transform
from .erasing import Cutout, RandomErasing
from .geometry import CentreCrop, PadCrop, RandomResizedCrop, ShorterSide
from .pixels import Auto, Flip, Normalize


@dataclass(frozen=True, slots=True)
class Preset:
    """A list of transforms.

    Attributes:
        transforms: the transforms from the decoded image (uint8, RGB) to a model's input.
        source: the source of the numbers.
    """

    transforms: tuple[Transform, ...]
    source: str

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean to subtract from pixels, as a share of 255; empty if there is none."""
        return next((t.mean for t in self.transforms if isinstance(t, Normalize)), ())

    @property
    def std(self) -> tuple[float, ...]:
        """The deviation to divide pixels by, as a share of 255; empty if there is none."""
        return next((t.std for t in self.transforms if isinstance(t, Normalize)), ())


_IMAGENET = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Over all pixels of the training set. The much copied 0.2023, 0.1994, 0.2010 are the means of the
# standard deviations of single images.
_CIFAR10 = Normalize((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768))
_CIFAR100 = Normalize((0.50707516, 0.48654887, 0.44091784), (0.26733429, 0.25643846, 0.27615047))
_CIFAR10_GREY = (125.0, 122.0, 113.0)

IMAGENET_TRAIN = Preset(
    (RandomResizedCrop(224), Flip(), _IMAGENET),
    "torchvision: references/classification/presets.py, ClassificationPresetTrain",
)
IMAGENET_EVAL = Preset(
    (ShorterSide(256), CentreCrop(224), _IMAGENET),
    "torchvision: references/classification/presets.py, ClassificationPresetEval",
)

IMAGENET_TRAIN_2 = Preset(
    (
        RandomResizedCrop(176),
        Auto("trivial_augment_wide"),
        Flip(),
        _IMAGENET,
        RandomErasing(0.1),
    ),
    "torchvision: references/classification, the second recipe of ResNet-50 (vision#3995): "
    "--auto-augment ta_wide --random-erase 0.1 --train-crop-size 176. The recipe also uses MixUp "
    "0.2, CutMix 1.0 and label smoothing 0.1, which are not done here",
)
IMAGENET_EVAL_2 = Preset(
    (ShorterSide(232), CentreCrop(224), _IMAGENET),
    "torchvision: as IMAGENET_TRAIN_2, --val-resize-size 232",
)

IMAGENET_TIMM = Preset(
    (
        RandomResizedCrop(224, cubic=True),
        Auto("rand_augment", operations=2, magnitude=9, bins=11, fill=128),
        Flip(),
        _IMAGENET,
        RandomErasing(0.25, area=(0.02, 1 / 3), aspect=(0.3, 1 / 0.3)),
    ),
    "timm: data/transforms_factory.py with rand-m9-inc1 (magnitude 9 of 10) and reprob 0.25. timm "
    "skips every second operation; DALI applies them all",
)
IMAGENET_TIMM_EVAL = Preset(
    (ShorterSide(256, cubic=True), CentreCrop(224), _IMAGENET),
    "timm: data/transforms_factory.py, crop_pct 0.875 and bicubic",
)

CIFAR10_TRAIN = Preset(
    (PadCrop(32, padding=4), Flip(), _CIFAR10),
    "He et al., Deep Residual Learning, 4.2; mean and std are of all pixels",
)
CIFAR10_FAST = Preset(
    (
        PadCrop(32, padding=2, fill=_CIFAR10_GREY),
        Cutout(4, fill=_CIFAR10_GREY),
        Flip(),
        _CIFAR10,
    ),
    "ffcv: examples/cifar/train_cifar.py, with the standard deviation of all pixels",
)
CIFAR10_EVAL = Preset((_CIFAR10,), CIFAR10_TRAIN.source)
CIFAR100_TRAIN = Preset((PadCrop(32, padding=4), Flip(), _CIFAR100), CIFAR10_TRAIN.source)
CIFAR100_EVAL = Preset((_CIFAR100,), CIFAR10_TRAIN.source)

RAW = Preset((), "the unchanged images; in batches, they must have one size")
