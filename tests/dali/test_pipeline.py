"""Our readers in the graph of a DALI pipeline, beside the real ones."""

import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, pipeline_def, types

from dali_storage import readers, statistics
from tests.kit.dali import both, build, pipeline_of, take

pytestmark = pytest.mark.usefixtures("pipelines_end")

LONG = pytest.mark.long


@pytest.fixture
def root(tree):
    return str(tree(10))


def expected_of(root, batches=5):
    return take(build(fn.readers.file, 4, file_root=root, dont_use_mmap=True), batches)


def test_unseeded_pipelines_shuffle_the_same_epoch_differently(tree):
    arguments = {"file_root": str(tree(40, sizes=(9,))), "random_shuffle": True}
    first, second = (take(build(readers.file, **arguments), 10) for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)


def test_several_outputs_are_a_tuple(root):
    with Pipeline(4, num_threads=1, device_id=None):
        nodes = [module.file(file_root=root) for module in (fn.readers, readers)]
    assert [*map(type, nodes)] == [list, tuple]


# --- names and metadata ---------------------------------------------------------------------------


def test_a_reader_made_outside_of_a_pipeline_is_named_as_by_dali(root):
    def name(module):
        nodes = module.file(file_root=root)
        (found,) = pipeline_of(lambda: nodes).reader_meta()
        return str(found).rstrip("0123456789")

    assert both(name) == "__File_detached_"


def test_an_unknown_name_raises_the_error_of_dali(root):
    with pytest.raises(RuntimeError, match="zz"):
        build(readers.file, file_root=root).reader_meta("zz")


@pytest.mark.parametrize("outputs", [(0, 0), (0, 1)])
@pytest.mark.parametrize("file", [fn.readers.file, readers.file])
@pytest.mark.parametrize("use", [Pipeline.reader_meta, Pipeline.run])
def test_two_readers_of_one_name_are_refused(root, outputs, file, use):
    with pytest.raises(RuntimeError, match="'R"):
        use(pipeline_of(lambda: [file(file_root=root, name="R")[output] for output in outputs]))


DEFINE_GRAPH = """
import os, signal, sys, threading
from nvidia.dali import Pipeline, fn
from dali_storage import readers

class Old(Pipeline):
    def define_graph(self):
        return readers.file(file_root=sys.argv[1], name="R")

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
pipeline = Old(batch_size=64, num_threads=1, device_id=None)
print(getattr(pipeline, sys.argv[2])("R"))
try:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    while True:
        pipeline.run()
except KeyboardInterrupt:
    pipeline.run()
    print("interrupted")
# The pipeline is closed by nobody.
"""


@pytest.mark.parametrize("method", ["epoch_size", pytest.param("reader_meta", marks=LONG)])
def test_the_first_call_of_a_process_knows_a_reader_and_nobody_need_close_it(tree, method):
    """Also after a Ctrl-C."""
    root = str(tree(200, sizes=(90_000,)))
    command = [sys.executable, "-c", DEFINE_GRAPH, root, method]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    real = getattr(build(fn.readers.file, file_root=root, name="R"), method)("R")
    assert (run.returncode, run.stdout, run.stderr) == (0, f"{real}\ninterrupted\n", "")


def test_statistics_of_a_reader_of_dali_are_refused(root):
    pipeline = build(fn.readers.file, file_root=root, name="R")
    with pytest.raises(ValueError, match=r"no reader 'R' of dali_storage; it has \[\]"):
        statistics(pipeline, "R")


def test_statistics_of_the_executor_have_an_entry_for_each_output(root):
    """With DALI's dynamic executor, they are empty for all readers."""
    options, found = {"exec_dynamic": False, "enable_memory_stats": True}, []
    given = {"file_root": root, "name": "R", "dont_use_mmap": True}
    for module in (fn.readers, readers):
        pipeline = pipeline_of(lambda it=module: it.file(**given), **options)
        pipeline.run()
        entries = pipeline.executor_statistics().items()
        found.append({key: len(it["real_memory_size"]) for key, it in entries})
    copies = {f"CPU___MakeContiguous_CpuToCpu_R[{output}]": 1 for output in (0, 1)}
    assert found == [{"CPU_R": 2} | copies, {"CPU_R[0]": 1, "CPU_R[1]": 1} | copies]


# --- styles of definition -------------------------------------------------------------------------


def by_operators_of_another_pipeline(module, root):
    first, second = (Pipeline(batch_size=b, num_threads=1, device_id=None) for b in (2, 3))
    with first:
        nodes = module.file(file_root=root, dont_use_mmap=True)
        first.set_outputs(*nodes)
    second.set_outputs(*nodes)
    return [take(pipeline, 5) for pipeline in (second, first, second)]


def by_operators_made_outside(module, root):
    """Each of the pipelines reads for itself, from the start, in batches of its own size."""
    nodes = module.file(file_root=root, name="R", dont_use_mmap=True)
    pipelines = [pipeline_of(lambda: nodes, batch_size) for batch_size in (2, 3, 2)]
    return [(take(pipeline, 7), pipeline.reader_meta("R")) for pipeline in pipelines * 2]


def by_operators_behind_one_made_outside(module, root):
    data, labels = module.file(file_root=root, name="R", dont_use_mmap=True)
    data = fn.copy(data)
    pipeline = pipeline_of(lambda: (data, labels))
    return pipeline.epoch_size("R"), take(pipeline, 5)


def by_an_unused_output(module, root, output):
    """Operators made outside and inside of a pipeline are numbered apart and may share numbers."""
    many = [module.file(file_root=root, dont_use_mmap=True)[output] for _ in range(3)]
    pipeline = pipeline_of(lambda: [fn.copy(node) for node in many for _ in range(60)])
    outputs = [out for _ in range(3) for out in pipeline.run()]
    return [np.asarray(out[slot]).tobytes() for out in outputs for slot in range(4)]


def by_define_graph(module, root):
    class Old(Pipeline):
        def define_graph(self):
            return module.file(file_root=root, name="R", dont_use_mmap=True)

    return take(Old(batch_size=4, num_threads=1, device_id=None), 5)


def by_preserving(module, root, preserve):
    def define():
        module.file(file_root=root, name="R", preserve=preserve, dont_use_mmap=True)
        return module.file(file_root=root, dont_use_mmap=True)

    pipeline = pipeline_of(define)
    assert ("R" in pipeline.reader_meta()) == preserve
    return take(pipeline, 3), pipeline.reader_meta()


def by_a_branch(module, root, branch):
    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_conditionals=True)
    def definition():
        numbers = fn.external_source(alternating, batch=True)
        if numbers == branch:
            data, labels = module.file(file_root=root, dont_use_mmap=True)
        else:
            data, labels = types.Constant(np.zeros(1, np.uint8)), types.Constant([7])
        return data, labels

    return take(definition(), 5)


def alternating(index):
    return [np.array(index + slot & 1) for slot in range(4)]


def by_pipeline_def_and_conditionals(module, root):
    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_conditionals=True)
    def definition():
        data, labels = module.file(file_root=root, dont_use_mmap=True)
        if (labels[0] & 1) == 1:  # noqa: SIM108  (what AutoGraph rewrites)
            out = labels + 100
        else:
            out = -labels
        return data, fn.cast(out, dtype=types.INT32)

    return take(definition(), 5)


@pytest.mark.parametrize(
    "define",
    [
        *(by_operators_made_outside, by_operators_of_another_pipeline, by_define_graph),
        *(by_operators_behind_one_made_outside, by_pipeline_def_and_conditionals),
        *(partial(by_an_unused_output, output=output) for output in (0, 1)),
        *(partial(by_preserving, preserve=preserve) for preserve in (False, True)),
        *(partial(by_a_branch, branch=branch) for branch in (0, 1)),
    ],
    ids=lambda define: getattr(define, "__name__", "") or define.func.__name__,
)
def test_a_definition_gives_the_same_as_with_the_real_reader(root, define):
    assert both(lambda module: define(module, root=root))


def test_preserve_needs_a_pipeline(root):
    for file in (fn.readers.file, readers.file):
        with pytest.raises(RuntimeError, match="Current Pipeline not set"):
            file(file_root=root, preserve=True)


def test_a_pipeline_cannot_be_serialized(root, tmp_path):
    for built in (False, True):
        pipeline = build(readers.file, file_root=root, name="R")
        if built:
            pipeline.build()
        with pytest.raises(RuntimeError, match=r"'R'.*cannot be serialized"):
            pipeline.serialize(filename=str(tmp_path / "pipeline"))
    assert not (tmp_path / "pipeline").exists()
    real = build(fn.readers.file, file_root=root, dont_use_mmap=True).serialize()
    assert take(Pipeline.deserialize(real), 5) == expected_of(root)


def test_an_unused_output_causes_no_warning(root):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipeline = pipeline_of(lambda: readers.file(file_root=root)[:1])
        pipeline.build()
    assert [str(warning.message) for warning in caught] == []
    (batch,) = pipeline.run()
    assert np.asarray(batch[0]).tobytes() == expected_of(root, 1)[0][0]
