"""--verify and the comparison of loaders find one wrong byte; a leg that differs is not timed."""

import re
from dataclasses import replace
from itertools import count

import pytest
from nvidia.dali import fn

from benchmarks import pipelines, verify
from benchmarks.legs import CONTAINER_LEGS, REFERENCE, TABLES, Leg
from benchmarks.workload import find
from tests.benchmarks.conftest import make_shards


def altered(what, sample):
    """A leg that reads naively, in batches of 5, and changes one sample."""

    def batches(of):
        for first, (files, labels) in zip(count(0, 5), pipelines.naive_batches(of), strict=False):
            slot = sample - first
            if 0 <= slot < 5 and what == "byte":
                files[slot] = files[slot].copy()
                files[slot][11] ^= 1
            elif 0 <= slot < 5 and what == "length":
                files[slot] = files[slot][:-1]
            elif 0 <= slot < 5 and what == "label":
                labels[slot] = labels[slot] + 1
            yield files, labels

    def read(of):
        contents, labels = fn.external_source(source=batches(of), num_outputs=2, batch=True)
        return contents, labels

    return Leg("altered", REFERENCE.family, pipelines.reading(read))


@pytest.mark.parametrize(
    ("what", "said"),
    [("byte", "bytes: .* at 11"), ("length", "bytes: uint8"), ("label", "label: 2 instead of 1")],
)
def test_verification_finds_the_only_wrong_sample(what, said, small):
    (difference,) = verify.differences(altered(what, 13), small, lambda done: None)
    assert re.fullmatch(rf"sample 13, .*/c1/13\.jpg: {said}.*", difference)
    assert list(verify.differences(altered("nothing", 0), small, lambda done: None)) == []


def test_a_wrong_byte_in_a_container_is_found_in_every_leg_that_reads_it(tmp_path, bench):
    data = make_shards(tmp_path)
    with open(find(str(data), "webdataset").files[1], "r+b") as tar:
        tar.seek(512 + 11)
        byte = tar.read(1)
        tar.seek(512 + 11)
        tar.write(bytes([byte[0] ^ 1]))
    legs = ("--readers", "dali-webdataset,webdataset,records,dali-tfrecord", "--rounds", 1)
    options = ("--seed", 1, "--batchsize", 8, "--verify")
    done = bench("containers", "--datadir", data, *legs, *options)
    assert done.status == 1
    for name in ("dali-webdataset", "webdataset", "records"):
        assert re.search(rf"{name}: sample \d+, .*/c1/08\.jpg: bytes: \d+ .* at 11", done.err)
        assert f"{name}: failed: 1 differences from the files" in done.out
        assert f"round 1/1 {name}" not in done.err
    assert "verifying dali-tfrecord: the same as the files" in done.err


def test_a_leg_in_another_order_is_found(data, monkeypatch, bench):
    """A window of a whole shuffle, and the other way round."""
    (window,) = (leg for leg in CONTAINER_LEGS if leg.name == "dali-webdataset")
    wrong = replace(window, name="wrong", adapt=lambda workload: workload)
    monkeypatch.setitem(TABLES, "containers", (window, wrong))
    done = bench("containers", "--datadir", data, "--seed", 1, "--rounds", 1, "--verify")
    assert done.status == 1
    assert "verifying dali-webdataset: the same as the files" in done.err
    assert re.search(r"verifying wrong: \d+ differences from the files", done.err)
