"""dali_storage.dynamic.readers.File beside ndd.readers.File, which is the oracle of all here."""

from __future__ import annotations

import base64
import gc
import inspect
import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
import pytest
import torchdata.nodes
from hypothesis import given, settings
from hypothesis import strategies as st
from nvidia.dali import Pipeline
from nvidia.dali.experimental.dynamic.pytorch import nodes

from dali_storage.cli import index
from dali_storage.dynamic.file_operator import FileOperator
from dali_storage.dynamic.readers import File
from tests.kit.interrupts import interrupted
from tests.kit.process import open_files
from tests.kit.trees import Tree

pytestmark = pytest.mark.usefixtures("pipelines_end")

Make: TypeAlias = Callable[..., Any]
Sample: TypeAlias = tuple[bytes, int]

ORDERS: list[dict[str, Any]] = [
    {},
    {"random_shuffle": True},
    {"random_shuffle": True, "initial_fill": 5, "seed": 7},
    {"shuffle_after_epoch": True},
    {"shuffle_after_epoch": True, "shuffle_after_epoch_seed": 3, "enable_checkpointing": True},
    {"num_shards": 3, "shard_id": 1},
    {"num_shards": 3, "shard_id": 2, "pad_last_batch": True},
    {"num_shards": 3, "shuffle_after_epoch": True},
    {"num_shards": 4, "stick_to_shard": True, "random_shuffle": True, "seed": 5},
    {"prefetch_queue_depth": 4, "pad_last_batch": True},
]


def sample(data: Any, label: Any) -> Sample:
    assert (data.dtype, label.dtype) == (ndd.uint8, ndd.int32)
    assert (data.layout, label.shape) == (None, (1,))
    return np.asarray(data).tobytes(), int(np.asarray(label)[0])


def contents(outputs: tuple[Any, Any]) -> Sample | list[Sample]:
    """A sample or a batch."""
    data, labels = outputs
    if isinstance(data, ndd.Tensor):
        return sample(data, labels)
    return [sample(*pair) for pair in zip(data.tensors, labels.tensors, strict=True)]


def outcome(action: Callable[[], Any]) -> Any:
    """What an action returns, or the type of the error that it raises, with its text."""
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


def both(play: Callable[[Any], Any], **arguments: Any) -> None:
    """Have `play` do the same with a reader of ours and with the real one."""
    with File(dont_use_mmap=True, **arguments) as ours:
        real = ndd.readers.File(dont_use_mmap=True, **arguments)
        assert play(ours) == play(real)


def epochs(
    batch_size: int | None, number: int = 4, **options: Any
) -> Callable[[Any], list[list[Any]]]:
    def play(reader: Any) -> list[list[Any]]:
        every = [
            [contents(outputs) for outputs in reader.next_epoch(batch_size, **options)]
            for _ in range(number)
        ]
        assert all(every)
        return every

    return play


# --- epochs -------------------------------------------------------------------------------------


def test_the_arguments_are_those_of_the_real_reader() -> None:
    ours = inspect.signature(File).parameters
    real = inspect.signature(ndd.readers.File).parameters
    assert ours.keys() - real.keys() == {"backend", "backend_options"}
    assert real.keys() - ours.keys() == {"num_inputs", "_backend"}
    for name in ours.keys() & real.keys():
        assert ours[name].kind == real[name].kind
    assert issubclass(File, ndd.readers.File)


@pytest.mark.parametrize("batch_size", [None, 1, 4, 22, 30])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_epochs_are_equal(tree: Tree, order: dict[str, Any], batch_size: int | None) -> None:
    both(epochs(batch_size), file_root=str(tree(22)), **order)


@pytest.mark.parametrize("backend", [("memory", {}), ("python-file", {"direct": True})], ids=str)
def test_backends_give_the_same_samples(tree: Tree, backend: tuple[str, dict[str, Any]]) -> None:
    name, options = backend
    arguments = {"file_root": str(tree(22)), "random_shuffle": True, "seed": 3}
    real = ndd.readers.File(dont_use_mmap=True, **arguments)
    with File(**arguments, backend=name, backend_options=options) as ours:
        assert epochs(5)(ours) == epochs(5)(real)


@pytest.mark.parametrize(
    "chosen",
    [
        {"file_filters": "*1.jpg"},
        {"file_filters": ["*.JPG"], "case_sensitive_filter": False},
        {"dir_filters": ["class[12]"]},
        {"lazy_init": True},
        {"seed": None, "num_shards": None, "random_shuffle": None, "initial_fill": None},
        {"seed": -1, "random_shuffle": True},
        {"seed": 1.5, "random_shuffle": True, "initial_fill": "5"},
        {"device": ndd.Device("cpu"), "name": "Reader", "tensor_init_bytes": 1, "read_ahead": True},
        {"skip_cached_images": False, "stick_to_shard": 1, "num_shards": 2.0},
    ],
    ids=str,
)
def test_other_arguments_are_equal(tree: Tree, chosen: dict[str, Any]) -> None:
    both(epochs(4, number=2), file_root=str(tree(22)), **chosen)


def test_an_index_is_a_root(tree: Tree, tmp_path: Path) -> None:
    root, made = tree(3), tmp_path / "x.index"
    assert index.main([str(root), "-o", str(made)]) == 0
    with File(file_root=str(made), dont_use_mmap=True) as ours:
        real = ndd.readers.File(file_root=str(root), dont_use_mmap=True)
        assert epochs(2)(ours) == epochs(2)(real)


@pytest.mark.parametrize("labels", [None, [3, -1, 7]])
def test_files_and_lists_are_equal(tree: Tree, tmp_path: Path, labels: list[int] | None) -> None:
    root = tree(3)
    files = [str(file.relative_to(root)) for file in sorted(root.glob("*/*"))]
    both(epochs(2), files=files, file_root=str(root), labels=labels)
    both(epochs(2), files=[str(root / file) for file in files], labels=labels)
    (tmp_path / "list").write_text("".join(f"{file} 4\n" for file in files))
    both(epochs(2), file_list=str(tmp_path / "list"), file_root=str(root))


@st.composite
def orders(draw: st.DrawFn, samples: int) -> dict[str, Any]:
    shards = draw(st.integers(1, min(3, samples)))
    order: dict[str, Any] = {
        "num_shards": shards,
        "shard_id": draw(st.integers(0, shards - 1)),
        "pad_last_batch": draw(st.booleans()),
        "enable_checkpointing": draw(st.booleans()),
        "max_batch_size": draw(st.none() | st.integers(9, 12)),
    }
    return order | draw(
        st.sampled_from(
            [
                {},
                {"stick_to_shard": True},
                {"shuffle_after_epoch": True},
                {"random_shuffle": True, "initial_fill": 4, "seed": 2},
            ]
        )
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data(), samples=st.integers(1, 20), batch_size=st.none() | st.integers(1, 9))
def test_any_epochs_are_equal_also_abandoned_ones(
    data: st.DataObject, samples: int, batch_size: int | None
) -> None:
    order = data.draw(orders(samples))
    taken = data.draw(st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=5))

    def play(reader: Any) -> list[Any]:
        given: list[Any] = []
        for limit in taken:
            epoch = reader.next_epoch(batch_size)
            given.append([contents(outputs) for outputs in islice(epoch, limit)])
        return given

    with tempfile.TemporaryDirectory() as root:
        for index in range(samples):
            path = Path(root, str(index % 2), f"{index}.jpg")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes([index]) * (index % 5))
        both(play, file_root=root, **order)


def test_two_epochs_at_once_take_from_one_stream(tree: Tree) -> None:
    def play(reader: Any) -> list[Any]:
        one, two = reader.next_epoch(3), reader.next_epoch(3)
        turns = [one, two, two, one, reader.next_epoch(3), one]
        return [contents(next(turn)) for turn in turns] + [contents(it) for it in two]

    both(play, file_root=str(tree(22)))


def test_calls_are_equal(tree: Tree) -> None:
    root = str(tree(22))
    both(
        lambda reader: [contents(reader(batch_size=4)) for _ in range(9)],
        file_root=root,
        max_batch_size=4,
    )
    for size in (None, 4):
        both(
            lambda reader: [contents(reader()) for _ in range(9)],
            file_root=root,
            max_batch_size=size,
        )


def test_what_the_real_reader_refuses_is_refused_in_its_words(tree: Tree) -> None:
    def start(reader: Any) -> None:
        next(reader.next_epoch(4))

    mistakes: list[Callable[[Any], Any]] = [
        lambda reader: [start(reader), next(reader.next_epoch(5))],
        lambda reader: [start(reader), next(reader.next_epoch(3))],
        lambda reader: [start(reader), next(reader.next_epoch())],
        lambda reader: [start(reader), reader()],
        lambda reader: [start(reader), next(reader.next_epoch(4, capture=True))],
        lambda reader: next(reader.next_epoch(capture=True)),
        lambda reader: next(reader.next_epoch(99)),
        lambda reader: reader.get_state(),
        lambda reader: [start(reader), reader.get_state()],
        lambda reader: [start(reader), reader.set_state("")],
        lambda reader: reader.set_state(1),
        lambda reader: [reader.get_metadata(), next(reader.next_epoch(4))],
        lambda reader: [reader(batch_size=1), next(reader.next_epoch(1))],
    ]
    for mistake in mistakes:
        both(lambda reader, it=mistake: outcome(lambda: it(reader)), file_root=str(tree(22)))  # type: ignore[misc]
    both(
        lambda reader: outcome(lambda: next(reader.next_epoch(9))),
        file_root=str(tree(22)),
        max_batch_size=8,
    )


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_metadata_is_equal(tree: Tree, order: dict[str, Any]) -> None:
    both(lambda reader: reader.get_metadata(), file_root=str(tree(22)), **order)


# --- capture ------------------------------------------------------------------------------------


def captured(reader: Any, batch_size: int, limits: list[int | None]) -> list[Any]:
    """Epochs of a captured loop, of which some are left early."""
    seen: list[Any] = []
    with ndd.EvalContext():
        ndd.random.set_seed(5)
        for limit in limits:
            seen.append([])
            for data, labels in reader.next_epoch(batch_size, capture=True):
                numbers = ndd.cast(labels, dtype=ndd.float32)
                values = [float(np.asarray(number)[0]) for number in numbers.tensors]
                seen[-1].append((contents((data, labels)), values))
                if len(seen[-1]) == limit:
                    break
    return seen


@pytest.mark.parametrize("limits", [[None] * 4, [2, None, 1, 1, None]], ids=str)
@pytest.mark.parametrize("batch_size", [1, 4, 30])
@pytest.mark.parametrize(
    "order", [order for order in ORDERS if "enable_checkpointing" not in order], ids=str
)
def test_captured_epochs_are_equal(
    tree: Tree, order: dict[str, Any], batch_size: int, limits: list[int | None]
) -> None:
    both(lambda reader: captured(reader, batch_size, limits), file_root=str(tree(22)), **order)


def test_images_and_random_operators_are_equal_in_a_captured_loop(jpegs: Path) -> None:
    def play(reader: Any) -> list[Any]:
        images = []
        with ndd.EvalContext():
            ndd.random.set_seed(5)
            for _ in range(3):
                for data, _ in reader.next_epoch(4, capture=True):
                    decoded = ndd.decoders.image(data, device="cpu")
                    angle = ndd.random.uniform(range=[0, 90], batch_size=4)
                    images += ndd.rotate(decoded, angle=angle, size=[20, 20]).tensors
        return [np.asarray(image).tobytes() for image in images]

    both(play, file_root=str(jpegs), random_shuffle=True, seed=2)


def test_a_captured_loop_that_cannot_be_built_ends_as_the_real_one(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Pipeline, "build", fail)

    def play(reader: Any) -> list[Any]:
        return [outcome(lambda: captured(reader, 4, [None])) for _ in range(2)]

    both(play, file_root=str(tree(22)))


def test_a_captured_loop_reads_ahead_and_says_where_a_file_is_missing(tree: Tree) -> None:
    root = tree(22)
    files = [str(file) for file in sorted(root.glob("*/*"))]
    os.unlink(files[10])
    reader = File(files=files, name="Train")
    seen: list[Any] = []
    with pytest.raises(FileNotFoundError, match=files[10]):
        for data, labels in reader.next_epoch(4, capture=True):
            ndd.cast(labels, dtype=ndd.float32)
            seen.append(contents((data, labels)))
    assert len(seen) == 1  # the first one was traced; the second was still in the pipeline
    with pytest.raises(RuntimeError, match="invalid state due to a previous error"):
        reader.next_epoch(4, capture=True)
    reader.close()


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ORDERS[:-1], ids=str)
def test_a_checkpoint_restores_the_stream_at_every_cut(tree: Tree, order: dict[str, Any]) -> None:
    root = str(tree(11))

    def play(make: Make) -> tuple[list[Any], list[Any]]:
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

    def real(_: ExitStack) -> Any:
        return ndd.readers.File(4, dont_use_mmap=True, file_root=root, **order)

    def ours(readers: ExitStack) -> Any:
        return readers.enter_context(File(4, file_root=root, **order))

    unbroken, following = play(ours)
    assert following == [unbroken[cut + 1 : cut + 6] for cut in range(7)]
    assert (unbroken, following) == play(real)


def batches(reader: Any) -> Iterator[Any]:
    while True:
        for outputs in reader.next_epoch():
            yield contents(outputs)


def test_a_state_is_text(tree: Tree) -> None:
    with File(4, file_root=str(tree(22)), enable_checkpointing=True) as reader:
        stream = batches(reader)
        next(stream)
        state = reader.get_state()
        expected = next(stream)
    for form in (state, str(state), str(state).encode()):
        with File(4, file_root=str(tree(22))) as again:
            again.set_state(form)
            assert next(batches(again)) == expected
            assert again.get_state() != form


FOREIGN = ["", "x", "5", "[]", "{}", '{"batches": 1}', "\x10\xff"] + [
    f'{{"batches": {number}, "batch_size": 4, "samples": 22}}' for number in ("-1", "1.5", '"x"')
]


@pytest.mark.parametrize("state", FOREIGN)
def test_a_foreign_state_is_refused(tree: Tree, state: str) -> None:
    with File(4, file_root=str(tree(22)), name="Train") as reader:
        for given_ in (state, base64.b64encode(state.encode("latin1")).decode()):
            with pytest.raises(ValueError, match=r"File\(name='Train'\): this is no state of it"):
                reader.set_state(given_)
        with pytest.raises(RuntimeError, match="checkpointing disabled"):
            next(batches(reader))  # as if it had not been given
            reader.get_state()


def test_after_a_refused_state_an_earlier_one_and_another_batch_size_work(tree: Tree) -> None:
    root = str(tree(22))
    with File(4, file_root=root, enable_checkpointing=True) as reader:
        expected = list(islice(batches(reader), 3))
    with File(4, file_root=root, enable_checkpointing=True) as reader:
        next(batches(reader))
        state = reader.get_state()
    with File(file_root=root) as reader:
        reader.set_state(state)
        with pytest.raises(ValueError, match="no state of it"):
            reader.set_state("x")
        with pytest.raises(ValueError, match=r"a batch size of 4, and here .* of 5"):
            next(reader.next_epoch(5))
        assert [contents(it) for it in islice(reader.next_epoch(4), 2)] == expected[1:]


def test_states_of_the_real_reader_other_batches_and_other_files_are_refused(tree: Tree) -> None:
    root = str(tree(22))
    real = ndd.readers.File(4, file_root=root, dont_use_mmap=True, enable_checkpointing=True)
    next(real.next_epoch())
    with File(4, file_root=root, enable_checkpointing=True) as reader:
        with pytest.raises(ValueError, match="no state of it"):
            reader.set_state(real.get_state())
        next(reader.next_epoch())
        state = reader.get_state()
    with File(5, file_root=root) as other:
        other.set_state(state)
        with pytest.raises(ValueError, match=r"a batch size of 4, and here .* of 5"):
            next(other.next_epoch())
    with File(4, file_root=root, dir_filters="class1") as other:
        other.set_state(state)
        with pytest.raises(ValueError, match="with 22 samples, and here it is 7 samples"):
            next(other.next_epoch())


# --- torchdata ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 4])
def test_nodes_of_torchdata_are_equal(jpegs: Path, batch_size: int | None) -> None:
    def play(make: Make) -> list[Any]:
        reader = nodes.Reader(
            make, batch_size=batch_size, file_root=str(jpegs), shuffle_after_epoch=True
        )
        seen: list[Any] = [reader.get_metadata()] if batch_size else []
        node = nodes.DictMapper(reader, decode)
        loader = torchdata.nodes.Loader(nodes.ToTorch(node))
        for _ in range(2):
            seen += [(images.tolist(), labels.tolist()) for images, labels in loader]
        return seen

    assert play(File) == play(ndd.readers.File)


def decode(data: Any) -> Any:
    return ndd.resize(ndd.decoders.image(data, device="cpu"), size=[6, 6])


# --- what is refused, what is left --------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"device": "gpu"}, r"device must be 'cpu' in dynamic mode, not 'gpu': data.gpu\(\)"),
        ({"device": "gpu:1"}, "device must be 'cpu' in dynamic mode, not 'gpu:1'"),
        ({"device": "disk"}, "device must be 'cpu' in dynamic mode, not 'disk'"),
        ({"name": 3}, "name must be a string, not 3"),
        ({"max_batch_size": 0}, "max_batch_size must be an integer from 1 to 2147483647, not 0"),
        ({"max_batch_size": "4"}, "max_batch_size must be an integer .* not '4'"),
        ({"num_shards": 0}, "num_shards must be at least 1, not 0"),
        ({"shard_id": 1}, "shard_id must be from 0 to 0, not 1"),
        ({"skip_cached_images": True}, "skip_cached_images must be False"),
        ({"random_shuffle": "False"}, "random_shuffle must be True or False, not 'False'"),
        ({"lazy_init": "no"}, "lazy_init must be True or False, not 'no'"),
        ({"enable_checkpointing": "no"}, "enable_checkpointing must be True or False, not 'no'"),
        ({"random_shuffle": True, "shuffle_after_epoch": True}, "cannot both be True"),
        ({"prefetch_queue_depth": 0}, "prefetch_queue_depth must be from 1 to 65536, not 0"),
        ({"backend": "tape"}, "tape"),
        ({"backend_options": {"speed": 3}}, "speed"),
        ({"backend_options": 3}, "backend_options must be a mapping, not 3"),
        ({"pinned": True}, "unexpected keyword argument 'pinned'"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_at_once(
    tree: Tree, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        File(**{"file_root": str(tree(3))} | arguments)


def test_integers_of_numpy_are_batch_sizes(tree: Tree) -> None:
    root, four = str(tree(22)), np.int64(4)
    both(lambda reader: contents(next(reader.next_epoch(four))), file_root=root)
    both(lambda reader: contents(next(reader.next_epoch())), file_root=root, max_batch_size=four)
    with File(four, file_root=root, enable_checkpointing=True) as reader:
        next(reader.next_epoch())
        json.loads(base64.b64decode(str(reader.get_state())))


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "8", True])
def test_wrong_batch_sizes_are_refused(tree: Tree, batch_size: Any) -> None:
    root = str(tree(3))
    with pytest.raises((RuntimeError, TypeError)):
        next(ndd.readers.File(file_root=root, dont_use_mmap=True).next_epoch(batch_size))
    refusal = pytest.raises(ValueError, match=r"batch_size must be an integer from 1 to .*, not ")
    with File(file_root=root) as reader, refusal:
        next(reader.next_epoch(batch_size))


def test_a_call_with_another_batch_size_is_refused(tree: Tree) -> None:
    with File(max_batch_size=4, file_root=str(tree(9))) as reader:
        for batch_size in (4, None):
            reader(batch_size=batch_size)
        data, _ = reader(batch_size=2)
        with pytest.raises(ValueError) as raised:
            data.evaluate()
    refusal = "batch_size must stay 4, not 2; take another reader"
    assert refusal in f"{raised.value} {raised.value.__cause__}"


def test_missing_files_are_named_and_nothing_is_lost(tree: Tree) -> None:
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


@pytest.mark.parametrize("sizes", [(700, 0, 4096, 1, 5000), (64,)], ids=str)
def test_held_batches_stay_intact(tree: Tree, sizes: tuple[int, ...]) -> None:
    arguments: dict[str, Any] = {"file_root": str(tree(22, sizes=sizes)), "random_shuffle": True}
    real = ndd.readers.File(dont_use_mmap=True, **arguments)
    expected = [contents(outputs) for _ in range(5) for outputs in real.next_epoch(4)]
    with File(**arguments) as reader:
        held = [outputs for _ in range(5) for outputs in reader.next_epoch(4)]
    del reader
    gc.collect()
    assert len(held) == 30
    assert [contents(outputs) for outputs in held] == expected


@pytest.mark.parametrize("point", range(0, 90, 9))
def test_ctrl_c_parts_no_data_from_labels_and_loses_no_more_than_its_batch(
    tree: Tree, point: int
) -> None:
    arguments: dict[str, Any] = {"file_root": str(tree(22)), "max_batch_size": 4}
    real = ndd.readers.File(dont_use_mmap=True, **arguments)
    expected = list(islice(batches(real), 12))
    with File(**arguments) as reader:
        seen = list(islice(batches(reader), 2))
        with pytest.raises(KeyboardInterrupt), interrupted(FileOperator.SetupAndRun, point):
            seen += batches(reader)
        following = list(islice(batches(reader), 4))
    begin = expected.index(following[0])
    assert following == expected[begin : begin + 4]
    assert begin - len(seen) in (0, 1)


def test_what_was_called_before_closing_is_delivered(tree: Tree) -> None:
    arguments: dict[str, Any] = {"file_root": str(tree(22)), "max_batch_size": 4}
    real = ndd.readers.File(dont_use_mmap=True, **arguments)
    expected = [contents(real(batch_size=4)) for _ in range(3)]
    for _ in range(10):
        with File(**arguments) as reader:
            called = [reader(batch_size=4) for _ in range(3)]
        assert [contents(outputs) for outputs in called] == expected


@pytest.mark.parametrize("capture", [False, True])
def test_a_reader_can_be_closed_while_another_thread_waits_for_it(
    tree: Tree, capture: bool
) -> None:
    """As torchdata's Prefetcher has it: its thread runs the reader."""
    root = str(tree(22))
    for _ in range(6):
        reader, errors = File(file_root=root), []

        def run(reader: File = reader, errors: list[Any] = errors) -> None:
            try:
                while True:
                    for _, labels in reader.next_epoch(4, capture=capture):
                        ndd.cast(labels, dtype=ndd.float32)
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.005)
        reader.close()
        thread.join(30)
        assert not thread.is_alive()
        assert "closed" in errors[0] or "invalid" in errors[0]


def our_threads() -> list[str]:
    return [it.name for it in threading.enumerate() if "dali_storage" in it.name]


@pytest.mark.parametrize("capture", [False, True])
@pytest.mark.parametrize("end", ["close", "with", "drop"])
def test_a_reader_leaves_nothing_behind(tree: Tree, end: str, capture: bool) -> None:
    root = str(tree(22))

    def use(reader: Any) -> None:
        for _, labels in reader.next_epoch(4, capture=capture):
            ndd.cast(labels, dtype=ndd.float32)
            break
        assert our_threads()

    use(File(file_root=root))
    before = open_files()
    assert our_threads() == []
    reader = File(file_root=root)
    if end == "with":
        with reader as entered:
            use(entered)
    else:
        use(reader)
    if end == "close":
        reader.close()
        reader.close()
    if end != "drop":
        assert our_threads() == []
        with pytest.raises(RuntimeError, match=r"File.* is closed"):
            while True:
                use(reader)
    del reader
    gc.collect()
    assert our_threads() == []
    assert open_files() <= before


def test_a_dropped_reader_is_closed_without_the_garbage_collector(tree: Tree) -> None:
    reader = File(file_root=str(tree(22)))
    next(reader.next_epoch(4))
    assert our_threads()
    gc.disable()
    try:
        del reader
        assert our_threads() == []
    finally:
        gc.enable()


def test_a_fork_cannot_use_the_files_of_its_parent(tree: Tree) -> None:
    with File(file_root=str(tree(22))) as reader:
        next(reader.next_epoch(4))
        with warnings.catch_warnings():  # of a fork with threads, which is what is tested
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            says = outcome(lambda: next(reader.next_epoch(4)))
            os._exit(17 if says[0] is RuntimeError and "fork" in says[1] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
