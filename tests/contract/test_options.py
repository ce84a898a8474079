"""The options of backends; the arguments of the operator are in test_arguments.py."""

import inspect
from typing import Annotated

import numpy as np
import pytest

from dali_storage import Catalog, Reader
from dali_storage.backends.block import BlockReader
from dali_storage.contract import registry
from dali_storage.contract.options import Flag, Option, check_options, require_integer
from tests.kit.option_tables import helps, options_of

POWERS = 1, 2, 4


class Example(Reader):
    """Has an option of every kind."""

    @check_options("example")
    def __init__(
        self,
        catalog: Catalog,
        *,
        flag: Flag = True,
        integer: Annotated[int | None, Option(range(1, 65))] = None,
        step: Annotated[int, Option(range(4096, 12289, 4096), "bytes")] = 4096,
        power: Annotated[int, Option(POWERS)] = 1,
        number: Annotated[float, Option((0.5, 60), "s")] = 1.0,
        name: Annotated[str, Option(("cpu", "gpu"))] = "cpu",
        path: Annotated[object, Option("a path")] = None,
        plain: int = 5,
    ) -> None:
        """Take the options.

        Args:
            catalog: the samples.
            flag: a flag.
            number: a number; plain: not this one.
        """
        self.taken = flag, integer, step, power, number, name, path, plain

    def sizes(self, samples): ...

    def read(self, batch, lane): ...

    def close(self): ...


GOOD = [
    *(("flag", True), ("flag", False), ("integer", 1), ("integer", 64), ("integer", None)),
    *(("step", 8192), ("power", 2), ("number", 0.5), ("number", 60), ("number", np.float64(3))),
    *(("name", "gpu"), ("path", 17), ("plain", "anything")),
]
BAD = {
    "flag": ("True or False", (0, 1, None, "True", np.True_)),
    "integer": ("an integer from 1 to 64", (0, 65, -1, 1.0, "1", True, np.int64(1))),
    "step": ("a multiple of 4096 from 4096 to 12288 bytes", (0, 5000, 16384, None, "8k")),
    "power": ("a power of two from 1 to 4", (0, 3, 8, 2.0, True, None)),
    "number": ("a number from 0.5 to 60 s", (0.4, 61, True, "1", None, float("nan"))),
    "name": ("one of cpu, gpu", ("disk", b"cpu", 0, None, True, "")),
}


@pytest.mark.parametrize(("option", "value"), GOOD, ids=repr)
def test_a_value_of_the_range_passes(option, value):
    assert value in Example(Catalog.from_names([], []), **{option: value}).taken


@pytest.mark.parametrize(
    ("option", "value"), [(name, value) for name in BAD for value in BAD[name][1]], ids=repr
)
def test_a_value_out_of_the_range_is_refused_with_the_range(option, value):
    for open_ in (
        lambda: Example(Catalog.from_names([], []), **{option: value}),
        lambda: registry.configure(Example, {option: value}),  # before anything is opened
    ):
        with pytest.raises(TypeError if option == "flag" else ValueError) as caught:
            open_()
        assert str(caught.value) == f"example: {option} must be {BAD[option][0]}, not {value!r}"


def test_a_value_that_is_given_by_position_is_checked():
    @check_options("somewhere")
    def take(lanes: Annotated[int, Option(range(1, 3))]) -> int:
        return lanes

    assert take(2) == 2
    with pytest.raises(ValueError, match="somewhere: lanes must be an integer from 1 to 2, not 3"):
        take(3)
    with pytest.raises(TypeError, match="argument"):
        take(1, 2)


def test_an_integer_that_is_no_option_is_checked_with_the_same_words():
    require_integer("Shard", "rank", 1, range(2))
    for wrong in (2, None):
        message = f"Shard: rank must be an integer from 0 to 1, not {wrong}"
        with pytest.raises(ValueError, match=message):
            require_integer("Shard", "rank", wrong, range(2))


def test_the_help_of_an_option_shows_range_and_unit():
    assert "step: int = 4096" in str(inspect.signature(Example))
    assert helps(Example) == {
        "catalog": "The samples.",
        "flag": "A flag.",
        "number": "A number; plain: not this one.",
    }
    text = inspect.getdoc(Example.__init__) or ""
    assert "\n    number (a number from 0.5 to 60 s): a number; plain: not this one." in text
    text = inspect.getdoc(BlockReader.__init__) or ""
    assert "max_transfer (a multiple of 4096 from 4096 to 1073741824 bytes): the largest" in text


@pytest.mark.parametrize("backend", registry.names())
def test_every_option_is_described_and_has_a_default_that_is_allowed(backend):
    reader = registry.load(backend)
    parameters = inspect.signature(reader).parameters.values()
    named = {it.name: it.default for it in parameters if it.kind is it.KEYWORD_ONLY}
    options = options_of(reader)
    assert {option.name: option.default for option in options.values()} == named
    assert {option.backend for option in options.values()} <= {backend}
    assert named.keys() <= helps(reader).keys()
    for option in options.values():
        if option.default is not inspect.Parameter.empty:
            option.check(option.default)
