"""The kernel of xnvme-bam on a GPU, against a simulated controller on the host."""

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from dali_storage.backends.gpu import layout, module
from tests.gpu.kernel import make_trial, small_reads
from tests.kit.nvme_sim.build import COMPILER, build_controller
from tests.kit.nvme_sim.reads import Setup
from tests.kit.nvme_sim.simulation import NEVER
from tests.kit.nvme_sim.trial import some_reads

COMMANDS, RUNS = 200_000, 3
QUEUES = (1, 2, 4, 8)


@pytest.fixture(scope="module")
def trial(gpu, tmp_path_factory):
    if not shutil.which(COMPILER):
        pytest.skip(f"no {COMPILER}: apt-get install {COMPILER}")
    controller = build_controller(tmp_path_factory.mktemp("nvme_sim") / "controller")
    return make_trial(module.Launcher(gpu), controller)


@pytest.mark.parametrize(
    ("queues", "depth"), [(1, 2), (1, 33), (1, 256), (2, 64), (4, 256), (8, 1024)]
)
def test_random_reads_are_right(trial, queues, depth):
    trial.random_reads_are_right(Setup(queues=queues, depth=depth), [1000, 1, 1000])


@pytest.mark.parametrize("page_shift", [12, 16, 21])
@pytest.mark.parametrize("block_shift", [9, 12])
def test_long_reads_are_right(trial, page_shift, block_shift):
    setup = Setup(
        queues=2, depth=64, page_shift=page_shift, block_shift=block_shift, max_bytes=2 << 20
    )
    trial.random_reads_are_right(setup, [100, 100])


def test_the_phase_tag_flips_many_times(trial):
    trial.random_reads_are_right(Setup(depth=2, max_bytes=layout.PAGE, delay=0), [2000])


def test_statuses_reach_their_commands(trial):
    trial.statuses_reach_their_commands(Setup(queues=2))


@pytest.mark.parametrize("seed", range(10))
def test_a_second_completion_is_found(trial, seed):
    trial.a_second_completion_is_found(Setup(seed=seed, max_bytes=layout.PAGE), 100)


@pytest.mark.parametrize("difference", [1, 1 << 10])
def test_a_foreign_identifier_is_found(trial, difference):
    trial.a_foreign_identifier_is_found(Setup(max_bytes=layout.PAGE), difference)


def test_a_controller_that_stops_answering_is_given_up(trial):
    trial.a_command_that_never_completes_is_given_up(Setup(max_bytes=layout.PAGE), 0.5)


def test_a_kernel_that_waits_is_stopped(trial, measured):
    setup = Setup(max_bytes=layout.PAGE)
    reads, size = some_reads(setup, 300)
    with trial.simulate(setup, size) as simulation:
        simulation.fault(int(reads.slba[150]), NEVER)
        launches = trial.kernel.prepare(simulation, reads, patience_s=300.0)()
        waiting = threading.Thread(target=launches.wait)
        waiting.start()
        time.sleep(0.3)
        start = time.perf_counter()
        launches.stop()
        taken = time.perf_counter() - start
        waiting.join()
    assert launches.pairs["fault"].tolist() == [layout.STOPPED]
    measured("stopping a kernel that waits", 1e3 * taken, "ms")


def test_the_latency_of_a_launch_is_measured(trial, measured):
    with (
        trial.simulate(Setup(max_bytes=layout.PAGE, delay=0), small_reads(1)[1]) as simulation,
        ThreadPoolExecutor(1) as lane,
    ):
        best = min(lane.submit(_seconds, trial, [simulation], 1).result() for _ in range(100))
    measured("one read of 4 KiB, from launch to status", 1e6 * best, "us")


@pytest.mark.parametrize("queues", QUEUES)
def test_the_throughput_with_one_controller(trial, queues, measured):
    """The controller is one thread of the host, which all queue pairs share."""
    setup = Setup(queues=queues, depth=256, delay=0, max_bytes=layout.PAGE)
    with trial.simulate(setup, small_reads(1)[1]) as simulation:
        best = min(_seconds(trial, [simulation], COMMANDS) for _ in range(RUNS))
    assert simulation.refused() == {}
    measured(f"reads of 4 KiB, one controller, queue pairs: {queues}", COMMANDS / best, "/s")


@pytest.mark.parametrize("controllers", QUEUES)
def test_the_throughput_with_several_controllers(trial, controllers, measured):
    """Each has a queue pair, a thread of the host and a launch of its own."""
    setup = Setup(depth=256, delay=0, max_bytes=layout.PAGE)
    with ExitStack() as stack:
        each = [
            stack.enter_context(trial.simulate(setup, small_reads(1)[1]))
            for _ in range(controllers)
        ]
        best = min(_seconds(trial, each, COMMANDS) for _ in range(RUNS))
    rate = controllers * COMMANDS / best
    measured(f"reads of 4 KiB, a queue pair each, controllers: {controllers}", rate, "/s")


def _seconds(trial, simulations, count):
    """How long so many reads of 4 KiB take on each, from launch to statuses; all must succeed."""
    reads, _ = small_reads(count)
    launches = [trial.kernel.prepare(simulation, reads) for simulation in simulations]
    start = time.perf_counter()
    launched = [launch() for launch in launches]
    statuses = [each.wait() for each in launched]
    taken = time.perf_counter() - start
    assert not any(status.any() for status in statuses)
    return taken
