import time

import pytest

from tests.kit.process import lanes


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
    until = time.monotonic() + 120
    while request_threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not request_threads()
