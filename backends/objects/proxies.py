"""Which proxy of the environment obstore asks: its rules differ from those of Python and curl."""

from __future__ import annotations

import os
from ipaddress import ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit


class Proxy(NamedTuple):
    """A proxy, as host and port, and the variable that names it."""

    address: str
    variable: str


def proxy_of(url: str) -> Proxy | None:
    """The proxy by which obstore requests a URL.

    Of HTTP_PROXY and http_proxy, the first that is set counts, also if it is empty; ALL_PROXY is
    for what has none. NO_PROXY has names with all below them, "*" for all names, addresses and
    networks, but no ports.
    """
    parts = urlsplit(url)
    for name in (f"{parts.scheme.upper()}_PROXY", "ALL_PROXY"):
        variable, value = _variable(name)
        if value and not _excepted(parts.hostname or ""):
            after = value.rpartition("@")[2]  # without a password
            return Proxy(after.partition("//")[2].partition("/")[0] or after, variable)
    return None


def _variable(name: str) -> tuple[str, str]:
    """The variable that counts, and its value."""
    name = name if name in os.environ else name.lower()
    return name, os.environ.get(name, "").strip()


def _excepted(host: str) -> bool:
    entries = [entry.strip() for entry in _variable("NO_PROXY")[1].split(",")]
    try:
        address = ip_address(host)
    except ValueError:
        ends = tuple(f".{entry.lstrip('.')}".lower() for entry in entries if entry)
        return "*" in entries or f".{host}".endswith(ends)
    for entry in entries:
        try:
            if address in ip_network(entry, strict=False):
                return True
        except ValueError:
            pass
    return False
