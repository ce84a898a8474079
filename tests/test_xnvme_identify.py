"""What a controller says of itself, against what Linux makes of the same; tests/nvme_vm asks it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dali_storage.backends.xnvme.identify import Identity, identify

SERIAL = "S4EWNX0R"
NAMED_BY_MODEL = "nvme.144d-533445574e583052-53616d73756e672053534420393730-00000001"


def controller(nguid: bytes = bytes(16), eui64: bytes = bytes(8)) -> Any:
    """A stub of an open device, with the structures as the specification has them."""
    says = np.zeros((2, 4096), np.uint8)
    says[0, :2] = 0x4D, 0x14
    says[0, 4:24] = list(SERIAL.ljust(20).encode())
    says[0, 24:64] = list(b"Samsung SSD 970".ljust(40))
    says[1, 104:120], says[1, 120:128] = list(nguid), list(eui64)
    library = SimpleNamespace(
        xnvme_dev_get_ctrlr=lambda _: says[0].ctypes.data,
        xnvme_dev_get_ns=lambda _: says[1].ctypes.data,
    )
    return SimpleNamespace(library=library, pointer=0, nsid=1)


def test_a_namespace_without_a_name_of_its_own_is_named_by_its_controller() -> None:
    assert identify(controller()) == Identity(SERIAL, (NAMED_BY_MODEL,))


@pytest.mark.parametrize(("serial", "known"), [(b"A\0B", "A"), (b"  A ", "A"), (b"\xe4", "\udce4")])
def test_a_serial_number_is_read_as_the_kernel_writes_it(serial: bytes, known: str) -> None:
    device = controller()
    says = ctypes.c_char_p(device.library.xnvme_dev_get_ctrlr(None))
    ctypes.memmove(ctypes.cast(says, ctypes.c_void_p).value + 4, serial.ljust(20), 20)
    assert identify(device).serial == known


def test_unique_names_come_first() -> None:
    found = identify(controller(bytes(range(16)), bytes(range(1, 9))))
    assert found.serial == SERIAL
    assert found.wwids == (
        "eui.000102030405060708090a0b0c0d0e0f",
        "eui.0102030405060708",
        NAMED_BY_MODEL,
    )


@pytest.mark.parametrize("serial", [None, SERIAL])
@pytest.mark.parametrize(
    "wwid",
    [None, "eui.0102030405060708", NAMED_BY_MODEL, "uuid.ad0bc0f5-7ef2-4ad5-8c4f-3a9ba4ee2ccb"],
)
def test_what_the_kernel_may_have_named_like_this(serial: str | None, wwid: str | None) -> None:
    assert identify(controller(eui64=bytes(range(1, 9)))).difference(serial, wwid) == ""


def test_another_serial_number_or_another_name_is_told() -> None:
    found = identify(controller(eui64=bytes(range(1, 9))))
    assert found.difference("S4EWNX0", None) == "its serial is S4EWNX0R and was S4EWNX0"
    assert found.difference(SERIAL, "eui.0102030405060709") == (
        f"its wwid is eui.0102030405060708 or {NAMED_BY_MODEL} and was eui.0102030405060709"
    )
