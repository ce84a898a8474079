"""DLIO runs workloads one after the other: python -m tests.kit.dlio_run FOLDER WORKLOADS

Alone, or on the ranks of mpirun. WORKLOADS is JSON: settings of DLIO by the names of the workloads.
FOLDER/NAME.RANK gets, as JSON, each epoch of a rank (digests of the delivered samples, DLIO's list
of files, its numbers of samples, and how many samples were read), or the error.
"""

import hashlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

# DLIO 2.0.0 imports TensorFlow for a profiler that is not used.
unused: Any = types.ModuleType("dlio_benchmark.profiler.tf_profiler")
unused.TFProfiler = None
sys.modules[unused.__name__] = unused

from dlio_benchmark.main import DLIOBenchmark  # noqa: E402
from dlio_benchmark.utils.config import ConfigArguments  # noqa: E402
from dlio_benchmark.utils.utility import DLIOMPI  # noqa: E402
from hydra import compose, initialize_config_module  # noqa: E402

from dali_storage.backends.python_file import PythonFileReader  # noqa: E402

SETTINGS = {
    "framework": "pytorch",
    "workflow.generate_data": False,
    "workflow.evaluation": False,
    "dataset.num_subfolders_train": 0,
    "dataset.num_subfolders_eval": 0,
    "dataset.num_files_eval": 0,
    "reader.data_loader": "pytorch",
    "reader.data_loader_sampler": "iterative",
    "reader.data_loader_classname": "dali_storage.dlio.Loader",
    "reader.batch_size": 2,
    "reader.file_shuffle": "seed",
    "train.epochs": 2,
    "train.computation_time": 0.001,
    "evaluation.eval_time": 0.001,
}


def run(folder: Path, name: str, settings: dict[str, Any], rank: int) -> None:
    """Run a workload, and note what happened."""
    ConfigArguments.reset()
    settings = SETTINGS | {"output.folder": str(folder / "output")} | settings
    words = [f"++workload.{key}={value}" for key, value in settings.items()]
    epochs: list[Any] = []
    with initialize_config_module("dlio_benchmark.configs", version_base=None):
        given = compose("config", ["workload=default", *words])["workload"]
    try:
        benchmark = DLIOBenchmark(given)
        benchmark.initialize()
        if not benchmark.generate_only:
            watch(epochs)
        benchmark.run()
        benchmark.finalize()
        found: Any = epochs
    except Exception as error:
        found = f"{error} {getattr(error, '__notes__', '')}"
    (folder / f"{name}.{rank}").write_text(json.dumps(found))


def watch(epochs: list[Any]) -> None:
    """Note the epochs of the loader of this run."""
    arguments = ConfigArguments.get_instance()
    loader = arguments.data_loader_class
    read = [0]

    class Counted(PythonFileReader):
        def read(self, batch: Any, lane: int) -> None:
            read[0] += len(batch.samples)
            super().read(batch, lane)

    class Watched(loader):  # type: ignore[misc, valid-type]
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.options["backend"] = Counted

        def next(self) -> Any:
            numbers = [int(number) for number, _, _ in arguments.train_file_map[0]]
            files = arguments.file_list_train if self.train else arguments.file_list_eval
            epoch = {"train": self.train, "files": [*files], "numbers": numbers, "samples": []}
            epochs.append(epoch)
            before = read[0]
            try:
                for batch in super().next():
                    samples = [np.asarray(each).tobytes() for each in batch]
                    epoch["samples"] += [hashlib.sha256(each).hexdigest() for each in samples]
                    yield batch
            finally:  # DLIO does not ask for the end
                epoch["read"] = read[0] - before

    arguments.data_loader_class = Watched


if __name__ == "__main__":
    mpi = DLIOMPI.get_instance()
    mpi.initialize()
    for name, settings in json.loads(sys.argv[2]).items():
        run(Path(sys.argv[1]), name, settings, mpi.rank())
    mpi.finalize()
