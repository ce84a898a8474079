"""How the client gets on with a server, and when it leaves this to obstore."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .answers import Refused

if TYPE_CHECKING:
    from .connections import Job

_ROW = 3  # trials
_PASSING = 0.25  # trials that one with a status that may pass counts for
PATIENCE = 0.25  # seconds; obstore, asked so much later, must not be the first to answer


class Standing:
    """The trials of a server; for the thread of an event loop.

    Until an answer was taken from a server, there is one request to it at a time, its trial; the
    others wait, unless its body is slow. A trial that has failed, or gets no byte for `PATIENCE`
    (a second where it may redirect, or while the connection opens), is requested by obstore, too,
    and so are the others until obstore has answered. Later, any failed request is a trial if it
    began after the last one, so that a burst of failures counts once.

    A trial that obstore alone finished counts, and after three in a row, obstore makes all
    requests; after twelve, if the statuses were such as may pass. An answer that was taken ends the
    row, as does an error of obstore.

    Attributes:
        trial: the request on trial.
        failed: it has failed, or got no byte, so obstore requests it.
        why: how it failed.
    """

    def __init__(self, required: bool) -> None:
        """`required`: leave nothing to obstore but what has failed."""
        self._required, self._known = required, required
        self.trial: Job | None = None
        self.failed, self.why = False, ""
        self._row, self._weight, self._since = 0.0, 1.0, 0.0

    @property
    def waits(self) -> bool:
        """True while requests wait for the trial."""
        return not (self._known or self.failed) and self.trial is not None

    @property
    def aside(self) -> bool:
        """True once obstore makes all requests."""
        return self._row >= _ROW and not self._required

    @property
    def left(self) -> bool:
        """True while obstore makes the requests that have not begun."""
        return self.aside or (self.failed and not self._known)

    def begins(self, job: Job) -> None:
        if not self._known:
            self.trial = job

    def fits(self) -> None:
        """Note an answer that was taken."""
        self._known, self._row = True, 0.0
        self.forget()

    def fails(self, job: Job, error: Exception | None) -> None:
        """Note a failure; None: no byte yet."""
        if self.trial is None and job.began > self._since:
            self.trial = job
        if self.trial is job:
            self.failed, self.why = True, _words(error)
            self._weight = 1.0
            if isinstance(error, Refused):
                self._weight = _PASSING if error.passes else 1.0
                if error.pause or error.args:  # all wait; or only the bucket is obstore's
                    self.forget()

    def finished(self, job: Job, good: bool) -> None:
        """Note another's answer to a trial, or an error."""
        if self.trial is job:
            self._row = self._row + self.failed * self._weight if good else 0
            self._since = time.monotonic()
            self.forget()

    def forget(self) -> None:
        """There is no trial now."""
        self.trial, self.failed = None, False


def _words(error: Exception | None) -> str:
    if isinstance(error, Refused):
        return f"answers {error.status or 'otherwise'}"
    silent = error is None or isinstance(error, TimeoutError)
    return "does not answer" if silent else f"ends connections ({type(error).__name__})"
