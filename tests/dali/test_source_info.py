"""The property source_info of samples, beside that of samples of DALI's readers."""

import lmdb
import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, ops, tfrecord
from nvidia.dali.tensors import TensorCPU, TensorListCPU

from dali_storage import readers
from dali_storage.backends.memory import MemoryReader
from dali_storage.cli import doctor
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.dali import source_info
from tests.kit import parity, versions
from tests.kit.containers import index_by_wds2idx, write_tar
from tests.kit.dali import both
from tests.kit.databases import datum, write_lmdb

pytestmark = pytest.mark.usefixtures("pipelines_end", "no_deprecations")

MEMBERS = [("a/0.x", b"12"), ("a/0.y", b""), ("1.x", b"3"), (f"{'d/' * 60}2.x", b""), ("3.y", b"4")]


def infos(outputs):
    return [[bytes(np.asarray(each)) for each in output] for output in outputs]


def asked(operator, batch_size=4, **given):
    """The source_info of each sample of each output in the second batch."""

    def define(**arguments):
        found = operator(**arguments)
        found = [*found.values()] if isinstance(found, dict) else found
        nodes = found if isinstance(found, (list, tuple)) else [found]
        return [fn.get_property(node, key="source_info") for node in nodes]

    pipeline = parity.build(define, batch_size, {}, **given)
    pipeline.run()
    return infos(pipeline.run())


@pytest.mark.parametrize(
    "reader",
    ["coco", "file", "mxnet", "nemo_asr", "numpy", "sequence", "tfrecord", "webdataset"]
    + [pytest.param(reader, marks=versions.CAFFE) for reader in ("caffe", "caffe2")],
)
def test_samples_have_the_names_of_dalis_reader(reader, tmp_path):
    counts = [7] if reader == "mxnet" else [3, 4]  # DALI before 2.2 cannot read several
    given = parity.written(reader, tmp_path, counts) | {"random_shuffle": True, "seed": 1}
    if reader == "tfrecord":
        given["features"]["other"] = tfrecord.VarLenFeature(tfrecord.int64, 0)
    names = both(lambda module: asked(getattr(module, reader), **given))
    assert any(names[0]) == (reader not in ("nemo_asr", "sequence"))


@pytest.mark.parametrize("version", ["v1.2", "v1.1", None])
def test_components_are_named_by_tar_offset_and_name(version, tmp_path):
    tars = [write_tar(tmp_path / f"{number}.tar", MEMBERS[number:]) for number in range(2)]
    given = {"paths": [*map(str, tars)], "ext": ["x", "y;x"]}
    if version:
        given["index_paths"] = [str(index_by_wds2idx(tar, version=version)) for tar in tars]
    assert b"" in both(lambda module: asked(module.webdataset, 3, **given))[0]


@versions.CAFFE
def test_values_are_named_by_any_keys(tmp_path):
    images = [datum(b"x" * (5000 if number % 3 else 9), number, True) for number in range(400)]
    many = str(write_lmdb(tmp_path / "many", images))  # several leaves, and values apart from them
    with lmdb.open(str(tmp_path / "odd")) as odd, odd.begin(write=True) as transaction:
        for key in (b"\0\1", b"a\0", b"\xff" * 511):
            transaction.put(key, images[0])
    given = {"path": [many, f"{tmp_path / 'odd'}/"]}
    both(lambda module: asked(module.caffe, 202, **given))
    both(lambda module: asked(module.caffe, 202, image_available=False, **given))


def test_own_readers_name_samples_like_those_of_dali(tmp_path):
    x, y = (str(tmp_path / name) for name in ("a/x.jpg", "b/y.jpg"))
    for path in (tmp_path / "a/x.jpg", tmp_path / "b/y.jpg"):
        path.parent.mkdir()
        path.write_bytes(b"12")
    (tmp_path / "m").write_text(f'{{"audio_filepath": "{y}"}}\n')
    base = {"path": str(write_lmdb(tmp_path / "base", [b"1", b"2"]))}
    keys = {f"{base['path']} at key 0000000{number}" for number in range(2)}
    roots = {name: {"file_root": tmp_path, "dir_filters": name} for name in "ab"}
    mixed = {"labels": "own", "shuffle": False}
    records = {"files": [x, y], "file_ids": [1, 0], "offsets": [0, 1], "sizes": 1}
    for reader, given, names in (
        ("records", records, {f"{y} at index 0", f"{x} at index 1"}),
        ("columns", {"files": [[x], [y]]}, {x, y}),
        ("manifest", {"manifests": tmp_path / "m"}, {y}),
        ("lmdb", base, keys),
        ("mix", mixed | {"sources": roots}, {"a/x.jpg", "b/y.jpg"}),
        ("mix", mixed | {"sources": {"a": base, "b": base}, "reader": "lmdb"}, keys),
    ):
        found = asked(getattr(readers, reader), **given)
        assert {name.decode() for output in found for name in output} - {""} == names, reader
        assert [*map(any, found)] == [reader == "columns" or n == 0 for n in range(len(found))]


@pytest.fixture
def root(tree):
    return str(tree(5, sizes=(9,)))


def test_outputs_of_a_pipeline_are_named_if_wanted(root):
    def names(module, **wish):
        outputs = parity.build(module.file, 4, {}, file_root=root, **wish).run()
        return [[it.source_info() for it in output] for output in outputs]

    both(lambda module: names(module, **{"source_info": True} if module is readers else {}))
    assert names(readers) == [[""] * 4] * 2


class OfUser(ops.GetProperty):
    """As for any operator in `nvidia.dali.ops`, users may derive classes."""


def test_only_outputs_on_the_way_to_the_operator_are_named(root):
    with Pipeline(4, 1, None) as pipeline:
        data, other, never = (
            readers.file(file_root=root, name=name, source_info=wish)[0]
            for name, wish in (("a", None), ("b", None), ("c", False))
        )
        asking = [OfUser(key="source_info")(it) for it in (data[1:3] + 0, never)]
        pipeline.set_outputs(*asking, other, fn.get_property(other, key="layout"))
    *asking, other, _ = pipeline.run()
    names = [b"class0/0000.jpg", b"class0/0003.jpg", b"class1/0001.jpg", b"class1/0004.jpg"]
    assert infos(asking) == [names, [b""] * 4]
    assert [it.source_info() for it in other] == [""] * 4


@pytest.mark.skipif(versions.has("2.2"), reason="errors of newer decoders name no file")
@pytest.mark.parametrize(("module", "wish"), [(fn.readers, {}), (readers, {"source_info": True})])
def test_errors_of_decoders_name_the_file(module, wish, root):
    def define(**given):
        return fn.decoders.image(module.file(**given, **wish)[0])

    with pytest.raises(RuntimeError, match=r"class0/0000\.jpg"):
        parity.build(define, 1, {}, file_root=root).run()


@pytest.fixture(params=["_ABI", "_CLASS", "_SETTER"])
def other_dali(request, monkeypatch):
    """A DALI without the class or the method, or whose pybind11 has another ABI."""
    caches = source_info._bound, source_info.problem
    monkeypatch.setattr(source_info, request.param, b"x" if request.param == "_ABI" else "x")
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_without_the_means_names_are_empty_or_refused(other_dali, root):
    assert not any(asked(readers.file, file_root=root)[0])
    with pytest.raises(BackendUnavailable, match=r"does not let Python sources set source_info: ."):
        parity.build(readers.file, 4, {}, source_info=True, file_root=root).run()
    *_, row = doctor.examine_dali()
    assert (row["name"], row["works"]) == ("source_info of samples", False)


class Mapped(MemoryReader):
    """Has a map of extents, so that files need not exist."""

    @classmethod
    def tree(cls, **_):
        return object()


@pytest.mark.parametrize("reader", ["lmdb", "nemo_asr", "sequence"])
def test_without_names_source_info_is_refused(reader, tmp_path):
    given = parity.written(reader, tmp_path, [3]) | {"backend": Mapped}
    assert not any(asked(getattr(readers, reader), **given)[0])
    with pytest.raises(ValueError, match=r"source_info must not be True: .* has no names"):
        parity.build(getattr(readers, reader), 1, {}, source_info=True, **given).run()


@pytest.mark.parametrize("wrong", [TensorCPU(np.zeros(1)), TensorListCPU(np.zeros((2, 1)))])
def test_names_of_another_object_or_number_are_refused(wrong):
    with pytest.raises(TypeError, match="is not a list of 1 samples"):
        source_info.name_samples(wrong, [b"name"])
