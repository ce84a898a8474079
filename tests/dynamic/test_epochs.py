"""dali_storage.dynamic.readers.File gives the epochs of ndd.readers.File."""

import inspect
import os
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvidia.dali import Pipeline

from dali_storage.dynamic import readers
from dali_storage.dynamic.readers import File
from tests.kit.dynamic import ORDERS, both, contents, epochs, outcome

pytestmark = pytest.mark.usefixtures("pipelines_end")
LONG = pytest.mark.long
CAPTURE = pytest.mark.dali("2.3")
NEW = {"File": {"exclude"}, "Webdataset": {"shuffle", "split"}, "TFRecord": {"shuffle", "verify"}}


# --- epochs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", readers.__all__)
def test_the_arguments_are_those_of_the_real_reader(name):
    reader, real_reader = getattr(readers, name), getattr(ndd.readers, name)
    ours, real = inspect.signature(reader).parameters, inspect.signature(real_reader).parameters
    new = {"backend", "backend_options", "buffer_bytes", "source_info", "stall_after"}
    new |= NEW.get(name, set())
    assert ours.keys() - real.keys() == new
    assert real.keys() - ours.keys() == {"num_inputs", "_backend"}
    for each in ours.keys() & real.keys():
        assert ours[each].kind == real[each].kind
    assert issubclass(reader, real_reader)


@pytest.mark.parametrize("capture", [False, pytest.param(True, marks=CAPTURE)])
def test_samples_are_named_if_wanted(tree, capture):
    def names(reader):
        epoch = reader.next_epoch(batch_size=4, **{"capture": True} if capture else {})
        found = [ndd.get_property(data, key="source_info") for data, _ in epoch]
        return [bytes(np.asarray(each)) for batch in found for each in batch.tensors]

    root = str(tree(6, sizes=(9,)))
    expected = names(ndd.readers.File(file_root=root))
    assert names(File(file_root=root, source_info=True)) == expected
    assert not any(names(File(file_root=root)))


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
def test_other_arguments_have_the_effect_of_dalis(tree, chosen):
    both(epochs(4, number=2), file_root=str(tree(22)), **chosen)


@given(
    order=st.sampled_from(ORDERS),
    more=st.fixed_dictionaries(
        {},
        optional={
            "pad_last_batch": st.booleans(),
            "enable_checkpointing": st.booleans(),
            "max_batch_size": st.integers(9, 12),
        },
    ),
    samples=st.integers(1, 20),
    batch_size=st.none() | st.integers(1, 9),
    taken=st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=5),
)
def test_any_epochs_are_those_of_dalis_reader_also_abandoned_ones(
    order, more, samples, batch_size, taken
):
    samples = max(samples, order.get("num_shards", 1))

    def play(reader):
        given = []
        for limit in taken:
            epoch = reader.next_epoch(batch_size)
            given.append([contents(outputs) for outputs in islice(epoch, limit)])
        return given

    with tempfile.TemporaryDirectory() as root:
        for index in range(samples):
            path = Path(root, str(index % 2), f"{index}.jpg")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes([index]) * (index % 5))
        both(play, file_root=root, **order | more)


def test_two_epochs_at_once_take_from_one_stream(tree):
    def play(reader):
        one, two = reader.next_epoch(3), reader.next_epoch(3)
        turns = [one, two, two, one, reader.next_epoch(3), one]
        return [contents(next(turn)) for turn in turns] + [contents(it) for it in two]

    both(play, file_root=str(tree(22)))


def test_mistakes_that_dalis_reader_refuses_are_refused_in_its_words(tree):
    def start(reader):
        next(reader.next_epoch(4))

    mistakes = [
        lambda reader: [start(reader), next(reader.next_epoch(5))],
        lambda reader: [start(reader), next(reader.next_epoch(3))],
        lambda reader: [start(reader), next(reader.next_epoch())],
        lambda reader: [start(reader), reader()],
        lambda reader: next(reader.next_epoch(99)),
        lambda reader: reader.get_state(),
        lambda reader: [start(reader), reader.get_state()],
        lambda reader: [start(reader), reader.set_state("")],
        lambda reader: reader.set_state(1),
        lambda reader: [reader.get_metadata(), next(reader.next_epoch(4))],
        lambda reader: [reader(batch_size=1), next(reader.next_epoch(1))],
    ]
    for mistake in mistakes:
        both(lambda reader, it=mistake: outcome(lambda: it(reader)), file_root=str(tree(22)))
    both(
        lambda reader: outcome(lambda: next(reader.next_epoch(9))),
        file_root=str(tree(22)),
        max_batch_size=8,
    )


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_metadata_is_that_of_dalis_reader(tree, order):
    both(lambda reader: reader.get_metadata(), file_root=str(tree(22)), **order)


# --- capture ------------------------------------------------------------------------------------


def captured(reader, batch_size, limits):
    """Epochs of a captured loop, of which some are left early."""
    seen = []
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


@CAPTURE
@pytest.mark.parametrize("limits", [[None] * 4, [2, None, 1, 1, None]], ids=str)
@pytest.mark.parametrize("batch_size", [4, *(pytest.param(size, marks=LONG) for size in (1, 30))])
@pytest.mark.parametrize(
    "order", [order for order in ORDERS if "enable_checkpointing" not in order], ids=str
)
def test_captured_epochs_are_those_of_dalis_reader(tree, order, batch_size, limits):
    both(lambda reader: captured(reader, batch_size, limits), file_root=str(tree(22)), **order)


@CAPTURE
@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_captured_loop_without_the_batch_size_of_the_reader_is_refused(tree, batch_size):
    def play(reader):
        if batch_size:
            next(reader.next_epoch(batch_size))
        return outcome(lambda: next(reader.next_epoch(batch_size and 4, capture=True)))

    both(play, file_root=str(tree(22)))


@CAPTURE
def test_a_captured_loop_that_cannot_be_built_ends_as_the_real_one(tree, monkeypatch):
    def fail(_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(Pipeline, "build", fail)

    def play(reader):
        return [outcome(lambda: captured(reader, 4, [None])) for _ in range(2)]

    both(play, file_root=str(tree(22)))


@CAPTURE
def test_a_captured_loop_reads_ahead_and_says_where_a_file_is_missing(tree):
    root = tree(22)
    files = [str(file) for file in sorted(root.glob("*/*"))]
    os.unlink(files[10])
    reader = File(files=files, name="Train")
    seen = []
    with pytest.raises(FileNotFoundError, match=files[10]):
        for data, labels in reader.next_epoch(4, capture=True):
            ndd.cast(labels, dtype=ndd.float32)
            seen.append(contents((data, labels)))
    assert len(seen) == 1  # the first one was traced; the second was still in the pipeline
    with pytest.raises(RuntimeError, match="invalid state due to a previous error"):
        reader.next_epoch(4, capture=True)
    reader.close()


# --- torchdata ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [None, 4])
def test_nodes_of_torchdata_give_the_samples_of_dalis_reader(jpegs, batch_size):
    pytest.importorskip("torchdata")
    import torchdata.nodes
    from nvidia.dali.experimental.dynamic.pytorch import nodes

    def play(make):
        reader = nodes.Reader(
            make, batch_size=batch_size, file_root=str(jpegs), shuffle_after_epoch=True
        )
        seen = [reader.get_metadata()] if batch_size else []
        node = nodes.DictMapper(reader, decode)
        loader = torchdata.nodes.Loader(nodes.ToTorch(node))
        for _ in range(2):
            seen += [(images.tolist(), labels.tolist()) for images, labels in loader]
        return seen

    assert play(File) == play(ndd.readers.File)


def decode(data):
    return ndd.resize(ndd.decoders.image(data, device="cpu"), size=[6, 6])
