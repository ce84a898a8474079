"""Stages as NVTX ranges, for profilers."""

from typing import Any

from ..contract.stages import Log


class NvtxLog(Log):
    """A log whose last stage is an NVTX range of the thread that appends it."""

    def __init__(self, domain: Any) -> None:
        """`domain` is of the package nvtx."""
        super().__init__()
        self._domain = domain
        self._attributes: dict[str, Any] = {}

    def append(self, entry: tuple[str, int]) -> None:
        """Begin a stage."""
        if self:
            self._domain.pop_range()
        stage = entry[0]
        if (attributes := self._attributes.get(stage)) is None:
            attributes = self._attributes[stage] = self._domain.get_event_attributes(stage)
        self._domain.push_range(attributes)
        super().append(entry)

    def clear(self) -> None:
        """End the last stage."""
        if self:
            self._domain.pop_range()
        super().clear()
