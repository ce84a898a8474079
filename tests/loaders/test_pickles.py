"""Pickles of CIFAR: what the published files have is loaded, and nothing else is done."""

import contextlib
import os
import pickle
import pickletools
import sys
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dali_storage.loaders.datasets.pickles import parse
from tests.kit.cifar_archive import pickled
from tests.kit.tiers import by_tier

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


def test_an_array_of_a_pickle_is_a_view_of_it():
    assert np.shares_memory(parse(GOOD)["data"], np.frombuffer(GOOD, np.uint8))


@pytest.mark.parametrize("protocol", range(6))
def test_a_batch_that_python_3_pickled_is_refused_with_the_remedy(protocol):
    with pytest.raises(ValueError, match=REMEDY):
        parse(pickle.dumps(BATCH, protocol))


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


PUBLISHED = "\x80.(}]aet\x85\x86\x87NJKMUT\x88\x89uqrhjcRb"
OTHERS = {each.name: each.code for each in pickletools.opcodes if each.code not in PUBLISHED}


@pytest.mark.parametrize("opcode", OTHERS.values(), ids=OTHERS)
def test_other_opcodes_in_a_pickle_are_refused(opcode):
    with pytest.raises(ValueError, match="the opcode before it is not in the published files; "):
        parse(by(opcode.encode("latin-1"), bytes(9)))


@pytest.mark.parametrize(
    ("opcodes", "words"),
    [
        (b"cposix\nsystem\n", r"'posix\.system' is not in the published files; "),
        (b"cnumpy\nload\n", r"'numpy\.load' is not in the published files; "),
        (b"cnumpy\nndarray\\.__class__\n", REMEDY),
        (b"](K\1e}(U\1aK\1ub", REMEDY),  # BUILD of a list
        (b"K\1K\1\x85R", REMEDY),  # REDUCE of a number
        (b"N" + b"r\xff\xff\xff\xff" + b"j\0\0\0\0", REMEDY),  # a value that there is not
    ],
)
def test_other_names_and_calls_in_a_pickle_are_refused(opcodes, words):
    with pytest.raises(ValueError, match=words):
        parse(by(opcodes))


PLAIN = b"(K\3U\1|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"


def array(
    shape=b"(K\1M\0\x0ct",
    dtype=b"u1",
    of_dtype=PLAIN,
    order=b"\x89",
    pixels=b"T\0\x0c\0\0" + bytes(3072),
):
    """A batch with an array of one image, by the opcodes of the published files."""
    made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\1btR"
    kind = b"cnumpy\ndtype\n(U\2" + dtype + b"K\0K\1tR" + of_dtype
    return by(made, b"(K\1" + shape + kind + order + pixels + b"tb")


def test_an_array_by_the_opcodes_of_these_tests_is_loaded():
    assert parse(array())["data"].shape == (1, 3072)


NOT_PLAIN = {
    "objects": array(dtype=b"O8"),
    "a list of objects": array(dtype=b"O8", pixels=b"](Ne"),
    "signed": array(dtype=b"i1"),
    "fields": array(of_dtype=PLAIN.replace(b"NNN", b"N](U\1aeN")),
    "state of the type": array(of_dtype=b"}b"),
    "no state of the type": array(of_dtype=b""),
    "more images than bytes": array(shape=b"(K\2M\0\x0ct"),
    "fewer": array(shape=b"(K\0M\0\x0ct"),
    "negative shape": array(shape=b"(J\xff\xff\xff\xffM\0\x0ct"),
    "another shape": array(shape=b"(M\0\x0cK\1t"),
    "one dimension": array(shape=b"(M\0\x0ct"),
    "no shape": array(shape=b"K\1"),
    "no order": array(order=b"N"),
    "short text": array(pixels=b"U\1a"),
}


@pytest.mark.parametrize("content", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_no_other_array_than_plain_images_is_made_of_a_pickle(content):
    """Whatever its state says: numpy never sees it."""
    assert not isinstance(parse(content)["data"], np.ndarray)


def test_a_state_in_a_pickle_changes_nothing_for_the_next_one():
    for name in (b"numpy\nndarray", b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct"):
        parse(by(b"c" + name + b"\nN}(U\x08__call__K\1U\x0c__setstate__K\1u\x86b"))
    assert np.array_equal(parse(GOOD)["data"], IMAGES)


def test_a_pickle_imports_no_module(tmp_path, monkeypatch):
    (tmp_path / "module_of_a_pickle.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="module_of_a_pickle"):
        parse(by(b"cmodule_of_a_pickle\nname\n"))
    assert "module_of_a_pickle" not in sys.modules


OTHERS = {
    "empty file": b"",
    "no dict": b"\x80\x02N.",
    "protocol 0": b"(dp1\n.",
    "gzip": b"\x1f\x8b\x08\0",
    "a key that is a number": GOOD.replace(b"U\6labels", b"K\1"),
    "a key without a value": GOOD.replace(b"u.", b"U\1au."),
    "4 GB of text": GOOD.replace(b"u.", b"X\xff\xff\xff\xffu."),
    "4 GB of pixels": GOOD.replace(b"u.", b"T\xff\xff\xff\xffu."),
    "a flag for the number of images": array(shape=b"(\x88M\0\x0ct"),
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_a_file_unlike_the_published_ones_is_refused_with_the_remedy(content):
    assert content != GOOD
    with pytest.raises(ValueError, match=REMEDY):
        parse(content)


DEEP = by_tier(100_000, 300_000)


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
def test_deeply_nested_values_in_a_pickle_do_no_harm(content):
    try:
        assert not isinstance(parse(content)["data"], np.ndarray)
    except ValueError as error:
        assert "extract the original archive again" in str(error)  # noqa: PT017


def test_a_file_with_more_than_its_images_is_refused_before_it_fills_the_memory():
    with pytest.raises(
        ValueError, match=r"^byte 4194\d\d\d: there is too much data beside the images"
    ):
        parse(by(b"(" + (b"U\xff" + bytes(255)) * 20_000))


def test_calls_in_a_pickle_do_not_copy_their_arguments():
    numbers = b"(" + b"K\1" * 50_000 + b"tq\1"
    name = b"cnumpy\ndtype\nq\0"
    calls = b"h\0h\1R" * 60
    tracemalloc.start()
    with contextlib.suppress(ValueError):
        parse(b"\x80\2}(U\1a(" + numbers + name + calls + b"tu.")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20  # it was 800 KB for each call


def test_the_work_of_parsing_grows_with_the_file_and_not_with_its_square():
    calls = []
    for images in (1_500, 3_000):
        labels, names = [i % 10 for i in range(images)], [f"{i}.png" for i in range(images)]
        content = pickled({"labels": labels, "data": IMAGES, "filenames": names})
        events = Counter[str]()
        sys.setprofile(lambda frame, event, argument: events.update([event]))  # noqa: B023
        try:
            value = parse(content)
        finally:
            sys.setprofile(None)
        assert (value["labels"], value["filenames"]) == (labels, names)
        calls.append(events["call"] + events["c_call"])
    assert calls[1] < 2.1 * calls[0]
