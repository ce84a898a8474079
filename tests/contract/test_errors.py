"""What errors say, and which class they have."""

import copy
import errno
import os
import pickle
import weakref
from contextlib import suppress

import numpy as np
import pytest

from dali_storage.contract.errors import (
    BackendUnavailable,
    ContainerChangedError,
    ObjectReplacedError,
    RecordError,
    SampleChangedError,
    SampleSizeChanged,
    StaleMapError,
    named,
    os_error,
)
from tests.kit.process import without_collector


def test_an_unavailable_backend_has_a_reason_and_a_remedy():
    error = BackendUnavailable("no library", "install it")
    assert (str(error), error.reason, error.remedy) == (
        "no library; install it",
        "no library",
        "install it",
    )
    assert str(BackendUnavailable("no library")) == "no library"


def test_an_os_error_has_the_class_of_its_number_and_its_path_as_text():
    error = os_error(errno.ENOENT, b"/data/\xff.jpg", ": gone")
    assert isinstance(error, FileNotFoundError)
    assert error.filename == os.fsdecode(b"/data/\xff.jpg")
    assert error.strerror == "No such file or directory: gone"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max"), (errno.ENOMEM, "ulimit -l")],
)
def test_an_exhausted_resource_has_a_remedy(number, remedy):
    assert remedy in str(os_error(number, b"x"))
    assert remedy not in str(os_error(number, b"x", "; another hint"))


def test_a_foreign_error_gets_its_path():
    with pytest.raises(PermissionError) as caught, named(b"/data/a", "; try as root"):
        raise OSError(errno.EPERM, "whatever the system said")
    assert str(caught.value) == "[Errno 1] Operation not permitted; try as root: '/data/a'"
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("error", "path", "expected"),
    [
        (OSError("of a library that numbers nothing"), b"/data/a", (errno.EIO, "/data/a")),
        (OSError(errno.ENOENT, "gone", b"/no/\xff"), None, (errno.ENOENT, "/no/\udcff")),
    ],
)
def test_a_foreign_error_gets_a_number_and_may_keep_its_own_path(error, path, expected):
    with pytest.raises(OSError) as caught, named(path):
        raise error
    assert (caught.value.errno, caught.value.filename) == expected


def test_other_errors_pass_through():
    with pytest.raises(ValueError, match="mine"), named(b"/data/a"):
        raise ValueError("mine")


def test_errors_of_samples_have_their_path():
    assert SampleChangedError(b"/data/a").filename == "/data/a"
    error = StaleMapError(b"/data/a", "its size was 5", "renew the map")
    assert (error.errno, error.filename) == (errno.ESTALE, "/data/a")
    assert "its size was 5; renew the map" in str(error)


@pytest.mark.parametrize(
    "kind",
    [
        BackendUnavailable,
        ContainerChangedError,
        ObjectReplacedError,
        RecordError,
        SampleChangedError,
        StaleMapError,
    ],
)
def test_each_error_can_be_made_of_a_text_as_dynamic_mode_makes_it_again(kind):
    error = kind("it happened")
    assert (str(error), getattr(error, "filename", None)) == ("it happened", None)


@pytest.mark.parametrize("again", [copy.copy, lambda it: pickle.loads(pickle.dumps(it))])
@pytest.mark.parametrize(
    "error",
    [
        BackendUnavailable("no library", "install it"),
        ObjectReplacedError(b"s3://a/\xff", "it has other bytes"),
        RecordError(b"/data/a", "its record 5 is cut"),
        SampleChangedError(b"/data/a"),
        SampleChangedError("it happened"),
        SampleSizeChanged(np.array([3, 5])),
        StaleMapError(b"/data/a", "its size was 5", "renew the map"),
    ],
    ids=repr,
)
def test_an_error_of_another_process_is_the_same(error, again):
    error.add_note("in a worker")
    names = "errno", "filename"
    one, other = (
        (type(it), str(it), repr(vars(it)), *(getattr(it, name, None) for name in names))
        for it in (error, again(error))
    )
    assert one == other


def test_a_named_error_that_is_gone_keeps_no_variable_of_its_callers():
    class Buffer:
        pass

    def read():
        with named(b"x"):
            raise OSError(errno.EIO, "")

    def use():
        buffer = Buffer()
        with suppress(OSError):
            read()
        return weakref.ref(buffer)

    with without_collector():
        assert use()() is None
