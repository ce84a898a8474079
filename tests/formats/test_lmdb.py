"""Where the values of LMDB files are. The oracle is py-lmdb, LMDB's own library."""

import os
import re
import shutil
import struct
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import lmdb
import pytest

from dali_storage.contract.errors import ContainerChangedError
from dali_storage.formats.lmdb import index, pages
from tests.kit.databases import write_lmdb
from tests.kit.process import open_files
from tests.kit.tiers import by_tier

PAGE = os.sysconf("SC_PAGESIZE")


def values_of(path):
    """The values that are found in a file."""
    found, content = pages.scan(os.fsencode(path)), Path(path).read_bytes()
    places = zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
    return [content[start : start + size] for start, size in places]


def key(random, longest):
    if random.random() < 0.5:
        return b"%08d" % random.randrange(10**8)
    return random.randbytes(random.randint(1, longest))


def fill(random, database):
    """Some transactions, with updates to other sizes, deletions and aborts."""
    sizes = random.choice(
        [(0, 40), (0, 3000), (1500, 2600), (0, 20_000), (4000, 4200), (100, 200_000)]
    )
    longest = random.choice([1, 8, 9, 33, 200, 511])
    count = random.choice([0, 1, 5, 50, 400, 3000])
    keys: list[bytes] = []
    for _ in range(random.randint(1, 6)):
        transaction = database.begin(write=True)
        for _ in range(min(count, 60 if sizes[1] > 50_000 else count) // 3 + bool(count)):
            kind = random.random()
            if kind < 0.15 and keys:
                transaction.delete(random.choice(keys))
                continue
            keys.append(random.choice(keys) if kind < 0.3 and keys else key(random, longest))
            transaction.put(keys[-1], random.randbytes(random.randint(*sizes)))
        (transaction.abort if random.random() < 0.1 else transaction.commit)()
    if random.random() < 0.1:
        with database.begin(write=True) as transaction:
            transaction.drop(database.open_db(None), delete=False)


def test_values_are_those_of_lmdb_in_its_order(tmp_path):
    seen = Counter[str]()
    for seed in range(by_tier(15, 300)):
        random = Random(seed)
        options = {"subdir": random.random() < 0.5, "writemap": random.random() < 0.2}
        place = tmp_path / str(seed)
        with lmdb.open(str(place), map_size=1 << 27, sync=False, **options) as database:
            fill(random, database)
            database.sync(True)
            with database.begin() as transaction:
                expected = [bytes(value) for _, value in transaction.cursor()]
                depth = transaction.stat(database.open_db(None))["depth"]
            file = place / "data.mdb" if options["subdir"] else place
            assert values_of(file) == expected, seed
            seen[f"depth {depth}"] += 1
            seen[f"meta page {database.info()['last_txnid'] % 2}"] += 1
        shutil.rmtree(place, ignore_errors=True) or place.unlink(missing_ok=True)
    assert {"depth 0", "depth 1", "depth 2", "meta page 0", "meta page 1"} <= {*seen}


def file_of_pages(size):
    """A file with pages of `size` bytes, by the layout: a leaf, and a value in pages of its own."""

    def meta(number, transaction):
        free = struct.pack("<IHHQQQQQ", size, 8, 0, 0, 0, 0, 0, 2**64 - 1)
        main = struct.pack("<IHHQQQQQ", 0, 0, 1, 0, 1, 2, 2, 2)
        head = struct.pack("<QHHHH", number, 0, 8, 0, 0) + struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 0)
        return (head + free + main + struct.pack("<QQ", 4, transaction)).ljust(size, b"\0")

    inner = struct.pack("<HHHH", 5, 0, 0, 1) + b"a" + b"small" + b"\0\0"
    apart = struct.pack("<HHHH", size + 100 & 0xFFFF, size + 100 >> 16, 1, 1) + b"b"
    apart += struct.pack("<Q", 3) + b"\0"
    nodes = [size - len(inner), size - len(inner) - len(apart)]
    leaf = struct.pack("<QHHHHHH", 2, 0, 2, 20, nodes[1], *nodes).ljust(nodes[1], b"\0")
    big = struct.pack("<QHHI", 3, 0, 4, 2) + b"x" * (size + 100)
    return meta(0, 4) + meta(1, 3) + leaf + apart + inner + big.ljust(2 * size, b"\0")


@pytest.mark.parametrize("size", [512, 8192, 65536])
def test_pages_may_have_any_size(tmp_path, size):
    (tmp_path / "data.mdb").write_bytes(file_of_pages(size))
    assert values_of(tmp_path / "data.mdb") == [b"small", b"x" * (size + 100)]


def test_neighbours_are_one_read_and_values_are_not_read(tmp_path, monkeypatch):
    read, real = list[int](), os.preadv
    monkeypatch.setattr(os, "preadv", lambda *it: (read.append(it[2] // PAGE), real(*it))[1])
    small = write_lmdb(tmp_path / "small", [bytes(100)] * 5000)
    assert len(values_of(small / "data.mdb")) == 5000
    assert len(read) < 12  # of some 135 pages
    read.clear()
    big = write_lmdb(tmp_path / "big", [bytes(3 * PAGE)] * 500)
    assert len(values_of(big / "data.mdb")) == 500
    assert len(read) <= 12  # of 2,000 pages


def commit(path):
    with lmdb.open(str(path.parent), map_size=1 << 24) as base, base.begin(write=True) as it:
        it.put(b"%08d" % 3, b"x" * 100)
    os.utime(path, ns=(1, 1))  # as if it had not been written


# --- what is refused ----------------------------------------------------------------------------


def transactions(place):
    """A file of 300 values, after three transactions."""
    with lmdb.open(str(place), map_size=1 << 24, sync=False) as database:
        for number in range(3):
            with database.begin(write=True) as transaction:
                for value in range(300):
                    transaction.put(b"%05d" % value, bytes([number]) * value * 20)
    return (place / "data.mdb").read_bytes()


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return transactions(tmp_path_factory.mktemp("good") / "lmdb")


def put(content, *places, value):
    changed = bytearray(content)
    for at in places:
        changed[at : at + len(value)] = value
    return bytes(changed)


def main(content, at, form, value):
    """The file with another field in both descriptions of the main database."""
    return put(content, 88 + at, PAGE + 88 + at, value=struct.pack(form, value))


def root(content):
    """The number of the root page."""
    read = partial(struct.unpack_from, "<QQQ", content)  # the root, the last page, the transaction
    pages = [read(at + 128) for at in (0, PAGE)]
    return max(pages, key=lambda it: it[2])[0]


DAMAGED = {
    "empty": (lambda it: b"", "not an LMDB"),
    "text": (lambda it: b"text\n" * 5000, "not an LMDB: the magic number is missing"),
    "big-endian": (lambda it: put(it, 16, value=it[16:20][::-1]), "in another byte order; dump"),
    "32 bits": (lambda it: put(it, 12, value=it[16:20] + b"\1\0\0\0"), "by a 32-bit machine"),
    "version": (lambda it: put(it, 20, PAGE + 20, value=b"\xe7\3\0\0"), "version 999, not 1 as of"),
    "several values": (lambda it: main(it, 4, "<H", 4), "several values each .MDB_DUPSORT"),
    "page size": (lambda it: put(it, 40, value=struct.pack("<I", 4097)), "page size is 4,097"),
    "no meta page": (lambda it: put(it, PAGE, value=bytes(PAGE)), "a meta page is missing"),
    "cut in the meta page": (lambda it: it[: PAGE + 100], "it ends within its meta pages"),
    "cut in half": (lambda it: it[: len(it) // 2], r"does not exist|its root is page"),
    "depth": (lambda it: main(it, 6, "<H", 33), "its meta page is wrong"),
    "no depth": (lambda it: main(it, 6, "<H", 0), "its root is page"),
    "less depth": (lambda it: main(it, 6, "<H", 1), "is of another kind"),
    "more depth": (lambda it: main(it, 6, "<H", 3), "is of another kind"),
    "entries": (lambda it: main(it, 32, "<Q", 301), "it has 300 values, but its meta page .* 301"),
    "no root": (lambda it: main(it, 40, "<Q", 2**64 - 1), "its root is page 18,446"),
    "root beyond": (lambda it: main(it, 40, "<Q", 2**40), "its root is page 1,099,511,627,776"),
    "root is a meta page": (lambda it: main(it, 40, "<Q", 1), "its root is page 1"),
    "another number": (lambda it: put(it, root(it) * PAGE, value=b"\xff"), "number of another"),
    "list": (lambda it: put(it, root(it) * PAGE + 12, value=b"\7\0"), "has a wrong list"),
    "long list": (lambda it: put(it, root(it) * PAGE + 12, value=b"\0\x0f"), "has a wrong list"),
    "node": (lambda it: put(it, root(it) * PAGE + 16, value=b"\xfe\xff"), "a node outside of it"),
    "child": (lambda it: put(it, node(it, 0), value=b"\xff" * 4), "page 4,294,967,295 does not"),
    "twice": (lambda it: put(it, node(it, 1), value=it[node(it, 0) :][:4]), "is twice in the tree"),
    "named": (lambda it: put(it, leaf(it, 0) + 4, value=b"\2"), "it has databases with names"),
    "several": (lambda it: put(it, leaf(it, 0) + 4, value=b"\4"), "it has several values for a k"),
    "value": (lambda it: put(it, leaf(it, 0), value=b"\0\x10"), "has a value beyond its end"),
}


def node(content, number, page=None):
    """Where a node of a page begins, by default of the root."""
    at = (root(content) if page is None else page) * PAGE
    return at + struct.unpack_from("<H", content, at + 16 + 2 * number)[0]


def leaf(content, number):
    """Where a node of the first leaf begins."""
    return node(content, number, struct.unpack_from("<I", content, node(content, 0))[0])


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_that_cannot_be_read_is_refused_by_name(case, good, tmp_path):
    damage, message = DAMAGED[case]
    path = tmp_path / "data.mdb"
    path.write_bytes(damage(good))
    with pytest.raises(ValueError, match=f"^'{re.escape(str(path))}': .*{message}"):
        pages.scan(os.fsencode(path))
    assert not open_files(tmp_path)


def test_a_value_in_pages_that_do_not_exist_is_refused(tmp_path):
    path = write_lmdb(tmp_path / "big", [bytes(9000)] * 9) / "data.mdb"
    good = path.read_bytes()
    where = node(good, 8) + 8 + 8  # behind the key: the number of its first page
    for number, size in ((2**64 - 1, 9000), (1, 9000), (2**40, 9000), (3, 2**31)):
        wrong = put(good, where, value=struct.pack("<Q", number))
        path.write_bytes(put(wrong, node(good, 8), value=struct.pack("<I", size)))
        with pytest.raises(ValueError, match=r"page \d+ has a value in pages that do not exist"):
            pages.scan(os.fsencode(path))


@pytest.mark.parametrize("options", [{}, {"dupsort": True}])
def test_databases_with_names_are_refused(options, tmp_path):
    with lmdb.open(str(tmp_path), map_size=1 << 20, max_dbs=1) as database:
        named = database.open_db(b"named", **options)
        with database.begin(write=True, db=named) as transaction:
            transaction.put(b"key", b"value")
    with pytest.raises(ValueError, match="databases with names; write one database with a key"):
        pages.scan(os.fsencode(tmp_path / "data.mdb"))


def test_wrong_bytes_are_refused_or_give_places_within_the_file(good, tmp_path):
    random, path, found = Random(1), tmp_path / "data.mdb", Counter[bool]()
    path.write_bytes(good)
    for _ in range(by_tier(100, 3000)):
        content = bytearray(good)
        for _ in range(random.randint(1, 6)):
            reach = random.choice([200, 2 * PAGE + 200, len(content)])
            content[random.randrange(reach)] = random.randrange(256)
        with open(path, "r+b") as file:  # to write it anew takes ten times as long
            file.write(content)
        try:
            values = pages.scan(os.fsencode(path))
        except ValueError:
            found[False] += 1
            continue
        found[True] += 1
        assert (values.starts >= 0).all()
        assert (values.starts + values.sizes <= len(content)).all()
    assert found[True] > found[False] > 3


def append(path):
    with open(path, "ab") as file:
        file.write(bytes(PAGE))


@pytest.mark.parametrize("change", [commit, append], ids=["a transaction", "without one"])
def test_a_file_that_is_written_while_it_is_read_is_refused(change, tmp_path, monkeypatch):
    path = write_lmdb(tmp_path / "db", [bytes(100)] * 500) / "data.mdb"
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *given: (change(path), real(*given))[1])
    words = "was written while its pages were read"
    with pytest.raises(ContainerChangedError, match=words) as info:
        pages.scan(os.fsencode(path))
    assert info.value.filename == str(path)
    assert not open_files(tmp_path)


# --- indexes ------------------------------------------------------------------------------------


def make_index(path, to):
    to.write_bytes(b"".join(index.index(os.fsencode(path), lambda position: None)))
    return os.fsencode(to)


def found_of(path, index_path):
    catalog = index.find([os.fsencode(path)], None if index_path is None else [index_path])
    assert catalog.ranges is not None
    return catalog.ranges.starts.tolist(), catalog.ranges.sizes.tolist(), catalog.path(0)


def test_an_index_says_what_the_file_says(tmp_path, monkeypatch):
    place = write_lmdb(tmp_path / "db", [b"x" * size for size in range(0, 9000, 30)])
    made = make_index(place / "data.mdb", tmp_path / "x.idx")
    expected = found_of(place, None)
    monkeypatch.setattr(pages, "scan", None)
    assert found_of(place, made) == found_of(place / "data.mdb", made) == expected
    assert expected[2] == os.fsencode(place / "data.mdb")


def touch(path):
    os.utime(path, ns=(2, 2))


def enlarge(path):
    append(path)
    os.utime(path, ns=(1, 1))


def replace_by_text(path):
    path.write_bytes(b"text".ljust(path.stat().st_size))
    os.utime(path, ns=(1, 1))


def replace_by_another(path):
    """With the same meta pages, and values at the same places."""
    before = path.read_bytes()
    shutil.copy(write_lmdb(path.parent / "other", [b"y" * 100] * 100) / "data.mdb", path)
    assert path.read_bytes()[40:152] == before[40:152]
    os.utime(path, ns=(1, 1))


def replace_by_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


REPLACED = [replace_by_text, replace_by_another, replace_by_a_pipe]


@pytest.mark.parametrize("change", [commit, touch, enlarge, *REPLACED])
def test_an_index_of_another_state_of_its_file_is_refused(change, tmp_path):
    path = write_lmdb(tmp_path / "db", [b"x" * 100] * 100) / "data.mdb"
    os.utime(path, ns=(1, 1))
    made = make_index(path, tmp_path / "x.idx")
    found_of(path, made)
    change(path)
    with pytest.raises(ContainerChangedError, match=r"index '.*x.idx' is of another file") as info:
        found_of(path, made)
    assert info.value.filename == str(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda it: b"", "is not an index of an LMDB file"),
        (lambda it: b"0 100\n", "is not an index of an LMDB file; rebuild the index"),
        (lambda it: it[:8], "has layout 0, this release reads 1"),
        (lambda it: put(it, 8, value=b"\2"), "has layout 2, this release reads 1"),
        (lambda it: it[:100], "is damaged"),
        (lambda it: it[:-12], "is damaged"),
        (lambda it: it + b"\0", "is damaged"),
        (lambda it: put(it, 150, value=b"\xff"), "is damaged: truncated, or with a wrong CRC"),
    ],
)
def test_a_damaged_index_is_refused_by_name(damage, message, tmp_path):
    place = write_lmdb(tmp_path / "db", [b"x" * 100] * 100)
    made = make_index(place / "data.mdb", tmp_path / "x.idx")
    Path(os.fsdecode(made)).write_bytes(damage(Path(os.fsdecode(made)).read_bytes()))
    with pytest.raises(ValueError, match=f"^index_path '.*x.idx' {message}"):
        found_of(place, made)
    assert not open_files(tmp_path)
