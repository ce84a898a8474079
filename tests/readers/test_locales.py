"""Names that the encoding of the locale lacks are read as by DALI, or refused with the remedy."""

import errno
import json
import os
import subprocess
import sys

import pytest

from dali_storage.contract.errors import os_error
from tests.kit.paths import ROOT

SCRIPT = """
import json, sys
from nvidia.dali import fn
from dali_storage import readers
from tests.kit.parity import build, contents
root, names = sys.argv[1] + "/h\\xe9", ["1\\xe9.jpg", "2\\u65e5.jpg"]
given = {
    "file_root": {"file_root": root},
    "files": {"files": [f"{root}/c/{name}" for name in names]},
    "files below a root": {"file_root": root + "/c", "files": names},
    "filters": {"file_root": root, "file_filters": ["1\\xe9*"]},
    "file_list": {"file_list": root + "/list"},
    "exclude": {"file_root": root, "exclude": root + "/bad"},
    "bad_samples": {"file_root": root, "on_error": "replace", "bad_samples": root + "/record"},
    "backend_options": {"file_root": root, "backend": "block", "backend_options": {"bmap": root}},
}
def read(module, arguments):
    try:
        return [each.decode() for each in contents(build(module.file, 2, {}, **arguments))[0]]
    except Exception as error:
        return str(error)
found = {name: [read(fn.readers, it), read(readers, it)] for name, it in given.items()}
print(sys.getfilesystemencoding(), json.dumps(found), sep="\\n")
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What DALI's reader and ours deliver, or their errors, by the arguments in the script."""
    folder = tmp_path_factory.mktemp("locale")
    (folder / "hé" / "c").mkdir(parents=True)
    for name in ("1é.jpg", "2日.jpg"):
        (folder / "hé" / "c" / name).write_text(name[0])
    (folder / "hé" / "list").write_text("c/1é.jpg 0\nc/2日.jpg 1\n", "utf-8")
    (folder / "hé" / "bad").write_text(json.dumps({"path": str(folder / "hé" / "c" / "1é.jpg")}))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)],
        env=os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    encoding, found = done.stdout.splitlines()
    assert encoding == b"ascii"
    assert (folder / "hé" / "record").exists()
    return json.loads(found)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        *((name, ["1", "2"]) for name in ("file_root", "files", "files below a root", "file_list")),
        ("filters", ["1", "1"]),
    ],
)
def test_names_are_read_as_by_dali(arguments, wanted, found):
    assert found[arguments] == [wanted, wanted]


@pytest.mark.parametrize(
    ("encoding", "number", "path", "is_hinted"),
    [
        ("iso8859-1", errno.ENOENT, "é", True),
        ("iso8859-1", errno.ENOENT, "e", False),
        ("iso8859-1", errno.EACCES, "é", False),
        ("utf-8", errno.ENOENT, "é", False),
    ],
)
def test_a_missing_file_may_have_a_name_in_utf_8(encoding, number, path, is_hinted, monkeypatch):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    assert ("; set PYTHONUTF8=1" in str(os_error(number, path.encode()))) == is_hinted


def test_other_paths_are_used_or_refused_with_the_remedy(found):
    assert found["exclude"][1] == ["2", "2"]
    assert found["bad_samples"][1] == ["1", "2"]
    assert "has characters that ascii" in found["backend_options"][1]
    assert "set PYTHONUTF8=1" in found["backend_options"][1]
