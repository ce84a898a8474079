"""Tars of WebDataset, for `readers.webdataset` and `python -m dali_storage index`.

In the order to read:

    archive     the places of the files in a tar
    index       DALI's index of a tar, read and made
    components  the samples, and the component for each output
    webdataset  the catalog, and the outputs of a batch
    energon     the index of all tars that Megatron-Energon makes; loaded only for one
    wids        lists of tars; loaded only for one

The catalog is made once, when a reader opens, and each tar or index is closed after it was read.
Outputs are made in the lanes, of bytes in memory. Imports formats/ and contract/.
"""
