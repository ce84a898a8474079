"""Tokens for Google Cloud Storage, by the package google-auth, where it is installed.

https://cloud.google.com/docs/authentication/application-default-credentials
"""

from __future__ import annotations

import os
from datetime import UTC

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
    named, found = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"), None
    if named and not os.path.isfile(named):
        return None  # obstore refuses it at once

    def fetch(refused: bool) -> TimedKeys:
        nonlocal found
        try:
            found = found or google.auth.default(scopes=[_SCOPE])[0]
            found.refresh(Request())
            end = found.expiry.replace(tzinfo=UTC).timestamp()
            if not (found.token and found.token.isprintable()):
                raise ValueError
        except Exception as error:  # perhaps with secrets in its text
            if isinstance(error, DefaultCredentialsError) and not named:
                raise NoKeysError(NO_CREDENTIALS) from None
            what = f"google-auth gets no token for gs://: {type(error).__name__}"
            raise NoKeysError(f"{what}; check the credentials and the network") from None
        return TimedKeys({"token": found.token, "expires_at": None}, end)

    return Keys(fetch)
