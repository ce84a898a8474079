"""How to sign requests to S3: from the environment or a profile, in the order of DALI's AWS SDK.

https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import BackendUnavailable
from .errors import NO_CREDENTIALS

if TYPE_CHECKING:
    from obstore.store import S3Credential

_ELSEWHERE = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that tell obstore itself where credentials are."""

_BOTO3 = ("credential_process", "login_session", "role_arn", "sso_session", "sso_start_url")
"""Settings of profiles whose credentials boto3 has to get."""


class Profile:
    """The settings in AWS's two files of AWS_DEFAULT_PROFILE, AWS_PROFILE or else "default".

    Attributes:
        name: of the profile.
        label: the same, for messages.
    """

    def __init__(self) -> None:
        chosen = os.environ.get("AWS_DEFAULT_PROFILE") or os.environ.get("AWS_PROFILE")
        self.name = chosen or "default"
        self.label = f"profile {self.name!r}"
        config = _file("AWS_CONFIG_FILE", "config")
        shared = _file("AWS_SHARED_CREDENTIALS_FILE", "credentials")
        sections = [(config, self.name), (config, f"profile {self.name}"), (shared, self.name)]
        found = [dict(file[name]) for file, name in sections if name in file]
        if chosen and not found:
            what = f"there is no profile {chosen!r} in the configuration of AWS"
            raise ValueError(f"{what}; correct AWS_PROFILE")
        self._settings = {name: value for each in found for name, value in each.items()}

    def get(self, name: str) -> str | None:
        return self._settings.get(name)

    @property
    def needs(self) -> str | None:
        """A setting whose credentials boto3 has to get."""
        return next((name for name in _BOTO3 if name in self._settings), None)

    @property
    def has_credentials(self) -> bool:
        """Whether there are some, or a setting that tells where they are."""
        keys = map(self.get, ("aws_access_key_id", "aws_secret_access_key"))
        return all(keys) or self.needs is not None

    def provider(self) -> Callable[[], S3Credential]:
        """What obstore asks for the credentials of this profile, which has some.

        Raises:
            BackendUnavailable: boto3 is needed to get them.
        """
        key, secret = self.get("aws_access_key_id"), self.get("aws_secret_access_key")
        if not (key and secret):
            return self._boto3(str(self.needs))
        credential: S3Credential = {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": self.get("aws_session_token"),
            "expires_at": None,
        }
        return lambda: credential

    def _boto3(self, setting: str) -> Callable[[], S3Credential]:
        try:
            import boto3
            from obstore.auth.boto3 import Boto3CredentialProvider
        except ModuleNotFoundError:
            what = f"profile {self.name!r} of AWS has {setting}, which needs the package boto3"
            raise BackendUnavailable(what, "pip install boto3") from None
        try:
            return Boto3CredentialProvider(boto3.Session(profile_name=self.name))
        except Exception as error:  # botocore's own, which need not be exceptions of ours
            what = f"boto3 finds no credentials for profile {self.name!r}: {type(error).__name__}"
            raise ValueError(f"{what}; log in, or correct its {setting}") from None


def _file(variable: str, name: str) -> configparser.RawConfigParser:
    path = os.path.expanduser(os.environ.get(variable) or f"~/.aws/{name}")
    file = configparser.RawConfigParser(default_section="", strict=False)
    try:
        file.read(path, "utf-8")
    except (configparser.Error, UnicodeDecodeError):  # their messages have the lines in them
        raise ValueError(f"{path!r} is not a configuration of AWS; correct {variable}") from None
    return file


def signing(profile: Profile, anonymous: bool) -> dict[str, Any]:
    """The arguments of obstore's S3Store that tell how requests are signed.

    Raises:
        ValueError: there is half of a pair of keys.
        BackendUnavailable: boto3 is needed.
        PermissionError: there are no credentials.
    """
    if anonymous:
        return {"skip_signature": True}
    if source(profile) != profile.label:
        return {}  # obstore finds them
    return {"credential_provider": profile.provider()}


def source(profile: Profile) -> str:
    """Where the credentials for S3 come from, in words. Nothing is asked but the profile.

    Raises:
        ValueError: there is half of a pair of keys.
        PermissionError: there are no credentials.
    """
    pair = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    given = [name for name in pair if os.environ.get(name)]
    if len(given) == 1:
        raise ValueError(f"only {given[0]} is set; set both {pair[0]} and {pair[1]}, or none")
    if given:
        return "environment"
    if profile.has_credentials:
        return profile.label
    if elsewhere := [*filter(os.environ.get, _ELSEWHERE)]:
        return elsewhere[0]
    off = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    if off:
        raise PermissionError(NO_CREDENTIALS)
    return "instance metadata, if any"
