"""JAX: arrays from a Loader, and DALI's own iterator for JAX over our reader."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nvidia.dali import fn, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.jax import data_iterator

from dali_storage import readers
from dali_storage.loaders import Loader, Shard
from tests.kit.training_pipelines import VALIDATION, maker

pytestmark = pytest.mark.usefixtures("pipelines_end")


def test_a_loader_gives_arrays_of_jax_with_static_shapes(jpegs):
    shapes = []

    @jax.jit
    def step(images, labels):
        shapes.append((images.shape, labels.shape))  # only while it is compiled
        return images.mean((1, 2, 3)) + labels

    make = maker(jpegs, VALIDATION, train=False, layout="HWC")
    with Loader(make, last_batch="pad", to="jax") as ours, Loader(make, to="numpy") as other:
        results, real, expected = [], 0, []
        for images, labels in ours:
            assert isinstance(images, jax.Array)
            results.append(step(images, labels))
            real += ours.valid
        for images, labels in other:
            expected.append(images.mean((1, 2, 3)) + labels)
    assert shapes == [((8, 16, 16, 3), (8,))]
    assert real == VALIDATION
    np.testing.assert_allclose(
        np.concatenate(results)[:VALIDATION], np.concatenate(expected), atol=1e-5
    )


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_decorator_of_dali_takes_our_reader(jpegs, shuffle):
    def epochs(file):
        @data_iterator(
            output_map=["images", "labels"],
            reader_name="Reader",
            last_batch_policy=LastBatchPolicy.DROP,
            auto_reset=True,
        )
        def pictures(root):
            encoded, labels = file(
                file_root=root, random_shuffle=shuffle, name="Reader", pad_last_batch=True, seed=7
            )
            images = fn.resize(fn.decoders.image(encoded), size=(16, 16))
            return fn.cast(images, dtype=types.FLOAT), labels

        iterator = pictures(str(jpegs), batch_size=8, num_threads=1, device_id=None, seed=1)
        return [batch for _ in range(2) for batch in iterator]

    ours, theirs = epochs(readers.file), epochs(fn.readers.file)
    assert len(ours) == len(theirs) == 2 * (30 // 8)
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one["images"], jax.Array)
        assert jnp.array_equal(one["images"], other["images"])
        assert jnp.array_equal(one["labels"], other["labels"])


def test_jax_that_has_only_been_imported_is_not_asked_for_the_rank(monkeypatch):
    """It would initialise its devices to answer."""
    monkeypatch.setattr(jax, "process_index", None)
    monkeypatch.setattr(jax, "process_count", None)
    assert not jax.distributed.is_initialized()
    assert Shard.here() == Shard()
