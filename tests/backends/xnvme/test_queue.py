import errno
import gc
import itertools
import os
import time
from contextlib import closing
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from dali_storage.backends.xnvme import device as _xnvme_devices
from dali_storage.backends.xnvme import queue as _xnvme_queue
from dali_storage.backends.xnvme.abi import COMMAND, MAX_BLOCKS
from dali_storage.backends.xnvme.device import XnvmeDevice
from dali_storage.backends.xnvme.file_queue import FileQueue
from dali_storage.backends.xnvme.queue import NOTHING_TO_DO, Queue
from dali_storage.contract.errors import BackendUnavailable
from tests.kit.devices import loop_device
from tests.kit.xnvme import Descriptors, Reads, open_file, open_ramdisk, require_io


@pytest.mark.parametrize("depth", [1, 2, 16, 256, 2048])
@pytest.mark.parametrize("io", ["emu", "thrpool"])
def test_nvme_reads_get_the_right_blocks(xnvme, io, depth):
    device = open_ramdisk(xnvme, io)
    assert device.geometry().lba_bytes == 512  # asking for it is what makes libxnvme know it
    random = np.random.default_rng(depth)
    blocks = random.integers(0, 256, (3000, 512), np.uint8)
    with closing(device), closing(Queue(device, depth)) as queue:
        write = Reads(queue, np.arange(3000), 1, blocks)
        write.commands["opcode"] = 1  # a write, to memory of this process
        queue.run(write, blocks)
        assert sorted(write.ended) == list(range(3000))
        slba = random.integers(0, 2995, 500)
        memory = device.allocate(500 * 5 * 512)
        read = Reads(queue, slba, 5, memory)
        queue.run(read, memory)
        assert sorted(read.ended) == list(range(500))
        assert not read.statuses.any()
        expected = np.stack([blocks[first : first + 5].reshape(-1) for first in slba.tolist()])
        assert (memory.reshape(500, 5 * 512) == expected).all()


def test_blocks_far_out_are_not_wrapped(xnvme):
    with closing(open_ramdisk(xnvme, "nil")) as device, closing(Queue(device, 1)) as queue:
        slba = np.array([(1 << 40) + 5])  # nil reads nothing
        queue.run(Reads(queue, slba, MAX_BLOCKS, slba), slba)
        command = queue.heads.copy().view(COMMAND)
        assert command["slba"].tolist() == [(1 << 40) + 5]
        assert command["nlb"].tolist() == [0xFFFF]


@pytest.mark.parametrize("depth", [1, 16])
def test_an_implementation_that_writes_no_results_completes(xnvme, depth):
    with closing(open_ramdisk(xnvme, "nil")) as device, closing(Queue(device, depth)) as queue:
        work = Reads(queue, np.arange(100), 8, np.zeros(1))
        work.statuses[:] = 9
        queue.run(work, None)
        assert sorted(work.ended) == list(range(100))
        assert not work.statuses.any()


def test_a_refused_and_a_failed_command_have_reasons_and_do_not_harm_their_neighbours(xnvme, file):
    require_io(xnvme, "io_uring")
    with closing(open_file(xnvme, file, io="io_uring")) as device:
        memory = np.zeros((10, 512), np.uint8)
        with closing(Queue(device, 4)) as queue:
            work = Reads(queue, np.arange(10) * 512, 1, memory)
            work.commands["opcode"] = 0xDC  # the read of a file, by bytes
            work.commands["opcode"][3] = 0x55
            work._buffers[0][6] = 4096  # no memory is there
            queue.run(work, memory)
        assert work.errors.tolist() == [0, 0, 0, errno.ENOSYS, *[0] * 6]
        assert sorted(work.ended) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert work.statuses.tolist() == [*[0] * 6, 0x700 | errno.EFAULT, 0, 0, 0]
        assert work.failures() == {
            3: (errno.ENOSYS, "cannot submit a read of 512 bytes"),
            6: (errno.EFAULT, "cannot read 512 bytes"),
        }
        assert work.results.tolist() == [512, 512, 512, 0, 512, 512, 0, 512, 512, 512]
        right = np.frombuffer(file.read_bytes(), np.uint8)[:5120].reshape(10, 512)
        assert (np.delete(memory, (3, 6), 0) == np.delete(right, (3, 6), 0)).all()


def test_a_block_device_whose_geometry_libxnvme_gets_wrong_is_refused(xnvme, tmp_path):
    if xnvme.version != "main":
        pytest.skip("libxnvme 0.7.5 finds it out by itself")
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    require_io(xnvme, "io_uring")
    with loop_device(tmp_path / "image") as path:  # noqa: SIM117
        with closing(XnvmeDevice(xnvme, path.encode(), io="io_uring")) as device:  # no sync="block"
            with pytest.raises(OSError, match="geometry"):
                device.geometry()


def test_a_command_that_is_refused_for_now_is_submitted_again(xnvme):
    class Stubborn(Reads):
        """Refuses each command once, but for the first of a submission."""

        seen: ClassVar[set[int]] = set()

        def submit(self, numbers, contexts):
            codes = super().submit(numbers[:1], contexts[:1])
            for number, context in zip(numbers[1:], contexts[1:], strict=True):
                again = number in self.seen
                self.seen.add(number)
                codes += super().submit([number], [context]) if again else [-errno.EBUSY]
            return codes

    with closing(open_ramdisk(xnvme, "nil")) as device, closing(Queue(device, 8)) as queue:
        work = Stubborn(queue, np.arange(50), 1, np.zeros(1))
        queue.run(work, None)
        assert sorted(work.ended) == list(range(50))
        assert not work.errors.any()
        assert len(work.seen) > 20


def test_a_command_that_an_idle_queue_refuses_is_refused(xnvme):
    class Never(Reads):
        def submit(self, numbers, contexts):
            return [-errno.EAGAIN if number % 2 else NOTHING_TO_DO for number in numbers]

    with closing(open_ramdisk(xnvme, "nil")) as device, closing(Queue(device, 8)) as queue:
        work = Never(queue, np.arange(20), 1, np.zeros(1))
        queue.run(work, None)
        assert work.errors.tolist() == [0, errno.EAGAIN] * 10
        assert work.ended == []


@pytest.mark.parametrize("depth", [0, 3, 4096])
def test_a_depth_that_libxnvme_does_not_support_is_an_error(ramdisk, depth):
    with pytest.raises(OSError) as caught:
        Queue(ramdisk, depth)
    assert caught.value.errno == errno.EINVAL


def test_contexts_that_are_not_one_array_are_refused(ramdisk, monkeypatch):
    taken = iter([1 << 20, (1 << 20) + 256])
    monkeypatch.setattr(
        ramdisk.library, "xnvme_queue_get_cmd_ctx", lambda _: next(taken), raising=False
    )
    with pytest.raises(BackendUnavailable, match="contexts"):
        Queue(ramdisk, 2)


# Waiting, and being interrupted


@pytest.fixture
def pipe():
    """What is read from its end takes as long as the test wants."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.fixture
def files(xnvme):
    """A queue that reads files, and pipes, by io_uring."""
    require_io(xnvme, "io_uring")
    with closing(FileQueue(xnvme, "io_uring", 8)) as queue:
        yield queue


def count_polls(queue, fd, most, monkeypatch):
    """Write to a pipe after so many polls; returns lists that grow by each poll and each sleep.

    The clock of the queue advances one second a poll.
    """
    polls, pauses, poke, sleep = list[int](), list[float](), queue.poke, time.sleep

    def poll(*arguments):
        polls.append(1)
        if len(polls) == most:
            os.write(fd, b"12345678")
        return int(poke(*arguments))

    queue.poke = poll
    waiting = SimpleNamespace(
        monotonic=lambda: len(polls), sleep=lambda pause: (pauses.append(pause), sleep(pause))
    )
    monkeypatch.setattr(_xnvme_queue, "time", waiting)
    return polls, pauses


@pytest.mark.parametrize("spin", [False, True])
def test_a_queue_pauses_between_polls_unless_it_spins(files, pipe, monkeypatch, spin):
    memory, queue = np.zeros((1, 8), np.uint8), files._opened_queue()
    queue._backoff._spin = spin
    work = Descriptors(files, [pipe[0]], memory)
    _, pauses = count_polls(queue, pipe[1], 30, monkeypatch)
    files.run(work, memory)
    assert memory.tobytes() == b"12345678"
    assert work.waits > 1
    if spin:
        assert not pauses
    else:
        assert len(pauses) >= 28
        longest = _xnvme_queue._LONGEST_PAUSE
        assert pauses[1:] == [min(2 * pause, longest) for pause in pauses[:-1]]
        assert pauses[-1] == longest


@pytest.mark.parametrize("method", ["submit", "complete", "will_wait"])
def test_an_error_waits_for_commands_under_way(files, pipe, file, method, monkeypatch):
    def fail(*arguments):
        original(*arguments)
        raise RuntimeError("tired")

    memory = np.zeros((3, 8), np.uint8)
    with open(file, "rb") as other:
        count_polls(files._opened_queue(), pipe[1], 20, monkeypatch)
        work = Descriptors(files, [other.fileno(), pipe[0], other.fileno()], memory)
        original = getattr(work, method)
        monkeypatch.setattr(work, method, fail)
        with pytest.raises(RuntimeError, match="tired"):
            files.run(work, memory)
        assert memory[1].tobytes() == b"12345678"  # it has been waited for
        os.write(pipe[1], b"abcdefgh")
        files.run(Descriptors(files, [pipe[0]], memory), memory)  # the queue is as good as new
        assert memory[0].tobytes() == b"abcdefgh"


def test_a_device_that_does_not_answer_is_given_up_and_its_memory_kept(files, pipe, monkeypatch):
    abandoned = []
    monkeypatch.setattr(_xnvme_queue, "_leaked_on_purpose", abandoned)
    memory, queue = np.zeros((1, 8), np.uint8), files._opened_queue()
    queue._timeout_s = 0.2
    with pytest.raises(TimeoutError, match="1 commands are in flight"):
        files.run(Descriptors(files, [pipe[0]], memory), memory)
    (((kept, handles), owner),) = abandoned
    assert kept is memory
    assert handles is files._handles
    assert owner is queue
    with pytest.raises(OSError, match="has stopped answering") as caught:
        files.run(Descriptors(files, [pipe[0]], memory), memory)
    assert caught.value.errno == errno.ENODEV
    pointer = queue._pointer
    files.close()
    assert abandoned[1][0] is pointer  # it is still there for the device to write to
    queue._pointer = pointer
    os.write(pipe[1], b"12345678")
    while not memory.any():
        queue.poll()
    queue.device.lost = False


def test_one_failed_poll_after_a_long_wait_does_not_give_the_device_up(files, pipe, monkeypatch):
    memory, queue = np.zeros((1, 8), np.uint8), files._opened_queue()
    polls, _ = count_polls(queue, pipe[1], 30, monkeypatch)
    poke = queue.poke
    queue.poke = lambda *arguments: -errno.EAGAIN if poke(*arguments) or len(polls) == 20 else 0
    files.run(Descriptors(files, [pipe[0]], memory), memory)
    assert memory.tobytes() == b"12345678"


def test_pauses_get_shorter_with_few_commands_in_a_deep_queue(ramdisk):
    memory, turns = np.zeros((4, 512), np.uint8), itertools.cycle([True, False])
    with closing(Queue(ramdisk, 128)) as queue:
        poke = queue.poke
        queue.poke = lambda *arguments: 0 if next(turns) else poke(*arguments)
        queue._backoff._pause = _xnvme_queue._LONGEST_PAUSE
        for _ in range(8):
            queue.run(Reads(queue, np.arange(4), 1, memory), memory)
        assert queue._backoff._pause == _xnvme_queue._SHORTEST_PAUSE


def test_ctrl_c_does_not_end_a_queue_twice(xnvme, ramdisk, monkeypatch):
    ended, end = [], xnvme.xnvme_queue_term

    def interrupt(pointer):
        ended.append(pointer.value)
        end(pointer)
        raise KeyboardInterrupt

    monkeypatch.setattr(xnvme, "xnvme_queue_term", interrupt, raising=False)
    queue = Queue(ramdisk, 4)
    pointer = queue._pointer.value
    with pytest.raises(KeyboardInterrupt):
        queue.close()
    queue.close()
    assert ended == [pointer]


def test_a_device_that_another_driver_has_taken_over_is_not_touched(xnvme, file, monkeypatch):
    monkeypatch.setattr(_xnvme_queue, "_leaked_on_purpose", abandoned := [])
    monkeypatch.setattr(_xnvme_devices, "_leaked_on_purpose", left_open := [])
    ours = [True]
    device = open_file(xnvme, file, is_ours=lambda: ours[0])
    queue, memory = Queue(device, 4), np.zeros((1, 512), np.uint8)
    touch, touched = (lambda name: lambda *_: touched.append(name)), list[str]()
    for name in ("xnvme_queue_term", "xnvme_file_close"):
        monkeypatch.setattr(xnvme, name, touch(name), raising=False)
    queue.poke = touch("xnvme_queue_poke")
    ours[0] = False
    with pytest.raises(OSError, match="another driver has taken over") as caught:
        queue.run(Reads(queue, np.arange(1), 1, memory), memory)
    assert caught.value.errno == errno.ENODEV
    queue.close()
    device.close()
    assert touched == []
    assert len(abandoned) == 1
    del abandoned[:], queue, device, caught
    gc.collect()
    assert len(left_open) == 1


def test_a_queue_that_is_closed_runs_nothing(ramdisk):
    memory = np.zeros((1, 512), np.uint8)
    queue = Queue(ramdisk, 4)
    work = Reads(queue, np.arange(1), 1, memory)
    queue.close()
    queue.close()
    with pytest.raises(ValueError, match="the queue is closed"):
        queue.run(work, memory)


def test_a_queue_that_cannot_be_polled_is_given_up(ramdisk, monkeypatch):
    monkeypatch.setattr(_xnvme_queue, "_leaked_on_purpose", [])
    monkeypatch.setattr(_xnvme_queue, "_FAILING_LIMIT", 0.1)
    with closing(Queue(ramdisk, 4)) as queue, closing(Queue(ramdisk, 4)) as other:
        poke, failures = queue.poke, iter([-errno.EAGAIN] * 3)
        queue.poke = lambda *arguments: next(failures, None) or poke(*arguments)
        work = Reads(queue, np.arange(4), 1, memory := np.zeros((4, 512), np.uint8))
        queue.run(work, memory)
        assert len(work.ended) == 4
        queue.poke = lambda *_: -errno.ENOMEM
        with pytest.raises(OSError, match="does not answer") as caught:
            queue.run(Reads(queue, np.arange(4), 1, memory), memory)
        assert caught.value.errno == errno.ENOMEM
        with pytest.raises(OSError, match="has stopped answering"):
            other.run(Reads(other, np.arange(4), 1, memory), memory)
        queue.poke, ramdisk.lost = poke, False
        queue.poll()
