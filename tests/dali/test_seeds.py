"""Random operators draw the same beside our readers as beside DALI's; see test_random_graphs.py."""

from functools import partial

import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.dali import executor
from tests.kit.dali import both, pipeline_of
from tests.kit.parity import take

pytestmark = pytest.mark.usefixtures("pipelines_end")


@pytest.fixture
def root(tree):
    return str(tree(20, sizes=(9,)))


def shuffled(module, root, **more):
    """The labels of a reader."""
    return module.file(file_root=root, random_shuffle=True, **more)[1]


def more_than_all_seeds_of_a_pipeline(module, root):
    """1,024, which then are given again."""
    many = [fn.random.uniform(shape=[1]) for _ in range(1200)]
    readers = [shuffled(module, root) for _ in range(2)]
    return fn.cat(*many[:700]), readers[0], fn.cat(*many[700:]), readers[1], fn.random.uniform()


def readers_without_outputs_in_use(module, root):
    """One of them is kept."""
    shuffled(module, root)
    shuffled(module, root, preserve=True)
    return fn.random.uniform(), shuffled(module, root), fn.random.uniform()


MANY = pytest.param(more_than_all_seeds_of_a_pipeline, marks=pytest.mark.long)


@pytest.mark.parametrize("define", [MANY, readers_without_outputs_in_use])
def test_operators_draw_as_beside_dalis_readers(define, root):
    both(lambda module: take(pipeline_of(lambda: define(module, root), seed=9), 9))


def test_pipelines_of_the_same_nodes_draw_by_their_own_seeds(root):
    def drawn(module):
        nodes = fn.random.uniform(name="A"), shuffled(module, root), fn.random.uniform(name="B")
        return [take(pipeline_of(lambda: nodes, seed=seed), 9) for seed in (1, 2, 1)]

    first, second, again = both(drawn)
    assert first == again != second


def drawing(read, **options):
    """A pipeline of labels, and of numbers drawn behind them."""
    return pipeline_of(lambda: (read(), fn.random.uniform()), seed=3, **options)


@pytest.mark.parametrize("seed", [{}, {"seed": 0}])
@pytest.mark.parametrize(
    "given", [{"weights": "balanced"}, {"order": lambda epoch: [0]}, {"epoch_size": 5}, None]
)
def test_a_reader_in_an_order_of_our_own_takes_a_seed_as_any_other(given, seed, root):
    def read():
        if given is None:
            return readers.mix({"A": {"file_root": root}}, **seed)[1]
        return readers.file(file_root=root, **given, **seed)[1]

    expected = take(drawing(lambda: fn.readers.file(file_root=root, **seed)[1]), 3)
    assert [draws for _, draws in take(drawing(read), 3)] == [draws for _, draws in expected]


def test_a_checkpoint_from_before_readers_took_seeds_goes_on_with_its_numbers(root, monkeypatch):
    make = partial(drawing, lambda: shuffled(readers, root), enable_checkpointing=True)
    now = take(make(), 2)
    with monkeypatch.context() as before:
        before.setattr(executor, "with_takers", iter)
        pipeline = make()
        assert take(pipeline, 2) != now
    restored = make(checkpoint=pipeline.checkpoint())
    assert take(restored, 7) == take(pipeline, 7)


def test_what_takes_a_seed_never_runs(root):
    statistics = {"enable_memory_stats": True, "exec_dynamic": False}
    pipeline = pipeline_of(lambda: [shuffled(readers, root, name="R")], **statistics)
    pipeline.run()
    assert [it for it in pipeline.executor_statistics() if "R[1]" not in it] == []
    assert [it.name for it in pipeline._ops] == ["R[1]"]
