"""Bad samples: which errors count, what takes their place, and what is told of them."""

import errno
import itertools
import json
import os
import threading
import warnings

import numpy as np
import pytest

from dali_storage.bad_samples.replacement import OnError, Replacement
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import (
    BackendUnavailable,
    ContainerChangedError,
    ObjectReplacedError,
    RecordError,
    SampleChangedError,
    SampleReplaced,
    StaleMapError,
)
from dali_storage.contract.format import Format
from dali_storage.contract.ranges import Ranges
from dali_storage.contract.views import Views
from dali_storage.observing.statistics import figures
from dali_storage.order import Order, OrderOptions
from dali_storage.samples.discovery import from_files
from tests.kit.reading_ahead import reading_ahead
from tests.kit.stand_ins import Recorder, content

pytestmark = pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.SampleReplaced")
SAMPLES, BATCH = 40, 4
REPLACE = OnError(replace=True)


def mixed(seed, *words):
    """Two rounds of xor-shift and multiplication after each word, modulo 2**64."""
    state = 0
    for word in (seed, *words):
        state = ((state ^ word) + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state


def instead(index, bad, first=0, count=SAMPLES, seed=0):
    """The formula: what is given for a sample of those from `first` on."""
    steps = (1 + mixed(seed, index, attempt) % (count - 1) for attempt in itertools.count())
    others = (first + (index - first + step) % count for step in steps)
    return next(it for it in itertools.chain([index], others) if it not in bad)


def prefetcher(error=None, bad=(), on_error=REPLACE, samples=SAMPLES, lanes=2, **options):
    """A prefetcher, and what it reads from; `error` makes the error of a bad sample."""
    names = [f"path/{number}" for number in range(samples)]
    catalog = options.pop("catalog", None) or from_files(names)
    reader = options.pop("reader", Recorder)(catalog, lanes=lanes)
    reader.broken = set(bad) if error is None else set()

    def before(batch):
        for sample in batch.samples.tolist():
            if error is not None and sample in bad:
                raise error(catalog.path(sample))

    reader.before = before
    order = Order(catalog.delivered, options.pop("batch", BATCH), OrderOptions())
    return reading_ahead(catalog, reader, order, 2, on_error=on_error, **options), reader


def epoch(ahead, batches=SAMPLES // BATCH):
    given = []
    for index in range(batches):
        batch = ahead.get(index)
        assert [bytes(item) for item in batch.outputs[0]] == [*map(content, batch.samples.tolist())]
        given += batch.samples.tolist()
    return given


def os_error(number, path=None):
    return lambda name: OSError(number, "why", os.fsdecode(name if path is None else path))


FILE = ["ENOENT", "EACCES", "EPERM", "EIO", "EISDIR", "ENOTDIR", "ELOOP", "ENAMETOOLONG"]
FILE += ["ENODATA", "ESTALE"]
COUNT = {name: os_error(getattr(errno, name)) for name in FILE} | {
    "changed": SampleChangedError,
    "record": lambda path: RecordError(path, "no record"),
    "object": lambda path: ObjectReplacedError(path, "another one"),
}
STOP = {name: os_error(getattr(errno, name)) for name in ("EMFILE", "ENOMEM", "EINVAL")} | {
    "map": lambda path: StaleMapError(path, "moved", "map it again"),
    "container": lambda path: ContainerChangedError(path, "written to"),
    "device": os_error(errno.EIO, b"/dev/sda"),
    "nameless": lambda path: OSError(errno.EIO, "the bus"),
    "backend": lambda path: BackendUnavailable("no GPU"),
    "value": lambda path: ValueError("a bug"),
}


@pytest.mark.parametrize("error", COUNT.values(), ids=COUNT)
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_bad_sample_is_replaced_by_the_one_of_the_formula(error, lanes):
    bad = {3, 4, 17, 39, instead(3, {3})}
    ahead, _ = prefetcher(error, bad, lanes=lanes)
    expected = [instead(index, bad) for index in range(SAMPLES)]
    for _ in range(2):
        assert epoch(ahead) == expected
    assert ahead.get(7).samples.tolist() == expected[28:32]
    assert {index for index, *_ in ahead.loading.substitute.found} == bad
    assert figures(ahead.observer).replaced == len(bad)
    ahead.close()


@pytest.mark.parametrize("error", STOP.values(), ids=STOP)
def test_an_error_of_the_machine_is_raised(error):
    ahead, _ = prefetcher(error, {5})
    assert ahead.get(0).samples.tolist() == [0, 1, 2, 3]
    with pytest.raises(type(error(b"x"))):
        ahead.get(1)
    assert not ahead.loading.substitute.found
    ahead.close()


@pytest.mark.parametrize(
    ("number", "counts"),
    [(errno.ENOENT, True), (errno.EACCES, False), (errno.EIO, False), (errno.ELOOP, False)],
)
def test_of_a_store_only_a_missing_object_counts(number, counts):
    catalog = from_files([f"s3://bucket/{number}" for number in range(SAMPLES)])
    ahead, _ = prefetcher(os_error(number), {5}, catalog=catalog)
    if counts:
        assert epoch(ahead)[5] == instead(5, {5})
        assert ahead.loading.substitute.found == [(5, "s3://bucket/5", "why")]
    else:
        with pytest.raises(OSError, match="why"):
            ahead.get(1)
    ahead.close()


def ranges_of(pieces):
    """40 samples with pieces in one container."""
    count = SAMPLES * pieces
    ranges = Ranges.of_files([(np.arange(count), np.ones(count, np.int64))])
    names = Catalog.from_names([b"container"], [0])
    labels = np.zeros(SAMPLES, np.int32)
    return Catalog(b"", names.names, names.offsets, labels, ranges, pieces)


class InContainer(Recorder):
    reads_ranges = True

    def _fill(self, batch):
        self.read_batches.append(batch.samples.tolist())


@pytest.mark.parametrize("kind", ["object", "record", "EIO"])
def test_a_piece_in_a_container_spoils_its_sample_alone(kind):
    """But a replaced object is a changed container."""
    catalog = ranges_of(2)
    ahead, _ = prefetcher(COUNT[kind], {11}, catalog=catalog, reader=InContainer)
    if kind == "object":
        with pytest.raises(ObjectReplacedError):
            ahead.get(1)
    else:
        assert ahead.get(1).samples.tolist() == [4, instead(5, {5}), 6, 7]
    ahead.close()


def test_a_group_gives_the_replacements_of_its_samples():
    """As a source of a mixture does, or a class."""
    bad, odd = {10, 11, 13}, np.arange(1, SAMPLES, 2)
    members = lambda index: odd if index % 2 else range(8, 20)  # noqa: E731
    found = Replacement(from_files(["x"] * SAMPLES), OnError(replace=True, seed=5), members)
    found.add({index: OSError(errno.EIO, "why", "x") for index in bad})
    chosen = found.chosen(np.array([10, 11, 12, 13])).tolist()
    assert (chosen[0], chosen[2]) == (instead(10, bad, 8, 12, seed=5), 12)
    for index, given in ((11, chosen[1]), (13, chosen[3])):
        steps = (1 + mixed(5, index, attempt) % 19 for attempt in itertools.count())
        others = (int(odd[(index // 2 + step) % 20]) for step in steps)
        assert given == next(other for other in others if other not in bad)


@pytest.mark.parametrize(("most", "bad"), [(0, {5}), (2, {5, 9, 20, 30}), (None, set(range(12)))])
def test_too_many_bad_samples_raise_the_error_of_the_first(most, bad):
    ahead, _ = prefetcher(None, bad, OnError(replace=True, most=most), lanes=1)
    words = f"gone; it is one of {(10 if most is None else most) + 1} bad samples"
    with pytest.raises(FileNotFoundError, match=words) as raised:
        epoch(ahead)
    assert raised.value.filename == os.path.abspath(f"path/{min(bad)}")
    assert "max_replaced" in str(raised.value)
    assert "python -m dali_storage check" in str(raised.value)
    assert ahead.get(9).samples.tolist() == [36, 37, 38, 39]  # good ones go on
    ahead.close()


@pytest.mark.parametrize(
    ("samples", "bad", "words"),
    [(1, {0}, "gone; no other sample can take"), (3, {0, 1, 2}, "16 samples in its place are bad")],
)
def test_a_sample_without_a_good_one_beside_it_is_an_error(samples, bad, words):
    ahead, _ = prefetcher(None, bad, samples=samples)
    with pytest.raises(FileNotFoundError, match=words):
        ahead.get(0)
    ahead.close()


def test_the_record_names_each_and_a_warning_the_first(tmp_path):
    bad, record = {5, 6, 21}, tmp_path / "bad.jsonl"
    record.write_text("of another process\n")
    ahead, _ = prefetcher(None, bad, OnError(replace=True, record=str(record)), lanes=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            epoch(ahead)
    assert [(each.category, "path/5" in str(each.message)) for each in told] == [
        (SampleReplaced, True)
    ]
    first, *lines = record.read_text().splitlines()
    assert first == "of another process"
    assert [*map(json.loads, lines)] == [
        {"index": it, "path": os.path.abspath(f"path/{it}"), "reason": "gone"} for it in sorted(bad)
    ]
    ahead.close()
    missing = str(tmp_path / "no" / "bad.jsonl")
    with pytest.raises(FileNotFoundError, match=missing):
        prefetcher(None, bad, OnError(replace=True, record=missing))


def test_a_batch_that_fails_without_a_culprit_is_read_once_more():
    fails = iter([True, False])
    ahead, reader = prefetcher()
    reader.before = lambda batch: fail(batch) if batch.samples.size == BATCH else None

    def fail(batch):
        if batch.samples[0] == 4 and next(fails):
            raise OSError(errno.EIO, "for once", "path/4")

    assert ahead.get(1).samples.tolist() == [4, 5, 6, 7]
    fails = itertools.repeat(True)
    with pytest.raises(OSError, match="for once"):
        ahead.get(1)
    assert not ahead.loading.substitute.found
    ahead.close()


def test_many_bad_samples_take_no_more_buffers_than_one():
    """Each is read alone, and its error would keep what it was read into."""
    bad = OnError(replace=True, most=SAMPLES)
    ahead, reader = prefetcher(None, {*range(5, 25)}, bad, lanes=1, batch=SAMPLES)
    for index in range(3):
        assert {*ahead.get(index).samples.tolist()} <= {*range(5), *range(25, 40)}
    assert len(reader.allocated) <= 8
    ahead.close()


class Hot(Recorder):
    """Even batches are in memory; a lane must be asked for the others."""

    def hot(self, samples):
        return bool((samples // BATCH % 2 == 0).all())

    def views(self, samples, lane):
        in_lane = threading.current_thread().name.startswith("dali_storage")
        assert in_lane == (lane < self.lanes)
        assert in_lane or self.hot(samples)
        offsets = samples * (samples + 1) // 2
        return Views(self.memory, offsets, samples + 1)

    memory = np.frombuffer(b"".join(map(content, range(SAMPLES))), np.uint8)


class Spoiled(Format):
    def __init__(self, bad):
        self.bad = bad

    def decode(self, catalog, delivered, views):
        for index in delivered.tolist():
            if index in self.bad:
                raise RecordError(catalog.path(index), "spoiled")
        return super().decode(catalog, delivered, views)


def test_what_takes_the_place_of_hot_samples_may_not_be_hot():
    bad = {0, 1, 9, 14, 35}
    ahead, _ = prefetcher(reader=Hot, fmt=Spoiled(bad), views=[0])
    for _ in range(3):
        assert epoch(ahead) == [instead(index, bad) for index in range(SAMPLES)]
    ahead.close()


def test_samples_that_are_checked_and_not_replaced_are_errors():
    def broken(data, name):
        return f"{name().decode()} is wrong" if len(data) == 8 else ""

    for on_error in (OnError(broken=broken), OnError(broken=broken, replace=True)):
        ahead, _ = prefetcher(on_error=on_error)
        ahead.get(0)
        if on_error.replace:
            assert epoch(ahead)[7] == instead(7, {7})
            assert ahead.loading.substitute.found[0][2] == "path/7 is wrong"
        else:
            with pytest.raises(RecordError, match=r"'path/7': path/7 is wrong"):
                ahead.get(1)
        ahead.close()
