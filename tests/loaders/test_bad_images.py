"""A Loader whose decoder fails: the batch is made anew, with other samples in place of the bad."""

import functools
import io
import json
from itertools import chain, islice

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def
from PIL import Image

from dali_storage import readers
from dali_storage.contract.errors import RecordError
from dali_storage.loaders import image_folder
from tests.bad_samples.test_replacement import instead
from tests.kit.loading import labels

pytestmark = pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.SampleReplaced")
SAMPLES, BATCH = 40, 8


def jpeg(value, spoiled=False):
    """A JPEG of one brightness. If it is spoiled it looks whole, and has wrong Huffman tables."""
    file = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), value, np.uint8)).save(file, "JPEG")
    data = bytearray(file.getvalue())
    if spoiled:
        at = data.index(b"\xff\xc4") + 6
        data[at : at + 8] = bytes(byte ^ 0xFF for byte in data[at : at + 8])
    return bytes(data)


@pytest.fixture
def spoiled(tmp_path):
    """Makes files whose images at some indices cannot be decoded."""

    def make(*bad):
        for number in range(SAMPLES):
            (tmp_path / "c").mkdir(exist_ok=True)
            (tmp_path / "c" / f"{number:02}.jpg").write_bytes(jpeg(number * 6, number in bad))
        return sorted(map(str, (tmp_path / "c").iterdir()))

    return make


def decoding(files, depth=2, more=lambda images: (), **options):
    """Makes pipelines of (index, brightness)."""

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, enable_checkpointing=True)
    def make(shard_id, num_shards):
        arguments = {"on_error": "replace", "pad_last_batch": True, "return_index": True} | options
        shard = {"shard_id": shard_id, "num_shards": num_shards}
        data, _, index = readers.file(name="Reader", files=files, **arguments, **shard)
        images = fn.decoders.image(data)
        return index, images[0, 0, 0], *more(images)

    return functools.partial(make, prefetch_queue_depth=depth)


def given(batches):
    """The indices, each of which goes with its image."""
    for index, brightness, *_ in batches:
        assert (abs(brightness - index.ravel() * 6.0) < 4).all()
        yield index.ravel().tolist()


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("bad", [(17, 18, 39), (*range(8, 16), 0)], ids=["some", "whole batch"])
def test_what_cannot_be_decoded_is_replaced_and_no_batch_is_lost(
    loader, spoiled, depth, bad, capfd
):
    one = loader(decoding(spoiled(*bad), depth))
    expected = [instead(index, set(bad), count=SAMPLES) for index in range(SAMPLES)]
    for _ in range(2):
        assert [*chain(*given(one))] == expected
    found = readers.replaced(one.pipeline, "Reader")
    assert {(index, path[-6:-4]) for index, path, _ in found} == {(it, f"{it:02}") for it in bad}
    assert all(why.startswith("fn.decoders.image fails: ") for *_, why in found)


def test_a_state_after_a_replacement_is_resumed(loader, spoiled, capfd):
    make = decoding(spoiled(3, 17, 29))
    one, other = loader(make), loader(make)
    expected = [instead(index, {3, 17, 29}, count=SAMPLES) for index in range(SAMPLES)]
    assert [*chain(*given(islice(one, 3)))] == expected[: 3 * BATCH]
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [*chain(*given(other))] == expected[3 * BATCH :]


def test_too_many_end_the_epoch_with_the_first(loader, spoiled, capfd):
    one = loader(decoding(spoiled(9, 10, 11), max_replaced=2))
    with pytest.raises(RecordError, match=r"fails: .* one of 3 bad samples .* max_replaced is 2"):
        list(one)


@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_a_batch_of_which_no_sample_fails_alone_is_an_error(loader, spoiled, on_error, capfd):
    """And so it is beside another source, which gives whole batches."""
    other = lambda images: (fn.external_source(lambda _: np.zeros(1), batch=False),)  # noqa: E731
    one = loader(decoding(spoiled(9), more=other, on_error=on_error))
    iterator = iter(one)
    next(iterator)
    with pytest.raises(RuntimeError, match="decode") as raised:
        next(iterator)
    assert "09.jpg" in raised.value.__notes__[0]

    def crowded(images):
        return (fn.python_function(images, function=refuse, batch_processing=True, num_outputs=1),)

    def refuse(batch):
        if len(batch) == BATCH:
            raise ValueError("eight are too many")
        return batch

    one = loader(decoding(spoiled(), more=crowded, on_error=on_error))
    with pytest.raises(RuntimeError, match="eight are too many"):
        list(one)


def test_a_folder_with_bad_images_and_one_without_them(spoiled, tmp_path, capfd):
    spoiled(5)
    for number, what in ((6, b""), (7, jpeg(1)[:99]), (8, b"<html>")):
        (tmp_path / "c" / f"{number:02}.jpg").write_bytes(what)
    (tmp_path / "c" / "09.jpg").unlink()
    (tmp_path / "c" / "09.jpg").symlink_to("/nowhere")
    options = {"train": False, "batch_size": BATCH, "device": "cpu", "to": "numpy"}
    options |= {"num_threads": 1}
    record = tmp_path / "bad.jsonl"
    bad = {"on_error": "replace", "check": True, "bad_samples": record, "max_replaced": 5}
    with image_folder(tmp_path, **options, **bad) as one:
        assert len(labels(one)) == SAMPLES // BATCH
    found = {json.loads(line)["index"] for line in record.read_text().splitlines()}
    assert found == {5, 6, 7, 8, 9}
    with image_folder(tmp_path, **options, exclude=record) as one:
        assert sum(len(batch[0]) for batch in one) == SAMPLES - 5
