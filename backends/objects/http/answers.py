"""The one kind of answer that is taken, by RFC 9110 and 9112: bytes as requested, plainly sent."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from ..errors import quoted, same

if TYPE_CHECKING:
    from ..versions import ObjectPart

# A lone CR or LF ends a line for some servers and proxies: no field may hide behind one.
_VALUE = rb"[ \t]*:[ \t]*([^\r\n]*?)[ \t]*(?=[\r\n])"
_NAMES = rb"connection|content-(?:encoding|length|range)|etag|transfer-encoding"
_FIELD = re.compile(rb"[\r\n](" + _NAMES + rb")" + _VALUE, re.I)
_LOCATION = re.compile(rb"[\r\n]location" + _VALUE, re.I)
_RETRY_AFTER = re.compile(rb"[\r\n]retry-after" + _VALUE, re.I)
# draft-ietf-httpapi-ratelimit-headers: no requests are left for t seconds.
_NONE_LEFT = re.compile(rb"[\r\n]ratelimit[ \t]*:[^\r\n]*;r=0;t=(\d+)", re.I)

_PASSING = "408", "425", "429", "5"  # beginnings of statuses


class Refused(Exception):  # noqa: N818  (no failure of the store)
    """An answer for obstore to handle; a text says why it must handle all of this server.

    Attributes:
        status: of an error; or "".
        pause: seconds that the server tells all to wait; or 0.
    """

    def __init__(self, *text: str, status: str = "", pause: float = 0.0) -> None:
        super().__init__(*text)
        self.status, self.pause = status, pause

    @property
    def passes(self) -> bool:
        """True for a status that may pass."""
        return self.status.startswith(_PASSING)

    @property
    def is_of_signature(self) -> bool:
        """True for a status with which a signature is refused, or has ended."""
        return self.status in ("401", "403", "410")


class Redirected(Refused):
    """The bytes are elsewhere. The location is not in the text: it may have a signature."""

    def __init__(self, location: str) -> None:
        super().__init__("redirects")
        self.location = location


def check(head: bytes, piece: ObjectPart) -> bool:
    """Check the head of an answer, up to and with the end of its last header, for a piece.

    Returns True if the connection stays open after the body, which is as long as the piece.

    Raises:
        Refused: the answer is another one.
    """
    whole, length = piece.length == piece.size, b"%d" % piece.length
    if not head.startswith(b"HTTP/1.1 "):
        raise Refused("does not speak HTTP/1.1")
    if head[9:13] != (b"200 " if whole else b"206 "):
        raise _refusal(head)
    found = _FIELD.findall(head)
    fields = {name.lower(): value for name, value in found}
    if len(fields) < len(found) or b"\n " in head or b"\n\t" in head:
        raise Refused("sends ambiguous headers")
    if b"transfer-encoding" in fields or b"content-length" not in fields:
        raise Refused("sends no plain Content-Length")
    if b"content-encoding" in fields:
        raise Refused("sends Content-Encoding")
    if whole is (b"content-range" in fields):
        raise Refused("sends odd ranges")
    end = piece.start + piece.length - 1
    part = b"bytes %d-%d/%d" % (piece.start, end, piece.size)
    lengths = re.split(rb"[ \t]*,[ \t]*", fields[b"content-length"])  # RFC 9110, 8.6
    if fields.get(b"content-range", part) != part or {*lengths} != {length}:
        raise Refused
    if piece.version and not same(quoted(fields.get(b"etag", b"")), piece.version):
        raise Refused
    return b"close" not in fields.get(b"connection", b"").lower()


def _refusal(head: bytes) -> Refused:
    """The reason why an answer with this status is not taken."""
    status = head[9:12].decode("latin1")
    if status[:1] in "45":
        return Refused(status=status, pause=_pause(head) if status in ("429", "503") else 0.0)
    locations = _LOCATION.findall(head)
    if status in ("301", "302", "303", "307", "308") and len(locations) == 1:
        return Redirected(locations[0].decode("latin1"))
    return Refused("redirects" if status[:1] == "3" else "sends odd statuses")


def _pause(head: bytes) -> float:
    """The seconds of a RateLimit, of a Retry-After, or until its date; 0 without a valid one."""
    if left := _NONE_LEFT.search(head):
        return float(left[1]) + 1  # the hub's seconds are rounded down
    text = b"".join(_RETRY_AFTER.findall(head)[-1:]).decode("latin1")
    with suppress(ValueError):
        if text.isdigit():
            return float(text)
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    return 0.0
