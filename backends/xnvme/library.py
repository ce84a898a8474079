"""libxnvme by ctypes: finding the library, and its functions.

The `_xnvme*.py` are the only places that know libxnvme's ABI. Two of them are about, and both call
themselves 0.7.5: the release, and the main branch. What differs between them is not used here.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from typing import Any

from ...errors import BackendUnavailable

_pointer = ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {  # name: what it returns, its arguments
    "xnvme_dev_open": (_pointer, [ctypes.c_char_p, _pointer]),
    "xnvme_dev_close": (None, [_pointer]),
    "xnvme_dev_get_geo": (_pointer, [_pointer]),
    "xnvme_dev_get_ctrlr": (_pointer, [_pointer]),
    "xnvme_dev_get_ns": (_pointer, [_pointer]),
    "xnvme_dev_get_nsid": (ctypes.c_uint32, [_pointer]),
    "xnvme_dev_get_opts": (_pointer, [_pointer]),
    "xnvme_dev_get_be_state": (_pointer, [_pointer]),
    "xnvme_file_open": (_pointer, [ctypes.c_char_p, _pointer]),
    "xnvme_file_close": (ctypes.c_int, [_pointer]),
    "xnvme_file_pread": (
        ctypes.c_int,
        [_pointer, _pointer, ctypes.c_size_t, ctypes.c_longlong],
    ),
    "xnvme_buf_alloc": (_pointer, [_pointer, ctypes.c_size_t]),
    "xnvme_buf_free": (None, [_pointer, _pointer]),
    "xnvme_queue_init": (
        ctypes.c_int,
        [_pointer, ctypes.c_uint16, ctypes.c_int, ctypes.POINTER(_pointer)],
    ),
    "xnvme_queue_term": (ctypes.c_int, [_pointer]),
    "xnvme_queue_poke": (ctypes.c_int, [_pointer, ctypes.c_uint32]),
    "xnvme_queue_get_outstanding": (ctypes.c_uint32, [_pointer]),
    "xnvme_queue_get_cmd_ctx": (_pointer, [_pointer]),
    "xnvme_queue_set_cb": (ctypes.c_int, [_pointer, _pointer, _pointer]),
    "xnvme_cmd_pass": (
        ctypes.c_int,
        [_pointer, _pointer, ctypes.c_size_t, _pointer, ctypes.c_size_t],
    ),
}
_ONLY_IN = {"xnvme_be_attr_get": "main", "xnvme_be_attr_list_bundled": "0.7.5"}
_NAMES = ("libxnvme.so", "libxnvme.so.0")
_HELP = (
    "get libxnvme 0.7.5 from conda-forge (conda install -c conda-forge libxnvme) or from a "
    "distribution that packages it (Alpine does), or build it from https://github.com/xnvme/xnvme "
    "(meson setup build && meson install -C build); if it is there already, set XNVME_LIBRARY_PATH "
    "to the path of libxnvme.so"
)


class Library:
    """A libxnvme that has been loaded. Its functions are attributes, by their names.

    `quick` has the same functions, called with the interpreter lock held: for those that only write
    to memory. To give the lock away costs little, to get it back can cost milliseconds.

    Attributes:
        path: what it was loaded by.
        version: "0.7.5" or "main".
    """

    def __init__(self, path: str) -> None:
        """Load it.

        Raises:
            OSError: there is no such library.
            BackendUnavailable: there is, but it is none of those that are known here.
        """
        self.path = path
        self._cdll = ctypes.CDLL(path, use_errno=True)
        self.quick: Any = ctypes.PyDLL(path)
        missing = [name for name in _FUNCTIONS if not hasattr(self._cdll, name)]
        versions = [_ONLY_IN[name] for name in _ONLY_IN if hasattr(self._cdll, name)]
        if missing or len(versions) != 1:
            what = f"it has no {missing[0]}" if missing else "it is neither 0.7.5 nor main"
            raise BackendUnavailable(f"{path} is not a libxnvme that is known here: {what}", _HELP)
        self.version = versions[0]
        for name, (result, arguments) in _FUNCTIONS.items():
            for functions in (self._cdll, self.quick):
                getattr(functions, name).restype = result
                getattr(functions, name).argtypes = arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cdll, name)


def load() -> Library:
    """The libxnvme that XNVME_LIBRARY_PATH names; without that, the one that the system has.

    Raises:
        BackendUnavailable: there is none, or not one that is known here; says how to get it.
    """
    return _load(os.environ.get("XNVME_LIBRARY_PATH"))


@functools.cache  # but for failures: one may install it meanwhile
def _load(path: str | None) -> Library:
    tried = []
    for candidate in [path] if path else [*_NAMES, *_of_pkg_config()]:
        try:
            return Library(candidate)
        except OSError as error:
            tried.append(str(error))
    where = "XNVME_LIBRARY_PATH: " if path else ""
    raise BackendUnavailable(f"no libxnvme ({where}{'; '.join(tried)})", _HELP)


def _of_pkg_config() -> list[str]:
    command = ["pkg-config", "--variable=libdir", "xnvme"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no pkg-config, or it does not know xnvme
        return []
    return [os.path.join(run.stdout.strip(), name) for name in _NAMES]
