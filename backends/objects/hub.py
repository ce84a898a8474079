"""Hugging Face's hub as a web server: its token, and what helps when it refuses."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit

_ENDPOINT = "https://huggingface.co"
_FILE = re.compile(r"(.*/datasets/[^/]+/[^/]+)/resolve/")
_HELPS = {
    401: "set HF_TOKEN, and accept the conditions, if there are any, on {page}",
    403: "set HF_TOKEN, and accept the conditions, if there are any, on {page}",
    404: "look at {page}; after a commit is removed, make a new reader",
    429: "requests with an HF_TOKEN have a higher limit; retry=400 waits for the next five minutes",
}


def with_token(server: str, options: dict[str, Any]) -> dict[str, Any]:
    """Add the token to obstore's client options for the URL of a server, if that is the hub.

    The package huggingface_hub finds the token. Without the package there is none, and an
    Authorization that the options have stays.

    Raises ValueError for a token that cannot be sent.
    """
    headers = options.get("default_headers") or {}
    if "authorization" in map(str.lower, headers) or not _is_hub(server):
        return options
    try:
        from huggingface_hub import constants, get_token
    except ModuleNotFoundError:
        return options
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token and not re.fullmatch(r"[!-~]+", token):
        raise ValueError("the token of the hub has characters that no token has; set HF_TOKEN")
    more = {"authorization": f"Bearer {token}"} if token else {}
    return options | {"default_headers": {**headers, **more}}


def remedy(url: bytes, status: int) -> str:
    """What helps after a status, to end a message about a file of the hub; else ""."""
    file = _FILE.match(text := os.fsdecode(url))
    if not file or status not in _HELPS or not _is_hub(text):
        return ""
    return "; " + _HELPS[status].format(page=file[1])


def _is_hub(url: str) -> bool:
    return urlsplit(url)[:2] == urlsplit(os.environ.get("HF_ENDPOINT") or _ENDPOINT)[:2]
