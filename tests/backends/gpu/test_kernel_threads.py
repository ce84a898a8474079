"""The kernel on the host under ThreadSanitizer, and bugs that these tests must find."""

import os
import re
import subprocess
import sys

import pytest

from tests.kit.nvme_sim import build
from tests.kit.nvme_sim.trial import log_of
from tests.kit.paths import ROOT
from tests.kit.tiers import by_tier


@pytest.fixture(scope="module")
def sanitized_controller(sim_folder):
    return build.build_controller(sim_folder / "controller_tsan", flags=build.SANITIZED)


def run_trials(kernels, controller, *, patience_s, seconds):
    """Run all trials of each kernel under ThreadSanitizer, until one fails or the time is over.

    Returns the exit status of each and what it has said.
    """
    command = [build.COMPILER, "-print-file-name=libtsan.so"]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "TSAN_OPTIONS": "exitcode=66 halt_on_error=1 atexit_sleep_ms=0",
        "OPENBLAS_NUM_THREADS": "1",  # a process that forks must have one thread
    }
    done = subprocess.run(
        # GCC 12's runtime does not find room where addresses are randomized.
        [
            *("setarch", "-R", sys.executable, "-m", "tests.kit.nvme_sim.trial"),
            *map(str, (controller, patience_s, seconds, *kernels)),
        ],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    statuses = map(int, done.stdout.split())
    return [
        (status, log_of(kernel).read_text())
        for status, kernel in zip(statuses, kernels, strict=True)
    ]


def test_the_kernel_has_no_data_race(sim_folder, sanitized_controller):
    kernels = [
        build.build_kernel(sim_folder / f"tsan{lanes}", lanes, flags=build.SANITIZED)
        for lanes in (4, 1)[: by_tier(1, 2)]
    ]
    seconds = by_tier(0, 2)  # at least once
    for status, said in run_trials(kernels, sanitized_controller, patience_s=120, seconds=seconds):
        assert status == 0, said
        assert int(said) >= 1


SYNC, BELL = "    sync_lanes();\n", "    if (lane == 0) write_doorbell(queue."
PART, OTHER = "LIST_ENTRIES * (u64)(id % SLOTS)", "LIST_ENTRIES * (u64)((id + 1) % queue.depth)"
EMPTY = "exchange(queue.commands + slot, NO_COMMAND)"
TAKEN = "{ index = queue.commands[slot]; queue.commands[slot] = NO_COMMAND; }"
RELAXED, NEXT_PAGE = "__ATOMIC_RELAXED", "page_start(offset)"

# What is replaced in submit.cu or host.h, and by what.
RACES = {
    "no barrier before the submission doorbell": (SYNC + BELL + "sub", BELL + "sub"),
    "no fence before the submission doorbell": (f"    fence();\n{SYNC}", SYNC),
    "the first lane alone has a fence": ("    fence();\n", "    if (lane == 0) fence();\n"),
    "no barrier before the completion doorbell": (SYNC + BELL + "comp", BELL + "comp"),
    "no barrier before the state is written": (SYNC[:-1] + "  // the state has", "  //"),
    "the slot's command is taken by two lanes": (f"index = {EMPTY};", TAKEN),
    "a doorbell announces no writes": ("value, __ATOMIC_RELEASE", f"value, {RELAXED}"),
    "a completion announces no data": ("n(word, __ATOMIC_ACQUIRE)", f"n(word, {RELAXED})"),
}
BUGS = {
    # Queues.
    "one command too many": (
        "depth - 1 - state.in_flight, first",
        "depth - state.in_flight, first",
    ),
    "the tail goes past the end": ("state.tail >= queue.depth", "state.tail > queue.depth"),
    "the phase tag is never flipped": ("-= queue.depth, state.phase ^= 1;", "-= queue.depth;"),
    "the phase tag of lanes beyond the end": ("at -= queue.depth, phase ^= 1", "at -= queue.depth"),
    "completions after a gap": (
        "count_trailing_ones(ballot(posted))",
        "count_ones(ballot(posted))",
    ),
    "the head goes past the end": ("state.head >= queue.depth", "state.head > queue.depth"),
    "the completion doorbell is not written": (BELL + "completion_doorbell, state.head);", ""),
    # Identifiers.
    "identifiers without a use count": ("(id + SLOTS) % IDENTIFIERS", "id"),
    "the use count is not compared": (" && queue.identifiers[slot] == id", ""),
    "the slot of an identifier is not checked": ("slot < queue.depth && ", ""),
    "a completed command stays in its slot": (
        EMPTY,
        EMPTY.replace("NO_COMMAND", "queue.commands[slot]"),
    ),
    "the stack of identifiers is one off": (
        "queue.free[room - 1 - lane]",
        "queue.free[room - lane]",
    ),
    # Commands.
    "the PRP list of another slot": (f"queue.prp_lists + {PART}", f"queue.prp_lists + {OTHER}"),
    "a PRP list of other lanes' bytes": ("from_lane(bytes, each)", "bytes"),
    "arena pages that follow each other": (f"{NEXT_PAGE} + PAGE)", f"{NEXT_PAGE}) + PAGE"),
    "PRPs that begin in the middle of a page": (f"{NEXT_PAGE} + page", "offset + page"),
    "bytes from the middle of a page": ("bytes = offset % PAGE + ", "bytes = "),
    # Ends.
    "the stop word is ignored": ("if (load_acquire(batch.stop)) fault = STOPPED;", ""),
    "a fault is forgotten": (", shared.fault = state.fault;", ";"),
    "the phase tag is forgotten": (", shared.phase = state.phase;", ";"),
    # Statuses.
    "the status of another command": ("batch.status[index] =", "batch.status[index ^ 1] ="),
    "the status with the phase tag": ("word >> 17 & STATUS_BITS", "word >> 16 & STATUS_BITS"),
}


@pytest.fixture(scope="module")
def trials(sim_folder, sanitized_controller):
    """Of each bug: the exit status of its trials, and what they have said."""
    kernels = []
    for bug, (old, new) in (RACES | BUGS).items():
        texts = {name: text.replace(old, new) for name, text in build.sources().items()}
        assert [texts[name] != text for name, text in build.sources().items()].count(True) == 1
        folder = sim_folder / re.sub(r"\W", "_", bug)
        kernels.append(build.build_kernel(folder, 4, flags=build.SANITIZED, texts=texts))
    done = run_trials(kernels, sanitized_controller, patience_s=2, seconds=60)
    return dict(zip(RACES | BUGS, done, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("bug", RACES | BUGS)
def test_a_planted_bug_is_found(bug, trials):
    """A race by ThreadSanitizer; others by what is wrong, too, or because the kernel crashes."""
    status, said = trials[bug]
    assert status in (1, 66), said
    if bug in RACES:
        assert "WARNING: ThreadSanitizer: data race" in said
    else:
        assert "AssertionError" in said or "ThreadSanitizer: " in said
