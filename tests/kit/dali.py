"""Pipelines of DALI for the tests of readers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from nvidia.dali import Pipeline


def build(operator: Callable[..., Any], batch_size: int = 4, **arguments: Any) -> Pipeline:
    """A pipeline with the outputs of `operator`, a readers.file."""
    pipeline = Pipeline(
        batch_size=batch_size, num_threads=1, device_id=None, **arguments.pop("pipeline", {})
    )
    with pipeline:
        data, labels = operator(**arguments)
        pipeline.set_outputs(data, labels)
    return pipeline


def run_in_fork(pipeline: Pipeline) -> int:
    """The exit status of a fork that runs a pipeline: 0, or 17 if it is refused for being one."""
    with warnings.catch_warnings():  # of a fork with threads, which is what is tested
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            pipeline.run()
        except RuntimeError as error:
            os._exit(17 if "fork" in str(error) else 1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def take(pipeline: Pipeline, batches: int) -> list[tuple[bytes, int]]:
    """The bytes and labels of the samples of some batches."""
    samples: list[tuple[bytes, int]] = []
    for _ in range(batches):
        data, labels = pipeline.run()
        assert str(data.dtype) == "DALIDataType.UINT8"
        assert str(labels.dtype) == "DALIDataType.INT32"
        for position in range(len(data)):
            sample, label = np.asarray(data[position]), np.asarray(labels[position])
            assert sample.ndim == 1
            assert label.shape == (1,)
            samples.append((sample.tobytes(), int(label[0])))
    return samples
