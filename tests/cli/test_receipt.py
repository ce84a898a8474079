"""`python -m dali_storage receipt`, and what `compare` says."""

import argparse
import json
from functools import partial

import pytest

from dali_storage import readers
from dali_storage.cli import index, reader_options, receipt
from dali_storage.cli.index_samples import key_and_value
from tests.kit.containers import tf_record, write_tar, write_tfrecord
from tests.kit.dali import build
from tests.kit.receipts import of, sums, sums_of


@pytest.fixture
def root(tmp_path):
    for number in range(30):
        path = tmp_path / "set" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * (5 + number // 4))
    return tmp_path / "set"


@pytest.fixture
def made(root, tmp_path):
    """The path of the data set's receipt."""
    path = tmp_path / "r.json"
    assert receipt.main([str(root), "--bytes", "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["/a"], {"file_root": "/a"}),
        (["/a", "--reader", "numpy"], {"file_root": "/a"}),
        (
            ["s3://a", "--reader", "mds", "--argument", "columns=n"],
            {"path": "s3://a", "columns": "n"},
        ),
        (["/a", "/b", "--reader", "tfrecord"], {"path": ["/a", "/b"]}),
        (["/a.json", "--reader", "webdataset"], {"paths": ["/a.json"]}),
        (["/a.tar", "/b.tar"], {"paths": ["/a.tar", "/b.tar"]}),
        (["--reader", "mds"], {}),
    ],
)
def test_paths_are_the_argument_of_the_reader_that_has_them(words, arguments):
    reader_options.add_options(parser := argparse.ArgumentParser())
    assert reader_options.described(parser.parse_args(words))["arguments"] == arguments


def loaded(path):
    return json.loads(path.read_text())["receipt"]


ONCE = "epoch 0 has each of 30 samples exactly once,"
PARTLY = "epoch 0 is not complete:"
CASES = {
    ONCE + " with the same sizes and bytes": {},
    ONCE + " with the same sizes and bytes, and the same labels": {"labels": [0, 1]},
    ONCE + " but with other labels | with another label: b/07.jpg": {"labels": [0, 1], "odd": 9},
    f"""{PARTLY} 31 of 30 samples, 1 too many
        missing: a/04.jpg | too many: b/07.jpg | too many: b/09.jpg""": {
        "without": "a/04.jpg",
        "twice": ["b/07.jpg", "b/09.jpg"],
    },
    f"{PARTLY} 28 of 30 samples, 2 missing | missing: b/27.jpg | missing: b/29.jpg": {"batches": 7},
    ONCE + " but with other sizes and bytes | changed: a/04.jpg": {"new": b"other!"},
    f"""{ONCE} but with other sizes and bytes
        its size has changed: a/04.jpg | changed: a/04.jpg""": {"new": b"longer!"},
    f"""{PARTLY} 29 of 30 samples, 1 missing
        missing: 1 sample, no longer in the data set
        the names of the data set have changed: 30 samples then, 29 now""": {"new": None},
}


@pytest.mark.parametrize("lines", CASES)
def test_an_epoch_is_compared(lines, made, root, tmp_path, capsys):
    case = {"without": "", "twice": [], "batches": 8, "new": b"\4" * 6, "labels": []} | CASES[lines]
    if case["new"] is None:
        (root / "a" / "04.jpg").unlink()
    else:
        (root / "a" / "04.jpg").write_bytes(case["new"])
    names = sorted(str(it.relative_to(root)) for it in root.rglob("*.jpg"))
    names = [it for it in names if it != case["without"]] + case["twice"]
    options = {"name": "R", "pad_last_batch": True, "receipt": "bytes"}
    if case["labels"]:
        options["labels"] = [case["labels"][name[0] == "b"] for name in names]
        options["labels"][names.index("b/07.jpg")] = case.get("odd", 1)
    pipeline = build(readers.file, 4, file_root=root, files=names, **options)
    for _ in range(case["batches"]):
        pipeline.run()
    (tmp_path / "e.json").write_text(json.dumps([readers.receipt(pipeline, "R")]))
    capsys.readouterr()
    status = receipt.main(["compare", str(made), str(tmp_path / "e.json")])
    want = [it.strip() for line in lines.splitlines() for it in line.split("|")]
    out, errors = capsys.readouterr()
    assert (out.splitlines()[0], sorted(out.splitlines()), errors) == (want[0], sorted(want), "")
    assert status == (" exactly once, with the same" not in want[0])


def test_a_tree_its_index_and_tars_have_receipts(root, made, tmp_path):
    files = [(str(it.relative_to(root)), it.read_bytes()) for it in root.rglob("*.jpg")]
    assert of(loaded(made)) == sums(files, "bytes")
    index.main([str(root), "-o", str(tmp_path / "index")])
    out, tars = tmp_path / "x.json", [str(tmp_path / f"{number}.tar") for number in range(2)]
    for number, tar in enumerate(tars):
        write_tar(tar, [(f"{number}{it}.jpg", bytes([it])) for it in range(5)])
    assert receipt.main([str(tmp_path / "index"), "--bytes", "-o", str(out)]) == 0
    assert loaded(out) == loaded(made)
    assert receipt.main([*tars, "--argument", "ext=jpg", "-o", str(out)]) == 0
    arguments = {"paths": tars, "ext": "jpg", "name": "R", "receipt": "samples"}
    pipeline = build(lambda: [readers.webdataset(pad_last_batch=True, **arguments)], 10)
    pipeline.run()
    assert of(readers.receipt(pipeline, "R")) == of(loaded(out))


def test_content_is_the_same_in_tars(root, tmp_path, capsys):
    contents = [path.read_bytes() for path in sorted(root.rglob("*.jpg"))]
    contents[3] = contents[4]  # twice
    for path, content in zip(sorted(root.rglob("*.jpg")), contents, strict=True):
        path.write_bytes(content)
    files, epoch = tmp_path / "files.json", tmp_path / "epoch.json"
    assert receipt.main([str(root), "--content", "-o", str(files)]) == 0
    assert of(loaded(files)) == sums_of(([("", 0, it)] for it in contents), "content")
    members = [(f"{number}.jpg", it) for number, it in enumerate(reversed(contents))]

    def verdict():
        tar = str(write_tar(tmp_path / "0.tar", members))
        more = {"ext": "jpg", "name": "R", "random_shuffle": True, "pad_last_batch": True}
        reader = partial(readers.webdataset, paths=tar, receipt="content", **more)
        pipeline = build(lambda: [reader()], 4)
        for _ in range(8):
            pipeline.run()
        epoch.write_text(json.dumps(readers.receipt(pipeline, "R")))
        capsys.readouterr()
        status = receipt.main(["compare", str(files), str(epoch)])
        return status, capsys.readouterr().out

    assert verdict() == (0, f"{ONCE} with the same content\n")
    members[0] = members[0][0], members[1][1]
    wrong = f"{PARTLY} 30 of 30 samples, others than these\nno names: content has none\n"
    assert verdict() == (1, wrong)


def test_the_verdict_needs_no_data_set_and_names_need_its_new_root(root, made, tmp_path, capsys):
    pipeline = build(
        readers.file, 4, file_root=root, name="R", pad_last_batch=True, receipt="bytes"
    )
    for _ in range(7):
        pipeline.run()
    (tmp_path / "e.json").write_text(json.dumps(readers.receipt(pipeline, "R")))
    root.rename(tmp_path / "moved")
    capsys.readouterr()
    words = ["compare", str(made), str(tmp_path / "e.json")]
    assert receipt.main(words) == 1
    verdict, remedy = capsys.readouterr().out.splitlines()
    assert verdict == f"{PARTLY} 28 of 30 samples, 2 missing"
    assert remedy.startswith("names need the data set: [Errno 2] No such file or directory")
    assert remedy.endswith("; if it was moved, give --root or --argument")
    assert receipt.main([*words, "--root", str(tmp_path / "moved")]) == 1
    named = ["missing: b/27.jpg", "missing: b/29.jpg"]
    assert sorted(capsys.readouterr().out.splitlines()[1:]) == named


@pytest.mark.parametrize("without", ["arguments", "files"])
def test_the_verdict_does_not_need_what_names_need(without, root, tmp_path, capsys):
    made, epoch = tmp_path / "r.json", tmp_path / "e.json"
    for path, names in [(made, "ab"), (epoch, "a")]:
        files = [str(it) for name in names for it in sorted((root / name).iterdir())]
        words = ["--argument", f"file_root={root}", f"files={json.dumps(files)}"]
        assert receipt.main([*words, "-o", str(path)]) == 0
    epoch.write_text(json.dumps(loaded(epoch)))
    if without == "arguments":
        made.write_text(json.dumps(json.loads(made.read_text()) | {"arguments": None}))
    else:
        root.rename(tmp_path / "moved")
    capsys.readouterr()
    assert receipt.main(["compare", str(made), str(epoch)]) == 1
    verdict, *lines = capsys.readouterr().out.splitlines()
    assert verdict == "the data set is not complete: 15 of 30 samples, 15 missing"
    missing = [it.startswith("it is missing: ") for it in lines].count(True)
    assert missing == (20 if without == "files" else 0)
    assert lines[missing].endswith(" --root or --argument")


def test_the_file_of_a_sample_that_is_guilty_is_named(root, tmp_path, capsys):
    names = {key: sorted(map(str, (root / key).iterdir())) for key in "ab"}
    words = ["--reader", "columns", "--argument", f"files={json.dumps(names)}", "-o"]
    made, epoch = tmp_path / "r.json", tmp_path / "e.json"
    for path in (made, epoch):
        assert receipt.main([*words, str(path)]) == 0
        (root / "b" / "01.jpg").write_bytes(b"longer")
    epoch.write_text(json.dumps(loaded(epoch)))
    capsys.readouterr()
    assert receipt.main(["compare", str(made), str(epoch)]) == 1
    one, two = root / "a" / "00.jpg", root / "b" / "01.jpg"
    wanted = [f"its size has changed: {two}", f"changed: {one} with {two}"]
    assert capsys.readouterr().out.splitlines()[1:] == wanted


def test_samples_with_the_same_name_are_not_told_apart(root, tmp_path, capsys):
    out, names = tmp_path / "r.json", ["a/00.jpg", "a/02.jpg", "a/00.jpg"]
    words = [f"file_root={root}", f"files={json.dumps(names)}"]
    assert receipt.main(["--argument", *words, "-o", str(out)]) == 0
    assert "2 samples share their names" in capsys.readouterr().err
    (tmp_path / "e.json").write_text(json.dumps(loaded(out) | {"epoch": 4}))
    assert receipt.main(["compare", str(out), str(tmp_path / "e.json")]) == 0
    verdict = (
        "epoch 4 has all names of 3 samples, 2 of which are not told apart, with the same sizes"
    )
    assert capsys.readouterr().out == verdict + "\n"


@pytest.mark.parametrize("words", [[], ['features={"x": "int64"}']])
def test_tfrecord_needs_no_features(words, tmp_path):
    path = write_tfrecord(tmp_path / "x", [b"one", b"three"])
    arguments = ["--reader", "tfrecord", "--argument", f"path={path}", *words]
    pieces = [[("x", 0, tf_record(b"one"))], [("x", 19, tf_record(b"three"))]]
    for mode, more in (("samples", []), ("bytes", ["--bytes"])):  # of what is no Example
        assert receipt.main([*arguments, *more, "-o", str(tmp_path / "r")]) == 0
        assert of(loaded(tmp_path / "r")) == sums_of(pieces, mode)
    sources = ["reader=tfrecord", f"sources={json.dumps({'a': {'path': str(path)}})}"]
    assert (
        reader_options.opening_of("mix", dict(map(key_and_value, sources))).open().catalog.delivered
        == 2
    )


@pytest.mark.parametrize(
    ("dataset", "epoch", "message"),
    [
        (None, "{", "is not JSON"),
        ("{", "[]", "is not JSON"),
        (None, "[" * 100_000, "is not JSON"),
        ("{}", "[]", "is not the receipt of a data set"),
        (None, "[]", "must be given once"),
        (None, '{"count": 1}', "not a receipt"),
        (None, "SAMPLES", "modes differ: the data set's is 'bytes', the epoch's 'samples'"),
    ],
)
def test_what_is_no_receipt(dataset, epoch, message, made, root, tmp_path, capsys):
    path = tmp_path / "e.json"
    if dataset is not None:
        made.write_text(dataset)
    if epoch == "SAMPLES":
        receipt.main([str(root), "-o", str(path)])
        epoch = json.dumps(loaded(path))
    path.write_text(epoch)
    assert receipt.main(["compare", str(made), str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("/none", "No such file"),
        ("ROOT --reader none", "readers has no 'none'"),
        ("ROOT --argument extra=1", "unexpected keyword argument 'extra'"),
    ],
)
def test_wrong_arguments(words, message, root, tmp_path, capsys):
    given = words.replace("ROOT", str(root)).split()
    assert receipt.main([*given, "-o", str(tmp_path / "x")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
