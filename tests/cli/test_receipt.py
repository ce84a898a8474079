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


def loaded(path):
    return json.loads(path.read_text())["receipt"]


ONCE = "epoch 0 has each of 30 samples exactly once,"
PARTLY = "epoch 0 is not complete:"
CASES = {
    ONCE + " with the same sizes and bytes": {},
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
        missing: a sample that is no longer in the data set
        the names of the data set have changed: 30 samples then, 29 now""": {"new": None},
}


@pytest.mark.parametrize("lines", CASES)
def test_an_epoch_is_compared(lines, made, root, tmp_path, capsys):
    case = {"without": "", "twice": [], "batches": 8, "new": b"\4" * 6} | CASES[lines]
    if case["new"] is None:
        (root / "a" / "04.jpg").unlink()
    else:
        (root / "a" / "04.jpg").write_bytes(case["new"])
    names = sorted(str(it.relative_to(root)) for it in root.rglob("*.jpg"))
    names = [it for it in names if it != case["without"]] + case["twice"]
    options = {"name": "R", "pad_last_batch": True, "receipt": "bytes"}
    pipeline = build(readers.file, 4, file_root=root, files=names, **options)
    for _ in range(case["batches"]):
        pipeline.run()
    (tmp_path / "e.json").write_text(json.dumps([readers.receipt(pipeline, "R")]))
    capsys.readouterr()
    status = receipt.main(["compare", str(made), str(tmp_path / "e.json")])
    want = [it.strip() for line in lines.splitlines() for it in line.split("|")]
    out, errors = capsys.readouterr()
    assert (out.splitlines()[0], sorted(out.splitlines()), errors) == (want[0], sorted(want), "")
    assert status == (0 if len(want) == 1 else 1)


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


@pytest.mark.parametrize(
    ("dataset", "epoch", "message"),
    [
        (None, "{", "is not JSON"),
        ("{", "[]", "is not JSON"),
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
