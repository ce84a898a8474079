"""The monitor of QEMU, as its docs/interop/qmp-spec describes it: one JSON object a line."""

from __future__ import annotations

import json
import socket
from typing import Any


class Monitor:
    """A connection to a QEMU that has the other end.

    Every wait for a message ends with TimeoutError after the timeout of the connection, and with
    ConnectionError when QEMU ends.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rw", encoding="utf-8")
        self._read("QMP")  # the greeting
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: Any) -> Any:
        """What a command returns."""
        json.dump({"execute": command, "arguments": arguments}, self._lines)
        self._lines.write("\n")
        self._lines.flush()
        return self._read("return")["return"]

    def remove(self, device: str) -> None:
        """Ask the guest for a device, as pressing its button would, and wait until it is gone."""
        self.execute("device_del", id=device)
        while True:
            message = self._read("event")
            if message["event"] == "DEVICE_DELETED" and message["data"].get("device") == device:
                return

    def _read(self, kind: str) -> dict[str, Any]:
        """The next message that has a member `kind`. What happened meanwhile is forgotten."""
        for line in self._lines:
            message: dict[str, Any] = json.loads(line)
            if "error" in message:
                raise RuntimeError(f"QEMU: {message['error']['desc']}")
            if kind in message:
                return message
        raise ConnectionError("QEMU has ended")
