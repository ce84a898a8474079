"""Files on disks and their maps, and the promises about disks that readers of maps share."""

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import bmap_tools
from dali_storage.backends.block import BlockReader
from dali_storage.backends.linux import aio
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable, MapNotChecked
from dali_storage.contract.ranges import Ranges
from dali_storage.contract.reader import Reader
from dali_storage.samples.discovery import from_directory, from_files, from_tree
from dali_storage.testing import MappedReaderTests, SnapshotRangeTests, fill, make_batch, read
from dali_storage.testing.probes import raises_naming
from tests.kit.devices import Disk, disk, loop_device, run
from tests.kit.layouts import contents_of, make_hostile_files, make_map
from tests.kit.process import descriptors, status_of_fork

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="loop devices and mounting need root: run the tests as root"
)


class Mapped(NamedTuple):
    """Files on a disk, and their map."""

    catalog: Catalog
    bmap: Path

    @property
    def contents(self) -> list[bytes]:
        return contents_of(self.catalog)

    def open(self, backend: type[Reader] = BlockReader, **options: Any) -> Reader:
        return backend(self.catalog, bmap=self.bmap, **options)

    def read(self, backend: type[Reader] = BlockReader, **options: Any) -> list[bytes]:
        """The bytes of all samples, by a reader that is opened and closed."""
        with self.open(backend, **options) as reader:
            return read(reader, np.arange(len(self.catalog)))


def map_files(directory: Path, bmap: Path) -> Mapped:
    """The files of a directory of class directories, mapped."""
    return Mapped(from_directory(directory, file_filters="*"), make_map(directory, bmap))


def from_map(bmap: Path, filters: str = "*") -> Mapped:
    """The files that a map names, whose file system need not be mounted."""
    return Mapped(from_tree(BlockReader.tree(bmap=bmap), file_filters=filters), bmap)


Row = tuple[int, int, int]
"""A range: file, start, size."""


def catalog_of(paths: Sequence[Path], rows: Sequence[Row]) -> Catalog:
    named = from_files(paths)
    files, starts, sizes = np.array(rows, np.int64).reshape(-1, 3).T
    ranges = Ranges.of_columns(files, starts, sizes)
    return Catalog(named.root, named.names, named.offsets, np.empty(0, np.int32), ranges)


def random_rows(paths: Sequence[Path], count: int) -> list[Row]:
    """Ranges of any alignment: most of them short, some of the whole file or empty."""
    random = np.random.default_rng(1)
    rows: list[Row] = []
    for _ in range(count):
        file = int(random.integers(len(paths)))
        nbytes = paths[file].stat().st_size
        start = int(random.integers(nbytes + 1))
        most = [0, 100, 9000, 200_000, nbytes][random.integers(5)]
        rows.append((file, start, int(min(random.integers(most + 1), nbytes - start))))
        if random.random() < 0.3:  # a neighbour, behind what a header takes
            start = sum(rows[-1][1:]) + 512
            rows.append((file, start, min(700, nbytes - start)) if start < nbytes else rows[-1])
    return rows


def expected(paths: Sequence[Path], rows: Sequence[Row]) -> list[bytes]:
    contents = [path.read_bytes() for path in paths]
    return [contents[file][start : start + size] for file, start, size in rows]


def require_right(reader: Reader, catalog: Catalog, contents: Sequence[bytes]) -> None:
    """In random batches of all sizes."""
    random = np.random.default_rng(2)
    for count in (1, 7, 64, 300):
        samples = random.integers(0, len(contents), count)
        assert read(reader, samples, catalog) == [contents[sample] for sample in samples]
    assert read(reader, np.arange(len(contents)), catalog) == contents


@contextmanager
def unmounted(made: Disk) -> Iterator[None]:
    run("umount", str(made.mount))
    try:
        yield
    finally:
        run("mount", made.device, str(made.mount))


@contextmanager
def nothing_stays_open(*paths: object) -> Iterator[None]:
    """Assert that the block leaves no descriptor of the files behind that it had not before."""
    before = [descriptors(str(path)) for path in paths]
    yield
    assert all(descriptors(str(path)) <= had for path, had in zip(paths, before, strict=True))


class OnDisk(SnapshotRangeTests, MappedReaderTests):
    """The promises of `backend` on its own disk, opened by `uri()`."""

    backend: ClassVar[type[Reader]]
    file_system = "ext4"
    sector = 512
    partition = False
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def disk(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
        directory = tmp_path_factory.mktemp("disk")
        with disk(directory, cls.file_system, sector=cls.sector, partition=cls.partition) as made:
            yield made

    @pytest.fixture
    def directory(self, disk: Disk, tmp_path: Path) -> Iterator[Path]:
        self.disk_used, self.bmap = disk, tmp_path / "bmap.json"
        directory = disk.mount / tmp_path.name
        directory.mkdir()
        yield directory
        shutil.rmtree(directory)  # the disk is not large

    def uri(self) -> str | Path | None:
        return None

    def open(self, catalog: Catalog) -> Reader:
        make_map(catalog.root, self.bmap)
        return self.reopen(self, catalog)

    def reopen(self, reader: object, catalog: Catalog) -> Reader:
        return Mapped(catalog, self.bmap).open(self.backend, uri=self.uri(), **self.options)


# A file system, the bytes of a sector, and whether it is on a partition.
DISKS = [("ext4", 512, False), ("xfs", 4096, True)]
OTHER_DISKS = [("ext4", 512, True), ("ext4", 4096, False), ("ext4", 4096, True)]
OTHER_DISKS += [("xfs", 512, False), ("xfs", 512, True), ("xfs", 4096, False)]


def break_aio(
    patch: pytest.MonkeyPatch,
    position: int,
    outcome: str = "error",
    times: int = 10**9,
    *,
    merges: bool = False,
) -> list[int]:
    """As `RawDiskTests.break_sector()`; `merges`: the kernel merges all reads of a submission."""
    whole, tries = aio.read, list[int]()

    def fail(depth: int, fd: int, iovecs: Any, offsets: Any) -> Any:
        results = whole(depth, fd, iovecs, offsets)
        hit = (offsets <= position) & (offsets + iovecs["len"][:, 0].astype(np.int64) > position)
        if hit.any() and len(tries) < times:
            tries.append(position)
            results[hit | merges] = {"error": -errno.EIO, "short": 512, "nothing": 0}[outcome]
        return results

    patch.setattr("dali_storage.backends.linux.aio.read", fail)
    return tries


class RawDiskTests:
    """The promises of a backend that reads disks, on hostile and broken ones, once for each `io`.

    Attributes:
        backend: the class.
        ways: options to read with; each must read the same.
        retries: options, each with another number of times that a read is repeated if it fails.
        outcomes: of reads of a bad sector, and their words in the error.
    """

    backend: ClassVar[type[Reader]]
    ways: ClassVar[list[dict[str, Any]]] = [{}]
    retries: ClassVar[list[dict[str, int]]] = [{}]
    outcomes: ClassVar[dict[str, str]] = {
        "error": "cannot read",
        "short": "short read: 512 of",
        "nothing": "short read: 0 of",
    }
    disks: ClassVar[list[Any]] = DISKS

    def break_sector(
        self, patch: pytest.MonkeyPatch, position: int, outcome: str = "error", times: int = 10**9
    ) -> list[int]:
        """Have reads of a byte of the disk fail, so often, with one of `outcomes`.

        Returns a list that grows with each read that fails.
        """
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "made_of" in metafunc.fixturenames:
            metafunc.parametrize("made_of", self.disks, ids=str)
        if "outcome" in metafunc.fixturenames:
            metafunc.parametrize("outcome", self.outcomes)

    def open(self, mapped: Mapped, **options: Any) -> Reader:
        return mapped.open(self.backend, **self.ways[0], **options)

    def test_hostile_layouts_are_read_right(
        self, tmp_path: Path, made_of: tuple[str, int, bool]
    ) -> None:
        file_system, sector, partition = made_of
        with disk(tmp_path, file_system, sector=sector, partition=partition) as made:
            make_hostile_files(made.mount / "class")
            mapped = map_files(made.mount, tmp_path / "bmap.json")
            assert len(bmap_tools.load(mapped.bmap).extents) > 400
            contents = mapped.contents
            paths = sorted((made.mount / "class").iterdir())
            rows = random_rows(paths, 400)
            ranges, parts = Mapped(catalog_of(paths, rows), mapped.bmap), expected(paths, rows)
            for way in self.ways:
                for uri in (None, made.device, made.disk, made.image):
                    assert mapped.read(self.backend, uri=uri, **way) == contents
                    with ranges.open(self.backend, uri=uri, **way) as reader:
                        require_right(reader, ranges.catalog, parts)
        unchecked = pytest.warns(MapNotChecked, match="cannot check whether")
        with loop_device(made.image, sector=sector) as uri, unchecked:
            assert from_map(mapped.bmap).read(self.backend, uri=uri, **way) == contents
            with ranges.open(self.backend, uri=uri, **way) as reader:
                require_right(reader, ranges.catalog, parts)

    def test_a_file_beyond_2_tib_is_read_right(self, tmp_path: Path) -> None:
        with disk(tmp_path, "xfs", size=5 << 40, mkfs=("-l", "size=64m")) as made:
            random = np.random.default_rng(0)
            for group in range(16):  # XFS puts directories into its allocation groups in turn
                (made.mount / f"{group:02d}").mkdir()
                (made.mount / f"{group:02d}" / "file").write_bytes(random.bytes(100_000 + group))
            mapped = map_files(made.mount, tmp_path / "bmap.json")
            assert bmap_tools.load(mapped.bmap).extents[:, 1].max() > 2 << 40
            contents = mapped.contents
            for way in self.ways:
                for uri in (made.disk, made.image):
                    assert mapped.read(self.backend, uri=uri, **way) == contents

    def test_a_user_who_may_not_read_the_device_is_told_the_remedies(
        self, mapped: Mapped, ext4: Disk
    ) -> None:
        for directory in mapped.bmap.parents:
            if not os.stat(directory).st_mode & stat.S_IXOTH:
                os.chmod(directory, 0o755)
        self.backend.tree(bmap=mapped.bmap)  # the child cannot import
        self.backend.unavailable()

        def open_as_nobody() -> None:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            words = "no permission to read /dev/.*run as root.*setfacl.*image file"
            with pytest.raises(BackendUnavailable, match=words):
                mapped.open(self.backend, uri=ext4.device)

        assert status_of_fork(open_as_nobody) == 0

    def test_a_closed_reader_is_refused(self, mapped: Mapped) -> None:
        with self.open(mapped) as reader:
            batch = make_batch(reader, np.arange(3))
        with pytest.raises(ValueError, match="closed"):
            fill(reader, batch)

    def test_a_bad_sector_is_reported_with_sample_extent_and_lba(
        self, mapped: Mapped, monkeypatch: pytest.MonkeyPatch, outcome: str
    ) -> None:
        contents = mapped.contents
        logical, physical, length = bmap_tools.load(mapped.bmap).extents[1].tolist()
        what = f": {self.outcomes[outcome]} {length} bytes at LBA {physical // 512} of /dev/loop"
        extent = f"(extent 0, logical {logical}, physical {physical}, length {length})"
        for options in self.retries:
            with monkeypatch.context() as patch, self.open(mapped, **options) as reader:
                tries = self.break_sector(patch, physical + 2 * 4096 + 512, outcome)
                with raises_naming(OSError, mapped.catalog.path(1)) as caught:
                    read(reader, np.array([0, 2, 1]))
                assert len(tries) == 1 + options.get("retries", 1)
                assert read(reader, np.array([0, 2])) == [contents[0], contents[2]]
            assert caught.value.errno == errno.EIO
            assert what in str(caught.value)
            assert extent in str(caught.value)

    def test_the_first_bad_sample_of_a_batch_is_named(
        self, mapped: Mapped, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its neighbours on the disk are read by the same command, and are not blamed."""
        starts, lengths = bmap_tools.load(mapped.bmap).extents[:, 1:].T
        assert (starts[:-1] + lengths[:-1] == starts[1:]).any()
        with self.open(mapped) as reader:
            for bad in (2, 0):
                self.break_sector(monkeypatch, int(starts[bad]))
                for samples in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
                    first = next(sample for sample in samples if sample in (2, bad))
                    with raises_naming(OSError, mapped.catalog.path(first)) as caught:
                        read(reader, np.array(samples))
                    assert f"at LBA {starts[first] // 512} of" in str(caught.value)

    def test_a_read_that_fails_no_more_often_than_it_is_retried_is_right(
        self, mapped: Mapped, monkeypatch: pytest.MonkeyPatch, outcome: str
    ) -> None:
        position = int(bmap_tools.load(mapped.bmap).extents[1, 1])
        for options in self.retries:
            times = options.get("retries", 1)
            with monkeypatch.context() as patch, self.open(mapped, **options) as reader:
                tries = self.break_sector(patch, position, outcome, times)
                assert read(reader, np.arange(3)) == mapped.contents
                assert len(tries) == times
