"""`python -m dali_storage DATA`: the choices of the reader, samples of many files, bad input."""

import gzip
import os
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest

from dali_storage import statistics
from dali_storage.backends.files import opening, samples
from dali_storage.cli import data, doctor, index
from dali_storage.observing.kernel import Mounted
from dali_storage.readers import file
from tests.kit.bmap.files import as_nobody
from tests.kit.containers import write_tar
from tests.kit.dali import build

COUNT, NBYTES = 12, 5000


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Three classes of four JPEGs, on what is known as a local disk in use."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(samples, "is_local", lambda _: True)
    monkeypatch.setattr(opening, "used_bytes", lambda _: 1 << 50)
    for number in range(COUNT):
        path = tmp_path / "root" / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff" * NBYTES)
    return tmp_path / "root"


def memory(monkeypatch, nbytes):
    """Let data sets of so many bytes fit in memory."""
    found = int(nbytes / 0.6) + 1
    for module in (samples, data.machine):
        monkeypatch.setattr(module, "cache_memory", lambda: found)


def rows(capsys):
    """The rows of a report by their labels."""
    found, label = {}, ""
    for line in capsys.readouterr().out.splitlines():
        assert len(line) <= 80 or " " not in line[16:]
        label = line[:16].strip() or label
        found[label] = f"{found.get(label, '')} {line[16:]}".strip()
    return found


@pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.MemoryIsShort")
@pytest.mark.parametrize(("fits", "gain"), [(True, "if cached"), (False, "3 times")])
def test_what_is_printed_is_what_a_reader_chooses(root, monkeypatch, capsys, fits, gain):
    memory(monkeypatch, COUNT * 8192 if fits else NBYTES)
    data.examine(str(root))
    found = rows(capsys)
    pipeline = build(file, file_root=str(root), name="R")
    pipeline.run()
    chosen = statistics(pipeline, "R").choices
    assert chosen["direct"].startswith(str(not fits))
    names = ("io", "direct", "lanes", "copying_lanes", "buffer_bytes")
    words = {"lanes": " threads, a batch each", "buffer_bytes": " bytes of batches read ahead"}
    words["copying_lanes"] = " of the lanes at once may copy from the page cache"
    for name in names:
        assert found[name] == chosen[name].replace(" (", f"{words.get(name, '')} (", 1)
    assert found["data"] == "12 files, 60,000 bytes"
    assert found["reader"].startswith(f"readers.file(file_root='{root}')")
    assert gain in found["expect"]
    assert set(found) >= {"file system", "O_DIRECT", "io='io_uring'", "page cache", "worth a try"}


@pytest.mark.parametrize(
    ("limit", "most", "data_of", "direct"),
    [
        ("_CLASSES", 2, "about 12 files, about 60,000 bytes", "; 67% of it is cached)"),
        ("_ENTRIES", 2, "at least 4 files, about 20,000 bytes", ""),
    ],
)
def test_of_many_files_some_are_listed_and_the_choice_is_that_of_all(
    limit, most, data_of, direct, root, monkeypatch, capsys
):
    monkeypatch.setattr(data, limit, most)
    monkeypatch.setattr(data, "_SIZED", 3)
    memory(monkeypatch, 8 * 8192)
    data.examine(str(root))
    found = rows(capsys)
    assert found["data"] == data_of
    assert found["direct"].endswith(direct)


@pytest.mark.parametrize(
    ("kind", "given", "gain", "option"),
    [
        ("fuse.rclone", "root", "2 to 4 times", "--transfers 64"),
        ("fuse.sshfs", "root", "2 to 4 times", "'direct': True"),
        ("nfs4", "root", "2 to 4 times", "nothing more"),
        ("fuse.sshfs", "0.tar", "1.1 to 2.3 times", "s3://"),
    ],
)
def test_on_a_network_file_system_no_more_is_promised_than_was_measured(
    kind, given, gain, option, root, monkeypatch, capsys
):
    write_tar(root.parent / "0.tar", [("a.jpg", b"a")])
    monkeypatch.setattr(samples, "is_local", lambda _: False)
    monkeypatch.setattr(data, "mount_of", lambda _: Mounted(b"/", kind, "there"))
    data.examine(str(root.parent / given))
    found = rows(capsys)
    assert gain in found["expect"]
    assert option in found["worth a try"]


CALLS = [  # what is given, the call of its reader, and what it has
    ("shards", "webdataset(ext=..., paths=glob.glob('{}/*.tar'))", "2 containers, "),
    ("shards/0.tar", "webdataset(ext=..., paths='{}')", "1 containers, "),
    ("shards/?.tar", "webdataset(ext=..., paths=['{}', ...])", "2 containers, "),
    ("numbered", "webdataset(ext=..., paths=glob.glob('{}/*[0-9]'))", "2 containers, "),
    ("x.index", "file(file_root='{}')", "12 files, "),
    ("root", "file(file_root='{}')", "12 files, "),
    ("npy", "numpy(file_root='{}')", "2 files, "),
    ("npz", "npz(members=..., file_root='{}')", "2 files, "),
]


@pytest.mark.parametrize(("given", "call", "number"), CALLS)
def test_containers_indexes_and_arrays_are_known_by_their_content(
    given, call, number, root, tmp_path, monkeypatch, capsys
):
    memory(monkeypatch, 1 << 30)
    (tmp_path / "shards").mkdir()
    for each in range(2):
        write_tar(tmp_path / "shards" / f"{each}.tar", [("a.jpg", b"a")])
    assert index.main([*map(str, (tmp_path / "shards").glob("*.tar"))]) == 0
    shutil.copytree(tmp_path / "shards", numbered := tmp_path / "numbered")
    for name in ("0", "1"):
        (numbered / f"{name}.tar").rename(numbered / f"data-0000{name}-of-00002")
    assert index.main([str(root), "-o", str(tmp_path / "x.index")]) == 0
    shutil.copy(tmp_path / "shards" / "0.tar", root / "stray.tar")
    for name, save in (("npy", np.save), ("npz", np.savez)):
        (tmp_path / name / "class").mkdir(parents=True)
        save(tmp_path / name / "class" / f"0.{name}", np.zeros(3))
        shutil.copy(tmp_path / name / "class" / f"0.{name}", tmp_path / name)
    capsys.readouterr()
    path, *more = map(str, sorted(tmp_path.glob(given)))
    data.examine(path, *more)
    found = rows(capsys)
    assert found["reader"].startswith(f"readers.{call.format(path)},")
    assert found["data"].startswith(number)
    assert ("mmap" in found["worth a try"]) is ("container" in number)


OF_OTHERS = [  # what lies in the directory, a shard, and the call of the reader
    ("index.json", '{"shards": [', "a/0.mds", "mds(columns=[...], path='{}')"),
    ("index.json", '{"chunks": [', "chunk-0-0.bin", "litdata(columns=[...], path='{}')"),
    ("shardindex.json", '{"wids_version"', "0.tar", "webdataset(ext=[...], paths='{}/{}')"),
    (
        ".nv-meta/index.sqlite",
        "SQLite format 3",
        "a/0.tar",
        "{}', index_paths='{}/.nv-meta/index.sqlite')",
    ),
    ("_versions/1.manifest", "", "data/0.lance", "records(files=..., offsets=..., sizes=...)"),
]


@pytest.mark.parametrize(("name", "content", "shard", "call"), OF_OTHERS)
def test_the_reader_of_a_directory_of_another_loader_is_named(
    name, content, shard, call, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", "80")
    for each, written in (name, content), (shard, "x" * 700):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text(written)
    expected = call.replace("/{}", f"/{name}").replace("{}", str(tmp_path))
    assert index.main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: '{tmp_path}': a data set by ")
    assert said.endswith(f"{expected}\n")
    data.examine(str(tmp_path))
    found = rows(capsys)
    assert f"{expected}, backend" in found["reader"]
    assert found["data"] == "1 containers, 700 bytes"


@pytest.mark.parametrize(("name", "content", "shard", "call"), OF_OTHERS[:3])
def test_the_reader_of_shards_in_a_store_is_named(name, content, shard, call, server, capsys):
    server.put(f"bucket/train/{name}", content.encode())
    server.put(f"bucket/train/{shard}", b"x")
    data.examine("s3://bucket/train")
    expected = call.replace("/{}", f"/{name}").replace("{}", "s3://bucket/train")
    assert rows(capsys)["reader"] == f"readers.{expected}"


def test_objects_are_counted(server, monkeypatch, capsys):
    environment = {"ENDPOINT_URL": server.url, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    for name, value in environment.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for number in range(3):
        server.put(f"bucket/train/c/{number}.jpg", b"123")
    data.examine("s3://bucket/train")
    found = rows(capsys)
    assert found["data"] == "3 objects, 9 bytes"
    assert found["s3://"].startswith(server.url)
    assert "cache" in found["worth a try"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("root/empty", "no files found under '{}' as CLASS/FILE: 0 directories"),
        ("root/class 0", "no files found under '{}' as CLASS/FILE, but 4 directly in it; if it"),
        (".", "no files found under '{}' as CLASS/FILE: 1 directories"),
        (
            "x.tar.gz",
            "'{}' is not a tar, LMDB, Parquet or TFRecord file; it is compressed with gzip; dec",
        ),
        ("root/class 0/0.jpg", "'{}' is neither a directory nor an index of samples"),
        ("pipe", "[Errno 20] Not a directory: '{}'"),
    ],
)
def test_bad_input_is_an_error_that_names_it(given, said, root, tmp_path):
    (root / "empty").mkdir()
    if given == "x.tar.gz":
        (tmp_path / given).write_bytes(gzip.compress(b"a tar"))
    if given == "pipe":
        os.mkfifo(tmp_path / given)
    path = str(tmp_path / given)
    with pytest.raises((OSError, ValueError)) as caught:
        data.examine(path)
    assert str(caught.value).startswith(said.format(path))


def test_a_path_that_may_be_a_url_is_an_error_that_says_so(tmp_path, capsys):
    path = str(tmp_path / "bucket/train")
    assert doctor.main([path]) == 1
    said = f"error: [Errno 2] No such file or directory: '{path}'; a URL begins with s3://, g"
    assert capsys.readouterr().err.startswith(said)


def test_containers_of_two_kinds_are_refused(tmp_path, capsys):
    write_tar(tmp_path / "0.tar", [("a.jpg", b"a")])
    (tmp_path / "1").write_bytes(struct.pack("<QI4sI", 4, 0, b"data", 0))
    assert doctor.main([str(tmp_path / "0.tar"), str(tmp_path / "1")]) == 1
    what = "error: tar and TFRecord files have different readers; give files of one kind\n"
    assert capsys.readouterr().err == what


def test_what_may_not_be_read_is_named(root, tmp_path, monkeypatch):
    root.chmod(0)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # its parents are closed to other users
    for path in ("root", "root/class 0"):
        with as_nobody(), pytest.raises(PermissionError) as caught:
            data.examine(path)
        assert caught.value.filename.rstrip("/") == path


HANGS = """
import sys
from benchmarks import slow, workload
from dali_storage.cli import data
data._PATIENCE_S = 1
try:
    with slow.mounted(sys.argv[1], sys.argv[1], 3600.0) as place:
        sys.exit(data.main([f"{place}/c"]))
except workload.NotHereError as reason:
    sys.exit(f"not here: {reason}")
"""


def test_a_file_system_that_does_not_answer_is_told_in_time(tmp_path):
    command = [sys.executable, "-c", HANGS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.stderr.startswith("not here: "):
        pytest.skip(done.stderr)
    place = tmp_path / "slow"
    said = (
        f"error: '{place}/c' gave no answer for 1 s: it hangs, or is slow: fuse slow on {place}\n"
    )
    assert (done.returncode, done.stderr) == (1, said)
