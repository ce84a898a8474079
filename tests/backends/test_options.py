"""The options of the backends of files and disks, which need no library, map or disk for this."""

from typing import Any

import pytest

from dali_storage.backends import xnvme_block
from dali_storage.backends.block import BlockReader
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.backends.xnvme_file import XnvmeFileReader
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.contract.reader import Reader
from dali_storage.samples.discovery import from_files

LANES = "an integer from 1 to 64", 0, 65, 1.5, "2", True
POWERS = "a power of two from 1 to 2048", 0, 48, 4096, 64.0, True
FLAG = "True or False", 1, "yes"
TRANSFER = "a multiple of 4096 from 4096 to", 0, 512, 5000, 2 << 30, "128k"
IOS = "one of io_uring, libaio, emu, thrpool", "posix", "io_uring_cmd"
REFUSED: list[tuple[type[Reader], dict[str, tuple[Any, ...]]]] = [
    (
        PythonFileReader,
        {"lanes": LANES, "copying_lanes": LANES, "direct": FLAG, "io": ("one of aio, preadv", "x")},
    ),
    (XnvmeFileReader, {"lanes": LANES, "queue_depth": POWERS, "direct": FLAG, "io": IOS}),
    (
        BlockReader,
        {
            "lanes": LANES,
            "check": FLAG,
            "max_transfer": TRANSFER,
            "bmap": ("the path of", None),
            "queue_depth": ("an integer from 1 to 4096", 0, 4097, 1.5, True),
        },
    ),
    (
        XnvmeBlockReader,
        {
            "queues": LANES,
            "queue_depth": POWERS,
            "check": FLAG,
            "spin": FLAG,
            "max_transfer": TRANSFER,
            "bmap": ("the path of", None),
            "nsid": ("", 0),
            "retries": ("an integer from 0 to 100", -1, 101),
            "mem": ("one of cpu, pinned, gpu", "disk"),
            "gpu": ("an integer from 0", -1, "0"),
        },
    ),
]


@pytest.mark.parametrize(
    ("backend", "option", "values"),
    [(backend, *item) for backend, options in REFUSED for item in options.items()],
)
def test_a_wrong_option_is_refused_by_name_even_without_a_library(
    monkeypatch, backend, option, values
):
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    error = TypeError if option in ("check", "direct", "spin", "bmap") else ValueError
    given = {"bmap": "no.json"} if "Block" in backend.__name__ else {}
    for value in values[1:]:
        with pytest.raises(error, match=f"{option} must be {values[0]}"):
            backend(from_files(["x"]), **given | {option: value})


@pytest.mark.parametrize("backend", [XnvmeFileReader, XnvmeBlockReader])
def test_a_backend_without_its_library_is_unavailable(monkeypatch, backend):
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    monkeypatch.setattr(xnvme_block, "load_map", lambda bmap: None)
    assert "conda-forge" in str(backend.unavailable())
    given = {"bmap": "no.json"} if "Block" in backend.__name__ else {}
    with pytest.raises(BackendUnavailable, match="conda-forge"):
        backend(from_files(["x"]), **given)
