"""What the backends of libxnvme need, and the option that is required."""

import pytest

from dali_storage.backends import xnvme_block
from dali_storage.backends.block import BlockReader
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.backends.xnvme_file import XnvmeFileReader
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.samples.discovery import from_files


@pytest.mark.parametrize("backend", [BlockReader, XnvmeBlockReader])
def test_a_map_that_is_no_path_is_refused_even_without_a_library(monkeypatch, backend):
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    with pytest.raises(TypeError, match="bmap must be the path of"):
        backend(from_files(["x"]), bmap=None)


@pytest.mark.parametrize("backend", [XnvmeFileReader, XnvmeBlockReader])
def test_a_backend_without_its_library_is_unavailable(monkeypatch, backend):
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    monkeypatch.setattr(xnvme_block, "load_map", lambda bmap: None)
    assert "conda-forge" in str(backend.unavailable())
    given = {"bmap": "no.json"} if "Block" in backend.__name__ else {}
    with pytest.raises(BackendUnavailable, match="conda-forge"):
        backend(from_files(["x"]), **given)
