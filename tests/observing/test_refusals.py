"""What is refused, and how the message goes."""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from dali_storage import BackendUnavailable, ReaderStatistics, report_on
from dali_storage.prometheus import ReaderCollector


def in_another_thread():
    with ThreadPoolExecutor(1) as threads:
        threads.submit(report_on, signal.SIGUSR2).result()


def without_prometheus():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "prometheus_client", None)
        ReaderCollector()


NO_SIGNALS = 0, -1, True, 1000, "USR2", None, signal.SIGSEGV
REFUSED = [
    *[(partial(report_on, it), ValueError, "takes a signal such as") for it in NO_SIGNALS],
    (partial(report_on, signal.SIGKILL), ValueError, "SIGKILL has no handlers"),
    (in_another_thread, RuntimeError, "must be called in the main thread"),
    (ReaderStatistics().reset, RuntimeError, r"have no reader.*call dali_storage.statistics\(pipe"),
    (without_prometheus, BackendUnavailable, r"pip install .*\[metrics\]'"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_it_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
