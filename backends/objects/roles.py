"""Keys of roles: of a container, by a web identity, or of the instance.

https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import (
    BaseHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    ProxyHandler,
    Request,
    build_opener,
)
from xml.etree import ElementTree

from .errors import NO_CREDENTIALS, NoKeysError
from .keys import Fetch, TimedKeys

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
    """

    def fetch(refused: bool) -> TimedKeys:
        where, none = source if source.startswith("AWS_") else "the instance", False
        try:
            if source == WEB_IDENTITY:
                return _keys(_web_identity(region, client))
            return _keys(_container(source) if source in (RELATIVE, FULL) else _instance())
        except NoKeysError:
            raise
        except HTTPError as error:
            error.close()
            what, none = f"status {error.code}", error.code < 500
        except OSError as error:
            reason = getattr(error, "reason", error)  # of a URLError
            what, none = type(reason).__name__, True
        except Exception:  # with a token, or an answer, in its text
            what = "a malformed URL, token or answer"
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


def _instance() -> Any:
    """Instance metadata, version 2."""
    get, life = os.environ.get, {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    base = get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or get("AWS_METADATA_ENDPOINT") or _INSTANCE
    url = base.rstrip("/")
    session = {"X-aws-ec2-metadata-token": _ask(f"{url}/latest/api/token", life, method="PUT")}
    name = _ask(url + _ROLES, session).split("\n")[0]
    return json.loads(_ask(url + _ROLES + quote(name, safe=""), session))


def _container(source: str) -> Any:
    """ECS, or EKS Pod Identity."""
    url = os.environ[source] if source == FULL else _CONTAINER + os.environ[source]
    parts, get = urlsplit(url), os.environ.get
    if parts.scheme != "https" and (parts.scheme != "http" or parts.hostname not in _PLAIN):
        raise NoKeysError(f"{source} must use TLS, or lead to this machine; correct it")
    file = get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    token = Path(file).read_text() if file else get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    return json.loads(_ask(url, {"Authorization": token.strip()} if token else {}))


def _web_identity(region: str, client: Mapping[str, Any]) -> Any:
    """AssumeRoleWithWebIdentity of STS."""
    get, amazon = os.environ.get, f"https://sts.{region}.amazonaws.com"
    url = get("AWS_ENDPOINT_URL_STS") or amazon + ".cn" * region.startswith("cn-")
    if not (arn := get("AWS_ROLE_ARN")):
        raise NoKeysError(f"{WEB_IDENTITY} is set, but AWS_ROLE_ARN is not; set both")
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": arn,
        "RoleSessionName": get("AWS_ROLE_SESSION_NAME") or "dali_storage",
        "WebIdentityToken": Path(os.environ[WEB_IDENTITY]).read_text().strip(),
    }
    proxy = client.get("proxy_url")
    proxies = ProxyHandler({"http": proxy, "https": proxy} if proxy else None)
    secure = HTTPSHandler(context=trust(client))
    text = _ask(url, {}, proxies, secure, method="POST", sent=urlencode(form).encode())
    return {it.tag.rpartition("}")[2]: it.text for it in ElementTree.fromstring(text).iter()}


def _ask(
    url: str,
    headers: dict[str, str],
    *handlers: BaseHandler,
    method: str = "GET",
    sent: bytes | None = None,
) -> str:
    """Ask a server; without handlers, one of this machine or its host."""
    opener = build_opener(_NoRedirects, *(handlers or [ProxyHandler({})]))
    request = Request(url, sent, headers, method=method)
    with opener.open(request, timeout=_SECONDS) as answer:
        return str(answer.read(_LONGEST).decode())


def _keys(found: Mapping[str, Any]) -> TimedKeys:
    """Keys by their names in JSON or XML. Raises any error if one is missing, or cannot be sent."""
    token = found["Token" if "Token" in found else "SessionToken"]
    keys = found["AccessKeyId"], found["SecretAccessKey"], token
    if not (all(keys) and "".join(keys).isprintable()):
        raise ValueError
    return TimedKeys.of(*keys, end=datetime.fromisoformat(found["Expiration"]).timestamp())
