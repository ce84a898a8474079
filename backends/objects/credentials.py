"""Credentials for S3 from the environment or a profile, in the order of DALI's AWS SDK.

https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

from __future__ import annotations

import configparser
import os
from typing import TYPE_CHECKING, Any

from ...contract.errors import BackendUnavailable
from .errors import NO_CREDENTIALS

if TYPE_CHECKING:
    from obstore.store import S3Credential

_PAIR = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
_ELSEWHERE = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables by which obstore itself finds credentials."""

_BOTO3 = "credential_process", "login_session", "role_arn", "sso_session", "sso_start_url"
_FILES = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}


class Profile:
    """The settings of AWS_DEFAULT_PROFILE, AWS_PROFILE or else "default" in AWS's two files."""

    def __init__(self) -> None:
        """Read the files.

        Raises:
            ValueError: a file is broken, or there is no such profile.
        """
        chosen = os.environ.get("AWS_DEFAULT_PROFILE") or os.environ.get("AWS_PROFILE")
        self.name = chosen or "default"
        files = configparser.RawConfigParser(default_section="", strict=False)
        for variable, name in _FILES.items():
            path = os.path.expanduser(os.environ.get(variable) or f"~/.aws/{name}")
            try:
                files.read(path, "utf-8")
            except (configparser.Error, UnicodeDecodeError):  # their texts have lines of the file
                what = f"{path!r} is not an AWS configuration file; correct {variable}"
                raise ValueError(what) from None
        found = [name for name in (f"profile {self.name}", self.name) if name in files]
        if chosen and not found:
            what = f"there is no profile {chosen!r} in the AWS configuration"
            raise ValueError(f"{what}; correct AWS_PROFILE")
        self.settings = {key: value for name in found for key, value in files[name].items()}
        # A setting for which boto3 must get the credentials; "" if there is none.
        self.login = next((name for name in _BOTO3 if name in self.settings), "")

    @property
    def credential(self) -> S3Credential | None:
        """The keys, if both are present."""
        get = self.settings.get
        key, secret = get("aws_access_key_id"), get("aws_secret_access_key")
        if not (key and secret):
            return None
        return {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": get("aws_session_token"),
            "expires_at": None,
        }


def signing(profile: Profile, anonymous: bool) -> dict[str, Any]:
    """The arguments of obstore's S3Store for signing requests.

    Raises:
        ValueError, PermissionError: as `source()`; or boto3 finds no credentials.
        BackendUnavailable: boto3 is needed.
    """
    if anonymous:
        return {"skip_signature": True}
    if not source(profile).startswith("profile "):
        return {}  # obstore finds them
    if profile.credential:
        return {"credential_provider": lambda: profile.credential}
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError:
        what = f"the AWS profile {profile.name!r} has {profile.login}, which needs boto3"
        raise BackendUnavailable(what, "pip install boto3") from None
    try:
        session = boto3.Session(profile_name=profile.name)
        return {"credential_provider": Boto3CredentialProvider(session)}
    except Exception as error:  # botocore's own, with possible secrets in its text
        what = f"boto3 finds no credentials for profile {profile.name!r}: {type(error).__name__}"
        raise ValueError(f"{what}; log in, or correct its {profile.login}") from None


def static_keys() -> S3Credential | None:
    """The keys of the environment or the profile, if requests are signed with these.

    Raises:
        ValueError, PermissionError: as `source()`.
    """
    profile = Profile()
    where, get = source(profile), os.environ.get
    if where == "environment":
        pair, token = [get(name, "") for name in _PAIR], get("AWS_SESSION_TOKEN") or None
        return {
            "access_key_id": pair[0],
            "secret_access_key": pair[1],
            "token": token,
            "expires_at": None,
        }
    return profile.credential if where.startswith("profile ") else None


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
    if profile.credential or profile.login:
        return f"profile {profile.name!r}"
    if elsewhere := [*filter(os.environ.get, _ELSEWHERE)]:
        return elsewhere[0]
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise PermissionError(NO_CREDENTIALS)
    return "instance metadata, if any"
