"""The observer of a reader, after a Ctrl-C at an unlucky moment."""

from types import SimpleNamespace
from typing import Any

import pytest

from dali_storage.contract.options import Choice
from dali_storage.observing.observer import Observed
from dali_storage.observing.tally import OPEN
from dali_storage.reading.buffers import Room

READER: Any = SimpleNamespace(lanes=1, times=None, choices={})
ROOM = Room(Choice(1, ""), 1)


@pytest.fixture
def observer():
    made = Observed("begun", "shown")
    with made.opening():
        pass
    made.begin(READER, ROOM, ())
    yield made
    made.forget()


def names():
    return [name for name, _ in OPEN.items() if name.startswith("begun")]


def test_a_second_beginning_takes_the_place_of_the_first(observer):
    observer.begin(READER, ROOM, ())
    assert names() == ["begun"]


def test_a_reader_that_is_closed_is_not_in_the_metrics(observer):
    assert names() == ["begun"]
    observer.forget()
    assert names() == []


def test_a_wait_that_did_not_begin_counts_nothing(observer):
    observer.ask(0)
    observer.answer(0, None)
    waited = observer.statistics.wait_seconds
    observer.answer(0, None)
    assert observer.statistics.wait_seconds == waited
