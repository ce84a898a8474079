"""Samples and labels of a listing, beside DALI's rules written as loops over objects."""

import fnmatch
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import example, given, strategies

from dali_storage.contract.remote import Listing
from dali_storage.samples import finding, listing
from dali_storage.samples.listed import from_store
from dali_storage.samples.listing import choose_samples

parts = strategies.sampled_from([b"a", b"a-", b"b", b"a.jpg", b"", b"\xff", b"a" * 9])
parts |= strategies.text("ab-./0!é", max_size=12).map(str.encode)
names = strategies.lists(parts, min_size=1, max_size=3).map(b"/".join)
Names = strategies.lists(names, unique=True, max_size=40).map(lambda it: sorted(filter(None, it)))

Filters = strategies.sampled_from([["*"], ["a*"], ["*.jpg"], ["[!a]*", "a"], ["nothing"]])


def listed(names, root=b"s3://bucket/train"):
    offsets = np.array([0, *accumulate(map(len, names))])
    versions = np.array([b"v%d" % number for number in range(len(names))], np.bytes_)
    return Listing(root, b"".join(names), offsets, np.arange(len(names)) + 7, versions)


def by_dalis_rules(names, dirs, files, *, alone):
    """As the loops of discover_files_s3.cc and discover_files_gcs.cc.

    Markers are left out for s3, too, and patterns are simple enough for Python's fnmatch.
    """
    labels, found = dict[bytes, int](), []
    for name in names:
        parts = name.split(b"/")
        if len(parts) == 1 and alone:
            parts *= 2
        if len(parts) != 2 or not all(parts):
            continue
        for part, patterns in zip(parts, (dirs, files), strict=True):
            text = part.decode("latin1")
            if not any(fnmatch.fnmatchcase(text, pattern) for pattern in patterns):
                break
        else:
            found.append((name, labels.setdefault(parts[0], len(labels))))
    return found


def keeping(patterns):
    def keep(names):
        texts = [name.decode("latin1") for name in names]
        passing = [any(fnmatch.fnmatchcase(text, each) for each in patterns) for text in texts]
        return [name for name, passes in zip(names, passing, strict=True) if passes]

    return keep


@example(names=[b"a/1", b"a/2", b"ab/1", b"b/1"], dirs=["*"], files=["*"], alone=False, at_once=3)
@given(
    names=Names,
    dirs=Filters,
    files=Filters,
    alone=strategies.booleans(),
    at_once=strategies.sampled_from([3, 1 << 16]),
)
def test_samples_and_labels_of_a_listing_are_those_of_dalis_loop(
    names, dirs, files, alone, at_once
):
    offered = []

    def keep(names):
        offered.extend(names)
        return keeping(dirs)(names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_AT_ONCE", at_once)
        chosen = choose_samples(listed(names), keep, keeping(files), alone=alone)
    assert alone or len(offered) == len(set(offered))
    assert chosen.labels.dtype == np.int32
    found = [(names[at], label) for at, label in zip(chosen.objects, chosen.labels, strict=True)]
    assert found == by_dalis_rules(names, dirs, files, alone=alone)


class Shelf:
    """A remote that has these names."""

    def __init__(self, *names: bytes) -> None:
        self.names = sorted(names)
        self.offered = []

    def listing(self, root, choose):
        self.offered = sorted({name.split(b"/")[0] for name in self.names if b"/" in name})
        choose(self.offered)
        return listed(self.names, root)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("s3", [b"a-b/y.jpg", b"a/x.jpg", b"root.jpg"]),
        ("az", [b"a-b/y.jpg", b"a/x.jpg", b"root.jpg"]),
        ("gs", [b"a-b/y.jpg", b"a/x.jpg"]),
    ],
)
def test_only_in_gs_an_object_in_no_class_is_no_sample(scheme, expected):
    names = b"a/x.jpg", b"a-b/y.jpg", b"root.jpg", b"a/", b"a/deep/z.jpg", b"a/x.txt"
    found = from_store(Shelf(*names), f"{scheme}://bucket/train")
    assert [found.name(sample) for sample in range(len(found))] == expected
    assert found.labels.tolist() == [*range(len(expected))]
    places = [sorted(names).index(name) for name in expected]
    assert found.sizes is not None
    assert found.versions is not None
    assert found.sizes.tolist() == [place + 7 for place in places]
    assert found.versions.tolist() == [b"v%d" % place for place in places]
    assert found.path(0) == f"{scheme}://bucket/train/a-b/y.jpg".encode()


def test_a_store_without_samples_is_refused_with_root_and_filters():
    refusal = (
        r"^no files found under 's3://b/t' as CLASS/FILE: 1 classes pass dir_filters=\['a'\], "
        r"and none of 3 objects in them or in the root passes file_filters='\*.png'$"
    )
    shelf = Shelf(b"a/1.jpg", b"b/1.png", b"c")
    with pytest.raises(ValueError, match=refusal):
        from_store(shelf, "s3://b/t", dir_filters=["a"], file_filters="*.png")


def test_a_root_that_cannot_be_listed_is_refused():
    for root, remote, words in (
        ("http://h/x", Shelf(), "a web server .* by files or file"),
        ("https://h", Shelf(), "a web server .* by files or file"),
        ("s3://b", None, "the backend cannot list objects"),
    ):
        with pytest.raises(ValueError, match=f"^file_root '{root}': {words}"):
            finding.find(remote=remote, file_root=root)
