"""Pickles of CIFAR: what the published files have is loaded, and nothing else is done."""

import os
import pickle
import sys
from typing import Any

import numpy as np
import pytest

from dali_storage.loaders.datasets.pickles import parse
from tests.kit.cifar_archive import pickled

IMAGES = np.arange(3 * 3072, dtype=np.uint16).astype(np.uint8).reshape(3, 3072)
BATCH = {"labels": [3, 255, 0], "data": IMAGES, "names": ["a", "bé", "a"], "rows": 65_535}
GOOD = pickled(BATCH)
REMEDY = r"^byte \d+: .* by Python 3 perhaps: extract the original archive again$"


@pytest.mark.parametrize("values", [2, 1000, 2002])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_batch_that_python_2_pickled_is_loaded(values, order):
    items = {
        "labels": [i % 256 for i in range(values)],
        "data": np.asarray(IMAGES, order=order),
        "filenames": [f"{i}.png" for i in range(values)],
        "empty": [],
    }
    content = pickled(items)
    found = parse(content)
    assert np.array_equal(found.pop("data"), IMAGES)
    assert found == {key: value for key, value in items.items() if key != "data"}


@pytest.mark.parametrize("protocol", range(6))
def test_a_batch_that_python_3_pickled_is_refused_with_the_remedy(protocol):
    content = pickle.dumps(BATCH, protocol).replace(b"numpy.core", b"numpy._core")  # NumPy 1's
    with pytest.raises(ValueError, match=REMEDY):
        parse(content)


def test_a_truncated_pickle_is_refused():
    start = GOOD.index(IMAGES.tobytes())
    for length in {*range(start + 100), *range(start + IMAGES.size - 100, len(GOOD))}:
        with pytest.raises(ValueError, match=REMEDY):
            parse(GOOD[:length])


class Hostile:
    """Calls a function when it is unpickled."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self._reduced = call, arguments

    def __reduce__(self):
        return self._reduced


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ["alone", "labels", "data", "key"])
def test_a_pickle_that_runs_a_command_is_refused_and_not_run(tmp_path, protocol, place):
    proof = tmp_path / "ran"
    hostile = Hostile(os.system, f"touch {proof}")
    value = {
        "alone": hostile,
        "labels": {"labels": [1, hostile], "data": IMAGES},
        "data": {"labels": [1], "data": hostile},
        "key": {hostile: 1},
    }[place]
    content = pickle.dumps(value, protocol)
    with pytest.raises(ValueError, match=REMEDY):
        parse(content)
    assert not proof.exists()
    pickle.loads(content)
    assert proof.exists(), "this pickle would not have run"


def by(*opcodes):
    """A batch whose pixels are made by these opcodes."""
    return b"\x80\x02}(U\x06labels](K\1K\2eU\4data" + b"".join(opcodes) + b"u."


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (by(b"cposix\nsystem\n"), r"'posix\.system' is not in the published files; "),
        (by(b"cnumpy\nload\n"), r"'numpy\.load' is not in the published files; "),
        (by(b"cnumpy\nndarray\\.__class__\n"), REMEDY),
        (by(b"cnumpy\ndtype\n(U\2O8K\0K\1tR"), "the dtype 'O8' is not in the published files; "),
        (by(b"cnumpy\ndtype\n(U\2i1K\0K\1tR"), "the dtype 'i1' is not in the published files; "),
        (by(b"](K\1e}(U\1aK\1ub"), REMEDY),  # BUILD of a list
        (by(b"K\1K\1\x85R"), REMEDY),  # REDUCE of a number
        (by(b"N" + b"r\xff\0\0\0" + b"j\0\0\0\0"), REMEDY),  # a value that there is not
        (b"", REMEDY),
        (b"\x80\x02N.", "byte 4: the pickle is not a dict; "),
        (b"\x1f\x8b\x08\0", REMEDY),  # gzip
        (GOOD.replace(b"u.", b"U\1au."), REMEDY),  # a key without a value
        (GOOD.replace(b"u.", b"T\xff\xff\xff\x7fu."), REMEDY),  # 2 GB of text
    ],
)
def test_other_names_and_calls_and_damaged_pickles_are_refused(content, words):
    with pytest.raises(ValueError, match=words):
        parse(content)


def test_a_state_in_a_pickle_changes_nothing_for_the_next_one():
    for name in (b"numpy\nndarray", b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct"):
        state = b"}(U\x08__call__K\1U\x0c__setstate__K\1u"
        for states in (b"N" + state, state + b"N"):  # of attributes, and of slots
            try:
                parse(by(b"c" + name + b"\n" + states + b"\x86b"))
            except ValueError as error:
                assert "extract the original archive again" in str(error)  # noqa: PT017
    assert np.array_equal(parse(GOOD)["data"], IMAGES)


def test_a_pickle_imports_no_module(tmp_path, monkeypatch):
    (tmp_path / "module_of_a_pickle.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="module_of_a_pickle"):
        parse(by(b"cmodule_of_a_pickle\nname\n"))
    assert "module_of_a_pickle" not in sys.modules
