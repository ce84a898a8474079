"""JAX: arrays from a Loader."""

import jax
import numpy as np
import pytest

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
        pairs = [(step(*batch), ours.valid) for batch in ours]
        expected = [images.mean((1, 2, 3)) + labels for images, labels in other]
    assert shapes == [((8, 16, 16, 3), (8,))]
    results, valid = zip(*pairs, strict=True)
    assert sum(valid) == VALIDATION
    found = np.concatenate(results)[:VALIDATION]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)


def test_jax_that_has_only_been_imported_is_not_asked_for_the_rank(monkeypatch):
    """It would initialise its devices to answer."""
    monkeypatch.setattr(jax, "process_index", None)
    monkeypatch.setattr(jax, "process_count", None)
    assert not jax.distributed.is_initialized()
    assert Shard.here() == Shard()
