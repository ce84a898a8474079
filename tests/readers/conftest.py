import pytest

from tests.kit.containers import write_tar


@pytest.fixture(autouse=True)
def _pipelines_end(pipelines_end):
    """The tests of readers make pipelines."""


@pytest.fixture
def tar(tmp_path):
    from tests.kit.webdataset import MEMBERS

    return write_tar(tmp_path / "a.tar", MEMBERS)


@pytest.fixture
def index(tmp_path):
    from tests.kit.webdataset import INDEX

    (tmp_path / "a.idx").write_text(INDEX)
    return tmp_path / "a.idx"
