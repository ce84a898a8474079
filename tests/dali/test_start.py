"""How the readers of one pipeline begin: together, each at its own position."""

import contextlib
import itertools
import secrets
import threading
from functools import partial

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.dali import group, seeds
from dali_storage.dali.queries import source
from dali_storage.reading import prefetch
from dali_storage.reading import source as reading
from tests.kit.dali import both, pipeline_of
from tests.kit.interrupts import ends_at
from tests.kit.process import lanes, open_files, without_collector
from tests.kit.stand_ins import Recorder, content
from tests.kit.tiers import by_tier

pytestmark = pytest.mark.usefixtures("pipelines_end")


def several(file, root, names="ABC", **of_b):
    """A pipeline with the data of several readers; only reader B has other arguments."""

    def define():
        arguments = {name: of_b if name == "B" else {} for name in names}
        return [file(**{"file_root": str(root), "name": it} | arguments[it])[0] for it in names]

    return pipeline_of(define)


def run(pipeline):
    return [[np.asarray(sample).tobytes() for sample in output] for output in pipeline.run()]


@pytest.fixture
def root(tree):
    return tree(40, sizes=(10, 20))


def test_all_readers_of_a_pipeline_read_before_the_first_is_awaited(root):
    """The first read of each ends when all have begun one."""
    positions, everyone = {}, threading.Event()

    class Waiting(Recorder):
        def read(self, batch, lane):
            positions.setdefault(self, []).append(batch.samples[0])
            if len(positions) == 3:
                everyone.set()
            assert everyone.wait(300)
            super().read(batch, lane)

    pipeline = several(partial(readers.file, backend=Waiting), root)
    source(pipeline, "B").position.seek(3)
    expected = [[content(first + slot) for slot in range(4)] for first in (0, 12, 0)]
    assert run(pipeline) == expected
    assert sorted(min(seen) for seen in positions.values()) == [0, 0, 12]


def test_the_error_of_one_reader_of_several_is_its_own_until_it_works(root):
    away = root.with_name("away")
    root.rename(away)
    with without_collector():
        before = lanes()
        pipeline = several(partial(readers.file, lazy_init=True), away, file_root=str(root))
        for _ in range(3):
            with pytest.raises(FileNotFoundError, match=str(root)):
                pipeline.run()
        root.symlink_to(away)
        real = several(fn.readers.file, root)
        assert [run(pipeline) for _ in range(5)] == [run(real) for _ in range(5)]
        pipeline = several(partial(readers.file, lazy_init=True), away, pinned=True)
        for _ in range(3):
            with pytest.raises(ValueError, match=r"'B'.*pinned"):
                pipeline.run()
        del pipeline
        assert lanes() <= before
        assert open_files(below=away) == set()


@pytest.mark.parametrize("module", [group, reading, prefetch])
def test_ctrl_c_while_readers_begin_loses_no_batch(root, module):
    order = {"random_shuffle": True, "seed": 1, "initial_fill": 7}
    real = several(fn.readers.file, root, "AB", **order)
    expected, before = [run(real) for _ in range(4)], lanes()

    def begin(pipeline):
        for each in group.start_all(pipeline):
            each.read_ahead()

    for instruction in itertools.count(0, by_tier(61, 3)):
        pipeline, ended = several(readers.file, root, "AB", **order), True
        pipeline.build()
        with contextlib.suppress(RuntimeError):  # Thread.start() may turn a Ctrl-C into one
            ended = ends_at(instruction, module, partial(begin, pipeline))
        assert [run(pipeline) for _ in range(4)] == expected, instruction
        if not ended:
            break
    del pipeline
    assert instruction
    assert lanes() <= before


def test_what_begins_a_pipeline_is_done_once_for_all_of_its_readers(root, monkeypatch):
    """Not once for each of them, which 1,000 readers would feel."""
    calls, made = [], seeds._table.cache_info().misses
    real = group.readers_of
    monkeypatch.setattr(group, "readers_of", lambda *given: calls.append(given) or real(*given))
    seed = secrets.randbits(31)  # one that no pipeline had

    def first(module):
        file = partial(module.file, file_root=str(root), random_shuffle=True)
        return run(pipeline_of(lambda: [file()[0] for _ in range(9)], seed=seed))

    assert both(first)
    assert (len(calls), seeds._table.cache_info().misses - made) == (1, 1)
