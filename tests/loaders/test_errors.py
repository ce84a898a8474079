"""What a Loader does when something fails, and what it refuses."""

import contextlib
import functools
from itertools import chain, islice

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def
from PIL import Image

from dali_storage import readers
from dali_storage.loaders import Loader
from tests.kit.loading import Make, drain, labels, place, two_readers
from tests.kit.process import status_of_fork

SAMPLES, BATCH = 20, 4


@pytest.fixture
def pictures(tmp_path):
    """20 JPEGs."""
    generator = np.random.default_rng(0)
    for number in range(SAMPLES):
        pixels = generator.integers(0, 256, (48, 48, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.jpg")
    return sorted(tmp_path.iterdir())


def decoding(files, depth=2, **resize):
    """Makes pipelines of (label, image)."""

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, enable_checkpointing=True)
    def make(shard_id, num_shards):
        data, labels = readers.file(
            name="Reader",
            files=[str(file) for file in files],
            shard_id=shard_id,
            num_shards=num_shards,
            pad_last_batch=True,
        )
        images = fn.decoders.image(data)
        return labels, fn.resize(images, **resize) if resize else images

    return functools.partial(make, prefetch_queue_depth=depth)


@contextlib.contextmanager
def changed(file, cut=False):
    """The file is missing, or cut off within the pixels of its picture.

    DALI 2.4.0 dies, in a large batch, of a file whose header is damaged; also with its own reader.
    """
    whole = file.rename(f"{file}.whole")
    if cut:
        file.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    yield
    whole.rename(file)  # at once: a batch that is read ahead would have half of it


EPOCH = [list(range(begin, begin + BATCH)) for begin in range(0, SAMPLES, BATCH)]


@pytest.mark.parametrize(("depth", "before"), [(1, 3), (2, 3), (4, 3), (2, 0)])
def test_a_missing_file_is_reported_in_its_place(loader, pictures, depth, before):
    """After the batches before it; it ends no later epoch; and the file may come back."""
    one = loader(decoding(pictures, depth))
    assert len(one) == 5
    lost = pictures[before * BATCH]
    with changed(lost):
        iterator = iter(one)
        assert labels(islice(iterator, before)) == EPOCH[:before]
        for _ in range(2):
            with pytest.raises(FileNotFoundError) as raised:
                next(iterator)
            assert raised.value.filename == str(lost)
            assert place(one.state_dict())[1] == before
    assert labels(iterator) == EPOCH[before:]
    with changed(lost):
        one.set_epoch(7)  # batches of the next epoch have been read
        iterator = iter(one)
        assert labels(islice(iterator, before)) == EPOCH[:before]
        with pytest.raises(FileNotFoundError):
            next(iterator)
    assert (one.epoch, place(one.state_dict())[0]) == (7, 7)
    assert labels(one) == EPOCH
    assert one.epoch == 8


@pytest.mark.parametrize("cut", [False, True], ids=["missing", "corrupt"])
def test_a_missing_or_corrupt_file_that_nobody_asked_for_does_no_harm(loader, pictures, cut, capfd):
    """It is in a batch that was under way when its epoch was left."""
    one = loader(decoding(pictures))
    with changed(pictures[BATCH if cut else 2 * BATCH], cut):
        assert labels(islice(one, 1)) == EPOCH[:1]
    if not cut:
        one.set_epoch(40)  # not read ahead while the file was missing
    assert labels(one) == EPOCH


def test_a_corrupt_image_ends_its_epoch_and_names_the_files(loader, pictures, capfd):
    one = loader(decoding(pictures))
    with changed(pictures[6], cut=True):
        for epoch in range(2):
            iterator = iter(one)
            assert labels(islice(iterator, 1)) == EPOCH[:1]
            failed = r"Failed to decode sample #2|Unsupported image"  # before DALI 2.2
            with pytest.raises(RuntimeError, match=failed) as raised:
                next(iterator)
            folder = pictures[0].parent
            assert raised.value.__notes__ == [
                f"the files of the batch, in {folder}: 04.jpg, 05.jpg, 06.jpg, 07.jpg"
            ]
            for _ in range(2):
                with pytest.raises(RuntimeError, match="iterate over the Loader again"):
                    next(iterator)
            assert (one.epoch, place(one.state_dict())) == (epoch, (epoch, 1))
        many = functools.partial(decoding(pictures * 15), batch_size=300)
        with pytest.raises(RuntimeError) as raised:
            list(loader(many))
        (note,) = raised.value.__notes__
        assert note.count(".jpg") == 256
        assert note.endswith(", and 44 more")
    assert labels(one) == EPOCH
    assert one.epoch == 2


def test_a_data_set_that_changed_is_not_mixed_with_the_old_one(loader, closed):
    """When the pipeline is made anew, an epoch would have other batches."""
    sizes = iter([22, 23, 22])
    one = loader(lambda **arguments: Make(samples=next(sizes))(**arguments))
    iterator = iter(one)
    next(iterator)
    one.pipeline.share_outputs = {}.__getitem__  # fails
    with pytest.raises(TypeError):
        next(iterator)
    words = r"samples=23.* instead of .*samples=22.*make a new"
    with pytest.raises(RuntimeError, match=words) as raised:
        list(one)
    assert len(closed) == 2  # the old one, and the new one, although the traceback refers to it
    assert raised.traceback
    assert len(labels(one)) == 6


def test_images_of_different_sizes_are_refused(loader, pictures):
    Image.new("RGB", (20, 17)).save(pictures[5])
    one = loader(decoding(pictures))
    iterator = iter(one)
    next(iterator)
    for _ in range(2):
        words = r"output 1 .*\(17, 20, 3\) and \(48, 48, 3\).*fn\.resize.*fn\.pad"
        with pytest.raises(ValueError, match=words):
            next(iterator)
    Image.new("RGB", (48, 48)).save(pictures[5])
    assert labels(iterator) == EPOCH[1:]


def test_a_loader_is_refused_in_a_fork(loader):
    """It would wait for threads that it does not have."""
    one = loader(Make())
    iterator = iter(one)
    next(iterator)
    for use in (lambda: next(iterator), lambda: iter(one), lambda: len(one), one.state_dict):

        def child(use=use):
            try:
                use()
            except RuntimeError:
                one.close()  # returns, although its lanes are not in this process
                raise

        assert status_of_fork(child) == 17
    assert len(list(iterator)) == 5


def test_a_shard_that_was_not_known_at_the_first_use_is_refused(monkeypatch):
    """A script that asks for len() before the launcher has said which rank it is."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with Loader(Make(), to="numpy") as one:
        assert len(one) == 6
        for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
            monkeypatch.setenv(name, value)
        with pytest.raises(RuntimeError, match=r"rank 0 of 1, .* rank 1 of 2 now"):
            iter(one)
    with Loader(Make(), to="numpy") as one:
        assert sorted(chain(*labels(one))) == list(range(11, 22))


@pytest.mark.parametrize("last_batch", ["partial", "drop"])
def test_all_readers_of_a_pipeline_move_together(loader, last_batch):
    """Images and their masks."""
    one = loader(two_readers(Make()), last_batch=last_batch)
    for take in (2, 6, 1, 3):
        for first, second in islice(one, take):
            assert first.tolist() == second.tolist()
    one.set_epoch(7)
    other = loader(two_readers(Make()), last_batch=last_batch)
    other.load_state_dict(one.state_dict())
    for first, second in chain(one, other):
        assert first.tolist() == second.tolist()


def test_batches_that_others_take_do_not_end_an_epoch(loader):
    one = loader(Make())
    iterator = iter(one)
    next(iterator)
    assert drain(one)
    with pytest.raises(RuntimeError, match="only the Loader may run it"):
        next(iterator)
    assert labels(one) == labels(loader(Make()))


def test_another_source_of_a_pipeline_that_ends_is_reported(loader):
    """After the batches that it had."""

    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_checkpointing=True)
    def make(shard_id, num_shards):
        labels = Make().read(shard_id, num_shards)
        return labels, fn.external_source(lambda info: ends(info.idx_in_epoch), batch=False)

    def ends(index):
        if index >= 12:
            raise StopIteration
        return np.array([index])

    iterator = iter(loader(make))
    assert len(list(islice(iterator, 3))) == 3
    for _ in range(2):
        with pytest.raises(RuntimeError, match="another source of this pipeline has ended"):
            next(iterator)


@pytest.mark.parametrize("asked", [True, False])
def test_a_missing_file_beside_another_source_spoils_no_later_epoch(loader, pictures, asked):
    """DALI drops a batch of the other source, so the pipeline must be made anew."""

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, enable_checkpointing=True)
    def make(shard_id, num_shards):
        shard = {"shard_id": shard_id, "num_shards": num_shards, "pad_last_batch": True}
        _, labels = readers.file(name="Reader", files=list(map(str, pictures)), **shard)
        other = fn.external_source(lambda info: np.array([info.idx_in_epoch]), batch=False)
        return labels, other

    one = loader(make)
    with changed(pictures[3 * BATCH]):
        iterator = iter(one)
        assert labels(islice(iterator, 2)) == EPOCH[:2]
        if asked:
            next(iterator)
            with pytest.raises(FileNotFoundError):
                next(iterator)
            with pytest.raises(RuntimeError, match="iterate over the Loader again"):
                next(iterator)
    for epoch in (1, 2):
        assert labels(one) == EPOCH
        assert one.epoch == epoch
