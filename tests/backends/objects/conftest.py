import os

import pytest

from tests.kit.process import lanes, wait_until


@pytest.fixture
def request_threads():
    """The threads for requests that the test has started and that still run."""
    before = lanes()

    def ours():
        new = lanes() - before
        return {thread for thread in new if thread.name.startswith("dali_storage-get")}

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
