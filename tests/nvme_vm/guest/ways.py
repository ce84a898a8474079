"""The ways to a namespace that xnvme-block has: what to give as its option `uri`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

import pytest

from dali_storage.backends.xnvme import library as _xnvme

from . import controllers

Way: TypeAlias = Callable[..., AbstractContextManager[str]]


@contextmanager
def disk(serial: str, nsid: int = 1) -> Iterator[str]:
    """The block device."""
    yield controllers.disk(serial, nsid)


@contextmanager
def node(serial: str, nsid: int = 1) -> Iterator[str]:
    """The character device."""
    yield controllers.character_device(serial, nsid)


@contextmanager
def address(serial: str, nsid: int = 1) -> Iterator[str]:
    """The PCI address, while a driver for user space has it. Which namespace, is not in it."""
    function = controllers.address(serial)
    with controllers.bound(function, controllers.user_space_driver()):
        yield function
        gc.collect()  # the memory that a traceback has keeps the controller open
    controllers.wait_for_disk(serial, nsid)


ONLY_MAIN = pytest.mark.skipif(
    _xnvme.load().version == "0.7.5",
    reason="libxnvme 0.7.5 has no upcie: it needs the main branch. That it is refused, is tested",
)
ALL = pytest.mark.parametrize("way", [disk, node, pytest.param(address, marks=ONLY_MAIN)])
