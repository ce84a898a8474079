"""What the legs of benchmark.py ask for, with a GPU and without; runs without one."""

import inspect

import numpy as np
import pytest
from nvidia.dali.data_node import DataNode

from benchmarks import fio, legs, workload
from benchmarks.legs import BLOCK, OBJECT_LEGS, PYTHON_FILE, XNVME_BAM, XNVME_BLOCK
from benchmarks.measure import Result
from benchmarks.workload import Settings
from dali_storage.backends.xnvme_bam import XnvmeBamReader
from dali_storage.backends.xnvme_block import XnvmeBlockReader

CONTROLLER = "0000:3b:00.0"


def prepare(data, **settings):
    return workload.prepare(str(data), Settings(batch_size=5, **settings))


NEEDED = "needs the PCI address of an NVMe controller: --uri 0000:3b:00.0"
NO_BLOCKS = "is neither a block device nor an image; xnvme-block may read it"


@pytest.mark.parametrize(
    ("leg", "settings", "reason"),
    [
        (XNVME_BLOCK, {"mem": "gpu"}, f"--mem gpu: it {NEEDED}"),
        (XNVME_BAM, {}, f"it {NEEDED}"),
        (XNVME_BAM, {"uri": "/dev/nvme0n1"}, f"it {NEEDED}"),
        (XNVME_BAM, {"uri": CONTROLLER, "mem": "pinned"},
         "it reads into --mem cpu, which is page-locked, or gpu"),
        (BLOCK, {"uri": CONTROLLER}, f"--uri {CONTROLLER} {NO_BLOCKS}"),
        (BLOCK, {"uri": "/dev/null"}, f"--uri /dev/null {NO_BLOCKS}"),
    ],
)  # fmt: skip
def test_legs_that_cannot_read_a_device_say_so(data, leg, settings, reason):
    assert leg.unsupported_reason(prepare(data, device_id=0, **settings)) == reason


def test_fio_is_left_out_where_only_nvme_commands_read(data):
    found = fio.prepare([XNVME_BLOCK], prepare(data, uri=CONTROLLER), {"xnvme-block": Result("")})
    assert found.result.skipped == f"it reads block devices and images, not {CONTROLLER}"


LANES = {"copying_lanes": 2}
MEM = {"uri": CONTROLLER, "gpu": 1}


@pytest.mark.parametrize(
    ("leg", "settings", "arguments", "options"),
    [
        (PYTHON_FILE, LANES, {}, LANES),
        (PYTHON_FILE, LANES | {"pinned": "yes"}, {"pinned": True}, LANES),
        (PYTHON_FILE, LANES | {"pinned": "no", "mem": "gpu"}, {"pinned": False}, LANES),
        (BLOCK, {"mem": "gpu"}, {}, {"uri": CONTROLLER}),
        (XNVME_BLOCK, {"mem": "cpu"}, {}, {"uri": CONTROLLER, "mem": "cpu", "spin": False}),
        (XNVME_BLOCK, {"mem": "pinned"}, {}, MEM | {"mem": "pinned", "spin": False}),
        (XNVME_BLOCK, {"mem": "gpu"}, {"device": "gpu"}, MEM | {"mem": "gpu", "spin": False}),
        (XNVME_BAM, {"mem": "cpu", "queues": 4}, {}, MEM | {"mem": "cpu", "queues": 4}),
        (XNVME_BAM, {"mem": "gpu", "pinned": "no"}, {"device": "gpu"}, MEM | {"mem": "gpu"}),
    ],
)
def test_a_leg_asks_for_the_options_of_its_settings(
    data, monkeypatch, leg, settings,
    arguments, options
):  # fmt: skip
    asked = {}

    def ask(**given):
        asked.update(given)
        raise StopAsyncIteration

    monkeypatch.setattr(legs.readers, "file", ask)
    made = prepare(data, uri=CONTROLLER, device_id=1, **settings)
    with pytest.raises(StopAsyncIteration), leg.build(made, False):
        pass
    assert asked.pop("backend_options") == options
    backend = leg.backend.name
    assert (
        asked
        == {"file_root": str(data / "train"), "name": "Reader", "backend": backend} | arguments
    )


@pytest.mark.parametrize("name", legs.UNTUNED)
def test_the_legs_of_the_verdict_have_no_option(name, data):
    leg = next(leg for table in legs.TABLES.values() for leg in table if leg.name == name)
    made = workload.prepare(str(data), Settings())
    a_store = {"backend": "object-store", "backend_options": {}}
    assert leg.backend.arguments(made) == (a_store if name == "object-store" else {})


@pytest.mark.parametrize(
    ("leg", "backend"), [(XNVME_BLOCK, XnvmeBlockReader), (XNVME_BAM, XnvmeBamReader)]
)
def test_the_options_of_a_leg_are_those_of_its_backend(leg, backend):
    assert leg.backend is not None
    assert {*leg.backend.takes, "gpu"} <= set(inspect.signature(backend).parameters)


def test_legs_of_dali_at_stores_have_their_own_number_of_threads(data):
    made = prepare(data, url="s3://data/train", threads=1)
    names = {leg.name: leg.adapt(made).settings.threads for leg in OBJECT_LEGS}
    assert names.pop("dali-s3-2") == 2
    assert names == {name: int(name.removeprefix("dali-s3-")) if "dali" in name else 1
                     for name in names}  # fmt: skip
    with PYTHON_FILE.build(prepare(data, threads=3), False) as stream:
        assert stream.pipe.num_threads == 3


def test_with_gpu_memory_the_bytes_of_every_leg_are_added_up(data, contents, monkeypatch):
    there = []
    monkeypatch.setattr(DataNode, "gpu", lambda node: there.append(node) or node)
    made = prepare(data, mem="gpu")
    expected = [np.frombuffer(each, np.uint8).sum(dtype=np.uint64) for each in contents]
    for leg in (legs.REFERENCE, PYTHON_FILE):
        with leg.build(made, False) as stream:
            sums, _ = next(iter(stream.batches))
        assert [int(each) for each in sums.as_array()] == expected[:5]
    assert len(there) == 2
