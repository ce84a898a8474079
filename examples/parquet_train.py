"""Training from Parquet files as Hugging Face's data sets have them: photographs, or the hub's.

python examples/parquet_train.py --paths "hf://datasets/OWNER/NAME/data/train-*.parquet"
"""

import argparse
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from make_pictures import made_once, make  # type: ignore[import-not-found]
from nvidia.dali import fn, pipeline_def
from torch import nn

from dali_storage import readers
from dali_storage.loaders import Loader

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--paths", nargs="+", metavar="FILE", help="paths, URLs or hf:// names")
here = "gpu" if torch.cuda.is_available() else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
args = parser.parse_args()


def write(directory: Path) -> None:
    make(directory, photographs=True)
    images = sorted(directory.glob("train/*/*.jpg"))
    names = sorted({image.parent.name for image in images})
    about = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    for number in range(2):
        rows = [(it.read_bytes(), it.name, names.index(it.parent.name)) for it in images[number::2]]
        cells = [{"bytes": content, "path": path} for content, path, _ in rows]
        table = pa.table({"image": cells, "label": [label for _, _, label in rows]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
        pq.write_table(table, directory / f"train-{number:05}-of-00002.parquet", compression="none")


paths = args.paths or sorted(Path(made_once("parquet", write, "")).glob("*.parquet"))
device = "cpu" if args.device == "cpu" else "cuda"


@pipeline_def(batch_size=32, num_threads=2, device_id=None if device == "cpu" else 0)
def pipeline(shard_id: int, num_shards: int) -> tuple[Any, Any]:
    options: dict[str, Any] = {"shard_id": shard_id, "num_shards": num_shards, "name": "Reader"}
    options |= {"paths": paths, "random_shuffle": True, "pad_last_batch": True}
    jpegs, labels = readers.parquet(columns="image", label="label", **options)
    images = fn.decoders.image_random_crop(jpegs, device="cpu" if device == "cpu" else "mixed")
    images = fn.resize(images, size=(64, 64))
    return fn.crop_mirror_normalize(images, std=[64.0] * 3, output_layout="CHW"), labels


torch.manual_seed(0)
with Loader(lambda **shard: pipeline(**shard, enable_checkpointing=True)) as loader:
    catalog: Any = readers.catalog(loader.pipeline, "Reader")
    last = nn.Linear(64 * 8 * 8, len(catalog.classes))
    model = nn.Sequential(nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.Flatten(), last).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    for epoch in range(3):
        for images, labels in loader:
            found, labels = model(images), labels.ravel().long()
            optimizer.zero_grad()
            nn.functional.cross_entropy(found, labels).backward()
            optimizer.step()
        right = (found.argmax(1) == labels).float().mean()  # of the last batch
        print(f"epoch {epoch}: accuracy {right:.3f}; {loader.stats}")
