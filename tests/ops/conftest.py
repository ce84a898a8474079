import pytest


@pytest.fixture(autouse=True)
def _pipelines_end(pipelines_end):
    """The tests of operators make pipelines."""


@pytest.fixture
def root(tree):
    return str(tree(23))
