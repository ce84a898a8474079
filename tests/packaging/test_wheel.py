"""The wheel, installed in environments of its own and used outside of the checkout."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.kit.pages import snippets
from tests.kit.paths import ROOT
from tests.kit.pictures import make_pictures

pytestmark = pytest.mark.long
PACKAGES = Path(sysconfig.get_path("purelib"))
NOT_BUILT = shutil.ignore_patterns(".*", "build", "*.egg-info", "demo", "tests", "__pycache__")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the checkout; in the checkout itself, files of earlier builds would be packed."""
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("so ürce") / "src", ignore=NOT_BUILT)


@pytest.fixture(scope="module")
def wheel(source):
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", source.parent, source)
    (made,) = source.parent.glob("*.whl")
    return made


ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    subprocess.run(command, env=ALONE, check=True, timeout=600)


class Environment:
    """The wheel, and packages of the environment of the tests; an empty directory to work in."""

    def __init__(self, folder, wheel, packages):
        venv.create(folder / "venv", symlinks=True)
        self.python, self.folder = folder / "venv" / "bin" / "python", folder / "empty"
        self.folder.mkdir()
        pip("--python", self.python, "install", "--no-deps", wheel)
        (self.site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (self.site / "packages.pth").write_text(f"{packages}\n")

    def __call__(self, *arguments):
        """What Python prints, and its error."""
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=ALONE,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def output(self, *arguments):
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel):
    return Environment(tmp_path_factory.mktemp("installed"), wheel, PACKAGES)


@pytest.fixture(scope="module")
def without_dali(tmp_path_factory, wheel):
    """Only NumPy is there."""
    folder = tmp_path_factory.mktemp("without")
    for found in PACKAGES.glob("numpy*"):
        (folder / found.name).symlink_to(found)
    return Environment(folder, wheel, folder)


def test_the_wheel_holds_the_files_of_the_packages_and_no_others(source, wheel):
    files = [path for name in ("bmap_tools", "dali_storage") for path in (source / name).rglob("*")]
    expected = {str(path.relative_to(source)) for path in files if path.is_file()}
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in packed if ".dist-info/" not in name} == expected
    assert {"dali_storage/py.typed", "dali_storage/backends/gpu/submit.cu"} <= expected


def test_the_wheel_takes_the_dali_that_is_there(wheel):
    """The constraint files of NVIDIA's containers of 2026 pin DALI 2.2.0."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    asked = metadata.get_all("Requires-Dist", [])
    assert [each for each in asked if "extra ==" not in each] == ["numpy>=1.26"]
    assert [each for each in asked if "dali" in each] == [
        f'nvidia-dali-cuda{cuda}0>=2.0; extra == "cuda{cuda}"' for cuda in (12, 13)
    ]


def test_an_installed_wheel_runs_the_pipeline_of_the_readme(installed, tmp_path):
    (code,) = snippets("README.md", "python")
    code = code.replace("64", "8").replace("/data/train", str(make_pictures(tmp_path)))
    printed = installed.output("-c", f"{code}import dali_storage\nprint(dali_storage.__file__)")
    *shapes, module = printed.splitlines()
    assert set(shapes) == {"torch.Size([8, 224, 224, 3]) torch.Size([8, 1])"}
    assert Path(module).is_relative_to(installed.site)


def test_an_installed_wheel_has_its_commands_and_backends(installed):
    assert "create" in installed.output("-m", "bmap_tools", "--help")
    assert "index" in installed.output("-m", "dali_storage", "--help")
    backends = json.loads(installed.output("-m", "dali_storage", "--json"))["backends"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [each["name"] for each in backends] == sorted(
        project["entry-points"]["dali_storage.backends"]
    )
    assert {each["name"] for each in backends if each["works"]} >= {"memory", "python-file"}


def test_without_dali_the_doctor_works_and_a_reader_says_what_to_install(without_dali, wheel):
    assert "python-file" in without_dali.output("-m", "dali_storage")
    without_dali.output("-c", "import dali_storage, bmap_tools")
    refused = without_dali("-c", "from dali_storage import readers; readers.file(file_root='.')")
    (without_dali.folder / "photos/c").mkdir(parents=True)
    (without_dali.folder / "photos/c/1.jpg").write_bytes(b"one")
    read = "[*readers.batches(readers.file, file_root='photos', batch_size=4)]"
    read = f"from dali_storage import readers; print({read}[0].names)"
    assert without_dali.output("-c", read) == "['c/1.jpg']\n"
    _, _, command = refused.stderr.splitlines()[-1].rpartition("not installed: pip install ")
    assert shlex.split(command) == [f"{wheel}[cuda12]", "(or", "cuda13)"]
    pip("install", "--dry-run", "--no-deps", shlex.split(command)[0])
