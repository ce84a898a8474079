"""Stages as NVTX ranges, and threads by name: for profilers, debuggers and top."""

import contextlib
import sys
import threading
from typing import Any, TypeAlias

Log: TypeAlias = list[tuple[str, int]]

_DOMAIN = "dali_storage"
_COMM = 15  # bytes of a thread's name in the kernel


class _NvtxLog(Log):
    """A log whose last stage is an NVTX range of the thread that appends it."""

    def __init__(self, domain: Any) -> None:
        super().__init__()
        self._domain = domain
        self._attributes: dict[str, Any] = {}

    def append(self, entry: tuple[str, int]) -> None:
        if self:
            self._domain.pop_range()
        stage = entry[0]
        if (attributes := self._attributes.get(stage)) is None:
            attributes = self._attributes[stage] = self._domain.get_event_attributes(stage)
        self._domain.push_range(attributes)
        super().append(entry)

    def clear(self) -> None:
        if self:
            self._domain.pop_range()
        super().clear()


def make_log() -> Log:
    """A list of stages; one that makes NVTX ranges of them if a tool is attached."""
    try:
        import nvtx

        domain = nvtx.get_domain(_DOMAIN)
        # Without a tool, the domain is a dummy, which has no attributes.
        return [] if domain.get_event_attributes("reading") is None else _NvtxLog(domain)
    except Exception:  # not installed, or of another interface: ranges are not worth an error
        return []


def show_name() -> None:
    """Give the calling thread the name in the kernel that it has in Python, shortened to fit.

    Python does so from 3.14 on, and cuts the end off, where the number is. Here,
    "dali_storage:Reader:0" becomes "dali:Reader:0", and a long name is cut in front of its number.
    """
    if not sys.platform.startswith("linux"):
        return
    first, _, rest = threading.current_thread().name.partition(":")
    name, colon, number = rest.rpartition(":")
    begin = f"{first.removesuffix('_storage')}:{name}".encode("utf-8", "replace")
    end = f"{colon}{number}".encode("utf-8", "replace")
    path = f"/proc/self/task/{threading.get_native_id()}/comm"
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        file.write((begin[: _COMM - len(end)] + end)[:_COMM])
