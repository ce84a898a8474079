"""The class of an error and the step that raises it, of ours and of DALI's readers."""

import re

import pytest
from nvidia.dali import Pipeline, fn, types

from dali_storage import readers
from dali_storage.contract.errors import RecordError
from tests.kit import versions
from tests.kit.containers import example, int64_feature, write_tfrecord
from tests.kit.databases import write_lmdb
from tests.kit.pages import text_of
from tests.kit.parity import numbered

pytestmark = pytest.mark.usefixtures("no_deprecations")  # of fn.readers.sequence

SOURCES = {"coco": "annotations_file", "nemo_asr": "manifest_filepaths", "webdataset": "paths"}
SOURCES |= dict.fromkeys(("caffe", "caffe2", "mxnet", "tfrecord"), "path")
SOURCES |= {"file": "files", "numpy": "file_root", "sequence": "file_root"}
INDEXES = {"mxnet": "index_path", "tfrecord": "index_path", "webdataset": "index_paths"}
BUILD, RUN = ("build", RuntimeError), ("run", RuntimeError)
WRONG, BAD = ("call", ValueError), ("run", RecordError)
IMAGE, BOX = '{"images": [{"id": %s, "file_name": "a"}]', '{"image_id": 1, "bbox": [1, 2, 3]}'
TEXTS = {"empty": "", "x.json": IMAGE % '"1"' + "}", "x.npy": "x" * 200, "x.tar": "x" * 1024}
TEXTS |= {"box.json": f'{IMAGE % 1}, "annotations": [{BOX}]}}', "none.json": '{"images": []}'}
CELLS = r"^\| (.*) \| (.*) \| (.*) \| `readers/test_error_classes.py::"
PAGE = re.findall(CELLS, text_of("docs/differences.md"), re.MULTILINE)
GONE, OTHER, NONE, RECORD = ("run", FileNotFoundError), "any other", "no samples", "a record"
NEW = [  # of DALI 2.4; older ones may accept these, or crash
    *((OTHER, reader, {"prefetch_queue_depth": 0}, BUILD, WRONG) for reader in SOURCES),
    (OTHER, "caffe", {"image_available": False, "label_available": False},
     ("call", IndexError), WRONG),
    (OTHER, "caffe2", {"label_type": 1}, RUN, WRONG),
    (OTHER, "coco", {"images": ["no.jpg"]}, BUILD, WRONG),
    (OTHER, "coco", {"polygon_masks": True, "pixelwise_masks": True}, BUILD, WRONG),
    (OTHER, "file", {"device": "tpu"}, BUILD, WRONG),
    (OTHER, "file", {"labels": [1, 2, 3]}, BUILD, WRONG),
    (OTHER, "file", {"random_shuffle": True, "shuffle_after_epoch": True}, BUILD, WRONG),
    (OTHER, "mxnet", {"index_path": ["a", "b"]}, BUILD, WRONG),
    (OTHER, "nemo_asr", {"dtype": types.UINT8}, RUN, WRONG),
    (OTHER, "numpy", {"out_of_bounds_policy": "x"}, BUILD, WRONG),
    (OTHER, "numpy", {"roi_end": [1], "roi_shape": [1]}, BUILD, WRONG),
    (OTHER, "sequence", {"sequence_length": -1}, ("build", ValueError), WRONG),
    (OTHER, "sequence", {"stride": 0}, BUILD, WRONG),
    (OTHER, "tfrecord", {"features": {}}, ("call", RuntimeError), WRONG),
    (OTHER, "webdataset", {"missing_component_behavior": "x"}, BUILD, WRONG),
    (NONE, "coco", {"annotations_file": "box.json"}, ("build", ValueError), WRONG),
    *((RECORD, reader, {"path": "db"}, RUN, BAD) for reader in ("caffe", "caffe2")),
]  # fmt: skip
FILES = [
    ("the file", "file", {"files": ["gone"], "labels": None}, RUN, GONE),
    ("the file", "numpy", {"files": ["gone"], "file_root": None}, RUN, GONE),
    (NONE, "file", {"files": None, "labels": None, "file_root": "db"}, BUILD, WRONG),
    *((NONE, reader, {"file_root": "db"}, BUILD, WRONG) for reader in ("numpy", "sequence")),
    *((NONE, reader, {INDEXES[reader]: "empty"}, BUILD, WRONG) for reader in INDEXES),
    (NONE, "nemo_asr", {"manifest_filepaths": "empty"}, BUILD, WRONG),
    (NONE, "webdataset", {"paths": "x.tar", "index_paths": None}, BUILD, WRONG),
    *((NONE, "coco", {"annotations_file": name}, BUILD, WRONG) for name in ("x.json", "none.json")),
    (RECORD, "numpy", {"file_root": None, "files": ["x.npy"]}, RUN, BAD),
    (RECORD, "numpy", {"roi_end": [2]}, RUN, BAD),
    (RECORD, "tfrecord", {"path": "x.rec", "index_path": "x.idx"}, RUN, BAD),
    (RECORD, "tfrecord", {"path": "two.rec", "index_path": "two.idx"}, RUN, BAD),
]


def rows():
    """The start of a row of the page, a reader, changed arguments, DALI's step and class, ours."""
    for reader, source in SOURCES.items():
        yield "an argument", reader, {"no_such": 1}, ("call", KeyError), ("call", TypeError)
        yield "text for", reader, {"num_shards": "x"}, ("call", ValueError), ("call", TypeError)
        yield "`num_shards` or", reader, {"num_shards": 3}, BUILD, WRONG
        yield "`num_shards` or", reader, {"num_shards": 2, "shard_id": 2}, BUILD, WRONG
        theirs = ("call", TypeError) if reader == "tfrecord" else BUILD
        mine = ValueError if reader in ("coco", "file", "numpy") else TypeError
        nothing = {source: None} | ({"labels": None} if reader == "file" else {})
        yield "a source", reader, nothing, theirs, ("call", mine)
        if reader != "file":
            gone = {INDEXES.get(reader, source): "gone"}
            yield "a directory", reader, gone, BUILD, ("call", FileNotFoundError)
    yield from FILES + (NEW if versions.has("2.4") else [])


def test_every_row_of_the_page_has_a_case():
    starts = {start for start, *_ in [*rows(), *NEW]}
    assert [sum(map(row.startswith, starts)) for row, *_ in PAGE] == [1] * 9


@pytest.mark.parametrize(("what", "reader", "change", "theirs", "mine"), [*rows()])
def test_errors_have_these_classes(what, reader, change, theirs, mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    write_tfrecord(tmp_path / "x.rec", [b"\xff" * 30], tmp_path / "x.idx")
    two = example({"n": int64_feature([1, 2])})
    write_tfrecord(tmp_path / "two.rec", [two], tmp_path / "two.idx")
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
    (cells,) = (its for row, *its in PAGE if row.startswith(what))
    assert all(f"`{kind.__name__}`" in cell for (_, kind), cell in zip(found, cells, strict=True))
