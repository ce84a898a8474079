"""States of dali_storage.dynamic.readers.File, what it refuses, and what it leaves behind."""

import base64
import gc
import json
import os
import threading
import time
from contextlib import ExitStack, nullcontext
from itertools import islice

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
import pytest

from dali_storage.contract.errors import ContainerChangedError, StaleMapError
from dali_storage.dynamic import readers
from dali_storage.dynamic.readers import File
from dali_storage.dynamic.reading_operator import ReadingOperator
from tests.kit.dynamic import ORDERS, batches, both, contents, real_reader
from tests.kit.interrupts import interrupted
from tests.kit.process import SECONDS, descriptors, lanes, without_collector

pytestmark = pytest.mark.usefixtures("pipelines_end")
CAPTURE = pytest.param({"capture": True}, marks=pytest.mark.dali("2.3"), id="capture")


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS[:-1], ids=str)
def test_a_checkpoint_restores_the_stream_at_every_cut(tree, order):
    root = str(tree(11))

    def play(make):
        """The unbroken stream, and what a reader restored at each cut gives."""
        with ExitStack() as readers:
            saved, states, unbroken = ndd.checkpoint.Checkpoint(), [], []
            reader = make(readers)
            saved.register(reader, "reader")
            reader.get_metadata()  # DALI's reader has a state when it is open
            for outputs in islice(batches(reader), 12):
                unbroken.append(outputs)
                saved.collect()
                states.append(saved.serialize())
            following = []
            for state in states[:7]:
                again, loaded = make(readers), ndd.checkpoint.Checkpoint()
                loaded.deserialize(state)
                loaded.register(again, "reader")
                following.append(list(islice(batches(again), 5)))
        return unbroken, following

    def real(_):
        return ndd.readers.File(4, dont_use_mmap=True, file_root=root, **order)

    def ours(readers):
        return readers.enter_context(File(4, file_root=root, **order))

    unbroken, following = play(ours)
    assert following == [unbroken[cut + 1 : cut + 6] for cut in range(7)]
    assert (unbroken, following) == play(real)


@pytest.fixture
def root(tree):
    return str(tree(22))


@pytest.fixture
def saved(root):
    """A state after the first batch of four samples, and the two batches that follow."""
    with File(4, file_root=root, enable_checkpointing=True) as reader:
        stream = batches(reader)
        next(stream)
        state = reader.get_state()
        return state, [next(stream), next(stream)]


def test_a_state_may_be_text_or_bytes(root, saved):
    state, following = saved
    for form in (state, str(state), str(state).encode()):
        with File(4, file_root=root) as again:
            again.set_state(form)
            assert next(batches(again)) == following[0]
            assert again.get_state() != form


FOREIGN = ["", "x", "5", "[]", "{}", '{"batches": 1}', "\x10\xff"] + [
    f'{{"batches": {number}, "batch_size": 4, "samples": 22}}' for number in ("-1", "1.5", '"x"')
]


@pytest.mark.parametrize("state", FOREIGN)
def test_a_foreign_state_is_refused(root, state):
    with File(4, file_root=root, name="Train") as reader:
        for given_ in (state, base64.b64encode(state.encode("latin1")).decode()):
            with pytest.raises(
                ValueError, match=r"File\(name='Train'\): not a state of this reader"
            ):
                reader.set_state(given_)
        with pytest.raises(RuntimeError, match="checkpointing disabled"):
            next(batches(reader))  # as if it had not been given
            reader.get_state()


def test_a_state_is_refused_for_another_batch_size_other_files_or_of_dalis_reader(root, saved):
    state, following = saved
    real = real_reader(max_batch_size=4, file_root=root, enable_checkpointing=True)
    next(real.next_epoch())
    with File(file_root=root) as reader:
        reader.set_state(state)
        for other in ("x", real.get_state()):  # the earlier one stays
            with pytest.raises(ValueError, match="not a state of this reader"):
                reader.set_state(other)
        with pytest.raises(ValueError, match=r"a batch size of 4, but .* of 5: use the same size"):
            next(reader.next_epoch(5))
        assert [contents(it) for it in islice(reader.next_epoch(4), 2)] == following
    with File(4, file_root=root, dir_filters="class1") as reader:
        reader.set_state(state)
        with pytest.raises(ValueError, match="with 22 samples, but this reader has 7 samples"):
            next(reader.next_epoch())


# --- what is refused, what is left --------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (File, {"device": "gpu"}, r"device must be 'cpu' in dynamic mode, not 'gpu': data.gpu\(\)"),
        (File, {"device": "gpu:1"}, "device must be 'cpu' in dynamic mode, not 'gpu:1'"),
        (File, {"name": 3}, "name must be a string, not 3"),
        (File, {"max_batch_size": 0}, "File: max_batch_size must be .* from 1 to 2147483647, no"),
        (File, {"max_batch_size": "4"}, "max_batch_size must be an integer .* not '4'"),
        (File, {"lazy_init": "no"}, "lazy_init must be True or False, not 'no'"),
        (File, {"enable_checkpointing": "no"}, "enable_checkpointing must be .*, not 'no'"),
        (File, {"shard_id": 1}, "shard_id must be .*, not 1"),
        (readers.Webdataset, {"ext": "n"}, "missing .* argument: 'paths'"),
        (readers.Numpy, {"resume": {}}, r"Numpy.* unexpected .* argument 'resume'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_at_once(make, arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make(**({"file_root": "/no"} if make is File else {}) | arguments)


@pytest.mark.parametrize(
    ("change", "mine"),
    [
        ({"file_root": "/no"}, FileNotFoundError),
        ({"file_root": None, "files": ["/no/x"]}, FileNotFoundError),
        ({"file_root": None}, ValueError),
        ({"num_shards": 99}, ValueError),
        ({"file_filters": "*.none"}, ValueError),
    ],
    ids=str,
)
def test_errors_have_these_classes_in_dynamic_mode(root, change, mine):
    for make, kind in ((real_reader, RuntimeError), (File, mine)):
        with pytest.raises(Exception) as caught:
            next(make(**{"file_root": root} | change).next_epoch(4))[0].evaluate()
        assert caught.type is kind


def test_integers_of_numpy_are_batch_sizes(root):
    four = np.int64(4)
    both(lambda reader: contents(next(reader.next_epoch(four))), file_root=root)
    both(lambda reader: contents(next(reader.next_epoch())), file_root=root, max_batch_size=four)
    with File(four, file_root=root, enable_checkpointing=True) as reader:
        next(reader.next_epoch())
        json.loads(base64.b64decode(str(reader.get_state())))


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "8", True])
def test_wrong_batch_sizes_are_refused(tree, batch_size):
    root = str(tree(3))
    with pytest.raises((RuntimeError, TypeError)):
        next(ndd.readers.File(file_root=root, dont_use_mmap=True).next_epoch(batch_size))
    refusal = pytest.raises(ValueError, match=r"batch_size must be an integer from 1 to .*, not ")
    with File(file_root=root) as reader, refusal:
        next(reader.next_epoch(batch_size))


def test_a_call_with_another_batch_size_is_refused(tree):
    with File(max_batch_size=4, file_root=str(tree(9))) as reader:
        for batch_size in (4, None):
            reader(batch_size=batch_size)
        data, _ = reader(batch_size=2)
        with pytest.raises(ValueError) as raised:
            data.evaluate()
    refusal = "batch_size must stay 4, not 2; use another reader"
    assert refusal in f"{raised.value} {raised.value.__cause__}"


def test_missing_files_are_named_and_nothing_is_lost(tree):
    root = tree(9, sizes=(10,))
    with pytest.raises(FileNotFoundError, match="absent"):
        next(File(file_root=str(root / "absent")).next_epoch(4))
    files = [str(file) for file in sorted(root.glob("*/*"))]
    os.rename(files[5], files[5] + "~")
    with File(files=files, labels=list(range(9))) as reader:
        epoch = reader.next_epoch(4)
        labels = [label for _, label in contents(next(epoch))]
        for _ in range(2):
            with pytest.raises(FileNotFoundError, match=files[5]):
                next(reader.next_epoch(4))
        os.rename(files[5] + "~", files[5])
        labels += [label for _, label in contents(next(reader.next_epoch(4)))]
        assert labels == list(range(8))


@pytest.mark.parametrize("point", range(0, 90, 9))
def test_ctrl_c_parts_no_data_from_labels_and_loses_no_more_than_its_batch(root, point):
    arguments = {"file_root": root, "max_batch_size": 4}
    real = real_reader(**arguments)
    expected = list(islice(batches(real), 12))
    with File(**arguments) as reader:
        seen = list(islice(batches(reader), 2))
        with pytest.raises(KeyboardInterrupt), interrupted(ReadingOperator.SetupAndRun, point):
            seen += batches(reader)
        following = list(islice(batches(reader), 4))
    begin = expected.index(following[0])
    assert following == expected[begin : begin + 4]
    assert begin - len(seen) in (0, 1)


class NeedsTwoError(LookupError):
    """An error of a user's backend."""

    def __init__(self, one, two):
        super().__init__(one, two)


SYNC = ndd.EvalMode.sync_cpu
ERRORS = [
    (FileNotFoundError(2, "gone", "/a"), FileNotFoundError),
    (ContainerChangedError(b"/a", "written to"), ContainerChangedError),
    (StaleMapError(b"/a", "moved", "map it again"), StaleMapError),
    (KeyError("k"), KeyError),
    (UnicodeDecodeError("utf8", b"x", 0, 1, "bad"), UnicodeError),
    (ExceptionGroup("g", [ValueError("1")]), RuntimeError),
    (NeedsTwoError(1, 2), LookupError),
    (Exception("plain"), Exception),
]


@pytest.mark.parametrize("mode", [ndd.EvalMode.deferred, ndd.EvalMode.eager, SYNC], ids=str)
@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=lambda it: type(it).__name__)
def test_the_error_of_a_call_keeps_its_type_and_attributes(root, monkeypatch, mode, error, kind):
    def fail(*_):
        raise error

    with mode, File(4, file_root=root) as reader:
        monkeypatch.setattr(ReadingOperator, "SetupAndRun", fail)
        with pytest.raises(Exception) as raised:
            reader(batch_size=4)[0].evaluate()
    if mode is SYNC:
        assert raised.value is error
    else:
        assert type(raised.value) is kind
        causes = [raised.value.__cause__, raised.value.__cause__.__cause__]
        assert causes[type(error) is not kind] is error


def test_batches_that_were_called_before_closing_are_delivered(root):
    arguments = {"file_root": root, "max_batch_size": 4}
    real = real_reader(**arguments)
    expected = [contents(real(batch_size=4)) for _ in range(3)]
    for _ in range(10):
        with File(**arguments) as reader:
            called = [reader(batch_size=4) for _ in range(3)]
        assert [contents(outputs) for outputs in called] == expected


@pytest.mark.parametrize("capture", [{}, CAPTURE])
def test_a_reader_can_be_closed_while_another_thread_waits_for_it(root, capture):
    """As torchdata's Prefetcher has it: its thread runs the reader."""
    for _ in range(6):
        reader, errors = File(file_root=root), []

        def run(reader=reader, errors=errors):
            try:
                while True:
                    for _, labels in reader.next_epoch(4, **capture):
                        ndd.cast(labels, dtype=ndd.float32)
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.005)
        reader.close()
        thread.join(300)
        assert not thread.is_alive()
        assert "closed" in errors[0] or "invalid" in errors[0]


def test_close_ends_the_wait_of_another_thread_for_storage(root, monkeypatch):
    stream = File(file_root=root)._source
    stream.configure(batch_size=4, seed=None, checkpointing=False)
    stream.start(device_id=None)
    reader, begun, go, errors = stream.open().reader, threading.Event(), threading.Event(), []
    monkeypatch.setattr(reader, "sizes", lambda *it: (begun.set(), go.wait(), it[0])[2])
    monkeypatch.setattr(reader, "cancel", go.set)

    def wait():
        try:
            stream.batch()
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=it, daemon=True) for it in (wait, stream.close)]
    for thread in threads:
        thread.start()
        assert begun.wait(SECONDS)
    for thread in threads:
        thread.join(SECONDS)
    assert "is closed; make another reader" in errors[0]


@pytest.mark.parametrize("capture", [{}, CAPTURE])
@pytest.mark.parametrize("end", ["close", "with", "drop"])
def test_a_reader_leaves_no_thread_and_no_file_behind(root, end, capture):
    before = lanes()

    def use(reader):
        for _, labels in reader.next_epoch(4, **capture):
            ndd.cast(labels, dtype=ndd.float32)
            break
        assert lanes() - before

    reader = File(file_root=root)
    with reader if end == "with" else nullcontext():
        use(reader)
    if end == "close":
        reader.close()
        reader.close()
    if end != "drop":
        assert lanes() <= before
        with pytest.raises(RuntimeError, match=r"File.* is closed; make another reader to read"):
            while True:
                use(reader)
    with nullcontext() if capture else without_collector():
        del reader
        if capture:  # DALI keeps it in a reference cycle
            gc.collect()
        assert lanes() <= before
        assert not descriptors(below=root)
