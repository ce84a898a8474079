"""The kernel that submits NVMe reads, on the host, against a simulated controller."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.backends.gpu import layout
from dali_storage.backends.gpu.layout import (
    MAX_BLOCKS,
    MAX_BYTES,
    NOT_DONE,
    PAGE,
    STOPPED,
    TIMED_OUT,
)
from tests.kit.nvme_sim.host_kernel import BACKWARDS, DOORBELLS, STILL, HostKernel
from tests.kit.nvme_sim.reads import Reads, Setup, place
from tests.kit.nvme_sim.simulation import UNTOUCHED
from tests.kit.nvme_sim.trial import BAD_BLOCKS, IMAGE, UNRECOVERED, Trial, assert_clean, some_reads
from tests.kit.tiers import by_tier


@pytest.fixture(params=[1, pytest.param(4, marks=pytest.mark.long)], ids="{} lanes".format)
def trial(kernels, controller, request):
    return Trial(HostKernel(kernels(request.param)), controller)


@pytest.fixture
def one_lane(kernels, controller):
    return Trial(HostKernel(kernels(1)), controller)


def reads_of(blocks, setup):
    return place(np.random.default_rng(1), blocks, setup, IMAGE.size)


@pytest.mark.parametrize("lanes", [1, pytest.param(4, marks=pytest.mark.long)])
@given(
    setup=st.builds(
        Setup,
        seed=st.integers(0, 1 << 30),
        queues=st.integers(1, 4),
        depth=st.integers(2, 70) | st.integers(2, 1024),
        block_shift=st.sampled_from([9, 12]),
        page_shift=st.sampled_from([12, 16, 21]),
        max_bytes=st.sampled_from([PAGE, 3 * PAGE, 1 << 17]),
        delay=st.sampled_from([0, 3, 30]),
    ),
    counts=st.lists(st.integers(1, 120), min_size=1, max_size=3),
    share=st.integers(1, layout.LANES),
)
def test_random_reads_fill_their_places_in_the_arena(
    lanes, kernels, controller, setup, counts, share
):
    Trial(HostKernel(kernels(lanes)), controller).random_reads_are_right(setup, counts, share)


@pytest.mark.parametrize("depth", [33, 20, 200][: by_tier(1, 3)])
def test_a_warp_of_32_lanes_reads_right(kernels, controller, depth):
    trial = Trial(HostKernel(kernels(32)), controller)
    trial.random_reads_are_right(Setup(depth=depth, delay=0), [by_tier(60, 200)])


@pytest.mark.parametrize("page_shift", [12, 16, 21])
@pytest.mark.parametrize("block_shift", [9, 12])
def test_commands_of_every_length_have_right_prps(trial, page_shift, block_shift):
    setup = Setup(block_shift=block_shift, page_shift=page_shift, max_bytes=MAX_BYTES)
    pages = np.array([1, 2, 3, 4, 511, 512, 513]) * PAGE >> block_shift
    blocks = np.unique(np.concatenate([[1], pages, pages[:-1] + 1, pages[1:] - 1]))
    trial.reads_are_right(setup, [reads_of(blocks, setup)])


@pytest.mark.parametrize(("depth", "count"), [(2, by_tier(8000, 40_000)), (1024, 80_000)])
def test_queues_go_round_and_no_identifier_is_ffffh(one_lane, depth, count):
    """Every second command flips the phase tag, or the identifiers begin again."""
    setup = Setup(depth=depth, max_bytes=512, delay=0)
    simulation = one_lane.reads_are_right(setup, [one_block_reads(count)])
    assert simulation.counters["rounds"] == count // depth


def one_block_reads(count):
    """Reads of the same few blocks, again and again."""
    block, blocks = np.arange(count) % 1000, 1000
    return Reads(block, np.ones_like(block), block * 512), blocks * 512


def test_an_empty_batch_submits_nothing(trial):
    trial.reads_are_right(Setup(), [(Reads(*np.zeros((3, 0), np.int64)), PAGE)])


# --- faults ---


@pytest.mark.parametrize("seed", range(by_tier(2, 5)))
def test_a_status_reaches_its_command(trial, seed):
    trial.statuses_reach_their_commands(Setup(seed=seed, queues=2))


@pytest.mark.parametrize("count", [12, 100], ids="of {}".format)
@pytest.mark.parametrize("seed", range(by_tier(3, 10)))
def test_a_command_that_completes_twice_is_found(trial, seed, count):
    trial.a_second_completion_is_found(Setup(seed=seed, delay=seed % 3, max_bytes=PAGE), count)


@pytest.mark.parametrize(
    "difference", [1 << 15, 1 << 10, 0x3F0], ids=["old use", "next use", "slot beyond the depth"]
)
@pytest.mark.parametrize("seed", range(by_tier(2, 5)))
def test_a_completion_with_a_foreign_identifier_is_found(trial, difference, seed):
    trial.a_foreign_identifier_is_found(Setup(seed=seed), difference)


def test_failed_commands_can_be_run_again(trial):
    setup = Setup(queues=2)
    reads, size = some_reads(setup, 300)
    with trial.simulate(setup, size) as simulation:
        for block in BAD_BLOCKS:
            simulation.fault(block, UNRECOVERED, times=1)
        status = trial.kernel.run(simulation, reads)
        failed = np.flatnonzero(status)
        assert 0 < failed.size <= len(BAD_BLOCKS)
        assert set(status[failed].tolist()) == {UNRECOVERED}
        status[failed] = trial.kernel.run(simulation, reads[failed])
        assert not status.any()
        assert simulation.wrong_bytes(reads, status) == 0
    assert_clean(simulation, 300 + failed.size)


def test_a_status_has_no_bits_that_are_not_of_the_error(trial):
    more, retry_delay = 0x2000, 0x1800
    reads = Reads(*np.array([[5], [1], [0]]))
    with trial.simulate(Setup(), PAGE) as simulation:
        simulation.fault(5, UNRECOVERED | more | retry_delay)
        assert trial.kernel.run(simulation, reads).tolist() == [UNRECOVERED]


def test_a_read_beyond_the_end_has_a_status_and_writes_nothing(trial):
    end, out_of_range = IMAGE.size >> 9, layout.DNR | 0x80
    slba = np.array([end, end - 1, end - 2, 1 << 40])
    reads = Reads(slba, np.array([1, 2, 2, 8]), np.arange(4) * PAGE)
    with trial.simulate(Setup(), 4 * PAGE) as simulation:
        status = trial.kernel.run(simulation, reads)
        assert status.tolist() == [out_of_range, out_of_range, 0, out_of_range]
        assert simulation.arena[2 * PAGE :][:1024].tolist() == IMAGE[-1024:].tolist()
        assert (simulation.arena[: 2 * PAGE] == UNTOUCHED).all()
    assert_clean(simulation, 4)


@pytest.mark.parametrize("queues", [3, 1][: by_tier(1, 2)])
def test_a_queue_pair_whose_command_never_completes_is_given_up(trial, queues):
    trial.a_command_that_never_completes_is_given_up(Setup(queues=queues), 0.1)


def test_patience_begins_anew_with_each_completion(one_lane):
    """A completion takes a second at most, and all of them take hundreds."""
    setup = Setup(depth=4, delay=100, max_bytes=512)
    reads, size = one_block_reads(1000)
    with one_lane.simulate(setup, size) as simulation, one_lane.kernel.clock(DOORBELLS):
        assert not one_lane.kernel.run(simulation, reads, patience_s=20).any()


def test_a_clock_that_goes_backwards_ends_no_patience(one_lane):
    with one_lane.kernel.clock(BACKWARDS):
        one_lane.random_reads_are_right(Setup(delay=100), [1000])


def test_nothing_is_given_up_before_its_time(one_lane):
    one_lane.patience_s = 1e-9
    with one_lane.kernel.clock(STILL):
        one_lane.a_kernel_that_waits_is_stopped(Setup(), after_s=0.2)


def test_a_queue_pair_with_a_fault_takes_no_commands(trial):
    setup = Setup(queues=2)
    reads, size = some_reads(setup, 100)
    with trial.simulate(setup, size) as simulation:
        simulation.queues["fault"][0] = TIMED_OUT
        simulation.queues["in_flight"][0] = 3
        assert not trial.kernel.run(simulation, reads).any()
        simulation.queues["fault"][1] = STOPPED
        assert (trial.kernel.run(simulation, reads) == NOT_DONE).all()
        assert simulation.queues["fault"].tolist() == [TIMED_OUT, STOPPED]
        assert simulation.queues["in_flight"].tolist() == [3, 0]
    assert_clean(simulation, 100)


def test_the_host_stops_a_kernel_that_waits(trial):
    trial.a_kernel_that_waits_is_stopped(Setup(), after_s=0.2)


def test_the_host_stops_a_kernel_that_is_busy(trial):
    setup = Setup(delay=0, max_bytes=PAGE)
    reads, size = some_reads(setup, 20_000)
    with trial.simulate(setup, size) as simulation:
        status = trial.kernel.run(simulation, reads, stop=np.ones(1, np.uint32))
        assert simulation.queues["fault"].tolist() == [STOPPED]
        assert (status == NOT_DONE).sum() > 10_000


# --- layout.py ---


@pytest.mark.parametrize("depth", [1, 1025])
def test_a_depth_out_of_range_is_refused(depth):
    with pytest.raises(ValueError, match=f"depth={depth}: must be 2 to 1024"):
        layout.queue_pairs(1, depth)


BATCH = {"count": 1, "page_shift": 12, "block_shift": 9, "nsid": 1, "share": 1, "patience_s": 1.0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", (1 << 31) + 1),
        ("page_shift", 11),
        ("block_shift", 8),
        ("nsid", 0),
        ("share", 0),
        ("share", 33),
        ("patience_s", 0.0),
        ("patience_s", float("nan")),
    ],
)
def test_a_value_of_a_batch_out_of_range_is_refused(name, value):
    assert layout.batch(**BATCH)["patience_ns"] == 1_000_000_000
    with pytest.raises(ValueError, match=f"{name}={value}: must be "):
        layout.batch(**{**BATCH, name: value})


@pytest.mark.parametrize(
    ("blocks", "offset", "block_shift"),
    [
        (0, 0, 9),
        (-1, 0, 9),
        (MAX_BYTES // 512 + 1, 0, 9),
        (MAX_BLOCKS + 1, 0, 0),
        (1, 2, 9),
        (MAX_BYTES // 512, 512, 9),
        (1, -PAGE, 9),
        (9, (4 << 20) - PAGE, 9),
        (1, 4 << 20, 9),
    ],
)
def test_a_read_that_would_write_beside_the_arena_is_refused(blocks, offset, block_shift):
    arena = {"block_shift": block_shift, "arena_bytes": 4 << 20}
    layout.check_reads(np.array([8]), np.array([(4 << 20) - PAGE]), **arena)
    with pytest.raises(ValueError, match=f"command 1: {blocks} blocks of .* to offset {offset}"):
        layout.check_reads(np.array([1, blocks]), np.array([0, offset]), **arena)
