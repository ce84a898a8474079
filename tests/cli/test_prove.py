"""`python -m dali_storage prove`: what it prints, and its exit status."""

import hashlib
import json
import re
import sys
from types import SimpleNamespace

import numpy as np
import nvidia.dali
import pytest

from dali_storage import readers
from dali_storage.cli import prove
from dali_storage.dali.comparing import VARIANTS
from dali_storage.reading.source import BatchStream
from tests.kit.containers import write_tar
from tests.kit.shards import LEAF, dict_of, write_litdata, write_mds
from tests.kit.tables import write_table


@pytest.fixture
def root(tmp_path):
    for number in range(40):
        folder = tmp_path / "set" / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(bytes([number]) * (number + 1))
    return str(tmp_path / "set")


def test_a_line_says_for_each_check_how_much_was_compared(root, capsys):
    options = ["--samples", "20", "--backend", "python-file", "--option", "lanes=2"]
    assert prove.main([root, *options]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    about, *lines, verdict = printed.out.splitlines()
    assert about.startswith(
        f"{root!r} by readers.file, python-file, options {{'lanes': 2}}, and by"
    )
    assert verdict == "verdict: all that was compared is equal"
    lines = [re.split("  +", line) for line in lines]
    assert [line[-1] for line in lines] == ["equal"] * (4 + len(VARIANTS))
    assert [line[1] for line in lines[:2]] == ["40 of 40 samples", "20 of 20 samples, random"]
    assert {line[1].partition(", ")[0] for line in lines[2:]} == {"2 epochs of 20 samples"}


def test_differences_are_printed_and_the_exit_status_is_1(root, monkeypatch, capsys):
    real = BatchStream.labels
    monkeypatch.setattr(BatchStream, "labels", lambda *given: real(*given) + 1)
    assert prove.main([root, "--json", "--option", "lanes=1", "--seed", "5"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["root"], found["backend"], found["options"]) == (
        root,
        "python-file",
        {"lanes": 1},
    )
    assert (found["equal"], found["error"], found["seed"]) == (False, None, 5)
    assert found["dali"] == nvidia.dali.__version__
    assert found["other"] == f"DALI {nvidia.dali.__version__}"
    first = found["checks"][0]
    assert (first["differences"], first["samples"]) == (40, 40)
    assert first["first"][0] == "sample 0: label 1 instead of 0"
    assert prove.main([root]) == 1
    printed = capsys.readouterr().out
    assert "    and 35 more" in printed
    assert "\nverdict: NOT EQUAL" in printed


def test_filters_are_those_of_the_reader(root, capsys):
    assert (
        prove.main([root, "--dir-filters", "class[01]", "--file-filters", "*7.jpg", "--json"]) == 0
    )
    listed = json.loads(capsys.readouterr().out)["checks"][0]
    assert listed["compared"] == "3 of 3 samples"  # 7, 27, 37 but not 17, which is of class 2


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "MemoryError: no message"),
        (KeyError("x"), 2, "KeyError: 'x'"),
    ],
)
def test_what_was_compared_before_an_error_is_printed(
    error, status, said, root, monkeypatch, capsys
):
    def fail(*_):
        raise error

    monkeypatch.setattr("dali_storage.proof.checks._compare_contents", fail)
    assert prove.main([root, "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["error"]) == (None, said)
    assert [check["compared"] for check in found["checks"]] == ["40 of 40 samples"]
    assert prove.main([root]) == status
    assert capsys.readouterr().err == f"error: {said}\n"


@pytest.fixture
def tars(tmp_path):
    tars = tmp_path / "ta rs ü"
    tars.mkdir()
    for number in range(3):
        files = [(f"{n}.{ext}", b"%d %d" % (n, number)) for n in range(9) for ext in ("jpg", "cls")]
        write_tar(tars / f"{number}.tar", files)
    return tars


def test_tars_and_arrays_are_compared_with_their_own_readers(tars, tmp_path, monkeypatch, capsys):
    for number in range(9):
        np.save(tmp_path / f"{number}.npy", np.full((2, number + 1), number, "f4"))
    for given in ([tmp_path], [tars], sorted(tars.iterdir())):
        assert prove.main([*map(str, given)]) == 0
        head, *lines, verdict = capsys.readouterr().out.splitlines()
        reader, count = ("numpy", 9) if given == [tmp_path] else ("webdataset", 27)
        assert f" by readers.{reader}, python-file, " in head
        assert len(lines) == len(VARIANTS)
        assert all(re.search(f"  2 epochs of {count} samples.* equal$", line) for line in lines)
        assert verdict == "verdict: all that was compared is equal"
    real = readers.webdataset
    other = lambda paths, **given: real(paths=paths[::-1], **given)  # noqa: E731
    monkeypatch.setattr(readers, "webdataset", other)
    assert prove.main([str(tars)]) == 1
    assert "batch 0, slot 0: " in capsys.readouterr().out


@pytest.mark.parametrize("bucket", ["s3://bucket", "s3://bucket/"])
def test_of_a_bucket_dali_needs_a_prefix(bucket, capsys):
    assert prove.main([bucket]) == 2
    assert "in a bucket without a prefix; give s3://bucket/PREFIX\n" in capsys.readouterr().err


def test_a_password_is_not_printed(capsys):
    assert prove.main(["s3://key:secret@bucket/x", "--json"]) == 2
    printed = capsys.readouterr().out
    assert "secret" not in printed
    assert "has a name, key or password in it" in json.loads(printed)["error"]


def test_an_index_is_refused_by_the_name_of_its_root(root, tmp_path, capsys):
    from dali_storage.cli import index

    made = str(tmp_path / "index")
    assert index.main([root, "-o", made]) == 0
    assert prove.main([made]) == 2
    expected = f"error: ROOT {made!r} is an index, which DALI cannot read; give {root!r}\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "error: [Errno 2] No such file or directory: '/nowhere'"),
        (["--backend", "no"], "error: unknown backend 'no'"),
        (["--backend", "object-store"], "error: object-store reads objects named by URLs, not the"),
        (["--option", "dirct=1"], "error: backend 'python-file' has no option dirct"),
        (["--option", "lanes=x"], "lanes"),
        (["--option", "lanes=1", "--option", "lanes=2"], "--option lanes is given more than once"),
        (["http://127.0.0.1/x"], "error: cannot compare 'http://127.0.0.1/x': DALI's own reader "),
        (["--samples", "0"], "error: --samples must be at least 1, not 0"),
        (["--seconds", "nan"], "error: --seconds must be a number above 0, not nan"),
        (["--seconds", "inf"], "error: --seconds must be a number above 0, not inf"),
        (["--option", "x"], "expected KEY=VALUE, not 'x'"),
    ],
)
def test_what_cannot_be_compared_is_an_error(arguments, message, root, capsys):
    given = arguments if "/" in arguments[0] else [root, *arguments]
    try:
        status = prove.main(given)
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err


def lines_of(capsys):
    """The lines of all checks, and the first one, which names the other reader."""
    head, *lines, _ = capsys.readouterr().out.splitlines()
    return lines, head


def test_parquet_is_compared_with_pyarrow(tmp_path, monkeypatch, capsys):
    from dali_storage.formats.parquet import catalog  # not without its family

    cells = [{"bytes": b"%d" % n * n, "path": "x"} if n % 5 else None for n in range(40)]
    for number, part in enumerate((cells[:30], cells[30:])):
        table = {"image": part, "mask": [b"m"] * len(part), "label": ["a"] * len(part)}
        write_table(tmp_path / f"{number}.parquet", table, row_group_size=8)
    assert prove.main([str(tmp_path)]) == 0
    lines, head = lines_of(capsys)
    assert "by pyarrow " in head
    assert head.endswith(", without the columns image.path, label:")
    expected = ["40 of 40 samples", "2 epochs of 40 samples", "2 epochs of 40 samples"]
    assert [re.split("  +", it)[1::2] for it in lines] == [[it, "equal"] for it in expected]
    assert prove.main([str(tmp_path), "--seconds", "1e-9"]) == 0
    assert "1 of 40 samples" in lines_of(capsys)[0][0]
    real = catalog.find
    monkeypatch.setattr(catalog, "find", lambda paths, *given: real(paths[::-1], *given))
    assert prove.main([str(tmp_path)]) == 1
    assert "sample 1 of /" in (out := capsys.readouterr().out)
    assert "column 'image.bytes': CRC-32" in out
    assert "2 ranks: sample 1 of " in out


class Shard(list):
    column_names = "image", "k"

    def __getitem__(self, number):
        assert self.column_encodings == ["bytes"] * 2  # not pkl
        return super().__getitem__(number)


@pytest.fixture
def packages(monkeypatch):
    """Put packages that know what was written in the place of the real ones; None: none."""

    def put(shards=None, samples=None):
        def dataset(_, serializers):
            raw = [(serializers["jpeg"], it) for it in samples]
            return [{"image": each.deserialize(it)} for each, it in raw]

        made = SimpleNamespace(
            __version__="7",
            Serializer=object,
            StreamingDataset=dataset,
            reader_from_json=lambda root, split, row: Shard(shards[row["raw_data"]["basename"]]),
        )
        for name, content in {"streaming.base.format": shards, "litdata": samples}.items():
            given = None if content is None else made
            for it in (name, name.split(".")[0], f"{name}.streaming.serializers"):
                monkeypatch.setitem(sys.modules, it, given)

    return put


def spoil(path, old, new):
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def test_mds_is_compared_with_its_package_and_its_hashes(tmp_path, packages, capsys):
    samples = [{"image": b"<%d>" % n, "k": b"."} for n in range(20)]
    written = {"a/0.mds": samples[:15], "b/0.mds": samples[15:]}
    write_mds(tmp_path, {"image": ("jpeg", None), "k": ("pkl", None)}, written)
    packages()
    assert prove.main([str(tmp_path)]) == 2
    expected = r"error: '/.*' cannot be compared .*pip install mosaicml-streaming\): there are none"
    assert re.match(expected, capsys.readouterr().err)
    packages(written)
    assert prove.main([str(tmp_path)]) == 0
    lines, head = lines_of(capsys)
    assert head.endswith("by streaming 7, without the columns k:")
    assert [line.split()[-1] for line in lines] == ["equal"] * 3
    index = json.loads((tmp_path / "index.json").read_text())
    for row in index["shards"]:
        content = (tmp_path / row["raw_data"]["basename"]).read_bytes()
        row["raw_data"]["hashes"] = {"sha1": hashlib.sha1(content).hexdigest()}
    (tmp_path / "index.json").write_text(json.dumps(index))
    spoil(tmp_path / "b/0.mds", b"<17>", b"<71>")
    assert prove.main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert re.search(r" 2 of 2 shards .* 1 DIFFER\n    /.*/b/0.mds: its sha1 is ", out)
    assert re.search(r" 1 DIFFER\n    sample 17 of /.*/b/0.mds, column 'image': CRC-32 ", out)
    assert f"2 ranks: sample 17 of {tmp_path}/b/0.mds has the CRC-32 " in out
    packages()
    spoil(tmp_path / "b/0.mds", b"<71>", b"<17>")
    assert prove.main([str(tmp_path)]) == 0
    lines, head = lines_of(capsys)
    assert "by its hashes alone (" in head
    assert [it.rpartition("  ")[2] for it in lines] == ["equal", "not compared", "equal", "equal"]


def test_litdata_is_compared_with_its_package(tmp_path, packages, capsys):
    samples = [b"<%d>" % number for number in range(20)]
    chunks = [[[it] for it in samples[:9]], [[it] for it in samples[9:]]]
    write_litdata(tmp_path, dict_of(image=LEAF), ["jpeg"], chunks)
    packages()
    assert prove.main([str(tmp_path)]) == 2
    assert "pip install litdata): there are none" in capsys.readouterr().err
    packages(samples=samples)
    assert prove.main([str(tmp_path)]) == 0
    assert "by litdata 7:" in lines_of(capsys)[1]
    packages(samples=samples[:-1])
    assert prove.main([str(tmp_path)]) == 1
    assert "    20 samples instead of 19\n" in capsys.readouterr().out
    spoil(tmp_path / "chunk-0-1.bin", b"<17>", b"<71>")
    packages(samples=samples)
    assert prove.main([str(tmp_path)]) == 1
    assert "sample 17 of /" in capsys.readouterr().out
