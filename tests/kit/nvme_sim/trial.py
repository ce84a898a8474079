"""Promises of the kernel, each checked with one simulation.

As a program it checks them under ThreadSanitizer, where it is preloaded:

    python -m tests.kit.nvme_sim.trial CONTROLLER KERNEL SECONDS
"""

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from dali_storage.backends.gpu.layout import (
    DNR,
    LANES,
    NO_FAULT,
    NOT_DONE,
    PAGE,
    STOPPED,
    TIMED_OUT,
    UNKNOWN_IDENTIFIER,
)
from tests.kit.nvme_sim.host_kernel import HostKernel
from tests.kit.nvme_sim.reads import Reads, Setup, random_reads
from tests.kit.nvme_sim.simulation import FOREIGN, NEVER, TWICE, UNTOUCHED, Simulation

IMAGE = np.random.default_rng(0).integers(0, 256, 8 << 20, np.uint8)
BAD_BLOCKS = range(100, IMAGE.size >> 9, 700)
UNRECOVERED = DNR | 0x281  # SCT 2h, SC 81h


class Trial:
    """A kernel, and the library of the controller to which it submits reads."""

    def __init__(self, kernel: HostKernel, controller: Path, patience_s: float = 120.0) -> None:
        self.kernel, self.controller, self.patience_s = kernel, controller, patience_s

    def simulate(self, setup: Setup, arena_bytes: int) -> Simulation:
        return Simulation(self.controller, setup, image=IMAGE, arena_bytes=arena_bytes)

    def random_reads_are_right(
        self, setup: Setup, counts: Sequence[int], share: int = LANES
    ) -> None:
        """Batches of so many random reads."""
        batches = [some_reads(replace(setup, seed=setup.seed + n), c) for n, c in enumerate(counts)]
        self.reads_are_right(setup, batches, share)

    def reads_are_right(
        self, setup: Setup, batches: Sequence[tuple[Reads, int]], share: int = LANES
    ) -> Simulation:
        """Batches one after the other: the queues go on where they were."""
        with self.simulate(setup, max(size for _, size in batches)) as simulation:
            for reads, _ in batches:
                simulation.arena[:] = UNTOUCHED
                status = self.kernel.run(simulation, reads, share=share, patience_s=self.patience_s)
                assert not status.any()
                assert_idle(simulation)
                assert simulation.wrong_bytes(reads, status) == 0
        assert_clean(simulation, sum(reads.slba.size for reads, _ in batches))
        return simulation

    def statuses_reach_their_commands(self, setup: Setup) -> None:
        """Some blocks cannot be read."""
        reads, size = some_reads(setup, 300)
        bad = np.logical_or.reduce([reads.covers(block) for block in BAD_BLOCKS])
        assert 0 < bad.sum() < 300
        with self.simulate(setup, size) as simulation:
            for block in BAD_BLOCKS:
                simulation.fault(block, UNRECOVERED)
            status = self.kernel.run(simulation, reads, patience_s=self.patience_s)
            assert status.tolist() == np.where(bad, UNRECOVERED, 0).tolist()
            assert_idle(simulation)
            assert simulation.wrong_bytes(reads, status) == 0
        assert_clean(simulation, 300)

    def a_second_completion_is_found(self, setup: Setup, count: int) -> None:
        """One of some commands completes again, up to 7 completions later. It alone succeeds."""
        reads, size = some_reads(setup, count)
        twice = int(reads.slba[setup.seed * 11 % count])
        expected = np.where(reads.slba == twice, 0, UNRECOVERED)
        with self.simulate(setup, size) as simulation:
            for slba in set(reads.slba.tolist()):
                simulation.fault(slba, UNRECOVERED)
            simulation.fault(twice, TWICE, times=1)
            status = self.kernel.run(simulation, reads, patience_s=self.patience_s)
            assert ((status == expected) | (status == NOT_DONE)).all()
            assert simulation.wrong_bytes(reads, status) == 0
            if simulation.queues["fault"][0] == NO_FAULT:  # the second completion came too late
                assert (status == expected).all()
                self.kernel.run(simulation, reads, patience_s=self.patience_s)
            assert simulation.queues["fault"].tolist() == [UNKNOWN_IDENTIFIER]

    def a_foreign_identifier_is_found(self, setup: Setup, difference: int) -> None:
        """A command completes with an identifier that differs in some bits."""
        reads, size = some_reads(setup, 300)
        with self.simulate(setup, size) as simulation:
            slba = int(reads.slba[150 * (setup.seed % 2)])  # an early command, or a later one
            simulation.fault(slba, FOREIGN | difference, times=1)
            status = self.kernel.run(simulation, reads, patience_s=self.patience_s)
            assert simulation.queues["fault"].tolist() == [UNKNOWN_IDENTIFIER]
            left, queue = status == NOT_DONE, simulation.queues[0]
            not_consumed = (int(queue["tail"]) - int(queue["head"])) % setup.depth
            assert left.sum() >= queue["in_flight"] == not_consumed + 1
            assert not status[~left].any()
            assert simulation.wrong_bytes(reads, status) == 0
        assert simulation.refused() == {}

    def a_command_that_never_completes_is_given_up(self, setup: Setup, patience_s: float) -> None:
        """Its queue pair is given up, and others take what that has not taken."""
        reads, size = some_reads(setup, 300)
        with self.simulate(setup, size) as simulation:
            simulation.fault(int(reads.slba[150]), NEVER)
            status = self.kernel.run(simulation, reads, patience_s=patience_s)
            faults, left = simulation.queues["fault"], simulation.queues["in_flight"]
            given_up = faults == TIMED_OUT
            assert given_up.any()
            assert (given_up | (faults == NO_FAULT)).all()
            assert ((left > 0) == given_up).all()
            # If all queue pairs have given up, commands are left that none has taken.
            not_done = status == NOT_DONE
            assert not_done.sum() == left.sum() or given_up.all()
            assert not_done[150]
            assert not status[~not_done].any()
            assert simulation.wrong_bytes(reads, status) == 0
        assert simulation.refused() == {}

    def a_kernel_that_waits_is_stopped(self, setup: Setup, after_s: float) -> None:
        """A command never completes, and the host sets the stop word."""
        reads, size = some_reads(setup, 300)
        stop = np.zeros(1, np.uint32)
        with self.simulate(setup, size) as simulation:
            simulation.fault(int(reads.slba[150]), NEVER)
            timer = threading.Timer(after_s, stop.fill, [1])
            timer.start()
            status = self.kernel.run(simulation, reads, patience_s=self.patience_s, stop=stop)
            timer.join()
            assert simulation.queues["fault"].tolist() == [STOPPED]
            assert status[150] == NOT_DONE
            assert simulation.wrong_bytes(reads, status) == 0


def some_reads(setup: Setup, count: int) -> tuple[Reads, int]:
    """Random reads of IMAGE, and the bytes of their arena."""
    return random_reads(np.random.default_rng(setup.seed), count, setup, IMAGE.size)


def assert_idle(simulation: Simulation) -> None:
    """The queue pairs can be used again."""
    assert simulation.queues["fault"].tolist() == [NO_FAULT] * simulation.setup.queues
    assert not simulation.queues["in_flight"].any()


def assert_clean(simulation: Simulation, commands: int) -> None:
    """Each command was submitted once, and a real controller would have refused nothing."""
    assert simulation.refused() == {}
    assert simulation.counters["commands"] == commands
    assert simulation.counters["in_flight"] < simulation.setup.depth


def repeat(trial: Trial, seconds: float) -> None:
    """Repeats all for some time, at least once. Prints how often."""
    end = time.monotonic() + seconds
    for seed in count():
        small = Setup(seed=seed, depth=5 + seed % 4, max_bytes=PAGE, delay=1, page_shift=12)
        lists = Setup(seed=seed, queues=2, page_shift=12)
        trial.random_reads_are_right(small, [100, 1, 100])
        trial.random_reads_are_right(lists, [60, 2, 60])
        trial.statuses_reach_their_commands(lists)
        for difference in (1 << 10, 0x3F0):  # another use, and a slot beyond the depth
            trial.a_foreign_identifier_is_found(replace(small, depth=16), difference)
        for each in range(4):
            again = Setup(seed=4 * seed + each, delay=each % 2, max_bytes=PAGE)
            trial.a_second_completion_is_found(again, 12 if each < 2 else 100)
        trial.a_kernel_that_waits_is_stopped(small, 0.01)
        if time.monotonic() > end:
            print(seed + 1)
            return


if __name__ == "__main__":
    controller, kernel, seconds = sys.argv[1:]
    repeat(Trial(HostKernel(Path(kernel)), Path(controller)), float(seconds))
