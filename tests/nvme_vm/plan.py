"""What the tests on the host and those in the guest have agreed upon.

Names in capitals with a minus are serial numbers of controllers.
"""

from __future__ import annotations

RAW_512, RAW_4096 = "RAW-512", "RAW-4096"
"""Disks of random bytes; their images, in the shared directory, have the same names."""

RAW_SIZE = 4 << 20  # bytes
RAW_BAD_SECTOR = 4001
RAW_HUGEPAGES = 16

EMPTY = {512: "EMPTY-512", 4096: "EMPTY-4096"}
"""Disks of which the guest makes what it likes, by the bytes of their blocks."""

MAPPED, FOREIGN = "MAPPED-DISK", "FOREIGN-DISK"
"""A disk with files, which a guest copied and mapped before, and another one of the same bytes."""

TWO_NAMESPACES, ZONED = "TWO-NAMESPACES", "ZONED"
EXTENDED, SEPARATE = "METADATA-EXTENDED", "METADATA-SEPARATE"
"""Disks of kinds that are seldom: the last two have metadata, between blocks or apart."""

RAM_DISK = "/dev/ram0"
"""One of the guest's, of 16 MiB: no NVMe at all."""

TAKEN_OUT = ("OUT-0", "OUT-1", "OUT-2")
"""Small empty disks to be taken out."""

READING = "reading"
"""With the number of a controller: the file by which the guest says that it is to be taken out."""

XNVME_HUGEPAGES = 520
"""libxnvme's own driver takes 512 of them, for its queues and for the memory it reads into."""

FILES, BMAP, FAULTS = "files", "bmap.json", "faults.json"
"""In the shared directory: the files of the mapped disk, their map, and what was done to them."""

MOUNT = "/run/mapped"
"""Where the mapped disk was mounted. The files are in its directory `FILES`."""

CLASSES = 3
"""Directories among the files; each has JPEGs and, named *.bin, random bytes."""
