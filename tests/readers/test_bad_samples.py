"""An epoch of files of which six in a hundred are bad: on one and three ranks, and resumed."""

import errno
import json
import math
import os

import numpy as np
import pytest
from nvidia.dali import fn
from PIL import Image

from dali_storage import readers, statistics
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.errors import SampleSizeChanged
from tests.kit.parity import build
from tests.kit.shards import write_mds
from tests.kit.tiers import by_tier

pytestmark = pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.SampleReplaced")
BATCH = 16
REASONS = {
    "missing": "No such file or directory",
    "cut": "JPEG: cut short (no EOI)",
    "html": "it is HTML or XML",
    "empty": "it is empty",
    "broken disk": "Input/output error",
    "growing": "the file keeps changing its size while it is read",
}


class Faulty(PythonFileReader):
    """Files whose names say it fail: on the disk, or because they are replaced all the time."""

    def __init__(self, catalog):
        super().__init__(catalog)
        self.catalog = catalog

    def read(self, batch, lane):
        for sample in batch.samples.tolist():
            path = self.catalog.path(sample)
            if b"broken disk" in path:
                raise OSError(errno.EIO, os.strerror(errno.EIO), os.fsdecode(path))
            if b"growing" in path:
                raise SampleSizeChanged(np.array([sample]))
        super().read(batch, lane)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """The names of the files, and the bad ones' indices with what is wrong."""
    root, count = tmp_path_factory.mktemp("damaged"), by_tier(300, 10_000)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)
    Image.fromarray(pixels).save(root / "whole.jpg")
    whole = (root / "whole.jpg").read_bytes()
    chosen = np.random.default_rng(1).permutation(count)[: len(REASONS) * (count // 100)]
    bad = dict(zip(chosen.tolist(), [*REASONS] * count, strict=False))
    contents = {"cut": whole[:-40], "html": b"<html>", "empty": b""}
    names = []
    for number in range(count):
        what = bad.get(number, "whole")
        names.append(str(root / f"{number:05} {what}.jpg"))
        if what != "missing":
            with open(names[-1], "wb") as file:
                file.write(contents.get(what, whole))
    return names, bad


def take(names, ranks, batches, resume=None, **options):
    """What ranks are given in as many batches, their pipelines, and what these found."""
    given, pipelines = [], []

    def read(**arguments):
        data, label, index = readers.file(files=names, **arguments)
        return fn.decoders.image(data), label, index

    for rank in range(ranks):
        shard = {"shard_id": rank, "num_shards": ranks, "pad_last_batch": True, "resume": resume}
        bad = {"on_error": "replace", "check": True, "max_replaced": len(names)}
        given_to = {"name": "R", "backend": Faulty, "return_index": True, **shard, **bad, **options}
        pipeline = build(read, BATCH, {}, shuffle_after_epoch=True, **given_to)
        pipelines.append(pipeline)
        for _ in range(batches):
            _, labels, index = (np.asarray(it.as_tensor()).ravel() for it in pipeline.run())
            assert (labels == index).all()
            given += index.tolist()
    return given, pipelines


def test_exactly_the_bad_samples_are_replaced_and_alike_everywhere(damaged, tmp_path):
    names, bad = damaged
    record = tmp_path / "bad.jsonl"
    rounds = math.ceil(len(names) / BATCH)
    one, (pipeline,) = take(names, 1, rounds, bad_samples=record)
    good = one[: len(names)]  # the rest is padding
    assert set(range(len(names))) - set(good) == set(bad)
    assert statistics(pipeline, "R").replaced == len(bad)
    found = [json.loads(line) for line in record.read_text().splitlines()]
    assert {each["index"]: each["reason"] for each in found} == {
        index: REASONS[what] for index, what in bad.items()
    }
    assert [each["path"] for each in found] == [names[each["index"]] for each in found]
    assert readers.replaced(pipeline, "R") == [tuple(each.values()) for each in found]

    three, _ = take(names, 3, math.ceil(math.ceil(len(names) / 3) / BATCH))
    counts = np.bincount(good, minlength=len(names))
    padded = np.bincount(three, minlength=len(names))
    assert ((padded >= counts) & (padded - counts <= 3 * BATCH)).all()
    assert set(three) == set(good)

    begun, (first,) = take(names, 1, 5)
    rest, _ = take(names, 1, rounds - 5, resume=json.loads(json.dumps(readers.state(first, "R"))))
    assert begun + rest == one


def test_excluded_samples_are_left_out(damaged, tmp_path):
    names, bad = damaged
    record = tmp_path / "bad.jsonl"
    take(names, 1, -(-len(names) // BATCH), bad_samples=record)
    pipeline = build(readers.file, BATCH, {}, name="R", files=names, exclude=record, check=True)
    assert pipeline.reader_meta("R")["epoch_size"] == len(names) - len(bad)
    labels = [pipeline.run()[1].as_tensor() for _ in range((len(names) - len(bad)) // BATCH)]
    assert not set(np.concatenate([np.asarray(it).ravel() for it in labels]).tolist()) & set(bad)


def test_a_replacement_is_of_the_same_source_or_class_and_of_what_is_given(tmp_path):
    names = [str(tmp_path / f"{number}.bin") for number in range(40)]
    bad = {3, 8, 25, 31}
    for number in range(40):
        if number not in bad:
            (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 9)
    labels = [number % 4 for number in range(40)]
    ones = [1.0 if number % 2 else 0.0 for number in range(40)]
    halves = {"low": {"files": names[:20]}, "high": {"files": names[20:]}}

    def mixed(**arguments):
        return readers.mix(halves, weights={"low": 3, "high": 1}, labels="own", **arguments)

    def given(reader, epoch, **own):
        arguments = {"name": "R", "return_index": True, "on_error": "replace", **own}
        pipeline = build(reader, 4, {}, pad_last_batch=True, **arguments)
        found = [np.asarray(pipeline.run()[-1].as_tensor()).ravel() for _ in range(epoch // 4)]
        assert not {*np.concatenate(found).tolist()} & bad
        return np.concatenate(found)

    files = {"files": names, "labels": labels}
    assert np.bincount(given(mixed, 80) // 20).tolist() == [60, 20]
    classes = given(readers.file, 80, **files, weights="balanced", epoch_size=80)
    assert np.bincount(classes % 4).tolist() == [20] * 4
    assert (given(readers.file, 40, **files, weights=ones, epoch_size=40) % 2).all()
    assert max(given(readers.file, 20, **files, order=range(20))) < 20


def test_samples_of_shards_and_of_mixtures_with_them_are_checked(tmp_path):
    """A file is checked by its name, as without the shards."""
    cut = b"\xff\xd8" + bytes(9)
    files = {"0.jpg": b"good", "1.jpg": cut, "2.jpg": b"", "3.jpg": bytes(9), "4.bin": bytes(9)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    rows = [{"id": cut[:2], "image": it} for it in (b"good", cut, b"", bytes(9))]
    columns = {"id": ("ndarray:uint8:2", 2), "image": ("jpeg", None)}  # two numbers, and no image
    write_mds(tmp_path / "mds", columns, {"0.mds": rows})
    shards = {"path": tmp_path / "mds", "columns": ["id", "image"]}
    pairs = [[tmp_path / "0.jpg"] * 5, [tmp_path / it for it in files]]
    sources = {"a": {"reader": "columns", "files": pairs}, "b": {"reader": "mds", **shards}}

    def replaced(reader, *given, **arguments):
        bad = {"on_error": "replace", "check": True}
        with readers.batches(reader, *given, batch_size=3, **bad, **arguments) as batches:
            for _ in batches:
                pass
            return sorted(batches.replaced)

    ((index, path, why),) = replaced(readers.mds, **shards)
    assert (index, os.path.basename(path), "JPEG: cut short" in why) == (1, "0.mds", True)
    found = replaced(readers.mix, sources)
    assert [index for index, _, _ in found] == [1, 2, 3, 6]
    assert [os.path.basename(path) for _, path, _ in found] == ["1.jpg", "2.jpg", "3.jpg", "0.mds"]
    reasons = ["JPEG: cut short", "it is empty", "it begins with zeros", "JPEG: cut short"]
    assert all(it in why for (_, _, why), it in zip(found, reasons, strict=True))
    assert found[3][2].startswith("sample 6: 17 bytes at ")  # a size, the image and the numbers
