"""Starts Swift and fills it, with signed requests of our own: no client library is trusted."""

import hashlib
import hmac
import http.client
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from tests.kit.objects.client import environment
from tests.kit.paths import ROOT


def signed(
    method: str, host: str, target: str, body: bytes, key_id: str, secret: str
) -> dict[str, str]:
    """The headers of a request without a query, by AWS Signature Version 4.

    https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
    """
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": date}
    canonical = "".join(f"{name}:{value}\n" for name, value in headers.items())
    names = ";".join(headers)
    request = "\n".join([method, target, "", canonical, names, digest])
    scope = f"{date[:8]}/us-east-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return headers | {"authorization": f"AWS4-HMAC-SHA256 {credential}"}


class SwiftClient:
    """Fills a server that runs.

    Attributes:
        url: where it listens.
    """

    def __init__(self, url: str) -> None:
        self.url, self._host, self._buckets = url, url.removeprefix("http://"), set[str]()
        self._connection = http.client.HTTPConnection(self._host, timeout=60)
        self._connection.connect()

    def _request(self, method: str, path: bytes, body: bytes = b"") -> bytes:
        target = f"/{urllib.parse.quote(path, safe='/-_.~')}"
        headers = signed(method, self._host, target, body, "test:tester", "testing")
        self._connection.request(method, target, body, headers)
        response = self._connection.getresponse()
        answer = response.read()
        assert response.status < 300, answer
        return answer

    def fill(self, bucket: str, objects: Mapping[bytes, bytes]) -> None:
        """Make a bucket, if need be, and objects in it, by key."""
        if bucket not in self._buckets:
            self._request("PUT", bucket.encode())
            self._buckets.add(bucket)
        for key, data in objects.items():
            self._request("PUT", os.fsencode(bucket) + b"/" + key, data)

    def get(self, bucket: str, key: bytes) -> bytes:
        return self._request("GET", os.fsencode(bucket) + b"/" + key)

    def delete(self, bucket: str, key: bytes) -> None:
        self._request("DELETE", os.fsencode(bucket) + b"/" + key)


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
        self.environment = environment(self.url, "test:tester", "testing")

    def __enter__(self) -> "Swift":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()
        self._process.communicate(timeout=60)  # closes its standard input, which ends it
