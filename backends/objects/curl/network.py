"""The thread that requests objects by libcurl, and writes response bodies to their destination."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_longlong
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ....runtime.profiling import show_name
from . import libcurl as curl
from .requests import check

if TYPE_CHECKING:
    from ..pool import Call, RequestPool
    from ..versions import ObjectPart

_CLOSING = 3.0  # seconds
_SMALL = 4096  # bytes: shorter bodies are copied: no room for an error text at the destination
_STAGING = 64 << 10  # bytes that libcurl receives from a connection at once
_LONGEST_WAIT = 1000  # ms
_KEPT = 4  # idle handles, for each of the requests at once


_running: WeakSet[Network] = WeakSet()


@atexit.register
def _end_all() -> None:
    """End all threads before the interpreter ends, so that none writes to freed memory."""
    for network in [*_running]:
        network.close()


class Handle:
    """A reusable easy handle of libcurl, with the streams for its responses.

    Lanes prepare and settle a handle. In between, only the network's thread uses the handle.
    """

    def __init__(self, library: curl.Libcurl, settings: Sequence[tuple[int, Any]]) -> None:
        self._library, self.easy = library, library.easy_init()
        self._memory = ctypes.create_string_buffer(2 * _SMALL)
        self._head = ctypes.addressof(self._memory)
        self._heads, self._body = curl.open_stream(self._head, _SMALL, b"w"), 0
        self._number = c_longlong()
        library.set_pointer(self.easy, curl.HEADERDATA, self._heads)
        library.set_long(self.easy, curl.QUICK_EXIT, 1)  # unknown to older ones, without harm
        for option, value in settings:
            library.set(self.easy, option, value)
        self.call: Call[ObjectPart, Any] | None = None
        self.position = self.address = self.code = 0
        self.began = self.seconds = 0.0

    def prepare(
        self, call: Call[ObjectPart, Any], position: int, url: bytes, headers: int, address: int
    ) -> None:
        """Prepare a request for an item of a call; the byte at `address` must be 0."""
        library, length = self._library, call.items[position].length
        self.call, self.position, self.address = call, position, address
        # "w" would add a 0 after a body; "a" begins at the first 0, and adds none at the end.
        small = self._head + _SMALL, _SMALL, b"w"
        self._body = curl.open_stream(*(small if length < _SMALL else (address, length, b"a")))
        curl.rewind(self._heads)
        self._memory[0] = b"\0"
        library.set_bytes(self.easy, curl.URL, url)
        library.set_pointer(self.easy, curl.HTTPHEADER, headers)
        library.set_pointer(self.easy, curl.WRITEDATA, self._body)

    @property
    def failed(self) -> bool:
        """True if a completed request has plainly failed."""
        return self.code != 0 or self._memory[9] != b"2"  # HTTP/1.1 200 OK

    def settle(self) -> None:
        """Move the body to its destination, or refuse the response by an error of `check()`."""
        assert self.call
        piece = self.call.items[self.position]
        head, end, _ = ctypes.string_at(self._head, _SMALL).partition(b"\r\n\r\n")
        status = int(head[9:12]) if end and head[9:12].isdigit() else 0
        small, size = piece.length < _SMALL, self.number(curl.SIZE_DOWNLOAD)
        place = self._head + _SMALL if small else self.address
        self.release()
        error = ctypes.string_at(place, min(size, _SMALL)) if status >= 400 else b""
        check(piece, self.code, status, head, size, error)
        if small:
            ctypes.memmove(self.address, place, size)

    def number(self, what: int) -> int:
        """A number from libcurl about a completed request."""
        self._library.get_number(self.easy, what, byref(self._number))
        return self._number.value

    def release(self) -> None:
        """Forget the request."""
        if self._body:
            curl.close_stream(self._body)
        self._body, self.call = 0, None

    def close(self) -> None:
        self.release()
        self._library.easy_cleanup(self.easy)
        curl.close_stream(self._heads)


class Network:
    """Performs the requests of several lanes by libcurl, in one thread.

    A body is written to its destination on arrival, until the request ends or `drop()` returns.
    """

    def __init__(self, pool: RequestPool, settings: Sequence[tuple[int, Any]]) -> None:
        """Start no thread yet.

        Args:
            pool: each request needs one of its permits.
            settings: options and values of all handles.

        Raises:
            BackendUnavailable: see `libcurl.load()`; or libcurl refuses an option.
        """
        self.library = curl.load()
        constant = (curl.NOSIGNAL, 1), (curl.BUFFERSIZE, _STAGING), (curl.HTTP_VERSION, 2)
        self._settings = [*constant, (curl.PROTOCOLS, 3), (curl.NOPROXY, b"*"), *settings]
        self.free = [Handle(self.library, self._settings)]
        self._pool, self._most, self._number = pool, pool.few, c_int()
        self._process, self._multi = os.getpid(), 0
        self._busy: dict[int, Handle] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()  # of the following; the garbage collector may close
        self._todo: deque[Handle] = deque()
        self._orders: deque[tuple[Call[Any, Any], int | None, SimpleQueue[None]]] = deque()
        self._closed = self._ended = False

    def handle(self) -> Handle:
        """Return an idle or new handle."""
        try:
            return self.free.pop()
        except IndexError:
            return Handle(self.library, self._settings)

    def send(self, handles: Sequence[Handle]) -> None:
        """Send prepared requests of a call. Their results are reported by `Call.land()`.

        Raises:
            OSError: the network is closed, or its thread has failed; see `RequestPool.refusal()`.
            RuntimeError: this process was forked from the creator of the object.
        """
        if self._is_forked:
            what = "objects were requested before this process was forked, so reads would hang"
            raise RuntimeError(f"{what}; start processes by 'spawn' or 'forkserver', not by 'fork'")
        with self._lock:
            if self._closed or self._ended:
                raise self._pool.refusal() from self._pool.cause
            if self._thread is None:
                self._multi = self._multi or self.library.multi_init()
                self.library.multi_set(self._multi, curl.MAXCONNECTS, self._pool.most)
                name = "dali_storage:get:network"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()
                self._thread = thread
                _running.add(self)
            self._todo.extend(handles)
            self.library.wake(self._multi)

    def drop(self, call: Call[Any, Any], position: int | None = None) -> None:
        """End all writes for a call, or for one of its positions."""
        done = SimpleQueue[None]()
        if not (call.flying if position is None else position in call.flying):
            return
        if self._is_forked:  # the requests belong to the other process
            call.flying.clear()
            return
        with self._lock:
            if self._ended or self._thread is None:
                done.put(None)
            else:
                self._orders.append((call, position, done))
                self.library.wake(self._multi)
        done.get()
        for handle in [*call.flying.values()]:
            # A landed one will be settled, as long as the call goes on.
            if position is None or (handle.position == position not in call.landed):
                del call.flying[handle.position]
                self.put_back(handle)

    def put_back(self, handle: Handle) -> None:
        """Keep a handle for reuse, or close a surplus one."""
        handle.release()
        with self._lock:
            if kept := not self._ended and len(self.free) < _KEPT * self._pool.most:
                self.free.append(handle)
        if not kept:
            handle.close()

    def wake(self) -> None:
        """Wake the thread, to start more requests or to end."""
        if (self._todo or self._closed) and not self._is_forked:
            with self._lock:
                if self._thread and not self._ended:
                    self.library.wake(self._multi)

    def close(self) -> None:
        """End the thread and all requests."""
        self._closed = True
        if self._is_forked:
            return
        self.wake()
        with self._lock:
            thread = self._thread
        if thread is None:
            self._end()
        elif thread is not threading.current_thread():
            thread.join(_CLOSING)

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _work(self) -> None:
        show_name()
        library, multi = self.library, self._multi
        try:
            while not self._closed:
                if self._orders:
                    self._obey()
                self._start()
                library.perform(multi, byref(self._number))
                if not (self._collect() and self._todo):
                    library.poll(multi, None, 0, _LONGEST_WAIT, byref(self._number))
        except BaseException as error:
            self._pool.cause = error
        finally:
            self._end()

    def _obey(self) -> None:
        """Drop abandoned requests."""
        while self._orders:
            call, position, done = self._orders[0]  # stays there if this fails
            with self._lock:
                kept = [
                    it
                    for it in self._todo
                    if it.call is not call or position not in (None, it.position)
                ]
                self._todo.clear()
                self._todo.extend(kept)
            for handle in [*self._busy.values()]:
                if handle.call is call and position in (None, handle.position):
                    self._remove(handle, self.library.remove)
            self._orders.popleft()
            done.put(None)

    def _start(self) -> None:
        """Start as many requests as allowed."""
        now, todo, busy, permits = time.monotonic(), self._todo, self._busy, self._pool.permits
        while todo and len(busy) < self._most:
            try:
                permits.get_nowait()
            except Empty:
                return  # woken by the next permit
            handle = todo.popleft()
            busy[handle.easy] = handle
            handle.began = handle.call.started[handle.position] = now  # type: ignore[union-attr]
            self.library.add(self._multi, handle.easy)

    def _collect(self) -> int:
        """Hand over completed requests; return their number."""
        now, count = time.monotonic(), 0
        while message := self.library.next_message(self._multi, byref(self._number)):
            found = curl.Message.from_address(message)
            handle, code = self._busy[found.easy], found.code
            self._remove(handle, self.library.remove_ended)
            handle.code, handle.seconds = code, now - handle.began
            handle.call.land(handle.position, handle)  # type: ignore[union-attr]
            count += 1
        if count and self._todo and self._most < self._pool.most and self._pool.is_slow():
            self._most = min(self._most + count, self._pool.most)
        return count

    def _remove(self, handle: Handle, remove: Callable[[int, int], int]) -> None:
        """Remove a handle by the function `remove`; libcurl then no longer writes through it."""
        remove(self._multi, handle.easy)
        del self._busy[handle.easy]
        self._pool.permits.put(None)

    def _end(self) -> None:
        """Remove all requests. Lanes close their own handles."""
        for handle in [*self._busy.values()]:
            self._remove(handle, self.library.remove)
        with self._lock:
            self._ended = True  # the following do not grow any more
            multi, self._multi = self._multi, 0
            free, self.free = self.free, []
            self._todo.clear()
            while self._orders:
                self._orders.popleft()[-1].put(None)
        if multi:
            self.library.multi_cleanup(multi)
        self._pool.cancel()  # lanes do not wait for a thread that has failed
        for handle in free:
            handle.close()
