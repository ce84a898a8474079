"""NVMe commands and memory of an NVIDIA GPU.

`dmabuf` has bus addresses; `queue` runs batches on `queue_pairs` by the kernel of `module`;
`requirements` says what is missing. Imports contract/, runtime/, linux/ and xnvme/.
"""
