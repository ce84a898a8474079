from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _pipelines_end(pipelines_end: None) -> None:
    """The tests of readers make pipelines."""
