"""`readers.webdataset`: arguments, bad input, and where it differs from DALI's.

What is expected are the bytes that were written into the tars.
"""

import os
import tarfile

import numpy as np
import pytest
from nvidia.dali import fn, types

from dali_storage.cli.index import main as make_indexes
from dali_storage.contract.errors import ContainerChangedError
from dali_storage.formats.pieces import Pieces
from tests.kit.containers import index_by_wds2idx, write_tar
from tests.kit.parity import contents, take
from tests.kit.views import views_of
from tests.kit.webdataset import MEMBERS, build, find

# --- arguments -----------------------------------------------------------------------------------


def test_names_of_tars_and_components_need_not_be_text(tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff.tar"
    os.rename(write_tar(tmp_path / "t", [("\udcff.\udcfe", b"1"), ("2.jpg", b"")]), path)
    for ext in (b"\xfe", "\udcfe"):
        assert contents(build(paths=path, ext=ext, batch_size=2)) == [[b"1", b""]]


def test_dtypes_may_be_of_numpy(tar):
    [[labels]] = take(build(paths=tar, ext="cls", dtypes=np.int32), 1)
    assert labels == [("int32", (1,), label) for label in (b"0001", b"0002", b"0003")]
    with pytest.raises(ValueError, match=r"sample 0: 3 bytes for 'jpg', not a multiple .* int16"):
        build(paths=tar, ext=["jpg", "cls"], dtypes=[types.INT16, types.UINT8])


def test_a_second_component_that_fits_an_output_is_left_out(tmp_path, capfd):
    """DALI writes to stderr about them."""
    members = [("1.png", b"one"), ("1.jpg", b"more"), ("2.jpg", b"two")]
    tar = write_tar(tmp_path / "a.tar", members)
    assert contents(build(paths=tar, ext="jpg;png", batch_size=2)) == [[b"one", b"two"]]
    assert capfd.readouterr().err == ""
    real = build(fn.readers.webdataset, paths=tar, ext="jpg;png", batch_size=2)
    assert contents(real) == [[b"one", b"two"]]


@pytest.mark.parametrize("behaviour", ["", "skip"])
def test_an_extension_that_nothing_has_is_refused_with_those_there_are(tar, behaviour):
    with pytest.raises(ValueError, match=r"ext: no sample has any.* 'img'; .* 'jpg', 'cls', 'txt'"):
        build(paths=tar, ext="img", missing_component_behavior=behaviour)
    with pytest.raises(ValueError, match=r"sample 0: nothing for 'img'; it has 'jpg', 'cls'"):
        build(paths=tar, ext=["jpg", "img"], missing_component_behavior="error")
    with pytest.raises(ValueError, match=r"no sample has all components of 'jpg', 'img'"):
        build(paths=tar, ext=["jpg", "img"], missing_component_behavior="skip")


@pytest.mark.parametrize("sensitive", [None, True, 1])
def test_case_matters_unless_it_is_said_not_to(tar, sensitive):
    with pytest.raises(ValueError, match=r"any component of 'CLS'; the tars have 'jpg', 'cls'"):
        build(paths=tar, ext="CLS", case_sensitive_extensions=sensitive)
    pipeline = build(paths=tar, ext="CLS", case_sensitive_extensions=False)
    assert contents(pipeline) == [[b"0001", b"0002", b"0003"]]


def test_a_missing_component_is_named_with_the_line_of_the_index(tar, index):
    with pytest.raises(ValueError, match=r"a.idx', line 2: nothing for 'txt'; it has 'jpg', 'cls'"):
        find([tar], [index], [b"jpg", b"cls", b"txt"], missing="error")


def test_small_samples_of_one_size_are_one_array(tar):
    catalog = find([tar], None, [b"jpg", b"cls", b"txt"])
    fmt = Pieces("webdataset", "Webdataset", [np.dtype(t) for t in ("u1", "<i2", "u1")])
    data = [b"one", b"0001", b"", b"two!", b"0002", b"text"]
    jpg, cls, txt = fmt.decode(catalog, np.arange(2), views_of(data))
    assert [bytes(each) for each in jpg] == [b"one", b"two!"]
    assert isinstance(cls, np.ndarray)
    assert (cls.dtype, cls.tolist()) == (np.int16, [[0x3030, 0x3130], [0x3030, 0x3230]])
    assert [bytes(each) for each in txt] == [b"", b"text"]
    both = b"aaaa", b"bbbb", b"cccc", b"dddd", b"eeee", b"ffff"
    outputs = fmt.decode(catalog, np.arange(2), views_of(both))
    joined = [np.asarray(each).tobytes() for each in outputs]
    assert joined == [b"aaaadddd", b"bbbbeeee", b"ccccffff"]
    large = fmt.decode(catalog, np.arange(2), views_of([bytes(5000)] * 6))
    assert not any(isinstance(each, np.ndarray) for each in large)


def test_containers_are_counted_with_those_that_have_no_samples(tmp_path, tar):
    empty = write_tar(tmp_path / "b.tar", [("x.txt", b"")])
    catalog = find([empty, tar, empty], None, missing="skip")
    assert catalog.containers is not None
    assert catalog.containers.tolist() == [0, 3, 0]
    assert (catalog.delivered, len(catalog), catalog.pieces) == (3, 6, 2)
    assert catalog.where(3) == "sample 1: 4 bytes at 4,608"
    assert catalog.path(3) == os.fsencode(tar)


# --- where DALI dies or lies ---------------------------------------------------------------------


def test_a_component_of_several_outputs_counts_once(tmp_path):
    names = ["1.jpg", "1.cls", "2.jpg", "3.cls", "3.jpg", "4.jpg", "4.n"]
    tar = write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in names])
    arguments = {"paths": str(tar), "missing_component_behavior": "skip"}
    arguments |= {"ext": ["jpg", "cls;jpg"], "batch_size": 4}
    expected = contents(build(fn.readers.webdataset, **arguments))
    assert contents(build(**arguments)) == expected
    assert expected == [[b"3.jpg"] * 4, [b"3.cls"] * 4]  # of the others, both are 1.jpg and so on
    arguments["missing_component_behavior"] = "error"
    with pytest.raises(ValueError, match=r"sample 0: a component is two outputs; it has 'jpg'"):
        build(**arguments)
    with pytest.raises(RuntimeError):
        build(fn.readers.webdataset, **arguments)


def test_an_empty_file_may_end_a_tar_without_zeros(tmp_path):
    content = write_tar(tmp_path / "a.tar", [("1.jpg", b"1"), ("1.cls", b"")]).read_bytes()
    (tmp_path / "a.tar").write_bytes(content[: 3 * 512])  # DALI: SIGSEGV
    assert make_indexes([str(tmp_path / "a.tar")]) == 0
    given = {"paths": tmp_path / "a.tar", "ext": ["jpg", "cls"]}
    for indexes in (None, tmp_path / "a.idx"):
        for backend in ("memory", "python-file"):
            pipeline = build(**given, index_paths=indexes, backend=backend)
            assert contents(pipeline) == [[b"1"] * 3, [b""] * 3]


@pytest.mark.parametrize(
    ("version", "large"),
    [
        ("v1.1", []),  # it has no names, by which one among others is found
        ("v1.2", MEMBERS),
        ("v1.2", [(name.replace(".", "n" * 90 + "."), b"") for name, _ in MEMBERS]),
    ],
    ids=str,
)
def test_an_index_by_wds2idx_of_a_long_gnu_name_is_refused(tmp_path, version, large):
    """DALI delivers the name as data, also of a component that `ext` does not ask for."""
    members = [*large, ("m" * 101 + ".jpg", b"long"), ("m" * 101 + ".cls", b"0004"), *large]
    tar = write_tar(tmp_path / "a.tar", members, tarfile.GNU_FORMAT)
    index_by_wds2idx(tar, version=version)
    message = r"line \d: 4 bytes at .* of type 'L'.* rebuild the index \(python -m"
    with pytest.raises(ContainerChangedError, match=message):
        build(paths=tar, index_paths=tmp_path / "a.idx", ext=["jpg", "cls"])
    assert make_indexes([str(tar)]) == 0
    pipeline = build(paths=tar, index_paths=tmp_path / "a.idx", ext="cls", batch_size=4)
    assert contents(pipeline)[0][3:] == [b"0004"]


def test_the_header_of_a_file_of_8_gib_agrees_with_its_index(tmp_path):
    for flavour in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("0.bin")
        info.size = (8 << 30) + 512
        header = info.tobuf(flavour)
        with open(tmp_path / "t.tar", "wb") as file:
            file.write(header)
            file.truncate(len(header) + info.size + 1024)
        index = tmp_path / "t.idx"
        index.write_text(f"v1.2 1\nbin {len(header)} {info.size} 0.bin\n")
        assert int(find([tmp_path / "t.tar"], [index], [b"bin"]).ranges.sizes[0]) == info.size
        index.write_text(f"v1.2 1\nbin {len(header)} {8 << 29} 0.bin\n")
        with pytest.raises(ContainerChangedError, match="the file there has"):
            find([tmp_path / "t.tar"], [index], [b"bin"])


@pytest.mark.dali("2.3", "wds2idx knew only names in ASCII")
@pytest.mark.parametrize("flavour", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_an_index_by_wds2idx_has_names_as_tar_lists_them(tmp_path, flavour):
    tar = write_tar(tmp_path / "a.tar", [("é\\.jpg", b"1"), ("a.cls", b"2")], flavour)
    index_by_wds2idx(tar)
    assert "\\\\.jpg" in (tmp_path / "a.idx").read_text()  # two for one
    assert find([tar], [tmp_path / "a.idx"]).delivered == 2


@pytest.mark.parametrize("flavour", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["new.jpg", "n" * 300 + ".jpg", "n" * 9000 + ".jpg"])
def test_the_name_in_a_header_may_be_another_than_that_of_the_file(tmp_path, flavour, name):
    with tarfile.open(tmp_path / "a.tar", "w", format=flavour) as tar:
        is_pax = flavour == tarfile.PAX_FORMAT
        info = tarfile.TarInfo("old.jpg" if is_pax and len(name) < 9000 else name)
        info.pax_headers = {"path": name}
        tar.addfile(info)
    assert make_indexes([str(tmp_path / "a.tar")]) == 0
    assert f" {name}\n" in (tmp_path / "a.idx").read_text()
    find([tmp_path / "a.tar"], [tmp_path / "a.idx"])
