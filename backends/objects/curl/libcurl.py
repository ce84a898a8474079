"""libcurl and the C library by ctypes: found, checked, and with the prototypes that are used.

The calls that only set, take or tell something keep the interpreter lock: giving it up costs more
than they do. Those that end something may wait for a look-up of a name, so others run
meanwhile. https://curl.se/libcurl/c/ documents each.
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
QUICK_EXIT = 322  # of libcurl 7.87: look-ups of names that are under way are not waited for
SIZE_DOWNLOAD, SENDING, ANSWERING = 0x600008, 0x600035, 0x600036  # bytes; µs
MAXCONNECTS = 6  # of a multi handle

_OLDEST = 0x074C00  # 7.76, of RHEL 9
_SSL, _ASYNCH_DNS = 1 << 2, 1 << 7
_REMEDY = "install libcurl 7.76 or newer with TLS (apt-get install libcurl4, or pip install pycurl)"


class Blob(ctypes.Structure):
    """curl_blob; with flags 0, libcurl uses its memory."""

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
    """The functions of a libcurl. Those of ctypes' variadic ones have fixed types on Linux."""

    def __init__(self, path: str) -> None:
        """Load it.

        Raises:
            OSError: it cannot be loaded.
            BackendUnavailable: it lacks what is needed.
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
            raise BackendUnavailable(f"{what} looks up names one at a time", _REMEDY)

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
        """Set an option of a handle. `value` must live as long as the handle; None: nothing.

        Raises:
            BackendUnavailable: libcurl does not take it.
        """
        if value is None:
            self.set_pointer(easy, option, None)  # some do not know what need not be cleared
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
    """CURLMsg of a request that has ended."""

    _fields_ = (("kind", c_int), ("easy", c_void_p), ("code", c_int))


@functools.cache
def load() -> Libcurl:
    """The distribution's libcurl, or else the one in pycurl's wheel; loaded once.

    Raises:
        BackendUnavailable: there is none, or it lacks what is needed.
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
    """The paths of the libcurl in pycurl's wheel. pycurl is not imported."""
    try:
        files = importlib.metadata.files("pycurl") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [str(file.locate()) for file in files if file.name.startswith("libcurl")]


def open_stream(address: int, size: int, mode: bytes) -> int:
    """A FILE of the C library that writes to memory at once; `mode` as of fmemopen()."""
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
