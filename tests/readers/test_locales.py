"""Names that the encoding of the locale lacks are read as by DALI, or refused with the remedy."""

import errno
import json
import os
import subprocess
import sys

from dali_storage.contract.errors import os_error
from tests.kit.paths import ROOT

SCRIPT = """
import json, sys
from nvidia.dali import fn
from dali_storage import readers
from tests.kit.parity import build, contents
def read(module, **given):
    try:
        return [each.decode() for each in contents(build(module.file, 2, {}, **given))[0]]
    except Exception as error:
        return str(error)
root, names = sys.argv[1] + "/h\\xe9", ["1\\xe9.jpg", "2\\u65e5.jpg"]
for given in (
    {"file_root": root},
    {"files": [f"{root}/c/{name}" for name in names]},
    {"file_root": root + "/c", "files": names},
    {"file_root": root, "file_filters": ["?\\xe9*", "2\\u65e5*"]},
    {"file_list": root + "/list"},
):
    print(read(fn.readers, **given), read(readers, **given))
print(read(readers, file_root=root, exclude=root + "/bad"))
print(read(readers, file_root=root, on_error="replace", bad_samples=root + "/record"))
print(ascii(read(readers, file_root=root, backend="block", backend_options={"bmap": root})))
"""


def test_names_are_read_as_by_dali_or_refused_with_the_remedy(tmp_path):
    (tmp_path / "hé" / "c").mkdir(parents=True)
    for name in ("1é.jpg", "2日.jpg"):
        (tmp_path / "hé" / "c" / name).write_text(name[0])
    (tmp_path / "hé" / "list").write_text("c/1é.jpg 0\nc/2日.jpg 1\n", "utf-8")
    (tmp_path / "hé" / "bad").write_text(json.dumps({"path": f"{tmp_path}/hé/c/1é.jpg"}))
    env = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    told = subprocess.check_output(words, env=env, cwd=ROOT)
    *same, excluded, recorded, refused = told.decode().splitlines()
    assert same == ["['1', '2'] ['1', '2']"] * 5
    assert (excluded, recorded) == ("['2', '2']", "['1', '2']")
    assert (tmp_path / "hé" / "record").exists()
    assert "that ascii, the encoding of the locale, lacks; set PYTHONUTF8=1" in refused


def test_a_missing_file_may_have_a_name_in_utf_8(monkeypatch):
    for encoding, number, path, is_hinted in (
        ("iso8859-1", errno.ENOENT, "é", True),
        ("iso8859-1", errno.ENOENT, "e", False),
        ("iso8859-1", errno.EACCES, "é", False),
        ("utf-8", errno.ENOENT, "é", False),
    ):
        monkeypatch.setattr(sys, "getfilesystemencoding", lambda it=encoding: it)
        assert ("; set PYTHONUTF8=1" in str(os_error(number, path.encode()))) == is_hinted
