"""The command line, as a user runs it."""

import signal
import subprocess
import sys

import pytest

from tests.kit.bmap.command import fill, refused, tool
from tests.kit.paths import ROOT
from tests.kit.process import started


@pytest.mark.parametrize(
    ("module", "function", "seconds"),
    [
        pytest.param("fiemap", "usable_extents", 0.01, marks=pytest.mark.long),
        ("format", "lines", 60),
    ],
    ids=["while files are mapped", "while the map is written"],
)
def test_ctrl_c_of_create_leaves_nothing_behind(ext4_root, tmp_path, module, function, seconds):
    fill(ext4_root, (100,) * 1500)
    (tmp_path / "bmap.json").write_text("the old one")
    script = (
        f"import sys, time, bmap_tools.{module} as module\n"
        "from bmap_tools.__main__ import main\n"
        f"real = module.{function}\n"
        "def slowly(*arguments):\n"
        "    print('at work', flush=True)\n"
        f"    time.sleep({seconds})\n"
        "    return real(*arguments)\n"
        f"module.{function} = slowly\n"
        "sys.exit(main())\n"
    )
    with started(
        [
            *(sys.executable, "-c", script),
            *("create", ext4_root, "-o", tmp_path / "bmap.json", "--threads", "1"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGINT)
        work, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert work.count("at work") < 800
    assert said.endswith("bmap_tools: interrupted\n")
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["bmap.json"]
    assert (tmp_path / "bmap.json").read_text() == "the old one"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("create",),
        ("create", "root"),
        ("create", "root", "-o", "x", "--threads", "0"),
        ("verify", "x", "--sample", "0"),
        ("verify", "x", "--sample", "many"),
        ("nonsense",),
    ],
)
def test_wrong_arguments_of_bmap_tools_are_refused(arguments):
    assert tool(*arguments) == 2


@pytest.mark.parametrize("command", ["verify", "show"])
def test_a_file_that_is_not_a_map_is_refused(command, tmp_path):
    (tmp_path / "x.json").write_text('{"format": "tiff"}')
    assert f"{tmp_path}/x.json: " in refused(command, tmp_path / "x.json")
    assert "y.json: No such file" in refused(command, tmp_path / "y.json")


def test_a_closed_pipe_is_not_an_error(mapped):
    command = f"{sys.executable} -m bmap_tools show {mapped[1]} | true"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""
