"""Names and numbers that the tests on the host share with those in the guest.

Names in capitals with a hyphen are serial numbers of controllers.
"""

EMPTY = {512: "EMPTY-512", 4096: "EMPTY-4096"}
"""Empty disks for the guest to use, by their block size in bytes."""

MAPPED, FOREIGN = "MAPPED-DISK", "FOREIGN-DISK"
"""A disk with files that another guest has copied and mapped, and a disk with the same bytes."""

TWO_NAMESPACES, ZONED = "TWO-NAMESPACES", "ZONED"
EXTENDED, SEPARATE = "METADATA-EXTENDED", "METADATA-SEPARATE"
"""Unusual disks; the last two have metadata, between the blocks or separate."""

TAKEN_OUT = ("OUT-0", "OUT-1", "OUT-2", "OUT-3")
"""Small empty disks to be removed."""

READING = "reading"
"""With the number of a controller: the file by which the guest asks for its removal."""

XNVME_HUGEPAGES = 520
"""libxnvme's own driver takes 512 of them, for its queues and its buffers."""

FILES, BMAP, FAULTS = "files", "bmap.json", "faults.json"
"""In the shared directory: the files of the mapped disk, their map, and the list of faults."""

MOUNT = "/run/mapped"
"""The mount point of the mapped disk. The files are in its directory `FILES`."""

CLASSES = 3
"""Directories among the files; each has JPEGs and, named *.bin, random bytes."""
