"""Starts Swift and fills it, with boto3."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.objects.client import environment
from tests.kit.paths import ROOT

USER = "test:tester", "testing"


class SwiftClient:
    """Fills a server that runs.

    Attributes:
        url: where it listens.
    """

    def __init__(self, url: str) -> None:
        boto3 = pytest.importorskip("boto3", reason="no boto3: pip install boto3")
        self.url, self._buckets = url, set[str]()
        config = pytest.importorskip("botocore.config").Config(
            s3={"addressing_style": "path"}, request_checksum_calculation="when_required"
        )
        session = boto3.Session(*USER, region_name="us-east-1")
        self._client = session.client("s3", endpoint_url=url, config=config)

    def put(self, path: str, data: bytes) -> None:
        """Make or replace an object, "bucket/key"; and its bucket, if need be."""
        bucket, _, key = path.partition("/")
        if bucket not in self._buckets:
            self._client.create_bucket(Bucket=bucket)
            self._buckets.add(bucket)
        self._client.put_object(Bucket=bucket, Key=key, Body=data)


class Swift(SwiftClient):
    """A server of its own, until the `with` block ends or this process does.

    Attributes:
        environment: what makes clients of S3 use it; see `client.environment()`.
    """

    def __init__(self, directory: Path) -> None:
        """`directory` is a new one, for its databases."""
        command = [sys.executable, "-W", "ignore", "-m", f"{__package__}.swift", str(directory)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert self._process.stdout
        super().__init__(f"http://127.0.0.1:{int(self._process.stdout.readline())}")
        self.environment = environment(self.url, *USER)

    def __enter__(self) -> "Swift":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate(timeout=60)  # closes its standard input, which ends it
