"""Samples that the storage itself knows: readers.file() without file_root, files and file_list."""

import gc
import os
import weakref

import pytest
from nvidia.dali import fn

from bmap_tools import create
from dali_storage import readers
from dali_storage.backends.memory import MemoryReader
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


class ShelfReader(MemoryReader):
    """Offers the samples of the directory that its option names."""

    refuses = 0
    opened_beside_their_trees: tuple[bool, ...] = ()

    def __init__(self, catalog, *, directory):
        if ShelfReader.refuses:
            ShelfReader.refuses -= 1
            raise OSError("the storage is busy")
        ShelfReader.opened_beside_their_trees += tuple(known() is not None for known in Shelf.made)
        super().__init__(catalog)

    @classmethod
    def tree(cls, **options):
        return Shelf(options["directory"])


@pytest.fixture
def shelf(monkeypatch):
    monkeypatch.setattr(Shelf, "made", ())
    monkeypatch.setattr(ShelfReader, "refuses", 0)
    monkeypatch.setattr(ShelfReader, "opened_beside_their_trees", ())


def on_shelf(root, **arguments):
    options = {"directory": str(root)}
    return build(readers.file, backend=ShelfReader, backend_options=options, **arguments)


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
