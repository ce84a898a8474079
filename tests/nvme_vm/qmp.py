"""The monitor of QEMU: one JSON object per line, see its docs/interop/qmp-spec."""

import json
import socket
from typing import Any


class Monitor:
    """A connection to the monitor of a QEMU.

    Every wait for a message ends with TimeoutError after the timeout of the connection, and with
    ConnectionError when QEMU ends.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rw", encoding="utf-8")
        self._read("QMP")  # the greeting
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: Any) -> Any:
        """Execute a command; return its result."""
        json.dump({"execute": command, "arguments": arguments}, self._lines)
        self._lines.write("\n")
        self._lines.flush()
        return self._read("return")["return"]

    def remove(self, device: str) -> None:
        """Request a device from the guest, like its attention button, and wait until it is gone."""
        self.execute("device_del", id=device)
        while True:
            message = self._read("event")
            if message["event"] == "DEVICE_DELETED" and message["data"].get("device") == device:
                return

    def _read(self, kind: str) -> dict[str, Any]:
        """The next message with a member `kind`; other messages are discarded."""
        for line in self._lines:
            message: dict[str, Any] = json.loads(line)
            if "error" in message:
                raise RuntimeError(f"QEMU: {message['error']['desc']}")
            if kind in message:
                return message
        raise ConnectionError("QEMU has ended")
