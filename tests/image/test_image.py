"""The container image, built from the Dockerfile and run without Docker: `make test-image`.

The base is a minimal Debian in place of the CUDA image, and libxnvme is left out, so that the
registries of Docker and conda-forge need not be reached. Needs root, buildah and debootstrap.
"""

import json
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.image.buildah import Buildah, Container, bootstrap, pip_volumes
from tests.kit.paths import ROOT
from tests.kit.pictures import IMAGES, make_pictures

KEPT = ROOT / ".image"
"""The directory of the base image, which is kept for the next run."""
TAG = "localhost/dali_storage"
USERS = ("1234:1234", "0:0")
"""The first has no entry in /etc/passwd and makes the images of the demonstration."""
READ_FILES = {"dali", "dali-nommap", "dali-io-file", "python-file", "memory", "naive"}


@pytest.fixture(scope="module")
def buildah():
    """Storage with the image: gigabytes, so not below /tmp, which may be in memory."""
    KEPT.mkdir(exist_ok=True)
    base = KEPT / "base.tar"
    bootstrap(base)
    with tempfile.TemporaryDirectory(dir=KEPT) as made, closing(Buildah(Path(made))) as buildah:
        buildah.import_tar(base, "localhost/base")
        arguments = {"BASE": "localhost/base", "XNVME": "none"}
        buildah.build(ROOT, TAG, arguments, pip_volumes(Path(made, "home")))
        yield buildah


@pytest.fixture(scope="module")
def container(buildah):
    """A container that runs benchmark.py. All tests share its /tmp."""
    name = buildah("from", TAG)
    entry_point = tuple(buildah.config(TAG)["Entrypoint"])
    return Container(buildah, name, Path(buildah("mount", name)), entry_point)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pictures that every user may read."""
    directory = make_pictures(tmp_path_factory.mktemp("data"))
    directory.chmod(0o755)
    return directory


def tracked(*paths):
    """The files of the repository that git tracks below `paths`."""
    listed = subprocess.run(
        ["git", "ls-files", *paths], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(listed.stdout.splitlines())


def owner(path):
    status = path.stat()
    return f"{status.st_uid}:{status.st_gid}"


def names(directory):
    """The files below a directory, without the byte code that pip compiles."""
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return {str(path) for path in found if "__pycache__" not in path.parts}


def test_the_image_holds_the_program_and_the_installed_library(container):
    root = container.root
    assert {path.name for path in (root / "opt").iterdir()} == {"dali_storage", "venv"}
    assert names(root / "opt" / "dali_storage") == tracked("benchmark.py", "benchmarks")
    (packages,) = (root / "opt" / "venv" / "lib").glob("python*/site-packages")
    for package in ("dali_storage", "bmap_tools"):
        files = {f"{package}/{name}" for name in names(packages / package)}
        expected = tracked(package) - {"dali_storage/backends"}  # a link
        if package == "dali_storage":
            expected |= {f"dali_storage/{name}" for name in tracked("backends")}
        assert files == expected
    foreign = {"backends", "benchmarks", "demo", "docs", "tests"}
    assert not {path.name for path in packages.iterdir()} & foreign


def test_the_image_holds_no_repository_and_no_cache(container):
    root = container.root
    left = [path for path in root.rglob(".*") if path.name == ".git" or "cache" in path.name]
    assert left == []
    assert [*root.glob("src"), *root.glob("tmp/*")] == []
    assert names(root / "var" / "lib" / "apt" / "lists") == set()
    assert names(root / "var" / "cache" / "apt") <= {"archives/lock"}


def test_the_image_has_no_trace_of_the_machine_that_built_it(container):
    root = container.root
    assert [*root.glob("etc/pip.conf"), *root.glob("root/.config"), *root.glob("root/*.pem")] == []
    config = container.buildah.config(TAG)
    assert not [variable for variable in config["Env"] if variable.startswith("PIP_")]
    assert str(ROOT) not in json.dumps(config)


def test_help_is_shown_by_default(container):
    done = container(USERS[0], *container.buildah.config(TAG)["Cmd"])
    assert done.returncode == 0
    assert done.stdout.startswith("usage: benchmark.py ")


@pytest.mark.parametrize("user", USERS)
def test_compare_reads_a_mounted_folder(container, user, data):
    kept = f"/tmp/result-{user}.json"
    options = ("--verify", "--rounds", "1", "--batchsize", "8", "--json", kept)
    done = container(user, "compare", "--datadir", "/data", *options, volumes=(f"{data}:/data:ro",))
    assert done.returncode == 0, done.stderr
    assert owner(container.root / kept[1:]) == user
    legs = json.loads((container.root / kept[1:]).read_text())["readers"]
    read = {name for name, leg in legs.items() if leg["skipped"] is None}
    assert read >= READ_FILES
    for name in read:
        assert f"verifying {name}: the same as fn.readers.file" in done.stderr
        turns = legs[name]["rounds"]
        assert len(turns) in (8, 16)  # once more if the machine is busy
        assert sum(turn["samples"] for turn in turns) >= IMAGES  # for some seconds
    assert "libxnvme" in legs["xnvme-file"]["skipped"]


@pytest.mark.parametrize("user", USERS)
def test_demo_makes_its_images_and_compares_the_legs(container, user):
    done = container(user, "demo", "--rounds", "1", "--batches", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    written = container.root / "tmp" / "demo"
    assert owner(written / "pictures" / "train") == USERS[0]
    hot = json.loads((written / "demo.json").read_text())["hot"]["readers"]
    for name in ("dali", "dali-nommap", "python-file"):
        assert len(hot[name]["rounds"]) in (8, 16)
    assert "Left out: S3: " in done.stdout
    assert "Traceback" not in done.stderr
    assert "atplotlib" not in done.stderr  # it warns if it has no directory to write to
