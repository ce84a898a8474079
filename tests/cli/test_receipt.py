"""`python -m dali_storage receipt`, and what `compare` says."""

import json

import pytest

from dali_storage import readers
from dali_storage.cli import index, receipt
from tests.kit.containers import write_tar
from tests.kit.dali import build
from tests.kit.receipts import of, sums


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


@pytest.fixture
def compare(made, root, tmp_path, capsys):
    """The status and the lines for an epoch of these files."""

    def compare(leave_out=(), twice=(), batches=None, **arguments):
        names = sorted(str(it.relative_to(root)) for it in root.rglob("*.jpg"))
        names = [it for it in names if it not in leave_out] + [*twice]
        options = {"name": "R", "pad_last_batch": True, "receipt": "bytes"} | arguments
        pipeline = build(readers.file, 4, file_root=root, files=names, **options)
        for _ in range(-(-len(names) // 4) if batches is None else batches):
            pipeline.run()
        epoch = tmp_path / "e.json"
        epoch.write_text(json.dumps([readers.receipt(pipeline, "R")]))
        capsys.readouterr()
        return receipt.main(["compare", str(made), str(epoch)]), [*capsys.readouterr()]

    return compare


def test_a_whole_epoch(compare, made, root):
    want = sums(
        [(str(it.relative_to(root)), it.read_bytes()) for it in root.rglob("*.jpg")], "bytes"
    )
    assert of(json.loads(made.read_text())["receipt"]) == want
    line = "epoch 0 has each of 30 samples exactly once, with the same sizes and bytes\n"
    assert compare() == (0, [line, ""])


def test_samples_are_missing_or_too_many(compare):
    status, (out, _) = compare(leave_out=["a/04.jpg"], twice=["b/07.jpg", "b/09.jpg"])
    assert status == 1
    first, *others = out.splitlines()
    assert first == "epoch 0 is not complete: 31 of 30 samples, 1 too many"
    assert {*others} == {"missing: a/04.jpg", "too many: b/07.jpg", "too many: b/09.jpg"}


def test_an_epoch_was_left_early(compare):
    status, (out, _) = compare(batches=7)
    assert (status, out.splitlines()[0]) == (
        1,
        "epoch 0 is not complete: 28 of 30 samples, 2 missing",
    )
    assert {*out.splitlines()[1:]} == {"missing: b/27.jpg", "missing: b/29.jpg"}


def test_other_bytes_and_other_sizes(compare, root):
    (root / "a" / "04.jpg").write_bytes(b"other!")
    status, (out, _) = compare()
    first, second = out.splitlines()
    assert (status, first) == (
        1,
        "epoch 0 has each of 30 samples exactly once, but with other sizes and bytes",
    )
    assert second == "changed: a/04.jpg"
    (root / "a" / "04.jpg").write_bytes(b"longer")
    (root / "a" / "04.jpg").write_bytes(b"longer than before")
    assert "its size has changed: a/04.jpg\n" in compare()[1][0]


def test_the_data_set_has_changed(compare, root):
    (root / "a" / "04.jpg").unlink()
    status, (out, _) = compare()
    assert status == 1
    assert "the names or labels of the data set have changed: 30 samples then, 29 now\n" in out


def test_a_tree_its_index_and_tars_have_receipts(root, made, tmp_path):
    index.main([str(root), "-o", str(tmp_path / "index")])
    tars = [tmp_path / "tars" / f"{number}.tar" for number in range(2)]
    tars[0].parent.mkdir()
    for number, tar in enumerate(tars):
        write_tar(tar, [(f"{number}{it}.jpg", bytes([it])) for it in range(5)])
    out = tmp_path / "x.json"
    assert receipt.main([str(tmp_path / "index"), "--bytes", "-o", str(out)]) == 0
    whole, again = (json.loads(path.read_text())["receipt"] for path in (made, out))
    assert of(whole) == of(again)
    names = [*map(str, tars)]
    assert receipt.main([*names, "--argument", "ext=jpg", "-o", str(out)]) == 0
    arguments = {"paths": names, "ext": "jpg", "name": "R", "receipt": "samples"}
    pipeline = build(lambda: [readers.webdataset(pad_last_batch=True, **arguments)], 5)
    pipeline.run()
    pipeline.run()
    assert of(readers.receipt(pipeline, "R")) == of(json.loads(out.read_text())["receipt"])


@pytest.mark.parametrize(
    ("epoch", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be given once"),
        ('{"count": 1}', "not a receipt"),
        ("SAMPLES", "modes differ: the data set's is 'bytes', the epoch's 'samples'"),
    ],
)
def test_what_is_no_receipt_of_an_epoch(epoch, message, made, root, tmp_path, capsys):
    path = tmp_path / "e.json"
    if epoch == "SAMPLES":
        receipt.main([str(root), "-o", str(path)])
        epoch = json.dumps(json.loads(path.read_text())["receipt"])
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
