"""libxnvme: devices, files, queues of commands, memory; independent of samples and maps.

`abi` has every foreign struct, `library` loads it; then `device`, `queue`, `namespace`. Imports
contract/, runtime/, linux/ and bmap_tools/.
"""
