"""The memory and the threads of a process whose pipelines run, and are made again and again."""

import resource

import pytest
from nvidia.dali import fn

from dali_storage import readers
from tests.kit.dali import build, pipeline_of, take
from tests.kit.process import alone, resident, tasks


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.dali("2.0", "its lists of tensors are copies")
@pytest.mark.long
@alone
def test_a_running_pipeline_takes_no_memory_and_causes_no_page_faults(tree):
    """Neither with samples of several sizes nor of one size, which are one array."""
    sizes = str(tree(64, sizes=(50_000, 60_000)))

    def define():
        data, labels = readers.file(file_root=sizes)
        return fn.slice(data, 0, 10, axes=[0]), labels

    pipeline = pipeline_of(define, 16)
    for _ in range(30):
        pipeline.run()
    before = page_faults()
    for _ in range(50):
        pipeline.run()
    assert (page_faults() - before) / 50 < 20  # a batch has 220 pages
    del pipeline
    pipeline = build(readers.file, 32, file_root=str(tree(64, sizes=(100_000,))))
    for _ in range(20):
        pipeline.run()
    before = resident()
    for _ in range(70):
        pipeline.run()
    assert resident() - before < 100 << 20  # 70 batches are 224 MB


@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.long), pytest.param(10, marks=pytest.mark.soak)]
)
@alone
def test_memory_and_threads_are_flat_over_many_redefinitions(tree, rounds):
    """As in a notebook, whose cell is run again and again."""
    root = str(tree(64, sizes=(100_000,)))

    def redefine(times):
        for _ in range(times):
            take(build(readers.file, 32, file_root=root), 3)
        return resident(), tasks()

    memory, threads = redefine(50)
    for _ in range(rounds):
        more_memory, more_threads = redefine(50)
        assert more_threads < threads + 20  # DALI's own end some time later
        assert more_memory - memory < 50 * (10 << 20) // 4  # one pipeline has 10 MB of buffers
