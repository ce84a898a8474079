"""Warnings of hanging readers, and a report of all their threads.

One thread of the process looks at all readers with `stall_after`, until the last of them is closed.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from ..reading.lanes import be_lane
from .tally import Watched

_LOGGER = logging.getLogger("dali_storage")
_TIMES = (1, 2, 4, 8)  # of stall_after, at which there is a warning
_LATE = 5.0  # seconds: no machine is that busy, so the process was stopped
_SHORTEST, _LONGEST = 0.001, 1.0  # seconds between two looks; a stop of the process is seen then


class Watchdog:
    """Knows the open readers, and warns of hanging ones."""

    def __init__(
        self,
        warn: Callable[[str], object] = _LOGGER.warning,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`warn` is given each warning, in the watchdog's thread. `clock`: of the activities."""
        self._warn, self._clock = warn, clock
        self.reset()

    def reset(self) -> None:
        """Forget all readers and the thread; in a fork, which has neither."""
        # Changed and copied by single calls of C, without a lock: a signal handler calls `report()`
        # and the garbage collector `forget()`, also in a thread that would be holding the lock.
        self._watched: dict[int, Watched] = {}
        self._lock = threading.Lock()  # of the thread's beginning and end
        self._bell = SimpleQueue[None]()
        self._thread: threading.Thread | None = None
        self._planned: int | None = None  # when the thread looks again
        self._resumed = 0  # when the process was last seen to go on after it was stopped

    def watch(self, name: str, stall_after: float | None) -> Watched:
        """Watch a reader, until `forget()`. If no thread can be started, there are no warnings."""
        names = {each.name for each in list(self._watched.values())}
        numbered = (f"{name} ({number})" for number in range(2, len(names) + 3))
        watched = Watched(next(it for it in (name, *numbered) if it not in names), stall_after)
        # Before the thread is woken up, which ends if it finds no reader.
        self._watched[id(watched)] = watched
        try:
            if stall_after is not None:
                self._wake(stall_after)
        except BaseException:  # a Ctrl-C: nobody would forget it
            self.forget(watched)
            raise
        return watched

    def forget(self, watched: Watched) -> None:
        """Watch a reader no longer; twice is fine."""
        self._watched.pop(id(watched), None)
        if self._is_idle():
            self._bell.put(None)

    def look(self) -> float | None:
        """Warn of hanging readers. Returns the seconds until the next look; None: no reader."""
        now, delays = self._clock(), list[float]()
        if self._planned is not None and now - self._planned > 1e9 * _LATE:
            self._resumed = now  # nothing could go on meanwhile, so all stages begin now
        for each in list(self._watched.values()):
            if each.stall_after is not None:
                delays.append(each.stall_after)
                try:
                    delays.append(self._look_at(each, each.stall_after, now))
                # One reader must not end the watch of the others.
                except Exception as error:
                    with contextlib.suppress(Exception):
                        self._warn(f"{each.name} cannot be watched: {error!r}")
        if not delays:
            return None
        delay = max(_SHORTEST, min(delays))
        self._planned = now + round(1e9 * min(delay, _LONGEST))
        return delay

    def report(self) -> str:
        """The present activity of each thread of each open reader, and the readers' statistics."""
        from .reporting import report

        return report(list(self._watched.values()), self._clock())

    def _look_at(self, watched: Watched, stall_after: float, now: int) -> float:
        """Returns the seconds until the next stage has lasted too long, if all stages go on."""
        stages = {each.name: current[1] for each in watched.activities if (current := each.current)}
        ages = [(now - max(began, self._resumed)) / 1e9 for began in stages.values()]
        before, watched.crossed = watched.crossed, {}
        rising = list[float]()
        for (name, began), age in zip(stages.items(), ages, strict=True):
            crossed = sum(age >= times * stall_after for times in _TIMES)
            watched.crossed[name] = began, crossed
            if crossed > sum(
                level for start, level in [before.get(name, (0, 0))] if start == began
            ):
                rising.append(age)
        # Threads that stand still for one reason share a warning.
        since = now if watched.warned is None else now - watched.warned
        if rising and (watched.warned is None or since >= 0.5e9 * stall_after):
            watched.warned = now
            head = f"in one stage for {max(rising):.1f} s (stall_after={stall_after:g})"
            from .reporting import paragraph

            self._warn(paragraph(watched, head, now).rstrip("\n"))
        limits = [(times * stall_after, age) for times in _TIMES for age in ages]
        return min((limit - age for limit, age in limits if limit > age), default=stall_after)

    def _wake(self, stall_after: float) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._start()
            elif self._planned and self._clock() + 1e9 * stall_after < self._planned:
                self._bell.put(None)

    def _is_idle(self) -> bool:
        return all(each.stall_after is None for each in list(self._watched.values()))

    def _start(self) -> None:
        # A daemon: nothing waits for it at the end of the program.
        name = "dali_storage:watchdog"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # there are too many
            self._thread = None

    def _run(self) -> None:
        # A reader that is collected here is closed elsewhere: closing may hang.
        be_lane()
        while True:
            delay = self.look()
            if delay is None:
                with self._lock:
                    # Python warns of a fork of a process with threads, so an idle one ends.
                    if self._is_idle():
                        self._thread = self._planned = None
                        return
            with contextlib.suppress(Empty):
                self._bell.get(timeout=min(delay or _SHORTEST, _LONGEST))
            while not self._bell.empty():
                self._bell.get()


WATCHDOG = Watchdog()
"""Of this process."""

os.register_at_fork(after_in_child=WATCHDOG.reset)
