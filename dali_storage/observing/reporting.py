"""The text of reports and of warnings of stalls."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable

from ..contract.stages import Activity
from .kernel import mount_of, thread_state
from .meter import Meter, described
from .statistics import ReaderStatistics


def report(readers: Iterable[Meter], now: int) -> str:
    """The present activity of each thread of some readers, and the readers' statistics."""
    readers = [*readers]
    head = f"dali_storage: {len(readers)} open readers in process {os.getpid()}\n"
    return head + "".join(_about(each, now) for each in readers)


def paragraph(meter: Meter, head: str, now: int, more: Iterable[str] = ()) -> str:
    """The name of a reader with a `head`, `more` lines, and a line for each thread at work."""
    name = meter.shown if meter.key == meter.name else f"{meter.shown} ({meter.key})"
    lines = [f"{name}: {head}", *more, *_threads(meter, now)]
    return "".join(f"{_printable(line)}\n" for line in lines)


def _about(meter: Meter, now: int) -> str:
    if meter.room is None:
        return paragraph(meter, "no batches", now)
    counted = meter.statistics
    choices = [f"  {name}: {value}" for name, value in counted.choices.items()]
    return paragraph(meter, _delivered(counted), now, choices)


def _threads(meter: Meter, now: int) -> list[str]:
    """A line for each thread at work, and one for all that are idle."""
    busy, idle = list[str](), list[str]()
    for each in meter.threads:
        if current := each.log[-1:]:  # one step: it may end meanwhile
            busy.append(f"  {each.name}: {_at_work(each, *current[0], now)}")
        else:
            idle.append(each.name)
    return [*busy, f"  idle: {', '.join(idle)}"] if idle else busy


def _at_work(activity: Activity, stage: str, began: int, now: int) -> str:
    seconds = max(now - began, 0) / 1e9  # it may have begun since the clock was read
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
    about, thread = described(activity.describe), activity.native_id
    parts = [f"{stage} for {seconds:.1f} s, since {since}"]
    number = activity.batch
    parts += [] if number is None or number < 0 else [f"batch {number}"]
    parts += [about] if about else []
    if thread is None or thread == threading.get_native_id():
        return ", ".join(parts)
    # Of several files, the first one is described: they are on one mount in most cases.
    name = re.sub(r"( and \d+ more)?(, [^,/]+)?$", "", about)
    mount = mount_of(os.fsencode(name))
    kernel = f"thread {thread} {thread_state(thread)}"
    return "; ".join([", ".join(parts), kernel, *([str(mount)] if mount else [])])


def _delivered(counted: ReaderStatistics) -> str:
    took = [f"{name} {1e3 * it.p50:.1f}/{1e3 * it.p99:.1f}" for name, it in counted.times.items()]
    return f"{counted.summary}; p50/p99 in ms: {', '.join(took) or 'none'}"


def _printable(line: str) -> str:
    """A line with escapes for line ends in names, and for names of other bytes than UTF-8."""
    return "".join(it if it.isprintable() else repr(it)[1:-1] for it in line)
