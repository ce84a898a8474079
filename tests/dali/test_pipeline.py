"""Our reader in the graph of a DALI pipeline, beside the real one."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, pipeline_def, types

from dali_storage import ReaderStatistics, readers, statistics
from dali_storage.dali import source
from tests.kit.dali import build, take
from tests.kit.loading import slow_down
from tests.kit.trees import Tree

pytestmark = pytest.mark.usefixtures("pipelines_end")


# --- seeds --------------------------------------------------------------------------------------


def shuffled(file: Callable[..., Any], root: str, **arguments: Any) -> Any:
    return file(
        file_root=root, random_shuffle=True, initial_fill=5, dont_use_mmap=True, **arguments
    )


@pytest.mark.parametrize("others_first", [0, 1, 3])
def test_without_a_seed_it_takes_the_one_of_the_pipeline(tree: Tree, others_first: int) -> None:
    root = str(tree(20))

    def run(file: Callable[..., Any]) -> list[tuple[bytes, int]]:
        pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None, seed=11)
        with pipeline:
            numbers = [
                fn.random.uniform(seed=seed) for seed in ([None, 5, None] * 3)[:others_first]
            ]
            data, labels = shuffled(file, root)
            second, more = shuffled(file, root)
            pipeline.set_outputs(*numbers, fn.copy(data), second, labels, more)
        outputs = [pipeline.run() for _ in range(12)]
        keep = slice(others_first, None)
        return [
            (np.asarray(out[slot]).tobytes(), number)
            for batch in outputs
            for number, out in enumerate(batch[keep])
            for slot in range(4)
        ]

    assert run(readers.file) == run(fn.readers.file)


def test_unseeded_pipelines_shuffle_the_same_epoch_differently(tree: Tree) -> None:
    root = str(tree(40, sizes=(9,)))
    first, second = (take(build(shuffled_ours, 4, root=root), 10) for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)


def shuffled_ours(root: str, **arguments: Any) -> Any:
    return readers.file(file_root=root, random_shuffle=True, **arguments)


# --- metadata, styles of definition -------------------------------------------------------------


def test_the_metadata_of_several_readers(tree: Tree) -> None:
    root = str(tree(7))

    def metas(file: Callable[..., Any]) -> tuple[Any, ...]:
        pipeline = Pipeline(batch_size=2, num_threads=1, device_id=None)
        with pipeline:
            a, _ = file(file_root=root)
            b, _ = fn.readers.file(file_root=root, name="real", num_shards=2)
            c, _ = file(file_root=root, name="named", num_shards=3, shard_id=1, pad_last_batch=True)
            d, _ = file(file_root=root, shuffle_after_epoch=True)
            pipeline.set_outputs(a, b, c, d)
        return (
            pipeline.reader_meta(),
            pipeline.reader_meta("named"),
            pipeline.epoch_size(),
            pipeline.epoch_size("named"),
        )

    ours, real = metas(readers.file), metas(fn.readers.file)
    assert ours[0]["named"] == real[0]["named"]
    assert ours[0]["real"] == real[0]["real"]
    assert ours[0]["__File_0"] == real[0]["__File_0"]
    assert sorted(map(str, ours[0].values())) == sorted(map(str, real[0].values()))
    assert ours[1] == real[1]
    assert ours[2]["named"] == real[2]["named"]
    assert ours[3] == real[3] == 9


def test_the_source_of_a_reader_leaves_an_epoch_early(tree: Tree) -> None:
    """Its next epoch is that of the real reader, shuffled and on its shard."""
    order: dict[str, Any] = {
        "file_root": str(tree(50)),
        "name": "R",
        "random_shuffle": True,
        "seed": 3,
        "pad_last_batch": True,
        "num_shards": 2,
    }
    real = take(build(fn.readers.file, dont_use_mmap=True, **order), 21)
    pipeline = build(readers.file, **order)
    taken = source(pipeline, "R")
    assert taken.open()[0] is readers.catalog(pipeline, "R")
    seen = take(pipeline, 2)
    assert seen == real[: 2 * 4]
    prefetched = taken.position.next - 2
    taken.position.seek(7)  # 25 samples of a shard are 7 batches
    assert take(pipeline, prefetched + 14)[prefetched * 4 :] == real[7 * 4 :]
    with pytest.raises(IndexError):  # the positions of what was delivered are forgotten
        taken.checkpoint(prefetched + 5)


def test_the_statistics_of_a_pipeline(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a storage that needs 50 ms for a batch."""
    slow_down(monkeypatch, 0.05)
    files = sorted(tree(6, classes=1).rglob("*.jpg"))
    root = str(files[0].parent.parent)
    pipeline = build(readers.file, 6, file_root=root, name="R", backend="memory")
    assert statistics(pipeline, "R") == ReaderStatistics()
    begin = time.perf_counter()
    take(pipeline, 10)
    counted = statistics(pipeline, "R")
    taken = source(pipeline, "R").position.next
    assert 10 <= taken == counted.batches
    assert counted.bytes == taken * sum(file.stat().st_size for file in files)
    # For the first batch it waits in any case; for the others, if nothing else is slow.
    assert 0.05 < counted.wait_seconds < time.perf_counter() - begin
    assert counted.depth == 1


def test_statistics_of_a_reader_of_dali_are_refused(tree: Tree) -> None:
    pipeline = build(fn.readers.file, file_root=str(tree(5)), name="R")
    with pytest.raises(ValueError, match=r"no reader 'R' of dali_storage; it has \[\]"):
        statistics(pipeline, "R")


def test_a_closed_source_ends_its_pipeline(tree: Tree) -> None:
    pipeline = build(readers.file, file_root=str(tree(50)), name="R")
    take(pipeline, 2)
    source(pipeline, "R").close()
    with pytest.raises(RuntimeError, match=r"'R'\) is closed; make the pipeline anew"):
        take(pipeline, 9)


def test_generated_names_are_those_of_the_real_reader(tree: Tree) -> None:
    """Also of the operators behind it, which are numbered in the same sequence."""
    root = str(tree(3))

    def names(file: Callable[..., Any]) -> tuple[list[str], list[str]]:
        pipeline = Pipeline(batch_size=2, num_threads=1, device_id=None)
        with pipeline:
            made = [
                file(file_root=root),
                file(file_root=root, name="N"),
                fn.readers.file(file_root=root),
                file(file_root=root),
            ]
            nodes = [node for pair in made for node in pair]
            nodes.append(fn.copy(nodes[0]))
            pipeline.set_outputs(*nodes)
        return sorted(pipeline.reader_meta()), [node.name for node in nodes]

    assert names(readers.file) == names(fn.readers.file)


def test_a_reader_made_outside_of_a_pipeline_is_named_as_by_dali(tree: Tree) -> None:
    root = str(tree(3))
    (ours,), (real,) = (
        build_of(file(file_root=root)).reader_meta() for file in (readers.file, fn.readers.file)
    )
    assert ours.rstrip("0123456789") == real.rstrip("0123456789") == "__File_detached_"


def test_an_unknown_name_raises_the_error_of_dali(tree: Tree) -> None:
    with pytest.raises(RuntimeError, match="zz"):
        build(readers.file, file_root=str(tree(3))).reader_meta("zz")


@pytest.mark.parametrize("outputs", [(0, 0), (0, 1)])
def test_two_readers_of_one_name_are_refused(tree: Tree, outputs: tuple[int, int]) -> None:
    root = str(tree(3))

    def make(file: Callable[..., Any]) -> Pipeline:
        pipeline = Pipeline(batch_size=2, num_threads=1, device_id=None)
        with pipeline:
            pipeline.set_outputs(*(file(file_root=root, name="R")[output] for output in outputs))
        return pipeline

    for file in (fn.readers.file, readers.file):
        for use in (lambda: make(file).reader_meta(), lambda: make(file).run()):  # noqa: B023
            with pytest.raises(RuntimeError, match="'R"):
                use()


def expected_of(root: str, batches: int = 5) -> list[tuple[bytes, int]]:
    return take(build(fn.readers.file, 4, file_root=root, dont_use_mmap=True), batches)


def test_operators_may_be_made_outside_of_the_pipeline(tree: Tree) -> None:
    root = str(tree(10))
    data, labels = readers.file(file_root=root, name="R")
    data = fn.copy(data)
    for_meta = Pipeline(batch_size=4, num_threads=1, device_id=None)
    for_meta.set_outputs(data, labels)
    assert for_meta.epoch_size("R") == 10
    assert take(for_meta, 5) == expected_of(root)


def build_of(nodes: Any, batch_size: int = 4) -> Pipeline:
    pipeline = Pipeline(batch_size=batch_size, num_threads=1, device_id=None)
    pipeline.set_outputs(*nodes)
    return pipeline


def test_nodes_may_be_outputs_of_several_pipelines(tree: Tree) -> None:
    """Each of the pipelines reads for itself, from the start, in batches of its own size."""
    root = str(tree(10))

    def stream(file: Callable[..., Any]) -> list[Any]:
        nodes = file(file_root=root, name="R", dont_use_mmap=True)
        pipelines = [build_of(nodes, batch_size) for batch_size in (2, 3, 2)]
        return [(take(pipeline, 7), pipeline.reader_meta("R")) for pipeline in pipelines * 2]

    assert stream(readers.file) == stream(fn.readers.file)


def test_nodes_of_one_pipeline_may_be_outputs_of_another(tree: Tree) -> None:
    root = str(tree(10))

    def stream(file: Callable[..., Any]) -> list[Any]:
        first, second = (Pipeline(batch_size=b, num_threads=1, device_id=None) for b in (2, 3))
        with first:
            nodes = file(file_root=root, dont_use_mmap=True)
            first.set_outputs(*nodes)
        second.set_outputs(*nodes)
        return [take(pipeline, 5) for pipeline in (second, first, second)]

    assert stream(readers.file) == stream(fn.readers.file)


@pytest.mark.parametrize("output", [0, 1])
def test_operators_made_outside_may_have_an_unused_output(tree: Tree, output: int) -> None:
    """Operators made outside and inside of a pipeline are numbered apart and may share numbers."""
    root = str(tree(10))

    def stream(file: Callable[..., Any]) -> list[bytes]:
        many = [file(file_root=root, dont_use_mmap=True)[output] for _ in range(3)]
        pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None)
        with pipeline:
            inner = [fn.copy(node) for node in many for _ in range(60)]
        pipeline.set_outputs(*inner)
        outputs = [out for _ in range(3) for out in pipeline.run()]
        return [np.asarray(out[slot]).tobytes() for out in outputs for slot in range(4)]

    assert stream(readers.file) == stream(fn.readers.file)


DEFINE_GRAPH = """
import sys
from nvidia.dali import Pipeline, fn
from dali_storage import readers

class Old(Pipeline):
    def define_graph(self):
        return readers.file(file_root=sys.argv[1], name="R")

print(getattr(Old(batch_size=4, num_threads=1, device_id=None), sys.argv[2])("R"))
"""


@pytest.mark.parametrize("method", ["epoch_size", "reader_meta"])
def test_the_first_call_of_a_process_knows_a_reader_of_define_graph(
    tree: Tree, method: str
) -> None:
    root = str(tree(10))
    run = subprocess.run(
        [sys.executable, "-c", DEFINE_GRAPH, root, method], capture_output=True, text=True
    )
    real = getattr(build(fn.readers.file, file_root=root, name="R"), method)("R")
    assert (run.stdout, run.stderr) == (f"{real}\n", "")


def test_define_graph(tree: Tree) -> None:
    root = str(tree(10))

    class Old(Pipeline):  # type: ignore[misc]
        def define_graph(self) -> Any:
            return readers.file(file_root=root, name="R")

    assert take(Old(batch_size=4, num_threads=1, device_id=None), 5) == expected_of(root)


@pytest.mark.parametrize("preserve", [False, True])
def test_preserve_keeps_a_reader_that_is_not_used(tree: Tree, preserve: bool) -> None:
    root = str(tree(10))

    def metas(file: Callable[..., Any]) -> Any:
        pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None)
        with pipeline:
            file(file_root=root, name="R", preserve=preserve, dont_use_mmap=True)
            data, labels = file(file_root=root, dont_use_mmap=True)
            pipeline.set_outputs(data, labels)
        return take(pipeline, 3), pipeline.reader_meta()

    assert metas(readers.file) == metas(fn.readers.file)
    assert ("R" in metas(readers.file)[1]) == preserve


def test_preserve_needs_a_pipeline(tree: Tree) -> None:
    root = str(tree(10))
    for file in (fn.readers.file, readers.file):
        with pytest.raises(RuntimeError, match="Current Pipeline not set"):
            file(file_root=root, preserve=True)


def test_a_pipeline_cannot_be_serialized(tree: Tree, tmp_path: Path) -> None:
    root = str(tree(10))
    for built in (False, True):
        pipeline = build(readers.file, file_root=root, name="R")
        if built:
            pipeline.build()
        with pytest.raises(RuntimeError, match=r"'R'.*cannot be serialized"):
            pipeline.serialize(filename=str(tmp_path / "pipeline"))
    assert not (tmp_path / "pipeline").exists()
    real = build(fn.readers.file, file_root=root, dont_use_mmap=True).serialize()
    assert take(Pipeline.deserialize(real), 5) == expected_of(root)


@pytest.mark.parametrize("branch", [0, 1])
def test_a_reader_in_a_branch(tree: Tree, branch: int) -> None:
    root = str(tree(10))

    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_conditionals=True)
    def definition(file: Callable[..., Any]) -> Any:
        numbers = fn.external_source(alternating, batch=True)
        if numbers == branch:
            data, labels = file(file_root=root, dont_use_mmap=True)
        else:
            data, labels = types.Constant(np.zeros(1, np.uint8)), types.Constant([7])
        return data, labels

    assert take(definition(readers.file), 5) == take(definition(fn.readers.file), 5)


def alternating(index: int) -> list[np.ndarray]:
    return [np.array(index + slot & 1) for slot in range(4)]


def test_pipeline_def_and_conditionals(tree: Tree) -> None:
    root = str(tree(10))

    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_conditionals=True)
    def definition(file: Callable[..., Any]) -> Any:
        data, labels = file(file_root=root, dont_use_mmap=True)
        if labels[0] % 2 == 1:  # noqa: SIM108  (what AutoGraph rewrites)
            out = labels + 100
        else:
            out = -labels
        return data, fn.cast(out, dtype=types.INT32)

    assert take(definition(readers.file), 5) == take(definition(fn.readers.file), 5)


def test_an_unused_output_causes_no_warning(tree: Tree) -> None:
    root = str(tree(10))
    pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None)
    with pipeline, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data, _ = readers.file(file_root=root)
        pipeline.set_outputs(data)
        pipeline.build()
    assert [str(warning.message) for warning in caught] == []
    (batch,) = pipeline.run()
    assert np.asarray(batch[0]).tobytes() == expected_of(root, 1)[0][0]


def test_decoded_images_are_equal(jpegs: Path) -> None:
    @pipeline_def(batch_size=8, num_threads=2, device_id=None, seed=5)
    def train(file: Callable[..., Any]) -> Any:
        data, labels = file(file_root=str(jpegs), random_shuffle=True, name="Reader")
        return fn.decoders.image(data), labels

    ours, real = train(readers.file), train(fn.readers.file)
    for _ in range(9):
        (images, labels), (expected, expected_labels) = ours.run(), real.run()
        for slot in range(8):
            assert np.array_equal(images.at(slot), expected.at(slot))
        assert np.array_equal(labels.as_array(), expected_labels.as_array())
