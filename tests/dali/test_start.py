"""How the readers of one pipeline begin: together, each at its own position."""

import contextlib
import itertools
import threading
from functools import partial

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.dali import group, seeds, source
from dali_storage.reading import prefetch
from dali_storage.reading import source as reading
from tests.kit.dali import both, pipeline_of
from tests.kit.interrupts import ends_at
from tests.kit.process import lanes, open_files, without_collector
from tests.kit.stand_ins import Recorder, content
from tests.kit.tiers import by_tier

pytestmark = pytest.mark.usefixtures("pipelines_end")

NAMES = "A", "B", "C"


def several(file, root, names=NAMES, **of_b):
    """A pipeline with the data of several readers; only reader B has other arguments."""

    def define():
        arguments = {name: of_b if name == "B" else {} for name in names}
        return [file(**{"file_root": str(root), "name": it} | arguments[it])[0] for it in names]

    return pipeline_of(define)


def batch_of(outputs):
    return [[np.asarray(sample).tobytes() for sample in output] for output in outputs]


@pytest.fixture
def root(tree):
    return tree(40, sizes=(10, 20))


def test_all_readers_of_a_pipeline_read_before_the_first_is_awaited(root):
    """The first read of each ends when all have begun one; this would never be the case."""
    positions, everyone = {}, threading.Event()

    class Waiting(Recorder):
        def read(self, batch, lane):
            positions.setdefault(self, []).append(batch.samples[0])
            if len(positions) == len(NAMES):
                everyone.set()
            assert everyone.wait(300)
            super().read(batch, lane)

    pipeline = several(partial(readers.file, backend=Waiting), root)
    source(pipeline, "B").position.seek(3)
    a, b, c = batch_of(pipeline.run())
    assert a == c == list(map(content, range(4)))
    assert b == list(map(content, range(12, 16)))
    assert sorted(min(seen) for seen in positions.values()) == [0, 0, 12]


@pytest.mark.parametrize("use", ["opening", "starting"])
def test_the_error_of_one_reader_of_several_is_its_own_until_it_works(root, use):
    away = root.with_name("away")
    root.rename(away)
    wrong = {"pinned": True} if use == "starting" else {"file_root": str(root)}
    expected = FileNotFoundError if use == "opening" else ValueError
    with without_collector():
        before = lanes()
        pipeline = several(partial(readers.file, lazy_init=True), away, **wrong)
        for _ in range(3):
            with pytest.raises(expected, match=str(root) if use == "opening" else "'B'"):
                pipeline.run()
        if use == "opening":
            root.symlink_to(away)
            real = several(fn.readers.file, root)
            for _ in range(5):
                assert batch_of(pipeline.run()) == batch_of(real.run())
        del pipeline
        assert lanes() <= before
        assert open_files(below=away) == set()


@pytest.mark.parametrize("module", [group, reading, prefetch])
def test_ctrl_c_while_readers_begin_loses_no_batch(root, module):
    order = {"random_shuffle": True, "seed": 1, "initial_fill": 7}
    real = several(fn.readers.file, root, "AB", **order)
    expected, before = [batch_of(real.run()) for _ in range(4)], lanes()
    for instruction in itertools.count(0, by_tier(9, 1)):
        pipeline = several(readers.file, root, "AB", **order)
        pipeline.build()

        def begin(pipeline=pipeline):
            for each in group.start_all(pipeline):
                each.read_ahead()

        ended = True
        with contextlib.suppress(RuntimeError):  # Thread.start() may turn a Ctrl-C into one
            ended = ends_at(instruction, module, begin)
        assert [batch_of(pipeline.run()) for _ in range(4)] == expected, instruction
        del pipeline, begin
        if not ended:
            break
    assert instruction
    assert lanes() <= before


def test_what_begins_a_pipeline_is_done_once_for_all_of_its_readers(root, monkeypatch):
    """Not once for each of them, which 1,000 readers would feel."""
    calls = []

    def count(module, name):
        real = getattr(module, name)
        counted = lambda *arguments: calls.append(name) or real(*arguments)  # noqa: E731
        monkeypatch.setattr(module, name, counted)

    count(group, "readers_of")
    count(seeds, "seed_words")

    def run(module):
        def define():
            return [module.file(file_root=str(root), random_shuffle=True)[0] for _ in range(9)]

        return batch_of(pipeline_of(define, seed=987_654_321).run())

    assert both(run)
    assert sorted(calls) == ["readers_of", "seed_words"]
