"""Linux system calls that read and open files; independent of samples and extent maps.

`engines` chooses between `aio` and `preadv`, and `reads` drives them; `libc` has the prototypes.
`storage`, `pci` and `sysfs` describe devices. Imports contract/ and bmap_tools/.
"""
