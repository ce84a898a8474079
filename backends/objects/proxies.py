"""Which proxy of the environment obstore asks: its rules differ from those of Python and curl."""

from __future__ import annotations

import os
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit


def proxy_of(url: str) -> str:
    """Name the proxy by which obstore requests a URL, without its password; "" if there is none.

    Of HTTP_PROXY and http_proxy, the first that is set counts, also if it is empty; ALL_PROXY is
    for what has none. NO_PROXY has names with all below them, "*" for all names, addresses and
    networks, but no ports.
    """
    parts = urlsplit(url)
    for kind in (f"{parts.scheme}_proxy", "all_proxy"):
        variable, value = _variable(kind)
        if value and not _excepted(parts.hostname or ""):
            address = value.rpartition("@")[2].rpartition("//")[2].strip("/")
            return f"the proxy {address} of {variable}"
    return ""


def _variable(name: str) -> tuple[str, str]:
    """The variable that counts, and its value."""
    name = name.upper() if name.upper() in os.environ else name
    return name, os.environ.get(name, "").strip()


def _excepted(host: str) -> bool:
    entries = [entry.strip() for entry in _variable("no_proxy")[1].split(",") if entry.strip()]
    try:
        address = ip_address(host)
    except ValueError:
        return "*" in entries or f".{host}".endswith(tuple(f".{it.lstrip('.')}" for it in entries))
    for entry in entries:
        try:
            if address in ip_network(entry, strict=False):
                return True
        except ValueError:
            pass
    return False
