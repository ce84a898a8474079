"""The class of an error and the step that raises it, of ours and of DALI's readers."""

import pytest
from nvidia.dali import Pipeline, fn

from dali_storage import readers
from dali_storage.contract.errors import RecordError
from tests.kit import versions
from tests.kit.containers import write_tfrecord
from tests.kit.databases import write_lmdb
from tests.kit.parity import numbered

pytestmark = pytest.mark.usefixtures("no_deprecations")  # of fn.readers.sequence

SOURCES = {"coco": "annotations_file", "nemo_asr": "manifest_filepaths", "webdataset": "paths"}
SOURCES |= dict.fromkeys(("caffe", "caffe2", "mxnet", "tfrecord"), "path")
SOURCES |= {"file": "files", "numpy": "file_root", "sequence": "file_root"}
INDEXES = {"tfrecord": "index_path", "webdataset": "index_paths"}
BUILD, RUN = ("build", RuntimeError), ("run", RuntimeError)
WRONG, BAD = ("call", ValueError), ("run", RecordError)
IMAGE, BOX = '{"images": [{"id": %s, "file_name": "a"}]', '{"image_id": 1, "bbox": [1, 2, 3]}'
TEXTS = {"empty": "", "x.json": IMAGE % '"1"' + "}", "x.npy": "x" * 200, "x.tar": "x" * 1024}
TEXTS |= {"box.json": f'{IMAGE % 1}, "annotations": [{BOX}]}}', "none.json": '{"images": []}'}


def rows():
    """A reader, changed arguments, and the step and the class: of DALI, and of ours."""
    for reader, source in SOURCES.items():
        yield reader, {"no_such": 1}, ("call", KeyError), ("call", TypeError)
        yield reader, {"num_shards": "x"}, ("call", ValueError), ("call", TypeError)
        yield reader, {"num_shards": 3}, BUILD, WRONG
        yield reader, {"num_shards": 2, "shard_id": 2}, BUILD, WRONG
        theirs = ("call", TypeError) if reader == "tfrecord" else BUILD
        mine = ValueError if reader in ("coco", "file", "numpy") else TypeError
        nothing = {source: None} | ({"labels": None} if reader == "file" else {})
        yield reader, nothing, theirs, ("call", mine)
        if reader != "file":
            yield reader, {INDEXES.get(reader, source): "gone"}, BUILD, ("call", FileNotFoundError)
    yield "file", {"files": ["gone"], "labels": None}, RUN, ("run", FileNotFoundError)
    yield "numpy", {"files": ["gone"], "file_root": None}, RUN, ("run", FileNotFoundError)
    yield "file", {"files": None, "labels": None, "file_root": "db"}, BUILD, WRONG
    for reader in ("numpy", "sequence"):
        yield reader, {"file_root": "db"}, BUILD, WRONG
    yield "nemo_asr", {"manifest_filepaths": "empty"}, BUILD, WRONG
    yield "webdataset", {"paths": "x.tar", "index_paths": None}, BUILD, WRONG
    for name in ("x.json", "none.json"):
        yield "coco", {"annotations_file": name}, BUILD, WRONG
    if versions.has("2.4"):  # older ones may accept these, or crash
        yield "coco", {"annotations_file": "box.json"}, ("build", ValueError), WRONG
        for reader in ("caffe", "caffe2"):
            yield reader, {"path": "db"}, RUN, BAD
    yield "numpy", {"file_root": None, "files": ["x.npy"]}, RUN, BAD
    yield "tfrecord", {"path": "x.rec", "index_path": "x.idx"}, RUN, BAD


@pytest.mark.parametrize(("reader", "change", "theirs", "mine"), [*rows()])
def test_errors_have_these_classes(reader, change, theirs, mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    write_tfrecord(tmp_path / "x.rec", [b"\xff" * 30], tmp_path / "x.idx")
    write_lmdb(tmp_path / "db", [b"\xff\xff"])
    made = numbered(reader, tmp_path / "good", [2])
    found = []
    for module in (fn.readers, readers):
        step, pipeline = "call", Pipeline(2, 1, None)
        with pytest.raises(Exception) as caught:
            with pipeline:
                pipeline.set_outputs(made(module)(**change))
            step = "build"
            pipeline.build()
            step = "run"
            pipeline.run()
        found.append((step, caught.type))
    assert mine[1] is not FileNotFoundError or caught.value.filename == "gone"
    assert found == [theirs, mine]
