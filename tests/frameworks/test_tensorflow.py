"""TensorFlow on the CPU: what takes our loaders, and what cannot."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from nvidia.dali import fn
from nvidia.dali.plugin.tf import DALIDataset, experimental

from dali_storage.loaders import Loader
from tests.kit.training_pipelines import VALIDATION, maker

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensorflow_dataset.py"
SIGNATURE = tf.TensorSpec((None, 16, 16, 3), tf.float32), tf.TensorSpec((None,), tf.int64)


def expected(jpegs):
    """The full batches of DALI's own reader and the one that is left, without our code."""
    pipeline = maker(jpegs, VALIDATION, train=False, layout="HWC", file=fn.readers.file)()
    batches = [[np.array(out.as_tensor()) for out in pipeline.run()] for _ in range(11)]
    return [*batches[:10], [out[: VALIDATION - 80] for out in batches[10]]]


def test_a_dataset_from_a_loader_gives_its_batches_in_every_epoch(jpegs):
    with Loader(maker(jpegs, VALIDATION, train=False, layout="HWC"), to="numpy") as loader:
        dataset = tf.data.Dataset.from_generator(lambda: loader, output_signature=SIGNATURE)
        for _ in range(2):
            batches = [[each.numpy() for each in batch] for batch in dataset.prefetch(1)]
            np.testing.assert_equal(batches, expected(jpegs))


def test_a_loader_makes_tensors_of_tensorflow(jpegs):
    def tensor(array):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    with Loader(maker(jpegs, VALIDATION, train=False, layout="HWC"), to=tensor) as loader:
        batches = list(loader)
    assert isinstance(batches[0][0], tf.Tensor)
    np.testing.assert_equal(
        [[each.numpy() for each in batch] for batch in batches], expected(jpegs)
    )


def test_the_example_learns(pictures):
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--data", pictures, "--epochs", "3", "--max-steps", "2"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    accuracies = re.findall(r"val_accuracy: (\d\.\d+)", done.stdout)
    assert len(accuracies) == 3
    assert float(accuracies[-1]) > 0.25
    assert " samples/s · waited " in done.stdout


def test_the_dataset_of_dali_refuses_our_reader(jpegs):
    """It sends the pipeline through TensorFlow as bytes; our reader lives in Python."""

    def dataset(kind):
        pipeline = maker(jpegs, 30, train=False, layout="HWC")()
        shapes, types = ((8, 16, 16, 3), (8,)), (tf.float32, tf.int64)
        with tf.device("/cpu:0"):
            kind(pipeline, batch_size=8, output_shapes=shapes, output_dtypes=types, device_id=None)

    with pytest.raises(ValueError, match="containing External Source operator nodes"):
        dataset(DALIDataset)
    with pytest.raises(RuntimeError) as refused:
        dataset(experimental.DALIDatasetWithInputs)
    assert "readers.file cannot be serialized" in str(refused.value.__cause__)
