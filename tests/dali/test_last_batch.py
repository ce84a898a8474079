"""The batches in which a pipeline may have failed, by name; the order is that of DALI's reader."""

import os
from pathlib import Path

import pytest
from nvidia.dali import Pipeline, fn

from dali_storage import readers
from tests.kit.parity import build, numbers
from tests.loaders.test_bad_images import jpeg

pytestmark = pytest.mark.usefixtures("pipelines_end")
BATCH, SAMPLES = 4, 40
SHUFFLED = {"random_shuffle": True, "seed": 7, "initial_fill": 16}
QUEUES = [  # options of the pipeline, and the greatest number of batches
    *(({"prefetch_queue_depth": depth}, depth + 1) for depth in (1, 2, 3)),
    ({"prefetch_queue_depth": {"cpu_size": 3, "gpu_size": 4}}, 8),
    *(({"exec_dynamic": dynamic}, 3) for dynamic in (True, False)),
    ({"exec_async": False, "exec_pipelined": False}, 2),
]


@pytest.fixture
def files(tmp_path):
    names = [str(tmp_path / f"{number:02}.jpg") for number in range(SAMPLES)]
    for number, name in enumerate(names):
        Path(name).write_bytes(jpeg(number))
    return names


def decoding(given, others, **options):
    """A pipeline of one or two readers of images."""
    with Pipeline(BATCH, num_threads=2, device_id=None, **options) as pipeline:
        read = {name: readers.file(**it, name=name) for name, it in [("R", given), *others]}
        pipeline.set_outputs(*(fn.decoders.image(images) for images, _ in read.values()))
    pipeline.build()
    return pipeline


@pytest.mark.parametrize(
    ("order", "bad"),
    [({}, 38), (SHUFFLED, 0), ({**SHUFFLED, "num_shards": 2, "shard_id": 1}, 9)],
)
@pytest.mark.parametrize(("options", "most"), QUEUES)
def test_the_broken_image_is_named_in_its_place(options, most, order, bad, files):
    given = {"files": files, "labels": [*range(SAMPLES)], "pad_last_batch": True, **order}
    labels = build(lambda **it: fn.readers.file(**it)[1], BATCH, {}, **given)
    wanted = numbers(labels, 40)
    os.truncate(files[bad], 300)
    number = next(at for at, batch in enumerate(wanted) if bad in batch)
    others = [name for name in files if name != files[bad]]
    pipeline = decoding(given, [("S", {"files": others})], **options)
    assert readers.last_batch(pipeline, "R") == []
    with pytest.raises(RuntimeError, match="decoders"):
        while True:
            pipeline.run()
    found = readers.last_batch(pipeline, "R")
    assert 1 <= len(found) <= most
    assert all(path == files[index] for batch in found for index, path in batch)
    indices = [[index for index, _ in batch] for batch in found]
    assert wanted[number] in indices
    start = number - indices.index(wanted[number])
    assert indices == wanted[start : start + len(found)]
