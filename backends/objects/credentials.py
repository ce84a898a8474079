"""Credentials for S3 from the environment or a profile, in the order of DALI's AWS SDK.

https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

from __future__ import annotations

import configparser
import os
import time
from collections.abc import Mapping
from typing import Any

from ...contract.errors import BackendUnavailable
from .errors import NO_CREDENTIALS, NoKeysError
from .keys import Keys, TimedKeys
from .roles import FULL, RELATIVE, WEB_IDENTITY, role

_PAIR = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
_BOTO3 = "credential_process", "login_session", "role_arn", "sso_session", "sso_start_url"
_FILES = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}
_GRACE = 5.0  # seconds; `aws configure set` writes one value after the other
_SETTLED, _SETTLING = 0.2, 3.0  # seconds without a write, and for how long these are waited for


class Profile:
    """The settings of AWS_DEFAULT_PROFILE, AWS_PROFILE or else "default" in AWS's two files."""

    def __init__(self) -> None:
        """Read the files.

        Raises:
            ValueError: a file is broken, or there is no such profile.
        """
        chosen = os.environ.get("AWS_DEFAULT_PROFILE") or os.environ.get("AWS_PROFILE")
        self.name, self.age = chosen or "default", float("inf")  # seconds since the last write
        files = configparser.RawConfigParser(default_section="", strict=False)
        for variable, name in _FILES.items():
            path = os.path.expanduser(os.environ.get(variable) or f"~/.aws/{name}")
            try:
                text, age = _read(path)
                files.read_string(text)
            except (configparser.Error, UnicodeDecodeError):  # their texts have lines of the file
                what = f"{path!r} is not an AWS configuration file; correct {variable}"
                raise ValueError(what) from None
            self.age = min(self.age, age)
        found = [name for name in (f"profile {self.name}", self.name) if name in files]
        if chosen and not found:
            what = f"there is no profile {chosen!r} in the AWS configuration"
            raise ValueError(f"{what}; correct AWS_PROFILE")
        self.settings = {key: value for name in found for key, value in files[name].items()}
        # A setting for which boto3 must get the credentials; "" if there is none.
        self.login = next((name for name in _BOTO3 if name in self.settings), "")

    @property
    def keys(self) -> TimedKeys | None:
        """The keys, if both are present."""
        get = self.settings.get
        key, secret = get("aws_access_key_id"), get("aws_secret_access_key")
        return TimedKeys.of(key, secret, get("aws_session_token")) if key and secret else None


def signing(
    profile: Profile, anonymous: bool, region: str, client: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of obstore's S3Store for signing requests; `client` are its client options.

    Raises:
        ValueError, PermissionError: as `source()` and `role()`; or boto3 finds no credentials.
        BackendUnavailable: boto3 is needed.
    """
    if anonymous:
        return {"skip_signature": True}
    found = source(profile)
    if found == "environment":
        return {}  # obstore finds them
    if found.startswith("profile "):
        keys = Keys(_again, profile.keys) if profile.keys else _login(profile)
    elif os.environ.get("AWS_IMDSV1_FALLBACK"):
        return {}  # only obstore asks by version 1
    else:
        keys = Keys(role(found, region, client))
    return {"credential_provider": keys}


def _again(refused: bool) -> TimedKeys | None:
    """The keys of the profile as it is now, unless it is perhaps being written."""
    profile = Profile()
    return profile.keys if refused or profile.age > _GRACE else None


def _login(profile: Profile) -> Keys:
    """Keys that boto3 gets. Its own renewal is 10 to 15 minutes ahead."""
    try:
        import boto3
    except ModuleNotFoundError:
        what = f"the AWS profile {profile.name!r} has {profile.login}, which needs boto3"
        raise BackendUnavailable(what, "pip install boto3") from None
    session: Any = None

    def fetch(refused: bool) -> TimedKeys:
        nonlocal session
        try:
            session = session or boto3.Session(profile_name=profile.name)
            found = session.get_credentials()
            now = found.get_frozen_credentials()
            end = getattr(found, "_expiry_time", None)  # has no public name
        except Exception as error:  # botocore's own, with possible secrets in its text
            what = f"boto3 finds no credentials for profile {profile.name!r}"
            remedy = f"log in, or correct its {profile.login}"
            raise NoKeysError(f"{what}: {type(error).__name__}; {remedy}") from None
        ending = {"end": end.timestamp()} if end else {}
        return TimedKeys.of(now.access_key, now.secret_key, now.token, **ending)

    try:
        return Keys(fetch, fetch(refused=False))
    except NoKeysError as error:
        raise ValueError(str(error)) from None


def _read(path: str) -> tuple[str, float]:
    """The text of a file, "" if there is none; and the seconds since the last write.

    A file that is being written is waited for, for at most 3 seconds.
    """
    until = time.monotonic() + _SETTLING
    while True:
        try:
            with open(path, encoding="utf-8") as file:  # one inode: a rename changes nothing
                before, text, after = os.fstat(file.fileno()), file.read(), os.fstat(file.fileno())
        except OSError:
            return "", float("inf")
        age = time.time() - after.st_mtime
        age = age if age >= 0 else float("inf")  # by another clock
        same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        if (same and age > _SETTLED) or time.monotonic() > until:
            return text, age
        time.sleep(_SETTLED / 4)


def environment() -> TimedKeys | None:
    """The keys of the environment, if they are set."""
    key, secret, token = (os.environ.get(name) for name in (*_PAIR, "AWS_SESSION_TOKEN"))
    return TimedKeys.of(key, secret, token or None) if key and secret else None


def source(profile: Profile) -> str:
    """Describe the source of the credentials for S3, without any request.

    Raises:
        ValueError: only one of two keys is set, or a variable cannot be sent.
        PermissionError: there are no credentials.
    """
    given = [name for name in _PAIR if os.environ.get(name)]
    if len(given) == 1:
        raise ValueError(f"only {given[0]} is set; set both {_PAIR[0]} and {_PAIR[1]}, or none")
    for name in (*_PAIR, "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        if not os.environ.get(name, "").isprintable():  # obstore would panic
            raise ValueError(f"{name} contains a line break or control character; remove it")
    if given:
        return "environment"
    if profile.keys or profile.login:
        return f"profile {profile.name!r}"
    if elsewhere := [*filter(os.environ.get, (WEB_IDENTITY, RELATIVE, FULL))]:
        return elsewhere[0]
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise PermissionError(NO_CREDENTIALS)
    return "instance metadata, if any"
