"""Finding and loading libxnvme."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dali_storage.backends.xnvme import library as _xnvme
from dali_storage.contract.errors import BackendUnavailable
from tests.kit.paths import ROOT


def test_a_wrong_path_is_named_with_how_to_get_the_library(monkeypatch):
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    with pytest.raises(BackendUnavailable) as caught:
        _xnvme.load()
    for words in ("XNVME_LIBRARY_PATH: /no/such/libxnvme.so", "conda-forge", "build xnvme/xnvme"):
        assert words in str(caught.value)


def test_the_search_goes_from_the_loader_to_pkg_config(tmp_path, monkeypatch):
    tried = []

    def find_nothing(path):
        tried.append(path)
        raise OSError(f"{path}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(_xnvme, "Library", find_nothing)
    monkeypatch.setattr(_xnvme, "_NAMES", ("libnot-there.so",))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("XNVME_LIBRARY_PATH", raising=False)
    _xnvme._load.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"^libxnvme was not found; conda install"):
        _xnvme.load()  # there is no pkg-config
    assert tried == ["libnot-there.so"]
    (tmp_path / "pkg-config").write_text(
        '#!/bin/sh\n[ "$*" = "--variable=libdir xnvme" ] && echo /lib/of/it\n'
    )
    (tmp_path / "pkg-config").chmod(0o755)
    with pytest.raises(BackendUnavailable):
        _xnvme.load()
    assert tried[1:] == ["libnot-there.so", "/lib/of/it/libnot-there.so"]
    (tmp_path / "pkg-config").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(BackendUnavailable):
        _xnvme.load()
    assert tried[3:] == ["libnot-there.so"]


def test_a_library_that_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    (tmp_path / "libxnvme.so").write_bytes(b"no ELF header here" * 100)
    monkeypatch.setattr(_xnvme, "_NAMES", ("libnot-there.so", str(tmp_path / "libxnvme.so")))
    monkeypatch.delenv("XNVME_LIBRARY_PATH", raising=False)
    _xnvme._load.cache_clear()
    with pytest.raises(BackendUnavailable) as caught:
        _xnvme.load()
    assert caught.value.reason == f"{tmp_path}/libxnvme.so: invalid ELF header"


def test_another_library_is_refused(monkeypatch):
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "libc.so.6")
    with pytest.raises(
        BackendUnavailable, match=r"libc.* is not a supported libxnvme.*xnvme_dev_op"
    ):
        _xnvme.load()


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ([b"xnvme_queue_set_cb"], "it lacks xnvme_queue_set_cb"),
        ([b"xnvme_be_attr_get", b"xnvme_be_attr_list_bundled"], "neither 0.7.5 nor main"),
    ],
)
def test_a_library_that_lacks_a_symbol_is_refused(xnvme, tmp_path, monkeypatch, symbols, message):
    content = Path(_loaded_file(xnvme)).read_bytes()
    for symbol in symbols:
        content = content.replace(b"\0" + symbol + b"\0", b"\0" + symbol[:-1] + b"?\0")
    (tmp_path / "libxnvme.so").write_bytes(content)
    monkeypatch.setenv("XNVME_LIBRARY_PATH", str(tmp_path / "libxnvme.so"))
    with pytest.raises(BackendUnavailable, match=message):
        _xnvme.load()


def test_the_version_is_recognised_by_a_symbol_that_only_one_has(xnvme):
    content = Path(_loaded_file(xnvme)).read_bytes()
    is_main = b"\0xnvme_be_attr_get\0" in content
    assert is_main != (b"\0xnvme_be_attr_list_bundled\0" in content)
    assert xnvme.version == ("main" if is_main else "0.7.5")


def test_nothing_is_loaded_before_it_is_used():
    script = (
        "from dali_storage.backends import xnvme_file\n"
        "assert 'xnvme.so' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def _loaded_file(library):
    """The file that the dynamic loader has taken for a library."""
    address = ctypes.cast(library.xnvme_dev_open, ctypes.c_void_p)
    info = (ctypes.c_char_p * 4)()  # Dl_info; the name comes first
    assert ctypes.CDLL(None).dladdr(address, info) != 0
    return os.fsdecode(info[0] or b"")
