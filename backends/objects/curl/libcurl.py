"""libcurl and the C library by ctypes: lookup, checks, and the prototypes of the used functions.

Calls that only set or return values keep the interpreter lock, because its release costs more than
the call. Calls that end a request may wait for a DNS lookup, and release the lock.
https://curl.se/libcurl/c/ documents each.
"""

import ctypes
import functools
import importlib.metadata
from ctypes import POINTER, c_char_p, c_int, c_long, c_longlong, c_size_t, c_uint, c_void_p
from typing import Any

from ....contract.errors import BackendUnavailable

URL, HTTPHEADER, WRITEDATA, HEADERDATA = 10002, 10023, 10001, 10029
NOSIGNAL, BUFFERSIZE, HTTP_VERSION, PROTOCOLS, NOPROXY = 99, 98, 84, 181, 10177
TIMEOUT_MS, CONNECTTIMEOUT_MS, VERIFYPEER, VERIFYHOST = 155, 156, 64, 81
CAINFO_BLOB, CAPATH, USERAGENT = 40309, 10097, 10018
QUICK_EXIT = 322  # of libcurl 7.87: do not wait for pending DNS lookups
SIZE_DOWNLOAD, SENDING, ANSWERING = 0x600008, 0x600035, 0x600036  # bytes; µs
MAXCONNECTS = 6  # of a multi handle

_OLDEST = 0x074C00  # 7.76, of RHEL 9
_SSL, _ASYNCH_DNS = 1 << 2, 1 << 7
_REMEDY = "install libcurl 7.76 or newer with TLS (apt-get install libcurl4, or pip install pycurl)"


class Blob(ctypes.Structure):
    """curl_blob; with flags 0, libcurl uses the memory without a copy."""

    _fields_ = (("data", c_char_p), ("size", c_size_t), ("flags", c_uint))


class _Version(ctypes.Structure):
    _fields_ = (
        ("age", c_int),
        ("version", c_char_p),
        ("number", c_uint),
        ("host", c_char_p),
        ("features", c_int),
        ("tls", c_char_p),
    )


class Libcurl:
    """The functions of a libcurl. Variadic functions are bound with fixed types, fine on Linux."""

    def __init__(self, path: str) -> None:
        """Load the library.

        Raises:
            OSError: the library cannot be loaded.
            BackendUnavailable: the library lacks a needed feature.
        """
        held, free = ctypes.PyDLL(path), ctypes.CDLL(path)
        what = f"libcurl {path}"
        if not hasattr(held, "curl_multi_wakeup"):
            raise BackendUnavailable(f"{what} has no curl_multi_wakeup", _REMEDY)
        held.curl_version_info.restype = POINTER(_Version)
        info = held.curl_version_info(c_int(3)).contents
        self.name = f"libcurl {info.version.decode()} ({(info.tls or b'no TLS').decode()})"
        if info.number < _OLDEST:
            raise BackendUnavailable(f"{what} is {info.version.decode()}, too old", _REMEDY)
        if not info.features & _SSL:
            raise BackendUnavailable(f"{what} has no TLS", _REMEDY)
        if not info.features & _ASYNCH_DNS:
            raise BackendUnavailable(f"{what} has no asynchronous DNS", _REMEDY)

        def prototype(name: str, *types: Any, of: Any = held, result: Any = c_int) -> Any:
            kind = ctypes.PYFUNCTYPE if of is held else ctypes.CFUNCTYPE
            return kind(result, *types)(ctypes.cast(getattr(of, name), c_void_p).value or 0)

        easy, multi = c_void_p, c_void_p
        self.easy_init = prototype("curl_easy_init", result=c_void_p)
        self.easy_cleanup = prototype("curl_easy_cleanup", easy, of=free, result=None)
        self.set_long = prototype("curl_easy_setopt", easy, c_int, c_long)
        self.set_pointer = prototype("curl_easy_setopt", easy, c_int, c_void_p)
        self.set_bytes = prototype("curl_easy_setopt", easy, c_int, c_char_p)
        self.get_number = prototype("curl_easy_getinfo", easy, c_int, POINTER(c_longlong))
        self.multi_init = prototype("curl_multi_init", result=c_void_p)
        self.multi_set = prototype("curl_multi_setopt", multi, c_int, c_long)
        self.multi_cleanup = prototype("curl_multi_cleanup", multi, of=free)
        self.add = prototype("curl_multi_add_handle", multi, easy)
        self.remove = prototype("curl_multi_remove_handle", multi, easy, of=free)
        self.remove_ended = prototype("curl_multi_remove_handle", multi, easy)  # waits for nothing
        said = POINTER(c_int)
        self.next_message = prototype("curl_multi_info_read", multi, said, result=c_void_p)
        self.wake = prototype("curl_multi_wakeup", multi)
        self.perform = prototype("curl_multi_perform", multi, said, of=free)
        self.poll = prototype("curl_multi_poll", multi, c_void_p, c_uint, c_int, said, of=free)
        if prototype("curl_global_init", c_long)(3):
            raise BackendUnavailable(f"{what} cannot be initialised", _REMEDY)

    def set(self, easy: int, option: int, value: Any) -> None:
        """Set an option of a handle. `value` must live as long as the handle; None clears.

        Raises:
            BackendUnavailable: libcurl refuses the option.
        """
        if value is None:
            self.set_pointer(easy, option, None)  # may fail if unknown: then nothing to clear
            return
        if option == CAINFO_BLOB:
            blob = Blob(value, len(value), 0)
            code = self.set_pointer(easy, option, ctypes.addressof(blob))
        else:
            setter = self.set_bytes if isinstance(value, bytes) else self.set_long
            code = setter(easy, option, value)
        if code:
            raise BackendUnavailable(f"{self.name} refuses its option {option}", _REMEDY)


class Message(ctypes.Structure):
    """CURLMsg of a completed request."""

    _fields_ = (("kind", c_int), ("easy", c_void_p), ("code", c_int))


@functools.cache
def load() -> Libcurl:
    """Load the distribution's libcurl, or else the one in pycurl's wheel; once per process.

    Raises:
        BackendUnavailable: there is no libcurl, or none with all needed features.
    """
    problem = BackendUnavailable("libcurl was not found", _REMEDY)
    for path in ("libcurl.so.4", *_of_pycurl()):
        try:
            return Libcurl(path)
        except BackendUnavailable as error:
            problem = error
        except OSError:
            pass  # not there
    raise problem


def _of_pycurl() -> list[str]:
    """The paths of libcurl in pycurl's wheel. pycurl is not imported."""
    try:
        files = importlib.metadata.files("pycurl") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [str(file.locate()) for file in files if file.name.startswith("libcurl")]


def open_stream(address: int, size: int, mode: bytes) -> int:
    """Open a FILE of the C library that writes to memory, unbuffered; `mode` as for fmemopen()."""
    stream: int | None = _open_memory(address, size, mode)
    if not stream:
        raise MemoryError
    _set_buffer(stream, None, 2, 0)  # none
    return stream


_libc = ctypes.PyDLL(None)
_open_memory = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_size_t, c_char_p)(("fmemopen", _libc))
_set_buffer = ctypes.PYFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_size_t)(("setvbuf", _libc))
rewind = ctypes.PYFUNCTYPE(None, c_void_p)(("rewind", _libc))
close_stream = ctypes.PYFUNCTYPE(c_int, c_void_p)(("fclose", _libc))
