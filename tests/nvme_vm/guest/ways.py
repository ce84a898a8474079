"""The ways to name a namespace in the option `uri` of xnvme-block."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

import pytest

from dali_storage.backends.xnvme import library as _xnvme
from tests.nvme_vm.guest import controllers, vram

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
    """The PCI address, while the controller is bound to a user-space driver; without the `nsid`."""
    function = controllers.address(serial)
    with controllers.bound(function, controllers.user_space_driver()):
        yield function
        gc.collect()  # memory in a traceback keeps the controller open
    controllers.wait_for_disk(serial, nsid)


@contextmanager
def gpu(serial: str, nsid: int = 1) -> Iterator[str]:
    """The PCI address, and readers that are opened meanwhile read to GPU memory."""
    with address(serial, nsid) as function, vram.in_use():
        yield function


ONLY_MAIN = pytest.mark.skipif(
    _xnvme.load().version == "0.7.5",
    reason="libxnvme 0.7.5 has no upcie, the main branch has (another test checks the refusal)",
)
_TO_HOST_MEMORY = [disk, node, pytest.param(address, marks=ONLY_MAIN)]
TO_HOST_MEMORY = pytest.mark.parametrize("way", _TO_HOST_MEMORY)
ALL = pytest.mark.parametrize("way", [*_TO_HOST_MEMORY, pytest.param(gpu, marks=ONLY_MAIN)])
