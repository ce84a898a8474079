"""Pickles of CIFAR, read without unpickling. The oracle is pickle itself, for harmless pickles."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dali_storage.loaders.datasets.pickles import Rows, parse

from .cifar_archive import pickled

IMAGES = np.arange(3 * 3072, dtype=np.uint16).astype(np.uint8).reshape(3, 3072)
BATCH = {"labels": [3, 255, 0], "data": IMAGES, "names": ["a", "bé", "a"], "rows": 65_535}


class Restricted(pickle._Unpickler):  # the one in C fills memory up to any number of a value
    """The oracle; called for pickles that `parse()` has accepted."""

    def find_class(self, module: str, name: str) -> Any:
        assert (module, name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def check(content: bytes, expected: Any = None) -> None:
    """Compare with what pickle makes of it, and with `expected`."""
    found = parse(memoryview(content))
    for items in (Restricted(io.BytesIO(content), encoding="latin1").load(), expected or found):
        assert list(found) == list(items)
        for key, value in found.items():
            require_same(content, value, items[key])


def require_same(content: bytes, found: Any, expected: Any) -> None:
    if found is expected:
        return
    if isinstance(found, Rows):
        assert expected.dtype == np.uint8
        pixels = np.frombuffer(content, np.uint8)[found.start :][: found.count * 3072]
        order: Any = "F" if found.transposed else "C"
        assert np.array_equal(pixels.reshape(found.count, 3072, order=order), expected)
        return
    assert type(found) is type(expected)
    if isinstance(found, list):
        for one, other in zip(found, expected, strict=True):
            require_same(content, one, other)
    else:
        assert found == expected


@pytest.mark.parametrize("values", [2, 999, 1000, 1002, 2000, 2002])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_batch_saved_by_python_2(values: int, order: Any) -> None:
    items = {
        "labels": [i % 256 for i in range(values)],
        "data": np.asarray(IMAGES, order=order),
        "filenames": [f"{i}.png" for i in range(values)],
    }
    check(pickled(items), items)


def test_values_of_all_kinds() -> None:
    check(pickled(BATCH), BATCH)
    check(pickled({"": "", "none": [], "one": IMAGES[:1], "long": "é" * 255}))
    check(pickled({"mixed": ["a", 700, 3, IMAGES, [1, ["b", "c"]], 4, "d"], "empty": [[], 1]}))
    many = np.zeros((300, 3072), np.uint8)
    check(pickled({"data": many, "more": many}))


@pytest.mark.parametrize("protocol", range(6))
def test_what_python_3_pickled_is_refused_with_the_remedy(protocol: int) -> None:
    with pytest.raises(
        ValueError, match=r"^byte [0-6]: .* by Python 3 perhaps: extract the original archive again"
    ):
        parse(memoryview(pickle.dumps(BATCH, protocol)))


def test_a_truncated_pickle_is_refused() -> None:
    content = pickled(BATCH)
    start = content.index(IMAGES.tobytes())
    for length in {*range(start + 100), *range(start + IMAGES.size - 100, len(content))}:
        with pytest.raises(ValueError, match=r"^byte \d+: .*truncated"):
            parse(memoryview(content[:length]))
    with pytest.raises(ValueError, match=f"byte {start}: 9116 bytes of images are missing"):
        parse(memoryview(content[: start + 100]))


def test_what_follows_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="the pickle ends here, and 3 bytes are left"):
        parse(memoryview(pickled(BATCH) + b"abc"))


def accepts(content: bytes) -> bool:
    """Whether `parse()` takes a pickle; if so, its value is right."""
    try:
        parse(memoryview(content))
    except ValueError as error:
        assert "extract the original archive again" in str(error)  # noqa: PT017
        return False
    check(content)
    return True


def test_a_pickle_with_any_byte_changed_is_refused_or_read_as_pickle_does() -> None:
    batch = {"l": [1, 2, 70], "d": IMAGES[:2], "n": ["é", "aa"]}
    content = pickled(batch)
    start = content.index(IMAGES[:2].tobytes())
    places = [i for i in range(len(content)) if not start + 3 <= i < start + 6100]
    accepted = 0
    for place in places:
        for value in range(place % 3, 256, 3):
            changed = content[:place] + bytes([value]) + content[place + 1 :]
            accepted += accepts(changed)
    assert 85 * 10 < accepted < 85 * len(places) / 2  # pixels, labels, text may be anything


_OPCODES = st.sampled_from(
    [b"]", b"(", b"K\x01", b"M\1\2", b"U\1a", b"q\1", b"r\1\0\0\0", b"e", b"u", b"a", b".", b"}"]
)
_LISTS = st.lists(_OPCODES, max_size=12).map(b"".join)


@settings(max_examples=600, deadline=None)
@given(opcodes=_LISTS, items=st.booleans())
def test_any_opcodes_are_refused_or_read_as_pickle_does(opcodes: bytes, items: bool) -> None:
    accepts(b"\x80\x02}(U\1k" + (b"](" + opcodes + b"eU\1l" if items else b"") + opcodes + b"u.")


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self._reduced = call, arguments

    def __reduce__(self) -> Any:
        return self._reduced


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ["alone", "labels", "data", "key"])
def test_a_pickle_that_runs_a_command_is_refused_and_not_run(
    tmp_path: Path, protocol: int, place: str
) -> None:
    proof = tmp_path / "ran"
    hostile = Hostile(os.system, f"touch {proof}")
    value = {
        "alone": hostile,
        "labels": {"labels": [1, hostile], "data": IMAGES},
        "data": {"labels": [1], "data": hostile},
        "key": {hostile: 1},
    }[place]
    content = pickle.dumps(value, protocol)
    with pytest.raises(ValueError, match="is not in the published files"):
        parse(memoryview(content))
    assert not proof.exists()
    pickle.loads(content)
    assert proof.exists(), "this pickle would not have run"


SYSTEM = b"cposix\nsystem\nU\x06exit 1\x85R"
GOOD = pickled(BATCH)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"U\x06labels", SYSTEM),
        (b"K\x03K\xff", SYSTEM),
        (b"cnumpy.core.multiarray\n_reconstruct", b"cposix\nsystem"),
        (b"cnumpy\nndarray", b"cnumpy\nload"),
        (b"cnumpy\ndtype", b"cnumpy\nload"),
        (b"U\x01b", SYSTEM),
        (b"tbU\x05names", b"tb0" + SYSTEM + b"U\x05names"),
        (b"u.", SYSTEM + b"u."),
        (b"u.", b"u0" + SYSTEM + b"."),
    ],
)
def test_a_batch_of_python_2_with_a_command_in_it_is_refused(old: bytes, new: bytes) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(ValueError, match=r"^byte \d+: "):
        parse(memoryview(GOOD.replace(old, new)))


def test_no_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_a_pickle.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="module_of_a_pickle"):
        parse(memoryview(b"\x80\x02}(U\1acmodule_of_a_pickle\nname\nu."))
    assert "module_of_a_pickle" not in sys.modules


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"K\3M\0\x0c\x86", b"K\4M\0\x0c\x86", id="more elements than bytes"),
        pytest.param(b"K\3M\0\x0c\x86", b"K\2M\0\x0c\x86", id="fewer elements than bytes"),
        pytest.param(b"K\3M\0\x0c\x86", b"J\xfd\xff\xff\xffM\0\x0c\x86", id="negative shape"),
        pytest.param(b"K\3M\0\x0c\x86", b"M\0\x0cK\3\x86", id="another shape"),
        pytest.param(b"K\3M\0\x0c\x86", b"M\0\x24\x85", id="one dimension"),
        pytest.param(b"K\3M\0\x0c\x86", b")", id="no shape"),
        pytest.param(b"(K\1K\3", b"(K\2K\3", id="another version"),
        pytest.param(b"U\x02u1", b"U\x02i1", id="signed"),
        pytest.param(b"U\x02u1", b"U\x02O8", id="objects"),
        pytest.param(b"|NNN", b"|NN}", id="fields"),
        pytest.param(b"K\0\x85U\x01b", b"K\x09\x85U\x01b", id="large"),
        pytest.param(b"\x89T\0\x24\0\0", b"\x89X\0\x24\0\0", id="text"),
        pytest.param(b"\x89T\0\x24\0\0", b"\x89T\xff\xff\xff\xff", id="negative length"),
        pytest.param(b"\x89T", b"NT", id="no order"),
        pytest.param(b"K\3K\xff", b"h\1", id="a value that was numbered"),
        pytest.param(b"K\3K\xff", b"j\1\0\0\0", id="a value with a large number"),
        pytest.param(b"K\3K\xff", b"}K\3", id="a dict in a list"),
        pytest.param(b"K\3K\xff", b"\x88K\3", id="a flag"),
        pytest.param(b"K\3K\xff", b"N", id="nothing"),
        pytest.param(b"U\6labels", b"K\1", id="a key that is a number"),
        pytest.param(b"U\6labels", b"U\6labelsK\1", id="a key after a value that is a number"),
        pytest.param(b"tbU\x05names", b"U\x05names", id="an array that is not built"),
        pytest.param(b"u.", b"U\1au.", id="a key without a value"),
        pytest.param(b"u.", b"X\xff\xff\xff\xffu.", id="4 GB of text"),
        pytest.param(b"u.", b"U\xff.", id="a long text at the end"),
        pytest.param(b"u.", b".", id="MARK is left"),
        pytest.param(b"u.", b"u}.", id="a value is left"),
        pytest.param(GOOD, b"", id="empty file"),
        pytest.param(GOOD, b"\x80\x02N.", id="no dict"),
        pytest.param(GOOD, b"(dp1\n.", id="protocol 0"),
        pytest.param(GOOD, b"\x1f\x8b\x08\0", id="gzip"),
    ],
)
def test_what_the_published_files_do_not_have_is_refused(old: bytes, new: bytes) -> None:
    check(GOOD, BATCH)
    assert GOOD.count(old) == 1
    with pytest.raises(ValueError, match=r"^byte \d+: .*: extract the original archive again$"):
        parse(memoryview(GOOD.replace(old, new)))


@pytest.mark.parametrize("values", [b"K\1", b"U\0", b"(e", b"e(", b"q\1", b"]("])
def test_many_values_take_memory_and_time_in_proportion(values: bytes) -> None:
    content = b"\x80\x02}(U\1a](" + values * 100_000 + b"eu."
    start = time.process_time()
    tracemalloc.start()
    try:
        with contextlib.suppress(ValueError):
            parse(memoryview(content))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 9 * len(content)
    assert time.process_time() - start < 4


def test_a_real_file_takes_little_time() -> None:
    """pickletools needs 0.6 s for it."""
    labels, names = [i % 10 for i in range(10_000)], [f"{i}.png" for i in range(10_000)]
    content = pickled({"labels": labels, "data": IMAGES, "filenames": names})
    start = time.process_time()
    value = parse(memoryview(content))
    assert time.process_time() - start < 0.2
    assert value["labels"] == labels
    assert value["filenames"] == names
