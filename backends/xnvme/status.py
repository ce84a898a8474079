"""Names of the status codes of reads from a conventional namespace.

Sources: NVM Express Base Specification 2.0, "Status Field" (generic, command specific, path); NVM
Command Set Specification 1.0 for its own codes.
"""

import errno

_GENERIC = {
    0x01: "Invalid Command Opcode",
    0x02: "Invalid Field in Command",
    0x03: "Command ID Conflict",
    0x04: "Data Transfer Error",
    0x05: "Commands Aborted due to Power Loss Notification",
    0x06: "Internal Error",
    0x07: "Command Abort Requested",
    0x08: "Command Aborted due to SQ Deletion",
    0x0B: "Invalid Namespace or Format",
    0x0C: "Command Sequence Error",
    0x0D: "Invalid SGL Segment Descriptor",
    0x0E: "Invalid Number of SGL Descriptors",
    0x0F: "Data SGL Length Invalid",
    0x10: "Metadata SGL Length Invalid",
    0x11: "SGL Descriptor Type Invalid",
    0x12: "Invalid Use of Controller Memory Buffer",
    0x13: "PRP Offset Invalid",
    0x14: "Atomic Write Unit Exceeded",
    0x15: "Operation Denied",
    0x16: "SGL Offset Invalid",
    0x19: "Keep Alive Timer Expired",
    0x1B: "Command Aborted due to Preempt and Abort",
    0x1C: "Sanitize Failed",
    0x1D: "Sanitize In Progress",
    0x1E: "SGL Data Block Granularity Invalid",
    0x1F: "Command Not Supported for Queue in CMB",
    0x21: "Command Interrupted",
    0x22: "Transient Transport Error",
    0x23: "Command Prohibited by Command and Feature Lockdown",
    0x80: "LBA Out of Range",
    0x82: "Namespace Not Ready",
    0x83: "Reservation Conflict",
    0x84: "Format In Progress",
}
_COMMAND_SPECIFIC = {
    0x80: "Conflicting Attributes",
    0x81: "Invalid Protection Information",
    0x83: "Command Size Limit Exceeded",
}
_MEDIA = {
    0x81: "Unrecovered Read Error",
    0x82: "End-to-end Guard Check Error",
    0x83: "End-to-end Application Tag Check Error",
    0x84: "End-to-end Reference Tag Check Error",
    0x86: "Access Denied",
    0x87: "Deallocated or Unwritten Logical Block",
    0x88: "End-to-End Storage Tag Check Error",
}
_PATH = {
    0x00: "Internal Path Error",
    0x01: "Asymmetric Access Persistent Loss",
    0x02: "Asymmetric Access Inaccessible",
    0x03: "Asymmetric Access Transition",
    0x60: "Controller Pathing Error",
    0x70: "Host Pathing Error",
    0x71: "Command Aborted By Host",
}
_VENDOR = 7
_TYPES = {0: _GENERIC, 1: _COMMAND_SPECIFIC, 2: _MEDIA, 3: _PATH}


def describe_status(status: int, async_impl: str) -> tuple[int, str]:
    """An errno, and a description for the user: empty if the errno is enough.

    The status is SCT << 8 | SC, not zero. If the kernel rejects a command, each asynchronous
    implementation of libxnvme encodes the errno as a vendor specific status, in its own way.
    """
    kind, code = status >> 8, status & 0xFF
    if kind == _VENDOR and async_impl in ("io_uring", "libaio", "emu", "thrpool", "posix"):
        return code, ""
    if kind == _VENDOR and async_impl == "io_uring_cmd" and 256 - code in errno.errorcode:
        return 256 - code, ""
    name = _TYPES.get(kind, {}).get(code, "Vendor Specific" if kind == _VENDOR else "unknown")
    return errno.EIO, f"NVMe status {name} (SCT {kind:X}h, SC {code:02X}h)"
