"""`prove` finds nothing where nothing differs, and each of many planted faults by its check."""

import dataclasses
import errno
import os
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.catalog import CatalogBuilder
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.contract.format import Format
from dali_storage.dali.comparing import VARIANTS
from dali_storage.order.resuming.state import SavedPositions
from dali_storage.order.shards import Shards
from dali_storage.order.streams import Lists
from dali_storage.proof import checks
from dali_storage.proof.checks import compare
from dali_storage.proof.subject import CannotCompareError, Subject
from dali_storage.reading import source
from dali_storage.reading.position import Position
from dali_storage.reading.prefetch import Prefetcher
from dali_storage.reading.source import BatchStream
from dali_storage.samples import discovery
from dali_storage.saving import positions
from tests.kit.devices import disk
from tests.kit.layouts import make_map

COUNT = 150
CHECKS = 2 + len(VARIANTS) + 2


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Seven classes, one hidden, with names in upper and lower case, one larger than a page."""
    made, r = tmp_path_factory.mktemp("set"), random.Random(3)
    for number in range(COUNT):
        folder = made / (".hidden" if number % 7 == 6 else f"class{number % 7}")
        folder.mkdir(exist_ok=True)
        name = r.choice([f"{number}.jpg", f"A{number}.png", f"a{number}.PNG", f"b{number}.webp"])
        (folder / name).write_bytes(r.randbytes(r.randint(100, 3000)))
    (made / "class0" / "large.jpg").write_bytes(r.randbytes(200_000))
    return str(made)


def found(root, most=10_000, seconds=600.0, backend=None, **options):
    return [*compare(Subject(root, backend, options, {}, seconds), most, 0)]


def make(root, count, size=40):
    """A data set of so many samples in two classes."""
    for number in range(count):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(bytes([number]) * size)
    return str(root)


@pytest.mark.parametrize("backend", ["python-file", pytest.param("memory", marks=pytest.mark.long)])
def test_nothing_differs_where_nothing_is_wrong(backend, root):
    checks = found(root, backend=backend)
    assert len(checks) == CHECKS
    assert [each.differences for each in checks] == [0] * CHECKS
    assert [each.first for each in checks] == [[]] * CHECKS
    assert {each.samples for each in checks[:2]} == {COUNT + 1}
    assert all(f"2 epochs of {COUNT + 1} samples" in each.compared for each in checks[2:])


@pytest.mark.parametrize(
    "count",
    [
        1,
        3,
        pytest.param(0, marks=pytest.mark.long),
        *(pytest.param(count, marks=pytest.mark.long) for count in (2, *range(4, 13))),
    ],
)
def test_a_few_samples_are_enough_for_what_can_be_compared(count, tmp_path):
    """Of 0 bytes, too."""
    checks = found(make(tmp_path, count or 5, size=count))
    assert [each.differences for each in checks] == [0] * CHECKS, checks
    ranks = [bool(each.samples) for each in checks[-2:]]
    assert ranks == [(count or 5) >= 4, (count or 5) >= 6]


def after(change):
    """A method with another result: `change` is given the result, and the arguments."""

    def plant(real):
        return lambda *given, **named: change(real(*given, **named), *given, **named)

    return plant


def before(change):
    """A method with other arguments."""
    return lambda real: lambda self, *given: real(self, *change(self, *given))


def spoils(change):
    """A `Reader.read()` that delivers other bytes: `change` is given those of each sample."""

    def spoil(_, reader, batch, lane):
        memory = np.frombuffer(batch.buffer, np.uint8)
        for sample, at, size in zip(batch.samples, batch.offsets, batch.sizes, strict=True):
            change(int(sample), memory[at : at + size])

    return PythonFileReader, "read", after(spoil)


def flip_in_the_large_one(sample, content):
    if content.size > 100_000:
        content[content.size // 2] ^= 1


def stale_block(sample, content):
    if sample == 77:
        content[:512] = 0


def cut_short(sample, content):
    if sample % 50 == 11:
        content[-1] = 0


def options(**changes):
    """Our reader is given another order."""

    def change(self, **settings):
        made = {name: value(getattr(self.options, name)) for name, value in changes.items()}
        self.options = dataclasses.replace(self.options, **made)
        return settings

    return (
        BatchStream,
        "configure",
        lambda real: lambda self, **it: real(self, **change(self, **it)),
    )


def given(by):
    """A resumed reader believes that so many samples more were given."""

    def change(found, *_):
        position, rest, state = found
        return position, dataclasses.replace(rest, given=rest.given + by), state

    return SavedPositions, "read_state", after(change)


def count_from_1(real):
    return lambda self, names, labels, **it: real(self, names, [1 + n for n in labels], **it)


def restored_late(self, checkpoint):
    return ({**checkpoint, "batches": checkpoint["batches"] + 1},)


def blank_when_resumed(_, stream, state):
    """The bytes of all samples that a resumed reader delivers are 0."""
    reader = stream.open()[1]
    _, _, spoil = spoils(lambda sample, content: content.fill(0))
    whole = type(reader).read
    reader.read = lambda *given: spoil(whole)(reader, *given)


def fails(error):
    def plant(real):
        def method(*given, **named):
            raise error

        return method

    return plant


BYTES, SHUFFLED, LATER = "bytes on the storage", "random_shuffle", "shuffle_after_epoch"
SEEDED = "random_shuffle, seed, initial_fill"
FAULTS = {
    "a shard that starts a sample late": (
        (Shards, "start", after(lambda it, self, k: it + (0 < k < self._count))),
        "list order",
    ),
    "another seed": (
        (BatchStream, "configure", lambda real: lambda self, **it: real(self, **it | {"seed": 2})),
        SHUFFLED,
    ),
    "a window that is too small": (options(initial_fill=lambda it: 50), SHUFFLED),
    "a shard in which the reader stays": (options(stick_to_shard=lambda it: True), "list order"),
    "a second epoch like the first": (
        (Lists, "of_epoch", before(lambda self, epoch: (0,))),
        LATER,
    ),
    "labels in another order": (
        (BatchStream, "labels", after(lambda it, *_: it[::-1].copy())),
        "label",
    ),
    "labels of one byte": ((BatchStream, "labels", after(lambda it, *_: it & 3)), "label"),
    "classes that count from 1": (
        (CatalogBuilder, "extend", count_from_1),
        "label",
    ),
    "a bit that flips": (spoils(flip_in_the_large_one), "large.jpg: SHA-256"),
    "a block of the file that was there before": (spoils(stale_block), "CRC-32"),
    "a short read": (spoils(cut_short), BYTES),
    "samples that are a byte short": (
        (PythonFileReader, "sizes", after(lambda it, *_: it - (it > 100_000))),
        "SampleChangedError",
    ),
    "slots in another order": (
        (Format, "decode", after(lambda it, *_: ([*it[0]][::-1],))),
        "CRC-32",
    ),
    "a batch that comes twice": (
        (Position, "next", lambda real: property(lambda self: max(real.fget(self) - 1, 0))),
        "list order",
    ),
    "a checkpoint of the batch after": (
        (positions, "restore", before(restored_late)),
        "restored",
    ),
    "a sample that is repeated after a resume": (given(-1), "is given 2 times"),
    "a sample that is lost after a resume": (given(1), "is given 0 times"),
    "names in the order of a dictionary": (
        (discovery, "sorted", lambda real: lambda it: sorted(it, key=bytes.lower)),
        "name",
    ),
    "a kind of images that is not found": (
        (discovery, "file_filters_of", lambda real: lambda given: ["*.jpg", "*.png"]),
        "samples instead of",
    ),
    "hidden classes that are left out": (
        (
            discovery.Directory,
            "directories",
            after(lambda it, *_: [n for n in it if n[:1] != b"."]),
        ),
        "samples instead of",
    ),
    "a reader that fails late": (
        (
            PythonFileReader,
            "read",
            before(lambda self, batch, lane: (batch, 1 // (77 not in batch.samples))),
        ),
        "ZeroDivisionError",
    ),
    "a reader that does not open": ((PythonFileReader, "open", fails(KeyError("x"))), "KeyError"),
    "a reader that cannot read": (
        (PythonFileReader, "read", fails(RuntimeError("x"))),
        "RuntimeError: x",
    ),
    "wrong bytes after a resume": (
        (positions, "resume", after(blank_when_resumed)),
        "has the CRC-32",
    ),
    "a state that is right on the first rank only": (
        (
            SavedPositions,
            "state",
            after(lambda it, self, *_: it | {"given": it["given"] + self._order.shard_id}),
        ),
        "3 ranks and then 2",
    ),
    "a stick_to_shard that is ignored": (
        options(stick_to_shard=lambda it: False),
        "stick_to_shard",
    ),
    "a pad_last_batch that is ignored": (
        options(pad_last_batch=lambda it: False),
        "pad_last_batch",
    ),
    "an initial_fill that is ignored": (options(initial_fill=lambda it: 1024), SEEDED),
    "a seed that is ignored": (options(seed=lambda it: -1), SEEDED),
    "a shuffle_after_epoch_seed that is ignored": (
        options(shuffle_after_epoch_seed=lambda it: None),
        "shuffle_after_epoch_seed",
    ),
    "metadata of another epoch": (
        (source, "reader_meta", after(lambda it, *_: it | {"epoch_size": it["epoch_size"] - 1})),
        "reader_meta()",
    ),
}
if "shuffle_after_epoch_seed" not in VARIANTS:  # DALI has none
    del FAULTS["a shuffle_after_epoch_seed that is ignored"]


IN_SHORT = [
    "another seed",
    "an initial_fill that is ignored",
    "a short read",
    "wrong bytes after a resume",
    "a reader that does not open",
    "a reader that cannot read",
]


@pytest.mark.parametrize(
    "fault", [it if it in IN_SHORT else pytest.param(it, marks=pytest.mark.long) for it in FAULTS]
)
def test_a_planted_fault_is_found(fault, root, monkeypatch):
    (owner, name, plant), expected = FAULTS[fault]
    real = getattr(owner, name, None)
    monkeypatch.setattr(owner, name, plant(real), raising=False)
    wrong = [each for each in found(root) if each.differences]
    text = "\n".join([line for each in wrong for line in (each.name, *each.first)])
    assert expected in text, text


def test_the_count_is_that_of_the_samples_that_differ(root, monkeypatch):
    """One that is missing is not counted again for all behind it."""
    owner, name, plant = spoils(stale_block)
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))
    assert [each.differences for each in found(root, most=1)[:2]] == [1, 0]
    monkeypatch.undo()
    left_out = after(lambda it, *_: [name for name in it if b"77" not in name])
    monkeypatch.setattr(discovery.Directory, "files", left_out(discovery.Directory.files))
    listed = next(compare(Subject(root, None, {}, {}, 600.0), 10_000, 0))
    assert listed.differences == 2
    assert listed.first[0] == f"{COUNT} samples instead of {COUNT + 1}"


def test_the_time_is_kept_by_a_backend_that_needs_a_second_for_a_sample(root, monkeypatch):
    now = [0.0]

    def late(_, reader, batch, lane):
        now[0] += len(batch.samples)

    monkeypatch.setattr(PythonFileReader, "read", after(late)(PythonFileReader.read))
    # Lanes read small batches ahead, many at once, whatever this clock says.
    monkeypatch.setitem(Prefetcher.__init__.__kwdefaults__, "most", 1)
    for module in ("subject", "checks"):
        clock = SimpleNamespace(monotonic=lambda: now[0])
        monkeypatch.setattr(f"dali_storage.proof.{module}.time", clock)
    checks = found(root, seconds=600)
    assert [each.differences for each in checks] == [0] * CHECKS
    assert 0 < checks[0].samples <= COUNT
    assert checks[0].compared == f"{checks[0].samples} of {COUNT + 1} samples"
    assert all(each.samples for each in checks)
    assert now[0] < 1200


def test_less_is_compared_where_there_is_no_time(root):
    checks = found(root, seconds=1e-6)
    assert [each.differences for each in checks] == [0] * CHECKS
    assert [each.samples for each in checks[:2]] == [1, 6]
    assert all(0 < each.samples < 12 for each in checks[2 : 2 + len(VARIANTS)])


def test_batches_of_large_samples_are_small(tmp_path):
    for size, expected in ((100, 32), (4 << 20, 4), (1 << 30, 1)):
        path = make(tmp_path, 1, size=0)
        os.truncate(f"{path}/class0/0.jpg", size)
        assert Subject(path, None, {}, {}, 600.0).at_once == expected


def rewrite(path):
    (path / "class0" / "0.jpg").write_bytes(b"1")


def replace_by_the_same(path):
    shutil.copy(path / "class0" / "0.jpg", path / "new")
    os.replace(path / "new", path / "class0" / "0.jpg")


def touch(path):
    os.utime(path / "class1" / "1.jpg")


LONG = [pytest.param(it, marks=pytest.mark.long) for it in (replace_by_the_same, shutil.rmtree)]


@pytest.mark.parametrize("change", [rewrite, touch, *LONG])
def test_a_data_set_that_is_written_to_meanwhile_is_not_judged(change, tmp_path, monkeypatch):
    """Whether anything differs or not."""
    path, real = tmp_path / "set", checks.compare_order
    path.mkdir()
    root, todo = make(path, 40), [change]

    def compare_order(*given):
        for each in todo[:]:
            todo.remove(each)
            each(path)
        real(*given)

    monkeypatch.setattr(checks, "compare_order", compare_order)
    with pytest.raises(CannotCompareError, match=r"/set.* has changed since the comparison began"):
        found(root)


MACHINE = [
    BackendUnavailable("no GPU"),
    MemoryError("no memory"),
    OSError(errno.EMFILE, "too many", "/x"),
    OSError(errno.EACCES, "keys", "s3://b/x"),
    OSError(errno.ENOENT, "gone", "/etc/a-map"),
]


@pytest.mark.parametrize("error", MACHINE, ids=repr)
@pytest.mark.parametrize("method", ["open", pytest.param("read", marks=pytest.mark.long)])
def test_an_error_of_the_machine_is_no_difference(method, error, root, monkeypatch):
    monkeypatch.setattr(PythonFileReader, method, fails(error)(None))
    with pytest.raises(type(error)) as caught:
        found(root)
    if isinstance(error, MemoryError) and method == "read":  # told with the reader and the batch
        assert str(caught.value).endswith(f"(name='ours'): batch 0 of 32 samples: {error}")
    else:
        assert caught.value is error


def test_an_error_of_the_plain_read_is_no_difference(root, monkeypatch):
    monkeypatch.setattr(checks.Path, "read_bytes", fails(OSError(errno.EIO, "bad"))(None))
    with pytest.raises(CannotCompareError, match=r"a plain read fails: .*bad"):
        found(root)


def test_what_dali_cannot_read_has_no_result(tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "gone.jpg").symlink_to("/nowhere")
    words = r"DALI's own reader fn.readers.file fails: .*gone\.jpg"
    with pytest.raises(CannotCompareError, match=words):
        found(str(tmp_path))


def test_names_that_are_not_utf_8_are_refused(tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / os.fsdecode(b"\xff.jpg")).write_bytes(b"1")
    with pytest.raises(CannotCompareError, match=r"xff.jpg' is not UTF-8"):
        found(str(tmp_path))


@pytest.mark.long
def test_a_stale_map_is_a_difference_that_names_the_file(tmp_path):
    with disk(tmp_path, "ext4") as made:
        root, bmap = make(made.mount, 40), tmp_path / "bmap.json"
        make_map(made.mount, bmap)
        whole = found(root, backend="block", bmap=str(bmap))
        assert [each.differences for each in whole] == [0] * CHECKS
        with open(made.mount / "class1" / "21.jpg", "ab") as file:
            file.write(b"more")
        (stale,) = found(root, backend="block", bmap=str(bmap))
    assert "StaleMapError" in stale.first[0]
    assert "class1/21.jpg" in stale.first[0]
