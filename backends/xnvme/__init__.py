"""libxnvme: devices, files, queues of commands, memory; independent of samples and maps.

In the order to read:

    abi            every foreign structure and prototype
    library        finds and loads libxnvme
    device         open devices and files, and their memory
    queue          many commands in flight; `status` names their errors
    read_commands  commands as columns
    namespace      what commands are sent to: disks, images, namespaces, PCI addresses
    file_queue     many files by one queue
    device_kinds   the kinds of devices, and `nodes`, their names
    controller     a controller at a PCI address; `bus` and `prp` are addresses for its DMA
    availability   what works on this machine

A backend opens a namespace in its constructor, with a queue for each lane, and closes it in
`close()`, which waits for commands or leaks on purpose. Imports contract/, runtime/, linux/ and
bmap_tools/.
"""
