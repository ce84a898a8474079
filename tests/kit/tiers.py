"""The tiers of the suite: `make test`, `make test-all` and `make test-soak`.

A test belongs to the first tier, unless it is marked `long` (from test-all on) or `soak` (only in
test-soak). `pytest --tier all` is what `make test-all` runs. tests/conftest.py sets `TIER` before
the tests are imported.
"""

from importlib.util import find_spec

import pytest

TIERS = ("test", "all", "soak")
TIER = "test"


def select(config: pytest.Config) -> None:
    """Take the tier of the command line, and the profile of Hypothesis for it."""
    global TIER
    TIER = config.getoption("tier")
    if not find_spec("hypothesis"):  # in the environments of other frameworks
        return
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]  # the machine may be busy
    common = {"deadline": None, "print_blob": True, "suppress_health_check": slow}
    settings.register_profile("test", max_examples=25, derandomize=True, database=None, **common)
    settings.register_profile("all", max_examples=200, **common)
    settings.register_profile("soak", max_examples=5000, **common)
    settings.load_profile(TIER)


def by_tier(few: int, many: int) -> int:
    """The number of rounds, files or seeds for the tier; soak has ten times those of test-all."""
    return {"test": few, "all": many, "soak": 10 * many}[TIER]


def belongs(item: pytest.Item) -> bool:
    """Whether a test is one of the tier: soak runs its own tests only."""
    if item.get_closest_marker("soak"):
        return TIER == "soak"
    # With a libxnvme everything of the backends xnvme-* runs a second and a third time.
    if item.get_closest_marker("long") or "xnvme" in getattr(item, "fixturenames", ()):
        return TIER == "all"
    return TIER != "soak"
