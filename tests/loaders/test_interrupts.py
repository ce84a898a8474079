"""Ctrl-C at any point of what a Loader does."""

import contextlib
import signal
from itertools import chain, islice
from random import Random

import pytest

from dali_storage.loaders import Loader
from tests.kit.interrupts import interrupted
from tests.kit.loading import Make, given, labels, stream

pytestmark = pytest.mark.filterwarnings(  # in finalizers
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


def interrupted_next(iterator, point):
    """The next batch, if one was given, and whether a Ctrl-C at this point has ended the call.

    `next()` would be a C function, at the end of which a Ctrl-C loses what it has returned.
    """
    taken = None
    step = type(iterator).__next__
    try:
        with interrupted(step, point):
            taken = step(iterator)
    except KeyboardInterrupt:
        return taken, True
    except StopIteration:
        pass
    return taken, False


@pytest.mark.parametrize("sound", [True, False], ids=["taking", "making anew"])
def test_ctrl_c_loses_no_batch_and_repeats_none(loader, sound):
    """At any point while a batch is taken, or while the pipeline is made anew after that."""
    expected = labels(loader(Make()))
    one = loader(Make())
    iterator = iter(one)
    seen = []
    interrupts = 0
    for point in range(0, 180, 1 if sound else 3):
        if sound:
            seen += labels([next(iterator)])
        taken, ended = interrupted_next(iterator, point)
        interrupts += ended
        seen += [] if taken is None else labels([taken])
        if len(seen) == len(expected):
            assert seen == expected
            assert list(iterator) == []
            seen, iterator = [], iter(one)
    assert seen == expected[: len(seen)]
    assert interrupts > 40


def test_ctrl_c_while_an_epoch_is_left_leaves_the_next_one_whole(loader):
    make = Make(order={"shuffle_after_epoch": True})
    expected = stream(make)
    one = loader(make)
    epoch, interrupts = 0, 0
    for point in range(0, 120, 3):
        next(iter(one))
        iterator = iter(one)
        taken, ended = interrupted_next(iterator, point)
        interrupts += ended
        seen = labels(chain([] if taken is None else [taken], iterator))
        epoch += 1 + 1
        assert seen == given(make, expected(epoch - 1), epoch - 1, "partial")
    assert interrupts > 20


@pytest.mark.parametrize("what", ["save", "load"])
def test_ctrl_c_while_a_state_is_saved_or_loaded_loses_nothing(loader, what):
    expected = labels(loader(Make()))
    one, other = loader(Make()), loader(Make())
    list(islice(other, 2))
    state = other.state_dict()
    interrupts = 0
    for point in range(0, 150, 3):
        iterator = iter(one)
        assert labels(islice(iterator, 2)) == expected[:2]
        if point % 2:
            iterator = iter(one)  # saving drains what is left of the epoch
        function = Loader.state_dict if what == "save" else Loader.load_state_dict
        with contextlib.suppress(KeyboardInterrupt), interrupted(function, point):
            function(*[one, state][: 1 + (what == "load")])
            interrupts -= 1
        interrupts += 1
        try:
            found = labels(iterator)
        except RuntimeError:  # the state was loaded
            assert what == "load"
            found = labels(one)
        if what == "save" or found != expected[2:]:  # where the state is
            assert found == expected[2 if not point % 2 else 0 :]
        one.set_epoch(0)
    assert interrupts > 20


@pytest.fixture
def ring():
    """Makes a context that raises one KeyboardInterrupt after some seconds, if it has not ended."""
    armed = []

    def interrupt(*_):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def after(seconds):
        armed.append(True)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        armed.clear()

    previous = signal.signal(signal.SIGALRM, interrupt)
    yield after
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_ctrl_c_at_random_moments_repeats_no_batch_and_ends_no_loader(loader, ring, seed):
    """A batch may be lost between the Loader and its caller: at most one for each Ctrl-C."""
    expected = labels(loader(Make()))
    one, random = loader(Make()), Random(seed)
    for _ in range(1000):
        seen, iterator, interrupts, complete = [], None, 0, False
        while not complete:
            try:
                with ring(random.expovariate(30)):
                    if iterator is None:
                        iterator = iter(one)
                    for batch in iterator:
                        seen += labels([batch])
                    complete = True
            except KeyboardInterrupt:
                interrupts += 1
        rest = iter(expected)
        assert all(label in rest for label in seen)
        assert len(expected) - len(seen) <= interrupts
