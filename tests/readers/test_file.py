"""dali_storage.readers.file beside the real fn.readers.file, which is the oracle of all here."""

from pathlib import Path

import pytest
from nvidia.dali import Pipeline, fn, types

from dali_storage import readers
from dali_storage.backends.memory import MemoryReader
from tests.kit.dali import build, pipeline_of, take
from tests.kit.parity import take as samples

WAYS = [(False, 4, "memory"), (True, 4, "python-file")]
WAYS += [(True, 1, "memory"), (False, 1, "python-file")]


@pytest.mark.parametrize(("exec_dynamic", "batch_size", "backend"), WAYS)
@pytest.mark.parametrize(
    "sizes", [(3072,), (0,), (8, 8, 8, 8, 8, 16, 4, 4), (4, 4, 4, 4, 0, 0, 0, 0)], ids=str
)
def test_samples_of_one_size_are_the_same_to_all_operators(
    tree, sizes, backend, batch_size, exec_dynamic
):
    """Also in turn with batches of different sizes, which reach DALI in another way."""
    arguments = {"file_root": str(tree(24, classes=1, sizes=sizes))}

    def outputs(file, **more):
        def define():
            data, labels = file(**arguments, **more)
            integers = fn.reinterpret(data, dtype=types.DALIDataType.INT32)
            floats = fn.cast(data, dtype=types.DALIDataType.FLOAT16)
            return data, labels, integers, floats, fn.pad(data, fill_value=7), fn.copy(data)

        return samples(pipeline_of(define, batch_size, exec_dynamic=exec_dynamic), 30)

    ours = outputs(readers.file, backend=backend)
    assert ours == outputs(fn.readers.file, dont_use_mmap=True)


def test_a_missing_root_is_named_at_once_or_by_the_first_run_with_lazy_init(tmp_path):
    missing = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError) as caught:
        build(readers.file, file_root=missing)
    assert caught.value.filename == missing
    lazy = build(readers.file, file_root=missing, lazy_init=True, name="R")
    for attempt in (lazy.run, lambda: lazy.reader_meta("R")):
        with pytest.raises(FileNotFoundError):
            attempt()
    (tmp_path / "missing" / "class").mkdir(parents=True)
    (tmp_path / "missing" / "class" / "a.jpg").write_bytes(b"a")
    assert lazy.epoch_size("R") == 1
    assert take(lazy, 1) == [(b"a", 0)] * 4


def test_the_traceback_of_a_missing_root_is_short(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        build(readers.file, file_root=str(tmp_path / "missing"))
    ours = Path(readers.__file__).parents[1]
    frames = [f"{Path(it.path).name}: {it.name}" for it in caught.traceback]
    depth = sum(Path(it.path).is_relative_to(ours) for it in caught.traceback)
    assert depth <= 8, frames  # it was 12 when five callables opened each other


GPU_0 = {"device": "gpu", "gpu": 0}  # attributes of a backend


@pytest.mark.parametrize(
    ("backend", "gpu", "arguments", "message"),
    [
        ({}, 0, {"device": "gpu"}, r"'memory' .*reads into host memory.*xnvme-bam.*data\.gpu"),
        ({"device": "gpu"}, 0, {"device": None}, "also give device='gpu'"),
        ({"device": "gpu"}, 0, {"device": "cpu"}, "also give device='gpu'"),
        (GPU_0, None, {"device": "gpu"}, "uses GPU 0, and the pipeline has"),
        (GPU_0, 1, {"device": "gpu"}, "uses GPU 0, and the pipeline has"),
        ({}, None, {"pinned": True}, "pinned=True needs"),
    ],
)
def test_memory_that_backend_and_pipeline_do_not_share_is_refused_when_it_is_defined(
    tree, monkeypatch, backend, gpu, arguments, message
):
    closed = []
    monkeypatch.setattr(MemoryReader, "close", lambda self: closed.append(True))
    for name, value in backend.items():
        monkeypatch.setattr(MemoryReader, name, value)
    with pytest.raises(ValueError, match=message), Pipeline(4, 1, gpu):
        readers.file(file_root=str(tree(5)), backend="memory", **arguments)
    assert closed
