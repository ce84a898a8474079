"""Indexes of samples: the command that makes them, and the readers that use them."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.cli import index
from dali_storage.contract.errors import ObjectReplacedError
from dali_storage.loaders import image_folder
from dali_storage.samples import discovery, finding
from dali_storage.samples.index_file import CatalogFile
from tests.kit.catalogs import columns_of
from tests.kit.dali import build, take


def write(root, *names):
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"%d" % number * (number + 1))
    return root


@pytest.fixture
def root(tmp_path):
    """Classes with more, one and no samples, names that are not text, and others to filter."""
    names = b"a-b/1.jpg", b"a/2.JPG", b"a/3.png", b"\xff\xfe/\xe9.jpg", b"z z/1.png", b"none/1.txt"
    return write(tmp_path / "root", *names, b"high.jpg", b"a/deep/er.jpg")


def make_index(root, *options):
    target = root.with_suffix(".index")
    assert index.main([str(root), "-o", str(target), *options]) == 0
    return target


COMMANDS = [
    ([], {}),
    (["--file-filters", "*.jpg", "*.txt"], {"file_filters": ["*.jpg", "*.txt"]}),
    (["--dir-filters", "a*", "--dir-filters", "z*"], {"dir_filters": ("a*", b"z*")}),
    (["--case-sensitive-filter"], {"case_sensitive_filter": True}),
]


@pytest.mark.parametrize(("options", "filters"), COMMANDS)
def test_an_index_has_the_samples_of_its_directory(root, options, filters):
    made = make_index(root, *options)
    expected = discovery.from_directory(root, **filters)
    for same in ({}, filters):
        found = finding.find(file_root=made, **same)
        assert columns_of(found) == columns_of(expected)
        assert found.checksum() == expected.checksum()


@pytest.mark.parametrize("order", [{}, {"random_shuffle": True, "seed": 3, "num_shards": 2}])
@pytest.mark.parametrize("backend", ["python-file", "memory"])
def test_batches_of_an_index_are_those_of_dali_on_the_directory(root, order, backend):
    made = make_index(root)
    theirs = take(build(fn.readers.file, file_root=str(root), **order), 5)
    assert take(build(readers.file, file_root=made, backend=backend, **order), 5) == theirs
    assert take(build(readers.file, file_root=str(made), lazy_init=True, **order), 5) == theirs


def test_the_place_of_the_index_does_not_matter(root, tmp_path, monkeypatch):
    monkeypatch.chdir(root.parent)
    assert index.main(["root/", "-o", "x.index"]) == 0
    made = (tmp_path / "elsewhere").with_suffix(".index")
    (root.parent / "x.index").rename(made)
    monkeypatch.chdir("/")
    assert CatalogFile(made).root == os.fsencode(root)
    expected = take(build(fn.readers.file, file_root=str(root)), 1)
    assert take(build(readers.file, file_root=made), 1) == expected


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"file_filters": "*.png"}, r"file_filters=\['\*.png'\], but .* made with .*'\*.jpg'"),
        ({"dir_filters": "a"}, r"dir_filters=\['a'\], .* made with dir_filters=None; leave"),
        ({"case_sensitive_filter": True}, "or make another index"),
        ({"file_filters": []}, r"file_filters=\[\]"),
        ({"files": ["a/2.JPG"]}, "file_root must be a directory with files or file_list, not"),
    ],
)
def test_other_arguments_than_those_of_the_index_are_refused(root, arguments, what):
    made = make_index(root)
    with pytest.raises(ValueError, match=what):
        build(readers.file, file_root=made, **arguments)


def test_the_classes_of_an_index_have_names(tmp_path):
    root = write(tmp_path / "images", b"b/1.jpg", b"b/2.jpg", b"a-/1.jpg", b"\xff/1.jpg")
    options = {"train": False, "batch_size": 2, "device": "cpu"}
    with image_folder(root, **options) as listed, image_folder(make_index(root), **options) as ours:
        assert ours.classes == listed.classes == ("a-", "b", "\udcff")
    write(root, b"aa/no.txt", b"c/no.txt")
    with pytest.raises(ValueError, match=r"no images in 2 class directories of .*images'"):
        image_folder(make_index(root), **options)


def run(capsys, *arguments):
    """The exit status, output and errors of the command."""
    try:
        status = index.main([str(each) for each in arguments])
    except SystemExit as error:
        status = int(error.code or 0)
    return status, *capsys.readouterr()


def test_the_command_reports_what_it_has_done(root, capsys):
    made = root.with_suffix(".index")
    done = run(capsys, root, "-o", made)
    assert done == (0, f"'{made}': 5 samples of 4 classes in '{root}'\n", "")
    told = f"'{made}': 5 samples, undamaged; files were not read\n"
    assert run(capsys, made, "--verify") == (0, told, "")
    damaged = bytearray(made.read_bytes())
    damaged[-1] ^= 1
    made.write_bytes(damaged)
    status, output, error = run(capsys, made, root / "nothing", "--verify")
    assert (status, output) == (1, "")
    assert f"index '{made}' is damaged: column 'labels' has a wrong CRC-32" in error
    assert f"No such file or directory: '{root / 'nothing'}'" in error


def test_the_root_of_an_index_need_not_be_text(tmp_path, capsys):
    root = write(tmp_path / os.fsdecode(b"\xff"), b"a/1.jpg")
    status, output, _ = run(capsys, root, "-o", tmp_path / os.fsdecode(b"\xfe"))
    assert (status, "1 samples of 1 classes in" in output) == (0, True)
    assert CatalogFile(tmp_path / os.fsdecode(b"\xfe")).root == os.fsencode(root)


def test_a_terminal_shows_that_it_is_listing(root):
    leader, follower = os.openpty()
    made = root.with_suffix(".index")
    command = [sys.executable, "-m", "dali_storage", "index", str(root), "-o", str(made)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "500"}
    done = subprocess.run(command, stderr=follower, stdout=subprocess.PIPE, env=environment)
    os.close(follower)
    shown = os.read(leader, 65536)
    os.close(leader)
    assert f"listing '{root}'".encode() in shown
    assert (done.returncode, b"5 samples of 4 classes" in done.stdout) == (0, True)


def test_a_wrong_command_is_refused(root, capsys):
    for wrong, what in [
        ([], "required: ROOT, -o/--output"),
        ([root], "required: -o/--output"),
        ([root, root, "-o", "x"], f"unrecognized arguments: {root}"),
        ([root / "high.jpg", "--verify", "-o", "x"], "unrecognized arguments: -o x"),
        ([root, "-o", "x", "--backend-option", "lanes"], "expected KEY=VALUE, not 'lanes'"),
    ]:
        status, _, error = run(capsys, *wrong)
        assert (status, what in error) == (2, True), error
    for failing, what in [
        ([root, "--verify"], f"'{root}'"),
        ([root / "no", "-o", root / "x"], f"No such file or directory: '{root}/no'"),
        ([root / "no", "-o", root / "x", "--file-filters", "*"], f"directory: '{root}/no'"),
        ([root / "high.jpg", "-o", root / "x", "--dir-filters", "*"], f"'{root}/high.jpg'"),
        ([root, "-o", "s3://bucket/x"], "/s3:/bucket': 's3://bucket/x'"),
        ([root, "-o", root / "x", "--file-filters", "*.gif"], "no files found under"),
        ([root, "-o", root / "x", "--backend-option", "lanes=2"], "is only for a URL"),
    ]:
        status, output, error = run(capsys, *failing)
        assert (status, output, what in error) == (1, "", True), error
        assert not (root / "x").exists()
    os.mkfifo(root / "pipe")
    status, _, error = run(capsys, "--verify", root / "pipe", os.devnull)
    assert (status, error.count("is neither a directory nor an index")) == (1, 2)


OBJECTS = {
    key: key.encode() * 3 for key in ("a-b/1.jpg", "a/1.jpg", "a/2.png", "high.jpg", "z/1.txt")
}
"""By key below s3://bucket/train, in the order of their keys' bytes. The last one does not pass."""


@pytest.fixture
def indexed(server, tmp_path, capsys):
    """The index of the objects."""
    for key, data in OBJECTS.items():
        server.put(f"bucket/train/{key}", data)
    made = tmp_path / "x.index"
    options = "endpoint=" + server.url, "anonymous=true", 'client_options={"user_agent": "index"}'
    command = "s3://bucket/train", "-o", made, "--backend-option", *options
    status, output, error = run(capsys, *command)
    assert (status, error) == (0, "")
    assert output == f"'{made}': 4 samples of 3 classes in 's3://bucket/train'\n"
    return made


def test_the_index_of_a_url_has_sizes_and_versions(indexed):
    found = finding.find(file_root=indexed, file_filters=discovery.DEFAULT_FILE_FILTERS)
    expected = list(OBJECTS.items())[:4]
    assert found.paths(np.arange(4)) == [
        b"s3://bucket/train/%b" % key.encode() for key, _ in expected
    ]
    assert found.labels.tolist() == [0, 1, 1, 2]
    assert found.sizes is not None
    assert found.versions is not None
    assert found.sizes.tolist() == [len(data) for _, data in expected]
    hashes = [f'"{hashlib.md5(data).hexdigest()}"'.encode() for _, data in expected]
    assert found.versions.tolist() == hashes


def test_objects_are_read_by_an_index_and_compared_with_it(indexed, server):
    server.put("bucket/train/a/0.jpg", b"new")
    server.log(clear=True)
    expected = [*zip(OBJECTS.values(), (0, 1, 1, 2), strict=False)]
    assert take(build(readers.file, file_root=indexed), 1) == expected
    assert {request.kind for request in server.log()} == {"GET"}

    server.put("bucket/train/a/2.png", b"x" * len(expected[2][0]))
    with pytest.raises(ObjectReplacedError) as caught:
        take(build(readers.file, file_root=indexed), 1)
    assert caught.value.filename == "s3://bucket/train/a/2.png"
    first = {"num_shards": 2, "stick_to_shard": True}
    assert take(build(readers.file, file_root=indexed, **first), 1) == expected[:2] * 2


def test_a_url_that_cannot_be_indexed_is_refused(indexed, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    made = tmp_path / "other.index"
    for wrong, what in [
        (["s3://nothing/x"], "no such bucket; check its name and the endpoint: 's3://nothing/x'"),
        (["s3://name:canary@bucket/train"], "name, key or password in it; remove it"),
        (["https://host/train"], "'https://host/train': a web server does not list its files"),
    ]:
        status, _, without = run(capsys, *wrong)
        assert (status, "canary" in without) == (2, False)
        status, output, error = run(capsys, *wrong[:1], "-o", made, *wrong[1:])
        assert "canary" not in error
        assert (status, output, what in error) == (1, "", True), error
        assert not made.exists()
