"""dali_storage.source: position, opening and closing, without DALI."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.memory import MemoryReader
from dali_storage.catalog import Catalog
from dali_storage.discovery import from_directory
from dali_storage.order import OrderOptions
from dali_storage.reader import Reader
from dali_storage.source import Source

from .conftest import Tree

SETTINGS: dict[str, Any] = {
    "batch_size": 4,
    "seed": None,
    "checkpointing": False,
    "num_threads": 1,
    "device_id": None,
}


class Opener:
    """Opens a reader of a directory's files and counts how often."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opened = 0
        self.closed = 0

    def __call__(self) -> tuple[Catalog, Reader]:
        self.opened += 1
        catalog = from_directory(self.root)

        class Counted(MemoryReader):
            def close(reader) -> None:  # noqa: N805
                self.closed += 1
                super().close()

        return catalog, Counted(catalog)


@pytest.fixture
def opener(tree: Tree) -> Opener:
    return Opener(tree(10, classes=2))


def make(opener: Opener, **order: int) -> Source:
    return Source(name="R", opener=opener, order=OrderOptions(**order), depth=1)


def test_a_batch_is_returned_until_it_is_taken(opener: Opener) -> None:
    source = make(opener)
    source.start(**SETTINGS)
    seen = []
    for position in range(6):
        for _ in range(1 + position % 3):
            batch = source.batch()
        seen += batch.samples.tolist()
        assert source.labels(batch).tolist() == [int(sample >= 5) for sample in batch.samples]
        assert source.labels(batch).dtype == np.int32
        source.position += 1
    assert seen == [sample % 10 for sample in range(24)]


def test_it_opens_once_and_not_before_it_must(opener: Opener) -> None:
    source = make(opener)
    assert opener.opened == 0
    assert source.meta["epoch_size"] == 10
    source.open()
    source.start(**SETTINGS)
    assert opener.opened == 1


def test_an_opening_that_fails_is_tried_again(opener: Opener) -> None:
    opener.root = opener.root / "later"
    source = make(opener)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            source.start(**SETTINGS)
    (opener.root / "class").mkdir(parents=True)
    (opener.root / "class" / "a.jpg").write_bytes(b"a")
    source.start(**SETTINGS)
    assert [bytes(content) for content in source.batch().contents] == [b"a"] * 4


def test_the_seed_of_the_pipeline_replaces_that_of_the_reader(opener: Opener) -> None:
    def samples(seed: int, of_pipeline: int | None) -> list[int]:
        source = make(opener, random_shuffle=True, initial_fill=9, seed=seed)
        source.start(**SETTINGS | {"batch_size": 10, "seed": of_pipeline})
        return source.batch().samples.tolist()

    assert samples(7, None) == samples(1, 7) != samples(1, None)


@pytest.mark.parametrize("started", [False, True])
def test_it_is_closed_when_it_is_dropped(opener: Opener, started: bool) -> None:
    gc.disable()
    try:
        threads = threading.active_count()
        source = make(opener)
        source.open()
        if started:
            source.start(**SETTINGS)
            source.batch()
        del source
        assert opener.closed == 1
        assert threading.active_count() == threads
    finally:
        gc.enable()


@pytest.mark.parametrize(("taken", "pending"), [(0, 0), (5, 0), (5, 2)])
def test_a_restored_source_goes_on_with_the_first_batch_not_delivered(
    opener: Opener, taken: int, pending: int
) -> None:
    first, second = make(opener), make(opener)
    first.start(**SETTINGS)
    batches = []
    for _ in range(taken + 1):
        batches.append(first.batch().samples.tolist())
        first.position += 1
    second.restore(first.state(batch_size=4, pending=1 + pending), batch_size=4)
    second.start(**SETTINGS)
    assert second.batch().samples.tolist() == batches[taken - pending]


def test_a_state_of_other_batches_or_samples_is_refused(opener: Opener) -> None:
    state = make(opener).state(batch_size=4, pending=0)
    with pytest.raises(ValueError, match=r"'R'.*batch size of 4, not 5"):
        make(opener).restore(state, batch_size=5)
    with pytest.raises(ValueError, match=r"'R'.*number of samples of 9, not 10"):
        make(opener).restore(state | {"samples": 9}, batch_size=4)


@pytest.mark.parametrize("started", [False, True])
def test_a_fork_neither_reads_nor_closes(opener: Opener, started: bool) -> None:
    source = make(opener)
    source.open()
    if started:
        source.start(**SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads is the subject
        child = os.fork()
    if child == 0:
        try:
            source.batch() if started else source.start(**SETTINGS)
        except RuntimeError as error:
            refused = "fork" in str(error)
            del error, source
            os._exit(17 if refused and not opener.closed else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
