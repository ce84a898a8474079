"""Names of samples: the same wherever files are, and different for different files."""

import json

import numpy as np
import pytest

from dali_storage.cli.reader_options import opening_of
from dali_storage.receipts.hashing import Hashes
from tests.kit.containers import write_tar
from tests.kit.receipts import sums, sums_of

CLASSES = ["a/0.jpg", "a/1.jpg", "b/0.jpg"]
DAYS = ["day1/c/0.jpg", "day2/c/0.jpg", "day2/c/1.jpg"]
FLAT = ["0.jpg", "1.jpg"]


def listed(root, names):
    lines = [f"./{name} {number % 2}\n" for number, name in enumerate(names)]
    (root.parent / "list").write_text("".join(lines))
    return {"file_list": str(root.parent / "list"), "file_root": str(root)}


WAYS = {
    "root": lambda root, names: {"file_root": str(root)},
    "absolute": lambda root, names: {"files": [f"{root}/{name}" for name in names]},
    "backwards": lambda root, names: {"files": [f"{root}/{name}" for name in reversed(names)]},
    "below a root": lambda root, names: {"file_root": str(root), "files": names},
    "odd": lambda root, names: {
        "files": [f"{root}/.//{names[0]}", *names[1:]],
        "file_root": root,
    },
    "half": lambda root, names: {"files": [str(root / names[0]), *names[1:]], "file_root": root},
    "list": listed,
    "two slashes": lambda root, names: {
        "files": [f"/{root}/{names[0]}", *(f"{root}/{name}" for name in names[1:])]
    },
}


def hashed(arguments, reader="file"):
    """The number of all samples, and their rows."""
    catalog, opened, ordering = opening_of(reader, arguments).open()
    with opened:
        pieces = np.arange(len(catalog))
        sizes = catalog.ranges.sizes if catalog.ranges else opened.sizes(pieces, 0)
        rows = Hashes(catalog, ordering).rows(np.arange(catalog.delivered), sizes, None)
    count, _, _, low, high, _ = rows.sum(axis=0).tolist()
    return {"count": count, "sum": f"{high:016x}{low:016x}"}, rows


def write(root, names):
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(bytes(number + 7))
    return root


SETS = [(CLASSES, 0), (CLASSES[:2], 2), (DAYS, 0), (FLAT, 0)]
CASES = [(way, *each) for way in WAYS for each in SETS[: 2 if way == "root" else None]]


@pytest.mark.parametrize(("way", "names", "below"), CASES)
def test_the_same_files_have_the_same_names(way, names, below, tmp_path):
    root = write(tmp_path / "set", names)
    wanted = [(name[below:], (root / name).read_bytes()) for name in names]
    found, rows = hashed(WAYS[way](root, names))
    assert found == sums(wanted, "samples")
    assert len({*rows[:, 2].tolist()}) == len(names)


def test_the_number_of_the_only_sample_that_is_left_is_no_label(tmp_path):
    root, bad = write(tmp_path / "set", CLASSES), tmp_path / "bad.jsonl"
    lines = [{"path": str(root / name), "reason": "bad"} for name in CLASSES]
    lines = [json.dumps({"index": index, **line}) for index, line in enumerate(lines[:2])]
    bad.write_text("\n".join(lines))
    files = [str(root / name) for name in CLASSES]
    assert hashed({"files": files, "exclude": bad})[1][:, 5].tolist() == [0]


def test_other_readers_name_files_alike(tmp_path):
    root, parts = write(tmp_path / "set", ["p1/0", "p2/0"]), ("p1", "p2")
    for part in parts:
        np.save(root / part / "0.npy", np.arange(3))
        write_tar(root / part / "0.tar", [("1.jpg", b"one")])
    names = [f"{part}/0.npy" for part in parts]
    wanted = sums([(it, (root / it).read_bytes()) for it in names], "samples")
    assert hashed({"files": [f"{root}/{it}" for it in names]}, "numpy")[0] == wanted
    assert hashed({"file_root": str(root), "file_filter": "*.npy"}, "numpy")[0] == wanted
    found, _ = hashed({"paths": [f"{root}/{it}/0.tar" for it in parts], "ext": "jpg"}, "webdataset")
    assert found == sums_of([[(f"{it}/0.tar", 512, b"one")] for it in parts], "samples")
    columns = {"image": ["p1/0.npy", "p2/0.npy"], "mask": ["p1/0", "p2/0"]}
    files = {name: [f"{root}/{it}" for it in its] for name, its in columns.items()}
    pieces = [
        [(it, 0, (root / it).read_bytes()) for it in its]
        for its in zip(*columns.values(), strict=True)
    ]
    assert hashed({"files": files}, "columns")[0] == sums_of(pieces, "samples")
