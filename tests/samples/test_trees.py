"""Samples that the storage itself knows: readers.file() without file_root, files and file_list."""

import gc
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import fn

from bmap_tools import create
from dali_storage import Catalog, Reader, readers
from dali_storage.contract import registry
from dali_storage.contract.errors import MapNotChecked
from tests.kit import devices
from tests.kit.dali import build, take

pytestmark = pytest.mark.usefixtures("pipelines_end", "shelf")


class Shelf:
    """A tree: the files in a directory, as they were when it was listed."""

    made: tuple[weakref.ref["Shelf"], ...] = ()

    def __init__(self, directory: str) -> None:
        self.root = os.fsencode(directory)
        self._listing = [(path, names) for path, _, names in os.walk(self.root)]
        Shelf.made += (weakref.ref(self),)

    def directories(self):
        return [os.path.basename(path) for path, _ in self._listing[1:]]

    def files(self, directory):
        return dict(self._listing)[os.path.join(self.root, directory)]


class ShelfReader(Reader):
    """Offers the samples of the directory that its option names."""

    refuses = 0
    opened_beside_their_trees: tuple[bool, ...] = ()

    def __init__(self, catalog: Catalog, *, directory: str, suffix: str = "") -> None:
        if ShelfReader.refuses:
            ShelfReader.refuses -= 1
            raise OSError("the storage is busy")
        ShelfReader.opened_beside_their_trees += tuple(known() is not None for known in Shelf.made)
        self._contents = [
            Path(os.fsdecode(catalog.path(sample))).read_bytes() for sample in range(len(catalog))
        ]

    @classmethod
    def tree(cls, **options):
        return Shelf(options["directory"])

    def sizes(self, samples, lane):
        return np.array([len(self._contents[sample]) for sample in samples], np.int64)

    def read(self, batch, lane):
        for sample, start in zip(batch.samples, batch.offsets, strict=True):
            content = np.frombuffer(self._contents[sample], np.uint8)
            batch.buffer[start : start + content.size] = content

    def close(self):
        pass


@pytest.fixture
def shelf(tmp_path_factory, monkeypatch):
    """An installed distribution that offers the backend."""
    installed = tmp_path_factory.mktemp("installed")
    metadata = installed / "shelf-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1\n")
    offer = f"[{registry.GROUP}]\nshelf = {__name__}:ShelfReader\n"
    (metadata / "entry_points.txt").write_text(offer)
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setattr(Shelf, "made", ())
    monkeypatch.setattr(ShelfReader, "refuses", 0)
    monkeypatch.setattr(ShelfReader, "opened_beside_their_trees", ())


def on_shelf(root, **arguments):
    return build(
        readers.file, backend="shelf", backend_options={"directory": str(root)}, **arguments
    )


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"file_filters": "*1.jpg"},
        {"dir_filters": ["class0", "class2"], "file_filters": ["*.TXT", "*.jpg"]},
        {"file_filters": ["*.TXT", "*4.jpg"], "case_sensitive_filter": True},
        {"random_shuffle": True, "seed": 3, "num_shards": 2, "shard_id": 1},
    ],
    ids=str,
)
def test_samples_of_a_tree_are_those_of_a_directory(tree, chosen):
    root = tree(20)
    (root / "class1" / "note.txt").write_bytes(b"note")
    (root / "class0a empty").mkdir()
    ours = on_shelf(root, name="R", **chosen)
    real = build(fn.readers.file, file_root=str(root), name="R", dont_use_mmap=True, **chosen)
    assert ours.reader_meta("R") == real.reader_meta("R")
    assert take(ours, 7) == take(real, 7)


def test_the_tree_is_not_used_when_the_user_names_samples(tree):
    root, other = tree(6), {"directory": "/does/not/exist"}
    (root / "list.txt").write_text("class1/0001.jpg 5\n")
    for named in (
        {"file_root": str(root)},
        {"file_list": str(root / "list.txt")},
        {"files": ["class1/0001.jpg"], "labels": [4], "file_root": str(root)},
    ):
        ours = build(readers.file, backend="shelf", backend_options=other, **named)
        assert take(ours, 2) == take(build(fn.readers.file, dont_use_mmap=True, **named), 2)
    assert Shelf.made == ()


def test_a_backend_without_a_tree_needs_a_root(tree):
    with pytest.raises(ValueError, match="one of file_root, files and file_list must be given"):
        build(readers.file, backend="python-file")


def test_a_tree_without_samples_is_refused(tree):
    root = tree(3)
    with pytest.raises(ValueError, match=f"no files found under '{root}'"):
        on_shelf(root, file_filters="*.nothing")
    with pytest.raises(ValueError, match="num_shards"):
        on_shelf(root, num_shards=4)


def test_with_lazy_init_the_tree_is_listed_at_the_first_run(tree):
    root = tree(6)
    lazy = on_shelf(root, lazy_init=True)
    assert Shelf.made == ()
    (root / "class0" / "0009.jpg").write_bytes(b"later")
    assert (b"later", 0) in take(lazy, 2)
    assert len(Shelf.made) == 1


def test_a_tree_is_kept_until_the_reader_is_open_and_no_longer(tree):
    pipeline = on_shelf(tree(6))
    assert ShelfReader.opened_beside_their_trees == (True,)
    pipeline.run()
    gc.collect()
    assert [known() for known in Shelf.made] == [None]


def test_a_tree_is_listed_again_after_the_reader_failed_to_open(tree):
    root = tree(6)
    pipeline = on_shelf(root, lazy_init=True)
    ShelfReader.refuses = 1
    with pytest.raises(OSError, match="busy"):
        pipeline.run()
    (root / "class0" / "0009.jpg").write_bytes(b"renewed")
    assert (b"renewed", 0) in take(pipeline, 2)
    assert len(Shelf.made) == 2


def test_a_required_option_of_a_backend_is_named():
    with pytest.raises(
        TypeError, match="'shelf' needs the option directory; its options are directory, suffix"
    ):
        build(readers.file, backend="shelf", lazy_init=True)


def test_an_extent_map_is_a_tree_even_if_its_file_system_is_not_mounted(tmp_path):
    bmap = str(tmp_path / "bmap.json")
    chosen = {"random_shuffle": True, "seed": 5, "file_filters": ["*.jpg", "*.TXT"]}
    ours = chosen | {"backend": "block", "backend_options": {"bmap": bmap}, "name": "R"}
    image = tmp_path / "disk.img"
    with devices.disk(tmp_path, size=32 << 20) as disk:
        root = disk.mount / "root"
        files = "a/empty/deep.jpg", "b/2.jpg", "b/1.txt", "b-c/1.JPG", "b-c/2.png", "loose.jpg"
        for name in files:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(name.encode() * 500)
        (root / "a-link").symlink_to("b")
        assert create.run(str(root), bmap, threads=1) == 0
        real = build(fn.readers.file, file_root=str(root), name="R", **chosen)
        meta, expected = real.reader_meta("R"), take(real, 4)
        mounted = build(readers.file, **ours)
        assert (mounted.reader_meta("R"), take(mounted, 4)) == (meta, expected)
        assert {label for _, label in expected} == {1, 2, 3}  # "a" uses up its label
        del mounted, real
        gc.collect()
    ours["backend_options"] = {"bmap": bmap, "uri": str(image)}
    with pytest.warns(MapNotChecked):
        elsewhere = build(readers.file, **ours)
    assert (elsewhere.reader_meta("R"), take(elsewhere, 4)) == (meta, expected)
