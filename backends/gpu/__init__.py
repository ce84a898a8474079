"""NVMe commands and memory of an NVIDIA GPU.

In the order to read:

    layout        the structures of submit.cu, the kernel, as numpy types
    module        the kernel on a GPU, by CuPy
    queue_pairs   the queue pairs of a controller, by the commands in `admin`
    queue         a batch, by launches of the kernel
    dmabuf        bus addresses of GPU memory, by `driver`
    registers     doorbells of a controller
    requirements  what a machine lacks

A backend creates its queue pairs in its constructor, and deletes them in `close()`, or leaks them
if a device never answers. Imports contract/, runtime/, linux/ and xnvme/.
"""
