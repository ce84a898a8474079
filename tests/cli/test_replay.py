"""What `python -m dali_storage replay` refuses; for what it prints see tests/receipts."""

import json

import pytest

from dali_storage import readers
from dali_storage.cli import replay
from tests.kit.dali import build


@pytest.fixture
def pipeline(tmp_path):
    for number in range(20):
        (tmp_path / "set" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / "a" / f"{number:02}.jpg").write_bytes(b"x")

    def make(**arguments):
        arguments |= {"file_root": tmp_path / "set", "name": "R", "pad_last_batch": True}
        made = build(readers.file, 4, **arguments)
        made.run()
        return made

    return make


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({"history": None}, "--step 0", "no history: it was made by an older release"),
        ({"history": [[0, 0, 1, 1]]}, "--step 0", r"the history has [0, 0, 1, 1]"),
        ({"history": [[0, 0, 1, 1, 4], [0, 8, 1, 1, 2]]}, "--step 0", "went back to an earlier"),
        ({"names": 5}, "--step 0", "resume with the same data set"),
        ({"version": 9}, "--step 0", "unsupported state version 9"),
        ({"seed": None}, "--step 0", "has no common seed"),
        ({}, "--step -1", "--step must be at least 0, not -1"),
        (
            {},
            "--step 1",
            "--step 1 is after the state, which was saved before step 1: give a later",
        ),
        ({}, "--step 7 --rank 1 --forecast", "--rank must be from 0 to 0, not 1"),
        ({}, "--name a/02.jpg --rank 1", "--rank must be from 0 to 0, not 1"),
        ({}, "--name a/2.jpg", "there is no file 'a/2.jpg'"),
        ({}, "--step 0 --reader none", "readers has no 'none'"),
        ({}, "--step 0 --argument epoch_size=9", "give the reader the same weights, order"),
    ],
)
def test_what_cannot_be_known(changes, words, message, pipeline, tmp_path, capsys):
    saved = readers.state(pipeline(), "R") | changes
    saved = {name: it for name, it in saved.items() if (name, it) != ("history", None)}
    (tmp_path / "state").write_text(json.dumps(saved))
    words = [str(tmp_path / "state"), str(tmp_path / "set"), *words.split()]
    assert replay.main(words) == 2
    assert message in capsys.readouterr().err


def test_an_older_state_is_resumed_and_its_steps_stay_unknown(pipeline):
    state = readers.state(pipeline(), "R")
    del state["history"]
    assert readers.state(pipeline(resume=state), "R")["history"] == []
