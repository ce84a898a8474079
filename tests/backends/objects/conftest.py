import os
import shutil
import subprocess

import pytest

from dali_storage.backends import object_store
from tests.kit.process import lanes, wait_until


@pytest.fixture
def request_threads():
    """The threads for requests that the test has started and that still run."""
    before = lanes()

    def ours():
        new = lanes() - before
        return {thread for thread in new if thread.name.startswith("dali_storage:get")}

    return ours


@pytest.fixture
def threads_end(request_threads):
    """Asserts that the threads for requests end with the test, or soon afterwards."""
    yield
    wait_until(lambda: not request_threads())


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory with an empty .aws, and nothing in the environment."""
    for name in [*os.environ]:
        if name.startswith(("AWS_", "GOOGLE_", "DALI_GCS_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


@pytest.fixture(params=["own", "obstore"])
def transport(request, monkeypatch):
    """What asks for the objects of readers that do not say so."""

    if request.param == "obstore":
        monkeypatch.setattr(object_store, "OwnClient", lambda *_, **__: None)
    return request.param


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate that nobody knows, and its key: PEM files."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl: apt-get install openssl")
    folder = tmp_path_factory.mktemp("certificate")
    made = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    parts = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    parts += ["-addext", "basicConstraints=critical,CA:FALSE"]
    files = ["-out", made[0], "-keyout", made[1]]
    subprocess.run([*command.split(), *parts, *files], check=True, capture_output=True)
    return made
