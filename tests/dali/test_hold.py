"""How long page-locked batches are held: until the outputs made of them have been taken."""

import gc
from collections import Counter

import pytest
from nvidia.dali import Pipeline, backend, fn

from dali_storage import readers
from dali_storage.dali import group, hold
from tests.kit.executor import BATCH


@pytest.fixture
def late_gpu(gpus, monkeypatch):
    """DALI finds the GPU of a pipeline that names none when the pipeline is built."""
    monkeypatch.setattr(Pipeline, "device_id", property(lambda self: 1 if self._built else None))
    real = group.TensorCPU
    monkeypatch.setattr(group, "TensorCPU", lambda content, layout, is_pinned: real(content))


def pipeline_of(root, exec_dynamic=True):
    pipeline = Pipeline(
        batch_size=BATCH, num_threads=1, prefetch_queue_depth=3, exec_dynamic=exec_dynamic
    )
    with pipeline:
        data, labels = readers.file(file_root=str(root))
        pipeline.set_outputs(fn.slice(data, 0, 100, axes=[0]), labels)
    return pipeline


def take_by_run(pipeline):
    pipeline.run()


def take_by_sharing(pipeline):
    pipeline.schedule_run()
    pipeline.share_outputs()
    pipeline.release_outputs()


@pytest.mark.parametrize("take", [take_by_run, take_by_sharing])
@pytest.mark.parametrize("exec_dynamic", [True, False])
def test_dali_lets_go_of_page_locked_batches_whose_outputs_are_taken(
    gpus, late_gpu, tree, take, exec_dynamic
):
    pipeline = pipeline_of(tree(10, sizes=(100, 200)), exec_dynamic)
    for _ in range(50):
        take(pipeline)
    assert 3 < len(gpus.registered) <= 3 + 2 + 1 + 3
    del pipeline
    gc.collect()
    assert not gpus.registered


def test_dali_lets_go_of_page_locked_batches_in_which_an_operator_fails(gpus, late_gpu, tree):
    pipeline = pipeline_of(tree(10, sizes=(100,) * 9 + (1,)))  # a slice of 1 byte fails
    failed = 0
    for _ in range(50):
        try:
            pipeline.run()
        except RuntimeError:
            failed += 1
    assert 10 < failed < 50
    assert len(gpus.registered) <= 3 + 2 + 1 + 3


def test_each_reader_of_a_pipeline_lets_go_of_one_batch_each_time(
    gpus, late_gpu, tree, monkeypatch
):
    released = []
    release = hold.Hold.release
    monkeypatch.setattr(
        hold.Hold, "release", lambda self, stream: released.append(self) or release(self, stream)
    )
    root = str(tree(10))
    pipelines = [Pipeline(batch_size=BATCH, num_threads=1) for _ in range(2)]
    for pipeline in pipelines:
        with pipeline:
            (data, _), (_, labels) = (readers.file(file_root=root, name=name) for name in "AB")
            pipeline.set_outputs(data, labels)
        pipeline.run()
    for _ in range(50):
        pipeline.run()
    assert sorted(Counter(released).values()) == [1, 1, 51, 51]
    assert len(gpus.registered) <= 2 * 2 * (2 + 2 + 1 + 3)


def test_the_outputs_of_a_pipeline_without_a_gpu_are_left_alone(tree, monkeypatch):
    def plain(executor, stream):
        return original(executor, stream)

    original = backend.Pipeline.Outputs
    monkeypatch.setattr(backend.Pipeline, "Outputs", plain)
    pipeline_of(tree(10, sizes=(100,))).run()
    assert backend.Pipeline.Outputs is plain
