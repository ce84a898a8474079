"""Keys of roles: of a container, by a web identity, or of the instance.

https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener
from xml.etree import ElementTree

from .errors import NO_CREDENTIALS, NoKeysError
from .keys import Fetch, Lease

WEB_IDENTITY = "AWS_WEB_IDENTITY_TOKEN_FILE"
RELATIVE, FULL = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"

_SECONDS = 5.0  # for an answer
_LONGEST = 1 << 16  # bytes of an answer
_CONTAINER = "http://169.254.170.2"
_PLAIN = "localhost", "127.0.0.1", "::1", "169.254.170.2", "169.254.170.23", "fd00:ec2::23"
"""Hosts of containers that may be asked without TLS."""

_INSTANCE = "http://169.254.169.254"
_ROLES = "/latest/meta-data/iam/security-credentials/"


class _NoRedirects(HTTPRedirectHandler):
    """A redirect is an error: tokens are for one host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def role(source: str, region: str, client: Mapping[str, Any]) -> Fetch:
    """Make what asks for the keys of a source: a variable above, or else the instance.

    `client` are obstore's client options, of which those for trust and proxies count for STS.

    Raises:
        ValueError: a variable is missing or wrong.
    """
    ask: Callable[[], Mapping[str, Any]] = _instance()
    if source == WEB_IDENTITY:
        ask = _web_identity(region, client)
    elif source in (RELATIVE, FULL):
        ask = _container(source)
    where = source if source.startswith("AWS_") else "the instance"

    def fetch(refused: bool) -> Lease:
        try:
            return _lease(ask())
        except HTTPError as error:
            error.close()
            what, none = f"status {error.code}", error.code < 500
        except OSError as error:
            reason = getattr(error, "reason", error)  # of a URLError
            what, none = type(reason).__name__, True
        except Exception:  # with a token, or an answer, in its text
            what, none = "a malformed URL, token or answer", False
        if none and where == "the instance":  # or no instance
            raise NoKeysError(NO_CREDENTIALS) from None
        raise NoKeysError(f"no credentials by {where}: {what}; check the role") from None

    return fetch


def trust(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Whom to trust, by obstore's client options: the machine's authorities, and a given one.

    Raises ssl.SSLError for an authority that is not PEM.
    """
    given = options.get("root_certificate", "")
    authority = given if isinstance(given, str) else given.decode("latin1")
    context = ssl.create_default_context(cadata=authority or None)
    context.load_default_certs()
    if options.get("allow_invalid_certificates"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _instance() -> Callable[[], Mapping[str, Any]]:
    get = os.environ.get
    base = get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or get("AWS_METADATA_ENDPOINT") or _INSTANCE
    url, life = base.rstrip("/"), {"X-aws-ec2-metadata-token-ttl-seconds": "60"}

    def ask() -> Mapping[str, Any]:
        token = _ask(f"{url}/latest/api/token", life, method="PUT")
        session = {"X-aws-ec2-metadata-token": token}
        name = _ask(url + _ROLES, session).split("\n")[0]
        found: Mapping[str, Any] = json.loads(_ask(url + _ROLES + quote(name, safe=""), session))
        return found

    return ask


def _container(source: str) -> Callable[[], Mapping[str, Any]]:
    url = os.environ[source] if source == FULL else _CONTAINER + os.environ[source]
    parts = urlsplit(url)
    if parts.scheme != "https" and (parts.scheme != "http" or parts.hostname not in _PLAIN):
        raise ValueError(f"{source} must be https://, or http:// of this machine; correct it")
    file = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    given = os.environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")

    def ask() -> Mapping[str, Any]:
        token = (Path(file).read_text() if file else given).strip()
        found: Mapping[str, Any] = json.loads(_ask(url, {"Authorization": token} if token else {}))
        return found

    return ask


def _web_identity(region: str, client: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    file, arn = Path(os.environ[WEB_IDENTITY]), os.environ.get("AWS_ROLE_ARN")
    if not arn:
        raise ValueError(f"{WEB_IDENTITY} is set, but AWS_ROLE_ARN is not; set both")
    amazon = f"https://sts.{region}.amazonaws.com{'.cn' * region.startswith('cn-')}"
    url, proxy = os.environ.get("AWS_ENDPOINT_URL_STS") or amazon, client.get("proxy_url")
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": arn,
        "RoleSessionName": os.environ.get("AWS_ROLE_SESSION_NAME") or "dali_storage",
    }

    def ask() -> Mapping[str, Any]:
        sent = urlencode(form | {"WebIdentityToken": file.read_text().strip()}).encode()
        proxies = ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
        text = _ask(url, {}, proxies, HTTPSHandler(context=trust(client)), sent=sent, method="POST")
        return {it.tag.rpartition("}")[2]: it.text for it in ElementTree.fromstring(text).iter()}

    return ask


def _ask(
    url: str,
    headers: dict[str, str],
    proxies: ProxyHandler | None = None,
    *handlers: HTTPSHandler,
    method: str = "GET",
    sent: bytes | None = None,
) -> str:
    """Ask a server; without `proxies`, this machine's or its host's."""
    opener = build_opener(_NoRedirects, proxies or ProxyHandler({}), *handlers)
    request = Request(url, sent, headers, method=method)
    with opener.open(request, timeout=_SECONDS) as answer:
        return str(answer.read(_LONGEST).decode())


def _lease(found: Mapping[str, Any]) -> Lease:
    """Keys by their names in JSON or XML. Raises any error if one is missing, or cannot be sent."""
    key, secret = found["AccessKeyId"], found["SecretAccessKey"]
    token = found["Token" if "Token" in found else "SessionToken"]
    if not (key and secret and token and f"{key}{secret}{token}".isprintable()):
        raise ValueError
    end = datetime.fromisoformat(found["Expiration"]).timestamp()
    credential: Any = {"access_key_id": key, "secret_access_key": secret, "token": token}
    return Lease(credential | {"expires_at": None}, end)
