"""Mixtures, weights and own orders in pipelines of DALI. tests/order has their arithmetic."""

import json
import os
import struct
import warnings
from collections import Counter, deque
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import Pipeline, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy

from dali_storage import readers
from dali_storage.contract.errors import ContainerChangedError
from tests.kit.containers import index_by_wds2idx, write_tar
from tests.kit.parity import BACKENDS, build, of_containers
from tests.kit.shards import write_mds
from tests.kit.tiers import by_tier

pytorch = pytest.importorskip("nvidia.dali.plugin.pytorch")

SIZES = {"a": 70, "b": 9}
SIZE = sum(SIZES.values())
WEIGHTS = {"a": 0.7, "b": 0.3}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Files that hold their own names, in two classes that both sources have, and one of each."""
    made = {}
    for source, size in SIZES.items():
        made[source] = tmp_path_factory.mktemp("mix") / source
        for number in range(size):
            folder = made[source] / ("cats", "dogs", f"of_{source}")[number % 3]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:03}.bin").write_text(f"{source}{folder.name}/{number:03}.bin")
    return made


@pytest.fixture
def mixed(roots):
    """Makes pipelines of data, label, index and source."""

    def make(rank=0, world=1, batch=4, options=None, **arguments):
        sources = {
            name: {"file_root": root, "file_filters": "*.bin"} for name, root in roots.items()
        }
        shard = {"shard_id": rank, "num_shards": world, "pad_last_batch": True, "name": "R"}
        given = {"labels": "own", "weights": WEIGHTS, "return_index": True, "return_source": True}
        options = {"enable_checkpointing": True} | (options or {})
        return build(readers.mix, batch, options, sources=sources, **shard | given | arguments)

    return make


def given(pipeline, batches):
    """The samples of some batches: name, label, index, source."""
    found = []
    for _ in range(batches):
        data, *numbers = pipeline.run()
        names = [bytes(np.asarray(data[at])).decode() for at in range(len(data))]
        found += zip(names, *(each.as_array().ravel().tolist() for each in numbers), strict=True)
    return found


def indices(pipeline, batches):
    return [index for _, _, index, _ in given(pipeline, batches)]


def through_json(pipelines):
    one, *others = [json.dumps(readers.state(each, "R")) for each in pipelines]
    assert set(others) <= {one}
    return json.loads(one)


def test_a_sample_has_the_path_the_label_and_the_number_of_its_source(mixed, roots):
    """In the order of the stream, of which tests/order has the shares and the passes."""
    pipeline = mixed(pad_last_batch=False)
    catalog, seen = readers.catalog(pipeline, "R"), given(pipeline, 100)
    for name, label, index, source in seen:
        assert catalog.path(index) == bytes(roots[name[0]] / name[1:])
        assert name[0] == "ab"[source]
        assert ["cats", "dogs", f"of_{name[0]}"][label] == name[1:].split("/")[0]
    counts = Counter(name[0] for name, *_ in seen)
    found = {name: (counts[name], counts[name] // size) for name, size in SIZES.items()}
    assert readers.progress(pipeline, "R") == found


def iterated(pipelines, policy, steps):
    """So many steps of iterators of all ranks: the indices of each, and where epochs ended."""
    names = ["data", "label", "index", "source"]
    options = {"reader_name": "R", "last_batch_policy": policy, "auto_reset": True}
    iterators = [pytorch.DALIGenericIterator(each, names, **options) for each in pipelines]
    found = []
    for _ in range(steps):
        batches = [next(each, None) for each in iterators]
        assert len({batch is None for batch in batches}) == 1  # all ranks end together
        ranks = [it["index"].ravel().tolist() for (it,) in batches] if batches[0] else None
        found.append(ranks and [*chain(*ranks)])
    return found


@pytest.mark.parametrize("policy", LastBatchPolicy.__members__.values())
def test_iterators_of_all_ranks_end_together(mixed, policy):
    whole = indices(mixed(batch=1), 2 * SIZE)
    found = iterated([mixed(rank, 3) for rank in range(3)], policy, 14)
    assert [at for at, each in enumerate(found) if each is None] == (
        [6, 13] if policy == LastBatchPolicy.DROP else [7]
    )
    epoch = [*chain(*islice(found, 6))]
    assert sorted(epoch) == sorted(whole[: len(epoch)])
    if policy == LastBatchPolicy.PARTIAL:
        assert sorted(epoch + found[6]) == sorted(whole[:SIZE])


def test_any_number_of_ranks_goes_on(mixed):
    """Also after the weights were changed while running."""
    stream = mixed(batch=1)
    assert readers.set_weights(stream, "R", {"a": 1, "b": 3}, at=200) == 200
    whole, position, state = indices(stream, 400), 0, None
    for world, batch, steps in ((1, 8, 7), (3, 8, 5), (2, 5, 9), (4, 4, 4), (1, 16, 6)):
        made = [mixed(rank, world, batch, resume=state) for rank in range(world)]
        if state is None:
            readers.set_weights(made[0], "R", {"a": 1, "b": 3}, at=200)
        for step in filter(None, iterated(made, LastBatchPolicy.PARTIAL, steps)):
            assert sorted(step) == sorted(whole[position : position + len(step)])
            position += len(step)
        state = through_json(made)
    assert position > 300
    assert state["changes"] == [[200, [1, 3]]]


def test_a_checkpoint_keeps_weights_that_were_set(mixed):
    schedule = [(0, {"a": 0, "b": 1}), (10, WEIGHTS), (60, {"a": 1, "b": 0})]
    first = mixed(weights=None, schedule=schedule)
    given(first, 3)
    assert readers.set_weights(first, "R", {"a": 1, "b": 1}) == 16  # a batch is ahead of the user
    checkpoint = first.checkpoint()
    expected = given(first, 30)
    again = mixed(weights=None, schedule=schedule, options={"checkpoint": checkpoint})
    assert given(again, 30) == expected
    assert {source for *_, source in expected[60:]} == {0, 1}  # it forgets the 60


def test_weights_change_only_what_was_not_taken(mixed):
    whole = indices(mixed(), 30)
    pipeline = mixed(prefetch_queue_depth=5)
    assert indices(pipeline, 6) == whole[:24]
    with pytest.raises(ValueError, match=r"at must be at least 28, not 27: DALI already has"):
        readers.set_weights(pipeline, "R", {"a": 0, "b": 1}, at=27)
    assert readers.set_weights(pipeline, "R", {"a": 0, "b": 1}, at=50) == 50
    later = given(pipeline, 24)
    assert [index for _, _, index, _ in later[:26]] == whole[24:50]
    assert {source for *_, source in later[26:]} == {1}


def test_a_loader_sets_weights_and_keeps_them_when_it_is_made_anew(mixed, roots):
    from dali_storage.loaders import Loader

    def make(checkpoint, shard_id, num_shards):
        return mixed(shard_id, num_shards, options={"checkpoint": checkpoint})

    with (
        Loader(make, to="numpy", reader_name="R") as loader,
        Loader(make, to="numpy", reader_name="R") as other,
    ):
        assert len(loader) == 20
        it = iter(loader)
        begun = [next(it) for _ in range(3)]
        at = loader.set_weights({"a": 0, "b": 1})
        assert [set(sources.ravel().tolist()) for *_, sources in it][-10:] == [{1}] * 10
        other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert {*chain(*(sources.ravel().tolist() for *_, sources in other))} == {1}
        assert len(begun) * 4 <= at <= 24
        state = other.state_dict()
        loader._supply._batches.sound = False  # as after a failed operator
        for _ in range(2):
            with pytest.raises(ValueError, match="readers"):
                loader.load_state_dict(state | {"readers": {}})
        assert {*chain(*(sources.ravel().tolist() for *_, sources in loader))} == {1}


@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad"])
@pytest.mark.parametrize("taken", range(3))
def test_loaders_of_all_ranks_set_weights_at_one_position(mixed, last_batch, taken):
    """With "partial" the last batch of an epoch is for one of two ranks only."""
    from dali_storage.loaders import Loader, Shard

    def loader(rank):
        def make(checkpoint, shard_id, num_shards):
            options = {"checkpoint": checkpoint}
            return mixed(shard_id, num_shards, 2, options=options, epoch_size=9)

        shard = Shard(rank, 2)
        return Loader(make, to="numpy", reader_name="R", last_batch=last_batch, shard=shard)

    with loader(0) as one, loader(1) as other:
        places = set()
        for each in (one, other):
            [*islice(each, taken)]
            places.add(each.set_weights({"a": 0, "b": 1}))
        assert len(places) == 1


def test_a_loader_sets_the_weights_of_all_its_readers(roots):
    from dali_storage.loaders import Loader

    sources = {name: {"file_root": root, "file_filters": "*.bin"} for name, root in roots.items()}

    def make(checkpoint, **shard):
        def define(**given):
            return [readers.mix(sources, labels="own", name=name, **given)[1] for name in "RS"]

        options = {"enable_checkpointing": True, "checkpoint": checkpoint}
        return build(define, 4, options, pad_last_batch=True, **shard)

    with Loader(make, to="numpy", reader_name="R") as loader:
        loader.set_weights({"a": 1, "b": 9})
        saved = loader.state_dict()["readers"]
        assert saved["R"]["changes"] == saved["S"]["changes"] != []


@pytest.mark.parametrize("reader", ["webdataset", "tfrecord", "mxnet", "caffe", "caffe2"])
def test_containers_are_mixed(reader, tmp_path):
    sources, common = {}, {}
    for name, counts in (("a", [5]), ("b", [3])):
        (tmp_path / name).mkdir()
        arguments = of_containers(reader, tmp_path / name, counts)
        own = ("paths", "index_paths", "path", "index_path")
        sources[name] = {key: value for key, value in arguments.items() if key in own}
        common = {key: value for key, value in arguments.items() if key not in own}

    def define(**arguments):
        found = readers.mix(
            sources, reader=reader, format_options=common, return_source=True, **arguments
        )
        if reader == "tfrecord":
            found = (found[0]["n"], *found[1:])
        return found[-2], found[-1]

    build(lambda: readers.mix(sources, reader=reader, format_options=common), 1, {})
    pipeline = build(define, 8, {})
    arrays = [[each.as_array().ravel() for each in pipeline.run()] for _ in "12"]
    outputs = [[each.astype(int).tolist() for each in batch] for batch in arrays]
    for numbers, owners in outputs:  # each pass of both is in one batch, as they are mixed by size
        pairs = sorted(zip(owners, numbers, strict=True))
        assert pairs == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2)]
    assert outputs[0] != outputs[1]


def test_columns_are_mixed(roots):
    def source(name, *outputs):
        files = dict.fromkeys(outputs, "cats/{}.bin")
        return {"file_root": roots[name], "files": files}

    def mixture(**sources):
        return readers.mix(sources, reader="columns", return_source=True, weights=WEIGHTS)

    with (pipeline := Pipeline(4, 1, None)):
        nodes, which = mixture(a=source("a", "image", "mask"), b=source("b", "image", "mask"))
        pipeline.set_outputs(*nodes.values(), which)
    images, masks, numbers = ([np.asarray(it) for it in each] for each in pipeline.run())
    assert [*nodes] == ["image", "mask"]
    assert [image.tobytes()[:1] for image in images] == [b"ab"[it[0] :][:1] for it in numbers]
    assert [it.tobytes() for it in images] == [it.tobytes() for it in masks]
    with Pipeline(4, 1, None):
        assert len(readers.mix({"a": {"files": [["x"]]}}, reader="columns")) == 1  # a tuple
    with pytest.raises(ValueError, match="same names of outputs in files, in one order"):
        mixture(a=source("a", "image", "mask"), b=source("b", "mask", "image"))
    one_and_two = {name: {"files": [["x"]] * count} for name, count in (("a", 1), ("b", 2))}
    with pytest.raises(ValueError, match="have different kinds of samples"):
        readers.mix(one_and_two, reader="columns")


@pytest.fixture
def kinds(tmp_path):
    """Makes sources of files, a tar and shards, with their bytes, and with a number of each."""
    random = np.random.default_rng(6)
    contents = [random.bytes(it * 250) for it in range(24)]
    for number, content in enumerate(contents[:9]):
        (tmp_path / "a" / str(number)).mkdir(parents=True)
        (tmp_path / "a" / str(number) / "it.jpg").write_bytes(content)
    each = enumerate(contents[9:17])
    parts = {"jpg": lambda number, it: it, "n": lambda number, it: struct.pack("<q", number)}
    members = [
        (f"{number}.{ext}", of(number, it)) for number, it in each for ext, of in parts.items()
    ]
    write_tar(tmp_path / "b.tar", members)
    index_by_wds2idx(tmp_path / "b.tar")
    rows = [{"jpg": it, "n": bytes([n, 0])} for n, it in enumerate(contents[17:])]
    columns = {"jpg": ("jpeg", None), "n": ("int16", 2)}
    write_mds(tmp_path / "c", columns, {"0.mds": rows[:3], "1.mds": rows[3:]})

    def make(root=tmp_path, numbers=False):
        tar = {"reader": "webdataset", "paths": f"{root}/b.tar", "index_paths": f"{root}/b.idx"}
        tar |= {"ext": ["jpg", "n"], "dtypes": ["u1", "i8"]} if numbers else {"ext": ["jpg"]}
        shards = {"reader": "mds", "path": f"{root}/c", "columns": ["jpg", "n"][: 1 + numbers]}
        return {"a": {"file_root": f"{root}/a"}, "b": tar, "c": shards}

    return make, contents


def of_kinds(sources, **arguments):
    """The bytes of an epoch, by index; indices follow each other in the list of all bytes."""
    given = {"weights": {"a": 1, "b": 3, "c": 2}, "epoch_size": 100, "return_index": True}
    with readers.batches(readers.mix, sources, batch_size=7, **given | arguments) as batches:
        for batch in batches:
            data, *_, index = batch.outputs
            yield from zip(index.ravel().tolist(), map(bytes, data), strict=True)


@pytest.mark.parametrize(("backend", "options"), [*BACKENDS, ("object-store", {})])
def test_sources_of_several_readers_are_mixed(kinds, backend, options, tmp_path, request):
    make, contents = kinds
    root, given = tmp_path, {"backend": backend, "backend_options": options}
    if backend == "object-store":
        server, root = request.getfixturevalue("server"), "s3://data/d"
        for path in filter(Path.is_file, tmp_path.rglob("*")):
            server.put(f"data/d/{path.relative_to(tmp_path)}", path.read_bytes())
    found = [*of_kinds(make(root), labels="drop", **given)]
    assert {number for number, _ in found} == {*range(24)}
    assert [data for _, data in found] == [contents[number] for number, _ in found]


def test_labels_and_columns_of_several_readers_are_one_output(kinds):
    """int32 of files, int64 of the tar and int16 of the shards are int64."""
    make, contents = kinds
    arguments = {"weights": {"a": 1, "b": 1, "c": 1}, "epoch_size": 60, "return_index": True}
    pipeline = build(readers.mix, 6, {}, sources=make(numbers=True), **arguments)
    for _ in range(10):
        data, numbers, index = pipeline.run()
        assert numbers.dtype == types.INT64
        which = index.as_array().ravel()
        assert (
            numbers.as_array().ravel().tolist()
            == np.choose(
                np.searchsorted([9, 17], which, "right"), [which, which - 9, which - 17]
            ).tolist()
        )
        assert [bytes(np.asarray(it)) for it in data] == [contents[it] for it in which]


def test_sources_of_several_readers_resume_on_other_ranks(kinds):
    make, _ = kinds
    given = {"labels": "drop", "name": "R", "pad_last_batch": True, "return_index": True}

    def pipelines(world, **more):
        shards = [{"shard_id": rank, "num_shards": world} for rank in range(world)]
        return [build(readers.mix, 2, {}, sources=make(), **given | more | it) for it in shards]

    def taken(made, steps):
        rounds = [[it.run()[1].as_array().ravel().tolist() for it in made] for _ in range(steps)]
        return [sorted(chain(*each)) for each in rounds]

    whole = taken(pipelines(1), 9)
    first = pipelines(1)
    assert taken(first, 3) == whole[:3]
    resumed = taken(pipelines(3, resume=through_json(first)), 2)
    assert resumed == [sorted(chain(*whole[at : at + 3])) for at in (3, 6)]


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, {}, "equally many outputs, not 2 in 'a', 1 in 'b', 1 in 'c'; a label is one, unless"),
        (
            {"b": {"ext": ["jpg", "n"]}, "c": {"columns": ["jpg", "n"]}},
            {},
            "output 1 must be alike in all sources, not int32 with 1 dimensions in 'a', uint8 with",
        ),
        ({"a": {"reader": "coco"}}, {}, "source 'a': reader must be one of caffe, .*, not 'coco'"),
        ({"c": {"ext": "jpg"}}, {}, "source 'c' has no argument 'ext', only columns, "),
        ({"a": {"dont_use_mmap": True}}, {}, "source 'a' has no argument 'dont_use_mmap', only"),
        ({"c": {"columns": "no"}}, {"labels": "drop"}, "has no column 'no': it has .'jpg', 'n'."),
        ({}, {"labels": "joint"}, "labels='joint' is for class directories"),
        ({}, {"labels": "drop", "device": "gpu"}, "device must be 'cpu', not 'gpu'"),
        ({}, {"labels": "drop", "source_info": True}, "no names for its samples"),
    ],
)
def test_sources_that_do_not_go_together_are_refused(kinds, change, arguments, message):
    sources = {name: it | change.get(name, {}) for name, it in kinds[0]().items()}
    with pytest.raises((ValueError, TypeError), match=message):
        build(readers.mix, 4, {}, sources=sources, **arguments).run()


def test_arrays_of_another_type_are_refused_in_batches_of_one_source_too(kinds, tmp_path):
    sources = {}
    for name, dtype in (("i2", np.int16), ("i4", np.int32)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "0.npy", np.zeros(3, dtype))
        sources[name] = {"reader": "numpy", "file_root": tmp_path / name}
    with pytest.raises(
        ValueError, match=r"must be alike in all sources, int\d\d with 1 dim.* not i"
    ):
        deque(readers.batches(readers.mix, sources, batch_size=1), 0)
    widened = {"a": kinds[0](numbers=True)["c"] | {"columns": "n"}, "b": sources["i2"]}
    batches = readers.batches(readers.mix, widened | {"c": sources["i2"]}, batch_size=1)
    assert {np.asarray(it.data).dtype for it in batches} == {np.dtype(np.int16)}


def test_a_pipe_is_no_empty_file(kinds, tmp_path):
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    files = [tmp_path / name for name in ("empty", "pipe")]
    sources = kinds[0]()
    assert len([*of_kinds(sources | {"a": {"files": files[:1]}}, labels="drop")]) == 100
    with pytest.raises(OSError, match=r"not a regular file: .*/pipe'"):
        next(of_kinds(sources | {"a": {"files": files}}, labels="drop"))


def test_errors_of_several_readers_name_their_file_and_source(kinds, tmp_path):
    make, contents = kinds
    (tmp_path / "a" / "4" / "it.jpg").write_bytes(contents[4])  # another state, not yet known
    batches = of_kinds(make(), labels="drop")
    next(batches)
    (tmp_path / "a" / "4" / "it.jpg").write_bytes(b"shorter")
    with pytest.raises(ContainerChangedError, match=r"a/4/it\.jpg"):
        deque(batches, 0)
    (tmp_path / "c" / "1.mds").write_bytes(b"")
    with pytest.raises(ContainerChangedError, match=r"c/1\.mds") as refused:
        next(of_kinds(make(), labels="drop"))
    assert refused.value.__notes__ == ["in source 'c' of readers.mix"]


def test_labels_are_joint_or_own(mixed):
    names = ["cats", "dogs", "of_a", "of_b"]
    for name, label, *_ in given(mixed(labels="joint"), 20):
        assert names[label] == name[1:].split("/")[0]
    with pytest.warns(UserWarning, match="sources share labels, such as 0, 1, 2;"):
        mixed(labels=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed(labels="own")


def labelled(**arguments):
    """A pipeline of the indices of 10 samples with label 3, 6 with label 7 and 2 with label 9."""
    files = [__file__] * 18
    labels = [3] * 5 + [7] * 6 + [3] * 5 + [9] * 2

    def define(**more):
        return readers.file(files=files, labels=labels, return_index=True, **more)[2]

    pad = {"pad_last_batch": True, "name": "R", "backend": "memory"}
    return build(define, 3, {}, **pad | arguments)


def taken(pipeline, samples):
    return [*chain(*(pipeline.run()[0].as_array().ravel().tolist() for _ in range(samples // 3)))]


def test_an_own_order_is_dealt_out(mixed):
    order = [17, 3, 3, 0, 5, 8, 1]
    assert taken(labelled(order=order), 9) == [*order, 1, 1]
    pipeline = labelled(order=lambda epoch: np.roll(order, epoch))
    assert pipeline.reader_meta("R")["epoch_size"] == 7
    assert taken(pipeline, 18)[9:] == [1, *order[:-1], 8, 8]
    state = readers.state(pipeline, "R")
    again = labelled(order=lambda epoch: np.roll(order, epoch), resume=state)
    assert taken(again, 6) == [8, 1, *order[:4]]
    with pytest.raises(ValueError, match=r"CRC-32 .*, but .*same weights, order"):
        labelled(order=order, resume=state).run()


@pytest.mark.parametrize(("begun", "resumed"), [("balanced", None), (None, "balanced")])
def test_a_state_of_another_stream_is_refused(begun, resumed):
    """Streams that differ in other arguments have other descriptions: order/test_sampling.py."""
    taken(first := labelled(weights=begun), 3)
    described = "weights {3: 1, 7: 1, 9: 1}" if begun else "the order: DALI's"
    with pytest.raises(ValueError, match=f"{described}.*give the reader the same weights, order"):
        labelled(weights=resumed, resume=readers.state(first, "R")).run()


def test_a_reader_without_weights_has_none_to_set():
    for call in (partial(readers.set_weights, weights={"a": 1}), readers.progress):
        with pytest.raises(ValueError, match=r"R'\) has no weights of sources or labels"):
            call(labelled(), "R")


def test_labels_of_classes_are_set_while_running():
    pipeline = labelled(weights={3: 1, 7: 1, 9: 0})
    taken(pipeline, 6)
    readers.set_weights(pipeline, "R", {3: 0, 7: 0, 9: 1})
    assert {*taken(pipeline, by_tier(12, 60))[6:]} == {16, 17}
