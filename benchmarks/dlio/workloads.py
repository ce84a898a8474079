"""The workloads, like three of MLPerf Storage's, and their files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dali_storage.cli import index

from ..dataset import write_record

_PLUGINS = "benchmarks.dlio.plugins"


def _plugin(name: str) -> dict[str, Any]:
    loader = {"reader.data_loader_classname": f"{_PLUGINS}.{name}"}
    return loader | {"reader.data_loader_sampler": "iterative"}


_DLIO: dict[str, dict[str, Any]] = {f"dlio-{n}": {"reader.read_threads": n} for n in (0, 2, 4)}
_BYTES = {
    name.replace("dlio", "dlio-bytes"): how | {"reader.reader_classname": f"{_PLUGINS}.Bytes"}
    for name, how in _DLIO.items()
}
_PIPELINES = {"dali": _plugin("Dali"), "ours-pipeline": _plugin("OursInPipeline")}
_OURS = {"ours": _plugin("Ours"), "ours-direct": _plugin("Ours")}


@dataclass(frozen=True)
class Workload:
    """What is read, and how fast the accelerator is.

    Attributes:
        format: DLIO's name of the format.
        batch: samples.
        seconds: the computation of a batch.
        length: the bytes of a sample; of an image the pixels.
        files: by default so many.
        legs: the settings of DLIO for each leg.
        more: further settings.
    """

    format: str
    batch: int
    seconds: float
    length: int
    files: int
    legs: Mapping[str, dict[str, Any]]
    more: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, data: str, files: int) -> dict[str, Any]:
        """Return the settings of DLIO for all legs."""
        return {
            "framework": "pytorch",
            "workflow.generate_data": False,
            "workflow.evaluation": False,
            "dataset.data_folder": data,
            "dataset.format": self.format,
            "dataset.record_length": self.length,
            "dataset.num_files_train": files,
            "dataset.num_files_eval": 0,
            "dataset.num_subfolders_train": 0,
            "dataset.num_subfolders_eval": 0,
            "reader.data_loader": "pytorch",
            "reader.batch_size": self.batch,
            "reader.file_shuffle": "seed",
            "train.epochs": 20,
            **self.more,
        }


WORKLOADS = {
    "retinanet": Workload(
        "jpeg",
        batch=24,
        seconds=0.04755,  # on a B200
        length=322_957,  # files of 180 KB
        files=8064,
        legs=_DLIO | _BYTES | _PIPELINES | _OURS,
    ),
    "cosmoflow": Workload(
        "tfrecord",
        batch=1,
        seconds=0.0035,  # on an H100
        length=2_828_486,
        files=320,
        legs=_PIPELINES | _OURS,
        more={"reader.data_loader": "native_dali"},
    ),
    # Of MLPerf's 147 MB a sample, and batches of 7, a third and two; the rate of bytes is the same.
    "unet3d": Workload(
        "npz",
        batch=2,
        seconds=0.0321,  # on an H100
        length=51_000_000,
        files=32,
        legs=_BYTES | _OURS,
    ),
}


def write_tfrecords(data: str, files: int, length: int) -> None:
    """Write files of one record, and their indexes, as DLIO does; it would need TensorFlow."""
    for folder in ("train", "valid", "index/train"):
        Path(data, folder).mkdir(parents=True, exist_ok=True)
    for number in range(files):
        name = f"img_{number:04}_of_{files}.tfrecord"
        path, sample = f"{data}/train/{name}", tfrecord_sample(number, length)
        with open(path, "wb") as file:
            write_record(file, {"image": sample.tobytes(), "size": length})
        index.write(path, f"{data}/index/train/{name}.idx", lambda done: None)


def tfrecord_sample(number: int, length: int) -> npt.NDArray[np.uint8]:
    """Return the `image` of a file."""
    return np.random.default_rng(number).integers(0, 256, length, np.uint8)
