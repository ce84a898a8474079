"""Linux system calls that read and open files; independent of samples and extent maps.

`engines` chooses among `uring` (a whole batch by one system call), `aio` and preadv2, which
`transfers` drives; each lane has one, for its lifetime. `mapping` maps files, `libc` has the
prototypes. `pci` and `sysfs` describe devices, and `storage`, of the family extents. Imports
contract/ and bmap_tools/.
"""
