"""The text about threads in reports and in warnings of stalls."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable

from ..contract.stages import Activity
from .kernel import mount_of, thread_state


def paragraph(head: str, threads: Iterable[Activity], now: int, more: Iterable[str] = ()) -> str:
    """A `head` that names a reader, `more` lines, and a line for each thread at work."""
    lines = [head, *more, *_threads(threads, now)]
    return "".join(f"{_printable(line)}\n" for line in lines)


def _threads(threads: Iterable[Activity], now: int) -> list[str]:
    """A line for each thread at work, and one for all that are idle."""
    busy, idle = list[str](), list[str]()
    for each in threads:
        if current := each.log[-1:]:  # one step: it may end meanwhile
            busy.append(f"  {each.name}: {_at_work(each, *current[0], now)}")
        else:
            idle.append(each.name)
    return [*busy, f"  idle: {', '.join(idle)}"] if idle else busy


def _at_work(activity: Activity, stage: str, began: int, now: int) -> str:
    seconds = max(now - began, 0) / 1e9  # it may have begun since the clock was read
    since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
    about, thread = activity.described, activity.native_id
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


def _printable(line: str) -> str:
    """A line with escapes for line ends in names, and for names of other bytes than UTF-8."""
    return "".join(it if it.isprintable() else repr(it)[1:-1] for it in line)
