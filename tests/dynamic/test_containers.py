"""dali_storage.dynamic.readers.Numpy, TFRecord and Webdataset give the epochs of `ndd.readers`."""

import os
import re
import shutil
from collections import Counter
from functools import partial
from itertools import islice
from random import Random

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
import pytest
from nvidia.dali import tfrecord, types

from dali_storage.contract.errors import RecordError
from dali_storage.dynamic import readers
from tests.kit import versions
from tests.kit.containers import write_numbered_tars, write_numbered_tfrecords
from tests.kit.dynamic import outcome, tensors
from tests.kit.parity import seeds
from tests.kit.tiers import by_tier
from tests.readers import (
    test_coco_parity,
    test_numpy_parity,
    test_tfrecord_parity,
    test_webdataset_parity,
)

pytestmark = pytest.mark.usefixtures("pipelines_end")

# --- random data sets and arguments, beside those of DALI ----------------------------------------

CASES = {
    "COCO": test_coco_parity.TestCoco(),
    "Numpy": test_numpy_parity.TestNumpy(),
    "TFRecord": test_tfrecord_parity.TestTfRecord(),
    "Webdataset": test_webdataset_parity.TestWebDataset(),
}
WAYS = ["samples", "batches", "calls", "restored"] + ["captured"] * versions.has("2.3")


def play(way, make, batch_size, limits):
    """The metadata of a reader, and what it gives in epochs of at most so many batches or samples.

    "restored" goes on with another reader after each of them.
    """
    size = None if way == "samples" else batch_size
    reader = make(size, enable_checkpointing=way == "restored")
    given, meta = [], []
    for limit in limits:
        epoch = reader.next_epoch(**{"capture": True} if way == "captured" else {})
        if way == "calls":
            epoch = (reader(batch_size=batch_size) for _ in range(limit))
        given.append([tensors(seen(outputs, way)) for outputs in islice(epoch, limit)])
        # Asked before, DALI's reader gives no samples. One that is captured has none.
        meta = meta if way == "captured" else [dict(reader.get_metadata())]
        if way == "restored":
            state, reader = str(reader.get_state()), make(size)
            reader.set_state(state)
    return meta + given


def seen(outputs, way):
    """The outputs of a reader; a captured loop must also call an operator."""
    if way == "captured":
        ndd.stack(next(iter(outputs.values() if isinstance(outputs, dict) else outputs)))
    if isinstance(outputs, dict) and "nowhere" in outputs:  # its values are random in DALI
        outputs = outputs | {"nowhere": outputs["nowhere"] * 0}
    return outputs


def in_dynamic_mode(random, value):
    """An array as it is, or as a tensor, with fractions; but DALI takes no array of one number."""
    if not isinstance(value, np.ndarray):
        return value
    if value.size == 1:
        return random.choice([value.tolist(), value[0], ndd.tensor(value[0])])
    if value.dtype.kind == "i" and random.random() < 0.5:
        value = value + random.choice([-0.5, -0.25, 0.25, 0.5])
    return random.choice([value, ndd.tensor(value)])


def compare(random, name, case):
    """Compare epochs of both readers; returns what was compared."""
    given = {key: in_dynamic_mode(random, it) for key, it in case.arguments.items()}
    way, batch_size = random.choice(WAYS), random.randint(1, 9)
    if [*given.get("features", ())] == ["nowhere"]:
        way = "batches"  # a call gives random values without their name
    limits = [random.choice([1, 3, 50]) for _ in range(4)]
    real = partial(getattr(ndd.readers, name), name="R", **given, **case.real)
    ours = partial(getattr(readers, name), name="R", **given, **case.ours)
    expected = outcome(lambda: play(way, real, batch_size, limits))
    if isinstance(expected, tuple) and way == "restored":  # DALI cannot do it with some indexes
        way = "batches"
        expected = outcome(lambda: play(way, real, batch_size, limits))
    if isinstance(expected, tuple):
        with pytest.raises((ValueError, OSError)):  # perhaps later: DALI's has read ahead
            play(way, ours, batch_size, [100] * 3)
            pytest.fail(f"not refused: {expected}")
        return "refused"
    found = outcome(lambda: play(way, ours, batch_size, limits))
    if isinstance(found, tuple) and name == "Webdataset":
        with pytest.raises(ValueError) as raised:
            play(way, ours, batch_size, limits)
        refusal = str(raised.value.__cause__ or raised.value)  # of a call, or at once
        assert re.match(
            "ext: no sample has (any component|all components) of .*; the tars have ", refusal
        )
        assert not re.search("b['\"][^'\"]", str(expected))  # DALI delivers what has no bytes
        return "empty"
    assert found == expected
    return way


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", CASES)
def test_random_data_sets_are_read_as_by_the_real_reader(name, many, tmp_path):
    found, runs = Counter(), seeds(5000 if many else by_tier(3, 150))
    for seed in runs:
        random, directory = Random(f"{seed} {name}"), tmp_path / str(seed)
        directory.mkdir()
        case = CASES[name].some_case(random, directory)
        try:
            found[compare(random, name, case)] += 1
        except BaseException as error:
            error.add_note(f"PARITY=1 PARITY_FROM={seed} repeats it: {case}")
            raise
        shutil.rmtree(directory)
    if len(runs) >= 100:
        assert min(found[way] for way in WAYS) > len(runs) / 20


# --- arguments and outputs ------------------------------------------------------------------------


@pytest.fixture
def arrays(tmp_path):
    """Five arrays of int32, 3 x 4."""
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.arange(12, dtype=np.int32).reshape(3, 4) + number)
    return str(tmp_path)


@pytest.mark.parametrize(
    "region",
    [
        {"roi_start": np.array([1, 2])},
        {"roi_start": ndd.tensor([1, 2]), "roi_shape": ndd.tensor(1)},
        {"rel_roi_start": ndd.tensor([0.5]), "roi_axes": np.array([1])},
        {"roi_start": np.array(1), "rel_roi_shape": np.array(0.5)},
        {"roi_start": np.array([0.5, 1.49]), "roi_shape": ndd.tensor([1.4, 1.5])},
        {"roi_start": ndd.tensor(0.7), "roi_end": np.float32(2.5)},
        {"roi_start": [0.7, 1.7], "roi_end": np.float64(2.7)},
        {"roi_start": np.array([False, True]), "roi_end": np.array([2, 3], np.uint64)},
    ],
    ids=str,
)
def test_a_region_may_be_given_by_arrays_and_tensors_whose_fractions_are_rounded(arrays, region):
    with readers.Numpy(file_root=arrays, **region) as reader:
        given = tensors(next(reader.next_epoch(2)))
    assert given == tensors(next(ndd.readers.Numpy(file_root=arrays, **region).next_epoch(2)))


@pytest.mark.parametrize("number", [2**31, 2**40, -(2**62), 1e20, np.inf, np.nan])
def test_numbers_of_a_region_that_dali_would_clip_are_refused(arrays, number):
    with pytest.raises((ValueError, TypeError), match=r"^roi_end must "):
        readers.Numpy(file_root=arrays, roi_end=np.array([1, number]))


def test_a_number_in_an_array_is_for_all_axes_where_dali_refuses_it(arrays):
    given = {"file_root": arrays, "roi_start": np.array([1])}
    with pytest.raises(RuntimeError, match="Unexpected shape"):
        next(ndd.readers.Numpy(**given).next_epoch())
    with readers.Numpy(**given) as reader:
        assert np.asarray(next(reader.next_epoch())[0]).shape == (2, 3)


def test_a_region_for_one_call_is_refused(arrays):
    with readers.Numpy(2, file_root=arrays) as reader:
        with pytest.raises(TypeError, match="roi_start must be given to the constructor of Numpy"):
            reader(batch_size=2, roi_start=[1, 2])
        [array, _] = tensors(reader(batch_size=2, roi_start=None))
    assert array == ("int32", (3, 4), np.arange(12, dtype=np.int32).tobytes(), None)


@pytest.mark.dali("2.3")
def test_values_that_are_marked_invariant_are_taken_as_they_are(arrays, tmp_path):
    tars, _ = write_numbered_tars(tmp_path, [3])
    marked = ndd.capture.invariant
    for make, given in (
        ("Numpy", {"file_root": arrays, "file_filter": "[0-3].npy", "roi_start": np.array([1, 1])}),
        ("Numpy", {"files": ["1.npy"], "file_root": arrays, "max_batch_size": 1, "name": "R"}),
        ("Webdataset", {"paths": tars[0], "ext": "n", "dtypes": types.INT64, "num_shards": 2}),
    ):
        real = getattr(ndd.readers, make)(**given).next_epoch(1)
        kept = {name: marked(value) for name, value in given.items()}
        with getattr(readers, make)(**kept) as reader:
            assert [*map(tensors, reader.next_epoch(marked(1)))] == [*map(tensors, real)]


@pytest.mark.parametrize("dtypes", [ndd.int64, types.INT64, np.int64, [types.INT64]])
def test_types_may_be_of_dynamic_mode(tmp_path, dtypes):
    tars, _ = write_numbered_tars(tmp_path, [3])
    with readers.Webdataset(paths=tars, ext="n", dtypes=dtypes) as reader:
        assert [np.asarray(number).tolist() for (number,) in reader.next_epoch()] == [[0], [1], [2]]


def test_a_call_of_one_feature_gives_no_dictionary_as_in_dali(tmp_path):
    files, indexes = write_numbered_tfrecords(tmp_path, [3])
    features = {"n": tfrecord.FixedLenFeature([1], tfrecord.int64, 0)}
    real = ndd.readers.TFRecord(path=files, index_path=indexes, features=features)
    with readers.TFRecord(path=files, features=features) as reader:
        called = reader(batch_size=1)
        assert (called.dtype, called.device) == (ndd.int64, ndd.Device("cpu"))
        assert tensors(called) == tensors(real(batch_size=1))


def test_the_new_arguments_have_their_effect(tmp_path):
    files, _ = write_numbered_tfrecords(tmp_path, [50, 50])
    arguments = {"path": files, "features": {"n": tfrecord.FixedLenFeature([], tfrecord.int64, 0)}}
    order = {"random_shuffle": True, "initial_fill": 1}
    with readers.TFRecord(**arguments, **order, shuffle="samples") as reader:
        numbers = [int(np.asarray(outputs["n"])) for outputs in reader.next_epoch()]
    assert sorted(numbers) == [*range(100)] != numbers
    with open(files[1], "r+b") as file:  # the checksum of the last record
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    with readers.TFRecord(**arguments, verify=True, num_shards=2, shard_id=1) as reader:
        epoch = reader.next_epoch()
        numbers = [int(np.asarray(next(epoch)["n"])) for _ in range(49)]
        with pytest.raises(RecordError, match=r"1\.tfrecord.*checksum"):
            next(epoch)
    assert numbers == [*range(50, 99)]
