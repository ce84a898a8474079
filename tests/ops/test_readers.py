"""Classes of readers in the same pipelines as those of nvidia.dali.ops.readers, the oracle."""

from random import Random
from types import SimpleNamespace

import nvidia.dali.ops as dali_ops
import pytest
from nvidia.dali import Pipeline, fn
from nvidia.dali.plugin.base_iterator import LastBatchPolicy

from dali_storage import ops
from tests.kit import versions
from tests.kit.dali import pipeline_of
from tests.kit.parity import compare, contents, epochs, numbered, seeds, some_order, take
from tests.kit.tiers import by_tier

pytestmark = pytest.mark.usefixtures("no_deprecations")

CLASSES = {"coco": "COCO", "file": "File", "mxnet": "MXNet", "numpy": "Numpy"}
CLASSES |= {"nemo_asr": "NemoAsr", "sequence": "Sequence"}
CLASSES |= {"tfrecord": "TFRecord", "webdataset": "Webdataset"}
CLASSES |= {"caffe": "Caffe", "caffe2": "Caffe2"}
OF_FILES = "coco", "file", "nemo_asr", "numpy", "sequence"
MARKS = {"coco": [pytest.mark.long], "caffe": [versions.CAFFE], "caffe2": [versions.CAFFE]}
READERS = [pytest.param(each, marks=MARKS.get(each, [])) for each in CLASSES]


def functions(module):
    """The functions of fn.readers by the classes of a module, whose calls get some arguments."""

    def by_class(name):
        def read(**given):
            to_call = {"name", "num_shards", "pad_last_batch", "random_shuffle", "seed"}
            called = {it: given.pop(it) for it in to_call & {*given}}
            return getattr(module, name)(**given)(**called)

        return read

    return SimpleNamespace(**{function: by_class(name) for function, name in CLASSES.items()})


@pytest.mark.parametrize("reader", READERS)
def test_random_orders_and_iterators_are_as_dali_has_them(reader, tmp_path):
    made = numbered(reader, tmp_path / "numbered", [3, 5, 6, 2])
    real, ours = made(functions(dali_ops.readers)), made(functions(ops.readers))
    found = []
    has = {"by_container": reader not in OF_FILES}
    has["by_epoch"] = reader != "sequence" and not reader.startswith("caffe")
    for seed in seeds(by_tier(3, 100 if reader == "file" else 6)):
        random = Random(seed)
        found.append(compare(random, real, ours, some_order(random, 16, **has)))
    assert {"equal", "restored"} <= {*found}
    order = {"num_shards": 3, "random_shuffle": True, "seed": 4, "cut": 3}
    expected = epochs(real, LastBatchPolicy.PARTIAL, **order)
    assert epochs(ours, LastBatchPolicy.PARTIAL, **order) == expected != "refused"


def test_a_pipeline_of_the_old_style_has_the_names_and_seeds_of_dali(root):
    class Old(Pipeline):
        def __init__(self, module):
            super().__init__(4, 1, None, seed=12)
            self.named = module.File(file_root=root, dont_use_mmap=True, name="Reader")
            self.input = module.File(random_shuffle=True, dont_use_mmap=True)
            self.uniform = dali_ops.random.Uniform()

        def define_graph(self):
            first = [self.uniform(), self.uniform(seed=3)]  # which takes no seed of the pipeline
            readers = [*self.named(), *self.input(file_root=root), *self.input(file_root=root)]
            self.nodes = [*first, *readers, self.uniform(), fn.random.coin_flip()]
            return self.nodes

    def run(module):
        pipeline = Old(module)
        batches = take(pipeline, 8)
        meta = pipeline.epoch_size("Reader"), pipeline.reader_meta()
        return [it.name for it in pipeline.nodes], batches, meta

    expected = run(dali_ops.readers)
    assert run(ops.readers) == expected
    assert "__File_3[1]" in expected[0]


def test_readers_that_dali_lacks_are_classes_too(tmp_path):
    (tmp_path / "all").write_bytes(b"abcdef")
    reader = ops.readers.Records(files=str(tmp_path / "all"), sizes=2)
    assert contents(pipeline_of(lambda: reader(offsets=[4, 0])[:1], 2)) == [[b"ef", b"ab"]]
    reader = ops.readers.Columns(files=["{}", "{}"], file_root=str(tmp_path))
    assert contents(pipeline_of(lambda: reader(keys=["all"]), 1)) == [[b"abcdef"]] * 2


@pytest.mark.parametrize(
    ("given", "called", "message"),
    [
        ({"seeds": 1}, {}, r"^File\(\) got an unexpected keyword argument 'seeds'"),
        ({"num_shards": 0}, {"name": "A"}, "num_shards must be"),
        ({}, {"name": 3}, "name must be a string"),
        ({"name": "A"}, {"name": "A"}, "^File: give name to the constructor only"),
        ({}, {"device": "cpu"}, "^File: give device to the constructor only"),
        ({}, {"seeds": 1}, "unexpected keyword argument 'seeds'"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(given, called, message):
    reader = ops.readers.File(file_root="/missing", **given if called else {})
    with pytest.raises((TypeError, ValueError), match=message):
        reader(**called) if called else ops.readers.File(file_root="/missing", **given)
