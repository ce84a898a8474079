"""Two data sets by a ratio that changes, balanced classes, and a damaged file that is replaced.

python examples/mixture.py    # or: --data DIR
"""

import argparse
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from make_pictures import fresh, pictures  # type: ignore[import-not-found]
from nvidia.dali import fn, pipeline_def

from dali_storage import readers
from dali_storage.loaders import Loader, image_folder

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=pictures, default="", metavar="DIR", help="has train/ and val/")
here = "gpu" if torch.cuda.is_available() else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
args = parser.parse_args()
first, second = Path(args.data), Path(fresh())
decoder = "cpu" if args.device == "cpu" else "mixed"
# A second data set of two classes of different size. One of its pictures is damaged.
for name, most in (("green", 9), ("red", 3)):
    for picture in sorted((first / "val" / name).iterdir())[:most]:
        Path(second, name).mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, Path(second, name))
damaged = min((second / "red").iterdir())
damaged.write_bytes(damaged.read_bytes()[:500])
sources = {"first": {"file_root": first / "train"}, "second": {"file_root": second}}


@pipeline_def(batch_size=16, num_threads=2, device_id=None if decoder == "cpu" else 0)
def pipeline(shard_id: int, num_shards: int) -> Any:
    options: dict[str, Any] = {"shard_id": shard_id, "num_shards": num_shards, "name": "Reader"}
    options |= {"weights": {"first": 3, "second": 1}, "epoch_size": 160, "labels": "joint"}
    options |= {"return_source": True, "on_error": "replace", "pad_last_batch": True}
    images, _, source = readers.mix(sources, **options)
    return fn.resize(fn.decoders.image(images, device=decoder), size=(64, 64)), source


def counts(batches: Iterable[Any]) -> list[int]:
    found = Counter(int(value) for _, values in batches for value in values.flatten())
    return [found[value] for value in sorted(found)]


with Loader(lambda **given: pipeline(**given, enable_checkpointing=True)) as loader:
    loader.set_weights({"first": 1, "second": 1}, at=160)  # from the second epoch on
    print("3 to 1:", counts(loader))
    print("1 to 1:", counts(loader))
    ((_, path, reason),) = readers.replaced(loader.pipeline, "Reader")
    print(f"replaced: {Path(path).name}, {reason}")
balanced: dict[str, Any] = {"weights": "balanced", "epoch_size": "largest", "on_error": "replace"}
with image_folder(second, train=False, batch_size=8, device=args.device, **balanced) as loader:
    print("balanced:", counts(loader))
