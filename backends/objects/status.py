"""Where endpoints and credentials come from, for the doctor. No store is asked, no secret shown."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ...contract.devices import DeviceStatus
from ...contract.errors import BackendUnavailable
from .credentials import Profile, source
from .errors import NO_CREDENTIALS
from .store import endpoint_of

_OTHERS = {"gs": ("GOOGLE_", "DALI_GCS_"), "az": ("AZURE_",)}
"""What the names of the variables of other stores begin with."""


def origins() -> Iterator[DeviceStatus]:
    """What the environment says of S3 and, if it says anything, of Google Cloud and Azure."""
    try:
        profile = Profile()
        endpoint = endpoint_of("s3", profile) or "Amazon"
        yield DeviceStatus("s3://", f"{endpoint}, credentials: {source(profile)}")
    except PermissionError:
        what, _, remedy = NO_CREDENTIALS.partition("; ")
        yield DeviceStatus("s3://", f"{endpoint}, no credentials", BackendUnavailable(what, remedy))
    except ValueError as error:
        yield _wrong("s3://", error)
    for scheme, starts in _OTHERS.items():
        if names := sorted(name for name in os.environ if name.startswith(starts)):
            try:
                endpoint = endpoint_of(scheme) or "the public endpoint"
                yield DeviceStatus(f"{scheme}://", f"{endpoint}, by {', '.join(names)}")
            except ValueError as error:
                yield _wrong(f"{scheme}://", error)


def _wrong(name: str, error: ValueError) -> DeviceStatus:
    what, _, remedy = str(error).rpartition("; ")
    problem = BackendUnavailable(what, remedy) if what else BackendUnavailable(remedy)
    return DeviceStatus(name, "object store", problem)
