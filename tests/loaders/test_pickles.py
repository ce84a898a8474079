"""Pickles of CIFAR: what the published files have is loaded, and nothing else is done."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import os
import pickle
import sys
import time
import tracemalloc
from pathlib import Path
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
def test_a_batch_saved_by_python_2(values: int, order: Any) -> None:
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


def test_an_array_is_a_view_of_the_pickle() -> None:
    assert np.shares_memory(parse(GOOD)["data"], np.frombuffer(GOOD, np.uint8))


@pytest.mark.parametrize("protocol", range(6))
def test_what_python_3_pickled_is_refused_with_the_remedy(protocol: int) -> None:
    with pytest.raises(ValueError, match=REMEDY):
        parse(pickle.dumps(BATCH, protocol))


def test_a_truncated_pickle_is_refused() -> None:
    start = GOOD.index(IMAGES.tobytes())
    for length in {*range(start + 100), *range(start + IMAGES.size - 100, len(GOOD))}:
        with pytest.raises(ValueError, match=REMEDY):
            parse(GOOD[:length])


class Hostile:
    """Calls a function when it is unpickled."""

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
    with pytest.raises(ValueError, match=REMEDY):
        parse(content)
    assert not proof.exists()
    pickle.loads(content)
    assert proof.exists(), "this pickle would not have run"


@pytest.mark.parametrize(
    "call",
    [eval, exec, __import__, getattr, functools.partial, np.load, np.frombuffer, pickle.loads],
)
def test_no_function_is_called(call: Any) -> None:
    message = rf"\.{call.__name__}' is not in the published files; .*extract the original archive"
    with pytest.raises(ValueError, match=message):
        parse(pickle.dumps(Hostile(call, "x"), 2))


def by(*opcodes: bytes) -> bytes:
    """A batch whose pixels are made by these opcodes."""
    return b"\x80\x02}(U\x06labels](K\1K\2eU\4data" + b"".join(opcodes) + b"u."


@pytest.mark.parametrize(
    "opcodes",
    [
        pytest.param(b"(K\1iposix\nsystem\n", id="INST"),
        pytest.param(b"(cposix\nsystem\nU\4trueo", id="OBJ"),
        pytest.param(b"cnumpy\nndarray\n)\x81", id="NEWOBJ"),
        pytest.param(b"cnumpy\nndarray\n)}\x92", id="NEWOBJ_EX"),
        pytest.param(b"\x8c\5posix\x8c\6system\x93", id="STACK_GLOBAL"),
        pytest.param(b"P1\n", id="PERSID"),
        pytest.param(b"U\1aQ", id="BINPERSID"),
        pytest.param(b"\x82\x07", id="EXT1"),
        pytest.param(b"\x83\x07\0", id="EXT2"),
        pytest.param(b"\x84\x07\0\0\0", id="EXT4"),
        pytest.param(b"\x97", id="NEXT_BUFFER"),
        pytest.param(b"\x96\xff\xff\xff\xff\xff\0\0\0", id="BYTEARRAY8"),
        pytest.param(b"N" + b"r\xff\xff\xff\xff" + b"j\0\0\0\0", id="a value that there is not"),
        pytest.param(b"cnumpy\nload\n", id="numpy.load"),
        pytest.param(b"cnumpy\nndarray\\.__class__\n", id="attribute"),
        pytest.param(b"](K\1e}(U\1aK\1ub", id="BUILD of a list"),
        pytest.param(b"K\1K\1\x85R", id="REDUCE of a number"),
    ],
)
def test_other_opcodes_and_names_are_refused(
    opcodes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_inverted_registry", "_extension_cache"):
        value = os.system if name == "_extension_cache" else ("posix", "system")
        monkeypatch.setitem(getattr(copyreg, name), 7, value)
    with pytest.raises(ValueError, match=REMEDY):
        parse(by(opcodes))


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\1btR"
DTYPE = b"cnumpy\ndtype\n(U\2%cK\0K\1tR"
PLAIN = b"(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
PIXELS = b"T\0\x0c\0\0" + bytes(3072)


def test_an_array_by_the_opcodes_of_these_tests_is_loaded() -> None:
    state = b"(K\1(K\1M\0\x0ct" + DTYPE.replace(b"%c", b"u1") + PLAIN + b"\x89" + PIXELS + b"tb"
    assert parse(by(ARRAY, state))["data"].shape == (1, 3072)


@pytest.mark.parametrize(
    ("shape", "dtype", "of_dtype", "order", "pixels"),
    [
        pytest.param(b"(K\1M\0\x0ct", b"O8", PLAIN, b"\x89", PIXELS, id="objects"),
        pytest.param(b"(K\1M\0\x0ct", b"O8", PLAIN, b"\x89", b"](Ne", id="a list of objects"),
        pytest.param(b"(K\1M\0\x0ct", b"i1", PLAIN, b"\x89", PIXELS, id="signed"),
        pytest.param(
            b"(K\1M\0\x0ct",
            b"u1",
            PLAIN.replace(b"NNN", b"N](U\1aeN"),
            b"\x89",
            PIXELS,
            id="fields",
        ),
        pytest.param(b"(K\1M\0\x0ct", b"u1", b"}b", b"\x89", PIXELS, id="state of the type"),
        pytest.param(b"(K\1M\0\x0ct", b"u1", b"", b"\x89", PIXELS, id="no state of the type"),
        pytest.param(b"(K\2M\0\x0ct", b"u1", PLAIN, b"\x89", PIXELS, id="more images than bytes"),
        pytest.param(b"(K\0M\0\x0ct", b"u1", PLAIN, b"\x89", PIXELS, id="fewer"),
        pytest.param(
            b"(J\xff\xff\xff\xffM\0\x0ct", b"u1", PLAIN, b"\x89", PIXELS, id="negative shape"
        ),
        pytest.param(b"(M\0\x0cK\1t", b"u1", PLAIN, b"\x89", PIXELS, id="another shape"),
        pytest.param(b"(M\0\x0ct", b"u1", PLAIN, b"\x89", PIXELS, id="one dimension"),
        pytest.param(b"K\1", b"u1", PLAIN, b"\x89", PIXELS, id="no shape"),
        pytest.param(b"(K\1M\0\x0ct", b"u1", PLAIN, b"N", PIXELS, id="no order"),
        pytest.param(b"(K\1M\0\x0ct", b"u1", PLAIN, b"\x89", b"U\1a", id="short text"),
    ],
)
def test_only_a_plain_array_of_images_is_made(
    shape: bytes, dtype: bytes, of_dtype: bytes, order: bytes, pixels: bytes
) -> None:
    """Whatever its state says: numpy never sees it."""
    kind = DTYPE.replace(b"%c", dtype) + of_dtype
    state = b"(K\1" + shape + kind + order + pixels + b"tb"
    assert not isinstance(parse(by(ARRAY, state))["data"], np.ndarray)


def test_a_flag_in_place_of_the_number_of_images_is_refused() -> None:
    kind = DTYPE.replace(b"%c", b"u1") + PLAIN
    with pytest.raises(ValueError, match=REMEDY):
        parse(by(ARRAY, b"(K\1(\x88M\0\x0ct" + kind + b"\x89" + PIXELS + b"tb"))


def test_a_state_changes_nothing_for_the_next_pickle() -> None:
    for name in (b"numpy\nndarray", b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct"):
        parse(by(b"c" + name + b"\nN}(U\x08__call__K\1U\x0c__setstate__K\1u\x86b"))
    assert np.array_equal(parse(GOOD)["data"], IMAGES)


def test_no_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_a_pickle.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="module_of_a_pickle"):
        parse(by(b"cmodule_of_a_pickle\nname\n"))
    assert "module_of_a_pickle" not in sys.modules


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty file"),
        pytest.param(b"\x80\x02N.", id="no dict"),
        pytest.param(b"(dp1\n.", id="protocol 0"),
        pytest.param(b"\x1f\x8b\x08\0", id="gzip"),
        pytest.param(GOOD.replace(b"U\6labels", b"K\1"), id="a key that is a number"),
        pytest.param(GOOD.replace(b"u.", b"U\1au."), id="a key without a value"),
        pytest.param(GOOD.replace(b"u.", b"X\xff\xff\xff\xffu."), id="4 GB of text"),
        pytest.param(GOOD.replace(b"u.", b"T\xff\xff\xff\xffu."), id="4 GB of pixels"),
    ],
)
def test_what_the_published_files_do_not_have_is_refused(content: bytes) -> None:
    assert content != GOOD
    with pytest.raises(ValueError, match=REMEDY):
        parse(content)


DEEP = 300_000


@pytest.mark.parametrize(
    "content",
    [
        by(b"]" * DEEP + b"a" * (DEEP - 1)),
        by(b"N" + b"\x85" * DEEP),
        b"\x80\x02}(N" + b"\x85" * DEEP + b"K\1u.",
        by(b"(" * DEEP),
        by(b"cnumpy\ndtype\n" + b"\x85R" * DEEP),
        by(b"cnumpy\ndtype\n" + b"q\0h\0\x85R" * DEEP),
    ],
    ids=["lists", "tuples", "a key", "marks", "calls", "calls of calls"],
)
def test_values_that_are_nested_deeply_do_no_harm(content: bytes) -> None:
    try:
        assert not isinstance(parse(content)["data"], np.ndarray)
    except ValueError as error:
        assert "extract the original archive again" in str(error)  # noqa: PT017


def test_a_file_with_more_than_its_images_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(ValueError, match=r"^byte 4194305: there is too much beside the images"):
        parse(by(b"(" * 5_000_000))


def test_calls_do_not_copy_what_they_are_called_with() -> None:
    numbers = b"(" + b"K\1" * 50_000 + b"tq\1"
    name = b"cnumpy\ndtype\nq\0"
    calls = b"h\0h\1R" * 60
    tracemalloc.start()
    with contextlib.suppress(ValueError):
        parse(b"\x80\2}(U\1a(" + numbers + name + calls + b"tu.")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20  # it was 800 KB for each call


def test_a_real_file_takes_little_time() -> None:
    """About 0.1 s of the processor: the time grows with the file, not with its square."""
    labels, names = [i % 10 for i in range(10_000)], [f"{i}.png" for i in range(10_000)]
    content = pickled({"labels": labels, "data": IMAGES, "filenames": names})
    start = time.process_time()
    value = parse(content)
    assert time.process_time() - start < 5
    assert value["labels"] == labels
    assert value["filenames"] == names
