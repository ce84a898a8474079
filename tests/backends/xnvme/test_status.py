import errno

import pytest

from dali_storage.backends.xnvme.status import describe_status


@pytest.mark.parametrize(
    ("status", "io", "number", "text"),
    [
        (0x281, "upcie", errno.EIO, "Unrecovered Read Error (SCT 2h, SC 81h)"),
        (0x080, "io_uring_cmd", errno.EIO, "LBA Out of Range (SCT 0h, SC 80h)"),
        (0x002, "upcie", errno.EIO, "Invalid Field in Command (SCT 0h, SC 02h)"),
        (0x183, "upcie", errno.EIO, "Command Size Limit Exceeded (SCT 1h, SC 83h)"),
        (0x371, "upcie", errno.EIO, "Command Aborted By Host (SCT 3h, SC 71h)"),
        (0x2C0, "upcie", errno.EIO, "unknown (SCT 2h, SC C0h)"),
        (0x705, "upcie", errno.EIO, "Vendor Specific (SCT 7h, SC 05h)"),
        (0x700 | errno.EIO, "io_uring", errno.EIO, ""),
        (0x700 | errno.ENODEV, "libaio", errno.ENODEV, ""),
        (0x700 | errno.EIO, "emu", errno.EIO, ""),
        (0x700 | 256 - errno.ENODEV, "io_uring_cmd", errno.ENODEV, ""),
        (0x705, "io_uring_cmd", errno.EIO, "Vendor Specific (SCT 7h, SC 05h)"),
    ],
)
def test_a_status_is_described_by_its_name(status, io, number, text):
    found, words = describe_status(status, io)
    assert found == number
    assert words == (f"NVMe status {text}" if text else "")
