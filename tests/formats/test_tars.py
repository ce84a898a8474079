"""The files in tars of every kind; the oracle is the standard library's tarfile."""

import bz2
import gzip
import io
import lzma
import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvidia.dali import fn

from dali_storage.formats.lmdb import pages
from dali_storage.formats.tar import archive
from dali_storage.formats.tar.archive import Member
from dali_storage.formats.tfrecord import index
from tests.kit.containers import write_tar
from tests.kit.parity import build, contents
from tests.kit.process import open_files

FLAVOURS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
GIB = 1 << 30


def found(path):
    return [*archive.members(os.fsencode(path))]


def expected(path):
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as tar:
        files = [(os.fsencode(each.name), each) for each in tar if each.isreg()]
    return [Member(name.lstrip(b"/"), each.offset_data, each.size) for name, each in files]


def change(path, offset, data):
    """Overwrite a field of the header in the first block, and make its checksum right."""
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    path.write_bytes(content)


names = st.lists(
    st.one_of(st.text("ab./é", min_size=1), st.text(st.characters(codec="utf-8"), min_size=1)),
    min_size=1,
    max_size=4,
).map(lambda parts: "/".join(parts).replace("\0", "").replace("..", "").strip("/") or "a")


@given(
    flavour=st.sampled_from(FLAVOURS),
    members=st.lists(st.tuples(names, st.binary(max_size=1100)), max_size=5),
    long=st.lists(st.integers(0, 4)),
)
def test_files_of_a_tar_are_those_of_tarfile(tmp_path_factory, flavour, members, long):
    path = tmp_path_factory.getbasetemp() / "any.tar"
    if flavour == tarfile.USTAR_FORMAT:
        members = [(name.encode()[-60:].decode(errors="ignore"), data) for name, data in members]
    else:
        members = [
            ("long" * 30 * (i in long) + name, data) for i, (name, data) in enumerate(members)
        ]
    write_tar(path, members, flavour)
    assert found(path) == expected(path)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_names_of_files_need_not_be_text(tmp_path, flavour):
    write_tar(tmp_path / "t", [("\udcff\udc80.jpg", b"1")], flavour)
    assert [member.name for member in found(tmp_path / "t")] == [b"\xff\x80.jpg"]


@pytest.mark.parametrize(
    "kind",
    [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"4"],
)
def test_members_that_are_no_files_are_left_out(tmp_path, kind):
    with tarfile.open(tmp_path / "t", "w") as tar:
        for name, each in (("a.jpg", kind), ("b.jpg", tarfile.REGTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = each, "b.jpg"
            tar.addfile(info)
    change(tmp_path / "t", 124, b"00000002000\0")  # a size, as some writers give to hard links
    assert [member.name for member in found(tmp_path / "t")] == [b"b.jpg"]
    with open(tmp_path / "t", "r+b") as file:
        file.truncate(512)
    assert found(tmp_path / "t") == []


@pytest.mark.parametrize("kind", [b"2", b"5", b"g", b"x", b"Z"])
def test_the_mode_of_a_member_does_not_make_it_a_file(tmp_path, kind):
    record = b"15 path=1.long\n"
    path = write_tar(tmp_path / "t", [("1.x", record), ("1.y", b"y")])
    change(path, 100, b"0100644\0")  # with the bits of a regular file
    change(path, 156, kind)
    real = build(fn.readers.webdataset, 1, {}, paths=str(path), ext=["x", "y"])
    assert contents(real) == [[record], [b"y"]]
    assert found(path) == [Member(b"1.long" if kind == b"x" else b"1.y", 1536, 1)]


D, A = Member(b"d/", 512, 0), Member(b"d/a.jpg", 1024, 1)
TWO = [("a.jpg", b"1" * 600), ("b.jpg", b"2")]


@pytest.mark.parametrize(
    ("members", "changes", "expected"),
    [
        ([("d", b""), ("d/a.jpg", b"1")], {0: b"d/"}, [D, A]),
        ([("d", b""), ("d/a.jpg", b"1")], {0: b"d/", 156: b"\0"}, [A]),  # a directory of an old tar
        ([("a", b"1")], {345: b"14717624210\0"}, [Member(b"a", 512, 1)]),  # tar --incremental
        (TWO, {156: tarfile.LNKTYPE}, [Member(b"b.jpg", 2048, 1)]),  # a link with data
    ],
)
def test_fields_of_a_header_mean_what_they_mean_to_tar(tmp_path, members, changes, expected):
    path = write_tar(tmp_path / "t", members, tarfile.GNU_FORMAT)
    for offset, data in changes.items():
        change(path, offset, data)
    assert found(path) == expected


@pytest.mark.parametrize("flavour", FLAVOURS[1:])
def test_files_of_8_gib_and_more(tmp_path, flavour):
    path = tmp_path / "large.tar"
    sizes = {"a.bin": 8 * GIB + 5, "b.jpg": 3, "c.bin": 8 * GIB}
    with open(path, "wb") as file:
        for name, size in sizes.items():
            info = tarfile.TarInfo(name)
            info.size = size
            file.write(info.tobuf(flavour))
            file.seek(-(-size // 512) * 512, os.SEEK_CUR)
        file.truncate(file.tell() + 1024)
    assert [(os.fsdecode(member.name), member.size) for member in found(path)] == [*sizes.items()]
    assert found(path) == expected(path)


def test_one_block_of_zeros_is_skipped_and_two_end_a_tar(tmp_path):
    """As in DALI. To tar(1) and tarfile, one is the end. A tar may also end without zeros."""
    first, second = (write_tar(tmp_path / n, [(n, b"1")]).read_bytes()[:1024] for n in "ab")
    one, two = bytes(512), bytes(1024)
    for content, names in (
        ((first, one, second, one, first), [b"a", b"b", b"a"]),
        ((first, two, second), [b"a"]),
        ((one, first, one), [b"a"]),
        ((first,), [b"a"]),
    ):
        (tmp_path / "t").write_bytes(b"".join(content))
        assert [member.name for member in found(tmp_path / "t")] == names


CONTENT = [("a.jpg", b"1" * 700), ("b.jpg", b"2")]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[: 512 + 1024 + 100], "at 1,536: the file ends within a header"),
        (lambda content: content[: 512 + 699], "at 0: 700 bytes of data, but the file ends"),
        (lambda content: content[: 512 + 800], "at 0: 700 bytes of data, but the file ends"),
        (lambda content: content[:1540] + b"!" + content[1541:], "at 1,536: .*checksum is wrong"),
        (lambda content: b"x" * 10240, "at 0: not a tar header"),
        (lambda content: b"", "the file is empty"),
        (gzip.compress, "compressed with gzip; decompress it"),
        (bz2.compress, "compressed with bzip2; decompress it"),
        (lzma.compress, "compressed with xz; decompress it"),
        (lambda content: b"\x28\xb5\x2f\xfd" + content, "compressed with zstd; decompress"),
    ],
)
def test_a_damaged_tar_is_refused_by_name(tmp_path, damage, message):
    path = tmp_path / "t.tar"
    content = damage(write_tar(path, CONTENT).read_bytes())
    if content and len(content) < 512:
        content += os.urandom(512)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        found(path)
    assert repr(str(path)) in str(caught.value)
    del caught
    assert not open_files(tmp_path)


def test_sparse_files_in_a_tar_are_refused(tmp_path):
    write_tar(tmp_path / "gnu", CONTENT, tarfile.GNU_FORMAT)
    change(tmp_path / "gnu", 156, b"S")
    with tarfile.open(tmp_path / "pax", "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("GNUSparseFile.1/a.jpg")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "a.jpg"}
        tar.addfile(info)
    for name in ("gnu", "pax"):
        with pytest.raises(ValueError, match=r"sparse file; .*without --sparse"):
            found(tmp_path / name)


@pytest.mark.parametrize(
    "records",
    [
        *(b"0 path=b\n", b"11 path=b.n\n", b"8 path=b\n", b"99 path=b\n", b"x path=b\n"),
        *(b"+9 path=b\n", b"path=b\n"),
        *(b"9" * 5000 + b" path=b\n", b"12 path=b.n\n5", b"12 size=-100\n", b"8 size=\n"),
        b"28 size=" + b"9" * 19 + b"\n",
    ],
    ids=lambda records: str(records[:30]),
)
def test_a_damaged_pax_header_is_refused(tmp_path, records):
    path = write_tar(tmp_path / "t", [("pax", records), ("a", b"1")])
    change(path, 156, b"x")
    with pytest.raises(ValueError, match=r"/t', at 0: the pax header is damaged"):
        found(path)


def test_pax_records_may_have_any_keys_and_values(tmp_path):
    values = [(b"comment", b"a\nb"), (b"path", b"="), (b"path", b"\xff b \xc3\xa9.jpg\n")]
    values += [(b"long.key.", b"12 y"), (b"size", b"000001")]
    records = b"".join(b"%d %b=%b\n" % (len(k) + len(v) + 5, k, v) for k, v in values)
    path = write_tar(tmp_path / "t", [("pax", records), ("a", b"1")])
    change(path, 156, b"x")
    assert found(path) == [Member(b"\xff b \xc3\xa9.jpg\n", 1536, 1)]


def test_a_size_of_a_pax_header_is_that_of_the_file_not_of_a_record_before_it(tmp_path):
    members = [("pax", b"12 size=700\n"), ("name", b"b.jpg\0"), ("cut", b"1" * 700)]
    path = write_tar(tmp_path / "t", members)
    change(path, 156, b"x")
    content = path.read_bytes()
    (tmp_path / "u").write_bytes(content[1024:])
    change(tmp_path / "u", 156, b"L")
    path.write_bytes(content[:1024] + (tmp_path / "u").read_bytes())
    assert found(path) == [Member(b"b.jpg", 2560, 700)]


@pytest.mark.parametrize("kind", [b"x", b"L"])
def test_a_header_that_cannot_be_that_long_is_not_read(tmp_path, kind):
    info = tarfile.TarInfo("pax")
    info.type, info.size = kind, 7 << 30
    with open(tmp_path / "t", "wb") as file:
        file.write(info.tobuf(tarfile.USTAR_FORMAT))
        file.truncate(8 << 30)
    with pytest.raises(ValueError, match=r"at 0: a header of 7,516,192,768 bytes"):
        found(tmp_path / "t")


def test_a_size_that_is_no_number_is_refused(tmp_path):
    path = write_tar(tmp_path / "t", [("a.jpg", b"1")])
    real = {"paths": str(path), "ext": "jpg"}
    change(path, 124, b"0000000001x\0")
    assert contents(build(fn.readers.webdataset, 1, {}, **real)) == [[b"1"]]
    with pytest.raises(ValueError, match=r"at 0: .*should be a number"):
        found(path)
    for size in (b"000000000001", b"\x80" + bytes(10) + b"\1"):
        change(path, 124, size)
        with pytest.raises(RuntimeError):
            build(fn.readers.webdataset, 1, {}, **real)
        assert found(path) == [Member(b"a.jpg", 512, 1)]


def test_a_checksum_may_be_of_signed_bytes(tmp_path):
    path = write_tar(tmp_path / "t", [("é.jpg", b"1")])
    content = bytearray(path.read_bytes())
    signed = sum(byte - 256 * (byte > 127) for byte in content[:512])
    high = sum(content[148:156]) - 8 * ord(" ")
    content[148:156] = b"%06o\0 " % (signed - high)
    path.write_bytes(content)
    assert found(path) == expected(path)


def test_the_first_block_tells_whether_a_file_is_a_tar(tmp_path):
    for head in (b"", b"v1.2 1\n", b"x" * 512, b"\0" * 511):
        assert not archive.matches(head)
    contents = [CONTENT, [], [("long/" * 30, b"")]]
    for flavour in FLAVOURS[1:]:
        for members in contents:
            path = write_tar(tmp_path / "t", members, flavour)
            assert archive.matches(path.read_bytes()[:512])


@pytest.mark.parametrize("flavour", FLAVOURS[1:])
def test_long_names_are_read_from_records_of_any_length(tmp_path, flavour):
    names, path = ["n" * length for length in (99, 100, 101, 512, 5000)], tmp_path / "t"
    with tarfile.open(path, "w", format=flavour) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.pax_headers = {"comment": "c" * 600} if flavour == tarfile.PAX_FORMAT else {}
            tar.addfile(info, io.BytesIO())
    assert [os.fsdecode(member.name) for member in found(path)] == names


@pytest.mark.parametrize("walk", [archive.members, index.scan, pages.scan])
def test_a_pipe_is_refused_without_waiting_for_a_writer(walk, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)  # a wait would not end
    with pytest.raises(OSError, match="not a regular file"):
        next(iter(walk(os.fsencode(tmp_path / "pipe"))))
    os.close(writer)
