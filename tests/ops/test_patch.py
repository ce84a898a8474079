"""Our readers under DALI's names: by assignment, and by dali_storage.patch()."""

import inspect
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location

import nvidia.dali.ops as dali_ops
import pytest
from nvidia.dali import fn, pipeline_def

import dali_storage
from dali_storage import ops, readers
from dali_storage.backends.memory import MemoryReader
from dali_storage.dali.queries import source
from tests.kit.dali import pipeline_of
from tests.kit.parity import numbered, numbers, take
from tests.kit.paths import ROOT
from tests.ops.test_readers import CLASSES, READERS, functions

pytestmark = pytest.mark.usefixtures("no_deprecations")


def now():
    """What DALI's names stand for."""
    functions = [getattr(fn.readers, name) for name in CLASSES]
    return functions + [getattr(dali_ops.readers, name) for name in CLASSES.values()]


def is_in_memory(pipeline):
    return isinstance(source(pipeline, "R").open()[1], MemoryReader)


@pytest.mark.parametrize("reader", READERS)
def test_readers_under_the_names_of_dali_read_as_dali(reader, tmp_path, monkeypatch):
    made = numbered(reader, tmp_path / "numbered", [3, 5, 6, 2])
    order = {"name": "R", "random_shuffle": True, "seed": 2}

    def run():
        used = fn.readers, functions(dali_ops.readers)
        pipelines = [pipeline_of(lambda it=it: [made(it)(**order)]) for it in used]
        return [numbers(it, 8) for it in pipelines], pipelines

    (expected, _), before = run(), now()
    with dali_storage.patch(backend="memory"):
        found, pipelines = run()
    assert (found, now()) == (expected, before)
    assert [*map(is_in_memory, pipelines)] == [True, True]
    for name, operator in CLASSES.items():
        monkeypatch.setattr(fn.readers, name, getattr(readers, name))
        monkeypatch.setattr(dali_ops.readers, operator, getattr(ops.readers, operator))
    assert run()[0] == expected


@pytest.mark.parametrize("reader", CLASSES)
def test_what_is_under_the_names_of_dali_has_the_marks_of_dalis_and_our_arguments(reader):
    def marks():
        function, operator = getattr(fn.readers, reader), getattr(dali_ops.readers, CLASSES[reader])
        names = "_schema_name", "_generated", "_impl_module"
        return [getattr(function, name, None) for name in names] + [operator.schema_name]

    ours, before = getattr(readers, reader), marks()
    with dali_storage.patch():
        assert marks() == before
        swapped = getattr(fn.readers, reader)
        assert inspect.isfunction(swapped)
        assert (swapped.__name__, swapped.__doc__) == (reader, ours.__doc__)
        assert inspect.signature(swapped) == inspect.signature(ours)
    schemas = ours._schema_name, getattr(ops.readers, CLASSES[reader]).schema_name
    assert schemas == (before[0],) * 2  # for an assignment


def test_functions_under_the_names_of_dali_can_be_pickled_and_stay_the_same_in_inner_blocks():
    with dali_storage.patch():
        outer = now()
        with dali_storage.patch(seed=1):
            assert now() == outer
            for swapped in outer[: len(CLASSES)]:
                assert pickle.loads(pickle.dumps(swapped)) is swapped
        assert now() == outer


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_patch_is_undone_after_an_exception_also_of_an_inner_block(error):
    before = now()
    with dali_storage.patch():
        with pytest.raises(error), dali_storage.patch(seed=1):
            assert not {*now()} & {*before}
            raise error
        assert not {*now()} & {*before}
        assert "seed" not in dali_ops.readers.File.defaults
    assert now() == before


def test_patch_is_undone_when_blocks_of_two_threads_overlap():
    before, first, second = now(), dali_storage.patch(), dali_storage.patch()
    first.__enter__()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        assert not {*now()} & {*before}
        thread.submit(second.__exit__, None, None, None).result()
    assert now() == before


def test_patch_decorates_a_definition_with_conditionals(root):
    @dali_storage.patch(backend="memory")
    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_conditionals=True)
    def define():
        data, labels = fn.readers.file(file_root=root, name="R")
        if fn.squeeze(labels, axes=[0]) > 1:
            labels = labels + dali_ops.readers.File(file_root=root)()[1]
        return data, labels

    for pipeline in (define(), define()):
        assert is_in_memory(pipeline)
        pipeline.run()


def test_arguments_of_patch_are_defaults_also_in_an_inner_block(root):
    def make(**given):
        given |= {"file_root": root}
        yield pipeline_of(lambda: fn.readers.file(**given, name="R"))
        yield pipeline_of(lambda: dali_ops.readers.File(**given)(name="R"))

    shuffled = {"random_shuffle": True, "dont_use_mmap": True}
    expected = [[take(it, 6) for it in make(seed=seed, **shuffled)] for seed in (5, 6)]
    with dali_storage.patch(backend="memory", seed=5), dali_storage.patch(**shuffled):
        given = [*make(backend=None)], [*make(seed=6, backend="python-file")]
    assert [[take(it, 6) for it in each] for each in given] == expected
    assert [is_in_memory(it) for each in given for it in each] == [True, True, False, False]


def test_patch_refuses_an_argument_that_not_all_readers_have_at_once():
    with pytest.raises(
        TypeError, match=r"^patch\(\) got an unexpected keyword argument 'file_root'"
    ):
        dali_storage.patch(file_root="/data")


def test_another_reader_under_the_name_of_dalis_is_refused_by_the_import(monkeypatch):
    from dali_storage.readers import features

    spec = spec_from_file_location("dali_storage.readers.imported_late", features.__file__)
    monkeypatch.setattr(dali_ops.readers, "TFRecord", type("Other", (), {}))
    with pytest.raises(ImportError, match=r"Other.*: use dali_storage.readers.tfrecord before"):
        spec.loader.exec_module(module_from_spec(spec))


@pytest.mark.long
def test_dynamic_mode_that_is_imported_in_a_block_has_the_readers_of_dali(root):
    script = f"""
import dali_storage
with dali_storage.patch():
    import nvidia.dali.experimental.dynamic as ndd
    print(len([*ndd.readers.File(file_root={root!r}, dont_use_mmap=True).next_epoch(batch_size=4)]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.returncode) == ("6\n", 0), done.stderr


def test_readers_tfrecord_may_be_used_first_in_a_block():
    """It runs DALI's own reader, whose name is ours there."""
    script = "import dali_storage\nwith dali_storage.patch(): import dali_storage.readers.features"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
