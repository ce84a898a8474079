"""What older versions of DALI lack or cannot do, which is skipped by name: make test-dali."""

import nvidia.dali
import pytest

CAFFE = pytest.mark.dali("2.4", "older readers of Caffe may read past the end of a database")
SHUFFLED_CONTAINERS = pytest.mark.dali("2.2", "its readers of containers lack shuffle_after_epoch")


def has(least: str) -> bool:
    """Whether DALI is of this version or a newer one."""
    found, wanted = (
        tuple(map(int, text.split(".")[:2])) for text in (nvidia.dali.__version__, least)
    )
    return found >= wanted


def require(least: str, why: str = "") -> None:
    """Skip a test, or the module that is being imported, if DALI is older than `least`."""
    if not has(least):
        reason = f"needs DALI {least}, found {nvidia.dali.__version__}" + (why and f": {why}")
        pytest.skip(reason, allow_module_level=True)
