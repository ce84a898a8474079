"""Our loaders beside torchvision's: pixels are compared, then both are timed.

python examples/side_by_side.py --imagenet DIR --cifar DIR
"""

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import torch
from cifar10 import (  # type: ignore[import-not-found]
    get_cifar_iter_dali,
    get_cifar_iter_torch,
)
from imagenet import (  # type: ignore[import-not-found]
    get_imagenet_iter_dali,
    get_imagenet_iter_torch,
)
from make_pictures import synsets  # type: ignore[import-not-found]
from torch.testing import assert_close

parser = argparse.ArgumentParser(description=__doc__)
text = "has train/ and val/; default, without --cifar: pictures that are made"
parser.add_argument("--imagenet", metavar="DIR", help=text)
parser.add_argument("--cifar", metavar="DIR", help="has cifar-10-batches-py/")
here = "gpu" if torch.cuda.is_available() else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--threads", type=int, default=4, help="DALI's, or torch's processes")
parser.add_argument("--max-steps", type=int, metavar="N", help="compare and time N batches")
args = parser.parse_args()
imagenet = args.imagenet or (None if args.cifar else synsets(""))


def images_per_second(batches: Iterable[Any]) -> float:
    for _ in islice(batches, args.max_steps):
        pass  # opens the pipeline, fills the page cache
    start = time.perf_counter()
    images = sum(len(labels) for _, labels in islice(batches, args.max_steps))
    return images / (time.perf_counter() - start)


def side_by_side(name: str, ours: Callable[[str], Any], theirs: Callable[[str], Any]) -> None:
    pairs = zip(ours("val"), theirs("val"), strict=True)
    for (images, labels), (expected, classes) in islice(pairs, args.max_steps):
        assert_close(labels.cpu(), classes)
        # At most one step of 255, divided by a standard deviation of 0.224.
        assert_close(images.cpu(), expected, rtol=0, atol=0.018)
    first, second = (images_per_second(make("train")) for make in (ours, theirs))
    print(f"{name}: the same pixels; ours {first:,.0f}, torchvision {second:,.0f} images/s")


options: dict[str, Any] = {"batch_size": args.batch_size, "num_threads": args.threads}
if args.cifar:
    ours = partial(get_cifar_iter_dali, image_dir=args.cifar, device=args.device, **options)
    theirs = partial(get_cifar_iter_torch, image_dir=args.cifar, **options)
    side_by_side("CIFAR-10", ours, theirs)
if imagenet:
    options |= {"image_dir": imagenet, "device_id": 0, "num_gpus": 1, "crop": 224}
    ours = partial(get_imagenet_iter_dali, device=args.device, **options)
    side_by_side("ImageNet", ours, partial(get_imagenet_iter_torch, **options))
