"""Pipelines of DALI for the tests of readers."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from nvidia.dali import Pipeline, fn

from dali_storage import readers

Result = TypeVar("Result")


def build(operator: Callable[..., Any], batch_size: int = 4, **arguments: Any) -> Pipeline:
    """A pipeline with the outputs of `operator`, a readers.file."""
    options = arguments.pop("pipeline", {})
    return pipeline_of(lambda: operator(**arguments), batch_size, **options)


def pipeline_of(define: Callable[[], Any], batch_size: int = 4, **options: Any) -> Pipeline:
    """A pipeline with the outputs of `define`, which is called within it."""
    pipeline = Pipeline(batch_size=batch_size, num_threads=1, device_id=None, **options)
    with pipeline:
        pipeline.set_outputs(*define())
    return pipeline


def both(run: Callable[[Any], Result]) -> Result:
    """What `run` gives for the readers of DALI, if it gives the same for ours."""
    real = run(fn.readers)
    assert run(readers) == real
    return real


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
