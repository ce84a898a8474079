"""Pickles read without unpickling. The oracle is pickle itself, where the pickle is harmless."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dali_storage.loaders.pickles import ByteArray, NotPlain, parse

from .cifar_archive import pickled

IMAGES = np.arange(256, 256 + 4 * 77, dtype=np.uint16).astype(np.uint8).reshape(4, 77)
BATCH = {"labels": [3, 255, 256, 65_535, 0], "data": IMAGES, "names": ["a", "bé", "a"]}


RECONSTRUCT = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n."


class Restricted(pickle.Unpickler):
    """The oracle; called for pickles that `parse()` has accepted."""

    def find_class(self, module: str, name: str) -> Any:
        assert (module, name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def by_pickle(content: bytes) -> Any:
    return Restricted(io.BytesIO(content), encoding="latin1").load()


class Comparison:
    """Compares a value of `parse()` with the one of pickle; values may contain themselves."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._seen: set[tuple[int, int]] = set()

    def require_same(self, found: Any, expected: Any) -> None:
        if (id(found), id(expected)) in self._seen:
            return
        self._seen.add((id(found), id(expected)))
        if isinstance(found, ByteArray) and not found.shape:
            assert expected.size == 0
        elif isinstance(found, ByteArray):
            assert expected.dtype == np.uint8
            content = np.frombuffer(self._content, np.uint8)[found.start :][: expected.size]
            order: Any = "F" if found.fortran else "C"
            assert np.array_equal(content.reshape(found.shape, order=order), expected)
        elif isinstance(found, dict):
            self.require_same(list(found), list(expected))
            self.require_same(list(found.values()), list(expected.values()))
        elif isinstance(found, (list, tuple)):
            assert type(found) is type(expected)
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                self.require_same(one, other)
        elif type(found) is object:
            assert expected in (np.ndarray, np.dtype, by_pickle(RECONSTRUCT), np.dtype("u1"))
        else:
            if isinstance(found, slice):  # bytes, or a long string of Python 2
                found = self._content[found]
                found = found.decode("latin-1") if isinstance(expected, str) else found
            assert (type(found), found) == (type(expected), expected)


def check(content: bytes, expected: Any = None) -> None:
    """Compare with what pickle makes of it, and with `expected`."""
    found = parse(memoryview(content))
    Comparison(content).require_same(found, by_pickle(content))
    if expected is not None:
        Comparison(content).require_same(found, expected)


@pytest.mark.parametrize("protocol", [3, 4])
def test_a_batch_saved_by_python_3(protocol: int) -> None:
    check(pickle.dumps(BATCH, protocol), BATCH)


@pytest.mark.parametrize("values", [1, 2, 999, 1000, 1001, 2001])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_batch_saved_by_python_2(values: int, order: Any) -> None:
    items = {
        "labels": [i % 300 for i in range(values)],
        "data": np.asarray(IMAGES, order=order),
        "filenames": [f"{i}.png" for i in range(values)],
    }
    check(pickled(items), items)


_LEAVES = st.none() | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.text(max_size=300)
_VALUES = st.recursive(
    _LEAVES | st.binary(max_size=400).map(bytes),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(value=_VALUES, protocol=st.integers(3, 4))
def test_any_plain_value(value: Any, protocol: int) -> None:
    check(pickle.dumps([value, value], protocol))


@pytest.mark.parametrize("content", [pickled(BATCH), pickle.dumps(BATCH, 4)], ids=["2", "4"])
def test_a_truncated_pickle_is_refused(content: bytes) -> None:
    for length in range(len(content)):
        with pytest.raises(NotPlain, match=r"^byte \d+: "):
            parse(memoryview(content[:length]))


def test_missing_bytes_are_counted() -> None:
    content = pickled(BATCH)
    end = content.index(IMAGES.tobytes()) + 100
    with pytest.raises(NotPlain, match="truncated or damaged: 208 bytes are missing"):
        parse(memoryview(content[:end]))


def test_a_negative_length_is_refused() -> None:
    """It would lead back to the opcode itself, forever."""
    with pytest.raises(NotPlain, match="byte 3: the file is damaged: -5 bytes of text"):
        parse(memoryview(b"\x80\x02NT\xfb\xff\xff\xff."))


def test_what_follows_the_end_is_refused() -> None:
    with pytest.raises(NotPlain, match="3 bytes or some values are left"):
        parse(memoryview(pickled(BATCH) + b"abc"))


def accepts(content: bytes) -> bool:
    """Whether `parse()` takes a pickle for plain data; if so, its value is right."""
    try:
        parse(memoryview(content))
    except NotPlain:
        return False
    check(content)
    return True


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_with_any_byte_changed_is_refused_or_read_as_pickle_does(protocol: int) -> None:
    batch = {"l": [1, 2, 700], "d": np.arange(256, dtype=np.uint8).reshape(2, 128), "n": ["é"]}
    content = pickled(batch) if protocol == 2 else pickle.dumps(batch, 4)
    start = content.index(batch["d"].tobytes())  # type: ignore[attr-defined]
    frame = range(2, 11 if protocol == 4 else 2)  # only says how much to read at once
    pixels = range(start + 3, start + 253)
    places = [i for i in range(len(content)) if i not in frame and i not in pixels]
    accepted = 0
    for place in places:
        for value in range(place % 3, 256, 3):
            changed = content[:place] + bytes([value]) + content[place + 1 :]
            accepted += accepts(changed)
    assert 85 * 6 < accepted < 85 * len(places) / 2  # pixels and labels may be anything


_OPCODES = st.sampled_from([*b"\x80\x02\x04}](K\x01M\x00U\x01aTXqrhj\x85\x86tesuRbcN\x88.\x94\x93"])


@settings(max_examples=600, deadline=None)
@given(body=st.lists(_OPCODES, max_size=30).map(bytes))
def test_any_opcodes_are_refused_or_read_as_pickle_does(body: bytes) -> None:
    accepts(b"\x80\x02" + body + b".")
    accepts(pickled({"a": [1]})[:-1] + body + b".")


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
    with pytest.raises(NotPlain) as caught:
        parse(memoryview(content))
    assert not proof.exists()
    if protocol in (2, 3, 4) and place != "data":
        assert "it imports posix.system" in str(caught.value)
    pickle.loads(content)
    assert proof.exists(), "this pickle would not have run"


def test_no_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_a_pickle.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NotPlain, match=r"it imports module_of_a_pickle\.name"):
        parse(memoryview(b"\x80\x02cmodule_of_a_pickle\nname\n."))
    assert "module_of_a_pickle" not in sys.modules


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R"
UINT8 = b"cnumpy\ndtype\nU\x02u1K\0K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"


def array(
    *, shape: bytes = b"K\x02K\x03\x86", dtype: bytes = UINT8, version: bytes = b"K\x01"
) -> bytes:
    state = b"(" + version + shape + dtype + b"\x89T\x06\0\0\0abcdeft"
    return b"\x80\x02" + ARRAY + state + b"b."


def test_the_array_of_the_next_test_is_right() -> None:
    check(array())


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(array(shape=b"K\x02K\x04\x86"), id="more elements than bytes"),
        pytest.param(array(shape=b"K\x02K\x02\x86"), id="fewer elements than bytes"),
        pytest.param(array(shape=b"J\xfe\xff\xff\xffJ\xfd\xff\xff\xff\x86"), id="negative shape"),
        pytest.param(array(shape=b"K\x06K\x01K\0\x87"), id="empty"),
        pytest.param(array(shape=b"U\x01aK\x06\x86"), id="a shape of text"),
        pytest.param(array(shape=b")"), id="no shape"),
        pytest.param(array(version=b"K\x02"), id="another version"),
        pytest.param(array(dtype=UINT8.replace(b"u1", b"i1")), id="signed"),
        pytest.param(array(dtype=UINT8.replace(b"u1", b"O8")), id="objects"),
        pytest.param(array(dtype=UINT8.replace(b"|NNN", b"|NN}")), id="fields"),
        pytest.param(array(dtype=b"N"), id="no dtype"),
        pytest.param(array().replace(b"K\0\x85U\x01b\x87R", b"K\x09\x85U\x01b\x87R"), id="large"),
        pytest.param(array().replace(b"\nndarray", b"\ndtype"), id="not an ndarray"),
        pytest.param(array().replace(b"T\x06\0\0\0abcdef", b"X\x06\0\0\0abcdef"), id="text"),
        pytest.param(array().replace(b"T\x06\0\0\0", b"T\xff\xff\xff\xff"), id="negative length"),
        pytest.param(b"\x80\x02cnumpy\nndarray\n(K\x01tR.", id="calls ndarray"),
        pytest.param(b"\x80\x02cnumpy\ndtype\n}b.", id="builds dtype itself"),
        pytest.param(b"\x80\x02}N}b.", id="builds None"),
        pytest.param(b"\x80\x02cnumpy\nsave\n.", id="another function of numpy"),
        pytest.param(b"\x80\x02\x8c\x05numpy\x8c\x04load\x93.", id="STACK_GLOBAL"),
        pytest.param(b"\x80\x02C\x05numpyC\x05dtype\x93.", id="STACK_GLOBAL of bytes"),
        pytest.param(b"\x80\x02}C\x01aK\x01s.", id="a key of bytes"),
        pytest.param(b"\x80\x02]]]\x93.", id="STACK_GLOBAL of lists"),
        pytest.param(b"\x80\x02c" + b"a" * 999 + b"\nb\n.", id="a long name"),
        pytest.param(b"\x80\x02(K\x01l.", id="LIST"),
        pytest.param(b"\x80\x020.", id="POP of nothing"),
        pytest.param(b"\x80\x02K\x01a.", id="APPEND to nothing"),
        pytest.param(b"\x80\x02}K\x01a.", id="APPEND to a dict"),
        pytest.param(b"\x80\x02](K\x01K\x02u.", id="SETITEMS of a list"),
        pytest.param(b"\x80\x02}(U\x01au.", id="a key without a value"),
        pytest.param(b"\x80\x02}K\x01K\x02s.", id="a key that is a number"),
        pytest.param(b"\x80\x02e.", id="no MARK"),
        pytest.param(b"\x80\x02(K\x01.", id="MARK is left"),
        pytest.param(b"\x80\x02K\x01K\x02.", id="a value is left"),
        pytest.param(b"\x80\x02.", id="no value"),
        pytest.param(b"\x80\x02h\x05.", id="BINGET of nothing"),
        pytest.param(b"\x80\x02Nr\xff\xff\xff\x7f.", id="BINPUT far away"),
        pytest.param(b"\x80\x02q\x00.", id="BINPUT of nothing"),
        pytest.param(b"\x80\x02K\x01\x85\x86.", id="TUPLE2 of one"),
        pytest.param(b"\x80\x02\x8c\x01\xff.", id="not UTF-8"),
        pytest.param(b"\x80\x02X\xff\xff\xff\xff.", id="4 GB of text"),
        pytest.param(b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"N.", id="a large FRAME"),
        pytest.param(b"\x80\x02\xff.", id="no opcode"),
        pytest.param(b"\x80\x05N.", id="protocol 5"),
        pytest.param(b"(dp1\n.", id="protocol 0"),
        pytest.param(b"\x1f\x8b\x08\0", id="gzip"),
        pytest.param(b"", id="empty file"),
    ],
)
def test_what_is_no_plain_data_is_refused(content: bytes) -> None:
    with pytest.raises(NotPlain, match=r"^byte \d+: .*; extract the original archive again, or"):
        parse(memoryview(content))


@pytest.mark.parametrize("end", [b"}h\x01K\x01s", b"h\x01h\x01\x93"], ids=["key", "name"])
def test_nested_values_do_not_take_long(end: bytes) -> None:
    """2**27 tuples in 200 bytes, which Python would look at one by one to hash them."""
    content = b"\x80\x02)" + b"".join(b"q\x01h\x01\x86" for _ in range(27)) + b"q\x01" + end + b"."
    start = time.process_time()
    with pytest.raises(NotPlain):
        parse(memoryview(content))
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize("opcode", [b"(", b")", b"N", b"]q\x00"])
def test_many_values_do_not_take_much_memory(opcode: bytes) -> None:
    content = b"\x80\x02" + opcode * 400_000 + b"."
    tracemalloc.start()
    try:
        with pytest.raises(NotPlain, match="more values are nested than in plain data"):
            parse(memoryview(content))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30 << 20


def test_a_shape_of_many_dimensions_is_refused_at_once() -> None:
    """Their product has 700,000 bits."""
    shape = b"(" + b"K\xff" * 90_000 + b"t"
    start = time.process_time()
    with pytest.raises(NotPlain, match="an array without a shape"):
        parse(memoryview(array(shape=shape)))
    assert time.process_time() - start < 0.5


def test_a_real_file_takes_little_time() -> None:
    """pickletools needs 0.6 s for it."""
    labels, names = [i % 10 for i in range(10_000)], [f"{i}.png" for i in range(10_000)]
    content = pickled({"labels": labels, "data": IMAGES, "filenames": names})
    start = time.process_time()
    value = parse(memoryview(content))
    assert time.process_time() - start < 0.2
    assert value["labels"] == labels
    assert value["filenames"] == names
