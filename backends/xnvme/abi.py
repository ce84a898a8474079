"""The ABI of libxnvme: its structures as numpy types, and the prototypes of its functions.

Two versions of libxnvme are supported, both with the version number 0.7.5: the release and the main
branch. Everything here is the same in both. `struct xnvme_opts` is the same up to offset 88, where
main has inserted a field.

Sources: libxnvme_opts.h, libxnvme_geo.h, libxnvme_cmd.h, libxnvme_spec.h; NVM Express Base
Specification 2.0, Figure 275 (Identify Controller); NVM Command Set Specification 1.0, Figure 97
(Identify Namespace).
"""

import ctypes
from typing import Any

import numpy as np

OPTS = np.dtype(  # struct xnvme_opts
    {
        "names": ["be", "mem", "sync", "async", "nsid", "rdonly", "wronly", "rdwr", "direct"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "<u4", "u1", "u1", "u1", "u1"],
        "offsets": [0, 16, 24, 32, 48, 52, 53, 54, 57],
        "itemsize": 512,  # more than in any version: 136 in 0.7.5, 168 in main
    }
)
OPTS_READ = 58
"""Bytes of OPTS that may be read from libxnvme: up to `direct`."""

GEOMETRY = np.dtype(  # struct xnvme_geo
    {
        "names": ["type", "nbytes_oob", "tbytes", "mdts_nbytes", "lba_nbytes", "lba_extended"],
        "formats": ["<u4", "<u4", "<u8", "<u4", "<u4", "u1"],
        "offsets": [0, 28, 32, 48, 52, 56],
        "itemsize": 64,
    }
)
GEOMETRY_KINDS = {1: "conventional", 2: "zoned", 3: "key-value"}
"""Values of the field `type`."""

CONTEXT = np.dtype(  # struct xnvme_cmd_ctx
    {
        "names": ["head", "state", "result", "status", "device"],
        "formats": ["V80", "<u8", "<i8", "<u2", "<u8"],
        "offsets": [0, 0, 64, 78, 80],
        "itemsize": 128,
    }
)
"""head: the NVMe command (64 bytes) and its completion (16 bytes); state: the first 8 bytes of the
command, which are opcode, flags, identifier and namespace."""

COMMAND = np.dtype(
    [
        ("opcode", "u1"),
        ("flags", "u1"),
        ("cid", "<u2"),
        ("nsid", "<u4"),
        ("cdw2", "V16"),
        ("prp1", "<u8"),
        ("prp2", "<u8"),
        ("slba", "<u8"),
        ("nlb", "<u2"),
        ("cdw12", "V14"),
        ("completion", "V16"),
    ]
)
"""The head of a context, with the fields of a read. Without gaps, which numpy does not copy."""

ADMIN_COMMAND = np.dtype(  # struct xnvme_cmd_ctx of a synchronous command
    {
        "names": ["opcode", "prp1", "cdw10", "cdw11", "result", "status", "device"],
        "formats": ["u1", "<u8", "<u4", "<u4", "<u4", "<u2", "<u8"],
        "offsets": [0, 24, 40, 44, 64, 78, 80],
        "itemsize": 128,
    }
)
"""result: dword 0 of the completion."""

READ = 2  # opcode, NVM command set
MAX_BLOCKS = 1 << 16  # of one read command
PHASE_BITS, SCT_AND_SC = np.uint16(1), np.uint16(0x7FF)  # of a status: shift by, then mask with

IDENTIFY_CONTROLLER = np.dtype(
    {
        "names": ["vendor", "serial", "model"],
        "formats": ["<u2", "V20", "V40"],
        "offsets": [0, 4, 24],
        "itemsize": 4096,
    }
)
IDENTIFY_NAMESPACE = np.dtype(
    {"names": ["nguid", "eui64"], "formats": ["V16", "V8"], "offsets": [104, 120], "itemsize": 4096}
)

_int, _uint, _size = ctypes.c_int, ctypes.c_uint32, ctypes.c_size_t
_string, _pointer = ctypes.c_char_p, ctypes.c_void_p
PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {  # name: type of the result, types of arguments
    "xnvme_dev_open": (_pointer, [_string, _pointer]),
    "xnvme_dev_close": (None, [_pointer]),
    "xnvme_dev_get_geo": (_pointer, [_pointer]),
    "xnvme_dev_get_ctrlr": (_pointer, [_pointer]),
    "xnvme_dev_get_ns": (_pointer, [_pointer]),
    "xnvme_dev_get_nsid": (_uint, [_pointer]),
    "xnvme_dev_get_opts": (_pointer, [_pointer]),
    "xnvme_dev_get_be_state": (_pointer, [_pointer]),
    "xnvme_file_open": (_pointer, [_string, _pointer]),
    "xnvme_file_close": (_int, [_pointer]),
    "xnvme_file_pread": (_int, [_pointer, _pointer, _size, ctypes.c_longlong]),
    "xnvme_buf_alloc": (_pointer, [_pointer, _size]),
    "xnvme_buf_free": (None, [_pointer, _pointer]),
    "xnvme_buf_vtophys": (_int, [_pointer, _pointer, _pointer]),
    "xnvme_queue_init": (_int, [_pointer, ctypes.c_uint16, _int, ctypes.POINTER(_pointer)]),
    "xnvme_queue_term": (_int, [_pointer]),
    "xnvme_queue_poke": (_int, [_pointer, _uint]),
    "xnvme_queue_get_outstanding": (_uint, [_pointer]),
    "xnvme_queue_get_cmd_ctx": (_pointer, [_pointer]),
    "xnvme_queue_set_cb": (_int, [_pointer, _pointer, _pointer]),
    "xnvme_cmd_pass": (_int, [_pointer, _pointer, _size, _pointer, _size]),
    "xnvme_cmd_pass_admin": (_int, [_pointer, _pointer, _size, _pointer, _size]),
}
VERSION_SYMBOLS = {"xnvme_be_attr_get": "main", "xnvme_be_attr_list_bundled": "0.7.5"}
"""Functions of only one version."""


def copy_structure(address: int, dtype: np.dtype[Any], nbytes: int | None = None) -> Any:
    """Copy a structure from foreign memory; only the first `nbytes` of one that may be shorter."""
    content = ctypes.string_at(address, nbytes or dtype.itemsize)
    return np.frombuffer(content.ljust(dtype.itemsize, b"\0"), dtype)[0]
