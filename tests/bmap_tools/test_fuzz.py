"""Edited and mangled maps are refused, or are what plain json says and safe to read by."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmap_tools import MapFormatError, bmap_json, load
from tests.kit.bmap.documents import (
    GIB,
    LAYOUTS,
    TEXTS,
    as_saved,
    contents,
    digest,
    document,
    documents,
    expected,
    in_a_shared_directory,
    sealed,
    write,
)


def require_refused_or_right(path, plain):
    """Whether it was loaded; then it names no file above the root, and no byte off the device."""
    try:
        loaded = contents(load(path))
    except MapFormatError:
        return False
    assert loaded == expected(plain)
    assert plain["digest"] == digest(plain)
    for name, *_, extents in loaded["files"]:
        assert not {b"", b".", b".."} & {*name.split(b"/")}
        for _, physical, length in extents if isinstance(extents, list) else ():
            assert physical is None or 0 <= physical <= plain["device"]["size"] - length
    return True


NUMBERS = [0, -1, 1, 3, 511, 512, 4096, 4097, GIB, 2**48, 2**48 + 1, 2**63 - 512, 2**63 - 1, 2**63]
NUMBERS += [2**64, -(2**63), -(2**63) - 1, 10**400]
TEXT = [*("", "0", "a", ".", "..", "/", "a/", "a//b", "/a", "a/..", "a/./b", "b/c", "a\0")]
TEXT += ["\ud800", "\udcff"]
LISTS = [[], [[]], [0, 0, 4096], [[0, 0, 512], [0, 0, 512]], [[0, 2**63 - 512, 512]]]
ODD = st.sampled_from([None, True, False, 0.0, 4096.0, 1e300, {}, *NUMBERS, *TEXT, *LISTS])
# Copies, because a later edit may be one of what an earlier one put there.
VALUES = (ODD | TEXTS | st.integers() | st.lists(ODD, max_size=3)).map(copy.deepcopy)


def containers(value):
    """Each container in a document with each of its keys or indices."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from containers(value[key])


@st.composite
def edited(draw):
    """A right document after one to three edits of values, rows and members."""
    plain = draw(documents() | st.builds(document))
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(containers(plain))))
        edit = draw(st.integers(0, 9))
        if edit == 0:
            del container[key]
        elif edit == 1 and isinstance(container, list):
            container.insert(draw(st.integers(0, len(container))), copy.deepcopy(container[key]))
        elif edit == 2 and isinstance(container, list):
            container.reverse()
        elif edit == 3 and isinstance(container, dict):
            container[draw(TEXTS)] = draw(VALUES)
        elif edit < 7 and type(container[key]) is int:
            container[key] += draw(st.sampled_from([-4096, -512, -1, 1, 512, 4096, 2**62, 2**63]))
        else:
            container[key] = draw(VALUES)
    return plain


@in_a_shared_directory
@given(edited())
def test_an_edited_map_is_refused_or_is_what_plain_json_says(tmp_path, plain):
    require_refused_or_right(write(tmp_path, plain), sealed(plain))


def strictly(members):
    if len(dict(members)) < len(members):
        raise ValueError("twice")
    return dict(members)


def no_constant(constant):
    raise ValueError(constant)


def plain_json(data):
    """What Python's json reads, or None where it or the rules for JSON refuse it."""
    try:
        text = data.decode()
        return json.loads(text, object_pairs_hook=strictly, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None


WORDS = rb'0 9 - . e5 [ ] { } , : " \ null true NaN Infinity \ud800'.split()
PIECES = st.binary(max_size=3) | st.sampled_from(
    [*WORDS, b"\n", b" ", b"],\n[", b'"a": 1,', b"\xff", b"\0"]
)


@st.composite
def mangled(draw):
    """The text of a right document in which some bytes were replaced."""
    layout = draw(st.just(as_saved) | st.sampled_from(list(LAYOUTS.values())))
    data = layout(document()).encode()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(PIECES) + data[at + draw(st.integers(0, 3)) :]
    return data


@in_a_shared_directory
@given(mangled(), st.sampled_from([1, 64, 1 << 14]))
def test_mangled_text_is_refused_or_is_what_plain_json_says(tmp_path, data, group):
    """By groups of any size: a bad line among good ones, and text of any layout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bmap_json, "GROUP_BYTES", group)
        loaded = require_refused_or_right(write(tmp_path, data), plain_json(data))
    assert loaded or json.dumps(plain_json(data)) != json.dumps(document())
