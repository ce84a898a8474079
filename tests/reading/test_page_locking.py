"""Which memory the batches of a stream are in if its pipeline has a GPU."""

import gc
import sys
import warnings

import numpy as np
import pytest

from dali_storage.contract._types import address_of
from dali_storage.contract.errors import BackendUnavailable, NotPageLocked
from tests.kit.fake_cuda import put_on_gpu
from tests.kit.stand_ins import content


def take_batches(source, number=20):
    for _ in range(number):
        source.batch()
        source.position.advance(0)()


@pytest.mark.parametrize(("pinned", "device_id"), [(None, 0), (None, 1), (True, 0)])
def test_with_a_gpu_every_buffer_is_page_locked_once(opener, gpus, pinned, device_id):
    source = opener.start(device_id, pinned=pinned)
    assert source.memory.kind == "pinned"
    contents = source.batch().outputs[0]
    memory = contents[1]
    start = address_of(np.frombuffer(memory.obj, np.uint8))
    assert any(0 <= start - base < nbytes for base, nbytes in gpus.registered.items())
    del memory, contents
    take_batches(source)  # a second registration of a buffer would be refused
    buffers = dict(gpus.registered)
    take_batches(source)
    assert gpus.registered == buffers
    del source
    gc.collect()
    assert gpus.registered == {}


@pytest.mark.parametrize(("pinned", "device_id"), [(None, None), (False, None), (False, 0)])
def test_nothing_is_page_locked_without_a_gpu_or_with_false(opener, gpus, pinned, device_id):
    source = opener.start(device_id, pinned=pinned)
    take_batches(source)
    assert source.memory.kind == "cpu"
    assert gpus.registered == {}


@pytest.fixture
def no_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


@pytest.mark.usefixtures("no_cupy")
def test_without_cuda_a_warning_says_what_it_costs_and_what_to_install(opener):
    with pytest.warns(NotPageLocked, match=r"DALI copies every sample.*pip install.*pinned=False"):
        source = opener.start(0)
    assert source.memory.kind == "cpu"
    take_batches(source)


@pytest.mark.usefixtures("no_cupy")
def test_the_warning_as_an_error_leaves_nothing_open(opener):
    source = opener.make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(NotPageLocked):
                source.start(device_id=0)
        silent = opener.start(0, pinned=False)
    take_batches(silent)
    del source, silent
    gc.collect()
    assert opener.closed == opener.opened == 2


@pytest.mark.usefixtures("no_cupy")
def test_memory_that_must_be_page_locked_and_cannot_is_an_error(opener):
    with pytest.raises(BackendUnavailable, match="pip install"):
        opener.start(0, pinned=True)


def test_memory_that_cuda_refuses_to_page_lock_is_known_from_the_start(opener, gpus):
    gpus.capacity = 0
    with pytest.warns(NotPageLocked, match="cannot page-lock"):
        source = opener.start(0)
    assert source.memory.kind == "cpu"
    take_batches(source)
    with pytest.raises(MemoryError, match="cannot page-lock"):
        opener.start(0, pinned=True)


def test_a_buffer_that_cannot_be_page_locked_is_an_error_of_its_batch(opener, gpus):
    source = opener.start(0)
    gpus.capacity = 1
    with pytest.raises(MemoryError, match="pinned=False"):
        source.batch()


@pytest.mark.parametrize("pinned", [None, True, False])
def test_memory_that_its_reader_has_page_locked_is_left_alone(opener, gpus, pinned):
    opener.change = lambda reader: vars(reader).update(pinned=True, gpu=0)
    source = opener.start(0, pinned=pinned)
    take_batches(source)
    assert source.memory.kind == "pinned"
    assert gpus.registered == {}


def test_batches_in_gpu_memory_come_with_a_stream(opener, gpus):
    opener.device, opener.change = "gpu", lambda reader: put_on_gpu(reader, 1)
    source = opener.start(1)
    contents = [*source.batch().outputs[0]]
    assert [it.tobytes() for it in contents] == list(map(content, range(4)))
    assert {it.gpu for it in contents} == {1}
    assert source.memory.kind == "gpu"
    assert source.memory.stream.gpu == 1


OTHER = r"'R'.*uses GPU 1.*has {}.*device_id"


@pytest.mark.parametrize(
    ("device", "gpu", "device_id", "pinned", "message"),
    [
        *((device, 1, 0, None, OTHER.format("GPU 0")) for device in ("cpu", "gpu")),
        *((device, 1, None, None, OTHER.format("no GPU")) for device in ("cpu", "gpu")),
        ("gpu", 1, 1, True, "pinned=True is for host memory"),
        ("cpu", None, None, True, "pinned=True needs a pipeline with a GPU"),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_memory_that_does_not_go_with_the_gpu_is_refused(
    device, gpu, device_id, pinned, message, opener
):
    opener.device = device
    opener.change = lambda it: put_on_gpu(it, gpu) if device == "gpu" else setattr(it, "gpu", gpu)
    with pytest.raises(ValueError, match=message):
        opener.start(device_id, pinned=pinned)
    gc.collect()
    assert opener.closed == 1


@pytest.mark.parametrize(
    ("device_id", "pinned", "views", "own", "told"),
    [
        (None, None, [0], {}, []),
        (0, False, [0], {}, []),
        (0, None, [0], {}, ["page-locked for the GPU, unless pinned=False"]),
        (None, None, [], {}, ["operators other than decoders use its outputs"]),
        (None, None, [0], {"read": lambda *_: None}, ["Own has its own read() and no views()"]),
    ],
)
@pytest.mark.usefixtures("gpus")
def test_a_reader_is_told_why_its_views_are_not_asked_for(
    opener, device_id, pinned, views, own, told
):
    asked, why = [], []

    def change(reader):
        views = {"views": lambda _, samples, lane: asked.append(lane)}
        reader.__class__ = type("Own", (type("Held", (type(reader),), views),), own)
        reader.without_views = why.append

    opener.change = change
    source = opener.make(pinned=pinned)
    source.start(device_id=device_id, views=views)
    source.batch()
    assert bool(asked) != bool(told)
    assert [text in each for text, each in zip(told, why, strict=True)] == [True] * len(told)
