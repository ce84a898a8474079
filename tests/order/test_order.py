"""The order of files and of samples in containers.

The oracles are the real readers of DALI. Jumps are in test_jumps.py.
"""

from dataclasses import asdict, replace
from random import Random

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage.order import Order, OrderOptions, reader_meta, shards, streams
from dali_storage.order.libstdcxx import Minstd, seed_words
from tests.kit import versions
from tests.kit.order_model import batches, epochs, minstd_after, scaled, some_case, some_counts
from tests.kit.parity import build, numbered, numbers
from tests.kit.tiers import by_tier

pytestmark = pytest.mark.usefixtures("pipelines_end")

SHUFFLED = OrderOptions(random_shuffle=True)
CHUNKS = [1, 7, 50, 8192]
# An index of a tar needs a sample. MXNet's reader counts a last file of one record to the file
# before it, and does not see files without records.
LEAST = {"webdataset": 1, "tfrecord": 0, "mxnet": 2}


def dali_pipeline(read, case, **pipeline):
    """A pipeline of which each sample is its own number."""
    _, batch_size, options, _ = case
    arguments = {key: value for key, value in asdict(options).items() if value is not None}
    del arguments["by_container"], arguments["shuffle_bits"]
    pipeline["enable_checkpointing"] = arguments.pop("checkpointing")
    if not options.shuffle_after_epoch:
        del arguments["shuffle_after_epoch"]
        arguments.pop("shuffle_after_epoch_seed", None)  # DALI warns
    if "seed" in pipeline:
        del arguments["seed"]
    # As DALI cannot map very many files, they are read.
    return build(read, batch_size, pipeline, name="r", dont_use_mmap=True, **arguments)


def of_files(directory, size):
    return numbered("file", directory, [size])(fn.readers)


def of_this_dali(size, batch_size, options, containers):
    """The case, with what the version of DALI that is here has."""
    options = replace(options, shuffle_bits=64 if versions.has("2.2") else 32)
    if options.by_container and not versions.has("2.2"):
        options = replace(options, shuffle_after_epoch=False)
    if not versions.has("2.1"):
        options = replace(options, shuffle_after_epoch_seed=None)
    return size, batch_size, options, containers


def assert_as_dali(read, case):
    case = of_this_dali(*case)
    pipeline = dali_pipeline(read, case)
    # Before the first batch: DALI's readers of containers count their samples without a lock, and
    # between two epochs the thread that reads ahead fills the list anew.
    assert reader_meta(case[0], case[2]) == pipeline.reader_meta("r"), case
    assert batches(case, epochs(case)) == numbers(pipeline, epochs(case)), case


def patch_chunks(monkeypatch, entries):
    for each in (shards, streams):
        monkeypatch.setattr(each, "CHUNK", entries)


def test_files_are_in_the_order_of_dali(tmp_path, monkeypatch):
    random = Random(0)
    for _ in range(by_tier(30, 600)):
        patch_chunks(monkeypatch, random.choice(CHUNKS))
        case = some_case(random)
        assert_as_dali(of_files(tmp_path, case[0]), case)


@pytest.mark.parametrize("kind", LEAST)
def test_samples_in_containers_are_in_the_order_of_dali(kind, tmp_path, monkeypatch):
    random = Random(f"order of {kind}")
    for number in range(by_tier(4, 20)):
        counts = some_counts(random, LEAST[kind])
        read = numbered(kind, tmp_path / str(number), counts)(fn.readers)
        for _ in range(by_tier(3, 10)):
            patch_chunks(monkeypatch, random.choice(CHUNKS))
            assert_as_dali(read, some_case(random, counts))


@pytest.mark.parametrize("seed", [0, 42, 2**31, 2**40 + 3])
def test_a_pipeline_deals_its_first_seed_to_the_reader(seed, tmp_path):
    expected = dali_pipeline(of_files(tmp_path, 50), (50, 8, SHUFFLED, None), seed=seed)
    options = replace(SHUFFLED, seed=seed_words(seed, 1024)[0])
    assert batches((50, 8, options, None), 20) == numbers(expected, 20)


@pytest.mark.long
@pytest.mark.parametrize("size", [65535, 65536, 70001])
def test_a_long_list_is_shuffled_as_in_dali(size, tmp_path):
    for options in (SHUFFLED, OrderOptions(shuffle_after_epoch=True)):
        case = of_this_dali(size, 3001, options, None)
        assert batches(case, 30) == numbers(dali_pipeline(of_files(tmp_path, size), case), 30)


@pytest.mark.parametrize(
    ("size", "seed"), [(3000, 918), pytest.param(70001, 8, marks=pytest.mark.long)]
)
def test_a_rejected_draw_is_repeated_as_in_dali(size, seed, tmp_path):
    refused, drawn = list[int](), minstd_after(Minstd(seed).state)
    for bound in range(size, 0, -1):
        scaled(drawn, bound, refused)
    assert refused
    case = size, size // 10, replace(SHUFFLED, initial_fill=size, seed=seed), None
    assert batches(case, 20) == numbers(dali_pipeline(of_files(tmp_path, size), case), 20)


@pytest.mark.parametrize("padded", [False, True])
def test_a_batch_belongs_to_the_caller(padded):
    order = Order(10, 4, OrderOptions(pad_last_batch=padded))
    batch = order.batch(0)
    assert batch.dtype == np.int64
    assert batch.shape == (4,)
    batch[:] = -1
    assert order.batch(0).tolist() == [0, 1, 2, 3]


LATER = {"shuffle_after_epoch": True}
OF_CONTAINERS = OrderOptions(by_container=True, shuffle_after_epoch=True)
REFUSED = [
    (lambda: OrderOptions(random_shuffle=True, initial_fill=0), "initial_fill must be .* not 0"),
    (lambda: OrderOptions(random_shuffle=True, initial_fill=-5), "initial_fill must be .* not -5"),
    (lambda: OrderOptions(num_shards=0), "num_shards must be at least 1, not 0"),
    (lambda: OrderOptions(shard_id=-1), "shard_id must be from 0 to 0, not -1"),
    (lambda: OrderOptions(num_shards=2, shard_id=2), "shard_id must be from 0 to 1, not 2"),
    (lambda: OrderOptions(random_shuffle=True, **LATER), "epoch and random_shuffle cannot"),
    (lambda: OrderOptions(stick_to_shard=True, **LATER), "epoch and stick_to_shard cannot"),
    (lambda: replace(OF_CONTAINERS, stick_to_shard=True), "epoch and stick_to_shard cannot"),
    (lambda: Order(3, 1, OrderOptions(num_shards=4)), r"num_shards must be at most 3, .* not 4"),
    (lambda: reader_meta(3, OrderOptions(num_shards=4)), r"must be at most 3, .* not 4"),
    (lambda: Order(0, 1, OrderOptions()), r"num_shards must be at most 0, .* not 1"),
    (lambda: Order(3, 0, OrderOptions()), r"batch_size .* not 0"),
    (lambda: Order(3, 1, OrderOptions()).batch(-1), r"index .* not -1"),
    (lambda: Order(7, 2, OF_CONTAINERS), "containers must hold 7 samples"),
    (lambda: Order(7, 2, OF_CONTAINERS, np.array([3, 3])), "containers must hold 7 samples"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[words for _, words in REFUSED])
def test_an_impossible_order_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_initial_fill_matters_only_to_random_shuffle():
    assert batches((3, 3, OrderOptions(initial_fill=0), None), 1) == [[0, 1, 2]]
