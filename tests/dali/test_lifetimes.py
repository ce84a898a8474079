"""What a pipeline with our reader holds, for how long, and what is left of it."""

import pickle
import weakref

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, pipeline_def
from nvidia.dali.pipeline import experimental

from dali_storage import readers
from dali_storage.dali import group
from dali_storage.dali.group import Delivery
from tests.kit.dali import build, pipeline_of, take
from tests.kit.interrupts import interrupted
from tests.kit.process import (
    descriptors,
    lanes,
    open_files,
    status_of_fork,
    without_collector,
)

pytestmark = pytest.mark.usefixtures("pipelines_end")

LONG = pytest.mark.long


@pytest.mark.parametrize("exec_dynamic", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3, 8, *(pytest.param(n, marks=LONG) for n in range(4, 8))])
def test_no_batch_is_overwritten_while_dali_holds_it(jpegs, exec_dynamic, depth):
    """Many reads ahead, few buffers, images decoded late, outputs kept: all stay right."""

    def train(file):
        def define():
            data, labels = file(file_root=str(jpegs), random_shuffle=True, seed=depth)
            return fn.decoders.image(data), data, labels

        return pipeline_of(define, 5, prefetch_queue_depth=depth, exec_dynamic=exec_dynamic)

    ours, real = train(readers.file), train(fn.readers.file)
    kept = []
    for _ in range(40):
        (images, data, _), (expected, expected_data, _) = ours.run(), real.run()
        for slot in range(5):
            assert np.array_equal(images.at(slot), expected.at(slot))
        kept.append((data, [expected_data.at(slot).tobytes() for slot in range(5)]))
        if exec_dynamic:  # the other executors use the memory of an output again
            for held, contents in kept[-7:]:
                assert [held.at(slot).tobytes() for slot in range(5)] == contents


@pytest.mark.parametrize("backend", ["memory", "python-file"])
def test_samples_of_one_size_stay_as_they_are_while_anything_holds_them(tree, monkeypatch, backend):
    """They reach DALI as one array: a batch, a view of it, a sample or a tensor may be kept."""
    monkeypatch.setattr(group, "TensorCPU", "no sample is a tensor of its own")
    arguments = {"file_root": str(tree(64, sizes=(3072,))), "random_shuffle": True, "seed": 1}
    options = {"prefetch_queue_depth": 3}
    ours = build(readers.file, 16, **arguments, backend=backend, pipeline=options)
    real = build(fn.readers.file, 16, **arguments, dont_use_mmap=True)
    kept = []
    for number in range(120):
        (data, _), (expected, _) = ours.run(), real.run()
        batch = expected.as_array().copy()
        holder = [
            (data, batch),
            (np.asarray(data.as_tensor()), batch),
            (np.asarray(data[5]), batch[5]),
            (np.from_dlpack(data.as_tensor()), batch),
        ][number % 4]
        kept.append(holder)
        del data
        for held, contents in kept[-40:]:
            assert np.array_equal(getattr(held, "as_array", lambda held=held: held)(), contents)
        del held, holder


def in_context(root):
    return build(readers.file, file_root=root)


def outside(root):
    nodes = readers.file(file_root=root)
    return pipeline_of(lambda: nodes)


@pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_conditionals=True)
def decorated(root):
    return readers.file(file_root=root)


class Old(Pipeline):
    def __init__(self, root: str) -> None:
        super().__init__(batch_size=4, num_threads=1, device_id=None)
        self.root = root

    def define_graph(self):
        return readers.file(file_root=self.root)


@pytest.mark.parametrize("make", [in_context, outside, decorated, Old])
@pytest.mark.parametrize("batches", [0, 1, 5])
def test_a_dropped_pipeline_is_closed_at_once(tree, make, batches):
    """Without the garbage collector, which would come late and find many of them."""
    root = str(tree(20))
    make(root).run()
    with without_collector():
        before = lanes()
        pipeline = make(root)
        pipeline.build()
        for _ in range(batches):
            pipeline.run()
        del pipeline
        assert lanes() <= before
        assert descriptors(below=root) == set()


@pytest.mark.dali("2.0", "its lists of tensors are copies")
def test_the_lists_of_four_batches_are_kept_until_the_pipeline_is_dropped(tree):
    """So they die in the main thread, and not in a thread of DALI that waits for Python."""
    pipeline = build(readers.file, file_root=str(tree(20)), name="R")
    take(pipeline, 6)
    recent = group.readers_of(pipeline)["R"].source(pipeline).recent
    lists = [weakref.ref(each) for outputs in recent for each, *_ in outputs.values()]
    assert len(lists) == 8
    with without_collector():
        del pipeline, recent
        assert {each() for each in lists} == {None}


def test_a_pipeline_whose_definition_fails_leaves_nothing_open(tree):
    root = str(tree(20))

    def fails():
        readers.file(file_root=root)
        return readers.file(file_root=root + "/missing")

    before = lanes()
    with pytest.raises(FileNotFoundError):
        pipeline_of(fails)
    assert open_files(below=root) == set()
    assert lanes() <= before


def test_a_fork_cannot_use_the_files_of_its_parent(tree):
    """Unless it opens the files itself."""
    root = str(tree(5))
    assert status_of_fork(build(readers.file, file_root=root).run) == 17
    assert status_of_fork(build(readers.file, file_root=root, lazy_init=True).run) == 0


def test_pickling_is_refused(tree):
    root = str(tree(5))
    for thing in (readers.file(file_root=root)[0], build(readers.file, file_root=root)):
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(thing)


def test_debug_mode_is_refused(tree):
    root = str(tree(5))

    @experimental.pipeline_def(batch_size=4, num_threads=1, device_id=None, debug=True)
    def definition():
        return readers.file(file_root=root)

    with pytest.raises(RuntimeError, match="debug"):
        definition().run()
    while Pipeline.current() is not None:  # before 2.3, DALI leaves it there after an error
        Pipeline.pop_current()


@pytest.mark.parametrize("point", [*range(8), *(pytest.param(n, marks=LONG) for n in range(8, 25))])
def test_ctrl_c_does_not_part_data_and_labels(tree, point):
    root = str(tree(40, sizes=(10, 20)))
    pipeline = build(readers.file, file_root=root)
    expected = take(build(fn.readers.file, file_root=root), 20)
    seen = take(pipeline, 2)
    with pytest.raises(KeyboardInterrupt), interrupted(Delivery.feed, point):
        while True:
            pipeline.run()
    following = take(pipeline, 8)
    assert set(following) <= set(expected)
    if point < 8:  # the others are in the midst of DALI's own work
        assert seen + following == expected[: 4 * 10]
