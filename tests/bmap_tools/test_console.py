"""What is printed, and the progress."""

import contextlib
import os
import subprocess
import sys

import pytest

from bmap_tools import console
from tests.kit.bmap.command import program, says, tool
from tests.kit.paths import ROOT


def test_create_lists_only_the_first_twenty_files_that_are_not_mapped(ext4_root, bmap):
    for number in range(33):
        (ext4_root / f"{number:02d}\n").symlink_to("nowhere")
    lines = says(1, "create", ext4_root, "-o", bmap).splitlines()
    listed = [line for line in lines if line.startswith("  b'")]
    assert listed == [f"  b'{number:02d}\\n': No such file or directory" for number in range(20)]
    assert "  and 13 more" in lines


def test_an_output_encoding_without_accents_gets_escapes(root, bmap):
    (root / "caf\u00e9").touch()
    assert tool("create", root, "-o", bmap) == 0
    done = program("show", bmap, "caf\u00e9", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf\\xe9\n" in done.stdout


def test_progress_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    with console.progress("mapping", 2000) as tick:
        tick(1000)
    assert capsys.readouterr().err == (
        "bmap_tools: mapping: 2,000 files\nbmap_tools: mapping: 1,000 of 2,000 files\n"
    )


@pytest.mark.parametrize("rich", [True, False])
def test_progress_is_a_bar_on_a_terminal_where_rich_is(rich):
    pytest.importorskip("rich", reason="no rich here: pip install rich")
    script = (
        "from bmap_tools import console\n"
        f"if not {rich}: console.importlib.util.find_spec = lambda name: None\n"
        "console.BAR_SECONDS = 0.0\n"
        "with console.progress('mapping', 2000) as tick:\n"
        "    tick(1000)\n"
    )
    terminal, slave = os.openpty()
    done = subprocess.run([sys.executable, "-c", script], stderr=slave, cwd=ROOT, check=False)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError), open(terminal, "rb", buffering=0) as file:
        while part := file.read(4096):  # until EIO
            shown += part
    assert done.returncode == 0
    assert (b"1000/2000" in shown) == rich
    assert b"mapping" in shown
