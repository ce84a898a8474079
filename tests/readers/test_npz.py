"""readers.npz. What is expected is what numpy.load() returns of the same file."""

import io
import struct
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from dali_storage import readers
from dali_storage.contract.errors import RecordError
from dali_storage.formats.npy import archive, header
from tests.kit.parity import build, seeds
from tests.kit.stand_ins import Unpickled
from tests.kit.tiers import by_tier
from tests.kit.views import views_of

ARRAYS = {
    "x": np.arange(3_000, dtype=np.float32).reshape(3, 1000),
    "y": np.array(7, np.int64),
    "fortran": np.asfortranarray(np.arange(6_000, dtype=np.int16).reshape(60, 100)),
    "empty": np.empty((0, 3), np.uint8),
    "flags": np.array([True, False]),
}


def npy(array, version=None):
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # newer versions warn of older readers
        np.lib.format.write_array(file, np.asanyarray(array), version)
    return file.getvalue()


def write(path, arrays=ARRAYS, *, version=None, comment=b"", **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, array in arrays.items():
            file.writestr(f"{name}.npy", npy(array, version))
        for info in file.infolist():  # in the directory, but not in the headers of the members
            info.extra = struct.pack("<2H3s", 0x7777, 3, b"abc")
        file.comment = comment


def savez(path):
    np.savez(path, **ARRAYS)


def savez_to_a_pipe(path):
    with open(path, "wb") as file:  # sizes and checksums follow the data
        np.savez(SimpleNamespace(write=file.write, flush=file.flush, read=None), **ARRAYS)


def zip64(path):
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("ZIP64_LIMIT", "ZIP_FILECOUNT_LIMIT"):
            patch.setattr(zipfile, limit, 2)
        np.savez(path, **ARRAYS)
    assert b"PK\6\6" in path.read_bytes()


def strict_zip64(fpin, offset, endrec, parse=zipfile._EndRecData64):
    """Patched Pythons (CVE-2025-8291) require zip64's record where its locator says."""
    fpin.seek(offset - zipfile.sizeEndCentDir64Locator, 2 if offset < 0 else 0)
    magic, _, place, _ = struct.unpack("<4sLQL", fpin.read(zipfile.sizeEndCentDir64Locator))
    if magic == b"PK\6\7":
        fpin.seek(place)
        if fpin.read(4) != b"PK\6\6":
            raise zipfile.BadZipFile("Corrupt zip64 end of central directory locator")
    return parse(fpin, offset, endrec)


def many_members(path):
    np.savez(path, **ARRAYS, **{f"other{number}": 0 for number in range(300)})


def names_of_other_members(path):
    with zipfile.ZipFile(path, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the second of a name
        for name, array in ARRAYS.items():
            file.writestr(f"{name}.npy", npy(array + 1 if array.dtype.kind in "if" else array))
            file.writestr(f"{name}.npy", npy(array))  # the last counts
        file.writestr("x", npy(ARRAYS["x"] * 2))  # and before it a name without .npy


WRITERS = {
    "savez": savez,
    "a pipe": savez_to_a_pipe,
    "zip64": zip64,
    "many members": many_members,
    "same names": names_of_other_members,
    "version 2": lambda path: write(path, version=(2, 0)),
    "version 3": lambda path: write(path, version=(3, 0)),
    "comment": lambda path: write(path, comment=b"a comment"),
    "long comment": lambda path: write(path, comment=bytes(65_535)),
    "a name in UTF-8": lambda path: write(path, ARRAYS | {"größe": np.arange(3)}),
}


def one(path, members, **arguments):
    """The arrays of one file."""
    pipeline = build(readers.npz, 1, {}, files=str(path), members=members, **arguments)
    return [np.asarray(output[0]) for output in pipeline.run()]


def require_equal(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("options", [{}, {"direct": True}], ids=str)
@pytest.mark.parametrize("how", WRITERS)
def test_arrays_are_those_of_numpy(tmp_path, how, options):
    WRITERS[how](path := tmp_path / "a.npz")
    with np.load(path) as file:
        names = [name for name in file.files if not name.startswith("other")]
        expected = [file[name] for name in names]
        found = one(path, names, verify=True, backend_options=options)
    for array, its in zip(found, expected, strict=True):
        require_equal(array, its)


def test_archives_of_more_than_4_gib_are_read_as_newer_pythons_parse_them(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "_EndRecData64", strict_zip64)
    monkeypatch.setattr(archive, "_LONGEST", archive._TAIL)  # for a file that is smaller
    big = ARRAYS | {"big": np.arange(200_000)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipfile, "ZIP64_LIMIT", 2)
        np.savez(path := tmp_path / "a.npz", **big)
    for array, its in zip(one(path, [*big], verify=True), big.values(), strict=True):
        require_equal(array, its)


def test_a_directory_has_its_files_in_the_order_of_names(tmp_path):
    for number in range(5):
        np.savez(tmp_path / f"{number}.npz", x=np.arange(2_000) + number, y=np.array([number]))
    (tmp_path / "notes.txt").write_text("none")
    pipeline = build(readers.npz, 5, {}, file_root=str(tmp_path), members="x", return_index=True)
    arrays, index = pipeline.run()
    assert arrays.as_array()[:, 0].tolist() == [0, 1, 2, 3, 4] == index.as_array()[:, 0].tolist()


# --- Refusals ------------------------------------------------------------------------------------


def encrypted(path):
    savez(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(content)


def cut(path, keep):
    savez(path)
    path.write_bytes(path.read_bytes()[:keep])


def compressed(method):
    return lambda path: write(path, compression=method)


REFUSED = {
    "deflate": (compressed(8), r"'x' is compressed \(method 8 .*numpy.savez\(\) instead of numpy"),
    "LZMA": (compressed(14), r"'x' is compressed \(method 14 of zip\); write"),
    "encrypted": (encrypted, r"'x' is encrypted; write the file with numpy.savez\(\)"),
    "missing": (lambda path: np.savez(path, a=1, b=2), "'x' is missing; the file has 'a', 'b'"),
    "none": (lambda path: np.savez(path), "'x' is missing; the file has none"),
    "an array": (lambda path: path.write_bytes(npy(1)), "no valid directory of a zip"),
    "no bytes": (lambda path: path.write_bytes(b""), "no valid directory of a zip"),
    "cut short": (lambda path: cut(path, -1), "no valid .*truncated, damaged"),
    "cut in data": (lambda path: cut(path, 9_000), "no valid .*truncated, damaged"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_file_is_refused_with_its_path_and_the_remedy(tmp_path, why):
    make, message = REFUSED[why]
    make(path := tmp_path / "a.npz")
    with pytest.raises(ValueError, match=rf"a\.npz': .*{message}"):
        one(path, ["x"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(np.array([Unpickled()], object)), "'x': its elements are Python objects, .* never u"),
        (npy(np.arange(9)[:1])[:-4], r"truncated: write it again with numpy.savez\(\)"),
    ],
    ids=["objects", "short"],  # others are in test_numpy.py
)
def test_an_array_is_refused_when_its_turn_comes(tmp_path, content, message):
    with zipfile.ZipFile(path := tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", content)
    with pytest.raises(RecordError, match=rf"sample 0: .*{message}") as caught:
        one(path, ["x"])
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_wrong_byte_is_found_by_its_checksum(tmp_path, mixed):
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", y=np.zeros(9), x=np.full(2_000, 9))
    content = bytearray((path := tmp_path / "b.npz").read_bytes())
    content[content.rindex(struct.pack("<q", 9))] ^= 1
    path.write_bytes(content)

    def read(**options):
        options |= {"members": ["y", "x"]}
        files = [str(tmp_path / f"{name}.npz") for name in "ab"]
        if not mixed:
            return readers.npz(files=files, **options)
        sources = {file[-5]: {"files": file} for file in files}
        return readers.mix(sources, reader="npz", format_options=options, shuffle=False)

    _, arrays = build(read, 2, {}).run()
    assert [int(np.asarray(it).sum()) for it in arrays] == [18_000, 17_999]
    with pytest.raises(RecordError, match="the array 'x': its CRC-32 is wrong") as caught:
        build(read, 2, {}, verify=True).run()
    assert caught.value.filename == str(path)


def test_damaged_files_are_refused_or_equal_to_those_of_numpy(tmp_path):
    """Bits flipped and bytes cut in headers and directories: no other array, and no other error."""
    found = Counter()
    whole = {}
    for how in ("savez", "a pipe", "zip64", "version 2", "comment"):
        WRITERS[how](tmp_path / "whole.npz")
        whole[how] = (tmp_path / "whole.npz").read_bytes()
    for seed in seeds(by_tier(200, 8000)):
        random = Random(seed)
        path = tmp_path / f"{seed}.npz"
        content = bytearray(whole[random.choice([*whole])])
        heads = [it for at in _headers(content) for it in range(at, min(at + 230, len(content)))]
        for at in random.sample(heads, random.choice([1, 1, 2, 5])):
            content[at] ^= 1 << random.randrange(8)
        if random.random() < 0.2:
            del content[-random.randint(1, 400) :]
        path.write_bytes(content)
        name = random.choice(["x", "fortran"])
        try:
            array = without_a_pipeline(path, name)
        except (ValueError, OSError) as error:
            found["refused" if str(path) in str(error) else f"unnamed {error}"] += 1
        else:
            require_equal(array, ARRAYS[name])
            found["equal"] += 1
        Path(path).unlink()
    assert {*found} == {"refused", "equal"}, found


def without_a_pipeline(path, name):
    catalog = archive.find(header.find(None, None, [path], None), [name], verify=True)
    start, size = int(catalog.ranges.starts[0]), int(catalog.ranges.sizes[0])
    content = path.read_bytes()[start : start + size]
    return archive.Npz([name]).decode(catalog, np.array([0]), views_of([content]))[0][0]


def _headers(content):
    """Where the headers, the entries and the last records begin."""
    for magic in (b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6"):
        at = content.find(magic)
        while at >= 0:
            yield at
            at = content.find(magic, at + 1)
