"""Names of samples: the same wherever files are, and different for different files."""

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
    "odd": lambda root, names: {"files": [f"{root}/x/..//{names[0]}", *names[1:]], "file_root": root},
    "half": lambda root, names: {"files": [str(root / names[0]), *names[1:]], "file_root": root},
    "list": listed,
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


@pytest.mark.parametrize("mount", ["x", "y/z"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("names", "below"), [(CLASSES, 0), (CLASSES[:2], 2), (DAYS, 0), (FLAT, 0)], ids=len
)
def test_the_same_files_have_the_same_names(names, below, way, mount, tmp_path):
    if way == "root" and names in (DAYS, FLAT):
        pytest.skip("not a tree of classes")
    root = write(tmp_path / mount, names)
    wanted = [(name[below:], (root / name).read_bytes()) for name in names]
    found, rows = hashed(WAYS[way](root, names))
    assert found == sums(wanted, "samples")
    assert len({*rows[:, 2].tolist()}) == len(names)


def test_numpy_and_containers_are_named_alike(tmp_path):
    for mount in ("x", "y/z"):
        root = tmp_path / mount
        for part in ("p1", "p2"):
            (root / part).mkdir(parents=True)
            np.save(root / part / "0.npy", np.arange(3))
            write_tar(root / part / "0.tar", [("1.jpg", b"one")])
        arrays = [f"{root}/{part}/0.npy" for part in ("p1", "p2")]
        wanted = sums([(it[len(f"{root}/") :], open(it, "rb").read()) for it in arrays], "samples")
        for given in ({"files": arrays}, {"file_root": str(root), "files": ["p1/0.npy", "p2/0.npy"]}):
            found, _ = hashed(given, "numpy")
            assert found["count"] == 2
            assert found["sum"] == hashed({"files": arrays}, "numpy")[0]["sum"]
        tars = [f"{root}/{part}/0.tar" for part in ("p1", "p2")]
        found, rows = hashed({"paths": tars, "ext": "jpg"}, "webdataset")
        assert found == sums_of([[(f"{it}/0.tar", 512, b"one")] for it in ("p1", "p2")], "samples")
    del wanted
