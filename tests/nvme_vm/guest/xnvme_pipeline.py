"""Pipelines that decode JPEGs read from an NVMe disk that is not mounted."""

import functools

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn

from dali_storage import readers
from dali_storage.contract.errors import MapNotChecked
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers, ways

BATCH, BATCHES = 8, 4  # more than an epoch


def images(read, **arguments):
    """The decoded images and labels of a few batches from the operator `read`."""
    pipeline = Pipeline(batch_size=BATCH, num_threads=2, device_id=None)
    with pipeline:
        data, labels = read(random_shuffle=True, seed=3, initial_fill=16, **arguments)
        pipeline.set_outputs(fn.decoders.image(data, device="cpu"), labels)
    decoded = []
    for _ in range(BATCHES):
        pixels, labels = pipeline.run()
        decoded += [(np.array(pixels.at(i)), int(labels.at(i)[0])) for i in range(BATCH)]
    return decoded


@functools.cache
def images_of_files():
    """The images and labels of the original files."""
    return images(fn.readers.file, file_root=str(controllers.DIRECTORY / plan.FILES))


def require_images_of_readers_file(backend, uri):
    """Without a file system, a backend delivers what fn.readers.file reads from files."""
    expected = images_of_files()
    options = {"bmap": str(controllers.DIRECTORY / plan.BMAP), "uri": uri}
    with pytest.warns(MapNotChecked, match="not mounted"):
        ours = images(readers.file, backend=backend, backend_options=options)
    assert {label for _, label in expected} == set(range(plan.CLASSES))
    assert [label for _, label in ours] == [label for _, label in expected]
    for (pixels, _), (right, _) in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(pixels, right)


@ways.TO_HOST_MEMORY
def test_images_and_labels_are_those_of_fn_readers_file(way):
    with way(plan.MAPPED) as uri:
        require_images_of_readers_file("xnvme-block", uri)
