"""Tokens for Google Cloud Storage, by the package google-auth, where it is installed.

https://cloud.google.com/docs/authentication/application-default-credentials
"""

from __future__ import annotations

from datetime import UTC
from typing import Any

from .errors import NO_CREDENTIALS, NoKeysError
from .keys import Keys, TimedKeys

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"


def tokens() -> Keys | None:
    """Make the keys of Google's application default credentials; None without the packages."""
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
        from google.auth.transport.requests import Request
    except ImportError:  # also of `requests`, by google-auth
        return None
    found: Any = None

    def fetch(refused: bool) -> TimedKeys:
        nonlocal found
        try:
            found = found or google.auth.default(scopes=[_SCOPE])[0]
            found.refresh(Request())
            end = found.expiry.replace(tzinfo=UTC).timestamp()
            if not (found.token and found.token.isprintable()):
                raise ValueError
        except DefaultCredentialsError:
            raise NoKeysError(NO_CREDENTIALS) from None
        except Exception as error:  # perhaps with secrets in its text
            what = f"google-auth gets no token for gs://: {type(error).__name__}"
            raise NoKeysError(f"{what}; check the credentials and the network") from None
        return TimedKeys({"token": found.token, "expires_at": None}, end)

    return Keys(fetch)
