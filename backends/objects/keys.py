"""Keys that are renewed ahead of their end, for both engines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from ...runtime.machine import show_name, start_thread
from .errors import NoKeysError

Credential: TypeAlias = dict[str, Any]
"""One of obstore: an `S3Credential` or a `GCSCredential`."""

_AHEAD = 300.0  # seconds; Amazon has the next keys of an instance that long before the end
_PAUSE = 5.0  # seconds between two looks
_LONGEST = 30.0  # seconds that a request waits for keys
_AT_ONCE = datetime.fromtimestamp(0, UTC)  # obstore asks for keys at each request


class TimedKeys(NamedTuple):
    """Keys, and their end in seconds since the epoch; infinity: unknown."""

    credential: Credential
    end: float

    @classmethod
    def of(cls, key: str, secret: str, token: str | None, end: float = math.inf) -> TimedKeys:
        pair = {"access_key_id": key, "secret_access_key": secret}
        return cls({**pair, "token": token, "expires_at": None}, end)


Fetch: TypeAlias = Callable[[bool], TimedKeys | None]
"""Returns keys, or None: keep those that there are. True: the store has refused these.

Raises any error; only the text of a NoKeysError is shown.
"""


class Keys:
    """The current keys of a source, for any number of threads; a provider of obstore.

    A thread asks the source when keys are due: 5 minutes before their end or, if that is unknown,
    every 5 seconds. It is started by a request, and ends with the answer. Keys are used until
    their end, whatever the source does. The lock prevents pickling.
    """

    refresh_threshold = timedelta(0)

    def __init__(self, fetch: Fetch, held: TimedKeys | None = None) -> None:
        """Ask for nothing yet. `held`: keys that are known already."""
        self._fetch, self._held, self._why = fetch, held, ""
        self._due, self._next_refusal = time.time() + _PAUSE if held else 0.0, 0.0
        self._replaced = -math.inf  # when the keys became others, by time.monotonic()
        self._lock, self._thread = threading.Lock(), threading.Thread()

    def current(self) -> Credential | None:
        """The keys, if there are valid ones. Does not wait."""
        if time.time() >= self._due:
            with suppress(RuntimeError):  # without a thread, at the next request
                self._renew(lambda: time.time() >= self._due)
        return self._valid()

    def __call__(self) -> Credential:
        """The keys, after waiting for valid ones.

        Raises NoKeysError: there are none; the text says why, without secrets.
        """
        if (found := self.current()) is None:
            # Many requests fail together: the source may have been asked a moment ago.
            failed = bool(self._why) and time.time() < self._due
            self._renew(lambda: not (failed or self._valid()), wait=True)
            if (found := self._valid()) is None:
                raise NoKeysError(self._why or "the source of the credentials does not answer")
        return {**found, "expires_at": _AT_ONCE}

    def replaced(self, since: float) -> bool:
        """After a request of a time (monotonic) was refused: test if there are other keys now.

        Asks the source; one whose keys have an end, every 5 seconds at most.
        """

        def needed() -> bool:
            unending = self._held is not None and self._held.end == math.inf
            return self._replaced < since and (unending or time.time() >= self._next_refusal)

        for _ in range(2):  # a thread may have looked before the refusal
            self._renew(needed, refused=True, wait=True)
        return self._replaced >= since

    def _valid(self) -> Credential | None:
        held = self._held
        return held.credential if held and time.time() < held.end else None

    def _renew(
        self, needed: Callable[[], bool], *, refused: bool = False, wait: bool = False
    ) -> None:
        """Ask the source in a thread, if needed, unless there is one, also after a fork."""
        with self._lock:
            if not self._thread.is_alive() and needed():
                name, given = "dali_storage:keys", [refused]
                thread = threading.Thread(target=self._ask, args=given, name=name, daemon=True)
                start_thread(thread, "raise the limit")
                self._thread = thread
            thread = self._thread
        if wait and thread.is_alive():
            thread.join(_LONGEST)

    def _ask(self, refused: bool) -> None:
        show_name()
        try:
            found, self._why = self._fetch(refused), ""
        except Exception as error:  # perhaps with secrets in its text
            known = isinstance(error, NoKeysError)
            self._why = str(error) if known else f"no credentials: {type(error).__name__}"
            found = None
        now = time.time()
        if found and now >= found.end:
            self._why = "the credentials had ended before they arrived; check this machine's clock"
        elif found and found != self._held:
            self._held, self._replaced = found, time.monotonic()
        end = self._held.end if self._held else math.inf
        self._next_refusal = now + _PAUSE if refused else self._next_refusal
        self._due = max(now + _PAUSE, end - _AHEAD if end < math.inf else 0.0)
