"""The tests of tests/ranks with torchrun itself, whose stores listen on all addresses."""

import pytest

from tests.kit import launch
from tests.ranks.test_elastic import *  # noqa: F403 - its tests
from tests.ranks.test_ranks import *  # noqa: F403 - its tests


@pytest.fixture(scope="module", autouse=True)
def torchrun_itself():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "ITSELF", True)
        yield
