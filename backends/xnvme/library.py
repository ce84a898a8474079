"""Finding and loading libxnvme."""

import ctypes
import functools
import os
import subprocess
from typing import Any

from ...contract.errors import BackendUnavailable
from .abi import PROTOTYPES, VERSION_SYMBOLS

_NAMES = ("libxnvme.so", "libxnvme.so.0")
_HELP = (
    "conda install -c conda-forge libxnvme, or build xnvme/xnvme from GitHub; then set "
    "XNVME_LIBRARY_PATH to libxnvme.so"
)


class Library:
    """A loaded libxnvme. Its functions are attributes, by their names.

    Attributes:
        path: the name or path used for loading.
        version: "0.7.5" or "main".
        with_gil: the same functions, called with the interpreter lock held (see `linux.libc`).
    """

    def __init__(self, path: str) -> None:
        """Load the library; OSError if missing, BackendUnavailable if not supported."""
        self.path = path
        self._cdll = ctypes.CDLL(path, use_errno=True)
        self.with_gil: Any = ctypes.PyDLL(path)
        missing = [name for name in PROTOTYPES if not hasattr(self._cdll, name)]
        versions = [what for name, what in VERSION_SYMBOLS.items() if hasattr(self._cdll, name)]
        if missing or len(versions) != 1:
            what = f"it lacks {missing[0]}" if missing else "it is neither 0.7.5 nor main"
            raise BackendUnavailable(f"{path} is not a supported libxnvme: {what}", _HELP)
        self.version = versions[0]
        for name, (result, arguments) in PROTOTYPES.items():
            for functions in (self._cdll, self.with_gil):
                getattr(functions, name).restype = result
                getattr(functions, name).argtypes = arguments

    def __str__(self) -> str:
        return f"libxnvme {self.version} ({self.path})"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cdll, name)


def load() -> Library:
    """Load the libxnvme of XNVME_LIBRARY_PATH, else the system's; or BackendUnavailable."""
    return _load(os.environ.get("XNVME_LIBRARY_PATH"))


@functools.cache  # without failures: the library may be installed meanwhile
def _load(path: str | None) -> Library:
    broken: list[str] = []
    for candidate in [path] if path else [*_NAMES, *_from_pkg_config()]:
        try:
            return Library(candidate)
        except OSError as error:
            if path:
                raise BackendUnavailable(f"XNVME_LIBRARY_PATH: {error}", _HELP) from None
            if not str(error).startswith(f"{candidate}: cannot open shared object file: No such"):
                broken.append(str(error))  # for example, a dependency is missing
    raise BackendUnavailable("; ".join(broken) or "libxnvme was not found", _HELP)


def _from_pkg_config() -> list[str]:
    command = ["pkg-config", "--variable=libdir", "xnvme"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no pkg-config, or it does not know xnvme
        return []
    return [os.path.join(run.stdout.strip(), name) for name in _NAMES]
