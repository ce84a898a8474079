"""The checks of backend options; those of the operator's arguments are in test_arguments.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dali_storage.contract.options import require_flag, require_integer


@pytest.mark.parametrize("value", [1, 64])
def test_an_integer_of_the_range_passes(value: int) -> None:
    require_integer("block", "lanes", value, range(1, 65))


@pytest.mark.parametrize("value", [0, 65, -1, 1.0, "1", True, None, np.int64(1)], ids=repr)
def test_anything_else_is_refused_with_the_range(value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        require_integer("block", "lanes", value, range(1, 65))
    assert str(caught.value) == f"block: lanes must be an integer from 1 to 64, not {value!r}"


def test_a_step_is_part_of_the_range() -> None:
    require_integer("block", "max_transfer", 8192, range(4096, 12289, 4096))
    with pytest.raises(ValueError, match="from 4096 to 12288, a multiple of 4096, not 5000"):
        require_integer("block", "max_transfer", 5000, range(4096, 12289, 4096))


@pytest.mark.parametrize("value", [True, False])
def test_a_flag_is_true_or_false(value: bool) -> None:
    require_flag("block", "check", value)


@pytest.mark.parametrize("value", [0, 1, None, "True", np.True_], ids=repr)
def test_a_flag_is_nothing_else(value: Any) -> None:
    with pytest.raises(TypeError) as caught:
        require_flag("block", "check", value)
    assert str(caught.value) == f"block: check must be True or False, not {value!r}"
