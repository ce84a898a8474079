"""What receipts refuse, and what states without them are for."""

import json
import sys
from functools import partial

import numpy as np
import pytest

from dali_storage import BackendUnavailable, readers, receipts
from dali_storage.receipts import values
from tests.kit.containers import write_tar
from tests.kit.dali import build
from tests.kit.receipts import of, sums_of
from tests.kit.resuming import FILE

pytestmark = pytest.mark.usefixtures("pipelines_end")


def pipeline(rank=0, world=1, batches=2, **arguments):
    shard = {"shard_id": rank, "num_shards": world, "pad_last_batch": True, "name": "R"}
    arguments = shard | {"files": [str(FILE)] * 20, "receipt": "samples"} | arguments
    made = build(readers.file, 3, **arguments)
    for _ in range(batches):
        made.run()
    return made


@pytest.fixture
def one():
    return readers.receipt(pipeline(0, 2), "R") | {"run": {"SLURM_JOB_ID": "7"}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "bytes"}, "different modes .* mode is 'samples' and 'bytes'"),
        ({"dataset": 5}, "different data sets .* and 5"),
        ({"epoch": 1}, "different epochs .* epoch is 0 and 1"),
        ({"source": "a"}, "different sources"),
        ({"shard": [0, 2]}, "the receipt of rank 0 of 2 is given twice"),
        ({"shard": [1, 3]}, "receipts of 2 and of 3 ranks"),
        ({"shard": [2, 2]}, r"damaged: shard is \[2, 2\]"),
        ({"run": {"SLURM_JOB_ID": "8"}}, "ranks 0 and 1 are of different .* is '7' and '8'; if"),
        ({"version": 1}, "not a receipt: version 1, but this release reads version 2: make it"),
        ({"sum": "zz"}, "not a receipt: it is damaged: its table has another count or sum"),
        ({"table": "AAAA"}, "damaged: Error -3"),
        ({"count": -1}, "damaged"),
        ({"epoch": "0"}, "damaged: .* epoch is '0'"),
        ({"more": 1}, "unexpected keys: more"),
    ],
)
def test_receipts_that_do_not_belong_together(changes, message, one):
    with pytest.raises(ValueError, match=message):
        receipts.combine(one, one | {"shard": [1, 2]} | changes)
    with pytest.raises(ValueError, match="not a receipt, but None"):
        receipts.combine(None)
    with pytest.raises(ValueError, match="ranks 0, 2 of 3 gave no receipt"):
        receipts.combine(one | {"shard": [1, 3]})


@pytest.mark.parametrize(("column", "less"), [(0, 1000), (1, 1), (3, 1)])
def test_a_table_that_no_samples_have_is_damaged(column, less, one):
    table = values.table_of(one)
    table[np.flatnonzero(table[:, 0] == 0)[:1], column] -= np.uint64(less)
    with pytest.raises(ValueError, match="it is damaged: its table has impossible counts"):
        receipts.combine(one | values.receipt_of(table))


def test_states_that_do_not_belong_together():
    first, other = (readers.state(pipeline(0, 2, batches), "R") for batches in (1, 2))
    with pytest.raises(ValueError, match="not of one position: given is 6 and 12"):
        receipts.join(first, other)
    for states in ([], [{}], [{**first, "receipt": None}]):
        with pytest.raises(ValueError, match="a state has no receipt"):
            receipts.join(*states)


def test_a_state_whose_receipt_does_not_fit_is_refused():
    state = readers.state(pipeline(0, 2), "R")
    remedy = r"rank 0 of 2, not of this one: save receipts.join\(\)"
    for rank, world, options, message in [
        (0, 2, {"receipt": "bytes"}, "made with receipt='samples', but this reader has 'bytes'"),
        (1, 2, {}, remedy),
        (0, 3, {}, remedy),
    ]:
        with pytest.raises(ValueError, match=message):
            pipeline(rank, world, resume=state, **options)
    old = state | {"receipt": [state["receipt"][0] | {"version": 1}]}
    with pytest.raises(ValueError, match="this release reads version 2: resume without receipt="):
        pipeline(0, 2, resume=old)
    without = readers.state(pipeline(receipt=None), "R")
    assert "receipt" not in without
    with pytest.raises(ValueError, match="the state has no receipt of the samples before"):
        pipeline(resume=without)
    pipeline(receipt=None, resume=state)
    at_the_start = readers.state(pipeline(batches=7, receipt=None), "R")
    assert readers.receipt(pipeline(resume=at_the_start), "R")["count"] == 6


def test_a_receipt_of_yesterday_completes_no_epoch(monkeypatch):
    days = []
    for day in "12":
        monkeypatch.setenv("DALI_STORAGE_RUN", day)
        states = [readers.state(pipeline(rank, 2), "R") for rank in range(2)]
        monkeypatch.delenv("DALI_STORAGE_RUN")
        ranks = [pipeline(rank, 2, 5, resume=states[rank]) for rank in range(2)]
        days.append([readers.receipt(it, "R", 0) for it in ranks])
    assert [receipts.combine(*it)["count"] for it in days] == [20, 20]
    with pytest.raises(
        ValueError, match=r"ranks 0 and 1 .* resumed DALI_STORAGE_RUN is '1' and '2'; if"
    ):
        receipts.combine(days[0][0], days[1][1])


def test_each_rank_may_have_the_state_of_its_own():
    states = [readers.state(pipeline(rank, 2), "R") for rank in range(2)]
    ranks = [pipeline(rank, 2, resume=states[rank]) for rank in range(2)]
    assert receipts.combine(*[readers.receipt(it, "R", 0) for it in ranks])["count"] == 20


def test_a_checkpoint_has_the_receipt():
    options = {"enable_checkpointing": True}
    make = partial(pipeline, shuffle_after_epoch=True)
    checkpoint = make(pipeline=options).checkpoint()
    resumed = make(batches=5, pipeline=options | {"checkpoint": checkpoint})
    assert of(readers.receipt(resumed, "R")) == of(readers.receipt(make(batches=7), "R"))


def test_the_pieces_of_a_sample_are_one(tmp_path):
    tar = tmp_path / "x.tar"
    write_tar(tar, [("1.jpg", b"one"), ("1.cls", b"7"), ("2.jpg", b"two"), ("2.cls", b"8")])
    arguments = {"paths": str(tar), "ext": ["jpg", "cls"], "name": "R", "pad_last_batch": True}
    made = build(readers.webdataset, 2, receipt="bytes", **arguments)
    made.run()
    places = [(512, b"one", 1536, b"7"), (2560, b"two", 3584, b"8")]
    pieces = [[("x.tar", a, one), ("x.tar", b, two)] for a, one, b, two in places]
    assert of(readers.receipt(made, "R")) == sums_of(pieces, "bytes")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"receipt": "all"}, "receipt must be 'samples', 'bytes' or 'content', not 'all'"),
        ({"receipt": "bytes", "device": "gpu"}, "needs batches in host memory"),
        ({"pad_last_batch": None}, "receipt needs pad_last_batch=True"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        pipeline(**arguments)


def test_what_a_reader_does_not_have(one):
    with pytest.raises(ValueError, match="has no receipts: create it with receipt="):
        readers.receipt(pipeline(receipt=None), "R")
    with pytest.raises(ValueError, match=r"source must be one of \[None\], not 'a'"):
        readers.receipt(pipeline(), "R", source="a")
    assert json.loads(json.dumps(one)) == one


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(BackendUnavailable, match=r"xxhash.*pip install .*\[receipts\]'"):
        pipeline()
