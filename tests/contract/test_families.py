"""The command that a message about a missing package has."""

import json
import shlex
from types import SimpleNamespace

import pytest

from dali_storage.contract import families

GIT = {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


@pytest.mark.parametrize(
    ("origin", "given"),
    [
        (None, "dali-storage[receipts]"),
        ({"url": "file:///a%20b/%C3%BC", "dir_info": {}}, "/a b/ü[receipts]"),
        ({"url": "file:///a/x.whl", "archive_info": {}}, "/a/x.whl[receipts]"),
        ({"url": "https://host/x.whl"}, "dali-storage[receipts] @ https://host/x.whl"),
        (GIT, "dali-storage[receipts] @ git+https://host/x.git@abc"),
    ],
)
def test_an_extra_is_installed_from_where_the_package_is(origin, given, tmp_path, monkeypatch):
    text = origin and json.dumps(origin)
    monkeypatch.setattr(families, "__file__", str(tmp_path / "it's ü/dali_storage/contract/it.py"))
    installed = SimpleNamespace(read_text=lambda name: text)
    monkeypatch.setattr(families, "distribution", lambda name: installed)
    family = families.FAMILIES["receipts"]
    assert shlex.split(family.install) == ["pip", "install", given]
    project = tmp_path / "it's ü"
    project.mkdir()
    (project / "pyproject.toml").touch()
    assert shlex.split(family.install) == ["pip", "install", "-e", f"{project}[receipts]"]
