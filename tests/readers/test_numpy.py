"""dali_storage.readers.numpy beside the real fn.readers.numpy, which is the oracle of parity."""

import contextlib
import io
import os
import shutil
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn

from dali_storage import readers
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import RecordError
from dali_storage.contract.views import Views
from dali_storage.dali.queries import source
from dali_storage.formats.npy.header import Npy
from dali_storage.formats.npy.region import Region
from tests.kit.parity import build, take
from tests.kit.process import open_files
from tests.kit.reading_ahead import pool_of
from tests.kit.stand_ins import Unpickled
from tests.kit.views import views_of

TYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


def test_a_line_of_a_list_is_a_name(tmp_path):
    names = [b" a.npy", b"a.npy ", b"a.npy\r", b"a b.npy", b"\t", b"\xff", b"a.npy 7"]
    for number, name in enumerate(names):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            np.save(file, np.array([number]))
    lines = [*names, b"", b"\xff\0 after the name", b"\0"]
    (tmp_path / "list").write_bytes(b"\n".join([*lines, b" a.npy"]))
    for arguments in ({}, {"file_root": str(tmp_path)}):
        arguments = {"file_list": str(tmp_path / "list"), **arguments}
        found = take(build(readers.numpy, 9, {}, **arguments), 1)
        assert found == take(build(fn.readers.numpy, 9, {}, **arguments), 1)


# --- arguments ----------------------------------------------------------------------------------


@pytest.fixture
def arrays(tmp_path):
    """Ten files of float32[3, 4], the first of which has the numbers 0 to 11."""
    paths = [str(tmp_path / f"{number}.npy") for number in range(10)]
    for number, path in enumerate(paths):
        np.save(path, np.arange(12, dtype=np.float32).reshape(3, 4) + number)
    return paths


def one(paths, **arguments):
    """The array of the first file."""
    ((((dtype, shape, content),),),) = take(
        build(readers.numpy, 1, {}, files=paths, **arguments), 1
    )
    return np.frombuffer(content, dtype).reshape(shape)


PAD = {"out_of_bounds_policy": "pad"}
TOO_LARGE = r"the region of shape \(.* does not fit into memory; correct the roi"  # DALI dies of it


def test_a_region_of_tensors_is_refused(arrays):
    with Pipeline(1, 1, None):
        start = fn.constant(idata=[1, 1])
        with pytest.raises(TypeError, match=r"roi_start must be numbers: .*fn\.slice"):
            readers.numpy(files=arrays, roi_start=start)


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ({"roi_start": [1, 1, 1]}, "roi_start must have a number for each of 2 axes, or one for"),
        ({"roi_start": 1, "roi_axes": [2]}, r"roi_axes must be axes of .*, which has 2, not \[2\]"),
        ({"roi_start": 1, "roi_axes": [1, -1]}, "roi_axes must be different axes"),
        ({"roi_start": 2, "roi_end": 1}, "region would be from 2 to 1 in axis 0, which has 3; cor"),
        ({"roi_shape": -1}, "the region would be from 0 to -1 in axis 0, which has 3; correct"),
        ({"rel_roi_shape": float("nan")}, "the region would be from 0 to nan in axis 0"),
        ({"rel_roi_shape": 1e300}, "the region would be from 0 to inf in axis 0"),
        ({"roi_end": 4}, r"the region \[\(0, 4\), \(0, 4\)\] is not within .* \(3, 4\); .*'pad'"),
        ({"roi_start": [-1, 0]}, "is not within the array"),
        *((PAD | it, TOO_LARGE) for it in ({"roi_end": 2**31 - 1}, {"rel_roi_shape": 1e14})),
    ],
    ids=str,
)
def test_a_region_that_does_not_fit_is_refused(arrays, region, message):
    with pytest.raises(RecordError, match=message) as caught:
        one(arrays, **region)
    assert caught.value.filename == arrays[0]


@pytest.mark.parametrize(
    ("extent", "region"),
    [
        (25, {"rel_roi_start": 0.58}),  # the product is 14.5 in float32, and less in float64
        (45, {"rel_roi_end": 0.7}),
        (50, {"rel_roi_shape": 0.53}),
        (6, {"rel_roi_start": 0.3, "rel_roi_shape": 0.45}),  # the end is one product of a sum
        (10, {"rel_roi_start": 0.1, "rel_roi_shape": 0.45}),
    ],
    ids=str,
)
def test_fractions_are_rounded_like_dalis(tmp_path, extent, region):
    np.save(tmp_path / "a.npy", np.arange(extent))
    arguments = {"files": str(tmp_path / "a.npy"), **region}
    real = take(build(fn.readers.numpy, 1, {}, **arguments), 1)
    assert take(build(readers.numpy, 1, {}, **arguments), 1) == real


def test_fill_values_are_within_the_limits_of_the_type(tmp_path):
    path, values = str(tmp_path / "a.npy"), [1e30, -1e30, 2.5, -2.5, 0.49, 16777217, 3e9, 70000]
    pad = {"roi_start": -1, "out_of_bounds_policy": "pad"}

    def filled(module):
        return lambda: [module.numpy(files=path, **pad, fill_value=value) for value in values]

    for dtype in TYPES:
        np.save(path, np.zeros(1, dtype))
        real = take(build(filled(fn.readers), 1, {}), 1)
        assert take(build(filled(readers), 1, {}), 1) == real, dtype
    # DALI fills arrays in Fortran order with 0 here: it converts the limit to float32 and back.
    np.save(path, np.zeros((2, 2), np.uint32, order="F"))
    assert one(path, **pad, fill_value=1e30)[0, 0] == 2**32 - 1
    with pytest.raises(RecordError, match="fill_value must be a number for an array of uint32"):
        one(path, **pad, fill_value=float("nan"))


def test_use_o_direct_is_an_option_of_the_backend(arrays):
    units = []
    for options in ({"use_o_direct": True}, {"backend_options": {"direct": True}}, {}):
        pipeline = build(readers.numpy, 1, {}, files=arrays, name="R", **options)
        units.append(source(pipeline, "R").open()[1].alignment)
        assert take(pipeline, 1)[0][0][0][2] == np.load(arrays[0]).tobytes()
    assert units[0] == units[1] > units[2]


# --- the format ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_the_header_are_read(tmp_path, version):
    array = np.arange(3000, dtype="<i8").reshape(50, 60)
    for order in ("C", "F"):
        with open(tmp_path / "a.npy", "wb") as file:
            np.lib.format.write_array(file, array.copy(order=order), version)
        assert (one(str(tmp_path / "a.npy")) == array).all()


def content_of(array, header_bytes=0):
    file = io.BytesIO()
    np.save(file, array)
    content = file.getvalue()
    if header_bytes:  # of another length, which may be odd
        size = 10 + int.from_bytes(content[8:10], "little")
        header = content[10:size].rstrip().ljust(header_bytes - 11) + b"\n"
        content = content[:8] + struct.pack("<H", len(header)) + header + content[size:]
    return content


def catalog(count):
    return Catalog.from_names([b"%d.npy" % number for number in range(count)], range(count))


def decoded(fmt, contents, pool=None):
    """What the format makes of files in a leased buffer, as of those of a batch; the buffer."""
    pool = pool or pool_of(lambda nbytes: np.empty(nbytes, np.uint8))
    sizes = np.array(list(map(len, contents)))
    offsets = np.cumsum(sizes + 63 & ~63) - (sizes + 63 & ~63)
    buffer = pool.lease(int(offsets[-1] + sizes[-1]))
    for offset, content in zip(offsets.tolist(), contents, strict=True):
        buffer[offset : offset + len(content)] = np.frombuffer(content, np.uint8)
    (found,) = fmt.decode(catalog(len(sizes)), np.arange(len(sizes)), Views(buffer, offsets, sizes))
    return found, buffer


@pytest.mark.parametrize(
    ("content", "is_view"),
    [
        (content_of(np.ones((40, 50))), True),
        (content_of(np.ones((40, 50), order="F")), False),
        (content_of(np.ones(5000, order="F")), True),
        (content_of(np.ones((40, 50)), header_bytes=131), False),
        (content_of(np.ones((5000), "u1"), header_bytes=131), True),
    ],
)
def test_an_array_that_lies_as_dali_needs_it_is_not_copied(content, is_view):
    array = np.load(io.BytesIO(content))
    for fmt in (Npy(), Npy(Region({"roi_start": (0,)}))):
        found, buffer = decoded(fmt, [content, content])
        for each in found:
            assert np.shares_memory(each, buffer) is is_view
            assert each.flags.c_contiguous
            assert each.flags.aligned
            assert (each == array).all()
            assert each.dtype == array.dtype


def test_a_view_keeps_the_lease():
    for columns in ((50, 50), (50, 51)):  # rows of one array, and slices
        pool = pool_of(lambda nbytes: np.empty(nbytes, np.uint8))
        ones = [content_of(np.ones((40, count))) for count in columns]
        zeros = [content_of(np.zeros((40, count))) for count in columns]
        views = decoded(Npy(), ones, pool)[0]
        decoded(Npy(), zeros, pool)
        assert all((view == 1).all() for view in views)


def test_small_arrays_of_one_shape_become_one():
    some = [np.arange(6.0).reshape(2, 3) * number for number in range(5)]
    contents = [
        content_of(array.copy(order=order)) for array, order in zip(some, "CFCFC", strict=True)
    ]
    found, _ = decoded(Npy(), contents)
    assert isinstance(found, np.ndarray)
    assert found.flags.c_contiguous
    assert (found == np.stack(some)).all()
    found, _ = decoded(Npy(), [content_of(np.ones(3)), content_of(np.ones(4))])
    assert [each.shape for each in found] == [(3,), (4,)]


def header(text, version=b"\x01\x00", width="<H"):
    return b"\x93NUMPY" + version + struct.pack(width, len(text)) + text.encode()


def shaped(shape, descr="'<f4'", order="False"):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"
    return header(text) + bytes(9)


GOOD = content_of(np.ones((3, 4), np.float32))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is not a .npy file of version 1 to 3: it begins with b''"),
        (b"\x93NUM", "it is not a .npy file"),
        (b"\xff\xd8\xff\xe0" * 100, "it is not a .npy file"),
        (GOOD[:6], "it is not a .npy file of version 1 to 3"),
        (GOOD[:8], "its header has 10 bytes, and the file 8; the file is damaged"),
        (GOOD[:9], "its header has 128 bytes, and the file 9; the file is damaged"),
        (GOOD[:100], "its header has 128 bytes, and the file 100; the file is damaged"),
        (GOOD[:-1], r"of float32 and 2 dim.* needs 176 bytes, but the file has 175; .*truncated"),
        (header("x" * 70_000, b"\x02\x00", "<I"), "its header has 70,012 bytes"),
        (shaped(f"({'1, ' * 33})"), "has more than 32 dimensions"),
        (header("{" * 5000), "its header is not valid"),
        (header("-" * 9000 + "1"), "its header is not valid"),
        (header("{'descr': '<f4'}"), "its header is not valid"),
        (header(""), "its header is not valid"),
        (b"\x93NUMPY\x04\x00" + shaped("(1,)")[8:], "it is not a .npy file of version 1 to 3"),
        (shaped("(-1,)"), r"its shape \(-1,\) is impossible"),
        (shaped(f"({2**62}, 8)"), "its shape .* is impossible"),
        (shaped(f"({2**62}, 8, 0)"), "its shape .* is impossible"),
        (shaped(f"({2**70},)"), "its shape .* is impossible"),
        (shaped("(1000000000000,)"), "needs 4,000,000,000,0.. bytes, but the file has"),
        (shaped("3"), "its header is not valid"),
        (shaped("(1.5,)"), "its header is not valid"),
        (shaped("(1,)", order="'x'"), "its header is not valid"),
        (shaped("(1,)", "'>f4'"), "its elements are >f4; .*little-endian"),
        (shaped("(1,)", "'<c8'"), "its elements are complex64; save them as a type of DALI: bool"),
        (shaped("(1,)", "'<f16'"), "its elements are (float128|longdouble)"),
        (shaped("(1,)", "'<U3'"), "its elements are <U3; save"),
        (shaped("(1,)", "'|S3'"), r"its elements are \|S3"),
        (shaped("(1,)", "'<M8[s]'"), r"its elements are datetime64\[s\]"),
        (shaped("(1,)", "[('a', '<f4'), ('b', '<f4')]"), "its elements are .*'a', '<f4'"),
        (shaped("(1,)", "'|O'"), "its elements are Python objects, which are never unpickled"),
        (content_of(np.array([Unpickled()])), "its elements are Python objects"),
        (shaped("(1,)", "'nonsense'"), "its header is not valid"),
    ],
    ids=range(33),
)
def test_a_file_that_is_no_array_is_named(tmp_path, content, message):
    path = tmp_path / "wrong.npy"
    path.write_bytes(content)
    pipeline = build(readers.numpy, 1, {}, files=str(path))
    with pytest.raises(RecordError, match=message) as caught:
        pipeline.run()
    assert caught.value.filename == str(path)
    del pipeline, caught
    assert not open_files(tmp_path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (np.ones((3, 4), np.int32), r"is of int32 and 2 dimensions, but the first \('.*0.npy'\)"),
        (np.ones(3, np.float32), "is of float32 and 1 dimension, but .* is of float32 and 2 dim"),
    ],
)
def test_arrays_of_another_kind_are_refused(arrays, other, message):
    np.save(arrays[5], other)
    for batch_size in (10, 2):  # in the same batch, and in a later one
        pipeline = build(readers.numpy, batch_size, {}, files=arrays)
        with pytest.raises(RecordError, match=message) as caught:
            take(pipeline, 3)
        assert caught.value.filename == arrays[5]


def test_a_cached_header_is_never_that_of_another_file(arrays):
    """Here DALI gives out the new bytes with the old type and shape."""
    pipeline = build(readers.numpy, 1, {}, files=arrays[:1], cache_header_information=True)
    (((old,),),) = take(pipeline, 1)
    assert old[:2] == ("float32", (3, 4))
    new = np.arange(20, 8, -1, dtype=np.float32).reshape(4, 3)
    np.save(arrays[1], new)
    os.replace(arrays[1], arrays[0])  # all at once: batches are read ahead meanwhile
    found = [sample for ((sample,),) in take(pipeline, 50)]
    assert set(found) <= {old, ("float32", (4, 3), new.tobytes())}
    assert found[-1][1] == (4, 3)


HEAD = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"


def padded(text, version="\1\0", fill=" ", magic="\x93NUMPY"):
    """A file with this header, and the data of HEAD."""
    size = -(-(len(text) + 11) // 64) * 64 - 10
    header = text.ljust(size - 1, fill) + "\n"
    start = (magic + version).encode("latin-1") + struct.pack("<H", size)
    return start + header.encode("latin-1") + np.arange(12, dtype="<f4").tobytes()


HEADERS = {  # and who reads them
    "both": [
        *(padded(HEAD, "\1\1"), padded(HEAD, "\1\xff"), padded(HEAD.replace("False", "True"))),
        *(padded(HEAD, fill="\0"), padded(HEAD, fill="x"), padded(HEAD[:-3]), padded(HEAD + HEAD)),
        *(padded(HEAD[:-1] + it) for it in ("'x': [1, {}], }", "'x': '\xe9'}", "'shape': (1,)}")),
        *(padded(HEAD.replace("3", it)) for it in ("03", " 3 ", "\n3", "+3")),
        *(padded(HEAD.replace(" ", it)) for it in ("", "\t\v")),
    ],
    "ours": [
        *(padded(HEAD.replace("(3, 4)", it)) for it in ("(3L, 4L)", "(3L ,4)", "(0x3, 4)")),
        *(padded(HEAD.replace(*it)) for it in (("'", '"'), ("'descr", "u'descr"), ("<f4", "f4"))),
        padded("{'shape': (3, 4), 'descr': '<f4', 'fortran_order': False}"),
        b"\x93NUMPY\1\0\xff\xff" + HEAD.encode().ljust(0xFFFF) + bytes(48),
    ],
    "dali": [
        *(padded(HEAD, "\4\0"), padded(HEAD, "\2\0"), padded(HEAD, magic="\x93NUMPX")),
        padded(HEAD.replace("3, 4", "3, 2 2")),
    ],
}


@pytest.mark.parametrize(
    ("who", "content"), [(who, it) for who, contents in HEADERS.items() for it in contents]
)
def test_headers_are_read_as_dali_reads_them_or_numpy(tmp_path, who, content):
    (tmp_path / "a.npy").write_bytes(content)
    found = {}
    for name, module in (("dali", fn.readers), ("ours", readers)):
        pipeline = build(module.numpy, 1, {}, files=str(tmp_path / "a.npy"))
        with nullcontext() if who in (name, "both") else pytest.raises((RuntimeError, ValueError)):
            found[name] = take(pipeline, 1)
    assert {*found} == ({who} if who != "both" else {"dali", "ours"})
    assert who != "both" or found["ours"] == found["dali"]
    assert who == "dali" or found["ours"][0][0][0][:2] == ("float32", (3, 4))


def test_a_wrong_first_file_may_be_corrected(arrays):
    np.save(arrays[0], np.ones(3, np.int32))
    pipeline = build(readers.numpy, 10, {}, files=arrays)
    for _ in range(2):
        with pytest.raises(RecordError, match="of int32 and 1 dimension; all must have the"):
            pipeline.run()
    shutil.copy(arrays[1], arrays[0])
    found = []
    for _ in range(50):  # batches that were read ahead fail as before
        with contextlib.suppress(RecordError):
            found += take(pipeline, 1)
    assert found
    assert {it[:2] for ((batch),) in found for it in batch} == {("float32", (3, 4))}


def test_lanes_agree_on_one_kind():
    """Two lanes decode a first batch at the same time."""
    fmt, pause = Npy(), threading.Barrier(2)

    class Slow:
        ranges = None

        def where(self, sample):
            return ""

        def path(self, sample):
            with contextlib.suppress(threading.BrokenBarrierError):
                pause.wait(0.2)
            return b"%d.npy" % sample

    def decode(sample):
        views = views_of([content_of(np.ones(sample + 1, f"f{4 + 4 * sample}"))])
        fmt.decode(Slow(), np.array([sample]), views)

    with ThreadPoolExecutor(2) as pool:
        outcomes = [pool.submit(decode, sample) for sample in (0, 1)]
    assert sum(isinstance(each.exception(), RecordError) for each in outcomes) == 1


def test_a_region_may_have_more_dimensions_than_dali_knows(tmp_path):
    array = np.arange(2**8).reshape((2,) * 8)
    np.save(tmp_path / "a.npy", array)
    assert (one(str(tmp_path / "a.npy"), roi_start=1) == array[(slice(1, 2),) * 8]).all()
