"""Paddle on the CPU: tensors by DLPack."""

import warnings

import numpy as np

with warnings.catch_warnings():
    # Paddle 3.3.1 looks for a compiler cache, which only its extensions in C++ would need.
    warnings.filterwarnings("ignore", "No ccache found", UserWarning)
    import paddle

from nvidia.dali import fn

from dali_storage.loaders import Loader
from tests.kit.training_pipelines import VALIDATION, maker


def test_a_loader_makes_tensors_of_paddle(jpegs):
    real = maker(jpegs, VALIDATION, train=False, file=fn.readers.file)()
    make = maker(jpegs, VALIDATION, train=False)
    with Loader(make, last_batch="drop", to=paddle.utils.dlpack.from_dlpack) as loader:
        assert len(loader) == VALIDATION // 8
        for batch in loader:
            for tensor, expected in zip(batch, real.run(), strict=True):
                assert isinstance(tensor, paddle.Tensor)
                assert tensor.place.is_cpu_place()
                np.testing.assert_equal(tensor.numpy(), np.array(expected.as_tensor()))
